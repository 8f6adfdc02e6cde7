//! What a provider billed by its own word, beside the ledger.

use serde_json::json;
use stageline::ambient::{Clock as _, SystemClock};
use stageline::core::state::Spent;
use stageline::core::unit::{MicroDollars, Timestamp};
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};
use super::mounts::ask;

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
fn what_was_billed_for_traffic_is_told_apart() {
    let desk = Desk::of(Kind::Vastai, vec![Fault::of("traffic")], SPEED, 1);
    desk.run("apply --auto-approve").exits(0);
    desk.run("status")
        .exits(0)
        .says("for 1 machine ($0.25 of it for traffic), up to")
        .says("traffic, which is billed too, is in no estimate");
    let document = desk.run("status --json").document();
    assert_eq!(document["billed"][0]["traffic"], json!(250_000));
    desk.run("destroy --auto-approve")
        .exits(0)
        .says(&bill(&desk))
        .says("($0.25 of it for traffic)");
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

const HOUR: u64 = 3_600_000;

/// A machine that somebody rents at the console, at a cloud whose clock goes on when it is told to; and what changes its state.
fn rented(kind: Kind, faults: Vec<Fault>) -> (Desk, impl Fn(&Desk, bool)) {
    let desk = Desk::of(kind, faults, 1, 1);
    let (method, path, body) = match kind {
        Kind::Vastai => {
            let inner = desk.cloud.world.lock();
            let mut free = inner.offers.values().filter(|offer| !offer.taken);
            let ask = free.next().expect("an ask").id;
            let body = json!({ "image": "img:1", "disk": 40 });
            ("PUT", format!("/api/v0/asks/{ask}/"), body)
        }
        Kind::Runpod | Kind::Lambda => {
            let gpu = json!({ "id": "NVIDIA GeForce RTX 4090", "count": 1 });
            let body = json!({ "name": "by-hand", "image": "img:1", "gpu": gpu });
            ("POST", "/v2/pods".to_owned(), body)
        }
    };
    let (status, answer) = ask(&desk, method, &path, &body);
    assert!(status < 300, "{answer}");
    let id = answer.get("new_contract").or(answer.get("id"));
    let id = id.expect("an id").to_string();
    let id = id.trim_matches('"').to_owned();
    let turn = move |desk: &Desk, on: bool| {
        let (status, answer) = match kind {
            Kind::Vastai => {
                let state = if on { "running" } else { "stopped" };
                let path = format!("/api/v0/instances/{id}/");
                ask(desk, "PUT", &path, &json!({ "state": state }))
            }
            Kind::Runpod | Kind::Lambda => {
                let action = if on { "start" } else { "stop" };
                let path = format!("/v2/pods/{id}/action");
                ask(desk, "POST", &path, &json!({ "action": action }))
            }
        };
        assert!(status < 300, "{answer}");
    };
    (desk, turn)
}

/// Every hour of a bill costs what it cost then, also those before a price that was raised.
#[test]
fn the_hours_of_a_bill_are_what_is_billed_when_a_price_was_raised() {
    let dearer = Fault::of("price-later").seconds(3 * 3600).factor(2.0);
    let (desk, _) = rented(Kind::Runpod, vec![dearer]);
    let clock = &desk.cloud.world.clock;
    clock.advance(2 * HOUR);
    let cheap = desk.cloud.world.bill();
    clock.advance(4 * HOUR);
    let least = desk.cloud.world.bill();
    assert!(
        least.0 > cheap.0 * 4,
        "{cheap} in two hours, {least} in six"
    );
    let (status, bill) = ask(&desk, "GET", "/v2/billing/pods?bucketSize=hour", &json!({}));
    assert_eq!(status, 200, "{bill}");
    let most = desk.cloud.world.bill();
    let hours = bill["records"].as_array().expect("a list").iter();
    let micro = |dollars: f64| format!("{:.0}", dollars * 1e6).parse::<u64>();
    let hours = hours.map(|hour| hour["totalAmount"].as_f64().expect("an amount"));
    let hours: Vec<u64> = hours
        .map(|amount| micro(amount).expect("a number"))
        .collect();
    assert!(hours.iter().all(|amount| *amount > 0), "{hours:?}");
    let sum: u64 = hours.iter().sum();
    assert!(
        (least.0..=most.0).contains(&sum),
        "{sum} of {least} to {most}"
    );
}

/// What stands still costs its disk, also once it runs again.
#[test]
fn a_machine_that_was_stopped_for_a_while_is_not_billed_for_it_once_it_runs_again() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let (desk, turn) = rented(kind, vec![]);
        let world = &desk.cloud.world;
        let bill = || world.bill().0;
        world.clock.advance(HOUR);
        turn(&desk, false);
        let ran = bill();
        world.clock.advance(HOUR);
        if kind == Kind::Vastai {
            // It is stopped already.
            turn(&desk, false);
        }
        world.clock.advance(HOUR);
        let stood = bill() - ran;
        turn(&desk, true);
        world.clock.advance(HOUR);
        let again = bill() - ran - stood;
        let (all, disk) = {
            let inner = world.lock();
            let meter = &inner.machines.values().next().expect("one").meter;
            let all = meter.per_hour().0;
            (all, all - meter.running_per_hour.0)
        };
        // Some seconds of the real clock, and what is rounded.
        assert!(stood <= 2 * disk + 5_000, "{kind:?}: {stood} of {disk}");
        let hour = all - 2..all + 5_000;
        assert!(hour.contains(&again), "{kind:?}: {again} of {all}");
    }
}
