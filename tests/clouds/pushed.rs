//! Agents that are pushed over SSH to machines of a cloud: the whole job, the keys that it takes, and what befalls both.
//!
//! What an account has at the end is what it had before. The SSH server is the simulator's own, on the loopback.

use std::path::{Path, PathBuf};

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, KEY, NOBODY, SPEED, finish};

/// Where the process dies; see `ambient::crash_point`.
const DIE_AT: &str = "STAGELINE_TEST_DIE_AT";

/// One or two machines whose agents are pushed.
pub(super) fn desk_of(kind: Kind, faults: Vec<Fault>, count: u32) -> Desk {
    let desk = Desk::of(kind, faults, SPEED, count);
    let topology = desk.topology(count);
    let mut lines = topology.lines();
    let there = lines.find(|line| line.starts_with("agent = ") || line.starts_with("image = "));
    let there = there.expect("an agent has to get there").to_owned();
    desk.edit(&there, "agent = \"ssh\"");
    if !topology.contains(NOBODY) {
        // It ends itself once its agent is there, and not before.
        desk.edit("offers = [", &format!("{NOBODY}\noffers = ["));
    }
    desk
}

fn desk(faults: Vec<Fault>, count: u32) -> Desk {
    desk_of(Kind::Lambda, faults, count)
}

/// The names of the account's SSH keys, but for the one that was there before.
fn keys(desk: &Desk) -> Vec<String> {
    let inner = desk.cloud.world.lock();
    let account = inner.accounts.get(KEY);
    let rows = account.and_then(|account| account["ssh_keys"].as_array());
    let names = rows
        .into_iter()
        .flatten()
        .filter_map(|row| row["name"].as_str());
    names
        .filter(|name| *name != "rehearsal")
        .map(str::to_owned)
        .collect()
}

/// The account as it was before: nothing is there, and no key of ours.
#[track_caller]
pub(super) fn is_clean(desk: &Desk) {
    desk.agrees(0);
    assert_eq!(keys(desk), [] as [String; 0], "keys are left");
}

#[test]
fn the_whole_job_over_pushed_agents_leaves_no_key() {
    let desk = desk(vec![], 2);
    desk.run("plan")
        .exits(0)
        .says("; its agent is pushed over SSH");
    assert_eq!(keys(&desk), [] as [String; 0], "a plan registers nothing");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("its agent is pushed over SSH")
        .says("is known by SHA256:")
        .says("is up");
    desk.agrees(2);
    let registered = keys(&desk);
    assert_eq!(registered.len(), 2);
    assert!(registered.iter().all(|name| name.starts_with("sl-")));
    desk.run("ask Hello").exits(0);
    desk.run("status").exits(0).says("lease.node[1]");
    desk.run("logs lease.node[0]").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("orphans").exits(0).says("no orphan was found");
    // The system's own client, which knows neither our library nor our keys.
    if Path::new("/usr/bin/ssh").exists() {
        desk.run("ssh lease.node[0] uname").exits(0).says("Linux");
        let written = std::fs::read_dir(desk.path("state/demo/ssh")).expect("it is there");
        assert_eq!(written.count(), 2, "who it is, and our key");
    }
    // Neither the topology nor its provider's table is needed.
    desk.remove_topology();
    for _ in 0..2 {
        desk.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
        is_clean(&desk);
    }
    let written = std::fs::read_dir(desk.path("state/demo/ssh"));
    assert_eq!(written.into_iter().flatten().count(), 0, "nothing is left");
}

/// The same where no key is registered at the account: it goes with the machine.
fn whole_job(kind: Kind) {
    let desk = desk_of(kind, vec![], 2);
    desk.run("plan")
        .exits(0)
        .says("; its agent is pushed over SSH");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("its agent is pushed over SSH")
        .says("is known by SHA256:")
        .says("is up");
    desk.agrees(2);
    desk.run("ask Hello").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    let handed = agents()
        .into_iter()
        .find(|agent| is_of(agent, &desk))
        .expect("an agent runs")
        .handed;
    let told: Vec<String> = {
        let inner = desk.cloud.world.lock();
        let machines = inner.machines.values();
        let told = machines.map(|machine| format!("{:?}{}", machine.env, machine.onstart));
        told.collect()
    };
    let piece = &handed[20..60];
    assert!(told.iter().all(|told| !told.contains(piece)), "it is told");
    desk.remove_topology();
    for _ in 0..2 {
        desk.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
        desk.agrees(0);
    }
}

#[test]
fn the_whole_job_over_pushed_agents_at_vast() {
    whole_job(Kind::Vastai);
}

#[test]
fn the_whole_job_over_pushed_agents_at_runpod() {
    whole_job(Kind::Runpod);
}

#[test]
fn a_machine_that_its_agent_is_pushed_to_is_not_left_to_itself() {
    let desk = desk_of(Kind::Vastai, vec![], 1);
    desk.edit(NOBODY, "");
    desk.run("plan").says("nobody would end them");
}

#[test]
fn a_machine_without_an_image_is_pushed_to_and_says_so() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = desk_of(kind, vec![], 1);
        desk.edit("agent = \"ssh\"\n", "");
        desk.run("plan")
            .exits(0)
            .says("; its agent is pushed over SSH");
    }
}

#[test]
fn a_container_that_takes_its_time_with_ssh_is_waited_for() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let of = |knob: &str, seconds| Fault::of(knob).seconds(seconds);
        let faults = vec![of("ssh-refused", 600), of("ssh-denied", 1800)];
        let desk = desk_of(kind, faults, 1);
        desk.run("apply --auto-approve").exits(0).says("is up");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn without_a_word_the_agent_is_pushed_and_the_owners_key_is_let_in_too() {
    let desk = desk(vec![], 1);
    desk.edit("agent = \"ssh\"\n", "");
    desk.edit(
        "kind = \"lambda\"\n",
        "kind = \"lambda\"\nssh_key = \"rehearsal\"\n",
    );
    desk.run("apply --auto-approve")
        .exits(0)
        .says("its agent is pushed over SSH");
    let told = {
        let inner = desk.cloud.world.lock();
        let machine = inner.machines.values().next().expect("one");
        machine.onstart.clone()
    };
    assert!(told.contains("ssh_authorized_keys"), "{told}");
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

#[test]
fn a_machine_that_takes_its_time_with_ssh_is_waited_for() {
    let of = |knob: &str, seconds| Fault::of(knob).seconds(seconds);
    let faults = vec![
        of("ssh-refused", 600),
        of("ssh-stale-key", 1200),
        of("ssh-denied", 1800),
    ];
    let desk = desk(faults, 1);
    desk.run("apply --auto-approve").exits(0).says("is up");
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

#[test]
fn another_host_key_than_the_one_that_was_told_is_sent_nothing() {
    for (knob, says) in [
        ("ssh-stale-key", "shows another key than it is known by"),
        ("ssh-denied", "does not let us in"),
        ("ssh-refused", "waiting for SSH at"),
    ] {
        let desk = desk(vec![Fault::of(knob).seconds(10_000_000)], 1);
        desk.edit(
            "agent = \"ssh\"",
            "agent = \"ssh\"\nacquire_timeout = \"8s\"\nattempts = 1",
        );
        desk.run("apply --auto-approve")
            .exits(4)
            .says(says)
            .says("nothing secret was sent");
        assert!(agents().iter().all(|agent| !is_of(agent, &desk)), "{knob}");
        desk.run("destroy --auto-approve").exits(0);
        is_clean(&desk);
    }
}

#[test]
fn whatever_kills_it_between_a_key_and_its_machine_no_key_is_left() {
    let points = [
        "an SSH key, not yet registered",
        "an SSH key, just registered",
        "a create, not yet sent",
        "a create, just answered",
    ];
    let case = |point: &str| {
        let desk = desk(vec![], 1);
        let mut command = desk.command("apply --auto-approve");
        command.env(DIE_AT, point);
        finish(command.spawn().expect("the binary is there")).says(point);
        desk.run("destroy --auto-approve").exits(0);
        is_clean(&desk);
    };
    std::thread::scope(|scope| {
        let cases: Vec<_> = points.map(|point| scope.spawn(move || case(point))).into();
        for case in cases {
            case.join().expect("it went well");
        }
    });
}

#[test]
fn a_create_in_doubt_is_not_resolved_by_the_key_of_its_machine() {
    let lost = Fault::of("create-500-after-commit").times(1);
    let late = Fault::of("list-lag").seconds(1800);
    let desk = desk(vec![lost, late], 1);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(keys(&desk).len(), 1, "its machine is there");
    let ran = desk.run("state history");
    ran.exits(0);
    assert!(!ran.text.contains("one too many"), "{}", ran.text);
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

#[test]
fn a_kill_while_a_key_is_removed_leaves_it_to_the_next_command() {
    let desk = desk(vec![], 1);
    desk.run("apply --auto-approve").exits(0);
    for point in ["an SSH key, not yet removed", "an SSH key, just removed"] {
        let mut command = desk.command("destroy --auto-approve");
        command.env(DIE_AT, point);
        finish(command.spawn().expect("the binary is there"));
    }
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    is_clean(&desk);
}

#[test]
fn a_key_that_nothing_records_is_an_orphan() {
    let desk = desk(vec![], 1);
    desk.run("orphans").exits(0);
    let add = |id: &str, name: &str| {
        let mut inner = desk.cloud.world.lock();
        let account = inner.accounts.get_mut(KEY).expect("it was asked");
        let rows = account["ssh_keys"].as_array_mut().expect("keys");
        rows.push(serde_json::json!({ "id": id, "name": name, "public_key": "ssh-ed25519 AAAA" }));
    };
    add("k1", "sl-00112233445566aa-0011aabb-g1a1");
    add("k2", "laptop");
    let ran = desk.run("orphans");
    ran.says("ssh-key:k1")
        .says("an SSH key of the account, registered for a machine that is not there");
    assert!(!ran.text.contains("k2"), "{}", ran.text);
    desk.run("orphans --adopt ssh-key:k1 --auto-approve")
        .exits(1)
        .says("ssh-key:k1 is an SSH key of the account and no machine")
        .says("`stageline orphans --release ssh-key:k1` removes it");
    desk.run("orphans --release ssh-key:k2 --auto-approve");
    desk.run("orphans --release ssh-key:k1 --auto-approve")
        .exits(0);
    assert_eq!(keys(&desk), ["laptop"]);
}

#[test]
fn no_private_key_is_printed_written_or_an_argument() {
    let desk = desk(vec![], 1);
    let mut told = desk.run("apply -vv --json --auto-approve").text;
    let host = {
        let inner = desk.cloud.world.lock();
        inner.machines.values().next().expect("one").onstart.clone()
    };
    // Of the host's own private key, which the machine was told.
    let (_, private) = host.split_once("PRIVATE KEY-----\\n").expect("a key");
    let private: Vec<&str> = private.split("\\n").collect();
    let agent = agents().into_iter().find(|agent| is_of(agent, &desk));
    let handed = agent.expect("an agent runs").handed;
    for line in [
        "plan -vv --json",
        "status --json",
        "state pull",
        "orphans -vv",
    ] {
        told.push_str(&desk.run(line).text);
    }
    assert!(!host.contains(&handed[20..60]), "the provider is told");
    let commands = arguments();
    for secret in [&handed[20..60], private[1], private[2]] {
        assert!(secret.len() > 20, "{secret}");
        assert!(!told.contains(secret), "a secret is printed");
        assert_eq!(files_with(&desk.path(""), secret), [] as [PathBuf; 0]);
        assert!(!commands.contains(secret), "a secret is an argument");
    }
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

/// An agent on this computer.
pub(super) struct Agent {
    /// Its folder.
    folder: String,
    /// What it was handed.
    handed: String,
}

/// Every agent that was pushed to a machine of some simulator.
pub(super) fn agents() -> Vec<Agent> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let environments = all.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    let agent = |environment: Vec<u8>| {
        let text = String::from_utf8_lossy(&environment).into_owned();
        let variable = |name: &str| {
            let mut variables = text.split('\0');
            variables.find_map(|one| one.strip_prefix(name).map(str::to_owned))
        };
        Some(Agent {
            folder: variable("STAGELINE_MACHINE_DIR=")?,
            handed: variable("STAGELINE_BOOT_0=")?,
        })
    };
    environments.filter_map(agent).collect()
}

/// Whether it is on a machine of this desk's simulator.
pub(super) fn is_of(agent: &Agent, desk: &Desk) -> bool {
    let inner = desk.cloud.world.lock();
    let mut labels = inner.machines.values().map(|machine| &machine.label);
    labels.any(|label| agent.folder.contains(label.as_str()))
}

/// The arguments of all processes.
fn arguments() -> String {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every file below a folder that has this text in it.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
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

/// What is behind a port of this computer, once: it hears four bytes and answers four.
fn echo() -> (u16, std::thread::JoinHandle<[u8; 4]>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let talk = std::thread::spawn(move || {
        let (mut far, _) = listener.accept().expect("somebody");
        let mut heard = [0; 4];
        far.read_exact(&mut heard).expect("heard");
        far.write_all(b"pong").expect("said");
        heard
    });
    (port, talk)
}

#[test]
fn a_port_of_a_clouds_machine_is_forwarded() {
    use std::io::{BufRead as _, Read as _, Write as _};
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = desk_of(kind, vec![], 1);
        desk.run("apply --auto-approve").exits(0);
        let (port, talk) = echo();
        let mut forward = desk
            .command(&format!("forward lease.node[0] 0:{port}"))
            .spawn()
            .expect("the binary is there");
        let pipe = forward.stdout.take().expect("a pipe");
        let here = std::io::BufReader::new(pipe).lines().next();
        let here = here.expect("a line").expect("readable");
        let mut near = std::net::TcpStream::connect(here.trim()).expect("it listens");
        near.write_all(b"ping").expect("said");
        let mut heard = [0; 4];
        near.read_exact(&mut heard).expect("heard");
        let far = talk.join().expect("no panic");
        assert_eq!((&heard, &far), (b"pong", b"ping"));
        forward.kill().expect("ours");
        forward.wait().expect("it ends");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Two machines that end themselves when they are idle, of which one has a port that is open here.
#[test]
fn a_machine_whose_port_is_in_use_here_is_not_idle() {
    use std::io::BufRead as _;
    let desk = desk_of(Kind::Vastai, vec![], 2);
    desk.edit("agent = \"ssh\"", "agent = \"ssh\"\nidle_timeout = \"8s\"");
    desk.run("apply --auto-approve").exits(0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = listener.local_addr().expect("bound").port();
    let mut forward = desk
        .command(&format!("forward lease.node[0] 0:{there}"))
        .spawn()
        .expect("the binary is there");
    let pipe = forward.stdout.take().expect("a pipe");
    let here = std::io::BufReader::new(pipe).lines().next();
    let here = here.expect("a line").expect("readable");
    let near = std::net::TcpStream::connect(here.trim()).expect("it listens");
    let far = listener.accept().expect("carried");
    super::host::until("the other one ended itself", || desk.there().len() == 1);
    // Twice as long as it may be idle, by the cloud's quick clock.
    let clock = &desk.cloud.world.clock;
    let later = clock.now() + 16_000 * u64::from(clock.speed());
    super::host::until("time passes", || clock.now() >= later);
    assert_eq!(desk.there().len(), 1, "it is in use");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("lease.node[1]: ended by its idle_timeout");
    drop((near, far));
    super::host::until("it is idle, and ended itself", || desk.there().is_empty());
    forward.kill().expect("ours");
    forward.wait().expect("it ends");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn a_machine_that_its_agent_was_pushed_to_ends_itself_when_nobody_is_left() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = desk_of(kind, vec![], 1);
        desk.edit("agent = \"ssh\"", "agent = \"ssh\"\nidle_timeout = \"8s\"");
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        // Nobody does anything from here on.
        super::host::until("it ended itself", || desk.there().is_empty());
        desk.run("plan --detailed-exitcode")
            .exits(2)
            .says("lease.node[0]: ended by its idle_timeout");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn a_setup_runs_on_a_machine_that_its_agent_was_pushed_to() {
    let desk = desk(vec![], 1);
    desk.edit(
        "count = 1",
        "count = 1\nsetup = \"echo the library is not there; exit 7\"",
    );
    desk.run("apply --auto-approve")
        .exits(1)
        .says("failed: it exited with status 7")
        .says("| the library is not there");
    desk.edit("exit 7", "exit 0");
    desk.run("apply --auto-approve").exits(0);
    desk.run("logs lease.node[0]")
        .exits(0)
        .says("setup: the library is not there");
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}
