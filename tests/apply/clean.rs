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
