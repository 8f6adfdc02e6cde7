//! A machine is ended only while it is the one that was shown, and only a listing proves it.

use std::sync::Arc;

use stageline_core::unit::{MicroDollars, Timestamp};

use super::*;
use crate::ambient::FakeClock;
use crate::provider::sim::{AccountSpec, Fault, FaultTable, Verb, When, World};

const KEY: &str = "sl-0101010101010101-abcdef01-g1a1";

fn account(faults: FaultTable) -> (FakeClock, World, Name, MachineId) {
    let clock = FakeClock::auto(Timestamp::UNIX_EPOCH);
    let world = World::new(Arc::new(clock.clone()));
    let name: Name = "cloud".parse().expect("a name");
    world.account(&name, AccountSpec::new(Vec::new()).faults(faults));
    let machine = world.plant(&name, KEY, MicroDollars(1));
    (clock, world, name, machine)
}

async fn ended(
    faults: FaultTable,
    change: impl Fn(&World, &MachineId),
) -> (Result<(), String>, usize) {
    let (clock, world, name, machine) = account(faults);
    let provider = world.provider(&name);
    let shown = provider
        .describe(&machine)
        .await
        .expect("seen")
        .expect("there");
    change(&world, &machine);
    let done = end((&name, &provider), &shown, &clock).await;
    (done, world.alive().len())
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_the_listing_proves_it() {
    let on = |fault| FaultTable::none().on(Verb::Release, When::Until(2), fault);
    for faults in [
        FaultTable::none(),
        on(Fault::TerminateNoop),
        on(Fault::TerminateErrorNoCommit),
        on(Fault::TerminateErrorAfterCommit),
        on(Fault::DeleteLate(Duration::from_secs(20))),
    ] {
        let (done, alive) = ended(faults.clone(), |_, _| {}).await;
        assert_eq!((done, alive), (Ok(()), 0), "{faults:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_proven_is_said() {
    let blind = FaultTable::none().on(Verb::List, When::Always, Fault::ListTruncated);
    let (done, alive) = ended(blind, |_, _| {}).await;
    assert!(done.is_err_and(|why| why.contains("cannot see")));
    assert_eq!(alive, 1, "nobody could see what would be ended");
    let noop = FaultTable::none().on(Verb::Release, When::Always, Fault::TerminateNoop);
    let (done, _) = ended(noop, |_, _| {}).await;
    assert!(done.is_err_and(|why| why.contains("still listed")));
}

#[tokio::test(start_paused = true)]
async fn a_machine_with_another_name_by_now_is_left_alone() {
    let rename = |world: &World, machine: &MachineId| {
        world.alter(machine, |machine, _| machine.label = "precious".to_owned());
    };
    let (done, alive) = ended(FaultTable::none(), rename).await;
    assert!(done.is_err_and(|why| why.contains("another name")));
    assert_eq!(alive, 1);
}
