//! What will be looked at, at each simulator: accounts that cannot be seen, machines that are lost, machines that do not end.
//! Each says by its exit code and in words what happened, what it costs now and what to do; the bill is what the ledger says.

mod renting;

use stageline::core::unit::MicroDollars;
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, Ran, SPEED};

fn set(desk: &Desk, faults: Vec<Fault>) {
    desk.cloud.world.faults.replace(faults).expect("knobs");
}

/// What an hour of all machines costs that were ever there, as they were sold.
fn per_hour(desk: &Desk) -> MicroDollars {
    let inner = desk.cloud.world.lock();
    let machines = inner.machines.values();
    machines.map(|machine| machine.meter.per_hour()).sum()
}

/// How many there ever were.
fn made(desk: &Desk) -> usize {
    desk.cloud.world.lock().machines.len()
}

/// Ends everything and holds the bill against the ledger once more.
fn end(desk: &Desk) {
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers")
        .says("spent since");
    desk.agrees(0);
}

#[test]
fn another_accounts_key_is_said_by_every_verb_at_vastai() {
    another_accounts_key(Kind::Vastai);
}

#[test]
fn another_accounts_key_is_said_by_every_verb_at_lambda() {
    another_accounts_key(Kind::Lambda);
}

#[test]
fn another_accounts_key_is_said_by_every_verb_at_runpod() {
    another_accounts_key(Kind::Runpod);
}

fn another_accounts_key(kind: Kind) {
    let desk = Desk::new(kind, vec![]);
    desk.run("apply --auto-approve").exits(0);
    let costs = per_hour(&desk);
    let advice = "back into [provider.";
    for line in ["plan", "plan --detailed-exitcode", "apply --auto-approve"] {
        let ran = desk.run_with(Some("somebody-elses"), line);
        ran.exits(5)
            .says("nobody could tell whether its machine")
            .says(&format!("it may bill {costs}/h"))
            .says(advice);
    }
    desk.run_with(Some("somebody-elses"), "status")
        .exits(5)
        .says("the key is")
        .says(&format!("{costs} per hour"))
        .says(advice);
    desk.run_with(Some("somebody-elses"), "destroy --auto-approve")
        .exits(5)
        .says("lease.node[1] could not be proven gone")
        .says("it may still bill $")
        .says(advice);
    assert_eq!(made(&desk), 2, "none too many");
    desk.agrees(2);
    desk.run("plan --detailed-exitcode").exits(2);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    end(&desk);
}

#[test]
fn a_listing_that_says_no_is_no_listing_at_vastai() {
    a_listing_that_says_no(Kind::Vastai);
}

#[test]
fn a_listing_that_says_no_is_no_listing_at_lambda() {
    a_listing_that_says_no(Kind::Lambda);
}

#[test]
fn a_listing_that_says_no_is_no_listing_at_runpod() {
    a_listing_that_says_no(Kind::Runpod);
}

fn a_listing_that_says_no(kind: Kind) {
    let no = || vec![Fault::of("list-success-false")];
    let desk = Desk::of(kind, no(), SPEED, 1);
    desk.run("apply --auto-approve")
        .exits(5)
        .says("this listing is over")
        .says("nothing was rented, nothing is called gone, and what is recorded costs $0.00/h")
        .says("run the same command again");
    assert_eq!(made(&desk), 0, "nothing is created");
    set(&desk, vec![]);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    let costs = per_hour(&desk);
    set(&desk, no());
    for line in ["plan --detailed-exitcode", "apply --auto-approve"] {
        desk.run(line)
            .exits(5)
            .says("this listing is over")
            .says(&format!("it may bill {costs}/h"))
            .says("nothing was created, and nothing is called gone")
            .says("run the same command again");
    }
    desk.edit("count = 1", "count = 2");
    desk.run("apply --auto-approve")
        .exits(5)
        .says("this listing is over")
        .says(&format!("what is recorded costs {costs}/h"));
    desk.edit("count = 2", "count = 1");
    desk.run("status").exits(5).says("this listing is over");
    desk.run("destroy --auto-approve")
        .exits(5)
        .says("this listing is over")
        .says(&format!("it may still bill {costs}/h"))
        .says("run the same command again");
    assert_eq!(made(&desk), 1, "nothing is created");
    set(&desk, vec![]);
    end(&desk);
}

#[test]
fn an_instance_that_is_lost_while_it_serves_is_told_and_replaced_at_vastai() {
    lost(Kind::Vastai, stop, "its disk is billed on");
}

#[test]
fn an_instance_that_is_lost_while_it_serves_is_told_and_replaced_at_lambda() {
    lost(Kind::Lambda, stop, "the provider took it back");
}

#[test]
fn an_instance_that_is_lost_while_it_serves_is_told_and_replaced_at_runpod() {
    lost(Kind::Runpod, stop, "its disk is billed on");
}

#[test]
fn an_instance_whose_host_is_away_is_told_and_replaced_at_vastai() {
    lost(Kind::Vastai, take_away, "its host is away");
}

#[test]
fn an_instance_whose_host_is_away_is_told_and_replaced_at_lambda() {
    lost(
        Kind::Lambda,
        take_away,
        "calls it unhealthy, and bills it on",
    );
}

/// RunPod has no word for it: the pod is said to run, and nobody hears its agent. It may come back, so that it is kept.
#[test]
fn an_instance_whose_host_is_away_is_told_and_kept_at_runpod() {
    let desk = Desk::new(Kind::Runpod, vec![]);
    desk.run("apply --auto-approve").exits(0);
    let (there, costs) = (desk.there(), per_hour(&desk));
    take_away(&desk);
    desk.run("status").exits(4).says("does not answer");
    desk.run("plan")
        .exits(0)
        .says("its agent did not answer")
        .says("`stageline apply --replace lease.node[");
    desk.run("apply --auto-approve").exits(0);
    assert_eq!((desk.there(), per_hour(&desk)), (there, costs));
    come_back(&desk);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("ask Hello").exits(0);
    desk.agrees(2);
    end(&desk);
}

/// Its host is there again.
fn come_back(desk: &Desk) {
    let mut inner = desk.cloud.world.lock();
    for machine in inner.machines.values_mut() {
        machine.away = None;
    }
}

/// As the knob `preempt` does, at a moment that is known.
fn stop(desk: &Desk) {
    let now = desk.cloud.world.clock.now();
    let mut inner = desk.cloud.world.lock();
    let machine = inner.machines.values_mut().next().expect("one");
    machine.stopped_from = Some(now);
}

/// As the knob `host-offline` does.
fn take_away(desk: &Desk) {
    let now = desk.cloud.world.clock.now();
    let mut inner = desk.cloud.world.lock();
    let machine = inner.machines.values_mut().next().expect("one");
    machine.away = Some((now, u64::MAX));
}

/// What the first machine costs still: all of it where a cloud bills whatever it is in, else its disk, else nothing.
fn costs_still(desk: &Desk, kind: Kind, why: &str) -> MicroDollars {
    let inner = desk.cloud.world.lock();
    let meter = &inner.machines.values().next().expect("one").meter;
    let (all, disk) = (
        meter.per_hour(),
        MicroDollars(meter.per_hour().0 - meter.running_per_hour.0),
    );
    match (kind, why) {
        (Kind::Lambda, why) if why.contains("bills it on") => all,
        (Kind::Vastai, why) if why.contains("host is away") => MicroDollars::ZERO,
        (_, _) => disk,
    }
}

fn lost(kind: Kind, loses: fn(&Desk), why: &str) {
    let desk = Desk::new(kind, vec![]);
    desk.run("apply --auto-approve").exits(0);
    let (first, both) = (desk.there(), per_hour(&desk));
    loses(&desk);
    let price = costs_still(&desk, kind, why);
    let all = {
        let inner = desk.cloud.world.lock();
        let one = &inner.machines.values().next().expect("one").meter;
        MicroDollars(both.0 - one.per_hour().0 + price.0)
    };
    let costs = |ran: &Ran| {
        if price > MicroDollars::ZERO {
            ran.says(&format!("it costs {price}/h until it is released"));
        }
    };
    let ran = desk.run("status");
    ran.exits(4)
        .says(why)
        .says(&format!("{all} per hour"))
        .says("`stageline apply` releases it and rents another one");
    costs(&ran);
    let ran = desk.run("plan --detailed-exitcode");
    ran.exits(2)
        .says("is dead: ")
        .says(why)
        .says("] replace: its machine ");
    costs(&ran);
    desk.bill_is_as_counted();
    desk.run("apply --auto-approve").exits(0).says("is up");
    desk.agrees(2);
    assert_ne!(desk.there(), first);
    desk.run("ask Hello").exits(0);
    end(&desk);
}

#[test]
fn a_terminate_that_does_nothing_is_repeated_and_never_believed_at_vastai() {
    a_terminate_that_does_nothing(Kind::Vastai);
}

#[test]
fn a_terminate_that_does_nothing_is_repeated_and_never_believed_at_lambda() {
    a_terminate_that_does_nothing(Kind::Lambda);
}

#[test]
fn a_terminate_that_does_nothing_is_repeated_and_never_believed_at_runpod() {
    a_terminate_that_does_nothing(Kind::Runpod);
}

fn a_terminate_that_does_nothing(kind: Kind) {
    let desk = Desk::of(kind, vec![], SPEED, 1);
    desk.run("apply --auto-approve").exits(0);
    let costs = per_hour(&desk);
    set(&desk, vec![Fault::of("terminate-noop")]);
    desk.run("destroy --auto-approve")
        .exits(5)
        .says("lease.node[0] could not be proven gone")
        .says(&format!("it may still bill {costs}/h"))
        .says("run the same command again");
    desk.agrees(1);
    let twice = vec![Fault::of("terminate-noop").times(2)];
    set(&desk, twice);
    end(&desk);
    assert_eq!(desk.cloud.world.faults.counts()["terminate-noop"], 2);
}
