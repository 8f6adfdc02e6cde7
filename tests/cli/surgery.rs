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
