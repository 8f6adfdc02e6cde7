//! Everything that goes wrong around us: a clear message that names the resource and what to do, the right exit code,
//! nothing lost, nothing half-written.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::drift::{command_topology, example_worker};
use super::world::{Ran, STUB, World};

/// Applies a topology whose worker is at fault; then mends it, and all is well.
fn worker_at_fault(command: &str, wanted: &[&str]) {
    let broken = command_topology(command).replace("check =", "ready_timeout = \"2s\"\ncheck =");
    let world = World::new(&broken);
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("hint:")
        .says("`stageline destroy` ends everything of `demo`");
    for text in wanted {
        ran.says(text);
    }
    world.agrees();
    assert_ne!(world.run("status").code, Some(0));
    let mended = command_topology(&format!("[\"python3\", \"{}\"]", example_worker()));
    world.write("topology.toml", mended);
    let before = world.machines();
    world.apply();
    assert_eq!(
        world.machines(),
        before,
        "a worker at fault does not cost a machine"
    );
    world.run("ask hello").exits(0);
    world.destroy();
}

#[test]
fn a_worker_that_does_not_exist() {
    worker_at_fault(
        "[\"/nonexistent/worker\"]",
        &[
            "stage.chat[0]: starting failed",
            "the program `/nonexistent/worker` does not exist",
        ],
    );
}

#[test]
fn a_worker_that_prints_garbage() {
    worker_at_fault(
        "[\"echo\", \"what is this\"]",
        &[
            "stage.chat[1]: starting failed",
            "not a stage/1 message",
            "what is this",
        ],
    );
}

#[test]
fn a_worker_that_never_becomes_ready() {
    worker_at_fault(
        "[\"sleep\", \"1000\"]",
        &[
            "stage.chat[0]: starting failed",
            "it was not ready within 2s",
        ],
    );
}

#[test]
fn a_worker_that_dies_at_the_first_request() {
    let ready = r#"{\"status\":\"ready\",\"pid\":7,\"protocol\":\"stage/1\",\"hidden_size\":4,\"layers\":[A,B],\"vocab\":256,\"context\":512,\"dtype\":\"bf16\"}"#;
    let ready = ready.replace(
        "A,B",
        "'$${STAGELINE_LAYERS%%..*},$${STAGELINE_LAYERS##*..}'",
    );
    let script = format!("echo '{ready}'; read line; echo I fell over >&2; exit 7");
    worker_at_fault(
        &format!("[\"sh\", \"-c\", \"{script}\"]"),
        &[
            "pipeline.chat: checking failed",
            "stage.chat[0]",
            "it exited with status 7",
            "I fell over",
        ],
    );
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("bound").to_string();
    let world = World::new(&STUB.replace("127.0.0.1:0", &address));
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("exposure.api")
        .says(&address)
        .says("hint:");
    world.agrees();
    drop(taken);
    world
        .apply()
        .says(&format!("exposure.api: http://{address}/v1"));
    world.destroy();
}

#[test]
fn a_state_folder_that_cannot_be_used() {
    let world = World::new(STUB);
    world.write("state", "somebody's file");
    for line in [
        "plan",
        "apply --auto-approve",
        "destroy --auto-approve",
        "status",
        "state list",
    ] {
        world.run(line).exits(1).says("state/demo").says("hint:");
    }
    assert_eq!(world.read("state"), "somebody's file");
    world
        .run("apply --auto-approve --state /proc/stageline")
        .exits(1)
        .says("/proc/stageline")
        .says("hint:");
    let out = world.run("plan --state elsewhere --out /proc/nope/p.json");
    out.exits(1).says("/proc/nope/p.json").says("hint:");
    world.write("in-the-way", "");
    world
        .run("plan --state elsewhere --out in-the-way/p.json")
        .exits(1)
        .says("in-the-way")
        .says("hint:");
    assert_eq!(world.files().len(), 3, "nothing was written");
}

#[test]
fn a_machines_folder_that_cannot_be_used() {
    let world = World::new(STUB);
    world.write("state/demo/machines", "somebody's file");
    let ran = world.run("apply --auto-approve");
    ran.says("machines").says("hint:");
    assert!(matches!(ran.code, Some(1 | 5)), "{ran}");
    world.is_clean();
    std::fs::remove_file(world.join("state/demo/machines")).expect("removed");
    world.apply();
    // Something foreign among the machines: nobody can tell what is there, so nobody says that nothing is.
    world.write("state/demo/machines/lost+found", "");
    let blind = world.run("plan");
    blind.says("lost+found");
    std::fs::remove_file(world.join("state/demo/machines/lost+found")).expect("removed");
    world.destroy();
}

#[test]
fn a_state_of_a_newer_version_or_a_damaged_one() {
    let world = World::new(STUB);
    world.apply();
    let journal = world.join("state/demo/journal");
    let mut entries: Vec<_> = std::fs::read_dir(&journal)
        .expect("there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    entries.sort();
    let last = entries.last().expect("an entry");
    let middle = &entries[entries.len() / 2];

    let refused = |what: &str| {
        let before = world.files();
        for line in [
            "plan",
            "apply --auto-approve",
            "destroy --auto-approve",
            "status",
            "show",
            "leases",
        ] {
            let ran = world.run(line);
            ran.exits(1)
                .says(what)
                .says("hint:")
                .says_not("0 left")
                .says_not("nothing is deployed");
        }
        assert!(world.files() == before, "nothing was written");
        assert_eq!(world.machines().len(), 2, "nothing was ended");
    };

    let text = std::fs::read_to_string(last).expect("readable");
    std::fs::write(last, text.replace("\"format\":2", "\"format\":99")).expect("written");
    refused("newer");
    std::fs::write(last, &text[..text.len() / 2]).expect("written");
    refused("journal/");
    std::fs::write(last, &text).expect("written");

    let text = std::fs::read_to_string(middle).expect("readable");
    std::fs::write(
        middle,
        text.replacen("lease.node[0]", "lease.node[1]", 1)
            .replacen("\"at\":\"2", "\"at\":\"1", 1),
    )
    .expect("written");
    refused("journal/");
    std::fs::remove_file(middle).expect("removed");
    refused("journal/");
    std::fs::write(middle, &text).expect("written");
    world.run("status").exits(0);
    world.destroy();
}

/// A small disk at a folder, until dropped; none where that is not permitted.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("made");
        let size = format!("size={size}");
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        done.then_some(Self(at))
    }

    fn resize(&self, size: &str) {
        self.remount(&format!("size={size}"));
    }

    fn remount(&self, how: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{how}")])
            .arg(self.0)
            .status();
        assert!(status.expect("mount is there").success());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // A folder in use stays until the process ends.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk() {
    let world = World::new(STUB);
    let state = world.join("state");
    let Some(disk) = SmallDisk::mount(&state, "16k") else {
        eprintln!("skipped: a small disk cannot be mounted here");
        return;
    };
    let ran = world.run("apply --auto-approve");
    full(&ran);
    disk.resize("48k");
    let ran = world.run("apply --auto-approve");
    full(&ran);
    disk.resize("64m");
    world.apply();
    world.agrees();
    world.run("status").exits(0);
    world.run("ask hello").exits(0);

    world.destroy();

    disk.remount("ro");
    let before = world.files();
    world.run("leases").exits(0).says("ended");
    world.run("plan").exits(0).says("Plan: 8 to create.");
    let refused = world.run("apply --auto-approve");
    refused
        .exits(1)
        .says("read-only")
        .says("state/demo")
        .says("hint:");
    assert!(world.files() == before, "nothing was written");
    disk.remount("rw");
}

fn full(ran: &Ran) {
    assert!(matches!(ran.code, Some(1 | 4)), "{ran}");
    ran.says("no space left").says("hint:").says("make room");
}
