//! Faults while machines are ended, and of their agents.

use stageline::core::resource::LeaseLimits;
use stageline::core::unit::Millis;

use super::*;

#[test]
fn a_release_is_done_when_the_listing_proves_it() {
    let passing = [
        once(Verb::Release, Fault::TerminateNoop),
        once(Verb::Release, Fault::TerminateErrorAfterCommit),
        FaultTable::none().on(Verb::Release, When::Until(6), Fault::TerminateErrorNoCommit),
        always(Verb::Release, Fault::DeleteLate(3 * MINUTE)),
        FaultTable::none().on(Verb::Release, When::Until(2), Fault::ListGhost(3 * MINUTE)),
        FaultTable::none().on(Verb::Find, When::Until(6), Fault::ListTruncated),
        FaultTable::none().on(Verb::Release, When::Until(6), Fault::RateLimited(None)),
    ];
    for faults in passing {
        println!("{faults:?}");
        let world = World::with(account());
        world.apply(TWO);
        world.faults(faults);
        world.check_gone(&world.destroy());
        assert_eq!(world.sim.alive(), []);
    }
    let lasting = [
        always(Verb::Release, Fault::TerminateNoop),
        always(Verb::Release, Fault::TerminateErrorNoCommit),
        always(Verb::Release, Fault::AuthRevoked),
        always(Verb::Release, Fault::DeleteLate(60 * MINUTE)),
    ];
    for faults in lasting {
        println!("{faults:?}");
        let world = World::with(account());
        world.apply(TWO);
        world.faults(faults);
        let report = world.destroy();
        assert_eq!(report.summary.failed.len(), 2, "{:#?}", report.summary);
        for failed in &report.summary.failed {
            assert!(
                failed.in_doubt && failed.verb == StepVerb::Release,
                "{failed:?}"
            );
            assert!(
                failed.cause.message.contains(&failed.address.to_string()),
                "{failed:?}"
            );
        }
        world.check_books();
        assert_eq!(world.ours().len(), 2);
        // An apply in between replaces what is half gone.
        world.faults(FaultTable::none());
        world.clock.advance(60 * MINUTE);
        world.check_settled(TWO, &world.apply(TWO));
        world.check_gone(&world.destroy());
    }
}

/// The tool dies while it releases a machine that is not what was asked for: the next run goes on with the release.
#[test]
fn a_release_that_was_begun_is_gone_on_with() {
    let small = Facts {
        memory: Bytes::gib(2),
        ..facts()
    };
    let world = World::with(account());
    world.faults(once(Verb::Create, Fault::BootWrongFacts(Box::new(small))));
    let crash = stageline::provider::sim::CrashPoint::at(1);
    let mut tool = Tool::new();
    let (dying, token) = (crash.clone(), tool.interrupt.clone());
    tool.hook = std::sync::Arc::new(move |point| {
        if point.verb == Verb::Release {
            token.cancel();
            return dying.step();
        }
        std::ops::ControlFlow::Continue(())
    });
    let report = world
        .run(&tool, &Job::Apply(strict()))
        .expect("it lives")
        .expect("it runs");
    assert!(report.summary.interrupted, "{:#?}", report.summary);
    assert!(world.ours().len() >= 2, "its release has no effect yet");
    world.check_settled(&strict(), &world.apply(&strict()));
}

/// A lease that never became ready and cannot be released either is in doubt, and the next run goes on with it.
#[test]
fn a_machine_that_cannot_be_released_stays_on_the_books() {
    let world = World::with(account());
    let faults = once(
        Verb::Create,
        Fault::BootDies(Duration::from_secs(2), "broken".to_owned()),
    );
    world.faults(faults.on(Verb::Release, When::Always, Fault::TerminateErrorNoCommit));
    let report = world.apply(TWO);
    let [failed] = report.summary.failed.as_slice() else {
        panic!("{:#?}", report.summary);
    };
    assert!(failed.in_doubt && failed.verb == StepVerb::Release);
    world.check_books();
    assert_eq!(world.ours().len(), 3, "the next one is up beside it");
    world.faults(FaultTable::none());
    world.check_settled(TWO, &world.apply(TWO));
    world.check_gone(&world.destroy());
}

#[test]
fn an_agent_that_does_not_answer_at_once_is_asked_again() {
    for verb in [Verb::Deliver, Verb::Start, Verb::Check, Verb::Expose] {
        for fault in [Fault::Unreachable, Fault::CutAfterEffect] {
            check(fault.knob(), TWO, once(verb, fault), &Then::Settles);
        }
    }
}

#[test]
fn an_agent_that_refuses_or_is_silent_stops_its_branch() {
    let steps = [
        (Verb::Deliver, StepVerb::Deliver),
        (Verb::Start, StepVerb::Start),
        (Verb::Check, StepVerb::Check),
        (Verb::Expose, StepVerb::Expose),
    ];
    for (verb, step) in steps {
        let refuses = Fault::AgentRefuses("broken".to_owned(), "it is broken".to_owned());
        let then = Then::Refused(step, FailureClass::Config);
        check("refuses", TWO, once(verb, refuses), &then);
        let world = World::with(account());
        world.faults(always(verb, Fault::Unreachable));
        let report = world.apply(TWO);
        assert!(!report.summary.failed.is_empty());
        for failed in &report.summary.failed {
            assert_eq!((failed.verb, failed.in_doubt), (step, false), "{failed:?}");
            assert!(failed.cause.message.contains("lease.box["), "{failed:?}");
        }
        world.check_books();
        world.faults(FaultTable::none());
        world.check_settled(TWO, &world.apply(TWO));
    }
    let then = Then::Refused(StepVerb::Start, FailureClass::Config);
    let fails = Fault::WorkerFails("exit status 1".to_owned());
    check("worker", TWO, once(Verb::Start, fails), &then);
    let then = Then::Refused(StepVerb::Check, FailureClass::Config);
    let nonsense = Fault::WrongAnswer("no".to_owned());
    check("nonsense", TWO, once(Verb::Check, nonsense), &then);
}

/// Taking down what stays on a machine that stays: the agent is asked again, and a refusal is not success.
#[test]
fn what_is_no_longer_declared_is_taken_down_or_stays_recorded() {
    let bare = TWO.split("[pipeline.toy]").next().expect("text").to_owned();
    for (verb, step) in [
        (Verb::Stop, StepVerb::Stop),
        (Verb::Unexpose, StepVerb::Unexpose),
    ] {
        for fault in [Fault::Unreachable, Fault::CutAfterEffect] {
            let world = World::new();
            world.apply(TWO);
            world.faults(once(verb, fault));
            world.check_settled(&bare, &world.apply(&bare));
        }
        let world = World::new();
        world.apply(TWO);
        world.faults(always(verb, Fault::Unreachable));
        let report = world.apply(&bare);
        assert!(
            report
                .summary
                .failed
                .iter()
                .all(|failed| failed.verb == step)
        );
        assert!(!report.summary.failed.is_empty());
        world.faults(FaultTable::none());
        world.check_settled(&bare, &world.apply(&bare));
    }
}

/// By the time that a machine is ready, the file says other limits than it booted with: one that ends itself is told, and
/// one that booted with them is not asked anything.
#[test]
fn a_machine_that_gets_ready_keeps_the_limits_of_now() {
    let mut account = account();
    account.traits.self_destroy = true;
    let world = World::with(account);
    world.faults(always(Verb::Create, Fault::BootSlow(2 * MINUTE)));
    let mut tool = Tool::new();
    let (clock, start) = (world.clock.clone(), world.clock.boottime());
    let token = tool.interrupt.clone();
    tool.watcher = std::sync::Arc::new(move |event| {
        if matches!(event, Event::Waiting { .. }) && clock.boottime() > start + MINUTE {
            token.cancel();
        }
    });
    let report = world.run(&tool, &apply_job()).expect("it lives");
    assert!(report.expect("it runs").summary.interrupted);
    let other = TWO.replace("count = 2", "count = 2\nidle_timeout = \"10m\"");
    world.check_settled(&other, &world.apply(&other));
    let keeps = |world: &World| -> Vec<_> {
        let machines = world.ours().into_iter();
        machines
            .map(|machine| machine.agent.limits.expect("it ends itself"))
            .collect()
    };
    let now = LeaseLimits {
        idle_timeout: Millis::minutes(10),
        max_lifetime: Millis::minutes(12 * 60),
    };
    assert_eq!(keeps(&world), [now, now]);
    assert_eq!(world.sim.count(Verb::Limit), 2);
    world.check_gone(&world.destroy());
    world.check_settled(&other, &world.apply(&other));
    assert_eq!(keeps(&world), [now, now]);
    assert_eq!(world.sim.count(Verb::Limit), 2, "they booted with these");
}
