//! `kill -9` of the real binary while it rents and ends machines over HTTP: the next command finishes or ends the job, the
//! simulator has what the state says, and nothing twice.
//!
//! `STAGELINE_KILLS=500` kills as often; without it a few times.

use std::time::Duration;

use stageline::sim::Kind;

use super::desk::{Desk, finish};

/// Cases at once.
const AT_ONCE: u32 = 2;

/// Without being asked for more.
const KILLS: u32 = 8;

/// Where the process dies; see `ambient::crash_point`.
const DIE_AT: &str = "STAGELINE_TEST_DIE_AT";

/// An apply of this topology has about so many points.
const POINTS: u32 = 90;

fn kills() -> u32 {
    #[expect(
        clippy::disallowed_methods,
        reason = "asked for by whoever runs the tests"
    )]
    let asked = std::env::var("STAGELINE_KILLS").ok();
    asked.and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

/// Every other case dies at a point, the others at some moment.
fn die(desk: &Desk, command: &str, case: u32) {
    // Spread over all points, and over the first seconds.
    let spread = case.wrapping_mul(2_654_435_761) >> 8;
    let mut command = desk.command(command);
    if case.is_multiple_of(2) {
        command.env(DIE_AT, (spread % POINTS + 1).to_string());
        finish(command.spawn().expect("the binary is there"));
    } else {
        let mut child = command.spawn().expect("the binary is there");
        #[expect(clippy::disallowed_methods, reason = "the moment is what is tried")]
        std::thread::sleep(Duration::from_millis(u64::from(spread % 3000)));
        // It may have ended by itself.
        child.kill().ok();
        finish(child);
    }
}

fn case(kind: Kind, case: u32) {
    let desk = Desk::new(kind, vec![]);
    if case % 4 < 2 {
        die(&desk, "apply --auto-approve", case);
        if case.is_multiple_of(3) {
            die(&desk, "apply --auto-approve", case + 1);
        }
    } else {
        desk.run("apply --auto-approve").exits(0);
        die(&desk, "destroy --auto-approve", case);
    }
    if case % 8 < 6 {
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(2);
    }
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn whatever_kills_it_nothing_is_left_and_nothing_is_twice() {
    kill_at(Kind::Vastai);
}

#[test]
fn whatever_kills_it_at_lambda_nothing_is_left_and_nothing_is_twice() {
    kill_at(Kind::Lambda);
}

#[test]
fn whatever_kills_it_at_runpod_nothing_is_left_and_nothing_is_twice() {
    kill_at(Kind::Runpod);
}

fn kill_at(kind: Kind) {
    let next = std::sync::atomic::AtomicU32::new(0);
    let all = kills();
    let work = || {
        loop {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if number >= all {
                return;
            }
            let went = std::panic::catch_unwind(|| case(kind, number));
            assert!(went.is_ok(), "case {number}");
        }
    };
    std::thread::scope(|scope| {
        let cases: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        for case in cases {
            if let Err(panic) = case.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
