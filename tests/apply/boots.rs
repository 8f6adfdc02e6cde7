//! A machine on its way: what is seen of it before it is up, how long it may take, and a gang's time together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stageline::ambient::Clock;
use stageline::core::event::Event;
use stageline::core::offer::{Facts, Gpu, Supply};
use stageline::core::unit::Bytes;
use stageline::provider::PhaseLimit;
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Shape, SimMachine, Verb, When};

use super::failover::{MINUTE, asks, first_failure, launched, text, watched};
use super::world::{Job, PRICE, Report, World, facts, here, shape};

const SECOND: Duration = Duration::from_secs(1);

/// How often a machine was looked at.
fn looks(world: &World, machine: &str) -> usize {
    let calls = world.sim.calls();
    let looks = calls.iter().filter(|call| call.verb == Verb::Describe);
    looks.filter(|call| call.subject == machine).count()
}

fn cards(model: &str, count: usize) -> Facts {
    let card = Gpu {
        model: model.to_owned(),
        vram: Bytes::gib(24),
    };
    Facts {
        gpus: vec![card; count],
        ..facts()
    }
}

/// The first machine, once it is there for so long: something is done to it, once.
fn meanwhile(
    world: &World,
    text: &str,
    after: Duration,
    change: impl Fn(&mut SimMachine, Duration) + Send + Sync + 'static,
) -> Report {
    let (sim, clock) = (world.sim.clone(), world.clock.clone());
    let done = AtomicBool::new(false);
    watched(world, &Job::Apply(text.to_owned()), move || {
        let machines = sim.alive();
        let Some(first) = machines.first() else {
            return;
        };
        let old = clock.boottime() >= first.made_at + after;
        if old && !done.swap(true, Ordering::SeqCst) {
            sim.alter(&first.id, &change);
        }
    })
}

/// What is billed at ten times the price, or is another machine by its own record, is not paid for until it is up.
#[test]
fn a_price_and_a_record_that_are_wrong_end_a_boot_at_once() {
    let two = "gpu=rtx_4090, gpus=2";
    let cases = [
        ("", Fault::PricePerMille(20_000), "it costs $2"),
        (
            two,
            Fault::CreateOtherMachine(Box::new(cards("RTX 3090", 2))),
            "gpu=rtx4090 (it has 2 × RTX 3090)",
        ),
        (
            two,
            Fault::CreateOtherMachine(Box::new(cards("RTX 4090", 1))),
            "gpus=2 (it has 1)",
        ),
    ];
    for (wanted, fault, words) in cases {
        let mut account = asks(2);
        for shape in &mut account.shapes {
            shape.facts = cards("RTX 4090", 2);
        }
        let world = World::with(account);
        let first = When::Nth(1);
        let faults = FaultTable::none().on(Verb::Create, first, fault);
        world.faults(faults.on(Verb::Create, first, Fault::BootNever));
        let provider = "provider = \"here\"\n";
        let text = text(1, "").replacen(provider, &format!("{provider}where = \"{wanted}\"\n"), 1);
        let report = world.apply(&text);
        world.check_settled(&text, &report);
        let (cause, _) = first_failure(&report).expect("it is given up");
        assert!(cause.message.contains(words), "{cause}");
        assert!(looks(&world, "sim-000001") <= 2);
        assert_eq!(world.state().bad.len(), 1, "its host is noted");
    }
    // A record that does not say what it has is not held against it.
    let mut account = asks(1);
    account.shapes[0].facts = cards("RTX 4090", 2);
    let world = World::with(account);
    let silent = Fault::CreateOtherMachine(Box::new(facts()));
    let measured = Fault::BootWrongFacts(Box::new(cards("RTX 4090", 2)));
    let faults = FaultTable::none().on(Verb::Create, When::Nth(1), silent);
    world.faults(faults.on(Verb::Create, When::Nth(1), measured));
    let text = text(1, "").replacen(
        "provider = \"here\"\n",
        "provider = \"here\"\nwhere = \"gpu=rtx_4090, gpus=2\"\n",
        1,
    );
    world.check_settled(&text, &world.apply(&text));
    assert_eq!(world.sim.count(Verb::Create), 1);
}

#[test]
fn one_that_others_end_while_it_boots_is_noticed_at_once() {
    let world = World::with(asks(2));
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), Fault::BootNever));
    let text = text(1, "");
    let start = world.clock.boottime();
    let report = meanwhile(&world, &text, 30 * SECOND, |machine, now| {
        machine.ends_at = Some(now + 60 * SECOND);
    });
    world.check_settled(&text, &report);
    let (cause, _) = first_failure(&report).expect("it is given up");
    assert!(cause.message.contains("ended by somebody else"), "{cause}");
    assert_eq!(world.state().bad, [], "its host did nothing wrong");
    let took = world.clock.boottime() - start;
    assert!(took < 2 * MINUTE, "{took:?}");
}

/// Once a machine was listed, its absence counts from when listings are no later than they may be; before, a create may still have
/// its effect.
#[test]
fn one_that_was_listed_and_is_gone_is_not_waited_for_as_one_that_never_was() {
    let late = 2 * MINUTE;
    let account = || {
        let mut account = asks(2);
        account.traits.visibility_delay = late;
        account
    };
    let text = text(1, "");
    let at = |world: &World, report: &Report, why: &str| {
        let (cause, _) = first_failure(report).expect("it is given up");
        assert!(cause.message.contains(why), "{cause}");
        let failed = looks(world, "sim-000001");
        let calls = world.sim.calls();
        let mut all = calls.iter().filter(|call| call.verb == Verb::Describe);
        let first = all.next().expect("it was looked at").at;
        let last = all.nth(failed - 2).expect("more than once").at;
        last - first
    };
    let world = World::with(account());
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), Fault::BootNever));
    let report = meanwhile(&world, &text, 30 * SECOND, |machine, now| {
        machine.ends_at = Some(now);
    });
    world.check_settled(&text, &report);
    let took = at(&world, &report, "does not know it any more");
    assert!(took >= late && took < late + 40 * SECOND, "{took:?}");
    // Not known by its id yet: that may last as long as a create may be late.
    let world = World::with(account());
    let never = Fault::GetLag(60 * MINUTE);
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), never));
    let report = world.apply(&text);
    let took = at(&world, &report, "never listed it");
    assert!(took >= late + 90 * SECOND, "{took:?}");
}

#[test]
fn an_account_that_cannot_be_seen_has_a_deadline_and_is_no_fault_of_the_machine() {
    let mut account = asks(1);
    account.traits.phase_timeout = 5 * MINUTE;
    let world = World::with(account);
    world.faults(
        FaultTable::none()
            .on(Verb::Create, When::Always, Fault::BootNever)
            .on(Verb::Describe, When::From(3), Fault::ListTruncated),
    );
    let start = world.clock.boottime();
    let report = world.apply(&text(1, ""));
    let (cause, _) = first_failure(&report).expect("it is given up");
    assert!(cause.message.contains("nothing was seen of it"), "{cause}");
    let took = world.clock.boottime() - start;
    assert!(took < 7 * MINUTE, "{took:?}");
    assert_eq!(world.state().bad, []);
    assert_eq!(world.ours(), [], "it is ended");
}

/// A look that fails now and then makes no phase longer; and a deadline for the whole does away with none for a phase.
#[test]
fn a_phase_ends_in_time_whatever_is_said_of_the_whole_and_seen_between() {
    let mut account = asks(2);
    account.traits.phases = vec![PhaseLimit::new("loading", 3 * MINUTE)];
    account.traits.phase_timeout = 2 * MINUTE;
    for keys in ["", "acquire_timeout = \"20m\"", "acquire_timeout = \"2h\""] {
        let world = World::with(account.clone());
        world.faults(
            FaultTable::none()
                .on(Verb::Create, When::Nth(1), Fault::BootNever)
                .on(Verb::Describe, When::Percent(30), Fault::ListTruncated),
        );
        let text = text(1, keys);
        let start = world.clock.boottime();
        let report = world.apply(&text);
        assert!(report.summary.finished(), "{keys}: {:#?}", report.summary);
        let (cause, _) = first_failure(&report).expect("it is given up");
        assert!(cause.message.contains("within 180 s: loading"), "{cause}");
        let took = world.clock.boottime() - start;
        assert!(took < 5 * MINUTE, "{keys}: {took:?}");
    }
    // One that nobody knows has a deadline too.
    let world = World::with(account);
    let away = Fault::HostOffline(Duration::ZERO, 1000 * MINUTE);
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), away));
    let text = text(1, "");
    let report = world.apply(&text);
    world.check_settled(&text, &report);
    let (cause, _) = first_failure(&report).expect("it is given up");
    assert!(cause.message.contains("within 120 s: offline"), "{cause}");
}

#[test]
fn a_machine_has_as_long_as_its_shape_takes() {
    for (count, tries) in [(8, 1), (1, 2)] {
        let mut account = asks(2);
        for shape in &mut account.shapes {
            shape.facts = cards("H100", count);
        }
        account.traits.acquire_timeout = 40 * MINUTE;
        account.traits.phase_timeout = 40 * MINUTE;
        let world = World::with(account);
        world.quick.set(Some(15 * MINUTE));
        let slow = Fault::BootSlow(25 * MINUTE);
        world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), slow));
        let text = text(1, "");
        world.check_settled(&text, &world.apply(&text));
        assert_eq!(world.sim.count(Verb::Create), tries, "{count} GPUs");
    }
}

/// What the file does not say is the longest that one machine may take, with all that fails on the way.
#[test]
fn a_gang_has_a_deadline_that_nobody_wrote() {
    for (keys, whole) in [("", 20), ("acquire_timeout = \"30m\"", 30)] {
        let mut account = asks(9);
        account.traits.phases = vec![PhaseLimit::new("loading", 14 * MINUTE)];
        let world = World::with(account);
        world.faults(FaultTable::none().on(Verb::Create, When::From(2), Fault::BootNever));
        let start = world.clock.boottime();
        let report = world.apply(&text(2, keys));
        assert!(!report.summary.finished());
        assert_eq!(world.ours(), [], "one is as good as none");
        world.check_books();
        let took = world.clock.boottime() - start;
        let whole = whole * MINUTE;
        assert!(took >= whole && took < whole + 2 * MINUTE, "{took:?}");
        let told = report.summary.failed.iter().any(|failed| {
            let message = &failed.cause.message;
            message.contains("the longest that one may take (`gang_timeout`)")
        });
        assert!(told, "{:#?}", report.summary.failed);
        assert!(launched(&report).len() > 2, "another one was tried before");
    }
}

/// Waiting for something to rent is no part of a boot.
#[test]
fn the_clock_of_a_gang_that_waits_for_capacity_starts_with_its_first_machine() {
    let text = text(2, "wait_for_capacity = \"2h\"\ngang_timeout = \"10m\"");
    let world = World::with(AccountSpec::new(vec![]));
    let (clock, sim) = (world.clock.clone(), world.sim.clone());
    let start = clock.boottime();
    let many = || Shape {
        supply: Supply::Many(9),
        ..shape("late", PRICE)
    };
    let report = watched(&world, &Job::Apply(text.clone()), move || {
        if clock.boottime() > start + 60 * MINUTE {
            sim.account(&here(), AccountSpec::new(vec![many()]));
        }
    });
    world.check_settled(&text, &report);
    assert_eq!(world.ours().len(), 2);
    let failed = |event: &Event| matches!(event, Event::MachineFailed { .. });
    assert!(!report.events.iter().any(failed));
}
