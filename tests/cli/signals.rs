//! Ctrl-C and SIGTERM, once and twice, and two commands at once: nothing is lost, and the last lines say what is up.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::drift::command_topology;
use super::world::{Ran, World, finish, kill, until};

/// A topology whose stages load for ever, so that a run is surely under way.
fn endless() -> World {
    World::new(
        &command_topology("[\"sleep\", \"1000\"]")
            .replace("slots = 8", "slots = 8\nprice_per_hour = 0.5"),
    )
}

fn send(child: &Child, signal: Signal) {
    kill(i32::try_from(child.id()).expect("a number"), signal);
}

/// Both workers run, so both stages are being started.
fn both_load(world: &World) {
    until("both workers", || {
        let workers = world.processes();
        (workers
            .values()
            .filter(|args| args.starts_with("sleep"))
            .count()
            == 2)
            .then_some(())
    });
}

#[test]
fn one_signal_stops_in_order_and_says_what_is_up() {
    for signal in [Signal::INT, Signal::TERM] {
        let world = endless();
        let child = world.start("apply --auto-approve");
        both_load(&world);
        let sent = Instant::now();
        send(&child, signal);
        let ran = Ran::of("apply".to_owned(), finish(child));
        // The promise is 2 s; the rest is for a computer with much else to do.
        let took = sent.elapsed();
        assert!(took < Duration::from_millis(3500), "{signal:?}: {took:?}");
        ran.exits(130).says("interrupted");
        ran.says("lease.node[0] is up: machine sl-")
            .says("$0.50 per hour");
        ran.says("`stageline release lease.node[0]` ends it");
        ran.says("$1.00 per hour in all; `stageline destroy` ends everything of `demo`");
        world.agrees();
        world.run("status").exits(4);
        world.destroy();
    }
}

#[test]
fn two_signals_stop_at_once_and_lose_nothing() {
    let world = endless();
    let child = world.start("apply --auto-approve");
    both_load(&world);
    send(&child, Signal::INT);
    send(&child, Signal::TERM);
    let ran = Ran::of("apply".to_owned(), finish(child));
    ran.exits(130);
    world.agrees();
    world.destroy();
}

#[test]
fn the_second_of_two_at_once_is_told_who_is_at_work() {
    let world = endless();
    let child = world.start("apply --auto-approve");
    both_load(&world);
    for line in ["apply --auto-approve", "destroy --auto-approve"] {
        let ran = world.run(line);
        ran.exits(6)
            .says("`apply` by tester@")
            .says(&format!("process {}", child.id()))
            .says("hint:");
    }
    world.run("status").exits(4).says("is at work since");
    world.run("plan").exits(0);
    send(&child, Signal::INT);
    Ran::of("apply".to_owned(), finish(child)).exits(130);
    world.destroy();
}

#[test]
fn one_that_died_is_not_said_to_be_at_work() {
    let world = endless();
    let child = world.start("apply --auto-approve");
    both_load(&world);
    send(&child, Signal::KILL);
    finish(child);
    let ran = world.run("status");
    ran.exits(4).says("and died; what it began is written down");
    ran.says_not("is at work");
    world.destroy();
}
