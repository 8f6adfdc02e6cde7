//! A folder with a topology, the binary in it, and a guard that ends whatever its machines left running.

#![expect(
    clippy::disallowed_methods,
    reason = "the child's environment is made here, and polling needs a pause"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take before the test fails: long, for a computer that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Two machines, a stub pipeline over them, an exposure on a free port.
pub(crate) const STUB: &str = r#"
version = 1
name = "demo"

[provider.here]
kind = "local"
slots = 8

[offer.small]
provider = "here"

[lease.node]
offers = ["small"]
count = 2

[pipeline.chat]
engine = "stub"
stages = { on = "lease.node", split = "auto" }
check = { prompt = "Hello", max_tokens = 1 }

[exposure.api]
pipelines = ["chat"]
serve = "openai"
via = "loopback"
listen = "127.0.0.1:0"
"#;

/// One user on one computer.
pub(crate) struct World {
    dir: tempfile::TempDir,
    env: BTreeMap<String, String>,
}

impl World {
    /// A folder with this topology.
    pub(crate) fn new(topology: &str) -> Self {
        let world = Self::empty();
        world.write("topology.toml", topology);
        world
    }

    /// A folder with nothing in it.
    pub(crate) fn empty() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("stageline-cli-")
            .tempdir()
            .expect("a folder");
        Self {
            dir,
            env: BTreeMap::new(),
        }
    }

    /// A variable of the environment from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// The folder, without links, as processes carry it.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("it is there")
    }

    pub(crate) fn join(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.join(path);
        let folder = path.parent().expect("below the folder");
        std::fs::create_dir_all(folder).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.join(path)).expect("readable")
    }

    /// The topology with one text in the place of another, which must be there.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let before = self.read("topology.toml");
        assert!(before.contains(from), "no `{from}` in the topology");
        self.write("topology.toml", before.replace(from, to));
    }

    /// The binary with nothing of our own environment.
    pub(crate) fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("USER", "tester")
            .env("COLUMNS", "100")
            .envs(&self.env)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command line, split at spaces.
    pub(crate) fn run(&self, line: &str) -> Ran {
        self.run_args(line.split_ascii_whitespace())
    }

    /// Runs the binary with these arguments.
    pub(crate) fn run_args<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Ran {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = format!("{:?}", command.get_args().collect::<Vec<_>>());
        let child = command.spawn().expect("the binary is there");
        Ran::of(line, finish(child))
    }

    /// Starts the binary and returns at once.
    pub(crate) fn start(&self, line: &str) -> Child {
        let mut command = self.command(line.split_ascii_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary is there")
    }

    /// `apply`, unasked, and well.
    pub(crate) fn apply(&self) -> Ran {
        let ran = self.run("apply --auto-approve");
        ran.exits(0);
        ran
    }

    /// `destroy`, unasked, and well; nothing is left then.
    pub(crate) fn destroy(&self) -> Ran {
        let ran = self.run("destroy --auto-approve");
        ran.exits(0);
        ran.says("0 left at providers");
        self.is_clean();
        ran
    }

    /// The folders of all machines, by name.
    pub(crate) fn machines(&self) -> Vec<PathBuf> {
        let mut machines = Vec::new();
        for state in folders(&self.join("state")) {
            machines.extend(folders(&state.join("machines")));
        }
        machines.sort();
        machines
    }

    /// The processes of all machines, agents and workers, each with its arguments.
    pub(crate) fn processes(&self) -> BTreeMap<i32, String> {
        let below = format!("STAGELINE_MACHINE_DIR={}/", self.path().display());
        carriers(|variable| variable.starts_with(below.as_bytes()))
    }

    /// The processes of one machine that were started with this in their arguments.
    pub(crate) fn processes_of(&self, machine: &Path, program: &str) -> Vec<i32> {
        let machine = machine.canonicalize().expect("it is there");
        let marker = format!("STAGELINE_MACHINE_DIR={}", machine.display());
        let all = carriers(|variable| variable == marker.as_bytes());
        let with = all.into_iter().filter(|(_, args)| args.contains(program));
        with.map(|(pid, _)| pid).collect()
    }

    /// Neither a machine's folder nor a process of one.
    pub(crate) fn is_clean(&self) {
        let (machines, processes) = (self.machines(), self.processes());
        assert!(machines.is_empty(), "left: {machines:?}");
        assert!(processes.is_empty(), "left: {processes:?}");
    }

    /// Recorded machines and machines that are there are the same.
    pub(crate) fn agrees(&self) {
        self.agrees_with("");
    }

    /// The same for a state that has to be named.
    pub(crate) fn agrees_with(&self, options: &str) {
        let ran = self.run(&format!("leases --json {options}"));
        ran.exits(0);
        let lines: Vec<serde_json::Value> = serde_json::from_str(&ran.out).expect("JSON");
        let held = lines.iter().filter(|line| {
            let status = line["status"].as_str().expect("a text");
            !status.starts_with("ended")
        });
        let mut held: Vec<String> = held
            .map(|line| line["machine"].as_str().unwrap_or("none").to_owned())
            .collect();
        held.sort();
        let name = |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let there: Vec<String> = self.machines().iter().filter_map(name).collect();
        assert_eq!(held, there, "recorded, and there");
    }

    /// Every file below the folder, with its bytes.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut open = vec![self.dir.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => open.push(path),
                    Ok(kind) if kind.is_file() => {
                        // It may be gone since.
                        let bytes = std::fs::read(&path).unwrap_or_default();
                        files.insert(path, bytes);
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }
        files
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed half-way leaves machines; one after another, since an agent may start a worker meanwhile.
        for _ in 0..20 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left.keys() {
                kill(*pid, Signal::KILL);
            }
            pause();
        }
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Living processes whose environment holds such a variable.
fn carriers(wanted: impl Fn(&[u8]) -> bool) -> BTreeMap<i32, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").expect("readable").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else {
            continue;
        };
        if environment.split(|byte| *byte == 0).any(&wanted) {
            let args = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.insert(pid, String::from_utf8_lossy(&args).replace('\0', " "));
        }
    }
    found
}

/// Sends a signal; gone is done.
pub(crate) fn kill(pid: i32, signal: Signal) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid).expect("a number"), signal);
}

/// Whether a process is stopped, as by SIGSTOP.
pub(crate) fn stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Between two looks.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Looks until there is something to see.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        pause();
    }
}

/// Waits for a child and takes what it printed; one that hangs is ended, and the test with it.
pub(crate) fn finish(mut child: Child) -> Output {
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
            let err = err.join().expect("read");
            panic!("it hangs: {}", String::from_utf8_lossy(&err));
        }
        pause();
    };
    Output {
        status,
        stdout: out.join().expect("read"),
        stderr: err.join().expect("read"),
    }
}

fn drain(pipe: Option<impl std::io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).expect("readable");
    }
    bytes
}

/// What a command did.
pub(crate) struct Ran {
    line: String,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(line: String, output: Output) -> Self {
        Self {
            line,
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// It ended with this code, and no fault of ours was admitted.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self}");
        for text in [&self.out, &self.err] {
            let fault = ["panicked", "please report", "this is a bug"]
                .iter()
                .find(|words| text.contains(**words));
            assert!(fault.is_none(), "{self}");
        }
        self
    }

    /// It said this, on either stream, however it was broken into lines.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        let all = self.words();
        assert!(all.contains(&words(text)), "no `{text}` in:\n{self}");
        self
    }

    /// It said nothing like this.
    #[track_caller]
    pub(crate) fn says_not(&self, text: &str) -> &Self {
        assert!(!self.words().contains(&words(text)), "`{text}` in:\n{self}");
        self
    }

    /// Its data as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("no JSON ({error}):\n{self}"),
        }
    }

    fn words(&self) -> String {
        words(&format!("{} {}", self.out, self.err))
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} exits with {:?}", self.line, self.code)?;
        writeln!(f, "--- stdout\n{}\n--- stderr\n{}", self.out, self.err)
    }
}
