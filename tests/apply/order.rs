//! What is started when: no call before its intention is durable, no step before all that it waits for is durably done,
//! never more at once than asked for; and a call that is made twice changes nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stageline::core::id::{Address, RequestKey};
use stageline::core::journal::Verb as StepVerb;
use stageline::core::plan::Plan;
use stageline::core::state::State;
use stageline::machine::sim::AgentState;
use stageline::provider::sim::{
    AccountSpec, CallPoint, Fault, FaultTable, Side, Verb, When, World as Sim,
};
use stageline::store::{Mode, Store};

use super::world::{Job, PRICE, TWO, Tool, World, shape};

/// What is durable at this moment.
fn durable(objects: &Arc<dyn object_store::ObjectStore>) -> (State, Plan) {
    futures::executor::block_on(async {
        let store = Store::on(objects.clone(), "test", Mode::Read)
            .await
            .expect("opened");
        let state = store.read().await.expect("sound").state;
        let id = state
            .run
            .as_ref()
            .and_then(|run| run.plan)
            .expect("a run of a plan");
        let bytes = store
            .get_plan(id)
            .await
            .expect("sound")
            .expect("stored before its run");
        (state, Plan::decode(&bytes).expect("a plan"))
    })
}

/// The step that a call belongs to.
fn step_of(point: &CallPoint, subject: &str) -> Option<(Address, StepVerb)> {
    let parse = |text: String| text.parse::<Address>().expect("an address");
    match point.verb {
        Verb::Deliver => Some((
            parse(point.who.replace("lease.", "delivery.")),
            StepVerb::Deliver,
        )),
        Verb::Start => Some((parse(subject.to_owned()), StepVerb::Start)),
        Verb::Stop => Some((parse(subject.to_owned()), StepVerb::Stop)),
        Verb::Check => Some((parse(format!("pipeline.{subject}")), StepVerb::Check)),
        Verb::Expose => Some((parse(format!("exposure.{subject}")), StepVerb::Expose)),
        Verb::Unexpose => Some((parse(format!("exposure.{subject}")), StepVerb::Unexpose)),
        Verb::Search
        | Verb::Quote
        | Verb::Create
        | Verb::Find
        | Verb::List
        | Verb::Describe
        | Verb::Release
        | Verb::Logs
        | Verb::Account
        | Verb::Status
        | Verb::Drain
        | Verb::Limit
        | Verb::SetUp
        | Verb::AgentLogs => None,
    }
}

fn check_point(sim: &Sim, objects: &Arc<dyn object_store::ObjectStore>, point: &CallPoint) {
    let call = &sim.calls()[usize::try_from(point.call).expect("few") - 1];
    if point.verb == Verb::Create {
        let (state, _) = durable(objects);
        let key: RequestKey = call.subject.parse().expect("a key");
        let open = state
            .resources
            .values()
            .flat_map(|recorded| recorded.attempts.values());
        let mut keys = open.map(|open| &open.launch.request_key);
        assert!(keys.any(|other| *other == key), "{key} is not on disk");
    }
    let Some((address, verb)) = step_of(point, &call.subject) else {
        return;
    };
    let (state, plan) = durable(objects);
    let pending = state.resources[&address].pending.as_ref();
    assert_eq!(pending.map(|pending| pending.verb), Some(verb), "{address}");
    let step = plan
        .steps
        .iter()
        .find(|step| step.address == address && step.verb == verb);
    let done = &state.run.as_ref().expect("a run").steps_done;
    for before in &step.expect("it is in the plan").after {
        assert!(
            done.contains(before),
            "{address} starts before step {before:?} is done"
        );
    }
}

#[test]
fn nothing_goes_out_before_what_it_needs_is_durable() {
    let world = World::new();
    let (sim, objects) = (world.sim.clone(), world.objects.clone());
    let checked = Arc::new(AtomicUsize::new(0));
    let mut tool = Tool::new();
    tool.hook = Arc::new({
        let checked = checked.clone();
        move |point| {
            if point.side == Side::Before {
                check_point(&sim, &objects, point);
                checked.fetch_add(1, Ordering::SeqCst);
            }
            ControlFlow::Continue(())
        }
    });
    let moved = TWO
        .replace("count = 2", "count = 3")
        .replace("lease.box[1]", "lease.box[2]");
    for text in [TWO, &moved] {
        let job = Job::Apply(text.to_owned());
        let report = world.run(&tool, &job).expect("it lives").expect("it runs");
        world.check_settled(text, &report);
    }
    assert!(checked.load(Ordering::SeqCst) > 20);
}

#[test]
fn never_more_calls_at_once_than_asked_for() {
    for parallelism in [1, 3] {
        let mut account = AccountSpec::new(vec![shape("a", PRICE)]);
        account.latency = Duration::from_millis(700);
        let world = World::with(account);
        let running = Arc::new(Mutex::new((0_usize, 0_usize)));
        let mut tool = Tool::new();
        tool.parallelism = parallelism;
        tool.hook = Arc::new({
            let running = running.clone();
            move |point| {
                let mut running = running.lock().expect("no panic");
                match point.side {
                    Side::Before => running.0 += 1,
                    Side::After => running.0 -= 1,
                }
                running.1 = running.1.max(running.0);
                ControlFlow::Continue(())
            }
        });
        let six = TWO.replace("count = 2", "count = 6");
        let report = world
            .run(&tool, &Job::Apply(six.clone()))
            .expect("it lives")
            .expect("it runs");
        world.check_settled(&six, &report);
        let most = running.lock().expect("no panic").1;
        assert_eq!(most, parallelism);
    }
}

/// What agents have, by lease, but for the revisions of rosters, which rise.
fn agents(world: &World) -> BTreeMap<String, AgentState> {
    let agents = world.ours().into_iter().map(|machine| {
        let mut agent = machine.agent;
        for (_, revision) in agent.deliveries.values_mut() {
            *revision = stageline::core::id::JournalNumber(0);
        }
        (machine.label, agent)
    });
    agents.collect()
}

/// Receipts of what stands on machines.
fn receipts(world: &World) -> Vec<String> {
    let state = world.state();
    let rest = state.existing().filter(|(address, _)| {
        let kind = address.kind();
        kind == "stage" || kind == "exposure" || kind == "pipeline"
    });
    rest.map(|(address, recorded)| format!("{address} {:?} {:?}", recorded.spec, recorded.receipt))
        .collect()
}

#[test]
fn a_call_that_is_made_twice_changes_nothing() {
    let clean = World::new();
    clean.check_settled(TWO, &clean.apply(TWO));
    for verb in [Verb::Deliver, Verb::Start, Verb::Check, Verb::Expose] {
        let world = World::new();
        let twice = FaultTable::none().on(verb, When::Until(2), Fault::CutAfterEffect);
        world.faults(twice);
        world.check_settled(TWO, &world.apply(TWO));
        assert!(world.sim.count(verb) > clean.sim.count(verb));
        assert_eq!(agents(&world), agents(&clean), "{verb:?}");
        assert_eq!(receipts(&world), receipts(&clean), "{verb:?}");
    }
    // What is taken down twice, and ended twice.
    let bare = TWO.split("[pipeline.toy]").next().expect("text").to_owned();
    clean.check_settled(&bare, &clean.apply(&bare));
    for verb in [Verb::Stop, Verb::Unexpose] {
        let world = World::new();
        world.apply(TWO);
        world.faults(FaultTable::none().on(verb, When::Until(2), Fault::CutAfterEffect));
        world.check_settled(&bare, &world.apply(&bare));
        assert_eq!(agents(&world), agents(&clean), "{verb:?}");
    }
    let twice = FaultTable::none();
    let twice = twice.on(
        Verb::Release,
        When::Until(2),
        Fault::TerminateErrorAfterCommit,
    );
    clean.faults(twice);
    clean.check_gone(&clean.destroy());
}
