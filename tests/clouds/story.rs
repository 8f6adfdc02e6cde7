//! The whole job over a cloud's API: plan, apply, ask, destroy; the same with faults; the topology lost.

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};

#[test]
fn two_machines_are_rented_asked_and_ended() {
    the_whole_job(Kind::Vastai);
}

#[test]
fn two_machines_of_lambda_are_rented_asked_and_ended() {
    the_whole_job(Kind::Lambda);
}

#[test]
fn two_pods_of_runpod_are_rented_asked_and_ended() {
    the_whole_job(Kind::Runpod);
}

fn the_whole_job(kind: Kind) {
    let desk = Desk::new(kind, vec![]);
    let way = match kind {
        Kind::Vastai | Kind::Runpod => "; its agent is in the image",
        Kind::Lambda => "; it fetches its agent",
    };
    desk.run("plan").exits(0).says("from provider").says(way);
    assert!(desk.there().is_empty());
    let ran = desk.run("apply --auto-approve");
    ran.exits(0).says("is up").says(&format!("per hour{way}"));
    desk.agrees(2);
    desk.run("ask Hello").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    // To end machines, neither the topology nor its provider's table is needed.
    desk.remove_topology();
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
    // Nothing went wrong: what nobody saw is the way up and the way down.
    let spent = desk.bill_is_as_counted();
    assert!(spent.most.0 <= 3 * spent.least.0, "{kind:?}: {spent:?}");
}

#[test]
fn a_machine_whose_create_failed_after_the_fact_is_found_and_kept() {
    a_lost_create(Kind::Vastai);
}

#[test]
fn a_machine_of_lambda_whose_launch_failed_after_the_fact_is_found_and_kept() {
    a_lost_create(Kind::Lambda);
}

#[test]
fn a_pod_of_runpod_whose_create_failed_after_the_fact_is_found_and_kept() {
    a_lost_create(Kind::Runpod);
}

fn a_lost_create(kind: Kind) {
    let faults = vec![
        Fault::of("create-500-after-commit").times(1),
        Fault::of("list-lag").times(1).seconds(60),
    ];
    let desk = Desk::new(kind, faults);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    assert_eq!(desk.cloud.world.lock().machines.len(), 2, "none too many");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

/// Somebody else uses the account so much that our creates are refused: they are waited out, within what was asked for.
#[test]
fn too_many_requests_of_others_end_no_create() {
    for (kind, wish) in [
        (Kind::Vastai, Some("40")),
        (Kind::Vastai, None),
        (Kind::Lambda, Some("Wed, 21 Oct 2026 07:28:00 GMT")),
        (Kind::Runpod, Some("100000")),
    ] {
        let fault = Fault::of("create-429").times(6);
        let fault = wish.map_or(fault.clone(), |wish| fault.text(wish));
        let desk = Desk::of(kind, vec![fault], 600, 2);
        let ran = desk.run("apply --auto-approve");
        ran.exits(0).says("status 429").says("again in");
        desk.agrees(2);
        let (made, asked) = {
            let inner = desk.cloud.world.lock();
            (inner.machines.len(), inner.requests["create"])
        };
        assert_eq!(made, 2, "none too many at {kind:?}");
        assert!(asked >= 8, "{asked}");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn an_account_that_cannot_be_seen_is_not_an_empty_one() {
    let desk = Desk::new(Kind::Vastai, vec![]);
    desk.run("apply --auto-approve").exits(0);
    let set = |table| desk.cloud.world.faults.replace(table).expect("knobs");
    set(vec![Fault::of("other-account")]);
    let ran = desk.run("plan --detailed-exitcode");
    ran.exits(5)
        .says("it is kept")
        .says("the machines are on account");
    set(vec![]);
    desk.agrees(2);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

#[test]
fn a_key_that_is_missing_is_said_at_once() {
    for (kind, variable) in [
        (Kind::Vastai, "VAST_API_KEY"),
        (Kind::Lambda, "LAMBDA_API_KEY"),
        (Kind::Runpod, "RUNPOD_API_KEY"),
    ] {
        let desk = Desk::new(kind, vec![]);
        let ran = desk.run_with(None, "plan");
        ran.exits(1).says(&format!("{variable} is not set"));
    }
}

/// The setup of a machine is told over the agent's connection: no cloud needs to take it, and the one that keeps no log of its
/// machines shows why it failed like every other.
#[test]
fn a_setup_is_run_on_machines_of_clouds_and_one_that_fails_is_shown_and_paid_for_once() {
    for kind in [Kind::Vastai, Kind::Lambda, Kind::Runpod] {
        let desk = Desk::new(kind, vec![]);
        let setup = "count = 2\nsetup = \"echo the library is not there; exit 7\"";
        desk.edit("count = 2", setup);
        desk.run("apply --auto-approve")
            .exits(1)
            .says("failed: it exited with status 7")
            .says("| the library is not there");
        assert_eq!(
            desk.cloud.world.lock().machines.len(),
            2,
            "none beyond them"
        );
        desk.edit("exit 7", "exit 0");
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(2);
        desk.run("logs lease.node[1]")
            .exits(0)
            .says("setup: the library is not there");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Somebody copies the name of a machine of ours, or what is left of it.
#[test]
fn a_machine_that_only_looks_like_ours_is_shown_and_never_touched() {
    look_alike(Kind::Vastai);
    look_alike(Kind::Runpod);
    look_alike(Kind::Lambda);
}

fn look_alike(kind: Kind) {
    let desk = Desk::of(kind, vec![], SPEED, 1);
    desk.run("apply --auto-approve").exits(0);
    let ours = desk.there();
    desk.run("apply --auto-approve --state elsewhere").exits(0);
    let mut there = desk.there();
    there.retain(|machine| !ours.contains(machine));
    let [other] = there.as_slice() else {
        panic!("one machine of each state: {there:?}");
    };
    let name = desk.name(&ours[0], |_| {});
    desk.name(other, |named| *named = format!("{name}\u{1b}[2J-copy"));
    let told = format!("{other} (\"{name}\\u{{1b}}[2J-copy\", $");
    for plan in ["plan", "plan --refresh-only", "destroy --auto-approve"] {
        let ran = desk.run(plan);
        ran.exits(0).says(&told).says("never touched");
        assert!(!ran.text.contains('\u{1b}'), "{}", ran.text);
        let orphans = desk.run("orphans --json");
        orphans.exits(0).says("end it at the provider").says(other);
    }
    for verb in ["--release", "--adopt"] {
        let ran = desk.run(&format!("orphans {verb} {other}"));
        assert_ne!(ran.code, Some(0), "{}", ran.text);
        ran.says("it is not ours and is never touched");
    }
    assert_eq!(desk.there(), there);
    // Whoever made it knows it by its id.
    let ran = desk.run("destroy --auto-approve --state elsewhere");
    ran.exits(0).says("0 left at providers");
    assert!(desk.there().is_empty());
}
