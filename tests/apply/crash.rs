//! A kill at every call: each request to the store and each call to provider and agents, before and after its effect.
//! What is left can always be read and resumed, both by the same plan and by a new one, and the resumed run may be
//! killed as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stageline::core::unit::MicroDollars;
use stageline::provider::sim::{AccountSpec, CrashPoint, Fault, FaultTable, Verb as Call, When};
use stageline::store::testing::{Fate, Verb};

use super::world::{Job, PRICE, Report, TWO, Tool, World, shape, told};

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

/// The first machine dies on its way up, so that the next offer is taken while it is being released.
fn dying(world: &World) {
    let dies = Fault::BootDies(Duration::from_secs(2), "broken".to_owned());
    let faults = FaultTable::none().on(Call::Create, When::Nth(1), dies);
    world.faults(faults.on(
        Call::Release,
        When::Nth(1),
        Fault::DeleteLate(Duration::from_secs(4)),
    ));
}

fn cases() -> [Case; 4] {
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
        Case {
            before: dying,
            job: Job::Apply(TWO.replace("gang = false\n", "")),
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

/// A provider that is soon sure, so that the many runs here look at it less often.
fn new_world() -> World {
    let mut account = AccountSpec::new(vec![shape("a", PRICE), shape("b", PRICE)]);
    account.traits.request_timeout = Duration::from_secs(5);
    account.traits.late_commit_window = Duration::from_secs(5);
    World::with(account)
}

/// How many points a run has when nobody kills it.
fn points(case: &Case) -> u64 {
    let world = new_world();
    (case.before)(&world);
    let crash = CrashPoint::never();
    let ended = world.run(&Tool::dying(crash.clone()), &case.job);
    let report = ended.expect("nobody kills it").expect("it runs");
    check_end(&world, &case.job, &report);
    crash.reached()
}

/// A world in which a job died at a point.
fn killed(case: &Case, at: u64) -> World {
    let world = new_world();
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

#[test]
fn a_kill_at_any_call_is_followed_by_a_clean_end() {
    for (n, case) in cases().iter().enumerate() {
        let points = points(case);
        assert!(points > 40, "a run of {points} points is too short");
        for at in 1..=points {
            let anew = n % 2 == 0 || at % 2 == 0;
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

/// A worker that a killed run may have started, and that the file no longer declares, is stopped by the next run.
#[test]
fn what_was_cut_off_and_is_no_longer_declared_does_not_run_on() {
    let bare = TWO.split("[pipeline.toy]").next().expect("text");
    let case = &cases()[0];
    for at in 1..=points(case) {
        told(&format!("killed at {at}"), || {
            let world = killed(case, at);
            world.check_settled(bare, &world.apply(bare));
            for machine in world.ours() {
                assert!(machine.agent.stages.is_empty(), "{:?}", machine.agent);
                assert!(machine.agent.exposures.is_empty(), "{:?}", machine.agent);
            }
        });
    }
}

/// The next command comes from another computer, whose wall clock differs by hours. What it shows as spent may be wrong by
/// these hours, and nothing else is.
#[test]
fn a_kill_at_any_call_is_followed_by_a_clean_end_on_a_computer_with_another_time() {
    const HOURS: i64 = 5;
    for (n, case) in cases().iter().enumerate() {
        for at in (1..=points(case)).step_by(3) {
            let hours = if at % 2 == 0 { HOURS } else { -HOURS };
            told(&format!("case {n}, killed at {at}, {hours} h"), || {
                let world = killed(case, at);
                world.clock.elsewhere(hours * 3600);
                world
                    .unsure
                    .set(MicroDollars(3 * HOURS.unsigned_abs() * PRICE.0));
                check_end(&world, &case.job, &world.command_of(&case.job));
                // And back.
                world.clock.elsewhere(-hours * 3600);
                world.check_gone(&world.destroy());
            });
        }
    }
}

#[test]
fn a_kill_of_the_resumed_run_is_followed_by_a_clean_end_too() {
    for (n, case) in cases().iter().enumerate() {
        let points = points(case);
        for first in (1..=points).step_by(17) {
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

/// The store loses one answer, refuses one request, or is full from some request on: the run copes or stops, nothing is
/// rented that is not written down, and the next run ends clean.
#[test]
fn a_store_that_fails_at_any_request_is_followed_by_a_clean_end() {
    let fates: [(Fate, bool); 4] = [
        (Fate::LoseAnswer, false),
        (Fate::Refuse, false),
        (Fate::Refuse, true),
        (Fate::Full, true),
    ];
    for (fate, lasts) in fates {
        for at in (0..).step_by(if lasts { 3 } else { 5 }) {
            let reached = Arc::new(AtomicBool::new(false));
            let world = new_world();
            let mut tool = Tool::new();
            tool.script = Arc::new({
                let (reached, fate) = (reached.clone(), fate.clone());
                move |request| {
                    let writes = !matches!(request.verb, Verb::Get | Verb::List);
                    let hit = request.index == at || (lasts && writes && request.index > at);
                    reached.fetch_or(hit, Ordering::SeqCst);
                    if hit { fate.clone() } else { Fate::Pass }
                }
            });
            let job = Job::Apply(TWO.to_owned());
            told(&format!("{fate:?} at {at}, lasting: {lasts}"), || {
                drop(world.run(&tool, &job).expect("nobody kills it"));
                world.check_books();
                completes(&world, &job);
            });
            if !reached.load(Ordering::SeqCst) {
                assert!(at > 30, "a run of {at} requests is too short");
                break;
            }
        }
    }
}
