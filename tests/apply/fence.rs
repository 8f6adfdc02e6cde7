//! A second run, a slow store, a cap on money, a user who wants to stop: what each of them must end, and what it must
//! not leave behind.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use stageline::ambient::Clock as _;
use stageline::core::event::Event;
use stageline::core::journal::{Entry, Record, Verb as StepVerb};
use stageline::core::resource::FailureClass;
use stageline::core::unit::MicroDollars;
use stageline::provider::sim::{AccountSpec, Fault, FaultTable, Hook, Side, Verb, When};
use stageline::store::testing::{Fate, Gate, Request, Verb as Asked};
use stageline::store::{AppendError, Journal};
use tokio::sync::Notify;

use super::world::{
    CEILING, Job, PRICE, Report, TWO, Tool, World, begin_of, here, receipts, shape, told,
};

fn apply_job() -> Job {
    Job::Apply(TWO.to_owned())
}

/// Another process opens a run and does nothing in it.
async fn fence(world: &World) {
    let store = world.store(&Tool::new()).await.expect("a sound store");
    let loaded = store.read().await.expect("sound");
    let begun = Journal::begin(&store, loaded, begin_of("apply"), world.writer()).await;
    drop(begun.expect("nothing is in the way"));
}

fn is_fenced(report: &Report) -> bool {
    matches!(report.summary.journal, Some(AppendError::Fenced { .. }))
}

/// The run is fenced right after one of its events, each in turn.
#[test]
fn a_fenced_run_stops_and_the_next_one_ends_clean() {
    let mut over = false;
    for at in 1.. {
        let world = World::new();
        let (seen, now) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut tool = Tool::new();
        tool.watcher = Arc::new({
            let (seen, now) = (seen.clone(), now.clone());
            move |event| {
                let counts = matches!(event, Event::StepStarted { .. } | Event::StepDone { .. });
                if counts && seen.fetch_add(1, Ordering::SeqCst) + 1 == at {
                    now.notify_one();
                }
            }
        });
        let job = apply_job();
        let fenced_at = Mutex::new(None);
        let report = world.process(async {
            let run = world.command(&tool, &job);
            let second = async {
                now.notified().await;
                fence(&world).await;
                *fenced_at.lock().expect("no panic") = Some(world.clock.boottime());
                std::future::pending::<()>().await
            };
            tokio::select! {
                report = run => report,
                () = second => unreachable!("it waits for ever"),
            }
        });
        world.check_books();
        if fenced_at.lock().expect("no panic").is_none() {
            over = true;
        } else {
            // At the latest when it wants to close its run.
            let fenced = report
                .as_ref()
                .map_or_else(|refusal| refusal.0.contains("fenced"), is_fenced);
            assert!(fenced, "{report:#?}");
        }
        world.check_settled(TWO, &world.apply(TWO));
        world.check_gone(&world.destroy());
        if over {
            break;
        }
    }
}

/// One branch learns that the run is fenced; the other one, which would wait for long, ends with it.
#[test]
fn a_fenced_run_does_not_wait_for_its_slowest_step() {
    let world = World::new();
    world.faults(FaultTable::none().on(Verb::Create, When::Nth(1), Fault::BootNever));
    let report = world.process(async {
        let job = apply_job();
        let tool = Tool::new();
        let second = async {
            world.clock.sleep(Duration::from_secs(1)).await;
            fence(&world).await;
        };
        tokio::join!(world.command(&tool, &job), second)
            .0
            .expect("it runs")
    });
    assert!(is_fenced(&report), "{:#?}", report.summary);
    assert!(!report.summary.interrupted);
    assert!(world.clock.boottime() < Duration::from_secs(60));
    assert_eq!(world.ours().len(), 2, "they are the new owner's");
}

/// The second run begins while a create is on its way, and does not know the machine: it is released at once.
#[test]
fn a_machine_that_comes_up_for_a_fenced_run_is_released() {
    let world = World::new();
    world.faults(FaultTable::none().on(
        Verb::Create,
        When::Always,
        Fault::Slow(Duration::from_secs(3)),
    ));
    let report = world.process(async {
        let job = apply_job();
        let tool = Tool::new();
        let run = world.command(&tool, &job);
        let second = async {
            world.clock.sleep(Duration::from_secs(1)).await;
            assert_eq!(
                world.sim.count(Verb::Create),
                2,
                "both creates are on their way"
            );
            fence(&world).await;
        };
        tokio::join!(run, second).0.expect("it runs")
    });
    assert!(is_fenced(&report), "{:#?}", report.summary);
    assert_eq!(world.sim.machines().len(), 2);
    assert_eq!(world.ours(), [], "nobody else knows them");
    let told = |event: &&Event| matches!(event, Event::ExtraReleased { .. });
    assert_eq!(
        report.events.iter().filter(told).count(),
        2,
        "{:?}",
        report.events
    );
    world.faults(FaultTable::none());
    world.check_settled(TWO, &world.apply(TWO));
}

/// The second run finds the machine while the first one still waits for its answer: the first one leaves it alone.
#[test]
fn a_machine_that_the_new_owner_has_recorded_is_left_alone() {
    let world = World::new();
    world.faults(FaultTable::none().on(
        Verb::Create,
        When::Until(2),
        Fault::Slow(Duration::from_secs(20)),
    ));
    let (first, second) = world.process(async {
        let job = apply_job();
        let (one, two) = (Tool::new(), Tool::new());
        let second = async {
            world.clock.sleep(Duration::from_secs(1)).await;
            world.command(&two, &job).await
        };
        tokio::join!(world.command(&one, &job), second)
    });
    let first = first.expect("it runs");
    assert!(is_fenced(&first), "{:#?}", first.summary);
    world.check_settled(TWO, &second.expect("it runs"));
    assert_eq!(world.sim.count(Verb::Create), 2);
    assert_eq!(world.sim.count(Verb::Release), 0);
}

/// A process is stopped between its durable intention and its create, and wakes after another one has taken over: before
/// that one is sure that nothing came of it, or long after. The machine that its create made is found by its attempt.
#[test]
fn a_create_that_leaves_after_the_takeover_is_undone_by_whoever_sees_it() {
    for wakes in [8, 25, 3 * 60, 40 * 60].map(Duration::from_secs) {
        told(&format!("it wakes after {wakes:?}"), || {
            let world = World::new();
            let (first, second) = world.process(async {
                let job = apply_job();
                let (one, two) = (Tool::new(), Tool::new());
                world.oversleeps.set(Some(wakes));
                let second = async {
                    world.clock.sleep(Duration::from_secs(1)).await;
                    world.oversleeps.set(None);
                    // The clocks of the two differ by hours.
                    world.clock.shift_wall(-5 * 3600);
                    world.command(&two, &job).await
                };
                tokio::join!(world.command(&one, &job), second)
            });
            assert!(is_fenced(&first.expect("it runs")));
            let second = second.expect("it runs");
            assert!(second.summary.finished(), "{:#?}", second.summary);
            assert_eq!(
                world.ours().len(),
                2,
                "each lease has its machine, and no more"
            );
            // Whatever was up for a while was paid for.
            let paid = world.sim.bill(&here());
            assert!(paid > MicroDollars::ZERO);
            world.check_settled(TWO, &world.apply(TWO));
            world.check_gone(&world.destroy());
        });
    }
}

/// The same process is killed the moment its late create was answered, before it could undo it. Whoever looks next finds the
/// machine by its try, ends it, and counts what it cost.
#[test]
fn a_create_that_leaves_after_the_takeover_of_a_process_that_is_killed_then_is_found_by_its_try() {
    for wakes in [8, 25].map(Duration::from_secs) {
        told(&format!("it wakes after {wakes:?} and is killed"), || {
            let world = World::new();
            let killed = Arc::new(Notify::new());
            let (sim, dies) = (world.sim.clone(), killed.clone());
            let hook: Hook = Arc::new(move |point| {
                let call = sim
                    .calls()
                    .into_iter()
                    .find(|call| call.number == point.call);
                let first = call.is_some_and(|call| call.subject.ends_with("-g1a1"));
                if point.verb == Verb::Create && point.side == Side::After && first {
                    dies.notify_one();
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            world.sim.set_hook(Some(hook));
            let second = world.process(async {
                let job = apply_job();
                let (one, two) = (Tool::new(), Tool::new());
                world.oversleeps.set(Some(wakes));
                let first = async {
                    tokio::select! {
                        biased;
                        () = killed.notified() => {}
                        report = world.command(&one, &job) => panic!("it is not killed: {report:?}"),
                    }
                };
                let second = async {
                    world.clock.sleep(Duration::from_secs(1)).await;
                    world.oversleeps.set(None);
                    world.command(&two, &job).await
                };
                tokio::join!(first, second).1
            });
            world.sim.set_hook(None);
            let second = second.expect("it runs");
            assert!(second.summary.finished(), "{:#?}", second.summary);
            let made = world.sim.machines().len();
            assert!(made >= 2, "{made}");
            // It bills until somebody looks, and that is shown.
            world.clock.advance(Duration::from_secs(600));
            let extra = world.ours().len() - 2;
            let plan = world.next_plan(TWO);
            let told = plan.changes.iter();
            let told = told.filter(|change| change.reason.contains("made by an earlier try"));
            assert_eq!(told.count(), extra, "{:#?}", plan.changes);
            let report = world.apply(TWO);
            world.check_settled(TWO, &report);
            assert_eq!(world.ours().len(), 2, "no more than are recorded");
            let ended = world.sim.count(Verb::Release);
            assert!(ended >= made - 2, "{ended} of {made}");
            world.check_ledger();
            world.clock.advance(Duration::from_secs(3600));
            world.check_gone(&world.destroy());
            let spent = world.check_ledger();
            let paid = world.sim.bill(&here());
            assert!(
                spent.least <= paid && paid <= spent.most,
                "{paid} was paid, {} to {} are on the ledger",
                spent.least,
                spent.most
            );
            if made == 2 {
                assert!(!spent.is_uncertain(), "{spent}: nothing of it is in doubt");
            }
        });
    }
}

/// It slept for longer than anybody has watched for what it may have made, and then its creates took effect: the machines are
/// told by the next plan, ended by its apply, and on the ledger.
#[test]
fn what_a_sleeper_makes_after_everybody_stopped_looking_is_ended_by_the_next_apply() {
    let world = World::new();
    world.faults(FaultTable::none().on(Verb::Create, When::Until(2), Fault::CreateErrorNoCommit));
    let report = world.apply(TWO);
    world.check_settled(TWO, &report);
    let late: Vec<_> = world
        .ours()
        .into_iter()
        .map(|machine| {
            let label = machine.label.replace("a2", "a1");
            assert_ne!(label, machine.label, "the second try");
            let id = world.sim.plant(&here(), &label, PRICE);
            world
                .sim
                .alter(&id, |late, _| late.lease = machine.lease.clone());
            id
        })
        .collect();
    world.clock.advance(Duration::from_secs(600));
    let plan = world.next_plan(TWO);
    let told = plan
        .changes
        .iter()
        .filter(|change| change.reason.contains("made by an earlier try"));
    assert_eq!(told.count(), 2, "{:#?}", plan.changes);
    let released = world.sim.count(Verb::Release);
    world.check_settled(TWO, &world.apply(TWO));
    assert_eq!(world.sim.count(Verb::Release), released + 2);
    assert!(
        world
            .ours()
            .iter()
            .all(|machine| !late.contains(&machine.id))
    );
    world.check_ledger();
    world.check_gone(&world.destroy());
    world.check_ledger();
}

/// A create made two machines, and listings show one after the other. The second run sees one and keeps it; the first
/// run, fenced by then, sees both and would keep the other: it must not end what it would not keep.
#[test]
fn a_fenced_run_does_not_undo_what_its_successor_keeps() {
    let one = TWO
        .replace("count = 2", "count = 1")
        .replace(", { on = \"lease.box[1]\" }", "");
    for late in [50, 150, 200, 300, 400] {
        let world = World::new();
        let faults = FaultTable::none();
        world.faults(faults.on(Verb::Create, When::Nth(1), Fault::CreateWrongCount(2)));
        let first = Tool::new();
        let sim = world.sim.clone();
        let hook: Hook = Arc::new(move |point| {
            if point.verb == Verb::Create && point.side == Side::After {
                for (machine, more) in sim.machines().iter().zip([200, 0]) {
                    let shown = Duration::from_millis(10_000 + late + more);
                    sim.alter(&machine.id, |machine, now| {
                        machine.listed_from = now + shown
                    });
                }
            }
            ControlFlow::Continue(())
        });
        world.sim.set_hook(Some(hook));
        let job = Job::Apply(one.clone());
        let (fenced, second) = world.process(async {
            let second = Tool::new();
            let later = async {
                // Between two looks of the first run.
                world.clock.sleep(Duration::from_millis(5250)).await;
                world.command(&second, &job).await
            };
            tokio::join!(world.command(&first, &job), later)
        });
        assert!(is_fenced(&fenced.expect("it runs")));
        let second = second.expect("it runs");
        assert!(second.summary.finished(), "{:#?}", second.summary);
        let up: BTreeSet<_> = world.ours().into_iter().map(|machine| machine.id).collect();
        assert!(
            receipts(&second.state).is_subset(&up),
            "what was kept is up"
        );
        world.check_gone(&world.destroy());
    }
}

/// Every entry of the journal, in order.
fn records(world: &World) -> Vec<Record> {
    futures::executor::block_on(async {
        let folder = Path::from("journal");
        let listed: Vec<_> = world.objects.list(Some(&folder)).collect().await;
        let mut paths: Vec<Path> = listed
            .into_iter()
            .map(|m| m.expect("listed").location)
            .collect();
        paths.sort();
        let mut records = Vec::new();
        for path in paths {
            let found = world.objects.get(&path).await.expect("there");
            let bytes = found.bytes().await.expect("whole");
            records.extend(Entry::decode(&bytes).expect("an entry").records);
        }
        records
    })
}

/// A store that needs so long for each of these entries.
fn slow_store(world: &World, hits: impl Fn(usize) -> bool + Send + Sync + 'static) -> Tool {
    let clock = world.clock.clone();
    let puts = AtomicUsize::new(0);
    let mut tool = Tool::new();
    tool.script = Arc::new(move |request: &Request| {
        let entry = request.verb == Asked::Create && request.path.starts_with("journal/");
        if !entry || !hits(puts.fetch_add(1, Ordering::SeqCst)) {
            return Fate::Pass;
        }
        let (gate, clock) = (Gate::default(), clock.clone());
        let opens = gate.clone();
        tokio::spawn(async move {
            clock.sleep(Duration::from_secs(7)).await;
            opens.open();
        });
        Fate::HoldAnswer(gate)
    });
    tool
}

fn launches(world: &World) -> usize {
    let started = |record: &&Record| {
        matches!(
            record,
            Record::Started {
                launch: Some(_),
                on: None,
                ..
            }
        )
    };
    records(world).iter().filter(started).count()
}

#[test]
fn an_intention_that_got_old_is_stamped_again() {
    let world = World::new();
    // The first entry opens the run, the second has the intentions.
    let tool = slow_store(&world, |put| put == 1);
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    world.check_settled(TWO, &report);
    assert_eq!((launches(&world), world.sim.count(Verb::Create)), (4, 2));
}

#[test]
fn a_store_that_is_always_slow_rents_nothing() {
    let world = World::new();
    let tool = slow_store(&world, |put| put >= 1);
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    assert_eq!(report.summary.failed.len(), 2, "{:#?}", report.summary);
    for failed in &report.summary.failed {
        assert_eq!((failed.verb, failed.in_doubt), (StepVerb::Acquire, false));
    }
    assert_eq!(world.sim.count(Verb::Create), 0);
    world.check_settled(TWO, &world.apply(TWO));
}

/// A cap that has room for some of the machines: they are rented, no more and no less, open tries counted.
#[test]
fn the_cap_holds_at_every_moment_with_many_launches_at_once() {
    for room in 1..=4_u64 {
        let mut account = AccountSpec::new(vec![shape("a", PRICE)]);
        account.latency = Duration::from_millis(300);
        account.traits.request_timeout = Duration::from_secs(10);
        let world = World::with(account);
        // None of the answers says what became of the create, so that all of them stay reserved.
        world.faults(FaultTable::none().on(
            Verb::Create,
            When::Always,
            Fault::CreateTimeoutAfterCommit,
        ));
        let five = TWO.replace("count = 2", "count = 5");
        let cap = MicroDollars(CEILING.0 * room + CEILING.0 / 2);
        let mut tool = Tool::new();
        tool.cap = Some(cap);
        let most = Arc::new(Mutex::new(0));
        tool.hook = Arc::new({
            let (sim, most) = (world.sim.clone(), most.clone());
            move |point| {
                if point.verb == Verb::Create && point.side == Side::Before {
                    let mut most = most.lock().expect("no panic");
                    let creates = sim.count(Verb::Create) as u64;
                    let reserved = CEILING.times(creates);
                    *most = creates.max(*most);
                    assert!(reserved <= cap, "{creates} creates at once under {cap}");
                }
                ControlFlow::Continue(())
            }
        });
        let job = Job::Apply(five.clone());
        let report = world.run(&tool, &job).expect("it lives").expect("it runs");
        let refused = report.summary.failed.iter();
        let refused = refused.filter(|failed| failed.cause.class == FailureClass::Money);
        assert_eq!(refused.count() as u64, 5 - room, "{:#?}", report.summary);
        assert_eq!(*most.lock().expect("no panic"), room);
        assert_eq!(world.ours().len() as u64, room);
        world.faults(FaultTable::none());
        world.check_settled(&five, &world.apply(&five));
    }
}

/// The user interrupts after each event in turn: no step begins after that, the run returns within its grace, and
/// what it leaves is gone on with.
#[test]
fn an_interrupt_ends_the_run_soon_and_loses_nothing() {
    for at in 1.. {
        let world = World::new();
        world.faults(FaultTable::none().on(Verb::Create, When::Nth(2), Fault::CreateErrorNoCommit));
        let (seen, fired) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
        let when = Arc::new(Mutex::new(Duration::ZERO));
        let late = Arc::new(Mutex::new(BTreeSet::new()));
        let mut tool = Tool::new();
        tool.parallelism = 1 + at % 4;
        tool.watcher = Arc::new({
            let (fired, when, late) = (fired.clone(), when.clone(), late.clone());
            let (token, clock) = (tool.interrupt.clone(), world.clock.clone());
            move |event| {
                if seen.fetch_add(1, Ordering::SeqCst) + 1 == at {
                    token.cancel();
                    fired.store(true, Ordering::SeqCst);
                    *when.lock().expect("no panic") = clock.boottime();
                } else if let (Event::StepStarted { address, .. }, true) =
                    (event, fired.load(Ordering::SeqCst))
                {
                    late.lock().expect("no panic").insert(address.clone());
                }
            }
        });
        let report = world
            .run(&tool, &apply_job())
            .expect("it lives")
            .expect("it runs");
        let took = world.clock.boottime() - *when.lock().expect("no panic");
        if !fired.load(Ordering::SeqCst) {
            world.check_settled(TWO, &report);
            break;
        }
        assert!(took <= Duration::from_secs(2), "event {at}: {took:?}");
        let late = late.lock().expect("no panic").len();
        assert!(
            late < tool.parallelism,
            "event {at}: {late} steps began after it"
        );
        let all = report.summary.done as usize == report.plan.steps.len();
        assert!(report.summary.interrupted || all, "{:#?}", report.summary);
        world.check_books();
        let again = Job::Resume(TWO.to_owned());
        world.check_settled(TWO, &world.command_of(&again));
    }
}

/// The user interrupts while a provider takes a minute for its answer: the call is cut, and what it did is found later.
#[test]
fn an_interrupt_cuts_a_call_that_is_under_way() {
    for verb in [Verb::Create, Verb::Find, Verb::Describe, Verb::Release] {
        let world = World::new();
        let job = if verb == Verb::Release {
            world.apply(TWO);
            Job::Destroy
        } else {
            apply_job()
        };
        let slow = Fault::Slow(Duration::from_secs(60));
        let mut faults = FaultTable::none().on(verb, When::Always, slow);
        if verb == Verb::Find {
            // Nobody looks for what is not in doubt.
            faults = faults.on(Verb::Create, When::Always, Fault::CreateErrorAfterCommit);
        }
        world.faults(faults);
        let (begun, when) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let mut tool = Tool::new();
        let started = begun.clone();
        tool.watcher = Arc::new(move |event| {
            if let Event::StepStarted { .. } = event {
                started.store(true, Ordering::SeqCst);
            }
        });
        tool.hook = Arc::new({
            let (token, clock, when) = (tool.interrupt.clone(), world.clock.clone(), when.clone());
            move |point| {
                if point.verb == verb && begun.load(Ordering::SeqCst) {
                    token.cancel();
                    let mut when = when.lock().expect("no panic");
                    when.get_or_insert_with(|| clock.boottime());
                }
                ControlFlow::Continue(())
            }
        });
        let report = world.run(&tool, &job).expect("it lives");
        let report = report.expect("it runs");
        let sent = when.lock().expect("no panic").expect("a call was met");
        let took = world.clock.boottime() - sent;
        assert!(took <= Duration::from_secs(2), "{verb:?}: {took:?}");
        assert!(report.summary.interrupted, "{:#?}", report.summary);
        world.check_books();
        world.faults(FaultTable::none());
        world.check_settled(TWO, &world.apply(TWO));
        assert_eq!(world.ours().len(), 2, "{verb:?}");
        world.check_gone(&world.destroy());
    }
}

/// A token that has fired before the run begins: nothing is done at all.
#[test]
fn an_interrupt_before_the_first_step_lets_none_begin() {
    let world = World::new();
    let tool = Tool::new();
    tool.interrupt.cancel();
    let report = world
        .run(&tool, &apply_job())
        .expect("it lives")
        .expect("it runs");
    assert!(report.summary.interrupted);
    assert_eq!(report.summary.done, 0);
    assert_eq!(world.sim.count(Verb::Create), 0);
    world.check_settled(TWO, &world.apply(TWO));
}
