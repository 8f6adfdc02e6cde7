//! A machine that never leaves its boot: it is given up by the deadline of that phase, and the next one serves.

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
