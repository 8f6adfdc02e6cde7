//! Every fault that a provider can show against every call that can show it: create, find, list, describe, release. Under
//! each, the run says truly whether all is done; nothing is forgotten, nothing is sent twice; and once the fault is over,
//! the next run ends clean, and what was ended is billed no more.
//!
//! A fault that is not in the table fails the test below, and a new one does not compile until it has a number.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::time::Duration;

use stageline::core::offer::Facts;
use stageline::core::resource::FailureClass;
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Verb, When};

use super::world::{Job, PRICE, TWO, World, facts, here, shape};

const MINUTE: Duration = Duration::from_secs(60);

/// Calls of a provider that may act or that prove something. Offers are looked at in `faults`.
const VERBS: [Verb; 5] = [
    Verb::Create,
    Verb::Find,
    Verb::List,
    Verb::Describe,
    Verb::Release,
];

/// How many kinds of faults there are: one more than the highest number below.
const KINDS: usize = 42;

/// Each kind has its number, so that none is forgotten.
fn number(fault: &Fault) -> usize {
    match fault {
        Fault::CreateErrorAfterCommit => 0,
        Fault::CreateTimeoutAfterCommit => 1,
        Fault::CreateCut => 2,
        Fault::CreateErrorNoCommit => 3,
        Fault::CreateLateCommit(_) => 4,
        Fault::CreateRefusedWithId => 5,
        Fault::CreateWrongCount(_) => 6,
        Fault::RateLimited(_) => 7,
        Fault::ListLag(_) => 8,
        Fault::GetLag(_) => 9,
        Fault::ListGhost(_) => 10,
        Fault::ListSuccessFalse => 11,
        Fault::ListPageLost => 12,
        Fault::ListTruncated => 13,
        Fault::BootNever => 14,
        Fault::BootSlow(_) => 15,
        Fault::BootDies(..) => 16,
        Fault::BootWrongFacts(_) => 17,
        Fault::AgentMute => 18,
        Fault::AddressMissing => 19,
        Fault::OfferGone => 20,
        Fault::CapacityGone => 21,
        Fault::PricePerMille(_) => 22,
        Fault::PriceLater(..) => 23,
        Fault::Refused(_) => 24,
        Fault::AuthRevoked => 25,
        Fault::OtherAccount => 26,
        Fault::TerminateNoop => 27,
        Fault::TerminateErrorAfterCommit => 28,
        Fault::TerminateErrorNoCommit => 29,
        Fault::Preempt(_) => 30,
        Fault::HostOffline(..) => 31,
        Fault::ServerClockOff(_) => 32,
        Fault::Slow(_) => 33,
        Fault::OfferBreaksFilter => 34,
        Fault::CreateOtherMachine(_) => 35,
        Fault::DeleteLate(_) => 36,
        Fault::Unreachable => 37,
        Fault::CutAfterEffect => 38,
        Fault::AgentRefuses(..) => 39,
        Fault::WorkerFails(_) => 40,
        Fault::WrongAnswer(_) => 41,
    }
}

/// What a run under a fault comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// All is done all the same.
    Done,
    /// It stops, and says so.
    Stops,
}

use Then::{Done, Stops};

/// A fault, and what comes of it at each call that can show it: when it hits the first call, and when it hits all.
type Row = (Fault, Vec<(Verb, Then, Then)>);

fn small() -> Box<Facts> {
    Box::new(Facts {
        memory: Bytes::gib(2),
        ..facts()
    })
}

fn reads(first: Then, all: Then) -> Vec<(Verb, Then, Then)> {
    vec![
        (Verb::Find, first, all),
        // A release is proven by name and by id: it needs no listing of everything.
        (Verb::List, Done, Done),
        (Verb::Describe, first, all),
    ]
}

fn create(first: Then, all: Then) -> Vec<(Verb, Then, Then)> {
    vec![(Verb::Create, first, all)]
}

fn release(first: Then, all: Then) -> Vec<(Verb, Then, Then)> {
    vec![(Verb::Release, first, all)]
}

fn every(fault: Fault, create: (Then, Then), reads_all: Then, release_all: Then) -> Row {
    let mut at = vec![(Verb::Create, create.0, create.1)];
    at.extend(reads(Done, reads_all));
    at.push((Verb::Release, Done, release_all));
    (fault, at)
}

/// The faults of creating, booting and pricing: they hit a create.
fn of_creates() -> Vec<Row> {
    vec![
        (Fault::CreateErrorAfterCommit, create(Done, Done)),
        (Fault::CreateTimeoutAfterCommit, create(Done, Done)),
        (Fault::CreateCut, create(Done, Done)),
        (Fault::CreateErrorNoCommit, create(Done, Stops)),
        (Fault::CreateLateCommit(5 * MINUTE), create(Done, Done)),
        (Fault::CreateRefusedWithId, create(Done, Stops)),
        (Fault::CreateWrongCount(0), create(Done, Stops)),
        (Fault::CreateWrongCount(3), create(Done, Done)),
        (Fault::ListLag(2 * MINUTE), create(Done, Done)),
        (Fault::GetLag(2 * MINUTE), create(Done, Done)),
        (Fault::BootNever, create(Done, Stops)),
        (Fault::BootSlow(15 * MINUTE), create(Done, Done)),
        (
            Fault::BootDies(MINUTE / 30, "OCI error".to_owned()),
            create(Done, Stops),
        ),
        (Fault::BootWrongFacts(small()), create(Done, Stops)),
        (Fault::AgentMute, create(Done, Stops)),
        (Fault::AddressMissing, create(Done, Done)),
        (Fault::OfferGone, create(Done, Stops)),
        (Fault::CapacityGone, create(Done, Stops)),
        (Fault::PricePerMille(20_000), create(Done, Stops)),
        (Fault::PricePerMille(1_010), create(Done, Done)),
        (
            Fault::PriceLater(MINUTE, MicroDollars(900_000)),
            create(Done, Done),
        ),
        (Fault::Preempt(MINUTE / 30), create(Done, Stops)),
        (
            Fault::HostOffline(MINUTE / 60, 2 * MINUTE),
            create(Done, Done),
        ),
        (Fault::ServerClockOff(-7200), create(Done, Done)),
        (Fault::ServerClockOff(7200), create(Done, Done)),
        (Fault::CreateOtherMachine(small()), create(Done, Stops)),
    ]
}

fn of_reads_and_releases() -> Vec<Row> {
    vec![
        (Fault::ListSuccessFalse, reads(Done, Stops)),
        (Fault::ListPageLost, reads(Done, Stops)),
        (Fault::ListTruncated, reads(Done, Stops)),
        (Fault::TerminateNoop, release(Done, Stops)),
        (Fault::TerminateErrorAfterCommit, release(Done, Done)),
        (Fault::TerminateErrorNoCommit, release(Done, Stops)),
        (Fault::ListGhost(3 * MINUTE), release(Done, Done)),
        (Fault::DeleteLate(3 * MINUTE), release(Done, Done)),
        (Fault::DeleteLate(60 * MINUTE), release(Done, Stops)),
    ]
}

fn of_all() -> Vec<Row> {
    let mut rows = vec![
        every(Fault::RateLimited(None), (Done, Stops), Stops, Stops),
        every(
            Fault::RateLimited(Some(Duration::from_secs(7))),
            (Done, Stops),
            Stops,
            Stops,
        ),
        every(Fault::AuthRevoked, (Stops, Stops), Stops, Stops),
        every(
            Fault::Slow(Duration::from_secs(20)),
            (Done, Done),
            Done,
            Done,
        ),
    ];
    for class in [
        FailureClass::Quota,
        FailureClass::Money,
        FailureClass::Auth,
        FailureClass::Config,
        FailureClass::Unknown,
    ] {
        rows.push((Fault::Refused(class), create(Stops, Stops)));
    }
    rows
}

/// Those that no call of the table can show: of offers and of agents, which `faults` has, and what adapters must see.
fn elsewhere() -> Vec<Fault> {
    vec![
        Fault::OfferBreaksFilter,
        Fault::Unreachable,
        Fault::CutAfterEffect,
        Fault::AgentRefuses(String::new(), String::new()),
        Fault::WorkerFails(String::new()),
        Fault::WrongAnswer(String::new()),
        // Who asks with another account's key sees an empty list: each adapter compares the account first.
        Fault::OtherAccount,
    ]
}

fn rows() -> Vec<Row> {
    [of_creates(), of_reads_and_releases(), of_all()].concat()
}

fn new_world() -> World {
    let mut account = AccountSpec::new(vec![
        shape("a", PRICE),
        shape("b", PRICE.times(2)),
        shape("c", PRICE.times(3)),
    ]);
    account.traits.late_commit_window = 10 * MINUTE;
    account.traits.visibility_delay = 2 * MINUTE;
    World::with(account)
}

/// A topology whose machines must have what the offers claim.
fn text() -> String {
    TWO.replace(
        "provider = \"here\"\n",
        "provider = \"here\"\nwhere = \"cpus>=8, memory>=16\"\n",
    )
}

/// The run under the fault, and what follows when it is over. Returns what the run came to.
fn story(fault: &Fault, verb: Verb, when: When) -> Then {
    let world = new_world();
    let ends = matches!(verb, Verb::List | Verb::Release);
    if ends {
        world.apply(&text());
    }
    let mut faults = FaultTable::none().on(verb, when, fault.clone());
    if verb == Verb::Find {
        // Nobody looks for what is not in doubt.
        faults = faults.on(Verb::Create, When::Nth(1), Fault::CreateErrorAfterCommit);
    }
    world.faults(faults);
    let asked = world.sim.calls().len();
    let job = if ends {
        Job::Destroy
    } else {
        Job::Apply(text())
    };
    let report = world.command_of(&job);
    let calls = world.sim.calls().split_off(asked);
    let met = calls
        .iter()
        .any(|call| call.verb == verb && call.faults.contains(&fault.knob()));
    assert!(met, "no call met it");
    world.check_books();
    let finished = report.summary.finished();
    if finished && ends {
        world.check_gone(&report);
    }
    // Phantoms: what is recorded as held and ready is there, or the run did not say that all is done.
    if finished && !ends {
        let up: BTreeSet<_> = world.ours().into_iter().map(|m| m.id).collect();
        assert_eq!(up, super::world::receipts(&world.state()));
    }
    for failed in &report.summary.failed {
        let blames = failed.cause.message.contains(&failed.address.to_string());
        assert!(blames || !failed.cause.message.is_empty(), "{failed:?}");
    }
    world.faults(FaultTable::none());
    // A machine that somebody took away, or whose price rose, is found now.
    world.clock.advance(2 * MINUTE);
    let mut report = world.apply(&text());
    if !report.summary.finished() {
        report = world.apply(&text());
    }
    world.check_settled(&text(), &report);
    assert_eq!(world.ours().len(), 2);
    world.check_gone(&world.destroy());
    let bill = world.sim.bill(&here());
    world.clock.advance(60 * MINUTE);
    assert_eq!(world.sim.bill(&here()), bill, "something is billed still");
    if finished { Done } else { Stops }
}

#[test]
fn every_fault_is_in_the_table_at_every_call_that_can_show_it() {
    let mut kinds: BTreeSet<usize> = rows().iter().map(|(fault, _)| number(fault)).collect();
    kinds.extend(elsewhere().iter().map(number));
    let all: BTreeSet<usize> = (0..KINDS).collect();
    assert_eq!(kinds, all, "a kind of fault is not in the table");
    let mut verbs = BTreeMap::new();
    for (fault, at) in rows() {
        for (verb, _, _) in at {
            assert!(VERBS.contains(&verb));
            verbs
                .entry(verb)
                .or_insert_with(Vec::new)
                .push(fault.knob());
        }
    }
    for verb in VERBS {
        assert!(verbs[&verb].len() >= 6, "{verb:?}: {:?}", verbs[&verb]);
    }
}

#[test]
fn every_fault_at_every_call_is_said_and_leaves_nothing() {
    let mut wrong = Vec::new();
    for (fault, at) in rows() {
        for (verb, first, all) in at {
            for (when, then) in [(When::Nth(1), first), (When::Always, all)] {
                let what = format!("{fault:?} at {verb:?}, {when:?}");
                match catch_unwind(|| story(&fault, verb, when)) {
                    Ok(came) if came == then => {}
                    Ok(came) => wrong.push(format!("{what}: {came:?}, not {then:?}")),
                    Err(_) => wrong.push(format!("{what}: something is forgotten, see above")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
