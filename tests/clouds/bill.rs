//! What a provider billed by its own word, beside the ledger.

use serde_json::json;
use stageline::ambient::{Clock as _, SystemClock};
use stageline::core::state::Spent;
use stageline::core::unit::{MicroDollars, Timestamp};
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
    let traffic = "traffic, which is billed too, is in no estimate";
    let hour = "some of the last hour may be missing in it";
    for (kind, name, more) in [
        (Kind::Vastai, "vast", traffic),
        (Kind::Runpod, "pods", hour),
    ] {
        let desk = Desk::of(kind, vec![], SPEED, 1);
        desk.run("apply --auto-approve").exits(0);
        let head = format!("billed by provider `{name}` itself: $");
        let document = desk.run("status --json").document();
        let billed = &document["billed"][0];
        assert_eq!(
            (&billed["provider"], &billed["machines"]),
            (&json!(name), &json!(1))
        );
        assert!(billed["amount"].is_u64() && billed["estimated"].is_u64());
        let to = billed["to"].as_str().expect("a time");
        let to: Timestamp = to.parse().expect("a time");
        assert!(to <= SystemClock.now(), "nobody bills what is to come");
        desk.run("status")
            .exits(0)
            .says(&head)
            .says("for 1 machine, up to")
            .says("estimated since: $")
            .says(more);
        // More than one hour of its bill.
        desk.cloud.world.clock.advance(2 * 3_600_000);
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
        ran.says("what provider `lambda` billed cannot be told: it tells no bill; all of it is an estimate by prices and times");
    }
}
