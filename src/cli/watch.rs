//! `watch`: keeps recorded leases within their limits while nobody looks.
//!
//! Every few seconds it reads the state, asks the agents, and judges ([`crate::watch`]). A lease that is beyond a limit is
//! drained and released by a plan of its own, in a short run, and recorded as lapsed; what did not work is tried again for
//! ever. It holds no lock between two looks, and what it needs to know after a crash is in the state. It counts as a guard only
//! while it sees whatever it would have to end.

mod beats;
mod sight;
mod taken;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId};
use stageline_core::journal::Verb;
use stageline_core::plan::is_protected;
use stageline_core::state::{Edit, Limit, Observed, Seen, State};
use stageline_core::topology::{Limits, Topology};
use stageline_core::unit::Millis;
use tokio_util::sync::CancellationToken;

use super::console::Console;
use super::drafting::{self, Narrow};
use super::project::{self, Place};
use super::run::{self, Job};
use super::sellers::Sellers;
use super::{Exit, Failure, Global, session, signals};
use crate::ambient::{Alive, SharedClock};
use crate::machine::Machines as _;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::pipeline::Drain;
use crate::store::{Beat, Loaded, Lock, Mode, Store, fresh_watcher};
use crate::watch::{self, Again, Beyond, Heard, Windows};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(5);

/// A longer pause between two looks than asked for, by so much, is a suspend.
const SLEPT: Duration = Duration::from_secs(60);

/// How long requests may take to end before their machine does.
const DRAIN_MAX: Millis = Millis::minutes(2);

/// Keep recorded leases within their limits, for an always-on box
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Look once, act on what is found, and end
    #[arg(long)]
    once: bool,
    /// Print a systemd unit that keeps this watcher running
    #[arg(long, conflicts_with = "once")]
    print_unit: bool,
    /// Between two looks
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    every: Millis,
}

/// What a watcher knows between two looks.
struct Watcher<'a> {
    place: Place,
    store: Store,
    folder: std::path::PathBuf,
    global: &'a Global,
    clock: SharedClock,
    console: &'a Console,
    every: Duration,
    interrupt: CancellationToken,
    windows: Windows,
    topology: Option<Topology>,
    hands: Option<Arc<AgentClient>>,
    again: BTreeMap<LeaseId, Again>,
    sight: sight::Sight,
    /// Beats while this watcher guards.
    beat: Option<Beat>,
    /// When providers were asked last what became of machines that do not answer, and of which.
    asked: Option<(Duration, BTreeSet<LeaseId>)>,
    /// What was said last, so that it is not said every few seconds.
    said: BTreeMap<String, String>,
}

impl Watch {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        if self.print_unit {
            return unit::print(global, &place, console);
        }
        session::runtime()?.block_on(self.watch(place, global, console))
    }

    async fn watch(
        self,
        place: Place,
        global: &Global,
        console: &Console,
    ) -> Result<Exit, Failure> {
        let clock = session::clock();
        let store = place.open(Mode::Write).await?;
        let interrupt = signals::watch(Arc::new(|_| {}))?;
        let every = if self.every.0 < 100 {
            EVERY
        } else {
            self.every.duration()
        };
        let mut watcher = Watcher {
            store: store.clone(),
            folder: project::folder(global),
            place,
            global,
            clock: clock.clone(),
            console,
            every,
            interrupt: interrupt.clone(),
            windows: Windows::default(),
            topology: None,
            hands: None,
            again: BTreeMap::new(),
            sight: sight::Sight::default(),
            beat: None,
            asked: None,
            said: BTreeMap::new(),
        };
        if self.once {
            let looked = watcher.look().await;
            watcher.let_go().await;
            let exit = looked?;
            let half_blind = exit == Exit::Done && !watcher.sight.is_whole();
            return Ok(if half_blind { Exit::Stopped } else { exit });
        }
        if let Some(other) = fresh_watcher(&store, &clock).await? {
            return Err(watcher.one_too_many(&other));
        }
        watcher.begins();
        let ended = watcher.keep_looking().await;
        watcher.let_go().await;
        if let Some(beat) = watcher.beat.take() {
            beat.end().await;
        }
        ended
    }
}

impl Watcher<'_> {
    fn begins(&self) {
        self.tell(&format!(
            "watching `{}` at {}, every {}; Ctrl-C ends that",
            self.place.name,
            self.store.place(),
            Millis(u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX))
        ));
    }

    async fn keep_looking(&mut self) -> Result<Exit, Failure> {
        loop {
            let looked = self.look().await;
            self.windows.looked(self.clock.boottime());
            let guards = looked.is_ok() && self.sight.is_whole();
            if let Err(failure) = looked {
                self.troubled("look", &failure);
            } else {
                self.said.remove("look");
            }
            self.keep_beating(guards).await?;
            tokio::select! {
                () = self.interrupt.cancelled() => break,
                () = self.clock.sleep(self.every) => {}
            }
        }
        self.tell(&format!(
            "stopped: nobody watches `{}` any more",
            self.place.name
        ));
        Ok(Exit::Done)
    }

    /// One look, and what follows from it.
    async fn look(&mut self) -> Result<Exit, Failure> {
        let now = self.clock.boottime();
        self.windows.look(now, self.every + SLEPT);
        let loaded = self.store.read().await?;
        let state = &loaded.state;
        self.windows.keep(state);
        self.again.retain(|lease, _| is_there(state, lease));
        self.protected(state);
        let limits = self.limits();
        let interrupt = self.interrupt.clone();
        tokio::select! {
            seen = self.see(state) => seen?,
            () = interrupt.cancelled() => return Ok(Exit::Interrupted),
        }
        if watch::guarded(state).next().is_none() {
            return Ok(Exit::Done);
        }
        if self.somebody_works(state).await? {
            for (lease, recorded) in watch::guarded(state) {
                self.windows.renew(lease, recorded.generation, now);
            }
            return Ok(Exit::Done);
        }
        let heard = self.hear(state).await;
        let mut beyond = self.judge(state, limits.as_ref(), heard.as_ref());
        let mut taken = self.taken_away(state, heard.as_ref()).await?;
        // A lease ends once. By a limit of its own it stays ended, whatever becomes of its machine.
        taken.retain(|one| beyond.iter().all(|other| other.lease != one.lease));
        beyond.extend(taken);
        let pending = watch::pending(state);
        // A run that a key is missing for would end nothing, and hold the lock meanwhile.
        let due = |lease: &LeaseId| {
            let again = self.again.get(lease);
            again.is_none_or(|again| again.is_due(now)) && !self.sight.is_locked_out(state, lease)
        };
        let beyond: Vec<Beyond> = beyond.into_iter().filter(|one| due(&one.lease)).collect();
        let pending: Vec<LeaseId> = pending.into_iter().filter(|lease| due(lease)).collect();
        if beyond.is_empty() && pending.is_empty() {
            return Ok(Exit::Done);
        }
        self.end(loaded, beyond, pending).await
    }

    /// Whether another run is open and alive: it is not disturbed.
    async fn somebody_works(&self, state: &State) -> Result<bool, Failure> {
        if !state.run.as_ref().is_some_and(|run| run.open) {
            return Ok(false);
        }
        let held = Lock::look(&self.store).await?;
        // Where it cannot be told from here, the lock itself finds out when it is asked for.
        Ok(held.is_some_and(|held| held.holder.process.is_alive() == Alive::Yes))
    }

    /// Every lease that is beyond a limit and is not recorded as such.
    fn judge(
        &mut self,
        state: &State,
        limits: Option<&Limits>,
        heard: Option<&BTreeMap<LeaseId, Heard>>,
    ) -> Vec<Beyond> {
        let ledger = state.ledger_now(self.clock.now(), self.clock.boot_point().as_ref());
        let cap = limits.and_then(|limits| limits.max_spend);
        let over = cap.and_then(|cap| watch::spent(state, ledger, cap));
        let now = self.clock.boottime();
        let mut beyond = Vec::new();
        for (lease, recorded) in watch::guarded(state) {
            let heard = match heard {
                Some(heard) => heard.get(lease).copied().unwrap_or(Heard::Silent),
                // Nobody can be asked from here just now: that says nothing of the machines.
                None => Heard::Untold,
            };
            let generation = recorded.generation;
            let idle = self.windows.idle(lease, generation, heard, now);
            let lapse = state.lapse(lease);
            if lapse.is_some_and(|lapse| lapse.generation == generation) {
                continue;
            }
            let limits = recorded.limits_in_force();
            let found = over
                .clone()
                .map(|why| (Limit::Spend, why))
                .or_else(|| Some((Limit::Lifetime, watch::outlived(recorded, limits?, ledger)?)))
                .or_else(|| Some((Limit::Idle, watch::idled(idle, limits?, heard)?)));
            if let Some((limit, why)) = found {
                let lease = lease.clone();
                beyond.push(Beyond { lease, limit, why });
            }
        }
        beyond
    }

    /// Ends what is beyond its limits, and what was being ended.
    async fn end(
        &mut self,
        loaded: Loaded,
        beyond: Vec<Beyond>,
        pending: Vec<LeaseId>,
    ) -> Result<Exit, Failure> {
        let begun = self.clock.boottime();
        let observed = self.observe(&loaded.state).await?;
        // A machine that is gone without our doing costs nothing and is drift: the next plan says so.
        let gone = |lease: &LeaseId| matches!(observed.leases.get(lease), Some(Seen::Gone));
        let (lost, beyond): (Vec<_>, Vec<_>) = beyond.into_iter().partition(|one| gone(&one.lease));
        for one in lost {
            let text = format!(
                "{}: its machine is gone by the provider's listing; `stageline plan` shows what that means",
                one.lease
            );
            self.once(&taken::about(&one.lease), &text);
            self.failed(&one.lease, begun);
        }
        if beyond.is_empty() && pending.is_empty() {
            return Ok(Exit::Done);
        }
        for one in &beyond {
            self.tell_beyond(one);
        }
        self.drain(&loaded.state, &beyond).await;
        let leases: BTreeSet<LeaseId> = beyond
            .iter()
            .map(|one| one.lease.clone())
            .chain(pending)
            .collect();
        let edits = beyond.iter().map(|one| Edit::Lapse {
            lease: one.lease.clone(),
            limit: one.limit,
            why: one.why.clone(),
        });
        let narrow = Narrow::these(leases.iter().cloned().map(Address::Lease).collect());
        let edits = edits.collect();
        let drafted =
            drafting::ending(&self.place, loaded, &narrow, edits, &observed, &self.clock)?;
        let quiet = Console {
            level: -1,
            ..*self.console
        };
        let job = Job {
            plan: &drafted.plan,
            topology: None,
            digest: None,
            place: &self.place,
            folder: &self.folder,
            parallelism: crate::apply::PARALLELISM,
            command: "watch",
            reviewed: false,
            interrupt: Some(self.interrupt.clone()),
        };
        let ran = run::run(&job, &self.store, &self.clock, &quiet).await;
        let exit = match ran {
            Ok(exit) => exit,
            // Somebody was faster: they are not disturbed.
            Err(failure) if failure.exit == Exit::Locked => return Ok(Exit::Locked),
            // The state moved on meanwhile: the next look sees what it is now.
            Err(failure) if failure.exit == Exit::Guard => return Ok(Exit::Stopped),
            Err(failure) => {
                leases.iter().for_each(|lease| self.failed(lease, begun));
                return Err(failure);
            }
        };
        self.outcome(&leases, exit, begun).await
    }

    fn sellers<'s>(&'s self, state: &'s State) -> Sellers<'s> {
        Sellers {
            topology: self.topology.as_ref(),
            state,
            place: &self.place,
            folder: &self.folder,
            clock: &self.clock,
        }
    }

    async fn observe(&self, state: &State) -> Result<Observed, Failure> {
        let providers = self.sellers(state).providers()?;
        Ok(observe::look(state, &providers, None, self.clock.as_ref()).await)
    }

    /// Lets requests end before their machine does. One that is idle has none. First nothing more is admitted anywhere:
    /// a stage that refused at once would fail what the first stage, on another machine, has admitted already.
    async fn drain(&self, state: &State, beyond: &[Beyond]) {
        let Some(hands) = &self.hands else { return };
        let working = beyond
            .iter()
            .filter(|one| !matches!(one.limit, Limit::Idle | Limit::Interrupt));
        let targets: Vec<_> = working
            .filter_map(|one| {
                observe::target_by(state, &one.lease, self.sight.moved.get(&one.lease))
            })
            .collect();
        let drained = async {
            let begun = self.clock.boottime();
            for what in [Drain::Admission, Drain::All] {
                // Both steps together take no longer: the machines bill meanwhile.
                let passed = self.clock.boottime().saturating_sub(begun).as_millis();
                let left = DRAIN_MAX
                    .0
                    .saturating_sub(u64::try_from(passed).unwrap_or(u64::MAX));
                let each = targets
                    .iter()
                    .map(|target| hands.drain(target, what, Millis(left)));
                // A machine that does not answer has nothing to end.
                drop(futures::future::join_all(each).await);
            }
        };
        tokio::select! {
            () = drained => {}
            () = self.interrupt.cancelled() => {}
        }
    }

    /// Says what became of each lease, and when what did not work is tried again.
    async fn outcome(
        &mut self,
        leases: &BTreeSet<LeaseId>,
        exit: Exit,
        begun: Duration,
    ) -> Result<Exit, Failure> {
        let state = self.store.read().await?.state;
        let mut all = true;
        for lease in leases {
            if !is_there(&state, lease) {
                self.again.remove(lease);
                let renew = match state.lapse(lease) {
                    Some(lapse) => format!("; {}", watch::what_follows(lease, lapse)),
                    None => String::new(),
                };
                self.tell(&format!(
                    "{lease}: released, proven by the provider's listing{renew}"
                ));
                continue;
            }
            all = false;
            self.failed(lease, begun);
            let why = trouble(&state, lease);
            let again = self.again[lease].pause();
            let text = format!("{lease}: {why}; it may still cost money");
            let next = Millis(u64::try_from(again.as_millis()).unwrap_or(u64::MAX));
            if self.said.get(&lease.to_string()) != Some(&text) {
                self.tell(&format!("{text}; tried again in {next}, and ever after"));
                self.said.insert(lease.to_string(), text);
            }
        }
        Ok(if all {
            Exit::Done
        } else {
            if exit == Exit::Done {
                Exit::Stopped
            } else {
                exit
            }
        })
    }

    /// A try that was begun then did not end a lease.
    fn failed(&mut self, lease: &LeaseId, begun: Duration) {
        let now = self.clock.boottime();
        let again = match self.again.get(lease) {
            Some(again) => again.once_more(now),
            None => Again::after(self.every, now),
        };
        let again = again.rested(now.saturating_sub(begun), now);
        self.again.insert(lease.clone(), again);
    }

    /// No command ends them: that is said once.
    fn protected(&mut self, state: &State) {
        let leases = state.existing().filter_map(|(address, _)| match address {
            Address::Lease(lease) => Some(lease),
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => None,
        });
        let names: Vec<String> = leases
            .filter(|lease| is_protected(state, lease))
            .map(ToString::to_string)
            .collect();
        if !names.is_empty() {
            let text = format!("protected, so ended by no limit: {}", names.join(", "));
            self.once("protected", &text);
        }
    }

    async fn let_go(&mut self) {
        if let Some(hands) = self.hands.take() {
            hands.close().await;
        }
    }

    fn tell_beyond(&self, one: &Beyond) {
        if self.console.json {
            let event = Event::Lapsed {
                lease: one.lease.clone(),
                limit: one.limit,
                why: one.why.clone(),
            };
            let line = serde_json::to_string(&event).expect("events are plain data");
            // A reader that went away does not stop a watcher.
            let _ = self.console.data(&format!("{line}\n"));
        }
        let Beyond { lease, limit, why } = one;
        self.tell(&format!("{lease}: {}: {why}", limit.what_happens()));
    }

    /// A line with its time, since nobody looks when it is written.
    fn tell(&self, text: &str) {
        self.console
            .say(&format!("{:.0}  {text}", self.clock.now()));
    }

    fn once(&mut self, about: &str, text: &str) {
        if self.said.get(about).is_none_or(|said| said != text) {
            self.tell(text);
            self.said.insert(about.to_owned(), text.to_owned());
        }
    }

    fn troubled(&mut self, about: &str, failure: &Failure) {
        let mut text = failure.message.clone();
        for diagnostic in &failure.diagnostics {
            text.push_str(&diagnostic.message);
        }
        if let Some(hint) = &failure.hint {
            text.push_str(&format!(" (hint: {hint})"));
        }
        self.once(about, &format!("{text}; tried again at every look"));
    }
}

fn is_there(state: &State, lease: &LeaseId) -> bool {
    let recorded = state.resources.get(&Address::Lease(lease.clone()));
    recorded.is_some_and(stageline_core::state::Recorded::exists)
}

/// Why a lease is still there.
fn trouble(state: &State, lease: &LeaseId) -> String {
    let recorded = state.resources.get(&Address::Lease(lease.clone()));
    let pending = recorded.and_then(|recorded| recorded.pending.as_ref());
    let cause = pending
        .filter(|pending| pending.verb == Verb::Release)
        .and_then(|pending| pending.cause.as_ref());
    cause.map_or_else(
        || "its release is not proven yet".to_owned(),
        |cause| format!("its release did not succeed: {}", cause.message),
    )
}
