//! Machines that belong together: a gang comes up whole or not at all, and what is to be apart stays so.

use std::collections::BTreeSet;

use stageline::ambient::Clock;
use stageline::core::offer::{Facts, Supply};
use stageline::core::resource::FailureClass;
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Shape, Verb, When};

use super::failover::{MINUTE, asks, dies, launched, text};
use super::world::{Job, PRICE, Tool, World, shape, told};

#[test]
fn a_gang_comes_up_whole_or_not_at_all() {
    let text4 = text(4, "attempts = 1");
    for (what, fault) in [
        ("refused", Fault::Refused(FailureClass::Quota)),
        ("never up", Fault::BootNever),
        ("dead", dies()),
    ] {
        told(what, || {
            let world = World::with(asks(9));
            world.faults(FaultTable::none().on(Verb::Create, When::Nth(4), fault.clone()));
            let report = world.apply(&text4);
            assert!(!report.summary.finished());
            assert_eq!(world.ours(), [], "three are as good as none");
            world.check_books();
            let noted = world.state().bad.len();
            assert!(noted <= 1, "only the one at fault is noted: {noted}");
            world.faults(FaultTable::none());
            // The same plan may be gone on with.
            let again = world.command_of(&Job::Resume(text4.clone()));
            world.check_books();
            if !again.summary.finished() {
                world.check_settled(&text4, &world.apply(&text4));
            }
            assert_eq!(world.ours().len(), 4);
            world.check_gone(&world.destroy());
        });
    }
    // Where it is no gang, three stay.
    let world = World::with(asks(9));
    let quota = Fault::Refused(FailureClass::Quota);
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(4), quota));
    world.apply(&text(4, "gang = false"));
    assert_eq!(world.ours().len(), 3);
}

#[test]
fn a_gang_has_a_deadline_of_its_own() {
    let text = text(3, "gang_timeout = \"5m\"");
    let world = World::with(asks(9));
    let slow = Fault::BootSlow(15 * MINUTE);
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(2), slow));
    let start = world.clock.boottime();
    let report = world.apply(&text);
    assert!(!report.summary.finished());
    assert!(world.clock.boottime() - start < 7 * MINUTE);
    assert_eq!(world.ours(), []);
    let messages = report.summary.failed.iter().map(|f| &f.cause.message);
    assert!(messages.into_iter().any(|m| m.contains("gang_timeout")));
}

/// A member that serves already stays, and one in doubt holds the others back.
#[test]
fn a_gang_does_not_take_down_what_serves_and_waits_for_a_doubt() {
    let text3 = text(3, "attempts = 1");
    let world = World::with(asks(9));
    world.check_settled(&text3, &world.apply(&text3));
    let lost = world.ours()[0].id.clone();
    world.sim.vanish(&lost);
    world.faults(FaultTable::none().on(Verb::Create, When::Always, dies()));
    world.apply(&text3);
    assert_eq!(world.ours().len(), 2, "they serve");

    for parallelism in [1, 10] {
        let world = World::with(asks(9));
        world.faults(
            FaultTable::none()
                .on(Verb::Create, When::Nth(3), Fault::CreateErrorAfterCommit)
                .on(Verb::Find, When::Always, Fault::ListTruncated),
        );
        let report = world.apply(&text3);
        let doubts = report.summary.failed.iter().filter(|f| f.in_doubt);
        assert!(doubts.count() > 0, "{:#?}", report.summary);
        world.check_books();
        world.faults(FaultTable::none());
        let mut tool = Tool::new();
        tool.parallelism = parallelism;
        let ended = world
            .run(&tool, &Job::Apply(text3.clone()))
            .expect("it lives");
        let report = ended.expect("it runs");
        world.check_settled(&text3, &report);
        assert_eq!(world.ours().len(), 3);
    }
}

#[test]
fn machines_that_must_be_apart_stay_apart_when_both_fail_over() {
    let hosts = ["1", "2", "3", "3", "4"];
    let asks = (1..).zip(hosts).map(|(i, host)| {
        let plain = shape(&format!("ask-{i}"), PRICE.times(i));
        Shape {
            supply: Supply::One,
            facts: Facts {
                host: Some(host.to_owned()),
                ..plain.facts.clone()
            },
            ..plain
        }
    });
    let world = World::with(AccountSpec::new(asks.collect()));
    // Each one's own offer is gone; what may follow is the same list for both.
    world.faults(
        FaultTable::none()
            .on(Verb::Create, When::Nth(1), Fault::OfferGone)
            .on(Verb::Create, When::Nth(2), Fault::OfferGone),
    );
    let text = text(2, "spread = \"host\"");
    let report = world.apply(&text);
    world.check_settled(&text, &report);
    let all: BTreeSet<String> = launched(&report).into_iter().collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(all, ["ask-1", "ask-2", "ask-3", "ask-5"], "host 3 once");
}
