//! A world that outlives the tool: one account, its machines, and a state store. The tool comes and goes in it as
//! processes, each on a runtime of its own, and may be killed at any call.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use stageline::ambient::{self, Clock, FakeClock, SharedClock};
use stageline::apply::testing::{NoSecrets, TestKeys};
use stageline::apply::{self, Effects, Keys, PARALLELISM, Providers, Summary};
use stageline::core::event::Event;
use stageline::core::id::{Lineage, MachineId, Name, OperatorId, RequestKey, WriterId};
use stageline::core::offer::{Facts, QuoteId, Supply};
use stageline::core::plan::{self, Desired, Draft, Market, Mode, Plan, Start, may_apply};
use stageline::core::state::{Spent, State};
use stageline::core::topology::{self, Limits, SourceFile, Topology, VarSources};
use stageline::core::unit::{Bytes, MicroDollars, Millis};
use stageline::machine::Machines;
use stageline::observe;
use stageline::provider::Provider;
use stageline::provider::sim::{
    self, AccountSpec, CrashPoint, FaultTable, Hook, Shape, SimMachine, Verb,
};
use stageline::store::testing::{Fate, FaultyStore, Gate, Request, Verb as Asked};
use stageline::store::{
    self, Begin, First, Journal, StateUrl, Store, StoreError, Surroundings, Writer,
};
use tokio_util::sync::CancellationToken;

use super::sold::Sold;

/// Two machines, a pipeline over both, a way in.
pub(crate) const TWO: &str = r#"
version = 1
name = "test"

[provider.here]
kind = "local"

[offer.slot]
provider = "here"
max_price_per_hour = 1.0

[lease.box]
offers = ["slot"]
count = 2
gang = false

[pipeline.toy]
engine = "stub"
stages = [{ on = "lease.box[0]" }, { on = "lease.box[1]" }]
check = { prompt = "Hello", max_tokens = 3, expect = "yes" }

[exposure.api]
pipelines = ["toy"]
serve = "openai"
via = "loopback"
"#;

/// What the cheapest machine costs.
pub(crate) const PRICE: MicroDollars = MicroDollars(100_000);

/// The most that one may cost in [`TWO`].
pub(crate) const CEILING: MicroDollars = MicroDollars(1_000_000);

const LINEAGE: Lineage = Lineage([7; 16]);

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn here() -> Name {
    name("here")
}

pub(crate) fn facts() -> Facts {
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 8,
        memory: Bytes::gib(16),
        disk: Bytes::gib(100),
        ..Facts::default()
    }
}

pub(crate) fn topology_of(text: &str) -> Topology {
    let files = [SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    }];
    match topology::read(&files, &VarSources::default()) {
        Ok((topology, _)) => topology,
        Err(faults) => panic!("{faults:#?}"),
    }
}

/// Everything that outlives the tool.
pub(crate) struct World {
    pub clock: FakeClock,
    pub sim: sim::World,
    pub objects: Arc<dyn ObjectStore>,
    /// Where the state is instead, when it is not in memory.
    elsewhere: Option<Elsewhere>,
    /// How long a process sleeps between what it has written down and its create.
    pub oversleeps: Cell<Option<Duration>>,
    /// Commands only record what they see.
    pub refresh_only: Cell<bool>,
    /// Machines write to one disk.
    pub shares_disk: Cell<bool>,
    /// How long machines with fewer than eight GPUs may take to get ready, where that is not as long as others.
    pub quick: Cell<Option<Duration>>,
    /// How far the ledger may be off: where wall clocks of two computers differ.
    pub unsure: Cell<MicroDollars>,
    /// The account tells when machines began and ended, so that the ledger is to know it to the cent.
    tells_ends: bool,
    processes: Cell<u8>,
}

/// A state behind a real line. Our clock cannot know when that is idle, so it is told.
pub(crate) struct Elsewhere {
    pub url: StateUrl,
    pub around: Surroundings,
    /// Whether no request is under way.
    pub idle: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Elsewhere {
    async fn open(&self, mode: store::Mode) -> Result<Store, StoreError> {
        Store::open_in(&self.url, &name("test"), None, mode, self.around.clone()).await
    }

    /// Moves the clock on whenever nothing else can happen.
    async fn pass_time(&self, clock: &FakeClock) -> ! {
        let mut idle = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            idle = if (self.idle)() { idle + 1 } else { 0 };
            if idle > 4 {
                clock.advance_to_next();
                idle = 0;
            }
        }
    }
}

/// What is asked of the tool.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// `apply`, drafted anew from this topology.
    Apply(String),
    /// `apply PLAN`: the plan of the run that was cut off; drafted anew when there is none.
    Resume(String),
    /// `destroy`.
    Destroy,
}

/// One process of the tool.
#[derive(Clone)]
pub(crate) struct Tool {
    /// Where it dies.
    pub crash: Arc<CrashPoint>,
    /// What becomes of requests to the store, before it may die.
    pub script: Arc<dyn Fn(&Request) -> Fate + Send + Sync>,
    pub interrupt: CancellationToken,
    pub parallelism: usize,
    /// All machines together; none is what the topology says.
    pub cap: Option<MicroDollars>,
    /// Sees each call, before it may die.
    pub hook: Hook,
    /// Sees each event.
    pub watcher: Arc<dyn Fn(&Event) + Send + Sync>,
}

impl Tool {
    pub fn new() -> Self {
        Self::dying(CrashPoint::never())
    }

    pub fn dying(crash: Arc<CrashPoint>) -> Self {
        Self {
            crash,
            script: Arc::new(|_| Fate::Pass),
            interrupt: CancellationToken::new(),
            parallelism: PARALLELISM,
            cap: None,
            hook: Arc::new(|_| ControlFlow::Continue(())),
            watcher: Arc::new(|_| {}),
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub plan: Plan,
    pub summary: Summary,
    pub state: State,
    pub events: Vec<Event>,
}

/// Why a command did not get as far as a run.
#[derive(Debug)]
pub(crate) struct Refusal(pub String);

impl World {
    pub fn new() -> Self {
        Self::with(AccountSpec::new(vec![
            shape("a", PRICE),
            shape("b", MicroDollars(2 * PRICE.0)),
            shape("c", MicroDollars(3 * PRICE.0)),
        ]))
    }

    pub fn with(account: AccountSpec) -> Self {
        Self::of(account, None)
    }

    /// The same with its state behind a real line.
    pub fn elsewhere(elsewhere: Elsewhere) -> Self {
        Self::of(AccountSpec::new(vec![shape("a", PRICE)]), Some(elsewhere))
    }

    fn of(account: AccountSpec, elsewhere: Option<Elsewhere>) -> Self {
        let start = "2026-01-02T03:04:05Z".parse().expect("a time");
        let clock = match elsewhere {
            Some(_) => FakeClock::manual(start),
            None => FakeClock::auto(start),
        };
        let sim = sim::World::new(Arc::new(clock.clone()));
        let tells_ends = account.tells_ends.is_some();
        sim.account(&here(), account);
        Self {
            clock,
            sim,
            objects: Arc::new(InMemory::new()),
            elsewhere,
            oversleeps: Cell::new(None),
            refresh_only: Cell::new(false),
            shares_disk: Cell::new(false),
            quick: Cell::new(None),
            unsure: Cell::new(MicroDollars::ZERO),
            tells_ends,
            processes: Cell::new(0),
        }
    }

    /// From now on this goes wrong.
    pub fn faults(&self, faults: FaultTable) {
        self.sim.set_faults(&here(), faults);
    }

    /// Runs something as a process of its own: all that it left running ends with it.
    pub fn process<T>(&self, work: impl Future<Output = T>) -> T {
        if let Some(elsewhere) = &self.elsewhere {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            return runtime.block_on(async {
                tokio::select! {
                    done = work => done,
                    never = elsewhere.pass_time(&self.clock) => never,
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(work)
    }

    /// One command as one process; none when it was killed.
    pub fn run(&self, tool: &Tool, job: &Job) -> Option<Result<Report, Refusal>> {
        let crash = tool.crash.clone();
        // No two commands are given at the same moment: equal plans of two moments differ.
        self.clock.advance(Duration::from_secs(1));
        let (look, dies) = (tool.hook.clone(), crash.hook());
        self.sim.set_hook(Some(Arc::new(move |point| {
            look(point)?;
            dies(point)
        })));
        let ended = self.process(async {
            tokio::select! {
                biased;
                () = crash.died() => None,
                ended = self.command(tool, job) => Some(ended),
            }
        });
        self.sim.set_hook(None);
        ended
    }

    /// A command that nobody kills and that gets as far as a run.
    pub fn command_of(&self, job: &Job) -> Report {
        let ended = self.run(&Tool::new(), job).expect("nobody kills it");
        ended.unwrap_or_else(|refusal| panic!("{job:?}: {}", refusal.0))
    }

    pub fn apply(&self, text: &str) -> Report {
        self.command_of(&Job::Apply(text.to_owned()))
    }

    pub fn destroy(&self) -> Report {
        self.command_of(&Job::Destroy)
    }

    pub async fn store(&self, tool: &Tool) -> Result<Store, Refusal> {
        if let Some(elsewhere) = &self.elsewhere {
            let opened = elsewhere.open(store::Mode::Write).await;
            return opened.map_err(|error| Refusal(error.to_string()));
        }
        let (crash, script) = (tool.crash.clone(), tool.script.clone());
        let faulty = FaultyStore::new(self.objects.clone(), move |request| {
            let fate = script(request);
            if !matches!(fate, Fate::Pass) {
                return fate;
            }
            if crash.step().is_break() {
                return Fate::Hold(Gate::default());
            }
            let writes = match request.verb {
                Asked::Create | Asked::Overwrite | Asked::Delete => true,
                Asked::Get | Asked::List => false,
            };
            if writes && crash.step().is_break() {
                return Fate::HoldAnswer(Gate::default());
            }
            Fate::Pass
        });
        Store::on(Arc::new(faulty), "test", store::Mode::Write)
            .await
            .map_err(|error| Refusal(error.to_string()))
    }

    /// What the command line does: draft, begin, run, finish.
    pub async fn command(&self, tool: &Tool, job: &Job) -> Result<Report, Refusal> {
        let store = self.store(tool).await?;
        let loaded = store.read().await.map_err(|e| Refusal(e.to_string()))?;
        let plan = match self.saved(&store, &loaded.state, job).await {
            Some(plan) => plan,
            None => self.draft(&loaded.state, job).await?,
        };
        plan::check(&plan).map_err(Refusal)?;
        let start = may_apply(&plan, &loaded.state, None, self.clock.now())
            .map_err(|refusal| Refusal(refusal.to_string()))?;
        let bytes = plan.encode();
        let put = store.put_plan(plan.id, bytes).await;
        put.map_err(|error| Refusal(error.to_string()))?;
        let begin = begin(&plan, job, start);
        let writer = self.writer();
        let clock = writer.clock.clone();
        let journal = Journal::begin(&store, loaded, begin, writer)
            .await
            .map_err(|error| Refusal(error.to_string()))?;
        self.carry_out(tool, plan, &journal, clock, job).await
    }

    async fn carry_out(
        &self,
        tool: &Tool,
        plan: Plan,
        journal: &Journal,
        clock: SharedClock,
        job: &Job,
    ) -> Result<Report, Refusal> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let watcher = tool.watcher.clone();
        let limits = limits_of(job);
        let destroys = matches!(job, Job::Destroy);
        let effects = Effects {
            providers: self.providers(),
            machines: (!destroys).then(|| Arc::new(self.sim.hands()) as Arc<dyn Machines>),
            keys: (!destroys).then(|| Arc::new(TestKeys(LINEAGE)) as Arc<dyn Keys>),
            secrets: Arc::new(NoSecrets),
            clock,
            events: Arc::new(move |event| {
                watcher(&event);
                sink.lock().expect("no panic").push(event);
            }),
        };
        let options = apply::Options {
            parallelism: tool.parallelism,
            max_total_per_hour: tool.cap.or(limits.max_total_per_hour),
            max_spend: limits.max_spend,
            caps: BTreeMap::new(),
            max_leases: limits.max_leases,
            interrupt: tool.interrupt.clone(),
            grace: Millis(1500),
        };
        let summary = apply::run(&plan, journal, &effects, &options).await;
        if summary.journal.is_none() {
            let finished = journal.finish(summary.finished()).await;
            finished.map_err(|error| Refusal(error.to_string()))?;
        }
        let events = std::mem::take(&mut *events.lock().expect("no panic"));
        Ok(Report {
            plan,
            summary,
            state: journal.with_state(State::clone),
            events,
        })
    }

    /// The plan of a run that was cut off.
    async fn saved(&self, store: &Store, state: &State, job: &Job) -> Option<Plan> {
        let Job::Resume(_) = job else { return None };
        let id = state.run.as_ref()?.plan?;
        if state.consumed.get(&id)?.finished {
            return None;
        }
        let bytes = store.get_plan(id).await.expect("the store is sound")?;
        Some(Plan::decode(&bytes).expect("a plan"))
    }

    /// A plan for what is recorded and seen now.
    pub async fn draft(&self, state: &State, job: &Job) -> Result<Plan, Refusal> {
        let providers = self.providers();
        let hands = self.sim.hands();
        let clock = self.shared_clock();
        let (text, machines): (_, Option<&dyn Machines>) = match job {
            Job::Apply(text) | Job::Resume(text) => (Some(text), Some(&hands)),
            Job::Destroy => (None, None),
        };
        let observed = observe::look(state, &providers, machines, clock.as_ref()).await;
        let mut markets = BTreeMap::new();
        let desired = match text {
            None => Desired::nothing(name("test")),
            Some(text) => {
                markets = self.markets().await;
                plan::expand(&topology_of(text), &BTreeMap::new()).expect("it can be expanded")
            }
        };
        let options = plan::Options {
            mode: if text.is_some() {
                Mode::Apply
            } else {
                Mode::Destroy
            },
            now: self.clock.now(),
            targets: Vec::new(),
            excludes: Vec::new(),
            replace: Vec::new(),
            limits: limits_of(job),
            topology_digest: None,
            refresh_only: self.refresh_only.get(),
            renew: stageline_core::plan::Renew::Nothing,
            watched: true,
            boot: self.clock.boot_point(),
            rooms: BTreeMap::new(),
        };
        let draft = Draft {
            desired: &desired,
            recorded: state,
            observed: &observed,
            markets: &markets,
            options: &options,
        };
        plan::draft(&draft).map_err(|faults| Refusal(format!("{faults:?}")))
    }

    async fn markets(&self) -> BTreeMap<Name, Market> {
        let provider: Arc<dyn Provider> = self.provider();
        let quotes = observe::quotes(&[observe::Asked::all(here(), provider)]).await;
        let markets = quotes.into_iter().map(|(name, quotes)| {
            let market = Market {
                kind: "local".to_owned(),
                free: false,
                unbilled: false,
                self_destroy: false,
                restarts_empty: false,
                agent: None,
                quotes: quotes.map_err(|blind| blind.cause),
            };
            (name, market)
        });
        markets.collect()
    }

    pub fn provider(&self) -> Arc<Sold> {
        Arc::new(Sold {
            sim: self.sim.provider(&here()),
            sleep: self.oversleeps.get().map(|span| (span, self.clock.clone())),
            shares_disk: self.shares_disk.get(),
            quick: self.quick.get(),
        })
    }

    pub fn providers(&self) -> Providers {
        let mut providers = Providers::default();
        providers.insert(here(), self.provider());
        providers
    }

    fn shared_clock(&self) -> SharedClock {
        Arc::new(self.clock.clone())
    }

    /// Who a new process is to the journal. As in the program, whoever sets the clock while it runs moves no time that it
    /// records.
    pub fn writer(&self) -> Writer {
        let n = self.processes.get().wrapping_add(1);
        self.processes.set(n);
        Writer {
            id: WriterId([n; 16]),
            clock: ambient::steady(self.shared_clock()),
        }
    }

    /// What is recorded.
    pub fn state(&self) -> State {
        self.process(async {
            let store = match &self.elsewhere {
                Some(elsewhere) => elsewhere.open(store::Mode::Read).await,
                None => Store::on(self.objects.clone(), "test", store::Mode::Read).await,
            };
            let loaded = store.expect("opened").read().await;
            loaded.expect("what a kill leaves can be read").state
        })
    }

    /// What the next command would do.
    pub fn next_plan(&self, text: &str) -> Plan {
        self.next_plan_of(&self.state(), text)
    }

    fn next_plan_of(&self, state: &State, text: &str) -> Plan {
        let job = Job::Apply(text.to_owned());
        let plan = self.process(self.draft(state, &job));
        plan.unwrap_or_else(|refusal| panic!("{}", refusal.0))
    }

    /// Machines that cost money and were made by us, also when somebody has renamed them.
    pub fn ours(&self) -> Vec<SimMachine> {
        let mut alive = self.sim.alive();
        alive.retain(|machine| machine.lease.is_some());
        alive
    }

    /// What always holds, between any two commands: no machine that nobody would find, and no key used twice.
    pub fn check_books(&self) {
        self.check_books_of(&self.state());
    }

    fn check_books_of(&self, state: &State) {
        // To the cent: a machine that a fenced run ended by itself, or that came later than its provider declares, was
        // never written down.
        self.check_ledger_of(state, MicroDollars(10_000));
        let keys = known(state);
        for machine in self.ours() {
            let known = match machine.label.parse::<RequestKey>() {
                Ok(key) => keys.contains(&key),
                Err(_) => receipts(state).contains(&machine.id),
            };
            assert!(known, "{} is up and nobody knows of it", machine.label);
        }
        let mut created = BTreeSet::new();
        for call in self
            .sim
            .calls()
            .iter()
            .filter(|call| call.verb == Verb::Create)
        {
            assert!(
                created.insert(call.subject.clone()),
                "{} was sent twice",
                call.subject
            );
        }
    }

    /// The ledger holds what the account bills, but for the rounding.
    pub fn check_ledger(&self) -> Spent {
        // Each machine's sum is rounded to a whole micro-dollar once here and there.
        let slack = 2 * self.sim.machines().len() as u64;
        self.check_ledger_of(&self.state(), MicroDollars(slack))
    }

    /// After a destroy that did all that it should nothing is left to be observed: what is recorded is the bill.
    pub fn check_bill(&self) {
        let state = self.state();
        let now = state.ledger_now(self.clock.now(), self.clock.boot_point().as_ref());
        let spent = state.ledger(now, |_| false).total;
        let mut ours = self.sim.machines();
        ours.retain(|machine| machine.lease.is_some());
        let boottime = self.clock.boottime();
        let bill: MicroDollars = ours.iter().map(|machine| machine.bill(boottime)).sum();
        let slack = MicroDollars(2 * ours.len() as u64);
        let (least, most) = (spent.least, spent.most);
        assert!(
            bill <= least.saturating_add(slack) && most <= bill.saturating_add(slack),
            "billed {bill}, and the ledger says {least} to {most}: {:#?} {ours:#?}",
            state.charged
        );
    }

    /// What `status` says: it looks, and what the account tells counts. Every machine is known to the cent; only a try in doubt
    /// of which none can be seen yet may have cost something up to its ceiling.
    fn check_told(&self, state: &State) -> Spent {
        self.faults(FaultTable::none());
        let told = self.process(observe::dates(state, &self.providers()));
        let now = state.ledger_now(self.clock.now(), self.clock.boot_point().as_ref());
        let spent = state.ledger_told(now, |_| false, &told).total;
        let boottime = self.clock.boottime();
        let seen: BTreeSet<&MachineId> = told.iter().map(|told| &told.machine).collect();
        let seen_keys: BTreeSet<&RequestKey> =
            told.iter().filter_map(|it| it.key.as_ref()).collect();
        let open = state.resources.values().flat_map(|r| r.attempts.values());
        let unseen: Vec<_> = open
            .filter(|open| open.leaving.is_none() && !seen_keys.contains(&open.launch.request_key))
            .collect();
        let (mut known, mut doubted) = (MicroDollars::ZERO, BTreeMap::new());
        let mut ours = self.sim.machines();
        ours.retain(|machine| machine.lease.is_some());
        for machine in &ours {
            let key = unseen
                .iter()
                .find(|open| open.launch.request_key.as_str() == machine.label);
            if seen.contains(&machine.id) {
                known = known.saturating_add(machine.bill(boottime));
            } else if let Some(open) = key {
                // The ledger counts one for each try.
                let most = bill_at_most(machine, open.launch.reservation, boottime);
                let bill = doubted.entry(&machine.label).or_insert(most);
                *bill = most.max(*bill);
            } else {
                let hidden = machine.made_at > boottime || machine.listed_from > boottime;
                assert!(hidden, "nobody tells of {machine:#?}");
            }
        }
        let width: MicroDollars = unseen
            .iter()
            .map(|open| {
                let since = open.counted_since.unwrap_or(open.at);
                let millis = now.as_millisecond() - since.as_millisecond();
                let sum =
                    u128::from(open.launch.reservation.0) * u128::try_from(millis).unwrap_or(0);
                MicroDollars(u64::try_from(sum.div_ceil(3_600_000)).expect("few"))
            })
            .sum();
        let slack = MicroDollars(2 * ours.len() as u64);
        let (least, most) = (spent.least, spent.most);
        let doubted: MicroDollars = doubted.into_values().sum();
        let (bill, unsure) = (known.saturating_add(doubted), self.unsure.get());
        assert!(
            known <= least.saturating_add(slack)
                && least <= known.saturating_add(slack)
                && most <= least.saturating_add(width).saturating_add(slack)
                && bill <= most.saturating_add(slack).saturating_add(unsure),
            "billed {known} and {doubted} in doubt, and the ledger says {least} to {most}: {:#?} {told:#?} {ours:#?} {state:#?}",
            state.ledger_told(now, |_| false, &told).leases
        );
        spent
    }

    /// Not less than surely and not more than possibly was billed.
    fn check_ledger_of(&self, state: &State, slack: MicroDollars) -> Spent {
        if self.tells_ends {
            return self.check_told(state);
        }
        let slack = slack.saturating_add(self.unsure.get());
        let now = state.ledger_now(self.clock.now(), self.clock.boot_point().as_ref());
        let spent = state.ledger(now, |_| false).total;
        let boottime = self.clock.boottime();
        let mut ours = self.sim.machines();
        ours.retain(|machine| machine.lease.is_some());
        let bill = bill_as_known(state, &ours, boottime);
        assert!(
            spent.least <= bill.saturating_add(slack) && bill <= spent.most.saturating_add(slack),
            "billed {bill}, and the ledger says {} to {}: {:#?} {ours:#?}",
            spent.least,
            spent.most,
            state.ledger(now, |_| false).leases
        );
        spent
    }

    /// What holds after a run that did all that it should.
    pub fn check_settled(&self, text: &str, report: &Report) {
        let summary = &report.summary;
        assert!(summary.finished(), "{summary:#?}");
        let state = self.state();
        self.check_books_of(&state);
        let up: BTreeSet<MachineId> = self.ours().into_iter().map(|m| m.id).collect();
        let receipts = receipts(&state);
        assert_eq!(up, receipts, "what is up and what is recorded differ");
        for (address, recorded) in state.existing() {
            assert!(recorded.attempts.is_empty(), "{address} has open tries");
            assert_eq!(recorded.pending, None, "{address}");
        }
        let next = self.next_plan_of(&state, text);
        assert!(next.is_empty(), "the next plan: {:#?}", next.changes);
    }

    /// What holds after a destroy that did all that it should.
    pub fn check_gone(&self, report: &Report) {
        let summary = &report.summary;
        assert!(summary.finished(), "{summary:#?}");
        let state = self.state();
        self.check_books_of(&state);
        assert!(state.is_empty(), "{state:#?}");
        assert_eq!(self.ours(), [], "something is left");
    }
}

fn begin(plan: &Plan, job: &Job, start: Start) -> Begin {
    let command = match job {
        Job::Apply(_) | Job::Resume(_) => "apply",
        Job::Destroy => "destroy",
    };
    Begin {
        plan: Some(plan.id),
        resume: start == Start::Resume,
        expect_projection: (start == Start::Fresh).then_some(plan.base),
        ..begin_of(command)
    }
}

/// How a run opens that carries out no plan.
pub(crate) fn begin_of(command: &str) -> Begin {
    Begin {
        command: command.to_owned(),
        by: "ada@engine".to_owned(),
        plan: None,
        resume: false,
        expect_projection: None,
        first: Some(First {
            lineage: LINEAGE,
            operator: OperatorId([9; 32]),
            topology: name("test"),
        }),
        wait_for_open: false,
    }
}

fn limits_of(job: &Job) -> Limits {
    match job {
        Job::Apply(text) | Job::Resume(text) => topology_of(text).limits,
        Job::Destroy => Limits {
            max_price_per_hour: None,
            max_total_per_hour: None,
            max_leases: None,
            max_spend: None,
        },
    }
}

/// Says which case it was when it fails.
pub(crate) fn told<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| panic!("{what}"))
}

/// Machines with a receipt.
pub(crate) fn receipts(state: &State) -> BTreeSet<MachineId> {
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    let held = leases.filter_map(|lease| state.lease(lease));
    held.map(|held| held.machine.clone()).collect()
}

/// What machines cost, but for what nobody can know: of a try that is still in doubt and of which no machine was seen,
/// the ledger counts one, at most at the try's ceiling.
fn bill_as_known(state: &State, ours: &[SimMachine], now: Duration) -> MicroDollars {
    let open = state.resources.values().flat_map(|r| r.attempts.values());
    let in_doubt: BTreeMap<String, MicroDollars> = open
        .filter(|open| open.leaving.is_none())
        .map(|open| (open.launch.request_key.to_string(), open.launch.reservation))
        .collect();
    let mut doubted: BTreeMap<&str, MicroDollars> = BTreeMap::new();
    let mut sum = MicroDollars::ZERO;
    for machine in ours {
        let Some(most) = in_doubt.get(&machine.label) else {
            sum = sum.saturating_add(machine.bill(now));
            continue;
        };
        let bill = doubted.entry(&machine.label).or_default();
        *bill = (*bill).max(bill_at_most(machine, *most, now));
    }
    sum.saturating_add(doubted.into_values().sum())
}

/// What a machine cost, at most at this price.
fn bill_at_most(machine: &SimMachine, most: MicroDollars, now: Duration) -> MicroDollars {
    let mut machine = machine.clone();
    for (_, price) in &mut machine.prices {
        *price = (*price).min(most);
    }
    machine.bill(now)
}

/// Every key that a run would look for.
fn known(state: &State) -> BTreeSet<RequestKey> {
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    let held = leases.filter_map(|lease| state.lease(lease));
    let held = held.map(|held| held.request_key.clone());
    let open = state
        .resources
        .values()
        .flat_map(|recorded| recorded.attempts.values());
    held.chain(open.map(|open| open.launch.request_key.clone()))
        .collect()
}

pub(crate) fn shape(id: &str, price_per_hour: MicroDollars) -> Shape {
    Shape {
        id: QuoteId(id.to_owned()),
        facts: facts(),
        price_per_hour,
        supply: Supply::Many(64),
        boot: Duration::from_secs(3),
    }
}
