//! Caps of an account that several topologies share.

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, Ran, finish};

/// An account whose clock runs so fast that listings are late by two seconds at most.
const SPEED: u32 = 60;

fn capped(kind: Kind, faults: Vec<Fault>, caps: &str) -> Desk {
    let desk = Desk::of(kind, faults, SPEED, 1);
    desk.edit("[offer.gpu]", &format!("{caps}\n[offer.gpu]"));
    desk
}

/// Both at the same time, each with a state of its own.
fn both(desk: &Desk) -> [Ran; 2] {
    let start = |state: &str| {
        let line = format!("apply --auto-approve --state {state}");
        desk.command(&line).spawn().expect("the binary is there")
    };
    let running = ["one", "other"].map(start);
    running.map(finish)
}

fn codes(ran: &[Ran; 2]) -> [Option<i32>; 2] {
    let mut codes = [ran[0].code, ran[1].code];
    codes.sort_unstable();
    codes
}

/// Neither sees what the other does before both have launched.
fn at_once(kind: Kind) {
    let late = Fault::of("list-lag").seconds(100);
    let desk = capped(kind, vec![late], "max_leases = 1");
    let ran = both(&desk);
    let told = || format!("{}\n----\n{}", ran[0].text, ran[1].text);
    assert_eq!(codes(&ran), [Some(0), Some(7)], "{kind:?}: {}", told());
    assert_eq!(desk.there().len(), 1, "{kind:?}: {}", told());
    let made = desk.cloud.world.lock().machines.len();
    let lost = ran.iter().find(|ran| ran.code == Some(7)).expect("one");
    lost.says("max_leases is 1")
        .says("1 of them of other topologies");
    if made == 2 {
        lost.says("gives way");
    }
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
        .says("max_leases is 1");
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
