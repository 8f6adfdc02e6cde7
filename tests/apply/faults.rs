//! Every kind of step against every kind of fault: the outcome says what happened and to which resource, the other
//! branches go on, and once the fault is mended the next run ends clean.

use std::time::Duration;

use stageline::ambient::Clock as _;
use stageline::core::event::Event;
use stageline::core::id::Address;
use stageline::core::journal::Verb as StepVerb;
use stageline::core::offer::Facts;
use stageline::core::resource::FailureClass;
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Side, SimMachine, Verb, When};

use super::world::{Job, PRICE, Report, TWO, Tool, World, facts, shape, told};

mod ends;

const MINUTE: Duration = Duration::from_secs(60);

/// What must come of a run under a fault.
enum Then {
    /// All steps are done all the same.
    Settles,
    /// This step of one resource fails for a reason of this class, and nothing is in doubt.
    Refused(StepVerb, FailureClass),
    /// This step of one resource may have acted.
    InDoubt(StepVerb),
}

fn report(world: &World, job: &Job) -> Report {
    world.command_of(job)
}

fn apply_job() -> Job {
    Job::Apply(TWO.to_owned())
}

/// A topology whose machines must have what the offers claim.
fn strict() -> String {
    TWO.replace(
        "provider = \"here\"\n",
        "provider = \"here\"\nwhere = \"cpus>=8, memory>=16\"\n",
    )
}

fn account() -> AccountSpec {
    let mut account = AccountSpec::new(vec![
        shape("a", PRICE),
        shape("b", PRICE.saturating_add(PRICE)),
        shape("c", PRICE.saturating_add(PRICE).saturating_add(PRICE)),
    ]);
    account.traits.late_commit_window = 10 * MINUTE;
    account.traits.visibility_delay = 2 * MINUTE;
    account
}

/// The run under a fault; what becomes of it; and that it ends clean once the fault is mended.
fn check(what: &str, text: &str, faults: FaultTable, then: &Then) -> World {
    told(what, || checked(text, faults, then))
}

fn checked(text: &str, faults: FaultTable, then: &Then) -> World {
    let world = World::with(account());
    world.faults(faults);
    let report = report(&world, &Job::Apply(text.to_owned()));
    check_outcome(&report, then);
    world.check_books();
    match then {
        Then::Settles => world.check_settled(text, &report),
        Then::Refused(..) | Then::InDoubt(_) => {
            world.faults(FaultTable::none());
            let report = world.apply(text);
            world.check_settled(text, &report);
        }
    }
    assert_eq!(world.ours().len(), 2);
    world
}

fn check_outcome(report: &Report, then: &Then) {
    let summary = &report.summary;
    let (verb, in_doubt) = match then {
        Then::Settles => return,
        Then::Refused(verb, _) => (*verb, false),
        Then::InDoubt(verb) => (*verb, true),
    };
    let [failed] = summary.failed.as_slice() else {
        panic!("one step fails: {summary:#?}");
    };
    assert_eq!(
        (failed.verb, failed.in_doubt),
        (verb, in_doubt),
        "{failed:?}"
    );
    if let Then::Refused(_, class) = then {
        assert_eq!(failed.cause.class, *class, "{failed:?}");
    }
    let address = failed.address.to_string();
    let blamed = |other: &Address| other.to_string() == address;
    for (_, _, by) in &summary.blocked {
        assert!(by.as_ref().is_some_and(blamed), "{summary:#?}");
    }
    assert!(summary.journal.is_none() && !summary.interrupted);
    // The other machine is as it should be.
    if failed.address.kind() == "lease" {
        let others = report.state.existing().filter_map(|(a, _)| a.lease());
        let ready = others
            .filter(|lease| lease.to_string() != address)
            .filter_map(|lease| report.state.lease(lease))
            .filter(|held| held.ready.is_some());
        assert_eq!(ready.count(), 1, "the other branch goes on: {summary:#?}");
    }
}

fn once(verb: Verb, fault: Fault) -> FaultTable {
    FaultTable::none().on(verb, When::Nth(1), fault)
}

fn always(verb: Verb, fault: Fault) -> FaultTable {
    FaultTable::none().on(verb, When::Always, fault)
}

#[test]
fn a_refused_create_moves_on_or_stops_its_branch() {
    for class in [FailureClass::Capacity, FailureClass::OfferGone] {
        let faults = once(Verb::Create, Fault::Refused(class));
        let world = check(&format!("{class:?}"), TWO, faults, &Then::Settles);
        assert_eq!(world.sim.count(Verb::Create), 3);
        assert_eq!(world.sim.machines().len(), 2);
    }
    for class in [
        FailureClass::Quota,
        FailureClass::Money,
        FailureClass::Auth,
        FailureClass::Config,
        FailureClass::Unknown,
    ] {
        let faults = once(Verb::Create, Fault::Refused(class));
        let then = Then::Refused(StepVerb::Acquire, class);
        let world = check(&format!("{class:?}"), TWO, faults, &then);
        assert_eq!(world.sim.machines().len(), 2);
    }
    // Too many requests are waited out.
    let faults = once(Verb::Create, Fault::Refused(FailureClass::Rate));
    let world = check("rate", TWO, faults, &Then::Settles);
    assert_eq!(world.sim.count(Verb::Create), 3);
    // All that is on the list is tried once each, then it is given up.
    let then = Then::Refused(StepVerb::Acquire, FailureClass::Capacity);
    let faults = FaultTable::none()
        .on(Verb::Create, When::Nth(1), Fault::CapacityGone)
        .on(Verb::Create, When::From(3), Fault::CapacityGone);
    let world = check("none left", TWO, faults, &then);
    let before = world.sim.count(Verb::Create);
    assert_eq!(
        before, 5,
        "three offers and one more machine, then a new one"
    );
}

#[test]
fn a_create_in_doubt_ends_with_one_machine() {
    let faults = [
        Fault::CreateErrorAfterCommit,
        Fault::CreateTimeoutAfterCommit,
        Fault::CreateCut,
        Fault::CreateLateCommit(MINUTE),
        Fault::CreateLateCommit(5 * MINUTE),
        Fault::CreateLateCommit(10 * MINUTE),
    ];
    for fault in faults {
        let what = fault.knob();
        for lag in [Duration::ZERO, 2 * MINUTE] {
            let faults = once(Verb::Create, fault.clone()).on(
                Verb::Create,
                When::Nth(1),
                Fault::ListLag(lag),
            );
            let world = check(what, TWO, faults, &Then::Settles);
            assert_eq!(
                world.sim.machines().len(),
                2,
                "{what}: nothing is made twice"
            );
            world.check_gone(&world.destroy());
        }
    }
}

#[test]
fn a_create_that_made_nothing_is_tried_again_after_the_horizon_only() {
    let world = check(
        "none",
        TWO,
        once(Verb::Create, Fault::CreateErrorNoCommit),
        &Then::Settles,
    );
    let calls = world.sim.calls();
    let creates: Vec<_> = calls
        .iter()
        .filter(|call| call.verb == Verb::Create)
        .collect();
    assert_eq!(creates.len(), 3);
    let waited = creates[2].at - creates[0].at;
    assert!(
        waited >= 12 * MINUTE + Duration::from_secs(30),
        "{waited:?}"
    );
    let world = check(
        "zero",
        TWO,
        once(Verb::Create, Fault::CreateWrongCount(0)),
        &Then::Settles,
    );
    assert_eq!(world.sim.machines().len(), 2);
}

#[test]
fn what_a_create_made_too_much_is_released() {
    for fault in [
        Fault::CreateWrongCount(2),
        Fault::CreateWrongCount(5),
        Fault::CreateRefusedWithId,
    ] {
        let world = check(fault.knob(), TWO, once(Verb::Create, fault), &Then::Settles);
        assert!(world.sim.machines().len() > 2);
    }
}

/// The second machine of a create is listed only when the first one is kept already.
#[test]
fn what_a_create_made_too_much_is_released_also_when_it_is_listed_late() {
    let world = World::new();
    world.faults(once(Verb::Create, Fault::CreateWrongCount(2)));
    let sim = world.sim.clone();
    let mut tool = Tool::new();
    tool.hook = std::sync::Arc::new(move |point| {
        if point.verb == Verb::Create && point.side == Side::After && point.call == 4 {
            let second = sim.machines().remove(1);
            let shown = Duration::from_secs(1);
            sim.alter(&second.id, |machine, now| machine.listed_from = now + shown);
        }
        std::ops::ControlFlow::Continue(())
    });
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    world.check_settled(TWO, &report);
    assert_eq!(world.sim.machines().len(), 3);
}

/// The end of a machine that is one too many is proven, too.
#[test]
fn an_extra_is_gone_only_when_the_listing_proves_it() {
    let faults = once(Verb::Create, Fault::CreateWrongCount(2));
    let faults = faults.on(Verb::Release, When::Until(3), Fault::TerminateNoop);
    let world = check("noop", TWO, faults, &Then::Settles);
    assert!(world.sim.count(Verb::Release) > 3);
}

/// The tool dies while a create is in doubt whose machine appears minutes later.
#[test]
fn destroy_waits_for_what_may_still_appear() {
    let world = World::with(account());
    world.faults(FaultTable::none().on(
        Verb::Create,
        When::Always,
        Fault::CreateLateCommit(9 * MINUTE),
    ));
    let mut tool = Tool::new();
    let token = tool.interrupt.clone();
    tool.hook = std::sync::Arc::new(move |point| {
        if point.verb == Verb::Create {
            token.cancel();
        }
        std::ops::ControlFlow::Continue(())
    });
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    assert!(report.summary.interrupted);
    assert_eq!(world.ours(), [], "they are still to come");
    world.check_gone(&world.destroy());
    world.clock.advance(60 * MINUTE);
    assert_eq!(world.ours(), []);
    assert_eq!(world.sim.machines().len(), 2);
}

/// An adapter that declares less than its provider takes: the extra comes when nobody looks for it any more.
#[test]
fn a_machine_that_comes_later_than_declared_is_found_by_destroy() {
    let world = World::new();
    world.faults(once(Verb::Create, Fault::CreateLateCommit(9 * MINUTE)));
    let report = world.apply(TWO);
    assert!(report.summary.finished());
    world.clock.advance(10 * MINUTE);
    assert_eq!(world.ours().len(), 3);
    world.check_gone(&world.destroy());
}

fn blindness() -> Vec<Fault> {
    vec![
        Fault::ListSuccessFalse,
        Fault::ListPageLost,
        Fault::ListTruncated,
        Fault::RateLimited(None),
        Fault::RateLimited(Some(Duration::from_secs(7))),
        Fault::AuthRevoked,
    ]
}

#[test]
fn a_blind_listing_is_no_empty_one() {
    for fault in blindness() {
        println!("{fault:?}");
        let faults = always(Verb::Find, fault.clone()).on(
            Verb::Create,
            When::Nth(1),
            Fault::CreateErrorAfterCommit,
        );
        let world = check("in doubt", TWO, faults, &Then::InDoubt(StepVerb::Acquire));
        assert_eq!(world.sim.machines().len(), 2, "nothing was rented blindly");
        // Neither is anything declared gone.
        let lost = world.ours()[0].id.clone();
        world.sim.vanish(&lost);
        world.faults(always(Verb::List, fault.clone()));
        let plan = world.next_plan(TWO);
        assert!(plan.is_empty(), "{:#?}", plan.changes);
        let faults = always(Verb::List, fault.clone()).on(Verb::Find, When::Always, fault);
        world.faults(faults);
        let report = world.destroy();
        let doubts = report
            .summary
            .failed
            .iter()
            .filter(|failed| failed.in_doubt);
        assert_eq!(doubts.count(), 2, "{:#?}", report.summary);
        assert!(!world.state().is_empty());
        world.faults(FaultTable::none());
        world.check_gone(&world.destroy());
    }
}

/// An end that cannot be proven is asked for again for about two minutes. Whoever waits is told at once why, for how long,
/// and then every now and then; in the end the machine stays on the books as one that may cost money.
#[test]
fn a_destroy_that_cannot_see_says_so_while_it_tries() {
    let world = World::new();
    world.apply(TWO);
    let faults = always(Verb::List, Fault::AuthRevoked);
    world.faults(faults.on(Verb::Find, When::Always, Fault::AuthRevoked));
    let before = world.clock.boottime();
    let report = world.destroy();
    let took = world.clock.boottime().saturating_sub(before);
    assert!(took >= 2 * MINUTE && took < 3 * MINUTE, "{took:?}");
    let doubts = report.summary.failed.iter();
    assert!(doubts.clone().all(|failed| failed.in_doubt));
    assert_eq!(doubts.count(), 2);
    for lease in ["lease.box[0]", "lease.box[1]"] {
        let of_it = |address: &Address| address.to_string() == lease;
        let mut retries = report.events.iter().filter_map(|event| {
            let Event::Retrying { address, cause, .. } = event else {
                return None;
            };
            of_it(address).then_some(&cause.message)
        });
        let told = retries.next().expect("it says what is in the way");
        assert!(told.contains("tried for 2m at most"), "{told}");
        assert_eq!(retries.next(), None, "once");
        let waits = report
            .events
            .iter()
            .filter(|event| matches!(event, Event::Waiting { address, .. } if of_it(address)));
        assert!(waits.count() > 10, "and that it still waits");
    }
    world.faults(FaultTable::none());
    world.check_gone(&world.destroy());
}

#[test]
fn nothing_is_rented_from_an_account_that_cannot_be_seen() {
    for fault in blindness() {
        let world = World::new();
        world.faults(always(Verb::Search, fault.clone()));
        let refused = world.run(&Tool::new(), &apply_job()).expect("it lives");
        assert!(refused.expect_err("no plan").0.contains("plan/blind"));
        // Too many requests are waited out.
        let then = if matches!(fault, Fault::RateLimited(_)) {
            Then::Settles
        } else {
            Then::Refused(StepVerb::Acquire, FailureClass::Unknown)
        };
        let world = check("quote", TWO, once(Verb::Quote, fault), &then);
        assert_eq!(world.sim.count(Verb::Create), 2);
    }
}

#[test]
fn an_offer_that_changed_is_compared_again() {
    // The quote is read between the plan and the create; only the first one is gone.
    let world = check(
        "gone",
        TWO,
        once(Verb::Quote, Fault::OfferGone),
        &Then::Settles,
    );
    assert_eq!(world.sim.machines().len(), 2);
}

/// The cheapest offers are not what was asked for, and the search answers them all the same.
#[test]
fn an_offer_that_breaks_the_filter_is_never_rented() {
    let mut account = account();
    for id in ["x", "y"] {
        let mut small = shape(id, MicroDollars(PRICE.0 / 2));
        small.facts.memory = Bytes::gib(2);
        account.shapes.push(small);
    }
    let world = World::with(account);
    world.faults(always(Verb::Search, Fault::OfferBreaksFilter));
    let report = world.apply(&strict());
    world.check_settled(&strict(), &report);
    let machines = world.sim.machines();
    assert_eq!(machines.len(), 2);
    let asked = |machine: &SimMachine| machine.measured.memory >= Bytes::gib(16);
    assert!(machines.iter().all(asked), "{machines:?}");
    world.check_gone(&world.destroy());
}

#[test]
fn a_machine_that_never_gets_ready_is_released_and_the_next_offer_follows() {
    let small = Facts {
        memory: Bytes::gib(2),
        ..facts()
    };
    let faults = [
        Fault::BootNever,
        Fault::AgentMute,
        Fault::BootDies(Duration::from_secs(2), "OCI error".to_owned()),
        Fault::Preempt(Duration::from_secs(2)),
        Fault::BootWrongFacts(Box::new(small.clone())),
        Fault::CreateOtherMachine(Box::new(small)),
        Fault::PricePerMille(20_000),
    ];
    for fault in faults {
        println!("{fault:?}");
        let world = World::with(account());
        world.faults(once(Verb::Create, fault));
        let report = world.apply(&strict());
        world.check_settled(&strict(), &report);
        assert_eq!(world.sim.machines().len(), 3);
        let state = world.state();
        let [bad] = state.bad.as_slice() else {
            panic!("it is noted: {:?}", state.bad);
        };
        assert!(bad.why.contains(&bad.lease.to_string()), "{bad:?}");
        let failed = |event: &&Event| matches!(event, Event::MachineFailed { goes_on: true, .. });
        assert_eq!(report.events.iter().filter(failed).count(), 1);
        world.check_gone(&world.destroy());
    }
}

/// One try for each apply: the plan that was cut off rents again when it is gone on with.
#[test]
fn a_machine_that_may_not_be_tried_again_is_released_all_the_same() {
    let text = strict().replace("count = 2\n", "count = 2\nattempts = 1\n");
    let world = World::with(account());
    world.faults(once(Verb::Create, Fault::BootNever));
    let report = world.apply(&text);
    check_outcome(
        &report,
        &Then::Refused(StepVerb::Await, FailureClass::Unknown),
    );
    assert_eq!(world.ours().len(), 1, "it costs nothing any more");
    let again = world.command_of(&Job::Resume(text.clone()));
    world.check_settled(&text, &again);
    assert_eq!(world.sim.machines().len(), 3);
    world.check_gone(&world.destroy());
}

#[test]
fn a_machine_that_needs_its_time_gets_it() {
    let slow = [
        Fault::BootSlow(15 * MINUTE),
        Fault::HostOffline(Duration::from_secs(1), 2 * MINUTE),
        Fault::AddressMissing,
        Fault::ListLag(2 * MINUTE),
        Fault::GetLag(2 * MINUTE),
        Fault::ServerClockOff(-7200),
        Fault::ServerClockOff(7200),
        Fault::Slow(Duration::from_secs(20)),
    ];
    for fault in slow {
        let world = check(fault.knob(), TWO, once(Verb::Create, fault), &Then::Settles);
        assert_eq!(world.sim.machines().len(), 2);
        world.check_gone(&world.destroy());
    }
}

/// Somebody else ends a machine while it is on its way: noticed long before the time for getting ready is up.
#[test]
fn a_machine_that_is_gone_is_not_waited_for_until_the_end() {
    let world = World::with(account());
    world.faults(once(Verb::Create, Fault::BootNever));
    let sim = world.sim.clone();
    let mut tool = Tool::new();
    tool.hook = std::sync::Arc::new(move |_| {
        for machine in sim.alive() {
            if machine.ready_at.is_none() && sim.count(Verb::Describe) > 20 {
                sim.vanish(&machine.id);
            }
        }
        std::ops::ControlFlow::Continue(())
    });
    let start = stageline::ambient::Clock::boottime(&world.clock);
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    let took = stageline::ambient::Clock::boottime(&world.clock) - start;
    assert!(took < 16 * MINUTE, "{took:?}");
    world.check_settled(TWO, &report);
}
