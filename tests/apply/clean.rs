//! Without any fault: what is declared comes up, nothing more is to be done then, and nothing is left after a destroy.

use super::world::{TWO, World};

#[test]
fn what_is_declared_comes_up_and_goes() {
    let world = World::new();
    let report = world.apply(TWO);
    world.check_settled(TWO, &report);
    assert_eq!(world.ours().len(), 2);
    let report = world.destroy();
    world.check_gone(&report);
    let again = world.destroy();
    world.check_gone(&again);
}

/// The way in is on one machine and serves a pipeline of another one, whose agent must know who may send prompts.
#[test]
fn a_way_in_to_the_pipeline_of_another_machine_comes_up() {
    let text = format!(
        "{}\n[pipeline.other]\nengine = \"stub\"\nstages = [{{ on = \"lease.box[1]\" }}]\n",
        TWO.replace("pipelines = [\"toy\"]", "pipelines = [\"toy\", \"other\"]")
            .replace(", { on = \"lease.box[1]\" }", "")
    );
    let world = World::new();
    world.check_settled(&text, &world.apply(&text));
    // A new machine at the way in has a new key, which the other one must learn.
    let at = world.ours().remove(0);
    assert!(world.sim.vanish(&at.id));
    let report = world.apply(&text);
    world.check_settled(&text, &report);
    let keys = world.ours().into_iter().map(|machine| machine.agent.peers);
    let known = keys.filter(|peers| peers.len() == 2).count();
    assert_eq!(known, 1, "the agent of the served pipeline knows both");
    assert_eq!(report.state.existing().count(), 9);
}

#[test]
fn changes_of_every_kind_settle() {
    let world = World::new();
    let one = TWO
        .replace("count = 2", "count = 1")
        .replace(", { on = \"lease.box[1]\" }", "");
    let more = TWO
        .replace("count = 2", "count = 3")
        .replace("lease.box[1]", "lease.box[2]");
    let other = TWO.replace("prompt = \"Hello\"", "prompt = \"Good day\"");
    for text in [&one, TWO, &more, &other, TWO, &one] {
        let report = world.apply(text);
        world.check_settled(text, &report);
    }
    let report = world.destroy();
    world.check_gone(&report);
}
