//! The world changes behind our back, or the topology does: it is shown, and only what is concerned is made again.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::world::{STUB, World, kill, until};

/// The example worker, as two stages.
pub(super) fn command_topology(command: &str) -> String {
    let pipeline = format!(
        "engine = \"command\"\ncommand = {command}\nstages = [\n  {{ on = \"lease.node[0]\", layers = \"0..4\" }},\n  \
         {{ on = \"lease.node[1]\", layers = \"4..8\" }},\n]\n"
    );
    let split = "engine = \"stub\"\nstages = { on = \"lease.node\", split = \"auto\" }\n";
    assert!(STUB.contains(split));
    STUB.replace(split, &pipeline)
}

pub(super) fn example_worker() -> String {
    format!(
        "{}/examples/command-worker/worker.py",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// The machine of `lease.node[i]`.
fn machine(world: &World, i: usize) -> PathBuf {
    let leases = world.run("leases --json").exits(0).json();
    let lease = format!("lease.node[{i}]");
    let lines = leases.as_array().expect("a list").iter();
    let mut ours = lines.filter(|line| {
        line["lease"] == *lease
            && !line["status"]
                .as_str()
                .unwrap_or_default()
                .starts_with("ended")
    });
    let name = ours
        .next()
        .and_then(|line| line["machine"].as_str())
        .expect("it is held");
    world.join("state/demo/machines").join(name)
}

fn agent_of(world: &World, machine: &Path) -> i32 {
    let agents = world.processes_of(machine, "stageline agent");
    assert_eq!(agents.len(), 1, "one agent for each machine");
    agents[0]
}

/// After a mending apply: all is well, and a machine is the same or another one.
fn mended(world: &World, same: &Path, replaced: Option<&Path>) {
    world.apply();
    world.agrees();
    world.run("status").exits(0);
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    assert!(same.exists(), "what was well was left alone");
    if let Some(replaced) = replaced {
        assert!(!replaced.exists(), "what was broken is gone");
    }
    world.run("ask hello").exits(0);
    world.destroy();
}

#[test]
fn a_machine_whose_folder_was_deleted_is_made_again() {
    let world = World::new(STUB);
    world.apply();
    let (lost, kept) = (machine(&world, 0), machine(&world, 1));
    std::fs::remove_dir_all(&lost).expect("deleted");
    world.run("status").exits(4).says("BROKEN");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("! lease.node[0]:")
        .says("lease.node[0] replace")
        .says_not("lease.node[1] replace");
    mended(&world, &kept, Some(&lost));
}

#[test]
fn a_machine_that_lost_folder_and_processes_is_made_again() {
    let world = World::new(STUB);
    world.apply();
    let (kept, lost) = (machine(&world, 0), machine(&world, 1));
    kill(agent_of(&world, &lost), Signal::KILL);
    std::fs::remove_dir_all(&lost).expect("deleted");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("! lease.node[1]:")
        .says_not("lease.node[0] replace");
    mended(&world, &kept, Some(&lost));
}

#[test]
fn a_machine_whose_agent_was_killed_is_made_again() {
    // Both places are taken: the new machine gets the place of the dead one.
    let world = World::new(&STUB.replace("slots = 8", "slots = 2"));
    world.apply();
    let (kept, lost) = (machine(&world, 0), machine(&world, 1));
    kill(agent_of(&world, &lost), Signal::KILL);
    until("the agent to be gone", || {
        world.processes_of(&lost, "agent").is_empty().then_some(())
    });
    world
        .run("status")
        .exits(4)
        .says("its agent is not running");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("! lease.node[1]:")
        .says("its agent is not running")
        .says_not("lease.node[0] replace");
    mended(&world, &kept, Some(&lost));
}

#[test]
fn a_machine_that_is_silent_is_neither_gone_nor_replaced() {
    let world = World::new(STUB);
    world.apply();
    let silent = machine(&world, 1);
    kill(agent_of(&world, &silent), Signal::STOP);
    let began = std::time::Instant::now();
    let status = world.run("status");
    status
        .exits(4)
        .says("lease.node[1]: its agent does not answer within 3 s")
        .says("what is recorded of it is of 20")
        .says("`stageline apply --replace lease.node[1]` rents another machine");
    // 5 s are the promise; the rest is for a computer with much else to do.
    assert!(began.elapsed().as_secs() < 8, "{:?}", began.elapsed());
    status
        .says("pipeline.chat")
        .says("and now stage.chat[1] is not well");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(0)
        .says("lease.node[1]: its agent did not answer")
        .says("`stageline apply --replace lease.node[1]`")
        .says("Nothing to do");
    world
        .run("ask hello")
        .exits(4)
        .says("stage.chat[1]")
        .says("hint:");
    // It cannot be asked to end, and ends all the same.
    world.destroy();
}

#[test]
fn a_worker_that_was_killed_comes_back_by_itself() {
    let world = World::new(&command_topology(&format!(
        "[\"python3\", \"{}\"]",
        example_worker()
    )));
    world.apply();
    let machine = machine(&world, 0);
    let before = world.processes_of(&machine, "worker.py");
    assert_eq!(before.len(), 1);
    kill(before[0], Signal::KILL);
    let after = until("another worker", || {
        let workers = world.processes_of(&machine, "worker.py");
        workers.first().copied().filter(|pid| *pid != before[0])
    });
    until("all to be well", || {
        (world.run("status").code == Some(0)).then_some(())
    });
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    world.run("ask hello").exits(0);
    world.destroy();
    assert!(
        !Path::new(&format!("/proc/{after}")).exists(),
        "no process outlives destroy"
    );
}

#[test]
fn a_stage_that_failed_for_good_is_started_again_alone() {
    let world = World::empty();
    let (flag, worker) = (world.join("broken"), example_worker());
    let script = format!(
        "test -e {} && echo it is broken >&2 && exit 3; exec python3 {worker}",
        flag.display()
    );
    world.write(
        "topology.toml",
        command_topology(&format!("[\"sh\", \"-c\", '''{script}''']")),
    );
    world.apply();
    let (broken, well) = (machine(&world, 0), machine(&world, 1));
    world.write("broken", "");
    for pid in world.processes_of(&broken, "worker.py") {
        kill(pid, Signal::KILL);
    }
    until("the stage to be given up", || {
        let status = world.run("status");
        (status.code == Some(4) && status.out.contains("BROKEN")).then_some(())
    });
    let down = world.run("ask hello");
    down.exits(4).says("stage.chat[0]").says("hint:");
    world
        .run("logs stage.chat[0]")
        .exits(0)
        .says("it is broken");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("! stage.chat[0]:")
        .says_not("lease.node[0] replace")
        .says_not("stage.chat[1] replace");

    let fails = world.run("apply --auto-approve");
    fails
        .exits(1)
        .says("stage.chat[0]")
        .says("it exited with status 3")
        .says("it is broken");
    let worker_there = world.processes_of(&well, "worker.py");
    std::fs::remove_file(flag).expect("removed");
    world
        .apply()
        .says("stage.chat[0]: started")
        .says_not("stage.chat[1]: started");
    assert_eq!(
        world.processes_of(&well, "worker.py"),
        worker_there,
        "the other one ran on"
    );
    mended(&world, &broken, None);
}

#[test]
fn a_third_stage_is_one_more_machine() {
    let world = World::new(STUB);
    world.apply();
    let before = world.machines();
    world.edit("count = 2", "count = 3");
    world
        .run("plan")
        .exits(0)
        .says("+ lease.node[2] create")
        .says("1 x rent")
        .says_not("replace");
    world.apply();
    world.agrees();
    let after = world.machines();
    assert_eq!(after.len(), 3);
    assert!(before.iter().all(|machine| after.contains(machine)));
    world.run("ask hello").exits(0);

    world.edit("count = 3", "count = 1");
    world
        .apply()
        .says("lease.node[2]: released")
        .says("lease.node[1]: released");
    world.agrees();
    assert_eq!(world.machines().len(), 1);
    world.run("ask hello").exits(0);
    world.destroy();
}

#[test]
fn a_renamed_topology_names_the_old_machines() {
    let world = World::new(STUB);
    world.apply();
    world.edit("name = \"demo\"", "name = \"renamed\"");
    let plan = world.run("plan");
    plan.exits(0)
        .says("Plan: 8 to create.")
        .says("lease.node[0], lease.node[1]");
    plan.says("`stageline destroy --name demo`");
    world
        .run("destroy --name demo --auto-approve")
        .exits(0)
        .says("0 left at providers");
    world.is_clean();
    world.run("plan").exits(0).says_not("--name demo");
}

#[test]
fn machines_are_ended_without_a_topology_or_an_identity() {
    let mut world = World::new(STUB);
    world.apply();
    let identity = world.read("state/demo/identity.key");
    std::fs::remove_file(world.join("topology.toml")).expect("removed");
    std::fs::remove_file(world.join("state/demo/identity.key")).expect("removed");
    world.run("state list").exits(0).says("lease.node[0]");
    world
        .run("ask hello")
        .exits(1)
        .says("operator")
        .says("hint:");
    world.run("status").exits(1).says("operator").says("hint:");
    // As a CI job brings it.
    world.set("STAGELINE_IDENTITY", identity.trim());
    world.run("ask hello").exits(0);
    world.run("status").exits(0);
    world.set("STAGELINE_IDENTITY", "");
    world.run("plan --destroy").exits(0);
    world.destroy();
    world.write("topology.toml", STUB);
    world
        .run("apply --auto-approve")
        .exits(1)
        .says("identity")
        .says("hint:");
    world.is_clean();
}
