//! Machines of a simulated account, told apart by what states say of them.

use std::time::Duration;

use stageline_core::id::{Attempt, Generation, Lineage, OperatorId, RequestKey};
use stageline_core::offer::QuoteId;
use stageline_core::resource::{LeaseReceipt, Receipt};
use stageline_core::state::{Genesis, OpenAttempt, Recorded};

use super::*;
use crate::ambient::FakeClock;
use crate::provider::sim::{AccountSpec, Fault, FaultTable, Verb, When, World};

const OURS: Lineage = Lineage([1; 16]);
const THEIRS: Lineage = Lineage([2; 16]);
const NOBODYS: Lineage = Lineage([3; 16]);
const PRICE: MicroDollars = MicroDollars(400_000);

struct Scene {
    clock: FakeClock,
    world: World,
    providers: Providers,
}

fn cloud() -> Name {
    "cloud".parse().expect("a name")
}

fn lease(text: &str) -> LeaseId {
    text.parse().expect("a lease")
}

fn key(lineage: Lineage, on: &str, attempt: u32) -> RequestKey {
    let address = Address::Lease(lease(on));
    RequestKey::derive(&lineage, &address, Generation(1), Attempt(attempt))
}

impl Scene {
    fn new(faults: FaultTable) -> Self {
        let clock = FakeClock::auto(Timestamp::UNIX_EPOCH);
        let world = World::new(Arc::new(clock.clone()));
        let provider = world.account(&cloud(), AccountSpec::new(Vec::new()).faults(faults));
        let mut providers = Providers::default();
        providers.insert(cloud(), Arc::new(provider));
        Self {
            clock,
            world,
            providers,
        }
    }

    fn plant(&self, label: &str) -> MachineId {
        self.world.plant(&cloud(), label, PRICE)
    }

    async fn look(&self, own: &State, beside: &[(String, State)]) -> Found {
        let listings = list(&self.providers, &self.clock).await;
        let known = Known {
            own,
            beside,
            declared: vec![lease("lease.gpu[0]"), lease("lease.gpu[1]")],
        };
        tell(&listings, &known)
    }
}

fn state(lineage: Lineage) -> State {
    State {
        genesis: Some(Genesis {
            lineage,
            operator: OperatorId([9; 32]),
            topology: "demo".parse().expect("a name"),
        }),
        ..State::default()
    }
}

/// A state that has this machine under lease.gpu[0].
fn with(lineage: Lineage, machine: &MachineId) -> State {
    let mut state = state(lineage);
    let receipt = LeaseReceipt {
        provider: cloud(),
        provider_kind: "sim".to_owned(),
        offer: "any".parse().expect("a name"),
        quote: QuoteId("small".to_owned()),
        machine: machine.clone(),
        request_key: key(lineage, "lease.gpu[0]", 1),
        account: None,
        price_per_hour: PRICE,
        place: stageline_core::offer::Place::default(),
        created_at: Timestamp::UNIX_EPOCH,
        ready: None,
    };
    let recorded = Recorded {
        generation: Generation(1),
        spec: None,
        receipt: Some(Receipt::Lease(Box::new(receipt))),
        pending: None,
        attempts: std::collections::BTreeMap::new(),
        last_attempt: Attempt(1),
        tried_since: None,
        tried: std::collections::BTreeMap::new(),
        billed: None,
        made_for: None,
    };
    let address = Address::Lease(lease("lease.gpu[0]"));
    state.generations.insert(address.clone(), Generation(1));
    state.resources.insert(address, recorded);
    state
}

#[tokio::test]
async fn each_machine_is_told_by_its_mark() {
    let scene = Scene::new(FaultTable::none());
    let held = scene.plant(key(OURS, "lease.gpu[0]", 1).as_str());
    let extra = scene.plant(key(OURS, "lease.gpu[0]", 2).as_str());
    let twin = scene.plant(key(OURS, "lease.gpu[0]", 1).as_str());
    let old = scene.plant(key(OURS, "lease.old[7]", 1).as_str());
    let neighbours = scene.plant(key(THEIRS, "lease.gpu[0]", 1).as_str());
    let neighbours_lost = scene.plant(key(THEIRS, "lease.gpu[1]", 1).as_str());
    let lost = scene.plant(key(NOBODYS, "lease.gpu[1]", 1).as_str());
    let (own, beside) = (with(OURS, &held), with(THEIRS, &neighbours));

    let beside = [("other".to_owned(), beside)];
    let found = scene.look(&own, &beside).await;
    assert_eq!((found.recorded, found.others), (2, 0));
    let told: Vec<(MachineId, Whose, Option<LeaseId>)> = found
        .orphans
        .iter()
        .map(|one| (one.id().clone(), one.whose.clone(), one.lease.clone()))
        .collect();
    let at = |text: &str| Some(lease(text));
    assert_eq!(
        told,
        [
            (extra, Whose::Own, at("lease.gpu[0]")),
            (twin, Whose::Own, at("lease.gpu[0]")),
            (old, Whose::Own, None),
            (neighbours_lost, Whose::Beside("other".to_owned()), None),
            (lost, Whose::Unknown, at("lease.gpu[1]")),
        ]
    );
}

#[tokio::test]
async fn without_a_state_every_mark_is_of_an_unknown_lineage() {
    let scene = Scene::new(FaultTable::none());
    scene.plant(key(OURS, "lease.gpu[0]", 1).as_str());
    scene.clock.advance(Duration::from_secs(90 * 60));
    let found = scene.look(&State::default(), &[]).await;
    let [one] = found.orphans.as_slice() else {
        panic!("one machine");
    };
    assert_eq!(one.whose, Whose::Unknown);
    assert_eq!(one.lease, Some(lease("lease.gpu[0]")));
    let now = scene.clock.now();
    assert_eq!(one.age(now), Some(90 * 60));
    assert_eq!(one.cost(now), Some(MicroDollars(600_000)));
}

#[tokio::test]
async fn look_alikes_are_no_orphans_and_told_apart_from_strangers() {
    let scene = Scene::new(FaultTable::none());
    let real = key(OURS, "lease.gpu[0]", 1);
    let held = scene.plant(real.as_str());
    let text = real.as_str();
    let mut like = Vec::new();
    for label in [
        text.to_uppercase(),
        format!("my-{text}"),
        format!("{text}-2"),
        text[..text.len() - 2].to_owned(),
        key(THEIRS, "lease.gpu[1]", 1).to_string() + " (2)",
        // Of nobody that is known here, and with our mark at the beginning.
        key(NOBODYS, "lease.gpu[1]", 1).to_string() + "-2",
    ] {
        like.push((scene.plant(&label), label));
    }
    like.sort();
    let nobodys = key(NOBODYS, "lease.gpu[1]", 1);
    for label in ["sl-worker", "", &format!("my-{nobodys}")] {
        scene.plant(label);
    }
    let beside = [("other".to_owned(), state(THEIRS))];
    let look = async || {
        let found = scene.look(&with(OURS, &held), &beside).await;
        assert_eq!(
            (found.orphans.len(), found.recorded, found.others),
            (0, 1, 9)
        );
        let told = found.look_alikes.into_iter();
        let mut told: Vec<_> = told
            .map(|one| (one.machine, one.name.to_string()))
            .collect();
        told.sort();
        assert_eq!(told, like);
    };
    look().await;
    // Somebody renamed ours: by its id it is recorded all the same.
    scene.world.alter(&held, |machine, _| {
        machine.label = format!("{real}-renamed");
    });
    look().await;
}

#[tokio::test]
async fn a_try_on_record_is_no_orphan_and_one_given_up_is_told() {
    let scene = Scene::new(FaultTable::none());
    let machine = scene.plant(key(OURS, "lease.gpu[1]", 1).as_str());
    let mut own = state(OURS);
    own.disowned.insert(
        machine,
        stageline_core::state::Disowned {
            lease: lease("lease.box[0]"),
            provider: cloud(),
            provider_kind: "sim".to_owned(),
            price_per_hour: PRICE,
            at: Timestamp::UNIX_EPOCH,
        },
    );
    let found = scene.look(&own, &[]).await;
    assert_eq!(found.orphans[0].whose, Whose::GivenUp);
    assert_eq!(found.orphans[0].lease, Some(lease("lease.box[0]")));

    let launch = stageline_core::journal::Launch {
        attempt: Attempt(1),
        request_key: key(OURS, "lease.gpu[1]", 1),
        provider: cloud(),
        provider_kind: "sim".to_owned(),
        account: None,
        offer: "any".parse().expect("a name"),
        quote: QuoteId("small".to_owned()),
        price_per_hour: PRICE,
        boots_free: false,
        reservation: PRICE,
        limits: None,
        place: stageline_core::offer::Place::default(),
    };
    let open = OpenAttempt {
        launch,
        at: Timestamp::UNIX_EPOCH,
        cause: None,
        counted_since: None,
        leaving: None,
        billed: None,
    };
    let mut begun = with(OURS, &"elsewhere".parse().expect("an id"));
    let (_, recorded) = begun.resources.first_key_value().expect("it has a lease");
    let recorded = Recorded {
        receipt: None,
        attempts: [(Attempt(1), open)].into(),
        ..recorded.clone()
    };
    begun
        .resources
        .insert(Address::Lease(lease("lease.gpu[1]")), recorded);
    let found = scene.look(&begun, &[]).await;
    assert_eq!((found.orphans.len(), found.recorded), (0, 1));
}

#[tokio::test]
async fn who_cannot_be_seen_is_never_empty() {
    for fault in [
        Fault::AuthRevoked,
        Fault::ListPageLost,
        Fault::ListTruncated,
    ] {
        let scene = Scene::new(FaultTable::none().on(Verb::List, When::Always, fault));
        scene.plant(key(OURS, "lease.gpu[0]", 1).as_str());
        let listings = list(&scene.providers, &scene.clock).await;
        assert!(listings[0].machines.is_err());
    }
}
