//! Asks what exists: a dated and possibly partial answer.
//!
//! Not knowing is an answer of its own and never the same as absence. Nothing is changed here, nothing is written.

pub mod charges;
mod dates;
pub mod orphans;
pub mod room;

pub use dates::dates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use stageline_core::id::{Address, LeaseId, Lineage, MachineId, Name, RequestKey};
use stageline_core::offer::{Quote, QuoteId, Requirement, by_disk};
use stageline_core::resource::{Account, Cause, Contact, DISK, FailureClass, LeaseReceipt, Spec};
use stageline_core::state::{
    Billed, LookAlike, Observed, ObservedAgent, ObservedLease, ObservedStage, Recorded, Seen,
    State, Stray,
};
use stageline_core::unit::{Bytes, MicroDollars};

use crate::ambient::Clock;
use crate::machine::{AgentStatus, Machines, Target, WorkerState, share_fingerprint};
use crate::provider::{Blind, Machine, MachineStatus, Provider, Providers, Unseen, same_account};

/// Agents that are asked at once.
const AGENTS_AT_ONCE: usize = 64;

/// How long one agent may take to answer before it is unknown.
const AGENT_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// What every provider lists, and what every agent that should be up says. Without `machines` no agent is asked.
pub async fn look(
    state: &State,
    providers: &Providers,
    machines: Option<&dyn Machines>,
    clock: &dyn Clock,
) -> Observed {
    let mut observed = Observed {
        at: Some(clock.now()),
        ..Observed::default()
    };
    let listings = list(state, providers).await;
    for (address, recorded) in state.existing() {
        let Address::Lease(lease) = address else {
            continue;
        };
        let Some(held) = state.lease(lease) else {
            continue;
        };
        let listing = &listings[&(held.provider.clone(), held.provider_kind.clone())];
        let age = age(state, recorded.billed.as_ref(), held, clock);
        let young = is_young(providers, held, age);
        let seen = seen(listing, held);
        if young && matches!(seen, Seen::Gone) {
            observed.young.insert(lease.clone());
        }
        observed
            .leases
            .insert(lease.clone(), unless_young(seen, young));
    }
    (observed.strays, observed.look_alikes) = strangers(state, &listings);
    if let Some(machines) = machines {
        observed.agents = ask_agents(state, &observed, machines, clock).await;
    }
    observed
}

/// What one provider answered.
struct Listed {
    machines: BTreeMap<MachineId, Machine>,
    /// What is missing among them.
    unseen: Vec<Unseen>,
    /// Recorded ones that are missing and of which nothing is told by their ids either.
    untold: BTreeMap<MachineId, Cause>,
    /// Whose they are, asked only when a recorded machine is missing: then all hangs on it.
    account: Result<Option<Account>, Cause>,
}

type Listings = BTreeMap<(Name, String), Result<Listed, Cause>>;

/// One listing for each provider that recorded leases come from.
async fn list(state: &State, providers: &Providers) -> Listings {
    let mut sellers: BTreeMap<(Name, String), BTreeSet<&MachineId>> = BTreeMap::new();
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    for held in leases.filter_map(|lease| state.lease(lease)) {
        let seller = (held.provider.clone(), held.provider_kind.clone());
        sellers.entry(seller).or_default().insert(&held.machine);
    }
    let asked = sellers.into_iter().map(|((name, kind), held)| async move {
        let listing = match providers.get(&name, &kind) {
            Ok(provider) => ask_seller(provider.as_ref(), &held).await,
            Err(cause) => Err(cause),
        };
        ((name, kind), listing)
    });
    futures::future::join_all(asked).await.into_iter().collect()
}

/// Machines whose names are ours, or like ours, and that no lease and no open try stands for.
fn strangers(state: &State, listings: &Listings) -> (Vec<Stray>, Vec<LookAlike>) {
    let mut ids = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for (address, recorded) in state.existing() {
        if let Some(held) = address.lease().and_then(|lease| state.lease(lease)) {
            ids.insert(&held.machine);
            keys.insert(&held.request_key);
        }
        keys.extend(
            recorded
                .attempts
                .values()
                .map(|open| &open.launch.request_key),
        );
    }
    let lineage = state.genesis.as_ref().map(|it| &it.lineage);
    let (mut strays, mut look_alikes) = (Vec::new(), Vec::new());
    for ((provider, _), listed) in listings {
        let machines = listed.iter().flat_map(|listed| listed.machines.values());
        for machine in machines {
            if ids.contains(&machine.id) || state.disowned.contains_key(&machine.id) {
                continue;
            }
            match &machine.request_key {
                None => look_alikes.extend(look_alike(provider, machine, lineage)),
                Some(key) if keys.contains(key) => {}
                Some(key) => strays.push(Stray {
                    provider: provider.clone(),
                    machine: machine.id.clone(),
                    key: key.clone(),
                    price_per_hour: machine.price_per_hour,
                    own: lineage.is_some_and(|lineage| key.is_of(lineage)),
                }),
            }
        }
    }
    (strays, look_alikes)
}

/// A machine that carries no key, where its name looks like one.
fn look_alike<'a>(
    provider: &Name,
    machine: &Machine,
    lineages: impl IntoIterator<Item = &'a Lineage>,
) -> Option<LookAlike> {
    let name = machine.name.as_ref()?;
    let like = machine.request_key.is_none() && name.resembles_key(lineages);
    like.then(|| LookAlike {
        provider: provider.clone(),
        machine: machine.id.clone(),
        name: name.clone(),
        price_per_hour: machine.price_per_hour,
    })
}

async fn ask_seller(provider: &dyn Provider, held: &BTreeSet<&MachineId>) -> Result<Listed, Cause> {
    let view = provider.view().await.map_err(|blind| blind.cause)?;
    let unseen = view.unseen;
    let by_id = view
        .machines
        .into_iter()
        .map(|machine| (machine.id.clone(), machine));
    let mut machines: BTreeMap<MachineId, Machine> = by_id.collect();
    let mut untold = BTreeMap::new();
    for id in held {
        if machines.contains_key(*id) {
            continue;
        }
        match provider.missed(id).await {
            Ok(missed) => machines.extend(missed.map(|machine| ((*id).clone(), machine))),
            Err(blind) => {
                untold.insert((*id).clone(), blind.cause);
            }
        }
    }
    let account = if held.iter().all(|id| machines.contains_key(*id)) {
        Ok(None)
    } else {
        provider.account().await.map_err(|blind| blind.cause)
    };
    Ok(Listed {
        machines,
        unseen,
        untold,
        account,
    })
}

/// How long ago a machine was made, at least. In ledger time, so that a wall clock that is set makes no machine of this
/// boot older; where that is not known, a wall clock that was set back leaves it young, which is safe.
pub fn age(
    state: &State,
    billed: Option<&Billed>,
    held: &LeaseReceipt,
    clock: &dyn Clock,
) -> Duration {
    let age = match billed {
        Some(billed) => {
            let now = state.ledger_now(clock.now(), clock.boot_point().as_ref());
            now.duration_since(billed.born())
        }
        None => clock.now().duration_since(held.created_at),
    };
    Duration::try_from(age).unwrap_or_default()
}

/// Whether a machine may be too new to be in listings.
fn is_young(providers: &Providers, held: &LeaseReceipt, age: Duration) -> bool {
    let Ok(provider) = providers.get(&held.provider, &held.provider_kind) else {
        return false;
    };
    age < provider.traits().visibility_delay
}

impl Listed {
    /// Other machines that carry the name of this one.
    fn twins(&self, held: &LeaseReceipt) -> Vec<MachineId> {
        let others = self.machines.values().filter(|machine| {
            machine.id != held.machine && machine.request_key.as_ref() == Some(&held.request_key)
        });
        others.map(|machine| machine.id.clone()).collect()
    }

    /// Whether what is missing here was made on the account that answered, and could be seen there.
    fn is_of(&self, held: &LeaseReceipt) -> Result<(), Cause> {
        if let Some(cause) = self.untold.get(&held.machine) {
            return Err(cause.clone());
        }
        let mut unseen = self.unseen.iter();
        if let Some(part) = unseen.find(|part| part.concerns(held.machine.as_str())) {
            return Err(part.cause.clone());
        }
        let Some(made_on) = &held.account else {
            return Ok(());
        };
        let now = self.account.as_ref().map_err(Cause::clone)?;
        same_account(&held.provider, made_on, now.as_ref())
    }
}

/// What it costs now. Of one that is up a price of nothing is one that was not told: that of the record holds.
fn price_now(machine: &Machine, held: &LeaseReceipt) -> MicroDollars {
    match machine.status {
        MachineStatus::Running | MachineStatus::Pending(_)
            if machine.price_per_hour == MicroDollars::ZERO =>
        {
            held.price_per_hour
        }
        MachineStatus::Running
        | MachineStatus::Pending(_)
        | MachineStatus::Dead(_)
        | MachineStatus::Interrupted(_)
        | MachineStatus::Ending => machine.price_per_hour,
    }
}

/// A machine that may be too new to be listed is not gone for not being listed.
fn unless_young(seen: Seen<ObservedLease>, young: bool) -> Seen<ObservedLease> {
    match seen {
        Seen::Gone if young => Seen::Unknown(Cause::new(
            FailureClass::Unknown,
            "it is too new to be in the provider's listing",
        )),
        Seen::Gone | Seen::There(_) | Seen::Unknown(_) => seen,
    }
}

fn seen(listing: &Result<Listed, Cause>, held: &LeaseReceipt) -> Seen<ObservedLease> {
    match listing {
        Err(cause) => Seen::Unknown(cause.clone()),
        Ok(listed) => match listed.machines.get(&held.machine) {
            None => match listed.is_of(held) {
                Err(cause) => Seen::Unknown(cause),
                Ok(()) => Seen::Gone,
            },
            Some(machine) => Seen::There(ObservedLease {
                dead: match &machine.status {
                    MachineStatus::Dead(why) | MachineStatus::Interrupted(why) => Some(why.clone()),
                    MachineStatus::Ending => Some("it is being ended".to_owned()),
                    MachineStatus::Pending(_) | MachineStatus::Running => None,
                },
                interrupted: matches!(machine.status, MachineStatus::Interrupted(_)),
                price_per_hour: price_now(machine, held),
                gpus: machine.facts.gpus.clone(),
                renamed: machine.request_key.as_ref() != Some(&held.request_key),
                twins: listed.twins(held),
                moved: held
                    .ready
                    .as_ref()
                    .and_then(|ready| ready.contact.moved(&machine.contact)),
            }),
        },
    }
}

async fn ask_agents(
    state: &State,
    observed: &Observed,
    machines: &dyn Machines,
    clock: &dyn Clock,
) -> BTreeMap<LeaseId, Seen<ObservedAgent>> {
    let up = observed
        .leases
        .iter()
        .filter_map(|(lease, seen)| match seen {
            Seen::There(there) if there.dead.is_none() => {
                target_by(state, lease, there.moved.as_ref())
            }
            Seen::There(_) | Seen::Gone | Seen::Unknown(_) => None,
        });
    let answers = statuses(up.collect(), machines, clock).await.into_iter();
    let seen = answers.map(|(lease, answer)| {
        let seen = match answer {
            Ok(status) => Seen::There(agent(state, &lease, &status)),
            Err(message) => Seen::Unknown(Cause::new(FailureClass::Unknown, message)),
        };
        (lease, seen)
    });
    seen.collect()
}

/// What each of these agents says of itself, asked all at once. One that is silent holds nobody up for long.
pub async fn statuses(
    targets: Vec<Target>,
    machines: &dyn Machines,
    clock: &dyn Clock,
) -> BTreeMap<LeaseId, Result<AgentStatus, String>> {
    let asked = targets.into_iter().map(|target| async move {
        let answer = tokio::select! {
            biased;
            answer = machines.status(&target) => answer.map_err(|error| error.to_string()),
            () = clock.sleep(AGENT_ANSWERS_WITHIN) => Err(format!(
                "{}: its agent does not answer within {} s",
                target.lease,
                AGENT_ANSWERS_WITHIN.as_secs()
            )),
        };
        (target.lease, answer)
    });
    stream::iter(asked)
        .buffer_unordered(AGENTS_AT_ONCE)
        .collect()
        .await
}

/// How the agent of a recorded machine is reached; none before it was ready.
pub fn target(state: &State, lease: &LeaseId) -> Option<Target> {
    let ready = state.lease(lease)?.ready.as_ref()?;
    Some(Target {
        lease: lease.clone(),
        endpoint: ready.endpoint,
        contact: ready.contact.clone(),
    })
}

/// The same, also where its provider tells that it is by now: its key tells whether that is so.
pub fn target_by(state: &State, lease: &LeaseId, moved: Option<&Contact>) -> Option<Target> {
    let target = target(state, lease)?;
    Some(match moved {
        Some(now) => Target {
            contact: target.contact.or_at(now),
            ..target
        },
        None => target,
    })
}

/// Where an agent that did not answer may be: where its provider tells that its machine is by now. None where that is known already.
pub async fn elsewhere(state: &State, providers: &Providers, target: &Target) -> Option<Target> {
    let held = state.lease(&target.lease)?;
    let provider = providers.get(&held.provider, &held.provider_kind).ok()?;
    let machine = provider.describe(&held.machine).await.ok()??;
    let now = target.contact.moved(&machine.contact)?;
    target_by(state, &target.lease, Some(&now))
}

/// An agent's answer in the planner's words.
fn agent(state: &State, lease: &LeaseId, status: &AgentStatus) -> ObservedAgent {
    let recorded = state.resources.get(&Address::Delivery(lease.clone()));
    let stages = status.stages.iter().map(|(stage, status)| {
        let failed = match &status.worker {
            WorkerState::Failed { why } => Some(why.clone()),
            WorkerState::Loading { .. }
            | WorkerState::Ready { .. }
            | WorkerState::Restarting { .. } => None,
        };
        (
            stage.clone(),
            ObservedStage {
                spec: status.spec,
                failed,
            },
        )
    });
    let exposures = status
        .exposures
        .iter()
        .map(|(name, (spec, _))| (name.clone(), *spec));
    ObservedAgent {
        gpus: status.facts.gpus.clone(),
        delivery: recorded.and_then(|recorded| delivered(recorded, status)),
        stages: stages.collect(),
        exposures: exposures.collect(),
    }
}

/// The digest of the recorded delivery, when the agent has every share of it.
fn delivered(recorded: &Recorded, status: &AgentStatus) -> Option<stageline_core::id::Fingerprint> {
    let spec = recorded.spec.as_ref()?;
    let Spec::Delivery(delivery) = spec else {
        return None;
    };
    let whole = delivery.pipelines.iter().all(|(name, share)| {
        let there = status.deliveries.get(name);
        there.is_some_and(|(digest, _)| *digest == share_fingerprint(share))
    });
    whole.then(|| spec.fingerprint())
}

/// One search of a provider's offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// What is wanted.
    pub requirement: Requirement,
    /// What is bid: an amount, or the least that is taken; none is on demand.
    pub bid: Option<Option<MicroDollars>>,
    /// What quotes are priced with.
    pub disk: Bytes,
}

/// A provider, and what it is asked for.
pub struct Asked {
    /// Its table.
    pub name: Name,
    /// Itself.
    pub provider: Arc<dyn Provider>,
    /// What several find is there once, and once more for each other price that it has with another disk.
    pub searches: Vec<Search>,
}

impl Asked {
    /// Everything that a provider has.
    pub fn all(name: Name, provider: Arc<dyn Provider>) -> Self {
        let everything = Search {
            requirement: Requirement::default(),
            bid: None,
            disk: DISK,
        };
        Self {
            name,
            provider,
            searches: vec![everything],
        }
    }

    async fn ask(&self) -> Result<Vec<Quote>, Blind> {
        let mut found: BTreeMap<Bytes, BTreeMap<QuoteId, Quote>> = BTreeMap::new();
        for Search {
            requirement,
            bid,
            disk,
        } in &self.searches
        {
            let quotes = match bid {
                None => self.provider.search(requirement, *disk).await?,
                Some(bid) => self.provider.bids(requirement, *disk, *bid).await?,
            };
            let quotes = quotes.into_iter().map(|quote| (quote.id.clone(), quote));
            found.entry(*disk).or_default().extend(quotes);
        }
        Ok(by_disk(found))
    }
}

/// What can be rented now, one answer for each declared provider.
pub async fn quotes(asked: &[Asked]) -> BTreeMap<Name, Result<Vec<Quote>, Blind>> {
    let asked = asked
        .iter()
        .map(async |asked| (asked.name.clone(), asked.ask().await));
    futures::future::join_all(asked).await.into_iter().collect()
}

/// A machine with our mark that is left at a provider.
#[derive(Clone)]
pub struct Survivor {
    /// The provider that listed it.
    pub provider: Name,
    /// On whose account; none where there are no accounts.
    pub account: Option<Account>,
    /// Its adapter.
    pub kind: &'static str,
    /// That provider.
    pub seller: Arc<dyn Provider>,
    /// What.
    pub machine: Machine,
}

/// An independent listing: every machine of this state's lineage at every provider that can be asked.
///
/// # Errors
/// The first [`Blind`] answer: what cannot be seen is not gone.
pub async fn survivors(state: &State, providers: &Providers) -> Result<Vec<Survivor>, Blind> {
    let (left, mut unseen) = survivors_but(state, providers).await?;
    match unseen.pop() {
        None => Ok(left),
        Some((provider, part)) => Err(Blind {
            provider,
            cause: part.cause,
            retry_after: None,
        }),
    }
}

/// The same, where a part of an account may be missing: these are told. What is recorded in them is not gone by that.
///
/// # Errors
/// The first [`Blind`] answer: what cannot be seen is not gone.
pub async fn survivors_but(
    state: &State,
    providers: &Providers,
) -> Result<(Vec<Survivor>, Vec<(Name, Unseen)>), Blind> {
    let (mut left, mut unseen) = (Vec::new(), Vec::new());
    let Some(genesis) = &state.genesis else {
        return Ok((left, unseen));
    };
    let mark = RequestKey::mark(&genesis.lineage);
    for (name, provider) in providers.named() {
        let kind = provider.kind();
        let account = provider.account().await?;
        let found = if provider.has_parts() {
            let view = provider.view().await?;
            unseen.extend(view.unseen.iter().map(|part| (name.clone(), part.clone())));
            let mut found = view.machines;
            found.retain(|machine| machine.carries(&mark));
            found
        } else {
            provider.find(&mark).await?
        };
        is_of_account(state, (&name, account.as_ref()), &found)?;
        left.extend(found.into_iter().map(|machine| Survivor {
            provider: name.clone(),
            account: account.clone(),
            kind,
            seller: provider.clone(),
            machine,
        }));
    }
    // Two tables may be one account, which lists each machine twice; two accounts may have one id each for different machines.
    let whose = |one: &Survivor| one.account.as_ref().map(|account| account.id.clone());
    left.sort_by_cached_key(|one| (one.machine.id.clone(), one.kind, whose(one)));
    left.dedup_by(|a, b| a.kind == b.kind && a.machine.id == b.machine.id && whose(a) == whose(b));
    Ok((left, unseen))
}

/// A listing that lacks a recorded machine proves nothing about it when it is another account's.
fn is_of_account(
    state: &State,
    (name, account): (&Name, Option<&Account>),
    found: &[Machine],
) -> Result<(), Blind> {
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    let held = leases.filter_map(|lease| state.lease(lease));
    let missing = held.filter(|held| {
        held.provider == *name && found.iter().all(|machine| machine.id != held.machine)
    });
    for made_on in missing.filter_map(|held| held.account.as_ref()) {
        same_account(name, made_on, account).map_err(|cause| Blind {
            provider: name.clone(),
            cause,
            retry_after: None,
        })?;
    }
    Ok(())
}

/// Whether something that is recorded could be in a part that cannot be seen.
pub fn may_hold(state: &State, part: &Unseen) -> bool {
    state.existing().any(|(address, recorded)| {
        let held = address.lease().and_then(|lease| state.lease(lease));
        let held = held.is_some_and(|held| part.concerns(held.machine.as_str()));
        let mut open = recorded.attempts.values();
        held || open.any(|open| part.concerns(&open.launch.quote.0))
    })
}
