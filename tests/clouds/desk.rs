//! A simulator, and somebody at a desk who runs the binary against it.

#![expect(
    clippy::disallowed_methods,
    reason = "the child's environment is made here, and polling needs a pause"
)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stageline::sim::{self, Fault, Faults, Kind, Options, Running};
use tokio::runtime::Runtime;

/// Long, for a computer that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

/// A day of the simulator is two and a half minutes.
const SPEED: u32 = 600;

pub(super) struct Desk {
    dir: tempfile::TempDir,
    runtime: Runtime,
    pub(super) cloud: Running,
}

pub(super) struct Ran {
    pub(super) code: Option<i32>,
    pub(super) text: String,
}

pub(super) async fn cloud(faults: Vec<Fault>, speed: u32, agents: bool) -> Running {
    let program = agents.then(|| Path::new(env!("CARGO_BIN_EXE_stageline")).to_owned());
    let options = Options {
        kind: Kind::Vastai,
        listen: "127.0.0.1:0".parse().expect("an address"),
        faults: Faults::new(faults, 7),
        speed,
        seed: 7,
        program,
    };
    sim::start(options).await.expect("it listens")
}

impl Desk {
    /// Two machines with a stub pipeline over them, at a cloud with these faults.
    pub(super) fn new(faults: Vec<Fault>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let cloud = runtime.block_on(cloud(faults, SPEED, true));
        let dir = tempfile::tempdir().expect("a folder");
        let desk = Self {
            dir,
            runtime,
            cloud,
        };
        std::fs::write(desk.dir.path().join("topology.toml"), desk.topology()).expect("written");
        desk
    }

    fn topology(&self) -> String {
        format!(
            r#"
version = 1
name = "demo"
[limits]
max_price_per_hour = 1.00
[provider.vast]
kind = "vastai"
url = "{}"
[offer.gpu]
provider = "vast"
where = "gpu=rtx_4090|rtx_3090, vram>=24, reliability>=0.9"
image = "stageline/agent:1"
[lease.node]
offers = ["gpu"]
count = 2
disk = 40
[pipeline.chat]
engine = "stub"
stages = {{ on = "lease.node", split = "auto" }}
[exposure.api]
pipelines = ["chat"]
listen = "127.0.0.1:0"
"#,
            self.cloud.url()
        )
    }

    pub(super) fn remove_topology(&self) {
        std::fs::remove_file(self.dir.path().join("topology.toml")).expect("removed");
    }

    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
        command
            .args(line.split_ascii_whitespace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("USER", "tester")
            .env("COLUMNS", "400")
            .env("VAST_API_KEY", "rehearsal-key-of-a-test")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(super) fn run(&self, line: &str) -> Ran {
        finish(self.command(line).spawn().expect("the binary is there"))
    }

    /// The machines that are there, by id.
    pub(super) fn there(&self) -> Vec<String> {
        let now = self.cloud.world.clock.now();
        let inner = self.cloud.world.lock();
        let there = inner
            .machines
            .values()
            .filter(|machine| machine.is_there(now));
        there.map(|machine| machine.id.to_string()).collect()
    }

    /// The machines that the state holds, by id; one that is unresolved is `none`.
    pub(super) fn held(&self) -> Vec<String> {
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

    pub(super) fn agrees(&self, count: usize) {
        let (held, there) = (self.held(), self.there());
        assert_eq!(held, there, "recorded, and there");
        assert_eq!(there.len(), count);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.runtime.block_on(self.cloud.stop());
    }
}

impl Ran {
    #[track_caller]
    pub(super) fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.text);
        assert!(!self.text.contains("panicked"), "{}", self.text);
        self
    }

    #[track_caller]
    pub(super) fn says(&self, words: &str) -> &Self {
        assert!(self.text.contains(words), "no `{words}` in {}", self.text);
        self
    }
}

/// Waits for a child and takes what it printed.
pub(super) fn finish(mut child: Child) -> Ran {
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
