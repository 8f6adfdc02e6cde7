//! Another account's key: its listing is complete, trusted and empty, and proves nothing. Whatever is asked under it,
//! no machine is taken to be gone, none is rented in the place of one, and the message names both accounts.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stageline::core::resource::FailureClass;
use stageline::core::state::Seen;
use stageline::observe;
use stageline::provider::sim::{Fault, FaultTable, Verb, When};

use super::world::{Job, Report, TWO, Tool, World, here, told};

/// From that call of each verb on, the key is another account's, whose listing is empty.
fn other_key(from: u64) -> FaultTable {
    FaultTable::none().on_any(When::From(from), Fault::OtherAccount)
}

/// What it says of each failure.
fn says_so(report: &Report) {
    assert!(!report.summary.failed.is_empty(), "{:#?}", report.summary);
    for failed in &report.summary.failed {
        let text = format!("{} {:?}", failed.cause.message, failed.cause.hint);
        for word in ["account here", "account somebody-else"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(failed.in_doubt, "{failed:?}");
    }
}

#[test]
fn a_destroy_with_another_accounts_key_ends_nothing_and_claims_nothing() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(Duration::from_secs(3600));
    world.faults(other_key(1));
    let report = world.destroy();
    says_so(&report);
    assert_eq!(world.ours().len(), 2, "they run");
    assert_eq!(world.state().existing().count(), 2, "and are on the books");
    world.check_ledger();
    world.faults(FaultTable::none());
    world.check_gone(&world.destroy());
    world.check_ledger();
}

#[test]
fn a_plan_with_another_accounts_key_takes_no_machine_for_gone() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(Duration::from_secs(3600));
    world.faults(other_key(1));
    let state = world.state();
    let seen = world.process(observe::look(
        &state,
        &world.providers(),
        None,
        &world.clock,
    ));
    assert_eq!(seen.leases.len(), 2);
    for seen in seen.leases.values() {
        let Seen::Unknown(cause) = seen else {
            panic!("{seen:?}");
        };
        assert_eq!(cause.class, FailureClass::Auth);
        assert!(cause.message.contains("somebody-else"), "{}", cause.message);
        let hint = cause.hint.as_deref().unwrap_or_default();
        assert!(hint.contains("same command"), "{hint}");
    }
    let plan = world.next_plan(TWO);
    assert!(plan.is_empty(), "{:#?}", plan.changes);
    assert!(
        plan.notes.iter().any(|note| note.contains("account")),
        "{:?}",
        plan.notes
    );
    world.faults(FaultTable::none());
    world.check_settled(TWO, &world.apply(TWO));
    world.check_gone(&world.destroy());
}

/// A create whose answer was lost, looked for with another account's key: for hours the listings are empty, and yet the try
/// stays open.
#[test]
fn a_try_in_doubt_is_not_closed_by_another_accounts_listing() {
    let world = World::new();
    let faults = FaultTable::none().on(Verb::Create, When::Always, Fault::CreateErrorAfterCommit);
    let blind = faults.on(Verb::Find, When::Always, Fault::OtherAccount).on(
        Verb::List,
        When::Always,
        Fault::OtherAccount,
    );
    world.faults(blind.on(Verb::Account, When::From(3), Fault::OtherAccount));
    says_so(&world.apply(TWO));
    let open = |world: &World| {
        let state = world.state();
        let tries = state
            .resources
            .values()
            .map(|recorded| recorded.attempts.len());
        tries.sum::<usize>()
    };
    assert_eq!(open(&world), 2);
    world.faults(other_key(1));
    says_so(&world.destroy());
    assert_eq!(open(&world), 2);
    assert_eq!(world.sim.count(Verb::Create), 2, "nothing is rented again");
    world.faults(FaultTable::none());
    world.check_settled(TWO, &world.apply(TWO));
    world.check_gone(&world.destroy());
}

/// The key is changed before each third call in turn, in an apply whose machine fails and in a destroy.
#[test]
fn a_key_that_changes_at_any_call_loses_no_machine() {
    for ends in [false, true] {
        for at in (1..).step_by(3) {
            let world = World::new();
            if ends {
                world.apply(TWO);
            }
            let dies = Fault::BootDies(Duration::from_secs(1), "broken".to_owned());
            world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), dies));
            let (sim, passed) = (world.sim.clone(), AtomicU64::new(0));
            let changed = Arc::new(AtomicBool::new(false));
            let mut tool = Tool::new();
            tool.hook = Arc::new({
                let changed = changed.clone();
                move |_| {
                    if passed.fetch_add(1, Ordering::SeqCst) + 1 == at {
                        sim.set_faults(&here(), other_key(1));
                        changed.store(true, Ordering::SeqCst);
                    }
                    ControlFlow::Continue(())
                }
            });
            let job = if ends {
                Job::Destroy
            } else {
                Job::Apply(TWO.to_owned())
            };
            // It may be refused before it begins.
            let _ = world.run(&tool, &job);
            told(&format!("before call {at}, destroy: {ends}"), || {
                world.check_books();
                world.faults(FaultTable::none());
                let mut report = world.apply(TWO);
                if !report.summary.finished() {
                    report = world.apply(TWO);
                }
                world.check_settled(TWO, &report);
                world.check_gone(&world.destroy());
                world.check_ledger();
            });
            if !changed.load(Ordering::SeqCst) {
                break;
            }
        }
    }
}
