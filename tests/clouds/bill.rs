//! What a provider billed by its own word, beside the ledger.

use stageline::core::state::Spent;
use stageline::core::unit::MicroDollars;
use stageline::sim::Kind;

use super::desk::{Desk, SPEED};

/// What the simulator charged for everything that ever was there.
fn bill(desk: &Desk) -> String {
    let inner = desk.cloud.world.lock();
    let sums = inner.machines.values().map(|machine| machine.meter.total());
    let sum = sums.fold(MicroDollars::ZERO, MicroDollars::saturating_add);
    Spent::exactly(sum).to_string()
}

#[test]
fn what_a_provider_billed_is_told_and_what_is_an_estimate() {
    for (kind, name) in [(Kind::Vastai, "vast"), (Kind::Runpod, "pods")] {
        let desk = Desk::of(kind, vec![], SPEED, 1);
        desk.run("apply --auto-approve").exits(0);
        let head = format!("billed by provider `{name}` itself: $");
        desk.run("status")
            .exits(0)
            .says(&head)
            .says("for 1 machine, up to")
            .says("estimated since: $");
        let ran = desk.run("destroy --auto-approve");
        let told = format!("billed by provider `{name}` itself: {}", bill(&desk));
        ran.exits(0).says(&told).says("estimated since: $");
    }
}

#[test]
fn a_provider_without_such_a_call_is_not_said_to_have_billed() {
    let desk = Desk::of(Kind::Lambda, vec![], SPEED, 1);
    desk.run("apply --auto-approve").exits(0);
    for line in ["status", "destroy --auto-approve"] {
        let ran = desk.run(line);
        ran.exits(0);
        assert!(!ran.text.contains("billed by provider"), "{}", ran.text);
    }
}
