//! The simulated world keeps its promises, and breaks exactly those that a fault says.

use stageline_core::resource::DISK;
use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::SecretBox;
use stageline_core::id::{Address, Attempt, Generation, JournalNumber, Lineage, OperatorId};
use stageline_core::offer::{DiskRange, Facts};
use stageline_core::resource::{DeliverySpec, EngineSpec, PipelineShare, PipelineSpec, StageSpec};
use stageline_core::topology::Dtype;
use stageline_core::unit::{Bytes, Millis, Timestamp};

use super::*;
use crate::ambient::{Clock as _, FakeClock};
use crate::machine::{Delivery, MachineError, Machines, Target, WorkerState};
use crate::provider::{Boot, MachineStatus};

const PRICE: MicroDollars = MicroDollars(3_600_000);

fn facts(cpus: u32) -> Facts {
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus,
        memory: Bytes::gib(8),
        disk: Bytes::gib(50),
        ..Facts::default()
    }
}

fn shape(id: &str, supply: Supply) -> Shape {
    Shape {
        id: QuoteId(id.to_owned()),
        facts: facts(4),
        price_per_hour: PRICE,
        supply,
        boot: Duration::from_secs(30),
    }
}

struct Case {
    clock: FakeClock,
    provider: SimProvider,
}

impl Case {
    fn new(faults: FaultTable) -> Self {
        let clock = FakeClock::auto(Timestamp::UNIX_EPOCH);
        let world = World::new(Arc::new(clock.clone()));
        let shapes = vec![shape("small", Supply::Many(3)), shape("one", Supply::One)];
        let name = "cloud".parse().expect("a name");
        let provider = world.account(&name, AccountSpec::new(shapes).faults(faults));
        Self { clock, provider }
    }

    fn request(&self, attempt: u32) -> CreateRequest {
        self.request_for("small", attempt)
    }

    fn request_for(&self, quote: &str, attempt: u32) -> CreateRequest {
        let lease: stageline_core::id::LeaseId = "lease.gpu[0]".parse().expect("a lease");
        let lineage = Lineage([7; 16]);
        let address = Address::Lease(lease.clone());
        let (generation, attempt) = (Generation(1), Attempt(attempt));
        CreateRequest {
            told: None,
            request_key: RequestKey::derive(&lineage, &address, generation, attempt),
            requirement: stageline_core::offer::Requirement::default(),
            quote: Quote {
                provider: self.provider.name.clone(),
                id: QuoteId(quote.to_owned()),
                facts: facts(4),
                price_per_hour: PRICE,
                disk: DiskRange::default(),
                supply: Supply::Many(3),
                bid: None,
            },
            disk: Bytes::gib(1),
            image: None,
            registry: None,
            mounts: Vec::new(),
            agent: None,
            boot: Boot {
                agent_key: SecretBox::new(Box::new([u8::try_from(attempt.0).expect("small"); 32])),
                operator: OperatorId([1; 32]),
                lineage,
                lease,
                generation,
                attempt,
                relay: None,
                limits: None,
            },
        }
    }

    fn alive(&self) -> usize {
        self.provider.world.alive().len()
    }

    async fn listed(&self) -> usize {
        self.provider.list().await.expect("visible").len()
    }
}

fn done(outcome: Outcome<Machine>) -> Machine {
    match outcome {
        Outcome::Done(machine) => machine,
        other @ (Outcome::Refused(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
}

fn target(sim: &SimMachine) -> Target {
    Target {
        lease: sim.lease.clone().expect("made by us"),
        endpoint: sim.endpoint.expect("made by us"),
        contact: Contact::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_boots_is_billed_by_the_millisecond_and_ends() {
    let case = Case::new(FaultTable::none());
    let machine = done(case.provider.create(case.request(1)).await);
    assert!(matches!(machine.status, MachineStatus::Pending(_)));
    case.clock.sleep(Duration::from_secs(30)).await;
    let shown = case.provider.describe(&machine.id).await.expect("visible");
    assert_eq!(shown.expect("known").status, MachineStatus::Running);
    case.clock.sleep(Duration::from_millis(1)).await;
    // $3.60 an hour is one thousand micro-dollars a second.
    let bill = case.provider.world.bill(&case.provider.name);
    assert_eq!(bill, MicroDollars(30_001));
    let released = case.provider.release(&machine.id).await.expect("accepted");
    assert_eq!(released, Released::Accepted);
    case.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(case.provider.world.bill(&case.provider.name), bill);
    assert_eq!((case.alive(), case.listed().await), (0, 0));
    let again = case.provider.release(&machine.id).await.expect("harmless");
    assert_eq!(again, Released::Unknown);
}

/// However a machine ended: what it cost is the time between two dates of a clock that nobody here sets.
#[tokio::test(start_paused = true)]
async fn an_account_that_tells_ends_tells_them_for_a_while_by_its_own_clock() {
    let silent = Case::new(FaultTable::none());
    assert_eq!(silent.provider.dated().await.expect("visible"), None);
    let case = Case::new(FaultTable::none());
    let world = case.provider.world.clone();
    let account = AccountSpec {
        tells_ends: Some(Duration::from_secs(600)),
        ..world.lock().accounts[&case.provider.name].clone()
    };
    let provider = world.account(&case.provider.name, account);
    let released = done(provider.create(case.request(1)).await).id;
    let by_hand = done(provider.create(case.request(2)).await).id;
    let up = done(provider.create(case.request(3)).await).id;
    case.clock.advance(Duration::from_secs(30));
    provider.release(&released).await.expect("accepted");
    case.clock.shift_wall(7200);
    case.clock.advance(Duration::from_secs(30));
    world.vanish(&by_hand);
    case.clock.advance(Duration::from_secs(30));
    let listed = provider.list().await.expect("visible");
    assert_eq!(listed.len(), 1, "what is over is no machine: {listed:?}");
    let dated = provider.dated().await.expect("visible").expect("it tells");
    for (id, seconds, over) in [
        (&released, 30, true),
        (&by_hand, 60, true),
        (&up, 90, false),
    ] {
        let one = dated.iter().find(|machine| machine.id == *id);
        let told = one.and_then(Machine::told).expect("told of").dates;
        let span = told.to.duration_since(told.from).as_secs();
        assert_eq!((span, told.over), (seconds, over), "{id}");
    }
    case.clock.advance(Duration::from_secs(600));
    let dated = provider.dated().await.expect("visible").expect("it tells");
    assert_eq!(dated.len(), 1, "forgotten: {dated:?}");
}

#[tokio::test(start_paused = true)]
async fn creates_end_as_their_fault_says() {
    enum End {
        Done,
        Doubt,
        Refused(FailureClass),
    }
    let late = Duration::from_secs(300);
    let table = [
        (Fault::CreateErrorAfterCommit, End::Doubt, 1),
        (Fault::CreateTimeoutAfterCommit, End::Doubt, 1),
        (Fault::CreateCut, End::Doubt, 1),
        (Fault::CreateErrorNoCommit, End::Doubt, 0),
        (Fault::CreateLateCommit(late), End::Doubt, 0),
        (Fault::CreateRefusedWithId, End::Doubt, 1),
        (Fault::CreateWrongCount(2), End::Doubt, 2),
        (Fault::CreateWrongCount(0), End::Doubt, 0),
        (
            Fault::RateLimited(None),
            End::Refused(FailureClass::Rate),
            0,
        ),
        (Fault::OfferGone, End::Refused(FailureClass::OfferGone), 0),
        (Fault::CapacityGone, End::Refused(FailureClass::Capacity), 0),
        (Fault::AuthRevoked, End::Refused(FailureClass::Auth), 0),
        (
            Fault::Refused(FailureClass::Quota),
            End::Refused(FailureClass::Quota),
            0,
        ),
        (Fault::ListLag(late), End::Done, 1),
        (Fault::GetLag(late), End::Done, 1),
    ];
    for (fault, end, alive) in table {
        let knob = fault.knob();
        let case = Case::new(FaultTable::none().on(Verb::Create, When::Nth(1), fault.clone()));
        let outcome = case.provider.create(case.request(1)).await;
        let right = match (&outcome, end) {
            (Outcome::Done(_), End::Done) | (Outcome::InDoubt(_), End::Doubt) => true,
            (Outcome::Refused(cause), End::Refused(class)) => cause.class == class,
            (Outcome::Done(_) | Outcome::InDoubt(_) | Outcome::Refused(_), _) => false,
        };
        assert!(right, "{knob}: {outcome:?}");
        assert_eq!(case.alive(), alive, "{knob}");
        assert_eq!(case.provider.world.calls()[0].faults, [knob]);
        let appears = matches!(fault, Fault::CreateLateCommit(_) | Fault::ListLag(_));
        if appears {
            assert_eq!(case.listed().await, 0, "{knob}");
            case.clock.sleep(late).await;
            assert_eq!(case.listed().await, 1, "{knob}");
        }
        // The second try is not hit.
        done(case.provider.create(case.request(2)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_cannot_be_trusted_is_never_an_empty_one() {
    for fault in [
        Fault::ListSuccessFalse,
        Fault::ListPageLost,
        Fault::ListTruncated,
        Fault::AuthRevoked,
        Fault::RateLimited(Some(Duration::from_secs(7))),
    ] {
        let case = Case::new(FaultTable::none().on_any(When::From(1), fault.clone()));
        assert!(case.provider.list().await.is_err(), "{fault:?}");
        assert!(case.provider.find("sl-").await.is_err(), "{fault:?}");
        assert!(
            case.provider
                .search(&Requirement::default(), DISK)
                .await
                .is_err()
        );
        let id = "sim-000001".parse().expect("an id");
        assert!(case.provider.describe(&id).await.is_err(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn releases_end_as_their_fault_says() {
    let span = Duration::from_secs(120);
    // The fault, whether the call succeeds, then billed and listed right after.
    let table = [
        (Fault::TerminateNoop, true, 1, 1),
        (Fault::TerminateErrorAfterCommit, false, 0, 0),
        (Fault::TerminateErrorNoCommit, false, 1, 1),
        (Fault::DeleteLate(span), true, 1, 1),
        (Fault::ListGhost(span), true, 0, 1),
        (Fault::OtherAccount, true, 1, 1),
    ];
    for (fault, accepted, billed, listed) in table {
        let faults = FaultTable::none().on(Verb::Release, When::Nth(1), fault.clone());
        let case = Case::new(faults);
        let machine = done(case.provider.create(case.request(1)).await);
        let answer = case.provider.release(&machine.id).await;
        assert_eq!(answer.is_ok(), accepted, "{fault:?}");
        assert_eq!(case.alive(), billed, "{fault:?}");
        assert_eq!(case.listed().await, listed, "{fault:?}");
        case.clock.sleep(span).await;
        case.provider.release(&machine.id).await.expect("repeated");
        assert_eq!((case.alive(), case.listed().await), (0, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn offers_run_out_and_prices_rise() {
    let faults = FaultTable::none().on(Verb::Create, When::Nth(2), Fault::PricePerMille(1010));
    let case = Case::new(faults);
    done(case.provider.create(case.request_for("one", 1)).await);
    let one = QuoteId("one".to_owned());
    assert_eq!(case.provider.quote(&one, DISK).await, Ok(None));
    let dear = done(case.provider.create(case.request(2)).await);
    assert_eq!(dear.price_per_hour, MicroDollars(3_636_000));
    let small = QuoteId("small".to_owned());
    let left = case.provider.quote(&small, DISK).await.expect("visible");
    assert_eq!(left.expect("offered").supply, Supply::Many(2));
    done(case.provider.create(case.request(3)).await);
    done(case.provider.create(case.request(4)).await);
    let full = case.provider.create(case.request(5)).await;
    assert!(matches!(full, Outcome::Refused(cause) if cause.class == FailureClass::Capacity));
    // As with `local`: what is sold out is shown to whoever gives one back first, and cannot be taken.
    let shown = case.provider.search(&Requirement::default(), DISK).await;
    let shown = shown.expect("visible").into_iter();
    let shown: Vec<(String, Supply)> = shown.map(|quote| (quote.id.0, quote.supply)).collect();
    assert!(
        shown.contains(&("small".to_owned(), Supply::Many(0))),
        "{shown:?}"
    );
    assert!(shown.iter().all(|(id, _)| id != "one"), "{shown:?}");
    assert_eq!(case.provider.quote(&small, DISK).await, Ok(None));
    case.provider
        .world
        .set_price(&case.provider.name, &small, MicroDollars(5));
    assert_eq!(case.alive(), 4);
}

#[tokio::test(start_paused = true)]
async fn machines_of_others_are_never_ours() {
    let case = Case::new(FaultTable::none());
    let name = case.provider.name.clone();
    let world = &case.provider.world;
    for label in ["sl-dashboard", "web-1", "SL-0707070707070707-12345678-g1a1"] {
        world.plant(&name, label, PRICE);
    }
    let machine = done(case.provider.create(case.request(1)).await);
    let twin = machine.request_key.clone().expect("ours").to_string();
    world.plant(&name, &twin, PRICE);
    assert_eq!(case.listed().await, 5, "a listing has all of the account");
    let prefix = RequestKey::mark(&Lineage([7; 16]));
    assert_eq!(case.provider.find(&prefix).await.expect("seen").len(), 2);
    assert_eq!(case.provider.find("sl-08").await.expect("seen").len(), 0);
    assert_eq!(case.alive(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_crash_stops_before_or_after_the_effect_and_the_world_stays() {
    for (dies_at, alive) in [(1, 0), (2, 1)] {
        let case = Case::new(FaultTable::none());
        let crash = CrashPoint::at(dies_at);
        case.provider.world.set_hook(Some(crash.hook()));
        tokio::select! {
            outcome = case.provider.create(case.request(1)) => panic!("{outcome:?}"),
            () = crash.died() => {}
        }
        assert_eq!(case.alive(), alive);
        case.provider.world.set_hook(None);
        assert_eq!(case.listed().await, alive);
    }
    let case = Case::new(FaultTable::none());
    let count = CrashPoint::never();
    case.provider.world.set_hook(Some(count.hook()));
    done(case.provider.create(case.request(1)).await);
    assert_eq!(count.reached(), 2);
    let copy = World::with_state(Arc::new(case.clock.clone()), case.provider.world.snapshot());
    assert!(copy.vanish(&copy.alive()[0].id));
    assert_eq!((copy.alive().len(), case.alive()), (0, 1));
}

#[test]
fn dice_are_repeatable_and_fair_enough() {
    let table = |seed| {
        FaultTable::none()
            .seeded(seed)
            .on(Verb::Find, When::Percent(30), Fault::ListPageLost)
    };
    let draw = |seed| -> Vec<bool> {
        let table = table(seed);
        (1..=1000)
            .map(|n| !table.hits(Verb::Find, n).is_empty())
            .collect()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let hits = draw(1).iter().filter(|hit| **hit).count();
    assert!((250..350).contains(&hits), "{hits}");
    assert!(table(1).hits(Verb::List, 1).is_empty());
}

fn stage_spec() -> StageSpec {
    StageSpec {
        on: "lease.gpu[0]".parse().expect("a lease"),
        num_stages: 1,
        engine: EngineSpec::Stub,
        layers: None,
        model: None,
        engine_args: vec![],
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        gpus: vec![],
        dtype: Dtype::F32,
        context: None,
        ready_timeout: Millis::seconds(10),
    }
}

async fn deliver(machines: &dyn Machines, to: &Target, revision: u64) -> Result<(), MachineError> {
    let share = PipelineShare {
        shard: None,
        roster: vec![],
        prompt_from: vec![],
        max_in_flight: 4,
        request_timeout: Millis::seconds(10),
        dtype: Dtype::F32,
    };
    let pipelines = [("llama".parse().expect("a name"), share)];
    let delivery = Delivery {
        spec: &DeliverySpec {
            pipelines: pipelines.into(),
            relay: None,
        },
        revision: JournalNumber(revision),
        peers: BTreeMap::new(),
        tokens: &BTreeMap::new(),
        progress: &|_, _| {},
    };
    machines.deliver(to, delivery).await
}

#[tokio::test(start_paused = true)]
async fn agents_answer_while_their_machine_is_up_and_keep_what_they_are_told() {
    let case = Case::new(FaultTable::none());
    let machines = case.provider.world.hands();
    let machine = done(case.provider.create(case.request(1)).await);
    let target = target(&case.provider.world.alive()[0]);
    let early = machines.status(&target).await;
    assert!(matches!(early, Err(MachineError::Unreachable { .. })));
    case.clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(machines.status(&target).await.expect("up").facts, facts(4));

    let stage = "stage.llama[0]".parse().expect("a stage");
    let spec = stage_spec();
    let start = || machines.start(&target, &stage, &spec, BTreeMap::new());
    let early = start().await;
    assert!(matches!(early, Err(MachineError::Refused { code, .. }) if code == "not-delivered"));
    deliver(&machines, &target, 5).await.expect("taken");
    deliver(&machines, &target, 5).await.expect("repeated");
    let older = deliver(&machines, &target, 4).await;
    assert!(matches!(older, Err(MachineError::Refused { code, .. }) if code == "roster-old"));
    let pipeline: Name = "llama".parse().expect("a name");
    let check = PipelineSpec {
        stages: vec![spec.on.clone()],
        prompt: "2+2?".to_owned(),
        max_tokens: 4,
        expect: Some("4".to_owned()),
        request_timeout: Millis::seconds(10),
    };
    let down = machines.check(&target, &pipeline, &check).await;
    assert!(matches!(down, Err(MachineError::Refused { code, .. }) if code == "stage-down"));
    start().await.expect("started");
    let answer = machines.check(&target, &pipeline, &check).await;
    assert_eq!(answer.expect("answered").text, "4");
    machines.stop(&target, &stage).await.expect("stopped");
    machines.stop(&target, &stage).await.expect("repeated");
    case.provider.release(&machine.id).await.expect("accepted");
    let gone = machines.status(&target).await;
    assert!(matches!(gone, Err(MachineError::Unreachable { .. })));
}

#[tokio::test(start_paused = true)]
async fn agents_fail_as_their_fault_says() {
    let faults = FaultTable::none()
        .on(
            Verb::Create,
            When::Always,
            Fault::BootWrongFacts(Box::new(facts(1))),
        )
        .on(
            Verb::Start,
            When::Nth(1),
            Fault::WorkerFails("exit status 1".to_owned()),
        )
        .on(Verb::Start, When::Nth(2), Fault::CutAfterEffect)
        .on(Verb::Stop, When::Nth(1), Fault::Unreachable);
    let case = Case::new(faults);
    let machines = case.provider.world.hands();
    done(case.provider.create(case.request(1)).await);
    case.clock.sleep(Duration::from_secs(30)).await;
    let target = target(&case.provider.world.alive()[0]);
    deliver(&machines, &target, 1).await.expect("taken");
    assert_eq!(machines.status(&target).await.expect("up").facts.cpus, 1);
    let stage = "stage.llama[0]".parse().expect("a stage");
    let spec = stage_spec();
    let start = || machines.start(&target, &stage, &spec, BTreeMap::new());
    assert!(matches!(start().await, Err(MachineError::Refused { .. })));
    assert!(matches!(
        start().await,
        Err(MachineError::Unreachable { .. })
    ));
    let status = machines.status(&target).await.expect("up");
    let worker = &status.stages[&stage].worker;
    assert!(matches!(worker, WorkerState::Ready { .. }));
    assert!(machines.stop(&target, &stage).await.is_err());
    let status = machines.status(&target).await.expect("up");
    assert_eq!(status.stages.len(), 1);
}
