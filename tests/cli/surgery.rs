//! Surgery on recorded state with real machines: names change and machines stay; nothing is forgotten without a word.

use std::path::PathBuf;

use super::world::{STUB, World};

/// One machine that is said to cost money, and a stub pipeline on it.
fn one() -> World {
    let text = STUB.replace("count = 2", "count = 1");
    World::new(&text.replace("slots = 8", "slots = 8\nprice_per_hour = 0.40"))
}

fn renamed(world: &World, from: &str, to: &str) {
    let text = world.read("topology.toml");
    world.write(
        "topology.toml",
        text.replace(&format!("lease.{from}"), &format!("lease.{to}")),
    );
}

/// The entries of the journal, in order.
fn entries(world: &World) -> Vec<PathBuf> {
    let folder = world.join("state/demo/journal");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("there is a journal")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    found.sort();
    found
}

#[test]
fn a_lease_that_is_renamed_in_the_file_keeps_its_machine() {
    let world = one();
    world.apply();
    let machines = world.machines();
    renamed(&world, "node", "box");
    let text = world.read("topology.toml");
    world.write(
        "topology.toml",
        format!("{text}\n[[moved]]\nfrom = \"lease.node\"\nto = \"lease.box\"\n"),
    );
    world
        .run("plan --detailed-exitcode")
        .exits(2)
        .says("lease.node[0] becomes lease.box[0]: its machine stays")
        .says_not("rent");
    world.apply();
    assert_eq!(world.machines(), machines, "the same machine");
    world.run("plan --detailed-exitcode").exits(0);
    world.run("status").exits(0);
    world.run_args(["ask", "Hello"]).exits(0);
    // A worker is started again on the machine under its new name.
    world.edit("max_tokens = 1", "max_tokens = 2");
    world
        .run("apply --auto-approve --replace stage.chat[0]")
        .exits(0);
    assert_eq!(world.machines(), machines, "still the same machine");
    world.destroy();
}

#[test]
fn a_protected_lease_is_spared_and_said() {
    let world = one();
    world.edit("count = 1", "count = 1\nprotect = true");
    world.apply();
    let machines = world.machines();
    world
        .run("destroy --auto-approve")
        .exits(8)
        .says("lease.node[0] is protected and was left out");
    world.run("release lease.node[0] --auto-approve").exits(7);
    world
        .run("plan --replace lease.node[0]")
        .exits(7)
        .says("is protected and would be replaced");
    assert_eq!(world.machines(), machines);
    world.edit("protect = true", "protect = false");
    world.apply();
    world.destroy();
}

#[test]
fn a_machine_that_is_given_up_is_told_found_again_and_taken_back() {
    let world = one();
    world.apply();
    let machine = world.machines()[0].clone();
    let id = machine
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    world
        .run("state rm lease.nod --auto-approve")
        .exits(1)
        .says("did you mean");
    world
        .run("state rm lease.node --auto-approve")
        .exits(0)
        .says("goes on billing $0.40 per hour")
        .says(&format!("stageline import lease.node[0] {id}"));
    world.run("leases").exits(0).says("may go on billing");
    world
        .run("destroy --auto-approve")
        .exits(8)
        .says("is left alone");
    world
        .run("import lease.node[0] no-such --auto-approve")
        .exits(1);
    world
        .run(&format!("import lease.nod[0] {id} --auto-approve"))
        .exits(1);
    world
        .run(&format!("import lease.node[0] {id} --auto-approve"))
        .exits(0);
    world
        .run(&format!("import lease.node[0] {id} --auto-approve"))
        .exits(1)
        .says("is lease.node[0] already");
    world.apply();
    assert_eq!(world.machines(), [machine], "no other one");
    // Back to before it was given up, and from there nothing changes.
    world
        .run("state history")
        .exits(0)
        .says("state rm")
        .says("import");
    world
        .run("state mv lease.node lease.other --auto-approve")
        .exits(0);
    let history = world.run("state history --json").exits(0).json();
    let runs = history["runs"].as_array().expect("runs").clone();
    let before = &runs[runs.len() - 2]["last"];
    world
        .run(&format!("state rollback {before} --auto-approve"))
        .exits(0);
    world.run("plan --detailed-exitcode").exits(0);
    world.destroy();
}

#[test]
fn a_state_that_is_moved_goes_on_there_and_nowhere_else() {
    let world = one();
    world.apply();
    let machines = world.machines();
    world
        .run("state push elsewhere --auto-approve")
        .exits(0)
        .says("--state");
    world.run("plan").exits(1).says("was moved: it goes on at");
    world.run("apply --auto-approve").exits(1);
    world
        .run("plan --detailed-exitcode --state elsewhere")
        .exits(0);
    world
        .run("state push state --state elsewhere --auto-approve")
        .exits(0);
    world.run("plan --detailed-exitcode").exits(0);
    world.run("state mv demo other --auto-approve").exits(0);
    world.edit("name = \"demo\"", "name = \"other\"");
    world.run("plan --detailed-exitcode").exits(0);
    assert_eq!(world.machines().first(), machines.first());
    world.run("destroy --auto-approve").exits(0);
    assert!(world.processes().is_empty());
}

/// Damages one file.
type Harm = Box<dyn Fn(&PathBuf)>;

/// Each kind of damage to the journal.
#[test]
fn a_damaged_state_is_repaired_without_losing_a_machine() {
    let cut = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("readable");
        std::fs::write(path, &bytes[..bytes.len() / 2]).expect("written");
    };
    let empty = |path: &PathBuf| std::fs::write(path, "").expect("written");
    let missing = |path: &PathBuf| std::fs::remove_file(path).expect("removed");
    let harms: [(&str, Harm); 3] = [
        ("cut", Box::new(cut)),
        ("emptied", Box::new(empty)),
        ("missing", Box::new(missing)),
    ];
    for (what, harm) in harms {
        let world = one();
        world.apply();
        let machines = world.machines();
        let entries = entries(&world);
        harm(&entries[entries.len() / 2]);
        world
            .run("plan")
            .exits(1)
            .says("is damaged")
            .says("stageline state repair");
        world.run("state repair").exits(1);
        world
            .run("state repair --auto-approve")
            .exits(0)
            .says("lost:")
            .says("repaired as of number");
        world
            .run("state repair --auto-approve")
            .exits(0)
            .says("is sound");
        assert_eq!(world.machines(), machines, "{what}");
        world.agrees();
        world.apply();
        assert_eq!(
            world.machines(),
            machines,
            "{what}: the same machine goes on"
        );
        world.destroy();
    }
}

#[test]
fn only_what_was_seen_is_recorded_by_a_refresh() {
    let world = one();
    world.apply();
    world
        .run("plan --refresh-only --detailed-exitcode")
        .exits(0);
    let machine = world.machines()[0].clone();
    for pid in world.processes().keys() {
        super::world::kill(*pid, rustix::process::Signal::KILL);
    }
    std::fs::remove_dir_all(machine).expect("removed");
    world
        .run("plan --refresh-only --detailed-exitcode")
        .exits(2)
        .says("taken out of the state once the listing proves it")
        .says_not("rent");
    world.run("apply --refresh-only --auto-approve").exits(0);
    world.run("leases").exits(0).says("ended");
    world.apply();
    world.destroy();
}

/// Snapshots of a state: what a long journal becomes.
fn snapshots(world: &World) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(world.join("state/demo/snapshot"));
    let mut found: Vec<PathBuf> = folder
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("an entry").path())
        .collect();
    found.sort();
    found
}

/// Repairing makes a snapshot. It is damaged in turn: cut, emptied, of a newer version, and gone with all but the readable
/// copy.
#[test]
fn a_damaged_snapshot_is_repaired_and_a_newer_one_is_not_touched() {
    let world = one();
    world.apply();
    let machines = world.machines();
    let first = entries(&world).into_iter().next_back().expect("some");
    std::fs::write(&first, "").expect("written");
    world.run("state repair --auto-approve").exits(0);
    world.apply();
    let snapshot = snapshots(&world).into_iter().next_back().expect("one");
    let whole = std::fs::read(&snapshot).expect("readable");
    // A newer version's: nothing is repaired, nothing is written.
    let text = String::from_utf8(whole.clone()).expect("text");
    let format = stageline::core::journal::FORMAT;
    let newer = text.replacen(&format!("\"format\":{format}"), "\"format\":99", 1);
    assert_ne!(newer, text, "{text}");
    std::fs::write(&snapshot, &newer).expect("written");
    let before = world.files();
    for line in [
        "plan",
        "state repair --auto-approve",
        "destroy --auto-approve",
    ] {
        let ran = world.run(line);
        ran.exits(1)
            .says("format 99")
            .says("hint:")
            .says_not("0 left");
    }
    assert!(world.files() == before, "nothing was written");
    let mut snapshot = snapshot;
    for left in [whole.len() / 2, 0] {
        std::fs::write(&snapshot, &whole[..left]).expect("written");
        world
            .run("plan")
            .exits(1)
            .says("is damaged")
            .says("stageline state repair");
        let repaired = world.run("state repair --auto-approve");
        repaired
            .exits(0)
            .says("lost:")
            .says("repaired as of number");
        world.agrees();
        world.apply();
        assert_eq!(
            world.machines(),
            machines,
            "{left}: the same machine goes on"
        );
        // The next round damages what this one made.
        let newest = snapshots(&world).into_iter().next_back().expect("one");
        assert_ne!(newest, snapshot);
        snapshot = newest;
    }
    std::fs::write(&snapshot, "").expect("written");
    world.run("state repair --auto-approve").exits(0);
    world.destroy();
}

/// Journal and snapshots are gone, and only the copy for people is left: it names the lineage and the leases, and what the
/// providers list does the rest.
#[test]
fn a_state_of_which_only_the_readable_copy_is_left_is_repaired() {
    let world = one();
    world.apply();
    let machines = world.machines();
    let folder = world.join("state/demo/journal");
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::create_dir(&folder).expect("made");
    world
        .run("plan")
        .exits(1)
        .says("is damaged")
        .says("state.json");
    world.run("apply --auto-approve").exits(1).says_not("rent");
    world
        .run("state repair --auto-approve")
        .exits(0)
        .says("taken from the readable copy, state.json")
        .says("was lost from the state and is recorded again");
    assert_eq!(world.machines(), machines);
    world.agrees();
    world.apply();
    assert_eq!(world.machines(), machines, "the same machine goes on");
    world.destroy();
}

/// Without its file a protected lease is ended by the two commands that `destroy` names.
#[test]
fn a_protected_lease_is_lifted_without_a_topology() {
    let world = one();
    world.edit("count = 1", "count = 1\nprotect = true");
    world.apply();
    let machine = world.machines()[0].clone();
    let id = machine
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    std::fs::remove_file(world.join("topology.toml")).expect("removed");
    world
        .run("destroy --auto-approve")
        .exits(8)
        .says("is protected and was left out")
        .says("`stageline state rm lease.node[0]`")
        .says(&format!("`stageline orphans --release {id}`"));
    world
        .run("state rm lease.node[0] --auto-approve")
        .exits(0)
        .says("goes on billing");
    world
        .run(&format!(
            "orphans --release {id} --name demo --auto-approve"
        ))
        .exits(0);
    assert!(world.processes().is_empty());
    world.run("destroy --auto-approve").exits(0);
}

#[test]
fn a_whole_table_is_a_target() {
    let world = World::new(STUB);
    world
        .run("plan --target lease.node --exclude stage.chat")
        .exits(0)
        .says("Plan: 2 to create")
        .says_not("+ stage.chat");
    world
        .run("plan --target lease.nod")
        .exits(1)
        .says("nothing of that table is declared or recorded");
    world.apply();
    let machines = world.machines();
    world
        .run("plan --replace stage.chat --detailed-exitcode")
        .exits(2)
        .says("stage.chat[0..2]")
        .says_not("rent");
    world
        .run("plan --replace lease.node --detailed-exitcode")
        .exits(2)
        .says("2 x rent");
    world
        .run("destroy --auto-approve --target stage.chat")
        .exits(0);
    assert_eq!(world.machines(), machines, "workers end, machines stay");
    world
        .run("destroy --auto-approve --target lease.node")
        .exits(0);
    assert!(world.processes().is_empty());
}

/// The file says another name: the plan says how the machines are kept.
#[test]
fn a_rename_without_a_word_is_noticed() {
    let world = one();
    world.apply();
    let (machines, processes) = (world.machines(), world.processes());
    renamed(&world, "node", "box");
    world
        .run("plan")
        .exits(0)
        .says("if it was renamed, `stageline state mv lease.node lease.box`");
    world
        .run("state mv lease.node lease.box --auto-approve")
        .exits(0);
    world.apply();
    world.edit("name = \"demo\"", "name = \"other\"");
    world
        .run("plan")
        .exits(0)
        .says("`stageline state mv demo other` takes them over");
    world.run("state mv demo other --auto-approve").exits(0);
    world.run("plan --detailed-exitcode").exits(0);
    // The new place points to where they are.
    assert_eq!(world.machines().first(), machines.first());
    assert_eq!(world.processes(), processes);
    world.run("destroy --auto-approve").exits(0);
}

/// The state on one computer, the machines on another one: their absence here proves nothing.
#[test]
fn machines_of_another_computer_are_not_gone() {
    let mut world = one();
    world.apply();
    let machines = world.join("state/demo/machines");
    let aside = world.join("aside");
    std::fs::rename(&machines, &aside).expect("renamed");
    // There are no processes of theirs on that computer.
    for pid in world.processes().keys() {
        super::world::kill(*pid, rustix::process::Signal::KILL);
    }
    super::world::until("them to be gone", || {
        world.processes().is_empty().then_some(())
    });
    world.set("STAGELINE_TEST_COMPUTER", "desk");
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(5)
        .says("nobody could tell whether its machine")
        .says("file://desk/")
        .says("what it does not list may still run");
    world
        .run("plan --refresh-only --detailed-exitcode")
        .exits(5)
        .says_not("taken out of the state");
    world
        .run("destroy --auto-approve")
        .exits(5)
        .says("file://desk/")
        .says("run the same command where they were made")
        .says_not("0 left");
    std::fs::rename(&aside, &machines).expect("renamed");
    world.destroy();
}
