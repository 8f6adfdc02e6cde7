//! One test for each rule, each of which fails without it; and a crash at each request.

mod crash;
mod identity;
mod journal;
mod local;
mod lock;
mod power;
mod read;

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use stageline_core::id::RequestKey;
use stageline_core::id::{Address, Attempt, Epoch, Generation, Lineage, OperatorId, WriterId};
use stageline_core::journal::{Launch, Record, Verb};
use stageline_core::offer::QuoteId;
use stageline_core::unit::{MicroDollars, Timestamp};

use super::testing::{Fate, FaultyStore, Request};
use super::*;
use crate::ambient::SystemClock;

const LINEAGE: Lineage = Lineage([1; 16]);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

async fn writer_on(objects: &Arc<dyn ObjectStore>) -> Store {
    Store::on(objects.clone(), "test", Mode::Write)
        .await
        .expect("a sound store")
}

/// A store with faults; the probe is not counted.
async fn faulty(
    objects: &Arc<dyn ObjectStore>,
    script: impl Fn(&Request) -> Fate + Send + Sync + 'static,
) -> Store {
    let faulty = FaultyStore::new(objects.clone(), move |request| {
        if request.path.starts_with(PROBE) {
            Fate::Pass
        } else {
            script(request)
        }
    });
    Store::on(Arc::new(faulty), "test", Mode::Write)
        .await
        .expect("a sound store")
}

fn process(n: u8) -> Writer {
    Writer {
        id: WriterId([n; 16]),
        clock: Arc::new(SystemClock),
    }
}

fn run(command: &str) -> Begin {
    Begin {
        command: command.to_owned(),
        by: "ada@engine".to_owned(),
        plan: None,
        resume: false,
        expect_projection: None,
        first: Some(First {
            lineage: LINEAGE,
            operator: OperatorId([2; 32]),
            topology: name("demo"),
        }),
        wait_for_open: false,
    }
}

async fn begin(store: &Store, process: Writer, run: Begin) -> Result<Journal, BeginError> {
    let loaded = store.read().await?;
    Journal::begin(store, loaded, run, process).await
}

fn plan(n: u8) -> PlanId {
    PlanId([n; 16])
}

fn lease(index: u32) -> Address {
    format!("lease.gpu[{index}]").parse().expect("an address")
}

/// Intends the first try of one lease.
fn started(index: u32) -> Record {
    try_of(index, Attempt(1))
}

fn try_of(index: u32, attempt: Attempt) -> Record {
    let address = lease(index);
    Record::Started {
        launch: Some(Box::new(Launch {
            attempt,
            request_key: RequestKey::derive(&LINEAGE, &address, Generation(1), attempt),
            provider: name("vast"),
            provider_kind: "vastai".to_owned(),
            account: None,
            offer: name("cheap"),
            quote: QuoteId("17".to_owned()),
            price_per_hour: MicroDollars(100_000),
            boots_free: false,
            reservation: MicroDollars(200_000),
            limits: None,
            place: stageline_core::offer::Place::default(),
        })),
        on: None,
        address,
        generation: Generation(1),
        verb: Verb::Acquire,
        at: Timestamp::UNIX_EPOCH,
    }
}

/// The leases that are recorded, by index.
fn leases(state: &stageline_core::state::State) -> Vec<u32> {
    state
        .resources
        .keys()
        .filter_map(|address| address.lease().map(|id| id.index))
        .collect()
}
