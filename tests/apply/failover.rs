//! Getting a machine when the first offers fail: each offer once, within the money, and nothing that failed stays.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use stageline::ambient::Clock;
use stageline::core::event::Event;
use stageline::core::journal::Verb as StepVerb;
use stageline::core::offer::{Facts, Gpu, Supply};
use stageline::core::resource::{Cause, FailureClass};
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::provider::PhaseLimit;
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Shape, Side, Verb, When};

use super::world::{Job, PRICE, Report, Tool, World, facts, here, shape};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// So many machines of one table that serve one pipeline, with these more keys.
pub(super) fn text(count: u32, keys: &str) -> String {
    let stages: Vec<String> = (0..count)
        .map(|i| format!("{{ on = \"lease.box[{i}]\" }}"))
        .collect();
    format!(
        r#"
version = 1
name = "test"

[provider.here]
kind = "local"

[offer.slot]
provider = "here"
max_price_per_hour = 1.0

[lease.box]
offers = ["slot"]
count = {count}
{keys}

[pipeline.toy]
engine = "stub"
stages = [{}]
"#,
        stages.join(", ")
    )
}

/// Asks that only one can take, at rising prices.
pub(super) fn asks(n: u64) -> AccountSpec {
    let asks = (1..=n).map(|i| Shape {
        supply: Supply::One,
        ..shape(&format!("ask-{i}"), PRICE.times(i))
    });
    AccountSpec::new(asks.collect())
}

pub(super) fn dies() -> Fault {
    Fault::BootDies(Duration::from_secs(2), "OCI error".to_owned())
}

fn events(report: &Report) -> Vec<&Event> {
    report.events.iter().collect()
}

fn gave_up(report: &Report) -> usize {
    let failed = |event: &&&Event| matches!(event, Event::MachineFailed { .. });
    events(report).iter().filter(failed).count()
}

/// Quotes in the order in which they were launched.
pub(super) fn launched(report: &Report) -> Vec<String> {
    let quotes = report.events.iter().filter_map(|event| {
        let Event::Launching { quote, .. } = event else {
            return None;
        };
        Some(quote.to_string())
    });
    quotes.collect()
}

pub(super) fn watched(world: &World, job: &Job, look: impl Fn() + Send + Sync + 'static) -> Report {
    let mut tool = Tool::new();
    tool.hook = Arc::new(move |_| {
        look();
        ControlFlow::Continue(())
    });
    let ended = world.run(&tool, job).expect("it lives");
    ended.unwrap_or_else(|refusal| panic!("{}", refusal.0))
}

#[test]
fn the_fifth_of_five_offers_is_used_when_four_fail_each_in_its_own_way() {
    let small = Facts {
        memory: Bytes::gib(2),
        ..facts()
    };
    let world = World::with(asks(5));
    world.faults(
        FaultTable::none()
            .on(Verb::Create, When::Nth(1), Fault::OfferGone)
            .on(Verb::Create, When::Nth(2), dies())
            .on(
                Verb::Create,
                When::Nth(3),
                Fault::BootWrongFacts(Box::new(small)),
            )
            .on(Verb::Create, When::Nth(4), Fault::BootNever),
    );
    let text = text(1, "");
    let report = world.apply(&text);
    world.check_settled(&text, &report);
    let all = ["ask-1", "ask-2", "ask-3", "ask-4", "ask-5"];
    assert_eq!(launched(&report), all, "each once");
    assert_eq!(gave_up(&report), 3);
    let state = world.state();
    assert_eq!(state.bad.len(), 3, "{:?}", state.bad);
    assert_eq!(state.ended.len(), 3, "what failed is in the history");
    // A later plan takes none of them.
    world.check_gone(&world.destroy());
    let plan = world.next_plan(&text);
    let terms = plan.leases.values().next().expect("a lease");
    let ids = terms.shortlist.iter().map(|c| c.quote.id.to_string());
    assert_eq!(ids.collect::<Vec<_>>(), ["ask-1", "ask-5"]);
    assert!(plan.notes.iter().any(|note| note.contains("avoided")));
}

#[test]
fn no_more_offers_are_tried_than_allowed() {
    let world = World::with(asks(9));
    world.faults(FaultTable::none().on(Verb::Create, When::Always, dies()));
    let report = world.apply(&text(1, "attempts = 3"));
    assert_eq!(launched(&report), ["ask-1", "ask-2", "ask-3"]);
    let [failed] = report.summary.failed.as_slice() else {
        panic!("{:#?}", report.summary);
    };
    assert!(failed.cause.message.contains("OCI error"), "{failed:?}");
    assert_eq!(world.ours(), [], "nothing of it costs money any more");
    world.check_books();
}

#[test]
fn too_many_requests_of_others_are_waited_out_and_are_no_tries() {
    let text = text(1, "attempts = 2\nacquire_timeout = \"20m\"");
    for verb in [Verb::Create, Verb::Quote] {
        let world = World::with(asks(2));
        let busy = Fault::RateLimited(Some(Duration::from_secs(7)));
        let faults = (1..=5).fold(FaultTable::none(), |faults, n| {
            faults.on(verb, When::Nth(n), busy.clone())
        });
        world.faults(faults.on(Verb::Create, When::Nth(6), dies()));
        let report = world.apply(&text);
        world.check_settled(&text, &report);
        let told = |event: &&&Event| matches!(event, Event::Retrying { .. });
        assert_eq!(events(&report).iter().filter(told).count(), 1, "told once");
        if verb == Verb::Create {
            // The one that died was the first try, and the next offer the second.
            let mut all = vec!["ask-1"; 6];
            all.push("ask-2");
            assert_eq!(launched(&report), all);
            assert!(world.sim.count(Verb::Find) >= 5, "looked for before each");
        }
    }
}

#[test]
fn an_account_that_others_use_too_much_for_ever_ends_the_step_in_time() {
    let world = World::with(asks(2));
    world.faults(FaultTable::none().on(Verb::Create, When::Always, Fault::RateLimited(None)));
    let start = world.clock.boottime();
    let report = world.apply(&text(1, "acquire_timeout = \"20m\""));
    let [failed] = report.summary.failed.as_slice() else {
        panic!("{:#?}", report.summary);
    };
    assert_eq!(failed.cause.class, FailureClass::Rate);
    assert!(failed.cause.message.contains("nothing was rented"));
    let took = world.clock.boottime() - start;
    assert!(
        (15 * MINUTE..25 * MINUTE).contains(&took),
        "it took {took:?}"
    );
    assert!(world.sim.count(Verb::Create) < 100, "no storm");
    assert_eq!(world.ours(), [], "nothing was made");
    world.check_books();
}

/// A provider that says no and makes a machine all the same: that one is ended before the next create.
#[test]
fn what_a_create_made_that_was_too_soon_is_ended() {
    let world = World::with(asks(2));
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), Fault::RateLimited(None)));
    let sim = world.sim.clone();
    let mut tool = Tool::new();
    tool.hook = Arc::new(move |point| {
        let calls = sim.calls();
        let finds = calls.iter().filter(|call| call.verb == Verb::Find);
        if point.verb == Verb::Find && point.side == Side::Before && finds.count() <= 1 {
            let asked = calls.last().expect("this one");
            sim.plant(&here(), &format!("{}g1a1", asked.subject), PRICE);
        }
        ControlFlow::Continue(())
    });
    let text = text(1, "");
    let job = Job::Apply(text.clone());
    let report = world.run(&tool, &job).expect("it lives").expect("it runs");
    world.check_settled(&text, &report);
    let ended = |event: &Event| matches!(event, Event::ExtraReleased { .. });
    assert!(report.events.iter().any(ended), "it was seen and ended");
}

/// The offers change between the plan and the launch.
fn changed(world: &World, now: AccountSpec) -> Tool {
    let sim = world.sim.clone();
    let mut tool = Tool::new();
    tool.hook = Arc::new(move |point| {
        if point.verb == Verb::Quote && point.side == Side::Before {
            sim.account(&here(), now.clone());
        }
        ControlFlow::Continue(())
    });
    tool
}

#[test]
fn when_the_shortlist_is_gone_a_fresh_quote_is_taken_within_the_ceiling() {
    let later = |prices: &[u64]| {
        let shapes = prices.iter().map(|cents| Shape {
            supply: Supply::One,
            ..shape(&format!("new-{cents}"), MicroDollars(cents * 10_000))
        });
        AccountSpec::new(shapes.collect())
    };
    let run = |keys: &str, prices: &[u64]| {
        let world = World::with(asks(2));
        let tool = changed(&world, later(prices));
        let job = Job::Apply(text(1, keys));
        let report = world.run(&tool, &job).expect("it lives").expect("it runs");
        (world, report)
    };
    let (world, report) = run("", &[120, 90, 95]);
    world.check_settled(&text(1, ""), &report);
    let mut launches = report.events.iter();
    assert!(launches.any(
        |event| matches!(event, Event::Launching { quote, requoted: true, .. } if quote.0 == "new-90")
    ));
    for (keys, prices) in [("", &[120][..]), ("requote = \"never\"", &[90])] {
        let (world, report) = run(keys, prices);
        let [failed] = report.summary.failed.as_slice() else {
            panic!("{:#?}", report.summary);
        };
        assert_eq!(failed.cause.class, FailureClass::OfferGone);
        assert_eq!(world.sim.count(Verb::Create), 0, "{keys}");
    }
}

#[test]
fn with_nothing_on_offer_apply_waits_as_long_as_it_may() {
    let text = text(1, "wait_for_capacity = \"1h\"");
    let world = World::with(AccountSpec::new(vec![]));
    let clock = world.clock.clone();
    let start = clock.boottime();
    let sim = world.sim.clone();
    let report = watched(&world, &Job::Apply(text.clone()), move || {
        if clock.boottime() > start + 20 * MINUTE {
            sim.account(&here(), asks(1));
        }
    });
    world.check_settled(&text, &report);
    let told = |event: &Event| matches!(event, Event::Waiting { what, .. } if what.contains("asked again"));
    assert!(report.events.iter().any(told));
    let searches = world.sim.count(Verb::Search);
    assert!(
        (15..60).contains(&searches),
        "{searches} questions in 20 min"
    );

    let world = World::with(AccountSpec::new(vec![]));
    let start = world.clock.boottime();
    let report = world.apply(&text);
    let waited = world.clock.boottime() - start;
    assert!(waited >= 60 * MINUTE && waited < 63 * MINUTE, "{waited:?}");
    let [failed] = report.summary.failed.as_slice() else {
        panic!("{:#?}", report.summary);
    };
    assert_eq!(failed.cause.class, FailureClass::Capacity);
    assert!(failed.cause.message.contains("within 1h"), "{failed:?}");
    assert!(world.state().is_empty());
}

#[test]
fn no_wait_goes_on_beyond_what_a_machine_that_is_there_may_live_or_the_topology_may_spend() {
    let text = |keys: &str| {
        text(
            2,
            &format!("gang = false\nwait_for_capacity = \"24h\"\n{keys}"),
        )
    };
    let waits = |text: &str, why: &str, hint: &str| {
        let world = World::with(asks(1));
        let start = world.clock.boottime();
        let report = world.apply(text);
        let waited = world.clock.boottime() - start;
        let mut failed = report.summary.failed.iter();
        let told = failed.any(|failed| {
            let advice = failed.cause.hint.as_deref().unwrap_or_default();
            failed.cause.message.contains(why) && advice.starts_with(hint)
        });
        assert!(told, "{:#?}", report.summary);
        waited
    };
    // Nobody watches here.
    let waited = waits(
        &text("max_lifetime = \"1h\""),
        "is beyond its max_lifetime",
        "end it by `stageline release lease.box[",
    );
    assert!(waited >= 59 * MINUTE && waited < 63 * MINUTE, "{waited:?}");
    let costs = text("max_lifetime = \"never\"")
        .replace("[provider", "[limits]\nmax_spend = 1.0\n[provider");
    let waited = waits(
        &costs,
        "limits.max_spend is $1.00",
        "raise limits.max_spend",
    );
    // Ten hours at $0.10.
    assert!(
        waited >= 590 * MINUTE && waited < 610 * MINUTE,
        "{waited:?}"
    );
}

#[test]
fn an_interrupted_wait_leaves_nothing() {
    let text = text(1, "wait_for_capacity = \"1h\"");
    let world = World::with(AccountSpec::new(vec![]));
    let mut tool = Tool::new();
    let token = tool.interrupt.clone();
    tool.watcher = Arc::new(move |event| {
        if matches!(event, Event::Waiting { .. }) {
            token.cancel();
        }
    });
    let ended = world.run(&tool, &Job::Apply(text)).expect("it lives");
    let report = ended.expect("it runs");
    assert!(report.summary.interrupted);
    assert!(world.state().is_empty());
    assert_eq!(world.sim.count(Verb::Create), 0);
}

/// The one that failed is released slowly; there is room for one machine only.
#[test]
fn a_fail_over_without_room_waits_until_the_first_machine_is_gone() {
    for (keys, cap) in [("", Some(MicroDollars(1_000_000))), ("", None)] {
        let mut text = text(1, keys);
        if cap.is_none() {
            text = text.replace("[offer.slot]", "[limits]\nmax_leases = 1\n\n[offer.slot]");
        }
        let world = World::with(asks(3));
        world.faults(
            FaultTable::none()
                .on(Verb::Create, When::Nth(1), dies())
                .on(Verb::Release, When::Always, Fault::DeleteLate(3 * MINUTE)),
        );
        let sim = world.sim.clone();
        let mut tool = Tool::new();
        tool.cap = cap;
        tool.hook = Arc::new(move |_| {
            assert!(sim.alive().len() <= 1, "two at once");
            ControlFlow::Continue(())
        });
        let ended = world
            .run(&tool, &Job::Apply(text.clone()))
            .expect("it lives");
        let report = ended.expect("it runs");
        world.check_settled(&text, &report);
        assert_eq!(launched(&report), ["ask-1", "ask-2"]);
        let told =
            |event: &Event| matches!(event, Event::Waiting { what, .. } if what.contains("room"));
        assert!(report.events.iter().any(told), "it says what it waits for");
    }
}

#[test]
fn a_fail_over_with_room_does_not_wait_and_runs_at_most_one_beside() {
    let world = World::with(asks(5));
    world.faults(
        FaultTable::none()
            .on(Verb::Create, When::Until(3), dies())
            .on(Verb::Release, When::Always, Fault::DeleteLate(3 * MINUTE)),
    );
    let sim = world.sim.clone();
    let most = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = most.clone();
    let text = text(1, "");
    let report = watched(&world, &Job::Apply(text.clone()), move || {
        seen.lock().expect("no panic").insert(sim.alive().len());
    });
    world.check_settled(&text, &report);
    let most = most.lock().expect("no panic").last().copied();
    assert_eq!(
        most,
        Some(2),
        "one that failed beside its successor, never two"
    );
    let at_most = report.plan.money.at_most_per_hour;
    assert_eq!(at_most, MicroDollars(2_000_000), "one and its successor");
}

#[test]
fn a_machine_that_cannot_be_proven_gone_ends_in_doubt_and_stays_on_the_books() {
    let text = text(1, "");
    let world = World::with(asks(3));
    world.faults(
        FaultTable::none()
            .on(Verb::Create, When::Nth(1), dies())
            .on(Verb::Release, When::Always, Fault::TerminateNoop),
    );
    let mut tool = Tool::new();
    tool.cap = Some(MicroDollars(1_000_000));
    let ended = world
        .run(&tool, &Job::Apply(text.clone()))
        .expect("it lives");
    let report = ended.expect("it runs");
    let doubts = report
        .summary
        .failed
        .iter()
        .filter(|failed| failed.in_doubt);
    assert!(doubts.count() > 0, "{:#?}", report.summary);
    assert_eq!(launched(&report), ["ask-1"], "there was no room");
    world.check_books();
    assert!(world.state().committed_per_hour() > MicroDollars(0));
    world.faults(FaultTable::none());
    world.check_settled(&text, &world.apply(&text));
    assert_eq!(world.ours().len(), 1);
    world.check_gone(&world.destroy());
}

#[test]
fn a_phase_has_its_own_deadline() {
    let account = |within: Duration| {
        let mut account = asks(3);
        account.traits.phases = vec![PhaseLimit::new("loading", within)];
        account
    };
    let text = text(1, "");
    let slow = || {
        let slow = Fault::BootSlow(25 * MINUTE);
        FaultTable::none().on(Verb::Create, When::Nth(1), slow)
    };
    let world = World::with(account(2 * MINUTE));
    world.faults(slow());
    let start = world.clock.boottime();
    let report = world.apply(&text);
    world.check_settled(&text, &report);
    assert!(world.clock.boottime() - start < 15 * MINUTE);
    assert!(world.state().bad[0].why.contains("loading"));
    let percent = |event: &Event| matches!(event, Event::Waiting { what, .. } if what.starts_with("loading 3"));
    assert!(report.events.iter().any(percent), "it tells how far it is");
    // A shape that takes its time gets it.
    let mut patient = account(30 * MINUTE);
    patient.traits.acquire_timeout = 40 * MINUTE;
    let world = World::with(patient);
    world.faults(slow());
    world.check_settled(&text, &world.apply(&text));
    assert_eq!(world.sim.machines().len(), 1);
}

/// Why the first machine that failed was given up, and what it printed last.
pub(super) fn first_failure(report: &Report) -> Option<(&Cause, &Vec<String>)> {
    report.events.iter().find_map(|event| {
        let Event::MachineFailed { cause, log, .. } = event else {
            return None;
        };
        Some((cause, log))
    })
}

#[test]
fn a_dead_machine_is_noticed_within_two_looks() {
    let world = World::with(asks(2));
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), dies()));
    let report = world.apply(&text(1, ""));
    let (cause, log) = first_failure(&report).expect("it fails");
    assert!(log[0].contains("simulated output"), "its log is shown");
    assert!(cause.message.contains("OCI error"), "{cause}");
    let calls = world.sim.calls();
    let looks = calls.iter().filter(|call| call.verb == Verb::Describe);
    let first: Vec<_> = looks.filter(|call| call.subject == "sim-000001").collect();
    let last = first.last().expect("it was looked at").at - first[0].at;
    assert!(last <= Duration::from_millis(2400), "{last:?}");
}

#[test]
fn claim_and_measurement_are_told_side_by_side() {
    let card = |model: &str| Gpu {
        model: model.to_owned(),
        vram: Bytes::gib(24),
    };
    let claimed = Facts {
        gpus: vec![card("RTX 4090"), card("RTX 4090")],
        ..facts()
    };
    let measured = Facts {
        gpus: vec![card("NVIDIA GeForce RTX 3090")],
        ..facts()
    };
    let mut account = asks(2);
    for shape in &mut account.shapes {
        shape.facts = claimed.clone();
    }
    let world = World::with(account);
    let wrong = Fault::BootWrongFacts(Box::new(measured));
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), wrong));
    // Nothing is required of the machine, but what is paid for must be there.
    let report = world.apply(&text(1, ""));
    let (cause, _) = first_failure(&report).expect("it is given up");
    let message = &cause.message;
    assert!(message.contains("claimed"), "{message}");
    assert!(
        message.contains("2 x RTX 4090    1 x NVIDIA GeForce RTX 3090"),
        "{message}"
    );
    assert_eq!(world.ours().len(), 1);
}

/// Any other reason stops that branch at once, and says what to do.
#[test]
fn what_no_other_offer_can_mend_stops_the_branch() {
    for class in [
        FailureClass::Quota,
        FailureClass::Money,
        FailureClass::Auth,
        FailureClass::Config,
        FailureClass::Unknown,
    ] {
        let world = World::with(asks(5));
        world.faults(FaultTable::none().on(Verb::Create, When::Always, Fault::Refused(class)));
        let report = world.apply(&text(1, "wait_for_capacity = \"1h\""));
        let [failed] = report.summary.failed.as_slice() else {
            panic!("{:#?}", report.summary);
        };
        assert_eq!(
            (failed.verb, failed.cause.class),
            (StepVerb::Acquire, class)
        );
        assert_eq!(launched(&report).len(), 1, "{class:?}");
    }
}

/// Machines of one computer write to one disk: what was free of it when they were chosen is no claim of any of them. What is
/// asked for is asked of them all the same.
#[test]
fn of_a_disk_that_machines_share_nothing_is_claimed() {
    let filled = Facts {
        disk: Bytes::gib(10),
        ..facts()
    };
    let strict = text(1, "").replace(
        "provider = \"here\"\n",
        "provider = \"here\"\nwhere = \"disk>=15\"\n",
    );
    for (text, shares, tries) in [
        (text(1, ""), true, 1),
        (text(1, ""), false, 2),
        (strict, true, 2),
    ] {
        let world = World::with(asks(3));
        world.shares_disk.set(shares);
        let fault = Fault::BootWrongFacts(Box::new(filled.clone()));
        world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), fault));
        let report = world.apply(&text);
        world.check_settled(&text, &report);
        assert_eq!(world.sim.count(Verb::Create), tries, "{shares} {text}");
    }
}
