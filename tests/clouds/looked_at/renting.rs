//! The same of what is rented: creates that are lost, prices that move, listings that lag, offers that are gone, accounts that
//! others use.

#![expect(
    clippy::disallowed_methods,
    reason = "how long it runs is said by the environment, and polling needs a pause"
)]

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stageline::core::unit::MicroDollars;
use stageline::sim::{Fault, Kind};

use super::super::desk::{Desk, SPEED, finish};
use super::{end, made, per_hour, set};

/// How often a create is lost at each, when nothing is said.
const RUNS: u32 = 25;

/// So many of them at a time: each waits for most of its time.
const AT_ONCE: usize = 5;

#[test]
fn a_create_that_fails_after_the_fact_makes_one_machine_at_vastai() {
    a_lost_create(Kind::Vastai);
}

#[test]
fn a_create_that_fails_after_the_fact_makes_one_machine_at_lambda() {
    a_lost_create(Kind::Lambda);
}

#[test]
fn a_create_that_fails_after_the_fact_makes_one_machine_at_runpod() {
    a_lost_create(Kind::Runpod);
}

fn a_lost_create(kind: Kind) {
    let runs = std::env::var("STAGELINE_RUNS").map_or(RUNS, |runs| runs.parse().expect("a number"));
    let runs: Vec<u32> = (0..runs).collect();
    for some in runs.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for run in some {
                scope.spawn(|| one_lost_create(kind, *run));
            }
        });
    }
}

fn one_lost_create(kind: Kind, run: u32) {
    // Two seconds of the real clock: whoever looks at once sees nothing.
    let faults = vec![
        Fault::of("create-500-after-commit").times(1),
        Fault::of("list-lag").times(1).seconds(1200),
    ];
    let desk = Desk::of(kind, faults, SPEED, 1);
    let ran = desk.run("apply --auto-approve");
    ran.exits(0)
        .says("try 1 is unresolved (")
        .says("status 500")
        .says("and may bill up to $1.00/h; watching the provider's listing until")
        .says("was found; it is kept")
        .says(&format!("is up, {} per hour", per_hour(&desk)));
    assert_eq!(made(&desk), 1, "one machine in run {run}");
    desk.agrees(1);
    end(&desk);
    assert_eq!(made(&desk), 1, "one machine in run {run}");
}

#[test]
fn a_price_that_moves_is_held_against_the_ceiling_at_vastai() {
    a_price_that_moves(Kind::Vastai);
}

#[test]
fn a_price_that_moves_is_held_against_the_ceiling_at_lambda() {
    a_price_that_moves(Kind::Lambda);
}

#[test]
fn a_price_that_moves_is_held_against_the_ceiling_at_runpod() {
    a_price_that_moves(Kind::Runpod);
}

/// Between a plan that was saved and its launch, and between the last look at an offer and its create.
fn a_price_that_moves(kind: Kind) {
    for factor in [1.01, 1.1] {
        for saved in [true, false] {
            let desk = Desk::of(kind, vec![], SPEED, 1);
            let ran = if saved {
                desk.run("plan --out one.plan.json").exits(0);
                desk.cloud.world.lock().price_factor = factor;
                desk.run("apply one.plan.json")
            } else {
                set(
                    &desk,
                    vec![Fault::of("price-rises").factor(factor).times(1)],
                );
                desk.run("apply --auto-approve")
            };
            ran.exits(0).says("is up");
            desk.run("leases").says(&format!("{}/h", per_hour(&desk)));
            desk.agrees(1);
            end(&desk);
        }
    }
    let dear = |desk: &Desk, line: &str, times: usize| {
        desk.run(line)
            .exits(7)
            .says("/h now, and its ceiling is $1.00/h")
            .says("raise `max_price_per_hour` of [offer.gpu], [lease.node] or [limits]");
        assert_eq!(made(desk), times);
        desk.agrees(0);
    };
    let desk = Desk::of(kind, vec![], SPEED, 1);
    desk.run("plan --out one.plan.json").exits(0);
    desk.cloud.world.lock().price_factor = 10.0;
    dear(&desk, "apply one.plan.json", 0);
    // No provider takes a maximum: what was made is given up again.
    let rises = vec![Fault::of("price-rises").factor(10.0).times(1)];
    let desk = Desk::of(kind, rises, SPEED, 1);
    dear(&desk, "apply --auto-approve", 1);
}

#[test]
fn a_listing_that_lags_makes_and_leaves_nothing_twice_at_vastai() {
    a_listing_that_lags(Kind::Vastai);
}

#[test]
fn a_listing_that_lags_makes_and_leaves_nothing_twice_at_lambda() {
    a_listing_that_lags(Kind::Lambda);
}

#[test]
fn a_listing_that_lags_makes_and_leaves_nothing_twice_at_runpod() {
    a_listing_that_lags(Kind::Runpod);
}

/// Two seconds of the real clock.
fn a_listing_that_lags(kind: Kind) {
    let desk = Desk::of(kind, vec![Fault::of("list-lag").seconds(120)], 60, 2);
    desk.run("apply --auto-approve").exits(0).says("is up");
    assert_eq!(made(&desk), 2);
    desk.agrees(2);
    desk.run("plan --detailed-exitcode").exits(0);
    end(&desk);
}

#[test]
fn a_destroy_right_after_a_create_leaves_nothing_at_vastai() {
    a_destroy_right_after_a_create(Kind::Vastai);
}

#[test]
fn a_destroy_right_after_a_create_leaves_nothing_at_lambda() {
    a_destroy_right_after_a_create(Kind::Lambda);
}

#[test]
fn a_destroy_right_after_a_create_leaves_nothing_at_runpod() {
    a_destroy_right_after_a_create(Kind::Runpod);
}

/// Stopped by Ctrl-C or killed as soon as the first machine is there, which no listing has yet.
fn a_destroy_right_after_a_create(kind: Kind) {
    for signal in [Signal::INT, Signal::KILL] {
        let desk = Desk::of(kind, vec![Fault::of("list-lag").seconds(120)], 60, 2);
        let apply = desk.command("apply --auto-approve");
        let apply = begun(&desk, apply);
        let pid = i32::try_from(apply.id()).expect("a number");
        kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("ours");
        let ran = finish(apply);
        if signal == Signal::INT {
            ran.exits(130)
                .says("stopped; what was begun is written down")
                .says(" per hour in all")
                .says("`stageline destroy` ends everything of `demo`");
        }
        end(&desk);
        assert!(desk.there().is_empty());
    }
}

/// A command that made a machine.
fn begun(desk: &Desk, mut command: std::process::Command) -> Child {
    let child = command.spawn().expect("the binary is there");
    let deadline = Instant::now() + Duration::from_secs(60);
    while made(desk) == 0 {
        assert!(Instant::now() < deadline, "nothing is made");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn the_fifth_offer_is_taken_when_four_fail_at_vastai() {
    the_fifth_offer(Kind::Vastai);
}

#[test]
fn the_fifth_offer_is_taken_when_four_fail_at_lambda() {
    the_fifth_offer(Kind::Lambda);
}

#[test]
fn the_fifth_offer_is_taken_when_four_fail_at_runpod() {
    the_fifth_offer(Kind::Runpod);
}

fn the_fifth_offer(kind: Kind) {
    let desk = Desk::of(kind, vec![Fault::of("capacity").times(4)], SPEED, 1);
    let ran = desk.run("apply --auto-approve");
    ran.exits(0)
        .says("(the next offer follows)")
        .says(&format!("is up, {} per hour", per_hour(&desk)));
    assert_eq!(ran.text.matches("(the next offer follows)").count(), 4);
    assert_eq!((asked(&desk), made(&desk)), (5, 1), "each once");
    desk.agrees(1);
    end(&desk);
    // More than may be tried: said with what may be done.
    let desk = Desk::of(kind, vec![Fault::of("capacity")], SPEED, 1);
    desk.run("apply --auto-approve")
        .exits(4)
        .says("`attempts` allows 5; raise it, or run apply again");
    assert_eq!((asked(&desk), made(&desk)), (5, 0), "each once");
    desk.agrees(0);
}

fn asked(desk: &Desk) -> u64 {
    desk.cloud.world.lock().requests["create"]
}

#[test]
fn eight_leases_in_a_storm_of_refusals_cause_none_of_it_at_vastai() {
    a_storm(Kind::Vastai);
}

#[test]
fn eight_leases_in_a_storm_of_refusals_cause_none_of_it_at_lambda() {
    a_storm(Kind::Lambda);
}

#[test]
fn eight_leases_in_a_storm_of_refusals_cause_none_of_it_at_runpod() {
    a_storm(Kind::Runpod);
}

/// Others use the account so much that every fifth request is too many, at a pace at which requests of ours would be counted.
fn a_storm(kind: Kind) {
    let any = Fault {
        chance: Some(0.2),
        ..Fault::of("rate-429-plain")
    };
    let creates = Fault::of("create-429").times(6);
    let desk = Desk::of(kind, vec![any, creates], 10, 8);
    let ran = desk.run("apply --auto-approve");
    ran.exits(0).says("status 429").says("per hour");
    assert_eq!(made(&desk), 8, "none too many");
    assert_eq!(desk.cloud.world.lock().too_soon, 0, "none of it by us");
    assert!(per_hour(&desk) > MicroDollars::ZERO);
    desk.agrees(8);
    set(&desk, vec![]);
    end(&desk);
    assert_eq!(desk.cloud.world.lock().too_soon, 0, "none of it by us");
}

#[test]
fn eight_leases_of_which_one_is_told_to_come_again_in_a_minute_get_up_at_vastai() {
    a_long_pause(Kind::Vastai);
}

#[test]
fn eight_leases_of_which_one_is_told_to_come_again_in_a_minute_get_up_at_lambda() {
    a_long_pause(Kind::Lambda);
}

#[test]
fn eight_leases_of_which_one_is_told_to_come_again_in_a_minute_get_up_at_runpod() {
    a_long_pause(Kind::Runpod);
}

/// The pause is longer than any of the others may wait whose turn has come: they take new turns, and none of them puts off the others
/// for ever.
fn a_long_pause(kind: Kind) {
    let busy = Fault::of("create-429").text("60").times(1);
    let desk = Desk::of(kind, vec![busy], 5, 8);
    desk.run("apply --auto-approve").exits(0);
    assert_eq!((asked(&desk), made(&desk)), (9, 8), "each once");
    assert_eq!(desk.cloud.world.lock().too_soon, 0, "none too soon");
    desk.agrees(8);
    end(&desk);
}
