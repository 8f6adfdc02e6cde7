//! The simulated world: accounts, their machines, what they cost, and everything that was asked of them.
//!
//! The world is on an injected clock and outlives the tool that uses it. All that time does (booting, dying, ending,
//! appearing late) is computed from dates, so nothing runs in the background. A machine costs its hourly price in
//! proportion to its milliseconds, exact, and the sum for one machine is rounded up to a whole micro-dollar.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stageline_core::id::{EndpointKey, LeaseId, MachineId, Name};
use stageline_core::offer::{DiskRange, Facts, Quote, QuoteId, Supply};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::SimProvider;
use super::fault::{Fault, FaultTable, Verb};
use super::hook::{CallPoint, Hook, Side};
use crate::ambient::{Clock, SharedClock};
use crate::machine::sim::{AgentState, SimMachines};
use crate::provider::{GONE_WITHIN, MachineStatus, Phase, REFUSED_AFTER, Traits};

/// Something that an account rents out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the account calls it.
    pub id: QuoteId,
    /// What it claims, and what its machines have unless a fault says otherwise.
    pub facts: Facts,
    /// What it costs now.
    pub price_per_hour: MicroDollars,
    /// How many there are, taken ones included.
    pub supply: Supply,
    /// From create to an agent that answers.
    pub boot: Duration,
}

/// An account when the world begins.
#[derive(Clone, Debug)]
pub struct AccountSpec {
    /// What its adapter declares.
    pub traits: Traits,
    /// What it rents out.
    pub shapes: Vec<Shape>,
    /// What goes wrong.
    pub faults: FaultTable,
    /// How long every call takes before it has its effect.
    pub latency: Duration,
    /// It tells dates by a clock of its own, and for how long it tells of machines that are over, however they ended. None is an
    /// account that forgets them at once.
    pub tells_ends: Option<Duration>,
}

impl AccountSpec {
    /// An account without faults that rents out these.
    pub fn new(shapes: Vec<Shape>) -> Self {
        Self {
            traits: Traits {
                finds_by_key: true,
                visibility_delay: Duration::ZERO,
                late_commit_window: Duration::from_secs(60),
                request_timeout: Duration::from_secs(30),
                acquire_timeout: Duration::from_secs(20 * 60),
                refused_after: REFUSED_AFTER,
                gone_within: GONE_WITHIN,
                bills_booting: true,
                bills_while_stopped: true,
                restarts_empty: false,
                self_destroy: false,
                offers_are_one: false,
                bills_traffic: false,
                free: false,
                agent: None,
                sees_account: true,
                rate: Duration::ZERO,
                phases: Vec::new(),
                phase_timeout: Duration::from_secs(20 * 60),
            },
            shapes,
            faults: FaultTable::none(),
            latency: Duration::ZERO,
            tells_ends: None,
        }
    }

    /// The same account with these faults.
    #[must_use]
    pub fn faults(mut self, faults: FaultTable) -> Self {
        self.faults = faults;
        self
    }
}

/// A machine of the world, as it truly is.
#[derive(Clone, Debug, PartialEq)]
pub struct SimMachine {
    /// What the account calls it.
    pub id: MachineId,
    /// Whose it is.
    pub account: Name,
    /// Its name at the account; not always one of our keys.
    pub label: String,
    /// Which lease it was made for; none for planted ones.
    pub lease: Option<LeaseId>,
    /// Its agent's public key; none for planted ones.
    pub endpoint: Option<EndpointKey>,
    /// What was taken.
    pub quote: QuoteId,
    /// What the account's record says.
    pub claimed: Facts,
    /// What its agent measures.
    pub measured: Facts,
    /// Since when it exists; all dates are of the clock's boot time.
    pub made_at: Duration,
    /// From when it is in lists.
    pub listed_from: Duration,
    /// From when it is known by id.
    pub known_from: Duration,
    /// From when its agent answers; none is never.
    pub ready_at: Option<Duration>,
    /// When it dies by itself, and the account's words for that.
    pub dies: Option<(Duration, String)>,
    /// From when to when it is cut off.
    pub offline: Option<(Duration, Duration)>,
    /// When it is gone and no longer billed.
    pub ends_at: Option<Duration>,
    /// Until when it is listed as running although it is gone.
    pub ghost_until: Option<Duration>,
    /// Its prices, each from a date on.
    pub prices: Vec<(Duration, MicroDollars)>,
    /// Its agent never answers.
    pub mute: bool,
    /// Its address is not shown.
    pub address_missing: bool,
    /// The account's date is off by so many seconds.
    pub clock_off: i64,
    /// What its agent has and does.
    pub agent: AgentState,
}

impl SimMachine {
    /// Whether it exists and costs money.
    pub fn is_billed(&self, now: Duration) -> bool {
        self.made_at <= now && self.ends_at.is_none_or(|end| end > now)
    }

    /// Whether its agent can answer.
    pub fn answers(&self, now: Duration) -> bool {
        let dead = self.dies.as_ref().is_some_and(|(at, _)| *at <= now);
        let up = self.ready_at.is_some_and(|ready| ready <= now);
        self.is_billed(now) && up && !dead && !self.is_offline(now) && !self.mute
    }

    /// What the account says of it; none when it knows nothing.
    pub fn status(&self, now: Duration) -> Option<MachineStatus> {
        if self.made_at > now {
            return None;
        }
        if let Some(end) = self.ends_at {
            if self.ghost_until.is_some_and(|until| until > now) {
                return Some(MachineStatus::Running);
            }
            return (end > now).then_some(MachineStatus::Ending);
        }
        if let Some((at, words)) = &self.dies
            && *at <= now
        {
            return Some(MachineStatus::Dead(words.clone()));
        }
        if self.is_offline(now) {
            return Some(MachineStatus::Pending(Phase::new("offline")));
        }
        match self.ready_at {
            Some(ready) if ready <= now => Some(MachineStatus::Running),
            Some(ready) if now - self.made_at < (ready - self.made_at) / 3 => {
                Some(MachineStatus::Pending(Phase::new("creating")))
            }
            Some(ready) => {
                let span = (ready - self.made_at).as_millis().max(1);
                let percent = (now - self.made_at).as_millis() * 100 / span;
                let percent = u8::try_from(percent).unwrap_or(100);
                Some(MachineStatus::Pending(Phase::new("loading").at(percent)))
            }
            None => Some(MachineStatus::Pending(Phase::new("loading"))),
        }
    }

    /// The price at that date.
    pub fn price(&self, now: Duration) -> MicroDollars {
        let due = self.prices.iter().rev().find(|(from, _)| *from <= now);
        due.or(self.prices.first())
            .map_or(MicroDollars::ZERO, |(_, price)| *price)
    }

    /// What it cost until that date.
    pub fn bill(&self, now: Duration) -> MicroDollars {
        const MILLIS_PER_HOUR: u128 = 3_600_000;
        let end = self.ends_at.map_or(now, |end| end.min(now));
        let mut sum = 0_u128;
        for (line, (from, price)) in self.prices.iter().enumerate() {
            let next = self.prices.get(line + 1).map_or(end, |(next, _)| *next);
            let span = next.min(end).saturating_sub(*from);
            sum += span.as_millis() * u128::from(price.0);
        }
        MicroDollars(u64::try_from(sum.div_ceil(MILLIS_PER_HOUR)).unwrap_or(u64::MAX))
    }

    fn is_offline(&self, now: Duration) -> bool {
        self.offline
            .is_some_and(|(from, until)| from <= now && now < until)
    }
}

/// A call that was made into the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number, from 1.
    pub number: u64,
    /// When, by the clock's boot time.
    pub at: Duration,
    /// The account or the machine.
    pub who: String,
    /// What was asked.
    pub verb: Verb,
    /// Of what: a key, an id, a stage.
    pub subject: String,
    /// The knobs of the faults that it met.
    pub faults: Vec<&'static str>,
}

/// All that there is. Cloning makes a second, separate world in the same condition.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(crate) accounts: BTreeMap<Name, AccountSpec>,
    pub(crate) machines: BTreeMap<MachineId, SimMachine>,
    pub(crate) by_label: BTreeSet<(Name, String, MachineId)>,
    pub(crate) by_endpoint: BTreeMap<EndpointKey, MachineId>,
    counts: BTreeMap<(Name, Verb), u64>,
    calls: Vec<Call>,
    machines_made: u64,
}

impl State {
    /// Puts a machine into the world.
    pub(crate) fn insert(&mut self, machine: SimMachine) {
        let label = (
            machine.account.clone(),
            machine.label.clone(),
            machine.id.clone(),
        );
        self.by_label.insert(label);
        if let Some(endpoint) = machine.endpoint {
            // Of several machines by one create the first one answers to their key.
            let first = self.by_endpoint.entry(endpoint);
            first.or_insert_with(|| machine.id.clone());
        }
        self.machines.insert(machine.id.clone(), machine);
    }

    /// An id that no machine has.
    pub(crate) fn fresh_id(&mut self) -> MachineId {
        self.machines_made += 1;
        format!("sim-{:06}", self.machines_made)
            .parse()
            .expect("printable and short")
    }

    /// How many machines hold this offer.
    pub(crate) fn taken(&self, account: &Name, quote: &QuoteId, now: Duration) -> u32 {
        let holds = self
            .machines
            .values()
            .filter(|m| &m.account == account && &m.quote == quote && m.is_billed(now));
        u32::try_from(holds.count()).unwrap_or(u32::MAX)
    }

    /// The quote that a shape gives now; none when all are taken.
    pub(crate) fn quote(&self, account: &Name, shape: &Shape, now: Duration) -> Option<Quote> {
        self.shown(account, shape, now)
            .filter(|quote| quote.supply != Supply::Many(0))
    }

    /// The same as a search shows it: also when all are taken, unless it can be taken by one only.
    pub(crate) fn shown(&self, account: &Name, shape: &Shape, now: Duration) -> Option<Quote> {
        let supply = match shape.supply {
            Supply::Many(u32::MAX) => Supply::Many(u32::MAX),
            Supply::One => (self.taken(account, &shape.id, now) == 0).then_some(Supply::One)?,
            Supply::Many(all) => {
                Supply::Many(all.saturating_sub(self.taken(account, &shape.id, now)))
            }
        };
        Some(Quote {
            provider: account.clone(),
            id: shape.id.clone(),
            facts: shape.facts.clone(),
            price_per_hour: shape.price_per_hour,
            disk: DiskRange::default(),
            supply,
            bid: None,
        })
    }
}

/// The world, shared by everybody who looks at it; clones are the same world.
#[derive(Clone)]
pub struct World {
    pub(crate) clock: SharedClock,
    pub(crate) dial: Dial,
    state: Arc<Mutex<State>>,
    hook: Arc<Mutex<Option<Hook>>>,
}

/// A clock that nobody sets: from a date on it follows the boot time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    wall: Timestamp,
    boot: Duration,
}

impl Dial {
    /// One that shows what the wall clock shows now.
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        Self {
            wall: clock.now(),
            boot: clock.boottime(),
        }
    }

    /// What it shows at that boot time.
    pub(crate) fn at(&self, at: Duration) -> Option<Timestamp> {
        let signed = |span: Duration| jiff::SignedDuration::try_from(span).ok();
        let passed = signed(at)?.checked_sub(signed(self.boot)?)?;
        self.wall.checked_add(passed).ok()
    }
}

/// A call that has begun: which faults it meets.
pub(crate) struct Begun {
    point: CallPoint,
    pub(crate) faults: Vec<Fault>,
}

impl World {
    /// An empty world on this clock.
    pub fn new(clock: SharedClock) -> Self {
        Self::with_state(clock, State::default())
    }

    /// A world in this condition.
    pub fn with_state(clock: SharedClock, state: State) -> Self {
        Self {
            dial: Dial::of(clock.as_ref()),
            clock,
            state: Arc::new(Mutex::new(state)),
            hook: Arc::new(Mutex::new(None)),
        }
    }

    /// Opens an account, or changes its terms; its machines stay.
    pub fn account(&self, name: &Name, spec: AccountSpec) -> SimProvider {
        self.lock().accounts.insert(name.clone(), spec);
        self.provider(name)
    }

    /// The adapter of an account.
    ///
    /// # Panics
    /// When there is no such account.
    pub fn provider(&self, name: &Name) -> SimProvider {
        let spec = self.lock().accounts[name].clone();
        SimProvider::new(self.clone(), name.clone(), &spec)
    }

    /// Our hands on the machines of all accounts.
    pub fn hands(&self) -> SimMachines {
        SimMachines::new(self.clone())
    }

    /// From now on each call passes this; none takes it away.
    pub fn set_hook(&self, hook: Option<Hook>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// From now on this goes wrong in that account, counted from here.
    pub fn set_faults(&self, account: &Name, faults: FaultTable) {
        let mut state = self.lock();
        if let Some(spec) = state.accounts.get_mut(account) {
            spec.faults = faults;
        }
        state.counts.retain(|(name, _), _| name != account);
    }

    /// From now on that offer costs this; machines that exist keep their price.
    pub fn set_price(&self, account: &Name, quote: &QuoteId, price: MicroDollars) {
        let mut state = self.lock();
        let spec = state.accounts.get_mut(account);
        for shape in spec.into_iter().flat_map(|spec| &mut spec.shapes) {
            if &shape.id == quote {
                shape.price_per_hour = price;
            }
        }
    }

    /// A copy of all that there is.
    pub fn snapshot(&self) -> State {
        self.lock().clone()
    }

    /// The machines that exist now, so cost money, whoever knows of them.
    pub fn alive(&self) -> Vec<SimMachine> {
        let now = self.clock.boottime();
        let state = self.lock();
        let alive = state.machines.values().filter(|m| m.is_billed(now));
        alive.cloned().collect()
    }

    /// Every machine that ever was or will be, such as one that appears late.
    pub fn machines(&self) -> Vec<SimMachine> {
        self.lock().machines.values().cloned().collect()
    }

    /// What an account's machines cost until now.
    pub fn bill(&self, account: &Name) -> MicroDollars {
        let now = self.clock.boottime();
        let state = self.lock();
        let own = state.machines.values().filter(|m| &m.account == account);
        own.map(|machine| machine.bill(now)).sum()
    }

    /// Every call so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// How often a verb was called, over all accounts.
    pub fn count(&self, verb: Verb) -> usize {
        let state = self.lock();
        state.calls.iter().filter(|call| call.verb == verb).count()
    }

    /// Somebody else makes a machine: a human in the console, or a look-alike.
    pub fn plant(&self, account: &Name, label: &str, price: MicroDollars) -> MachineId {
        let now = self.clock.boottime();
        let mut state = self.lock();
        let id = state.fresh_id();
        state.insert(SimMachine {
            id: id.clone(),
            account: account.clone(),
            label: label.to_owned(),
            lease: None,
            endpoint: None,
            quote: QuoteId("planted".to_owned()),
            claimed: Facts::default(),
            measured: Facts::default(),
            made_at: now,
            listed_from: now,
            known_from: now,
            ready_at: Some(now),
            dies: None,
            offline: None,
            ends_at: None,
            ghost_until: None,
            prices: vec![(now, price)],
            mute: true,
            address_missing: false,
            clock_off: 0,
            agent: AgentState::default(),
        });
        id
    }

    /// Does something to a machine behind everybody's back; false when there is none.
    pub fn alter(&self, id: &MachineId, change: impl FnOnce(&mut SimMachine, Duration)) -> bool {
        let now = self.clock.boottime();
        let mut state = self.lock();
        let machine = state.machines.get_mut(id);
        machine.map(|machine| change(machine, now)).is_some()
    }

    /// Ends a machine behind everybody's back, as its host or a human does.
    pub fn vanish(&self, id: &MachineId) -> bool {
        self.alter(id, |machine, now| machine.ends_at = Some(now))
    }

    /// Gives a machine another name behind everybody's back; false when there is none.
    pub fn rename(&self, id: &MachineId, label: &str) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(machine) = state.machines.get_mut(id) else {
            return false;
        };
        let mut name = (machine.account.clone(), machine.label.clone(), id.clone());
        state.by_label.remove(&name);
        label.clone_into(&mut machine.label);
        label.clone_into(&mut name.1);
        state.by_label.insert(name);
        true
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The faults of one more question of a kind that is no call: it is counted, and nobody sees it.
    pub(crate) fn faults_now(&self, account: &Name, verb: Verb) -> Vec<Fault> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let count = state.counts.entry((account.clone(), verb)).or_default();
        *count += 1;
        let spec = state.accounts.get(account);
        spec.map(|spec| spec.faults.hits(verb, *count))
            .unwrap_or_default()
    }

    /// A call begins: counted, logged, hooked, delayed.
    pub(crate) async fn begin(
        &self,
        account: &Name,
        who: String,
        verb: Verb,
        subject: &str,
    ) -> Begun {
        let (begun, latency) = {
            let mut guard = self.lock();
            let state = &mut *guard;
            let count = state.counts.entry((account.clone(), verb)).or_default();
            *count += 1;
            let spec = state.accounts.get(account);
            let faults = spec.map(|spec| spec.faults.hits(verb, *count));
            let faults = faults.unwrap_or_default();
            let number = state.calls.len() as u64 + 1;
            state.calls.push(Call {
                number,
                at: self.clock.boottime(),
                who: who.clone(),
                verb,
                subject: subject.to_owned(),
                faults: faults.iter().map(Fault::knob).collect(),
            });
            let point = CallPoint {
                call: number,
                who,
                verb,
                side: Side::Before,
            };
            let latency = spec.map_or(Duration::ZERO, |spec| spec.latency);
            (Begun { point, faults }, latency)
        };
        self.pass(&begun.point).await;
        if !latency.is_zero() {
            self.clock.sleep(latency).await;
        }
        begun
    }

    /// A call had its effect; its answer follows.
    pub(crate) async fn end<T>(&self, begun: Begun, answer: T) -> T {
        for fault in &begun.faults {
            if let Fault::Slow(span) = fault {
                self.clock.sleep(*span).await;
            }
        }
        self.pass(&CallPoint {
            side: Side::After,
            ..begun.point
        })
        .await;
        answer
    }

    async fn pass(&self, point: &CallPoint) {
        let hook = {
            let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
            hook.clone()
        };
        if hook.is_some_and(|hook| hook(point).is_break()) {
            std::future::pending::<()>().await;
        }
    }
}
