//! A simulator, and somebody at a desk who runs the binary against it.

#![expect(
    clippy::disallowed_methods,
    reason = "the child's environment is made here, and polling needs a pause"
)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stageline::ambient::{Clock as _, SystemClock};
use stageline::core::state::{Spent, State};
use stageline::sim::{self, Fault, Faults, Kind, Options, Running};
use tokio::runtime::Runtime;

/// Long, for a computer that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

/// A day of the simulator is two and a half minutes.
pub(crate) const SPEED: u32 = 600;

/// What a topology says of a cloud.
struct Words {
    /// Its table, and the variable that has its key.
    provider: &'static str,
    key: &'static str,
    /// The terms of an offer.
    offer: &'static str,
    /// Who ends its machines, where they do not do so themselves.
    guard: &'static str,
}

/// A test ends its machines.
pub(crate) const NOBODY: &str = "unguarded = true";

/// The words of a cloud.
fn words(kind: Kind) -> Words {
    match kind {
        Kind::Vastai => Words {
            provider: "vast",
            key: "VAST_API_KEY",
            offer: r#"where = "gpu=rtx_4090|rtx_3090, vram>=24, reliability>=0.9"
image = "stageline/agent:1""#,
            guard: "",
        },
        Kind::Runpod => Words {
            provider: "pods",
            key: "RUNPOD_API_KEY",
            offer: r#"where = "gpu=rtx_4090|rtx_3090, vram>=24"
image = "stageline/agent:1""#,
            guard: "",
        },
        Kind::Lambda => Words {
            provider: "lambda",
            key: "LAMBDA_API_KEY",
            offer: r#"where = "gpu=a10|rtx_6000, vram>=24"
agent = { url = "http://127.0.0.1:9/stageline", sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" }"#,
            guard: NOBODY,
        },
    }
}

/// The key that a desk has.
pub(crate) const KEY: &str = "rehearsal-key-of-a-test";

pub(crate) struct Desk {
    kind: Kind,
    dir: tempfile::TempDir,
    runtime: Runtime,
    begun: Instant,
    pub(crate) cloud: Running,
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

pub(crate) async fn cloud(kind: Kind, faults: Vec<Fault>, speed: u32, agents: bool) -> Running {
    let options = options(kind, faults, speed, agents);
    sim::start(options).await.expect("it listens")
}

fn options(kind: Kind, faults: Vec<Fault>, speed: u32, agents: bool) -> Options {
    let program = agents.then(|| Path::new(env!("CARGO_BIN_EXE_stageline")).to_owned());
    Options {
        kind,
        listen: "127.0.0.1:0".parse().expect("an address"),
        faults: Faults::new(faults, 7),
        speed,
        seed: 7,
        program,
        fetch: false,
    }
}

impl Desk {
    /// Two machines with a stub pipeline over them, at a cloud with these faults.
    pub(crate) fn new(kind: Kind, faults: Vec<Fault>) -> Self {
        Self::of(kind, faults, SPEED, 2)
    }

    /// So many machines, at a cloud whose clock runs so fast.
    pub(crate) fn of(kind: Kind, faults: Vec<Fault>, speed: u32, count: u32) -> Self {
        Self::at(options(kind, faults, speed, true), count)
    }

    /// One machine, which fetches its agent as a rented one does.
    pub(crate) fn fetching(kind: Kind) -> Self {
        let mut options = options(kind, Vec::new(), SPEED, true);
        options.fetch = true;
        Self::at(options, 1)
    }

    fn at(options: Options, count: u32) -> Self {
        let kind = options.kind;
        let begun = Instant::now();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let cloud = runtime.block_on(sim::start(options)).expect("it listens");
        let dir = tempfile::tempdir().expect("a folder");
        let desk = Self {
            kind,
            dir,
            runtime,
            begun,
            cloud,
        };
        desk.write(&desk.topology(count));
        desk
    }

    pub(crate) fn write(&self, topology: &str) {
        self.file("topology.toml", topology);
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).expect("written");
    }

    pub(crate) fn topology(&self, count: u32) -> String {
        let Words {
            provider,
            offer,
            guard,
            ..
        } = words(self.kind);
        let (kind, url) = (self.kind.as_str(), self.cloud.url());
        format!(
            r#"
version = 1
name = "demo"
[limits]
max_price_per_hour = 1.00
[provider.{provider}]
kind = "{kind}"
url = "{url}"
[offer.gpu]
provider = "{provider}"
{offer}
[lease.node]
{guard}
offers = ["gpu"]
count = {count}
disk = 40
[pipeline.chat]
engine = "stub"
stages = {{ on = "lease.node", split = "auto" }}
[exposure.api]
pipelines = ["chat"]
listen = "127.0.0.1:0"
"#
        )
    }

    /// A file for its owner only.
    pub(crate) fn secret(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        self.file(name, text);
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path(name), mode).expect("set");
    }

    /// The topology with one text in the place of another, which must be there.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let path = self.dir.path().join("topology.toml");
        let before = std::fs::read_to_string(&path).expect("readable");
        assert!(before.contains(from), "no `{from}` in the topology");
        std::fs::write(path, before.replace(from, to)).expect("written");
    }

    pub(crate) fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn remove_topology(&self) {
        std::fs::remove_file(self.dir.path().join("topology.toml")).expect("removed");
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_stageline")), line)
    }

    /// The same of a stageline that is elsewhere.
    pub(crate) fn command_of(&self, program: &Path, line: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(line.split_ascii_whitespace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("USER", "tester")
            .env("COLUMNS", "400")
            .env(words(self.kind).key, KEY)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        finish(self.command(line).spawn().expect("the binary is there"))
    }

    /// The same with another key, or with none.
    pub(crate) fn run_with(&self, key: Option<&str>, line: &str) -> Ran {
        let mut command = self.command(line);
        match key {
            Some(key) => command.env(words(self.kind).key, key),
            None => command.env_remove(words(self.kind).key),
        };
        finish(command.spawn().expect("the binary is there"))
    }

    /// The machines that are there, by id; those of others left out.
    pub(crate) fn there(&self) -> Vec<String> {
        self.those(false)
    }

    /// Those that somebody else made on the same account.
    pub(crate) fn foreign(&self) -> Vec<String> {
        self.those(true)
    }

    fn those(&self, foreign: bool) -> Vec<String> {
        let now = self.cloud.world.clock.now();
        let inner = self.cloud.world.lock();
        let there = inner
            .machines
            .values()
            .filter(|machine| machine.is_there(now) && machine.foreign == foreign);
        let mut there: Vec<String> = there.map(|machine| self.kind.id(machine.id)).collect();
        there.sort();
        there
    }

    /// The name of a machine, after somebody changed it or left it; tags go with it.
    pub(crate) fn name(&self, machine: &str, change: impl FnOnce(&mut String)) -> String {
        let mut inner = self.cloud.world.lock();
        let mut machines = inner.machines.values_mut();
        let machine = machines.find(|one| self.kind.id(one.id) == machine);
        let machine = machine.expect("it is there");
        let before = machine.label.clone();
        change(&mut machine.label);
        if machine.label != before {
            machine.more["tags"] = serde_json::Value::Null;
        }
        machine.label.clone()
    }

    /// The machines that the state holds, by id; one that is unresolved is `none`.
    pub(crate) fn held(&self) -> Vec<String> {
        let ran = self.run("leases --json");
        assert_eq!(ran.code, Some(0), "{}", ran.text);
        let start = ran.text.find('[').expect("a list");
        let lines: Vec<serde_json::Value> = serde_json::Deserializer::from_str(&ran.text[start..])
            .into_iter()
            .next()
            .expect("JSON")
            .expect("JSON");
        let held = lines.iter().filter(|line| {
            let status = line["status"].as_str().expect("a text");
            !status.starts_with("ended")
        });
        let mut held: Vec<String> = held
            .map(|line| line["machine"].as_str().unwrap_or("none").to_owned())
            .collect();
        held.sort();
        held
    }

    pub(crate) fn agrees(&self, count: usize) {
        let (held, there) = (self.held(), self.there());
        assert_eq!(held, there, "recorded, and there");
        assert_eq!(there.len(), count);
        self.bill_is_as_counted();
    }

    /// What the cloud bills, by its quick clock, lies between the two bounds of the ledger. What is another's is not ours to pay.
    pub(crate) fn bill_is_as_counted(&self) -> Spent {
        let billed = self.cloud.world.bill();
        let now = self.cloud.world.clock.now();
        let others: u64 = {
            let inner = self.cloud.world.lock();
            let machines = inner.machines.values();
            let others = machines.filter(|machine| machine.foreign && machine.is_there(now));
            others.map(|machine| machine.meter.total().0).sum()
        };
        let billed = (billed.0 - others) / u64::from(self.cloud.world.clock.speed());
        let ran = self.run("state pull");
        ran.exits(0);
        let document: serde_json::Value = serde_json::from_str(ran.text.trim()).expect("JSON");
        let state: State = serde_json::from_value(document["state"].clone()).expect("a state");
        let now = state.ledger_now(SystemClock.now(), SystemClock.boot_point().as_ref());
        let ledger = state.ledger(now, |_| false);
        let spent = ledger.total;
        let Spent { least, most, .. } = spent;
        // Rates are whole micro-dollars an hour.
        let slack = self.cloud.world.lock().machines.len() as u64;
        assert!(
            least.0 <= billed + slack && billed <= most.0 + slack,
            "the cloud bills {billed}, the ledger says {} to {} micro-dollars",
            least.0,
            most.0
        );
        let (width, widest) = (most.0 - least.0, self.widest(ledger.leases.len()) + slack);
        assert!(
            width <= widest,
            "the ledger leaves {width} open, where {widest} is the most that can be"
        );
        spent
    }

    /// All that can be unknown of a bill: each create, and each try of a lease that was written down and never sent, may have made a machine
    /// as dear as any that was to be had, which is there since.
    fn widest(&self, leases: usize) -> u64 {
        let inner = self.cloud.world.lock();
        let prices = inner.machines.values().flat_map(|it| {
            let later = it.later.map_or(0, |(_, price)| price.0);
            [it.meter.per_hour().0, later]
        });
        let dearest = prices.max().unwrap_or(0).max(CEILING);
        let asked = inner.requests.get("create").map_or(0, |asked| *asked);
        let made = inner.machines.len() as u64;
        let tries = u128::from(asked.max(made)) + leases as u128;
        let life = self.begun.elapsed().as_millis();
        let widest = tries * u128::from(dearest) * life / 3_600_000;
        u64::try_from(widest).expect("some cents")
    }
}

/// The price that a try in doubt counts at, in micro-dollars: `max_price_per_hour`.
const CEILING: u64 = 1_000_000;

impl Drop for Desk {
    fn drop(&mut self) {
        self.runtime.block_on(self.cloud.stop());
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.text);
        assert!(!self.text.contains("panicked"), "{}", self.text);
        self
    }

    /// What a command with `--json` printed.
    #[track_caller]
    pub(crate) fn document(&self) -> serde_json::Value {
        let start = self.text.find('{').expect("a document");
        let mut documents = serde_json::Deserializer::from_str(&self.text[start..])
            .into_iter::<serde_json::Value>();
        documents.next().expect("JSON").expect("JSON")
    }

    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> &Self {
        assert!(self.text.contains(words), "no `{words}` in {}", self.text);
        self
    }
}

/// Waits for a child and takes what it printed.
pub(crate) fn finish(mut child: Child) -> Ran {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(|| drain(out));
    let err = std::thread::spawn(|| drain(err));
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("ours") {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().expect("ours");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let output = Output {
        status,
        stdout: out.join().expect("read"),
        stderr: err.join().expect("read"),
    };
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Ran {
        code: output.status.code(),
        text: text.join("\n"),
    }
}

fn drain(pipe: Option<impl std::io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).expect("readable");
    }
    bytes
}
