//! The power goes off at each moment of a run: at each call to store, provider and agents, and between the parts of each
//! durable write. What was not synced is lost or half lost, the state is opened again, and the next run ends clean, also
//! when the power goes off in that one, too.
//!
//! `STAGELINE_TEST_EVERY=1` goes through every moment; by default only each so-manieth is looked at.

use std::sync::Arc;

use stageline::ambient::variable;
use stageline::core::unit::MicroDollars;
use stageline::provider::sim::{AccountSpec, CrashPoint};
use stageline::store::testing::{Disk, Loss, Syncs};

use super::world::{Job, PRICE, Report, TWO, Tool, World, shape, told};

/// One moment in this many is looked at. Prime, so that each part of a write has its turn.
const EVERY: usize = 7;

const LOSSES: [Loss; 4] = [Loss::Everything, Loss::Halves, Loss::Dice(1), Loss::Dice(2)];

fn every() -> usize {
    variable("STAGELINE_TEST_EVERY").map_or(EVERY, |every| every.parse().expect("a number"))
}

/// A world whose state is on a disk, with a provider that is soon sure.
fn new_world() -> (World, Disk) {
    let mut account = AccountSpec::new(vec![shape("a", PRICE)]);
    account.traits.request_timeout = std::time::Duration::from_secs(5);
    account.traits.late_commit_window = std::time::Duration::from_secs(5);
    let mut world = World::with(account);
    let disk = Disk::new(Syncs::All);
    world.objects = Arc::new(disk.clone());
    (world, disk)
}

/// Runs a job until the power goes off; false when it ended before.
fn cut(world: &World, disk: &Disk, job: &Job, at: u64, loss: Loss) -> bool {
    let crash = CrashPoint::at(at);
    let dies = crash.clone();
    disk.set_power(Some(Arc::new(move || dies.step())));
    let ended = world.run(&Tool::dying(crash), job);
    disk.set_power(None);
    if ended.is_some() {
        return false;
    }
    world.process(disk.power_cut(loss));
    world.check_books();
    true
}

fn check_end(world: &World, job: &Job, report: &Report) {
    match job {
        Job::Apply(text) | Job::Resume(text) => world.check_settled(text, report),
        Job::Destroy => world.check_gone(report),
    }
}

/// The job is done in the end as it is without a cut; then all can be destroyed, and nothing is billed any more.
fn completes(world: &World, job: &Job) {
    check_end(world, job, &world.command_of(job));
    world.check_gone(&world.destroy());
    let bill = world.sim.bill(&super::world::here());
    assert!(bill > MicroDollars::ZERO || matches!(job, Job::Destroy));
    world.clock.advance(std::time::Duration::from_secs(3600));
    assert_eq!(world.sim.bill(&super::world::here()), bill, "it goes on");
}

fn jobs() -> [(bool, Job, Job); 2] {
    let apply = Job::Apply(TWO.to_owned());
    [
        (false, apply, Job::Resume(TWO.to_owned())),
        (true, Job::Destroy, Job::Destroy),
    ]
}

#[test]
fn a_power_cut_at_any_moment_is_followed_by_a_clean_end() {
    for (settled, job, resumed) in jobs() {
        for (nth, loss) in LOSSES.into_iter().enumerate() {
            for at in (1 + nth as u64..).step_by(every()) {
                let goes_on = told(&format!("{job:?}, cut at {at}, {loss:?}"), || {
                    let (world, disk) = new_world();
                    if settled {
                        world.apply(TWO);
                    }
                    let cut = cut(&world, &disk, &job, at, loss);
                    completes(&world, if at % 2 == 0 { &job } else { &resumed });
                    cut
                });
                if !goes_on {
                    assert!(at > 80, "a run of {at} moments is too short");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_power_cut_of_the_resumed_run_is_followed_by_a_clean_end_too() {
    for (settled, job, resumed) in jobs() {
        for (first, second) in (1..).step_by(5 * every()).zip((1..200).step_by(23).cycle()) {
            let loss = LOSSES[usize::try_from((first + second) % 4).expect("few")];
            let goes_on = told(
                &format!("{job:?}, cut at {first}, then at {second}, {loss:?}"),
                || {
                    let (world, disk) = new_world();
                    if settled {
                        world.apply(TWO);
                    }
                    if !cut(&world, &disk, &job, first, loss) {
                        return false;
                    }
                    let again = if first % 2 == 0 { &job } else { &resumed };
                    cut(&world, &disk, again, second, loss);
                    completes(&world, again);
                    true
                },
            );
            if !goes_on {
                break;
            }
        }
    }
}
