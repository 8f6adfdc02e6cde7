//! Saved plans and the guards around them: what was reviewed is what runs, once, on what it was drafted from. And the
//! exit codes of everything that is refused before anything is done.

use super::crash::dies_at;
use super::world::{STUB, World};

#[test]
fn a_saved_plan_is_applied_once() {
    let world = World::new(STUB);
    let saved = world.run("plan --out plans/first.plan.json");
    saved.exits(0).says("saved as plans/first.plan.json");
    assert!(
        !world.join("state").exists(),
        "a plan writes nothing but its file"
    );
    world
        .run("show plans/first.plan.json")
        .exits(0)
        .says("Plan: 8 to create.");
    world
        .run("graph plans/first.plan.json")
        .exits(0)
        .says("lease.node[1]");
    world
        .run("apply plans/first.plan.json")
        .exits(0)
        .says("pipeline.chat: answers");
    let again = world.run("apply plans/first.plan.json");
    again.exits(7).says("was applied already").says("hint:");
    world.agrees();

    world
        .run("plan --destroy --out plans/end.plan.json")
        .exits(0)
        .says("Plan: 8 to delete.");
    world
        .run("apply plans/end.plan.json")
        .exits(0)
        .says("0 left at providers");
    world.is_clean();
    world.run("apply plans/end.plan.json").exits(7);
}

#[test]
fn a_saved_plan_that_was_cut_off_goes_on() {
    let world = World::new(STUB);
    world.run("plan --out p.json").exits(0);
    assert!(
        dies_at(&world, "apply p.json", 33).0,
        "that is in the midst of it"
    );
    world
        .run("apply p.json")
        .exits(0)
        .says("pipeline.chat: answers");
    world.agrees();
    world.destroy();
}

#[test]
fn a_plan_that_does_not_fit_is_refused() {
    let world = World::new(STUB);
    world.run("plan --out p.json").exits(0);
    let text = world.read("p.json");

    let changed = text.replace("\"notes\": []", "\"notes\": [\"harmless\"]");
    assert_ne!(text, changed);
    world.write("changed.json", changed);
    world
        .run("apply changed.json")
        .exits(7)
        .says("was changed after it was drafted")
        .says("hint:");
    world.write(
        "newer.json",
        text.replace("\"format\": 2", "\"format\": 99"),
    );
    world.run("apply newer.json").exits(7).says("format 99");
    world.write("cut.json", &text[..text.len() / 2]);
    world
        .run("apply cut.json")
        .exits(1)
        .says("cut.json is no plan");
    world
        .run("apply missing.json")
        .exits(1)
        .says("missing.json")
        .says("hint:");

    world.edit("name = \"demo\"", "name = \"other\"");
    world
        .run("apply p.json")
        .exits(7)
        .says("is for topology `demo`");
    world.edit("name = \"other\"", "name = \"demo\"");
    world.edit("count = 2", "count = 3");
    world
        .run("apply p.json")
        .exits(7)
        .says("the topology was changed after this plan was drafted");
    world.edit("count = 3", "count = 2");
    assert!(
        !world.join("state/demo/journal").exists(),
        "nothing was begun"
    );

    world.apply();
    world
        .run("apply p.json")
        .exits(7)
        .says("what is recorded changed")
        .says("plan again");
    world.agrees();
    world.destroy();
}

#[test]
fn a_plan_as_json() {
    let world = World::new(STUB);
    let ran = world.run("plan --json --detailed-exitcode");
    let json = ran.exits(2).json();
    let changes = json["plan"]["changes"]
        .as_array()
        .or(json["changes"].as_array());
    assert_eq!(changes.map(Vec::len), Some(8), "{json}");
    assert!(ran.err.is_empty(), "{ran}");
    assert!(world.files().len() == 1, "only the topology is there");
}

#[test]
fn nothing_is_done_that_nobody_said_yes_to() {
    let world = World::new(STUB);
    let asked = world.run("apply");
    asked
        .exits(1)
        .says("nobody can be asked")
        .says("--auto-approve");
    assert!(!world.join("state").exists());
    world.apply();
    world.run("destroy").exits(1).says("nobody can be asked");
    world
        .run("release lease.node[0]")
        .exits(1)
        .says("nobody can be asked");
    world.run("release lease.node[0] --auto-approve").exits(0);
    assert_eq!(world.machines().len(), 1);
    world
        .run("release lease.node[0] --auto-approve")
        .exits(0)
        .says("has ended already");
    world.destroy();
}

#[test]
fn what_makes_no_sense_is_said_at_once() {
    let world = World::empty();
    for line in [
        "",
        "nonsense",
        "plan --nope",
        "apply --parallelism x",
        "release lease.gpu",
        "completions dos",
    ] {
        world.run(line).exits(64).says("--help");
    }
    world
        .run("release stage.chat[0]")
        .exits(64)
        .says("is a stage, not a lease");
    for line in [
        "plan",
        "apply --auto-approve",
        "validate",
        "graph",
        "destroy --auto-approve",
        "status",
    ] {
        let ran = world.run(line);
        ran.exits(1)
            .says("there is no topology.toml here")
            .says("stageline init");
    }
    world
        .run("validate -f absent.toml")
        .exits(1)
        .says("absent.toml")
        .says("hint:");
    assert!(world.files().is_empty(), "none of these writes");
}

#[test]
fn what_does_not_fit_the_topology_is_said_at_once() {
    let world = World::new(STUB);
    world
        .run("plan --name other")
        .exits(1)
        .says("`demo`")
        .says("`other`");
    world
        .run("plan --workspace UP")
        .exits(1)
        .says("--workspace");
    world
        .run("plan --state s3://bucket/x")
        .exits(1)
        .says("s3")
        .says("hint:");
    world
        .run("plan --target lease.nodes[0]")
        .exits(1)
        .says("did you mean lease.node[0]?");
    world.run("plan --target nonsense").exits(64);
    world
        .run("logs exposure.api")
        .exits(1)
        .says("an exposure has no output of its own");
    world
        .run("ask hello")
        .exits(1)
        .says("no pipeline runs")
        .says("stageline apply");
    world.write(
        "topology.toml",
        "version = 1\nname = \"demo\"\n[lease.a]\noffer = []\n[x]\n",
    );
    let all = world.run("validate");
    all.exits(1)
        .says("topology.toml:4:1")
        .says("did you mean")
        .says("topology.toml:5:");
    assert_eq!(world.files().len(), 1, "only the topology is there");
}

#[test]
fn a_limit_is_a_guard() {
    let world = World::new(&STUB.replace("slots = 8", "slots = 8\nprice_per_hour = 0.75"));
    world.run("plan").exits(0).says("$1.50");
    let limited = format!(
        "{}\n[limits]\nmax_total_per_hour = 1\n",
        world.read("topology.toml")
    );
    world.write("topology.toml", limited);
    world.run("plan").exits(7).says("max_total_per_hour");
    world
        .run("apply --auto-approve")
        .exits(7)
        .says("max_total_per_hour");
    world.is_clean();
}
