//! A machine that never leaves its boot: it is given up by the deadline of that phase, and the next one serves. One that is only slow is
//! waited for.

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};

fn check(kind: Kind, phase: &str) {
    let never = Fault::of("boot-never").times(1);
    let desk = Desk::of(kind, vec![never], SPEED, 1);
    let why = format!("it was not beyond this phase within 15 s: {phase}");
    desk.run("apply --auto-approve").exits(0).says(&why);
    desk.agrees(1);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn a_boot_that_never_ends_is_given_up_at_vastai() {
    check(Kind::Vastai, "loading its image 12 %");
}

#[test]
fn a_boot_that_never_ends_is_given_up_at_lambda() {
    check(Kind::Lambda, "booting");
}

#[test]
fn a_boot_that_never_ends_is_given_up_at_runpod() {
    check(Kind::Runpod, "starting its container");
}

/// As slow as a simulator makes it where nobody says how slow: 25 minutes. At Lambda only a machine with many GPUs may be.
#[test]
fn a_boot_that_is_only_slow_is_waited_for() {
    std::thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || {
                let desk = Desk::of(kind, vec![Fault::of("boot-slow")], 60, 1);
                if kind == Kind::Lambda {
                    desk.edit("gpu=a10|rtx_6000", "gpus>=8");
                    desk.edit("max_price_per_hour = 1.00", "max_price_per_hour = 99.00");
                    for offer in desk.cloud.world.lock().offers.values_mut() {
                        offer.taken = false;
                    }
                }
                desk.run("apply --auto-approve").exits(0).says("is up");
                let made = desk.cloud.world.lock().machines.len();
                assert_eq!(made, 1, "{kind:?}: the first is kept");
                desk.agrees(1);
                desk.run("destroy --auto-approve").exits(0);
                desk.agrees(0);
            });
        }
    });
}
