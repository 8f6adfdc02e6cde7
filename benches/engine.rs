//! What the engine itself costs per change: `apply` of instant simulated leases, parallelism 10, with every write synced.
//!
//! The machines are simulated and ready at once, so what is measured is planning's result being carried out: the step
//! protocol, the scheduler, the journal with its snapshots. State is on a real disk, under `target/`. One change is one
//! lease: two steps, four records. Bytes are all that the process hands to `write`, by /proc/self/io.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use stageline::ambient::{SharedClock, SystemClock};
use stageline::apply::testing::{NoSecrets, TestKeys};
use stageline::apply::{self, Effects, PARALLELISM, Providers};
use stageline::core::id::{Lineage, Name, OperatorId, WriterId};
use stageline::core::offer::{Facts, QuoteId, Supply};
use stageline::core::plan::{self, Draft, Market, Mode, Plan};
use stageline::core::resource::Spec;
use stageline::core::state::{Observed, State};
use stageline::core::topology::{self, SourceFile, VarSources};
use stageline::core::unit::{Bytes, MicroDollars, Millis};
use stageline::machine::Machines;
use stageline::provider::Provider;
use stageline::provider::sim::{self, AccountSpec, Shape};
use stageline::store::{Begin, First, Journal, Mode as Access, StateUrl, Store, Writer};
use tokio_util::sync::CancellationToken;

const LINEAGE: Lineage = Lineage([7; 16]);

fn here() -> Name {
    "here".parse().expect("a name")
}

fn world(clock: &SharedClock) -> sim::World {
    let world = sim::World::new(clock.clone());
    let shape = Shape {
        id: QuoteId("a".to_owned()),
        facts: Facts {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            cpus: 8,
            memory: Bytes::gib(16),
            disk: Bytes::gib(100),
            ..Facts::default()
        },
        price_per_hour: MicroDollars(100_000),
        // Counting what is taken would be the simulator's own work.
        supply: Supply::Many(u32::MAX),
        boot: Duration::ZERO,
    };
    world.account(&here(), AccountSpec::new(vec![shape]));
    world
}

/// The plan that rents so many machines.
async fn draft(count: usize, provider: &dyn Provider, clock: &SharedClock) -> Plan {
    let text = format!(
        "version = 1\nname = \"bench\"\n[provider.here]\nkind = \"local\"\n[offer.any]\nprovider = \"here\"\n\
         [lease.box]\noffers = [\"any\"]\ncount = {count}\n"
    );
    let files = [SourceFile {
        name: "topology.toml".to_owned(),
        text,
    }];
    let (topology, _) = topology::read(&files, &VarSources::default()).expect("a topology");
    let mut desired = plan::expand(&topology, &BTreeMap::new()).expect("it can be expanded");
    // No topology can name the simulator.
    for spec in desired.specs.values_mut() {
        if let Spec::Lease(lease) = spec {
            for terms in &mut lease.to_mut().terms {
                provider.kind().clone_into(&mut terms.provider_kind);
            }
        }
    }
    let quotes = provider
        .search(&Default::default(), stageline_core::resource::DISK)
        .await
        .map_err(|blind| blind.cause);
    let market = Market {
        kind: provider.kind().to_owned(),
        free: false,
        unbilled: false,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
        quotes,
    };
    let options = plan::Options {
        mode: Mode::Apply,
        now: clock.now(),
        targets: Vec::new(),
        excludes: Vec::new(),
        replace: Vec::new(),
        limits: topology.limits.clone(),
        topology_digest: None,
        refresh_only: false,
        renew: stageline_core::plan::Renew::Nothing,
        watched: true,
        boot: None,
        rooms: std::collections::BTreeMap::new(),
    };
    plan::draft(&Draft {
        desired: &desired,
        recorded: &State::default(),
        observed: &Observed::default(),
        markets: &BTreeMap::from([(here(), market)]),
        options: &options,
    })
    .expect("a plan")
}

struct Figures {
    wall: Duration,
    cpu: Duration,
    written: u64,
}

async fn measure(count: usize, folder: &Path) -> Figures {
    let clock: SharedClock = Arc::new(SystemClock);
    let world = world(&clock);
    let provider: Arc<dyn Provider> = Arc::new(world.provider(&here()));
    let plan = draft(count, provider.as_ref(), &clock).await;
    let url = StateUrl::of(folder.to_owned());
    let store = Store::open(&url, &plan.topology, None, Access::Write)
        .await
        .expect("a store");
    let loaded = store.read().await.expect("an empty state");
    let mut providers = Providers::default();
    providers.insert(here(), provider);
    let effects = Effects {
        providers,
        machines: Some(Arc::new(world.hands()) as Arc<dyn Machines>),
        keys: Some(Arc::new(TestKeys(LINEAGE))),
        secrets: Arc::new(NoSecrets),
        clock: clock.clone(),
        events: Arc::new(|_| {}),
    };
    let options = apply::Options {
        parallelism: PARALLELISM,
        max_total_per_hour: None,
        max_spend: None,
        caps: std::collections::BTreeMap::new(),
        max_leases: None,
        interrupt: CancellationToken::new(),
        grace: Millis(1500),
    };
    let (start, cpu, written) = (Instant::now(), cpu(), written());
    let begin = Begin {
        command: "apply".to_owned(),
        by: "bench".to_owned(),
        plan: Some(plan.id),
        resume: false,
        expect_projection: Some(plan.base),
        first: Some(First {
            lineage: LINEAGE,
            operator: OperatorId([1; 32]),
            topology: plan.topology.clone(),
        }),
        wait_for_open: false,
    };
    let writer = Writer {
        id: WriterId([1; 16]),
        clock: clock.clone(),
    };
    let journal = Journal::begin(&store, loaded, begin, writer)
        .await
        .expect("a run");
    let summary = apply::run(&plan, &journal, &effects, &options).await;
    journal
        .finish(summary.finished())
        .await
        .expect("the run ends");
    assert!(summary.finished(), "{:?}", summary.failed.first());
    Figures {
        wall: start.elapsed(),
        cpu: self::cpu() - cpu,
        written: self::written() - written,
    }
}

/// Processor time of this process, all threads.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Bytes that this process handed to `write`.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or_default()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    println!(
        "{:>7} {:>12} {:>12} {:>14}",
        "leases", "ms wall", "ms CPU", "bytes"
    );
    println!("{:>7} {:>40}", "", "(each per change)");
    for count in [100_usize, 1_000, 3_000] {
        for _ in 0..3 {
            let folder =
                tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
            let figures = runtime.block_on(measure(count, folder.path()));
            let each = |span: Duration| span.as_secs_f64() * 1000.0 / count as f64;
            let bytes = figures.written / u64::try_from(count).unwrap_or(1);
            println!(
                "{count:>7} {:>12.3} {:>12.3} {bytes:>14}",
                each(figures.wall),
                each(figures.cpu)
            );
        }
    }
}
