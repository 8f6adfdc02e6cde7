//! A provider of the user's own programs: the whole job with the pool of the example, and what befalls programs.
//!
//! Each machine of the pool is a folder and a real agent on this computer. What the pool has at the end is what is recorded.

#![expect(
    clippy::disallowed_methods,
    reason = "the child's environment is made here, and polling needs a pause"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::desk::{Ran, finish};

/// Somebody at a desk with a pool of two machines.
struct Desk {
    dir: tempfile::TempDir,
}

const LIST: &str = r#"list = ["./pool.sh", "list"]"#;

impl Desk {
    /// A desk whose provider lists its machines.
    fn new(count: u32) -> Self {
        Self::with(count, LIST)
    }

    /// A desk whose provider has these words more.
    fn with(count: u32, more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let desk = Self { dir };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/command/pool.sh");
        std::fs::copy(script, desk.path("pool.sh")).expect("copied");
        let topology = format!(
            r#"
version = 1
name = "demo"
[provider.pool]
kind = "command"
acquire = ["./pool.sh", "acquire"]
release = ["./pool.sh", "release"]
timeout = "20s"
{more}
[offer.box]
provider = "pool"
where = "cpus>=1"
[offer.box.claims]
cpus = 1
memory = 1
price_per_hour = 0
[lease.node]
offers = ["box"]
count = {count}
[pipeline.chat]
engine = "stub"
stages = {{ on = "lease.node", split = "auto" }}
[exposure.api]
pipelines = ["chat"]
listen = "127.0.0.1:0"
"#
        );
        std::fs::write(desk.path("topology.toml"), topology).expect("written");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A script beside the topology.
    fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// The topology with one text in the place of another, which must be there.
    fn edit(&self, from: &str, to: &str) {
        let path = self.path("topology.toml");
        let before = std::fs::read_to_string(&path).expect("readable");
        assert!(before.contains(from), "no `{from}` in the topology");
        std::fs::write(path, before.replace(from, to)).expect("written");
    }

    fn command(&self, program: &Path, line: &str) -> Command {
        let own = Path::new(env!("CARGO_BIN_EXE_stageline"));
        let folder = own.parent().expect("a folder").display();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .args(line.split_ascii_whitespace())
            .env_clear()
            .env("PATH", format!("{folder}:{path}"))
            .env("HOME", self.dir.path())
            .env("POOL", self.path("pool"))
            .env("USER", "tester")
            .env("COLUMNS", "400")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn stageline(&self, line: &str) -> Command {
        self.command(Path::new(env!("CARGO_BIN_EXE_stageline")), line)
    }

    fn run(&self, line: &str) -> Ran {
        let child = self.stageline(line).spawn();
        finish(child.expect("the binary is there"))
    }

    /// The machines of the pool that somebody has, by lease id.
    fn there(&self) -> Vec<String> {
        let links = std::fs::read_dir(self.path("pool/slots"));
        let links = links.into_iter().flatten().flatten();
        let mut there: Vec<String> = links
            .filter_map(|link| std::fs::read_link(link.path()).ok())
            .map(|lease| lease.to_string_lossy().into_owned())
            .collect();
        there.sort();
        there
    }

    /// Those that the state records.
    fn held(&self) -> Vec<String> {
        let output = self.stageline("leases --json").output().expect("it runs");
        let lines: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("a list");
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

    fn agrees(&self, count: usize) {
        let (held, there) = (self.held(), self.there());
        assert_eq!(held, there, "recorded, and there");
        assert_eq!(there.len(), count);
    }

    /// Whether a process runs that is just this program with this argument.
    fn runs(&self, program: &str, argument: &str) -> bool {
        let line = format!("{program}\0{argument}\0").into_bytes();
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
            .any(|other| other == line)
    }
}

impl Drop for Desk {
    /// Whatever a test that failed left running ends.
    fn drop(&mut self) {
        for lease in self.there() {
            let script = self.path("pool.sh");
            let mut release = self.command(&script, "release");
            release.env("ERRAND_LEASE_ID", lease).status().ok();
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// It goes on for as long as the file `go` is not there: who reads what it says has heard it before it ended.
#[test]
fn what_acquire_says_is_shown_while_it_runs() {
    use std::io::BufRead as _;
    let desk = Desk::new(1);
    desk.script(
        "slow.sh",
        "echo asking the landlord >&2\nwhile [ ! -e go ]; do sleep 0.05; done\nexec ./pool.sh acquire",
    );
    desk.edit(
        "acquire = [\"./pool.sh\", \"acquire\"]",
        "acquire = [\"./slow.sh\"]",
    );
    let mut apply = desk
        .stageline("apply --auto-approve")
        .spawn()
        .expect("the binary is there");
    let pipe = apply.stderr.take().expect("a pipe");
    let mut lines = std::io::BufReader::new(pipe).lines().map_while(Result::ok);
    let heard = lines.find(|line| line.contains("asking the landlord"));
    assert_eq!(
        heard.as_deref(),
        Some("lease.node[0]: | asking the landlord")
    );
    std::fs::write(desk.path("go"), "").expect("written");
    let rest = std::thread::spawn(move || lines.count());
    finish(apply).exits(0);
    rest.join().expect("no panic");
    desk.run("destroy --auto-approve").exits(0);
}

#[test]
fn machines_of_a_pool_are_got_asked_and_given_back() {
    let desk = Desk::new(2);
    desk.run("plan")
        .exits(0)
        .says("box from provider pool")
        .says("; its agent is pushed over SSH, unless `acquire` starts it");
    assert!(desk.there().is_empty(), "a plan gets nothing");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("is up")
        .says("per hour; its agent is started by `acquire`");
    desk.agrees(2);
    desk.run("ask Hello").exits(0);
    desk.run("status").exits(0).says("lease.node[1]");
    desk.run("logs lease.node[0]").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("orphans").exits(0).says("no orphan was found");
    // To end machines, neither the topology nor its provider's table is needed.
    std::fs::remove_file(desk.path("topology.toml")).expect("removed");
    for _ in 0..2 {
        desk.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
        desk.agrees(0);
    }
}

/// What no claim says is said by `facts`; what `price` says is asked for again right before a machine is got.
#[test]
fn facts_and_prices_are_what_programs_print_and_a_price_is_asked_for_again() {
    let desk = Desk::with(
        1,
        &format!("{LIST}\nfacts = [\"./facts.sh\"]\nprice = [\"./price.sh\"]"),
    );
    desk.script(
        "facts.sh",
        "echo \"{\\\"region\\\": \\\"attic-$ERRAND_OFFER\\\"}\"",
    );
    desk.script("price.sh", "cat now");
    desk.edit("cpus>=1", "cpus>=1, region=attic-box");
    desk.edit("price_per_hour = 0\n", "price_per_hour = 0.10\n");
    desk.edit("[lease.node]\n", "[lease.node]\nunguarded = true\n");
    desk.edit(
        "name = \"demo\"\n",
        "name = \"demo\"\n[limits]\nmax_price_per_hour = 0.50\n",
    );
    let costs = |price: &str| std::fs::write(desk.path("now"), price).expect("written");
    costs("0.40\n");
    desk.run("plan --out kept.plan").exits(0).says("$0.40");
    costs("{\"price_per_hour\": 0.90, \"available\": 3}\n");
    desk.run("apply kept.plan")
        .says("costs $0.90/h now, and its ceiling is $0.50/h");
    assert!(desk.there().is_empty(), "it was not got at that price");
    costs("0.30\n");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.run("leases").exits(0).says("$0.30");
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn without_a_list_what_cannot_be_seen_is_said() {
    let desk = Desk::with(2, "");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    desk.run("plan --detailed-exitcode").exits(0);
    let ran = desk.run("orphans");
    ran.exits(5).says("cannot see all of provider `pool`");
    let ran = desk.run("destroy --auto-approve");
    ran.exits(0).says("is the word of its `release`");
    desk.agrees(0);
    desk.run("destroy --auto-approve").exits(0);
}

#[test]
fn a_killed_apply_leaves_one_machine_and_no_second() {
    // Told from what another run of this test may have left.
    for (more, number) in [(LIST, "6143"), ("", "6144")] {
        let number = format!("{number}{}", std::process::id());
        let desk = Desk::with(1, more);
        desk.edit("\"20s\"", "\"5s\"");
        // It claims the machine, and never gets to say so.
        desk.script(
            "slow.sh",
            &format!("./pool.sh acquire >/dev/null\nexec sleep {number}"),
        );
        desk.edit(r#"["./pool.sh", "acquire"]"#, r#"["./slow.sh"]"#);
        let mut apply = desk.stageline("apply --auto-approve");
        let mut apply = apply.spawn().expect("the binary is there");
        until("it sleeps", || {
            desk.there().len() == 1 && desk.runs("sleep", &number)
        });
        let first = desk.there();
        apply.kill().expect("ours");
        finish(apply);
        desk.edit(r#"["./slow.sh"]"#, r#"["./pool.sh", "acquire"]"#);
        // With a list the machine is found by its name; either way there is one in the end.
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        assert_ne!(desk.there(), first, "one that was cut short is not trusted");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn an_answer_that_is_none_is_told_to_whoever_wrote_the_program() {
    let desk = Desk::new(1);
    desk.script(
        "odd.sh",
        "./pool.sh acquire >/dev/null\necho 'machine is ready'",
    );
    desk.edit(r#"["./pool.sh", "acquire"]"#, r#"["./odd.sh"]"#);
    let ran = desk.run("apply --auto-approve");
    ran.exits(1)
        .says("does not keep to the contract")
        .says("machine is ready")
        .says("docs/COMMAND.md");
    desk.agrees(0);
}

#[test]
fn a_program_that_takes_too_long_or_prints_too_much_is_ended() {
    // Told from what another run of this test may have left.
    let number = format!("7{}", std::process::id());
    for (program, more, words, code) in [
        ("sleep", "", "did not end within 1 s", 4),
        ("sleep", LIST, "did not end within 1 s", 4),
        ("yes", "", "printed more than 16384 bytes", 1),
    ] {
        let desk = Desk::with(1, more);
        desk.edit("\"20s\"", "\"1s\"");
        desk.script(
            "bad.sh",
            &format!("echo x >>asked\nexec {program} {number}"),
        );
        desk.edit(r#"["./pool.sh", "acquire"]"#, r#"["./bad.sh"]"#);
        // What it may have begun is given back before it is told.
        desk.run("apply --auto-approve").exits(code).says(words);
        // One that hangs would hang again, and takes all of its time each time.
        let asked = std::fs::read_to_string(desk.path("asked")).expect("it was asked");
        assert_eq!(asked, "x\n", "not again by itself");
        assert!(!desk.runs(program, &number), "its group was ended");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Ctrl-C while a program gets a machine: it is ended, what may be there is named with what to type, and the next command
/// gives it back.
#[test]
fn an_interrupted_acquire_is_named_and_given_back() {
    for (more, number) in [(LIST, "6151"), ("", "6152")] {
        let number = format!("{number}{}", std::process::id());
        let desk = Desk::with(1, more);
        desk.edit("\"20s\"", "\"10s\"");
        desk.script(
            "slow.sh",
            &format!("./pool.sh acquire >/dev/null\nexec sleep {number}"),
        );
        desk.edit(r#"["./pool.sh", "acquire"]"#, r#"["./slow.sh"]"#);
        let apply = desk.stageline("apply --auto-approve").spawn();
        let apply = apply.expect("the binary is there");
        until("it sleeps", || {
            desk.there().len() == 1 && desk.runs("sleep", &number)
        });
        let pid = i32::try_from(apply.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a number"), Signal::INT).expect("ours");
        let start = Instant::now();
        finish(apply)
            .exits(130)
            .says("interrupted")
            .says("lease.node[0] is unresolved: a machine may be there, which costs nothing")
            .says("`stageline release lease.node[0]` ends it")
            .says("$0.00 per hour in all")
            .says("`stageline destroy` ends everything of `demo`");
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not hang"
        );
        until("its group was ended", || !desk.runs("sleep", &number));
        desk.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
        desk.agrees(0);
        desk.run("destroy --auto-approve").exits(0);
    }
}

#[test]
fn a_release_that_says_yes_and_does_nothing_is_asked_again() {
    let desk = Desk::new(1);
    desk.script(
        "lazy.sh",
        "echo x >>asked\n[ $(wc -l <asked) -gt 2 ] || exit 0\nexec ./pool.sh release",
    );
    desk.edit(r#"["./pool.sh", "release"]"#, r#"["./lazy.sh"]"#);
    desk.run("apply --auto-approve").exits(0);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
    let asked = std::fs::read_to_string(desk.path("asked")).expect("it was asked");
    assert!(asked.lines().count() >= 3, "{asked}");
}

#[test]
fn a_machine_that_nothing_records_is_an_orphan() {
    let desk = Desk::new(1);
    desk.run("apply --auto-approve").exits(0);
    let there = desk.there().remove(0);
    // The state and all that was noted is lost.
    std::fs::remove_dir_all(desk.path("state")).expect("removed");
    desk.run("orphans").exits(0).says(&there);
    desk.run(&format!("orphans --release {there} --auto-approve"))
        .exits(0);
    assert!(desk.there().is_empty());
    desk.run("orphans").exits(0).says("no orphan was found");
}

#[test]
fn a_program_that_cannot_be_run_is_found_before_anything_is_made() {
    let desk = Desk::new(1);
    desk.edit(r#"["./pool.sh", "release"]"#, r#"["./typo.sh"]"#);
    let ran = desk.run("apply --auto-approve");
    ran.exits(1)
        .says("its program `release` cannot be run")
        .says("typo.sh is not there");
    assert!(desk.there().is_empty());
    desk.script("typo.sh", "");
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(desk.path("typo.sh"), mode).expect("set");
    let ran = desk.run("apply --auto-approve");
    ran.exits(1).says("chmod +x");
    assert!(desk.there().is_empty());
}

#[test]
fn a_pool_with_none_left_says_so_and_costs_nothing() {
    let desk = Desk::new(3);
    let ran = desk.run("apply --auto-approve");
    ran.says("all 2 machines of the pool are taken");
    assert_ne!(ran.code, Some(0), "{}", ran.text);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}
