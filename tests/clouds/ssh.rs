//! Hosts of one's own over a real SSH server on the loopback: the whole job, and what befalls hosts, keys and whoever takes them.
//!
//! What a host has at the end is what is recorded. Where there is no SSH server these tests do nothing, but in CI.

#![expect(
    clippy::disallowed_methods,
    reason = "the child's environment is made here"
)]

use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::desk::{Ran, finish};
use super::host::{Host, keygen, until};

/// Somebody at a desk who has hosts.
pub(super) struct Desk {
    dir: tempfile::TempDir,
    who: &'static str,
}

impl Desk {
    /// As many machines as hosts, with a stub pipeline over them.
    pub(super) fn new(hosts: &[&Host]) -> Self {
        let entries: Vec<String> = hosts.iter().map(|host| host.entry("")).collect();
        Self::with("tester", &entries, hosts.len())
    }

    pub(super) fn with(who: &'static str, entries: &[String], count: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let desk = Self { dir, who };
        let hosts = entries.join(",\n    ");
        desk.write(&format!(
            r#"
version = 1
name = "demo"
[provider.own]
kind = "ssh"
hosts = [
    {hosts}
]
[offer.box]
provider = "own"
where = "cpus>=1"
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
        ));
        desk
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, topology: &str) {
        std::fs::write(self.path("topology.toml"), topology).expect("written");
    }

    /// The topology with one text in the place of another, which must be there.
    pub(super) fn edit(&self, from: &str, to: &str) {
        let before = std::fs::read_to_string(self.path("topology.toml")).expect("readable");
        assert!(before.contains(from), "no `{from}` in the topology");
        self.write(&before.replace(from, to));
    }

    pub(super) fn command(&self, line: &str) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_stageline")), line)
    }

    /// The same of a stageline that is elsewhere.
    pub(super) fn command_of(&self, program: &Path, line: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(line.split_ascii_whitespace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("USER", self.who)
            .env("COLUMNS", "400")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(super) fn run(&self, line: &str) -> Ran {
        finish(self.command(line).spawn().expect("the binary is there"))
    }

    pub(super) fn apply(&self) {
        self.run("apply --auto-approve").exits(0).says("is up");
    }

    pub(super) fn destroy(&self) {
        self.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
    }
}

#[test]
fn two_hosts_are_taken_asked_and_given_back() {
    let (Some(first), Some(second)) = (Host::bare(), Host::new()) else {
        return;
    };
    let desk = Desk::new(&[&first, &second]);
    desk.run("plan")
        .exits(0)
        .says("127.0.0.1")
        .says("; its agent is pushed over SSH");
    assert_eq!(first.own_folder(), None, "a plan takes nothing");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("is up")
        .says(&first.fingerprint())
        .says(&second.fingerprint());
    for host in [&first, &second] {
        assert!(host.taken_by().is_some(), "it is marked");
        assert!(!host.processes().is_empty(), "an agent runs there");
    }
    desk.run("ask Hello").exits(0);
    desk.run("status").exits(0).says("lease.node[1]");
    desk.run("logs lease.node[0]")
        .exits(0)
        .says("the agent listens");
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("orphans").exits(0).says("no orphan was found");
    desk.run("state history")
        .exits(0)
        .says("is known by its key");
    // To give hosts back, neither the topology nor its provider's table is needed.
    std::fs::remove_file(desk.path("topology.toml")).expect("removed");
    for _ in 0..2 {
        desk.destroy();
        first.is_clean();
        second.is_clean();
    }
}

/// Every file below a folder that has this text in it.
fn files_with(folder: &std::path::Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if let Ok(bytes) = std::fs::read(&path)
            && String::from_utf8_lossy(&bytes).contains(text)
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_secret_is_an_argument_there_or_written_here() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    let mut told = desk.run("apply -vv --json --auto-approve").text;
    // What the agent was handed, and our own key.
    let handed = host
        .variable("STAGELINE_BOOT_0")
        .expect("it was handed something");
    let key = std::fs::read_to_string(host.path("user")).expect("readable");
    let key = key
        .lines()
        .nth(2)
        .expect("a key has several lines")
        .to_owned();
    for line in [
        "plan -vv --json",
        "status --json",
        "show --json",
        "state pull",
        "orphans -vv",
    ] {
        told.push_str(&desk.run(line).text);
    }
    for secret in [&handed[20..60], &key[10..50]] {
        assert!(!told.contains(secret), "a secret is printed");
        assert_eq!(files_with(desk.dir.path(), secret), [] as [PathBuf; 0]);
        assert!(!host.commands().contains(secret), "a secret is an argument");
    }
    desk.destroy();
    host.is_clean();
}

#[test]
fn a_host_that_somebody_has_is_told_and_left_alone() {
    let Some(host) = Host::new() else { return };
    let alice = Desk::with("alice", &[host.entry("")], 1);
    let bob = Desk::with("bob", &[host.entry("")], 1);
    alice.run("plan --out alice.plan").exits(0);
    bob.run("plan --out bob.plan").exits(0);
    alice.run("apply alice.plan --auto-approve").exits(0);
    let taken_by = host.taken_by();
    // Bob's plan was drawn while the host was free; now nothing is.
    let ran = bob.run("apply bob.plan --auto-approve");
    ran.exits(4)
        .says("alice@")
        .says("has it for lease.node[0] since");
    bob.run("plan")
        .exits(1)
        .says("alice@")
        .says("has it for lease.node[0] since");
    bob.run("offers").exits(0).says("alice@");
    bob.run("orphans").says("lease.node[0]");
    assert_eq!(host.taken_by(), taken_by, "it is still alice's");
    alice.run("ask Hello").exits(0);
    bob.destroy();
    assert_eq!(host.taken_by(), taken_by, "bob's destroy is not about it");
    alice.destroy();
    host.is_clean();
    bob.apply();
    bob.destroy();
    host.is_clean();
}

#[test]
fn a_kill_after_the_claim_and_before_its_record_leaves_one_machine() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    std::fs::write(host.path("home/hang"), "").expect("written");
    let mut apply = desk
        .command("apply --auto-approve")
        .spawn()
        .expect("the binary is there");
    until("the host is taken", || host.taken_by().is_some());
    let taken_by = host.taken_by();
    apply.kill().expect("ours");
    finish(apply);
    std::fs::remove_file(host.path("home/hang")).expect("removed");
    desk.apply();
    assert_eq!(
        host.taken_by(),
        taken_by,
        "the same machine was found and kept"
    );
    desk.destroy();
    host.is_clean();
    // The same, and nobody applies again.
    std::fs::write(host.path("home/hang"), "").expect("written");
    let mut apply = desk
        .command("apply --auto-approve")
        .spawn()
        .expect("the binary is there");
    until("the host is taken", || host.taken_by().is_some());
    apply.kill().expect("ours");
    finish(apply);
    std::fs::remove_file(host.path("home/hang")).expect("removed");
    desk.destroy();
    host.is_clean();
}

#[test]
fn a_host_with_another_key_is_refused_until_its_owner_says_so() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    desk.apply();
    let known = host.fingerprint();
    host.new_key();
    let ran = desk.run("plan");
    ran.exits(1)
        .says(&known)
        .says(&host.fingerprint())
        .says("host_key");
    let mine = format!("/user\", host_key = \"{}\" }}", host.host_key());
    desk.edit("/user\" }", &mine);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.edit(&mine, "/user\" }");
    let ran = desk.run("destroy --auto-approve");
    ran.exits(5).says(&known).says(&host.fingerprint());
    assert!(host.taken_by().is_some(), "nothing was done there");
    desk.edit("/user\" }", &mine);
    desk.destroy();
    host.is_clean();
    // It is on record from the next time on.
    desk.apply();
    desk.edit(&mine, "/user\" }");
    desk.run("plan --detailed-exitcode").exits(0);
    desk.destroy();
}

#[test]
fn a_key_in_the_file_counts_from_the_first_time_on() {
    let Some(host) = Host::new() else { return };
    let pinned = format!(", host_key = \"{} a comment\"", host.host_key());
    let (known, entry) = (host.fingerprint(), host.entry(&pinned));
    host.new_key();
    let desk = Desk::with("tester", &[entry], 1);
    let ran = desk.run("apply --auto-approve");
    ran.exits(1).says(&known).says(&host.fingerprint());
    assert_eq!(host.own_folder(), None, "nothing was done there");
}

#[test]
fn keys_that_do_not_work_are_told_one_by_one() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    let key = host.path("user");
    let mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode));
    mode(0o644).expect("set");
    let ran = desk.run("apply --auto-approve");
    ran.exits(1).says("can be read by others").says("chmod 600");
    mode(0o600).expect("set");
    keygen(&desk.path("other"));
    let own = key.display().to_string();
    desk.edit(&own, "other");
    let ran = desk.run("apply --auto-approve");
    ran.exits(1)
        .says("does not let us in")
        .says("authorized_keys");
    desk.edit("\"other\"", "\"none\"");
    desk.run("apply --auto-approve")
        .exits(1)
        .says("cannot read the key");
    desk.edit(", key = \"none\"", "");
    let ran = desk.run("apply --auto-approve");
    ran.exits(1).says("no SSH agent is there");
    assert_eq!(host.own_folder(), None, "nothing was done there");
}

#[test]
fn a_host_that_lets_nobody_in_for_a_while_is_waited_for() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    let apply = desk
        .command("apply --auto-approve")
        .spawn()
        .expect("the binary is there");
    until("the host is taken", || host.taken_by().is_some());
    host.refuse(3);
    let ran = finish(apply);
    ran.exits(0).says("is up");
    assert_eq!(host.refused(), 3, "it was tried again");
    desk.destroy();
    host.is_clean();
}

/// A pool of one machine by errand's contract: it prints where to log in, lets in the key that it is handed, and starts nothing.
const POOL: &str = r#"#!/bin/sh
set -eu
case "$1" in
acquire)
    ln -s "$ERRAND_LEASE_ID" "$HOST/slot" || [ "$(readlink "$HOST/slot")" = "$ERRAND_LEASE_ID" ] || exit 75
    [ -z "${OWN_KEY_ONLY:-}" ] || echo "$ERRAND_LEASE_SSH_KEY" >"$HOST/authorized"
    echo "{\"ssh\": \"$SSH_AT\"$MORE}"
    ;;
release)
    [ "$(readlink "$HOST/slot" || true)" != "$ERRAND_LEASE_ID" ] || rm "$HOST/slot"
    ;;
esac
"#;

fn pool(host: &Host, more: &str, words: &str) -> Desk {
    let desk = Desk::with("tester", &[host.entry("")], 1);
    let topology = std::fs::read_to_string(desk.path("topology.toml")).expect("readable");
    let (head, rest) = topology.split_once("[provider.own]").expect("a provider");
    let (_, rest) = rest.split_once("[offer.box]").expect("an offer");
    let rest = rest.replace(
        "where = \"cpus>=1\"",
        &format!("{words}\n[offer.box.claims]\ncpus = 1\nprice_per_hour = 0"),
    );
    desk.write(&format!(
        "{head}[provider.own]\nkind = \"command\"\nacquire = [\"./pool.sh\", \"acquire\"]\nrelease = [\"./pool.sh\", \"release\"]\ntimeout = \"20s\"\n[offer.box]{rest}"
    ));
    let at = format!("{}@127.0.0.1:{}", super::host::user(), host.port);
    let script = POOL
        .replace("$HOST", &host.path("").display().to_string())
        .replace("$SSH_AT", &at)
        .replace("$MORE", &more.replace('"', "\\\""));
    std::fs::write(desk.path("pool.sh"), script).expect("written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(desk.path("pool.sh"), mode).expect("set");
    desk
}

#[test]
fn a_program_that_tells_an_ssh_address_gets_its_agent_pushed() {
    let Some(host) = Host::new() else { return };
    let desk = pool(&host, "", "");
    let ran = desk
        .command("apply --auto-approve")
        .env("OWN_KEY_ONLY", "1")
        .spawn();
    let ran = finish(ran.expect("the binary is there"));
    ran.exits(0)
        .says(&host.fingerprint())
        .says("per hour; its agent is pushed over SSH");
    desk.run("ask Hello").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.destroy();
    assert!(!host.path("slot").exists(), "the program gave it back");
    // By the key that let it in, which is nobody else's.
    assert_eq!(host.processes(), [] as [i32; 0], "its agent was ended");
}

#[test]
fn a_stale_host_key_is_waited_for_and_sent_nothing() {
    let Some(host) = Host::new() else { return };
    let pinned = format!(", \"host_key\": \"{}\"", host.host_key());
    let kept = [host.path("hostkey"), host.path("hostkey.pub")].map(|path| {
        let bytes = std::fs::read(&path).expect("readable");
        (path, bytes)
    });
    // The machine answers with the key of whoever had its address before.
    host.new_key();
    let desk = pool(&host, &pinned, "agent = \"ssh\"");
    let apply = desk
        .command("apply --auto-approve")
        .env("OWN_KEY_ONLY", "1")
        .spawn();
    let apply = apply.expect("the binary is there");
    until("it was tried", || {
        let log = std::fs::read_to_string(host.path("log")).unwrap_or_default();
        log.lines().count() >= 2
    });
    assert_eq!(host.own_folder(), None, "nothing was sent there");
    for (path, bytes) in kept {
        std::fs::write(&path, bytes).expect("written");
    }
    finish(apply).exits(0);
    assert!(!host.processes().is_empty());
    desk.destroy();
    assert!(!host.path("slot").exists(), "the program gave it back");
}

#[test]
fn a_shell_and_a_port_of_a_machine() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    desk.run("ssh lease.node[0] true")
        .exits(1)
        .says("has no machine");
    desk.apply();
    let ran = desk.run("ssh lease.node[0] echo hello from $HOME");
    ran.exits(0)
        .says(&format!("hello from {}", host.path("home").display()));
    desk.run("ssh lease.node[0] exit 7").exits(7);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = listener.local_addr().expect("bound").port();
    let mut forward = desk
        .command(&format!("forward lease.node[0] 0:{there}"))
        .spawn()
        .expect("the binary is there");
    let mut lines = std::io::BufReader::new(forward.stdout.take().expect("a pipe")).lines();
    let here = lines.next().expect("a line").expect("readable");
    let talk = std::thread::spawn(move || {
        let (mut far, _) = listener.accept().expect("somebody");
        let mut heard = [0; 4];
        far.read_exact(&mut heard).expect("heard");
        far.write_all(b"pong").expect("said");
        heard
    });
    let mut near = std::net::TcpStream::connect(here.trim()).expect("it listens");
    near.write_all(b"ping").expect("said");
    let mut heard = [0; 4];
    near.read_exact(&mut heard).expect("heard");
    assert_eq!(
        (&heard, &talk.join().expect("no panic")),
        (b"pong", b"ping")
    );
    forward.kill().expect("ours");
    forward.wait().expect("it ends");
    // Another key, and nobody gets in.
    host.new_key();
    desk.run("ssh lease.node[0] true")
        .exits(255)
        .says("HOST IDENTIFICATION HAS CHANGED");
    let ran = desk.run(&format!("forward lease.node[0] 0:{there}"));
    ran.exits(1).says(&host.fingerprint());
}

#[test]
fn a_host_that_was_started_anew_is_seen_and_taken_again() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    desk.apply();
    let before = host.taken_by().expect("it is taken");
    host.kill_processes();
    let machine = host
        .own_folder()
        .expect("a folder")
        .join("machines")
        .join(&before);
    std::fs::write(machine.join("started"), "another-boot\n").expect("written");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("the host was started anew since");
    desk.apply();
    assert_ne!(
        host.taken_by(),
        Some(before),
        "another machine on the same host"
    );
    desk.run("ask Hello").exits(0);
    desk.destroy();
    host.is_clean();
}

#[test]
fn a_setup_runs_on_hosts_that_agents_are_pushed_to() {
    let (Some(host), Some(told)) = (Host::new(), Host::new()) else {
        return;
    };
    let setup = |desk: &Desk| {
        let apply = || {
            let mut command = desk.command("apply --auto-approve");
            command.env("OWN_KEY_ONLY", "1");
            finish(command.spawn().expect("the binary is there"))
        };
        desk.edit(
            "count = 1",
            "count = 1\nsetup = \"echo it is not there; exit 7\"",
        );
        apply()
            .exits(1)
            .says("failed: it exited with status 7")
            .says("| it is not there");
        desk.edit("exit 7", "touch \\\"$STAGELINE_MACHINE_DIR/done\\\"");
        apply().exits(0);
        desk.run("logs lease.node[0]")
            .exits(0)
            .says("setup: it is not there");
        desk.run("plan --detailed-exitcode").exits(0);
        desk.destroy();
    };
    setup(&Desk::new(&[&host]));
    host.is_clean();
    setup(&pool(&told, "", ""));
    assert_eq!(told.processes(), [] as [i32; 0], "its agent was ended");
}

#[test]
fn a_worker_that_a_host_lacks_is_sent_by_the_next_apply() {
    let (Some(own), Some(told)) = (Host::bare(), Host::bare()) else {
        return;
    };
    for (host, desk) in [(&own, Desk::new(&[&own])), (&told, pool(&told, "", ""))] {
        let folder = desk.path("bin");
        super::workers::put("stageline", &folder);
        let program = folder.join("stageline");
        let run = |line: &str| {
            let mut command = desk.command_of(&program, line);
            command.env("OWN_KEY_ONLY", "1");
            finish(command.spawn().expect("the binary is there"))
        };
        run("apply --auto-approve").exits(0);
        let before = host.processes();
        crate::cli::native::tiny_model(&desk.path("tiny.gguf"));
        desk.edit(
            "engine = \"stub\"",
            "engine = \"native\"\nmodel = { path = \"tiny.gguf\" }\ndtype = \"f32\"",
        );
        super::workers::put("stageline-worker", &folder);
        run("apply --auto-approve").exits(0);
        run("ask Hello").exits(0);
        let now = host.processes();
        assert!(before.iter().all(|pid| now.contains(pid)), "the same agent");
        run("destroy --auto-approve").exits(0);
        assert_eq!(host.processes(), [] as [i32; 0], "its agent was ended");
    }
}
