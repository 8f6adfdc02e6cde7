//! SIGSTOP of `apply` at every durable write and every call to a provider, also between what it has written down and the
//! call: the lock is taken away, a second one does the whole job, the first one wakes: it is fenced and says by whom, and no
//! machine is left that the state does not know.

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use super::world::{Ran, STUB, World, finish, kill, stopped, until};

/// Where the process is stopped; see `ambient::crash_point`.
const STOP_AT: &str = "STAGELINE_TEST_STOP_AT";

/// Cases at once.
const AT_ONCE: u32 = 4;

/// Runs the case of a point; false when it is not reached any more.
fn wakes_too_late(point: u32) -> bool {
    let world = World::new(STUB);
    let mut first = world.command(["apply", "--auto-approve"]);
    first.env(STOP_AT, point.to_string());
    first.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = first.spawn().expect("the binary is there");
    let pid = i32::try_from(first.id()).expect("a number");
    let reached = until("the first one to stop or end", || {
        if first.try_wait().expect("ours").is_some() {
            return Some(false);
        }
        stopped(pid).then_some(true)
    });
    if !reached {
        return false;
    }
    let unlocked = world.run("state unlock --auto-approve");
    unlocked.exits(0);
    let second = world.apply();
    world.agrees();
    kill(pid, Signal::CONT);
    let first = Ran::of(format!("apply, stopped at {point}"), finish(first));
    match first.code {
        // It had ended its run, or not begun one: the plan was carried out by then.
        Some(0) => {}
        Some(7) => {
            first.exits(7).says("changed after this plan was drafted");
        }
        _ => {
            let by = first.exits(6).says("fenced").says("`apply` by tester@");
            by.says("which began at").says("stageline plan");
        }
    }
    world.agrees();
    let settled = world.run("plan --detailed-exitcode");
    assert_eq!(settled.code, Some(0), "{first}\n{second}\n{settled}");
    world.destroy();
    true
}

/// Goes through `points` until one is not reached. Returns how many were.
fn at_points(points: impl Fn(u32) -> u32 + Sync) -> u32 {
    let (next, reached, over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let case = || {
            while over.load(Ordering::Relaxed) == 0 {
                let point = points(next.fetch_add(1, Ordering::Relaxed));
                if wakes_too_late(point) {
                    reached.fetch_add(1, Ordering::Relaxed);
                } else {
                    over.store(1, Ordering::Relaxed);
                }
            }
        };
        let cases: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(case)).collect();
        for case in cases {
            if let Err(panic) = case.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    reached.load(Ordering::Relaxed)
}

#[test]
fn a_run_that_slept_through_a_takeover_is_fenced_and_leaves_nothing() {
    let reached = at_points(|n| 2 + 5 * n);
    assert!(
        reached >= 8,
        "only {reached} points: is the seam still there?"
    );
}

#[test]
#[ignore = "takes minutes: the same at every point"]
fn a_run_that_slept_at_any_point_is_fenced_and_leaves_nothing() {
    at_points(|n| n + 1);
}

#[test]
fn a_lock_is_taken_away_without_an_id_and_only_when_there_is_one() {
    let world = World::new(STUB);
    world
        .run("state unlock")
        .exits(0)
        .says("nobody holds the lock of `demo`");
    let mut first = world.command(["apply", "--auto-approve"]);
    first
        .env(STOP_AT, "12")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let first = first.spawn().expect("the binary is there");
    let pid = i32::try_from(first.id()).expect("a number");
    until("it to stop", || stopped(pid).then_some(()));
    let held = world.run("apply --auto-approve");
    held.exits(6)
        .says("`apply` by tester@")
        .says("is at work since")
        .says(&format!("kill {pid}"))
        .says("stageline state unlock");
    // Nobody is there to be asked.
    world.run("state unlock").exits(1).says("--auto-approve");
    world
        .run("state unlock --auto-approve")
        .exits(0)
        .says("is free; it was: `apply` by tester@");
    world.run("state unlock").exits(0).says("nobody holds");
    kill(pid, Signal::KILL);
    finish(first);
    // What is no lock any more is taken away too, and a dead one needs no unlocking.
    world.write("state/demo/lock.json", "{");
    world.run("state unlock").exits(0).says("not readable");
    world.apply();
    world.destroy();
}
