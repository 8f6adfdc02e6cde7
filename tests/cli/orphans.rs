//! Machines that no state records: shown, ended, taken back; and providers that cannot be seen.

use std::path::Path;

use super::world::{STUB, World};

/// Machines that are said to cost money, and a stub pipeline on them.
fn some(count: u32) -> World {
    let text = STUB.replace("count = 2", &format!("count = {count}"));
    World::new(&text.replace("slots = 8", "slots = 8\nprice_per_hour = 0.40"))
}

fn ids(world: &World) -> Vec<String> {
    let name = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a name");
        name.to_string_lossy().into_owned()
    };
    world.machines().iter().map(name).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Everything of the state but its machines.
fn lose(world: &World) {
    for entry in std::fs::read_dir(world.join("state/demo"))
        .expect("there")
        .flatten()
    {
        match entry.path() {
            path if path.ends_with("machines") => {}
            path if path.is_dir() => std::fs::remove_dir_all(path).expect("removed"),
            path => std::fs::remove_file(path).expect("removed"),
        }
    }
}

#[test]
fn nothing_found_says_who_was_asked() {
    let world = some(1);
    world
        .run("orphans")
        .exits(0)
        .says("no orphan was found: asked: `here` (local) at 2");
    world.apply();
    world
        .run("orphans -v")
        .exits(0)
        .says("no orphan was found")
        .says("1 machines there are recorded");
    world
        .run("orphans --release lease.node[0] --auto-approve")
        .exits(1)
        .says("is recorded, so it is no orphan")
        .says("stageline release lease.node[0]");
    world.run("orphans --adopt nothing --auto-approve").exits(1);
    world.agrees();
    world.destroy();
}

#[test]
fn machines_of_a_lost_state_are_shown_and_ended_when_they_are_named() {
    let world = some(2);
    world.apply();
    let ids = ids(&world);
    lose(&world);
    let shown = world.run("orphans");
    shown
        .exits(0)
        .says("$0.40/h")
        .says("so far")
        .says("made for lease.node[0], generation 1, try 1")
        .says("another topology's, or its state is lost");
    shown.says(&format!("stageline orphans --release {}", ids[0]));
    let document = world.run("orphans --json").exits(0).json();
    assert_eq!(document["orphans"][0]["whose"], "unknown");
    assert_eq!(document["orphans"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["asked"][0]["kind"], "local");
    // Nothing that is not surely ours is ended without its name, nor adopted at all.
    world
        .run("orphans --release --auto-approve")
        .exits(0)
        .says("none is touched unnamed");
    world
        .run("orphans --release lease.node[0] --auto-approve")
        .exits(1)
        .says("may be another topology's");
    world
        .run(&format!("orphans --adopt {} --auto-approve", ids[0]))
        .exits(1)
        .says("cannot be adopted");
    world
        .run(&format!("orphans --release {}", ids[0]))
        .exits(1)
        .says("nobody can be asked");
    assert_eq!(world.machines().len(), 2);
    world
        .run(&format!(
            "orphans --release {} {} --auto-approve",
            ids[0], ids[1]
        ))
        .exits(0)
        .says("released, proven by the listing of `here`");
    world.is_clean();
    world.run("orphans").exits(0).says("no orphan was found");
}

#[test]
fn machines_are_found_when_the_whole_folder_is_gone() {
    let world = some(1);
    world.apply();
    let ids = ids(&world);
    std::fs::remove_dir_all(world.join("state")).expect("removed");
    world
        .run("orphans")
        .exits(0)
        .says(&ids[0])
        .says("some of its processes still run");
    world
        .run(&format!("orphans --release {} --auto-approve", ids[0]))
        .exits(0)
        .says("proven");
    world.is_clean();
}

#[test]
fn a_state_from_an_old_copy_takes_its_machines_back_or_ends_them() {
    let world = some(1);
    world.apply();
    copy(&world.join("state/demo/journal"), &world.join("copy"));
    world.edit("count = 1", "count = 2");
    world.apply();
    let machines = world.machines();
    let restore = || {
        std::fs::remove_dir_all(world.join("state/demo/journal")).expect("removed");
        let _ = std::fs::remove_dir_all(world.join("state/demo/snapshot"));
        copy(&world.join("copy"), &world.join("state/demo/journal"));
    };
    restore();
    world
        .run("orphans")
        .exits(0)
        .says("made for lease.node[1], generation 1, try 1")
        .says("of this topology, and not in its state");
    world
        .run("orphans --adopt lease.node[1] --auto-approve")
        .exits(0);
    world.run("orphans").exits(0).says("no orphan was found");
    world.apply();
    assert_eq!(world.machines(), machines, "the same machines go on");
    world.agrees();
    restore();
    world
        .run("orphans --release --auto-approve")
        .exits(0)
        .says("released, proven by the listing");
    assert_eq!(world.machines().len(), 1);
    world.agrees();
    world
        .run("state history")
        .exits(0)
        .says("orphans --release");
    world.destroy();
}

#[test]
fn a_machine_that_was_given_up_is_ended_only_when_it_is_named() {
    let world = some(1);
    world.apply();
    let ids = ids(&world);
    world.run("state rm lease.node --auto-approve").exits(0);
    world
        .run("orphans --release --auto-approve")
        .exits(0)
        .says("none is touched unnamed");
    assert_eq!(world.machines().len(), 1);
    world
        .run(&format!("orphans --release {} --auto-approve", ids[0]))
        .exits(0);
    world.is_clean();
    world
        .run("leases")
        .exits(0)
        .says_not("was taken out of the state at");
    world.destroy();
}

#[test]
fn a_provider_that_cannot_be_seen_is_never_empty() {
    let world = some(1);
    world.edit(
        "[offer.small]",
        "[provider.cloud]\nkind = \"vastai\"\napi_key = { env = \"NO_SUCH_KEY\" }\n\n[offer.small]",
    );
    world
        .run("orphans")
        .exits(5)
        .says("cannot see provider `cloud`")
        .says("NO_SUCH_KEY is not set")
        .says("asked: `here` (local)")
        .says_not("none");
    let document = world.run("orphans --json").exits(5).json();
    assert_eq!(document["asked"].as_array().map(Vec::len), Some(2));
    assert!(document["asked"][0]["cannot_see"].is_string());
    world
        .run("orphans --release 4711 --auto-approve")
        .exits(5)
        .says("a provider could not be seen");
}
