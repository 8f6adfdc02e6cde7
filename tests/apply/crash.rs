//! A kill at every call: each request to the store and each call to provider and agents, before and after its effect.
//! What is left can always be read and resumed, both by the same plan and by a new one, and the resumed run may be
//! killed as well.

use stageline::provider::sim::CrashPoint;

use super::world::{Job, Report, TWO, Tool, World};

/// A world in which a job is about to be done.
struct Case {
    before: fn(&World),
    job: Job,
}

fn settled(world: &World) {
    let report = world.apply(TWO);
    assert!(report.summary.finished());
}

/// One more machine; one stage moves there.
fn moved() -> String {
    TWO.replace("count = 2", "count = 3")
        .replace("lease.box[1]", "lease.box[2]")
}

fn cases() -> [Case; 3] {
    [
        Case {
            before: |_| {},
            job: Job::Apply(TWO.to_owned()),
        },
        Case {
            before: settled,
            job: Job::Apply(moved()),
        },
        Case {
            before: settled,
            job: Job::Destroy,
        },
    ]
}

/// The same thing again, by the plan that was cut off.
fn resumed(job: &Job) -> Job {
    match job {
        Job::Apply(text) | Job::Resume(text) => Job::Resume(text.clone()),
        Job::Destroy => Job::Destroy,
    }
}

fn check_end(world: &World, job: &Job, report: &Report) {
    match job {
        Job::Apply(text) | Job::Resume(text) => world.check_settled(text, report),
        Job::Destroy => world.check_gone(report),
    }
}

/// How many points a run has when nobody kills it.
fn points(case: &Case) -> u64 {
    let world = World::new();
    (case.before)(&world);
    let crash = CrashPoint::never();
    let ended = world.run(&Tool::dying(crash.clone()), &case.job);
    let report = ended.expect("nobody kills it").expect("it runs");
    check_end(&world, &case.job, &report);
    crash.reached()
}

/// A world in which a job died at a point.
fn killed(case: &Case, at: u64) -> World {
    let world = World::new();
    (case.before)(&world);
    let died = world.run(&Tool::dying(CrashPoint::at(at)), &case.job);
    assert!(died.is_none(), "it was to die at {at}");
    world.check_books();
    world
}

/// The job is done in the end, whatever was left; then all can be destroyed.
fn completes(world: &World, job: &Job) {
    let report = world.command_of(job);
    check_end(world, job, &report);
    let report = world.destroy();
    world.check_gone(&report);
}

fn told<T>(what: &str, work: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    std::panic::catch_unwind(work).unwrap_or_else(|panic| {
        eprintln!("{what}");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn a_kill_at_any_call_is_followed_by_a_clean_end() {
    for (n, case) in cases().iter().enumerate() {
        let points = points(case);
        assert!(points > 40, "a run of {points} points is too short");
        for at in 1..=points {
            let anew = n != 1 || at % 2 == 0;
            if anew {
                told(
                    &format!("case {n}, killed at {at} of {points}, drafted anew"),
                    || {
                        completes(&killed(case, at), &case.job);
                    },
                );
            }
            if n == 0 || !anew {
                told(
                    &format!("case {n}, killed at {at} of {points}, resumed"),
                    || {
                        let world = killed(case, at);
                        let job = resumed(&case.job);
                        check_end(&world, &job, &world.command_of(&job));
                    },
                );
            }
        }
    }
}

#[test]
fn a_kill_of_the_resumed_run_is_followed_by_a_clean_end_too() {
    for (n, case) in cases().iter().enumerate() {
        let points = points(case);
        for first in (1..=points).step_by(11) {
            for second in (1 + first % 7..).step_by(13) {
                let again = if second % 2 == 0 {
                    case.job.clone()
                } else {
                    resumed(&case.job)
                };
                let what = format!("case {n}, killed at {first}, then at {second}, by {again:?}");
                let died = told(&what, || {
                    let world = killed(case, first);
                    let ended = world.run(&Tool::dying(CrashPoint::at(second)), &again);
                    world.check_books();
                    completes(&world, &again);
                    ended.is_none()
                });
                if !died {
                    break;
                }
            }
        }
    }
}
