//! Offers, machines and money of a simulator, whatever the provider's words for them are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use stageline_core::offer::Facts;
use stageline_core::unit::{Bytes, MicroDollars};

use super::access::Access;
use super::bill::Meter;
use super::boot::{Agent, Booter};
use super::clock::SimClock;
use super::fault::{Fault, Faults};
use super::machine::{Course, Machine, Offer, Stand};
use super::volume::{self, Attached};
use super::{Kind, Options, wrong};

/// Between two looks at what time has done.
const TICK: Duration = Duration::from_millis(25);

/// How long a host takes to begin, by the simulator's clock.
const PROVISION_MS: u64 = 5_000;

/// By so much of real time a request may come early, at the real pace and at a faster one: the way there is not always the
/// same, and a short distance is soon lost on a busy computer.
const SLACK_MS: (u64, u64) = (100, 200);

/// The fastest clock by which requests can be told to come too soon: beyond it, distances are shorter than a network keeps.
const PACED_SPEED_MAX: u32 = 10;

/// How long an image takes.
const LOAD_MS: u64 = 40_000;

/// What one create asks for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Whose.
    pub account: String,
    /// Its name.
    pub label: String,
    /// Its image.
    pub image: String,
    /// Disk in GiB.
    pub disk_gib: u64,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its start command.
    pub onstart: String,
    /// Its image is private, and who is to pull it may not.
    pub denied: bool,
    /// It begins stopped.
    pub stopped: bool,
    /// What is bid for it, without its disk; none is on demand.
    pub bid: Option<MicroDollars>,
    /// It costs its price from the create on, and not only while it runs.
    pub bills_booting: bool,
    /// For so long it is on its way out, and bills, once its end was asked for; milliseconds.
    pub ends_within: u64,
    /// Where its agent listens; none is a free port, which is mapped.
    pub listen: Option<SocketAddr>,
    /// Who gets in by SSH; none where nobody is to.
    pub access: Option<Access>,
    /// What it has of what outlives it.
    pub mounts: Vec<Attached>,
    /// Somebody else makes it.
    pub foreign: bool,
    /// What only this provider's record of it has.
    pub more: Value,
}

/// Everything that there is.
pub struct World {
    /// Who is played.
    pub kind: Kind,
    /// Its time.
    pub clock: SimClock,
    /// What goes wrong.
    pub faults: Faults,
    seed: u64,
    booter: Booter,
    inner: Mutex<Inner>,
}

/// What changes.
#[derive(Default)]
pub struct Inner {
    /// By number.
    pub offers: BTreeMap<u64, Offer>,
    /// Those that are there, and those that were.
    pub machines: BTreeMap<u64, Machine>,
    /// Creates that take effect later.
    pub late: Vec<(u64, Offer, Wish)>,
    /// Requests by endpoint.
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests that came too soon.
    pub too_soon: u64,
    /// Prices are multiplied so.
    pub price_factor: f64,
    /// What a provider keeps for an account beside machines, in its own words.
    pub accounts: BTreeMap<String, Value>,
    recent: BTreeMap<(String, &'static str), Vec<u64>>,
    last_id: u64,
}

impl World {
    pub(super) fn new(options: &Options) -> std::io::Result<Self> {
        let faults = &options.faults;
        Ok(Self {
            kind: options.kind,
            clock: SimClock::new(options.speed),
            faults: faults.take(),
            seed: options.seed,
            booter: Booter::new(options)?,
            inner: Mutex::new(Inner {
                price_factor: 1.0,
                last_id: 8_100_000,
                ..Inner::default()
            }),
        })
    }

    /// Everything that changes, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }

    /// For what is drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Counts a request, and says whether it came too soon.
    pub fn passes(&self, account: &str, endpoint: &'static str, every: u64, burst: usize) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        *inner.requests.entry(endpoint).or_default() += 1;
        let window = every * u64::try_from(burst).unwrap_or(1);
        let speed = self.clock.speed();
        let slack = match speed {
            1 => SLACK_MS.0,
            speed => SLACK_MS.1 * u64::from(speed),
        };
        let window = window.saturating_sub(slack);
        let recent = inner
            .recent
            .entry((account.to_owned(), endpoint))
            .or_default();
        recent.retain(|at| at + window > now);
        let passes = recent.len() < burst || speed > PACED_SPEED_MAX;
        if passes {
            recent.push(now);
        } else {
            inner.too_soon += 1;
        }
        passes
    }

    /// Whoever came too soon waits for so many milliseconds from now on.
    pub fn punish(&self, account: &str, endpoint: &'static str, (every, most): (u64, u64)) {
        let until = self.clock.now() + most.saturating_sub(every);
        if self.clock.speed() <= PACED_SPEED_MAX {
            let mut inner = self.lock();
            let recent = inner.recent.entry((account.to_owned(), endpoint));
            recent.or_default().push(until);
        }
    }

    /// How many more requests may come now, and in how many seconds there is room for one more than that.
    pub fn left(
        &self,
        account: &str,
        endpoint: &'static str,
        every: u64,
        burst: usize,
    ) -> (usize, u64) {
        let now = self.clock.now();
        let window = every * u64::try_from(burst).unwrap_or(1);
        let inner = self.lock();
        let recent = inner.recent.get(&(account.to_owned(), endpoint));
        let recent = recent.into_iter().flatten();
        let recent: Vec<&u64> = recent.filter(|at| **at + window > now).collect();
        let reset = recent
            .first()
            .map_or(0, |first| (**first + window - now).div_ceil(1000));
        (burst.saturating_sub(recent.len()), reset)
    }

    /// Makes a machine. Returns its number.
    pub fn make(&self, offer: Offer, wish: Wish) -> u64 {
        let like = self.faults.fires("names").filter(|_| !wish.foreign);
        let like = like.map(|fault| named_like(&wish, fault.text.as_deref()));
        let id = self.made(offer.clone(), wish);
        if let Some(like) = like {
            self.made(offer, like);
        }
        id
    }

    /// Somebody else takes this offer first, where that is what goes wrong: whether there is nothing left of it.
    pub fn snatch(&self, offer: &Offer, wish: &Wish) -> bool {
        // Asking counts: only a create asks for this.
        if self.faults.fires_as("meddle", "create").is_none() {
            return false;
        }
        self.made(offer.clone(), stranger(wish, "web-1".to_owned()));
        if let Some(offer) = self.lock().offers.get_mut(&offer.id) {
            offer.taken = true;
        }
        true
    }

    fn made(&self, offer: Offer, wish: Wish) -> u64 {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.last_id += 1;
        let id = inner.last_id;
        if let Some(offer) = inner.offers.get_mut(&offer.id) {
            offer.taken |= !offer.many;
        }
        let machine = self.machine(id, now, offer, wish);
        inner.machines.insert(id, machine);
        id
    }

    /// How the boot of the next machine goes.
    fn course(&self, denied: bool) -> Course {
        if denied {
            Course::Dies(super::registry::DENIED.to_owned())
        } else if self.faults.fires("boot-never").is_some() {
            Course::Never
        } else if let Some(fault) = self.faults.fires("boot-dies") {
            Course::Dies(fault.text.unwrap_or_else(|| "exited".to_owned()))
        } else {
            Course::Well
        }
    }

    /// What the record of the next machine says that it is, and what its agent finds.
    fn is_and_is_found(&self, offer: &Offer, disk: Bytes) -> (Facts, Facts) {
        let facts = match self.faults.fires("create-other-machine") {
            Some(_) => wrong::other(&offer.facts),
            None => offer.facts.clone(),
        };
        let sound = Facts {
            disk,
            ..facts.clone()
        };
        let found = match self.faults.fires("boot-wrong-gpu") {
            Some(fault) => wrong::found(fault.text.as_deref(), &sound),
            None => sound,
        };
        (facts, found)
    }

    fn meter(&self, offer: &Offer, disk_gib: u64) -> Meter {
        let mut meter = Meter::new(offer.price, disk_gib, offer.disk_month);
        if self.faults.fires("traffic").is_some() {
            meter.traffic = TRAFFIC;
        }
        meter
    }

    fn machine(&self, id: u64, now: u64, offer: Offer, wish: Wish) -> Machine {
        let fires = |knob: &str| self.faults.fires(knob);
        let after =
            |fault: Option<Fault>, otherwise: u64| fault.map_or(0, |fault| fault.millis(otherwise));
        let provisioned = now + PROVISION_MS;
        let slow = fires("boot-slow").map_or(LOAD_MS, |fault| fault.millis(1500));
        let runs = provisioned + slow;
        let course = self.course(wish.denied);
        let disk = Bytes(wish.disk_gib << 30);
        let (facts, found) = self.is_and_is_found(&offer, disk);
        let meter = self.meter(&offer, wish.disk_gib);
        let costs = |fault: Fault| {
            let price = dearer(offer.price, fault.factor.unwrap_or(1.1));
            (runs + fault.millis(600), price)
        };
        let price_later = fires("price-later").map(costs);
        let price_asked = fires("price-asked").map(costs);
        let vanishes = fires("vanish").map(|fault| (runs + fault.millis(600), true));
        let ended = || self.faults.fires_as("meddle", "destroy");
        let ended = || ended().map(|fault| (runs + fault.millis(600), false));
        Machine {
            later: price_later,
            asked: price_asked,
            meddled: vanishes.or_else(ended),
            foreign: wish.foreign,
            id,
            account: wish.account,
            label: wish.label,
            facts,
            found,
            offer,
            image: wish.image,
            env: wish.env,
            onstart: wish.onstart,
            listen: wish.listen,
            access: wish.access.map(|access| self.troubled(access)),
            mounts: wish.mounts,
            more: wish.more,
            created: now,
            provisioned,
            runs,
            course,
            bid: wish.bid,
            listed_from: now + after(fires("list-lag"), 120),
            found_from: now + after(fires("get-404-lag"), 30),
            stopped_from: match (wish.stopped, fires("preempt")) {
                (true, _) => Some(now),
                (false, Some(fault)) => Some(runs + fault.millis(60)),
                (false, None) => None,
            },
            stops: Vec::new(),
            away: fires("host-offline").map(|fault| {
                let from = runs + 30_000;
                (from, from + fault.millis(600))
            }),
            address_from: runs + after(fires("ip-missing"), 60),
            wrong_address: u32::from(self.faults.fires_but("ip-changes", "later").is_some()),
            moves: self
                .faults
                .fires_as("ip-changes", "later")
                .map(|fault| runs + fault.millis(600)),
            gone_from: None,
            ghost_until: 0,
            bills_booting: wish.bills_booting,
            ends_within: wish.ends_within,
            own_key: fires("no-own-key").is_none(),
            meter,
            agent: None,
            started: false,
        }
    }

    /// What goes wrong with SSH, in real time: it is the real clock that whoever waits for it looks at.
    fn troubled(&self, access: Access) -> Access {
        let for_long = |knob: &str, otherwise: u64| {
            let fault = self.faults.fires(knob);
            let span = Duration::from_millis(fault.map_or(0, |fault| fault.millis(otherwise)));
            span / self.clock.speed()
        };
        Access {
            refuses_for: for_long("ssh-refused", 60),
            shows_other_for: for_long("ssh-stale-key", 60),
            denies_for: for_long("ssh-denied", 60),
            ..access
        }
    }

    /// Ends a machine. False when there is none of that number, as far as anybody is told.
    pub fn release(&self, account: &str, id: u64) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        let machine = inner.machines.get_mut(&id);
        let Some(machine) = machine.filter(|m| m.account == account && m.is_there(now)) else {
            return false;
        };
        if machine.gone_from.is_some() || self.faults.fires("terminate-noop").is_some() {
            return true;
        }
        machine.count(now);
        let late = self.faults.fires("delete-late");
        let within = machine.ends_within;
        machine.gone_from = Some(now + late.map_or(within, |fault| fault.millis(300)));
        let ghost = self.faults.fires("list-ghost");
        machine.ghost_until = ghost.map_or(0, |fault| now + fault.millis(60));
        let offer = machine.offer.id;
        if let Some(offer) = inner.offers.get_mut(&offer) {
            offer.taken &= offer.many;
        }
        true
    }

    /// Where its machines are.
    pub fn root(&self) -> &Path {
        self.booter.root()
    }

    /// Removes what is on a volume.
    pub(super) fn wipe(&self, account: &str, id: &str) {
        volume::remove(self.booter.root(), account, id);
    }

    /// What all machines ever cost.
    pub fn bill(&self) -> MicroDollars {
        let now = self.clock.now();
        let mut inner = self.lock();
        let machines = inner.machines.values_mut();
        machines
            .map(|machine| {
                machine.count(now);
                machine.meter.total()
            })
            .sum()
    }

    /// Does what time has done, until the simulator ends.
    pub(super) async fn run(&self) {
        loop {
            let (ended, moving) = self.tick();
            for agent in ended {
                agent.kill().await;
            }
            for (id, agent) in moving {
                agent.halt().await;
                self.resume(id);
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Starts the agent of a machine again, at another address.
    fn resume(&self, id: u64) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if let Some(machine) = inner.machines.get_mut(&id)
            && machine.is_there(now)
        {
            machine.listen = machine.listen.map(elsewhere);
            machine.agent = self.booter.resume(machine);
        }
    }

    /// Starts agents of machines that run now, and returns those of machines that do not any more, and of those that go elsewhere.
    fn tick(&self) -> (Vec<Agent>, Vec<(u64, Agent)>) {
        let now = self.clock.now();
        let due: Vec<(Offer, Wish)> = {
            let mut inner = self.lock();
            let (due, late) = std::mem::take(&mut inner.late)
                .into_iter()
                .partition(|(at, ..)| *at <= now);
            inner.late = late;
            let due: Vec<(u64, Offer, Wish)> = due;
            due.into_iter()
                .map(|(_, offer, wish)| (offer, wish))
                .collect()
        };
        for (offer, wish) in due {
            self.make(offer, wish);
        }
        let (mut ended, mut moving) = (Vec::new(), Vec::new());
        let mut inner = self.lock();
        let Inner {
            machines,
            offers,
            price_factor,
            ..
        } = &mut *inner;
        for machine in machines.values_mut() {
            machine.befall(now);
            if let (Some(bid), None, Some(offer)) = (
                machine.bid,
                machine.stopped_from,
                offers.get(&machine.offer.id),
            ) && bid < offer.least_bid(*price_factor)
            {
                machine.stopped_from = Some(now);
            }
            machine.count(now);
            let runs = machine.is_there(now) && machine.stand(now) == Stand::Running;
            if runs && !machine.started {
                machine.started = true;
                let agent = self.booter.start(machine);
                machine.agent = agent.or_else(|| self.booter.open(machine));
            }
            let away = machine.stand(now) == Stand::Offline;
            if let Some(agent) = &mut machine.agent {
                agent.go(away);
            }
            // A host that is away comes back with the machine as it was.
            let over = !machine.is_there(now) || machine.stand(now) == Stand::Stopped;
            if over {
                ended.extend(machine.agent.take());
            } else if machine.moves.is_some_and(|at| at <= now) {
                let agent = machine.agent.take_if(|agent| agent.can_move());
                machine.moves = machine.moves.filter(|_| agent.is_none());
                moving.extend(agent.map(|agent| (machine.id, agent)));
            }
        }
        (ended, moving)
    }

    /// Ends every machine.
    pub(super) async fn end(&self) {
        let agents: Vec<Agent> = {
            let mut inner = self.lock();
            let machines = inner.machines.values_mut();
            machines
                .filter_map(|machine| machine.agent.take())
                .collect()
        };
        for agent in agents {
            agent.kill().await;
        }
        self.booter.end();
    }
}

/// What a machine's traffic costs, where it is billed.
const TRAFFIC: MicroDollars = MicroDollars(250_000);

/// Another loopback address.
fn elsewhere(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) => {
            let [net, first, rest @ ..] = ip.octets();
            let [second, third] = rest;
            SocketAddr::from(([net, first ^ 1, second, third], listen.port()))
        }
        IpAddr::V6(_) => listen,
    }
}

/// The same for somebody else: nothing of ours is on it.
fn stranger(wish: &Wish, label: String) -> Wish {
    Wish {
        account: wish.account.clone(),
        label,
        image: wish.image.clone(),
        disk_gib: wish.disk_gib,
        bills_booting: wish.bills_booting,
        ends_within: wish.ends_within,
        foreign: true,
        more: json!({ "ports": [], "mounts": {}, "locked": false, "ssh_key_names": ["rehearsal"] }),
        ..Wish::default()
    }
}

/// Another machine, whose name looks like this one's.
fn named_like(wish: &Wish, how: Option<&str>) -> Wish {
    let label = wish.label.as_str();
    let name = match how {
        Some("case") => label.to_uppercase(),
        Some("cut") => label.chars().take(CUT).collect(),
        Some("same") => label.to_owned(),
        Some(_) | None => format!("copy-of-{label}"),
    };
    stranger(wish, name)
}

/// To so many characters a name is cut.
const CUT: usize = 24;

/// In whole cents, where it was.
fn dearer(price: MicroDollars, factor: f64) -> MicroDollars {
    let step = if price.0.is_multiple_of(10_000) {
        10_000.0
    } else {
        1.0
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "prices are small and positive"
    )]
    MicroDollars(((price.0 as f64 * factor / step).round() * step) as u64)
}
