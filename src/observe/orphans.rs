//! Machines that carry our mark and that nothing records: found by asking every provider, also when the state is gone.
//!
//! Providers are asked first and states are read afterwards: each create is on record before it goes out, so that a machine
//! that was listed and is in none of them is nobody's. A provider that cannot be seen has an entry that says so. A machine
//! whose name only resembles a request key is no orphan: it is told apart, and nothing here ends it or takes it.

use std::sync::Arc;

use stageline_core::id::{Address, LeaseId, Lineage, MachineId, Name};
use stageline_core::resource::{Account, Receipt};
use stageline_core::state::{LookAlike, State};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::look_alike;
use crate::ambient::Clock;
use crate::provider::{Blind, Machine, Provider, Providers, Unseen};

/// What one provider answered.
pub struct Listing {
    /// Its table.
    pub name: Name,
    /// Itself.
    pub provider: Arc<dyn Provider>,
    /// Whose account it is; none where there are no accounts.
    pub account: Option<Account>,
    /// When it was asked.
    pub at: Timestamp,
    /// Every machine of the account.
    pub machines: Result<Vec<Machine>, Blind>,
    /// What is missing among them.
    pub unseen: Vec<Unseen>,
}

impl Listing {
    /// Whether it is all that there is: a provider may be silent, or see only what was made from here.
    pub fn is_whole(&self) -> bool {
        self.machines.is_ok() && self.unseen.is_empty() && self.provider.traits().sees_account
    }
}

/// What is known of states when orphans are told from the rest.
pub struct Known<'a> {
    /// The state of the topology that this is about.
    pub own: &'a State,
    /// States beside it, each with what it is called.
    pub beside: &'a [(String, State)],
    /// Leases that the topology declares.
    pub declared: Vec<LeaseId>,
}

impl Known<'_> {
    fn lineages(&self) -> impl Iterator<Item = &Lineage> {
        let beside = self.beside.iter().map(|(_, state)| state);
        let geneses = std::iter::once(self.own).chain(beside);
        geneses.filter_map(|state| state.genesis.as_ref().map(|it| &it.lineage))
    }
}

/// Whose machine it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of this state's lineage.
    Own,
    /// Of this state's lineage, and given up on purpose.
    GivenUp,
    /// Of the lineage of another state beside this one, which does not record it.
    Beside(String),
    /// Of a lineage that no state here has: another topology's, or its state is lost.
    Unknown,
}

/// A machine with our mark that nothing records.
#[derive(Clone)]
pub struct Orphan {
    /// The table of the provider that listed it.
    pub provider: Name,
    /// That provider.
    pub seller: Arc<dyn Provider>,
    /// On whose account.
    pub account: Option<Account>,
    /// What.
    pub machine: Machine,
    /// Whose it may be.
    pub whose: Whose,
    /// The lease that its name was made for, where an address is known that fits.
    pub lease: Option<LeaseId>,
}

impl Orphan {
    /// The provider's word for it.
    pub fn id(&self) -> &MachineId {
        &self.machine.id
    }

    /// How long it has been there, in seconds; none where the provider does not say since when.
    pub fn age(&self, now: Timestamp) -> Option<u64> {
        let made = self.machine.created_at?;
        Some(u64::try_from(now.duration_since(made).as_secs()).unwrap_or(0))
    }

    /// About what it cost so far: its price of now, over its whole life.
    pub fn cost(&self, now: Timestamp) -> Option<MicroDollars> {
        let cost = u128::from(self.age(now)?) * u128::from(self.machine.price_per_hour.0);
        Some(MicroDollars(
            u64::try_from(cost.div_ceil(3600)).unwrap_or(u64::MAX),
        ))
    }
}

/// What was found, by machine.
#[derive(Default)]
pub struct Found {
    /// Machines that nothing records.
    pub orphans: Vec<Orphan>,
    /// How many machines a state records.
    pub recorded: usize,
    /// How many machines of these accounts carry no mark of ours.
    pub others: usize,
    /// Those of the others whose names look like ours.
    pub look_alikes: Vec<LookAlike>,
}

/// Asks every provider for all machines of its account.
pub async fn list(providers: &Providers, clock: &dyn Clock) -> Vec<Listing> {
    let asked = providers.named().map(|(name, provider)| async move {
        // Whose account it is comes first: a listing of an unknown account proves nothing.
        let (account, view) = match provider.account().await {
            Ok(account) => (account, provider.view().await),
            Err(blind) => (None, Err(blind)),
        };
        let (machines, unseen) = match view {
            Ok(view) => (Ok(view.machines), view.unseen),
            Err(blind) => (Err(blind), Vec::new()),
        };
        Listing {
            name,
            provider: Arc::clone(provider),
            account,
            at: clock.now(),
            machines,
            unseen,
        }
    });
    futures::future::join_all(asked).await
}

/// Tells orphans from machines that are recorded and from those that are not ours.
pub fn tell(listings: &[Listing], known: &Known<'_>) -> Found {
    let mut found = Found::default();
    let mut seen = Vec::new();
    for listing in listings {
        let account = listing.account.as_ref().map(|account| account.id.clone());
        for machine in listing.machines.iter().flatten() {
            // Two tables may be for one account.
            let one = (listing.provider.kind(), account.clone(), &machine.id);
            if seen.contains(&one) {
                continue;
            }
            seen.push(one);
            match judge(machine, listing.provider.kind(), known) {
                Judged::NotOurs => {
                    found.others += 1;
                    let alike = look_alike(&listing.name, machine, known.lineages());
                    found.look_alikes.extend(alike);
                }
                Judged::Recorded => found.recorded += 1,
                Judged::Orphan(whose, lease) => found.orphans.push(Orphan {
                    provider: listing.name.clone(),
                    seller: Arc::clone(&listing.provider),
                    account: listing.account.clone(),
                    machine: machine.clone(),
                    whose,
                    lease,
                }),
            }
        }
    }
    found
        .orphans
        .sort_by(|a, b| (&a.provider, a.id()).cmp(&(&b.provider, b.id())));
    found
}

enum Judged {
    NotOurs,
    Recorded,
    Orphan(Whose, Option<LeaseId>),
}

fn judge(machine: &Machine, kind: &str, known: &Known<'_>) -> Judged {
    let beside = known.beside.iter().map(|(_, state)| state);
    // By id first: a machine that somebody renamed is still its state's.
    if std::iter::once(known.own)
        .chain(beside)
        .any(|state| is_recorded(state, machine, kind))
    {
        return Judged::Recorded;
    }
    let Some(key) = &machine.request_key else {
        return Judged::NotOurs;
    };
    let of = |state: &State| {
        let genesis = state.genesis.as_ref();
        genesis.is_some_and(|genesis| key.is_of(&genesis.lineage))
    };
    let is_for = |lease: &&LeaseId| key.is_for(&Address::Lease((*lease).clone()));
    let before = |state: &State| {
        let gone = state.disowned.get(&machine.id);
        let gone = gone.map(|gone| gone.lease.clone());
        let mut ever = state.generations.keys().filter_map(Address::lease);
        gone.or_else(|| ever.find(is_for).cloned())
    };
    let declared = || known.declared.iter().find(is_for).cloned();
    if of(known.own) {
        let lease = before(known.own).or_else(declared);
        let given_up = known.own.disowned.contains_key(&machine.id);
        let whose = if given_up { Whose::GivenUp } else { Whose::Own };
        return Judged::Orphan(whose, lease);
    }
    match known.beside.iter().find(|(_, state)| of(state)) {
        Some((name, state)) => Judged::Orphan(Whose::Beside(name.clone()), before(state)),
        None => Judged::Orphan(Whose::Unknown, declared()),
    }
}

/// Whether a state has this machine, or a try that may have made it.
fn is_recorded(state: &State, machine: &Machine, kind: &str) -> bool {
    state.existing().any(|(_, recorded)| {
        let held = match &recorded.receipt {
            Some(Receipt::Lease(held)) => held.machine == machine.id && held.provider_kind == kind,
            Some(_) | None => false,
        };
        let mut open = recorded.attempts.values();
        held || open.any(|open| Some(&open.launch.request_key) == machine.request_key.as_ref())
    })
}

#[cfg(test)]
mod tests;
