//! Caps of an account that several topologies share.

use std::time::{Duration, Instant};

use serde_json::Value;
use stageline::core::unit::MicroDollars;
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, KEY, Ran, finish};
use super::mounts::offers;

/// An account whose clock runs so fast that listings are late by two seconds at most.
const SPEED: u32 = 60;

fn capped(kind: Kind, faults: Vec<Fault>, caps: &str) -> Desk {
    let desk = Desk::of(kind, faults, SPEED, 1);
    desk.edit("[offer.gpu]", &format!("{caps}\n[offer.gpu]"));
    desk
}

/// Both at the same time, each with a state of its own; neither machine is listed before both are there.
fn both(desk: &Desk) -> [Ran; 2] {
    let start = |state: &str| {
        let line = format!("apply --auto-approve --state {state}");
        desk.command(&line).spawn().expect("the binary is there")
    };
    let running = ["one", "other"].map(start);
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let mut inner = desk.cloud.world.lock();
        let both = inner.machines.len() >= 2;
        let from = if both { 0 } else { u64::MAX };
        for machine in inner.machines.values_mut() {
            machine.listed_from = from;
        }
        drop(inner);
        if both || Instant::now() > deadline {
            break;
        }
        #[expect(clippy::disallowed_methods, reason = "polling needs a pause")]
        std::thread::sleep(Duration::from_millis(5));
    }
    running.map(finish)
}

fn codes(ran: &[Ran; 2]) -> [Option<i32>; 2] {
    let mut codes = [ran[0].code, ran[1].code];
    codes.sort_unstable();
    codes
}

/// Neither sees what the other does before both have launched: one gives way.
fn at_once(kind: Kind) {
    // Until the first look at what is made.
    let late = Fault::of("list-lag").seconds(100);
    let desk = capped(kind, vec![late], "max_leases = 1");
    one_gives_way(kind, &desk, "max_leases is 1");
}

fn one_gives_way(kind: Kind, desk: &Desk, cap: &str) {
    let ran = both(desk);
    let told = || format!("{}\n----\n{}", ran[0].text, ran[1].text);
    let made = desk.cloud.world.lock().machines.len();
    assert_eq!(made, 2, "{kind:?}: {}", told());
    assert_eq!(codes(&ran), [Some(0), Some(7)], "{kind:?}: {}", told());
    assert_eq!(desk.there().len(), 1, "{kind:?}: {}", told());
    let lost = ran.iter().find(|ran| ran.code == Some(7)).expect("one");
    lost.says("gives way, others took the room in the same moment")
        .says(cap);
    // It is the one that was left, and it goes on.
    let [won, other] = if ran[0].code == Some(0) {
        ["one", "other"]
    } else {
        ["other", "one"]
    };
    desk.run(&format!("plan --state {won} --detailed-exitcode"))
        .exits(0)
        .says("1 machine");
    desk.run(&format!("plan --state {other}"))
        .exits(7)
        .says(cap);
    desk.run(&format!("destroy --auto-approve --state {won}"))
        .exits(0);
    desk.run(&format!("destroy --auto-approve --state {other}"))
        .exits(0);
    assert!(desk.there().is_empty());
}

#[test]
fn two_topologies_that_launch_at_once_keep_a_cap_at_vastai() {
    at_once(Kind::Vastai);
}

#[test]
fn two_topologies_that_launch_at_once_keep_a_cap_at_lambda() {
    at_once(Kind::Lambda);
}

#[test]
fn two_topologies_that_launch_at_once_keep_a_cap_at_runpod() {
    at_once(Kind::Runpod);
}

#[test]
fn two_topologies_that_launch_at_once_keep_a_cap_on_money() {
    let late = Fault::of("list-lag").seconds(100);
    let desk = capped(Kind::Vastai, vec![late], "max_total_per_hour = 1.10");
    let fitting = offers(&desk, "gpu=rtx_4090|rtx_3090,vram>=24,reliability>=0.9");
    let price = |offer: &Value| offer["price_per_hour"].as_u64().expect("micro-dollars");
    let (cheap, next) = (price(&fitting[0]), price(&fitting[1]));
    let money = |amount: u64| MicroDollars(amount).to_string().replace('$', "");
    // Enough for either of them at its ceiling, and not for both at their prices.
    desk.edit(
        "max_price_per_hour = 1.00",
        &format!("max_price_per_hour = {}", money(next + 100_000)),
    );
    let cap = money(cheap + next - 10_000);
    desk.edit(
        "max_total_per_hour = 1.10",
        &format!("max_total_per_hour = {cap}"),
    );
    one_gives_way(
        Kind::Vastai,
        &desk,
        &format!("max_total_per_hour is ${cap}"),
    );
}

/// One lease that may be rented at vast.ai, where an account has one place, and here.
fn elsewhere_too() -> Desk {
    let desk = capped(Kind::Vastai, vec![], "max_leases = 1");
    let own = "[provider.own]\nkind = \"local\"\nprice_per_hour = 0.95\n[offer.own]\nprovider = \"own\"\n[offer.gpu]";
    desk.edit("[offer.gpu]", own);
    desk.edit(
        "offers = [\"gpu\"]",
        "offers = [\"gpu\", \"own\"]\nunguarded = true",
    );
    desk
}

#[test]
fn a_lease_goes_to_its_other_provider_when_an_account_is_full() {
    let desk = elsewhere_too();
    let first = desk.run("apply --auto-approve --state one");
    first.exits(0);
    assert!(!first.text.contains("is full"), "{}", first.text);
    let second = desk.run("apply --auto-approve --state other");
    second
        .exits(0)
        .says(
            "the account of provider `vast` is full, so that lease.node[0] goes to other providers",
        )
        .says("max_leases is 1");
    assert_eq!(desk.there().len(), 1);
    desk.run("destroy --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state one").exits(0);
    assert!(desk.there().is_empty());
}

/// The plan saw room, and others took it since.
#[test]
fn a_lease_goes_to_its_other_provider_when_an_account_fills_up_after_the_plan() {
    let desk = elsewhere_too();
    desk.run("plan --out kept.plan --state other").exits(0);
    desk.run("apply --auto-approve --state one").exits(0);
    desk.run("apply kept.plan --state other")
        .exits(0)
        .says("max_leases is 1")
        .says("is up, $0.95 per hour");
    assert_eq!(desk.there().len(), 1);
    desk.run("destroy --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state one").exits(0);
    assert!(desk.there().is_empty());
}

#[test]
fn what_others_cost_counts_for_a_cap_on_money() {
    let desk = capped(Kind::Vastai, vec![], "max_total_per_hour = 1.10");
    desk.run("plan")
        .exits(0)
        .says("Account of vast: no machine of other topologies");
    desk.run("apply --auto-approve --state one").exits(0);
    // Ours counts at its ceiling.
    let ran = desk.run("apply --auto-approve --state other");
    ran.exits(7)
        .says("provider.vast.max_total_per_hour is $1.10");
    desk.edit("max_total_per_hour = 1.10", "max_total_per_hour = 2.00");
    desk.run("plan --state other")
        .exits(0)
        .says("1 machine of another topology, $0.");
    desk.run("apply --auto-approve --state other").exits(0);
    assert_eq!(desk.there().len(), 2);
    desk.run("destroy --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state one").exits(0);
    assert!(desk.there().is_empty());
}

/// Its provider took it back: it bills nothing, and that is told.
#[test]
fn a_machine_of_others_that_costs_nothing_any_more_leaves_room() {
    let desk = capped(Kind::Lambda, vec![], "max_total_per_hour = 1.10");
    desk.run("apply --auto-approve --state one").exits(0);
    let now = desk.cloud.world.clock.now();
    for machine in desk.cloud.world.lock().machines.values_mut() {
        machine.stopped_from = Some(now);
    }
    desk.run("plan --state other")
        .exits(0)
        .says("1 machine of another topology, $0.00");
    desk.run("apply --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state one").exits(0);
    assert!(desk.there().is_empty());
}

/// Its host is away: it bills nothing now, and bills again once that is back.
#[test]
fn a_machine_of_others_whose_host_is_away_counts_at_the_price_that_it_comes_back_with() {
    let desk = capped(Kind::Vastai, vec![], "max_total_per_hour = 1.10");
    desk.run("apply --auto-approve --state one").exits(0);
    let now = desk.cloud.world.clock.now();
    for machine in desk.cloud.world.lock().machines.values_mut() {
        machine.away = Some((now, u64::MAX));
    }
    let ran = desk.run("plan --state other");
    ran.exits(7)
        .says("provider.vast.max_total_per_hour is $1.10");
    desk.run("destroy --auto-approve --state one").exits(0);
    desk.run("apply --auto-approve --state other").exits(0);
    desk.run("destroy --auto-approve --state other").exits(0);
    assert!(desk.there().is_empty());
}

/// A lease that is rented at runpod before it is rented at an account of vast.ai that cannot be seen.
#[test]
fn an_account_that_is_second_and_cannot_be_seen_hinders_nothing_and_is_passed_over() {
    let no = vec![Fault::of("list-success-false")];
    let other = Desk::of(Kind::Vastai, vec![], 600, 1);
    other.cloud.world.lock().price_factor = 10.0;
    let desk = Desk::of(Kind::Runpod, vec![], 600, 1);
    desk.secret("vast.key", KEY);
    let vast = format!(
        "[provider.vast]\nkind = \"vastai\"\nurl = \"{}\"\napi_key = {{ file = \"vast.key\" }}\n\
         [offer.vast]\nprovider = \"vast\"\nwhere = \"gpu=rtx_4090, vram>=24\"\nimage = \"stageline/agent:1\"\n\
         attempts = 20\n[offer.gpu]\nattempts = 20",
        other.cloud.url()
    );
    desk.edit("[offer.gpu]", &vast);
    desk.edit("offers = [\"gpu\"]", "offers = [\"gpu\", \"vast\"]");
    desk.edit("gpu=rtx_4090|rtx_3090, vram", "gpu=rtx_3090, vram");
    desk.edit("max_price_per_hour = 1.00", "max_price_per_hour = 20.00");
    desk.run("plan --out first.plan --state one").exits(0);
    desk.run("plan --out second.plan --state two").exits(0);
    other.cloud.world.faults.replace(no).expect("knobs");
    desk.run("apply second.plan --state two").exits(0);
    assert_eq!(desk.there().len(), 1);
    desk.run("destroy --auto-approve --state two").exits(0);
    // Nothing is left at the first one.
    let sold_out = vec![Fault::of("capacity")];
    desk.cloud.world.faults.replace(sold_out).expect("knobs");
    let ran = desk.run("apply first.plan --state one");
    ran.says("lease.node[0]: nothing is rented at provider `vast`, whose account cannot be seen");
    assert_ne!(ran.code, Some(0), "{}", ran.text);
    assert!(other.cloud.world.lock().machines.is_empty());
    assert!(desk.there().is_empty());
}
