//! Leases that ended by a limit of their own: which limit it was, and what that means for later plans.
//!
//! A lease *lapses* when its idle time, its lifetime or the topology's spend is used up. It is then ended on purpose, so
//! its absence is no drift: it stays ended until a new machine of it is started, it leaves the topology, or somebody asks
//! for it by `--renew`. The limits in force are those that were on disk before its machine was asked for.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Recorded, State};
use crate::id::{Address, Generation, LeaseId};
use crate::journal::{Launch, Record};
use crate::resource::{LeaseLimits, Receipt, Spec};
use crate::topology::{Bidding, OnInterrupt};
use crate::unit::Timestamp;

/// The limit that a lease ended by.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// `idle_timeout`.
    Idle,
    /// `max_lifetime`.
    Lifetime,
    /// `limits.max_spend`.
    Spend,
    /// Its machine was bid for and taken away: what follows is what `spot.on_interrupt` said.
    Interrupt,
}

/// That a lease ended by its own limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lapse {
    /// Which generation of it.
    pub generation: Generation,
    /// Which limit.
    pub limit: Limit,
    /// What was seen, for people.
    pub why: String,
    /// When it was found to be beyond its limit.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The terms of its bid, when its machine was taken away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot: Option<Bidding>,
}

impl Limit {
    /// Its key in the topology.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Idle => "idle_timeout",
            Self::Lifetime => "max_lifetime",
            Self::Spend => "limits.max_spend",
            Self::Interrupt => "spot",
        }
    }

    /// Whether it is a limit of the lease's own: nobody took its machine away.
    pub const fn is_own(self) -> bool {
        match self {
            Self::Idle | Self::Lifetime | Self::Spend => true,
            Self::Interrupt => false,
        }
    }

    /// What becomes of a lease by it, in words that follow the lease's.
    pub const fn what_happens(self) -> &'static str {
        match self {
            Self::Idle => "ends by its idle_timeout",
            Self::Lifetime => "ends by its max_lifetime",
            Self::Spend => "ends by its limits.max_spend",
            Self::Interrupt => "its spot machine was taken away",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

impl fmt::Display for Lapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, why) = (self.at, &self.why);
        match self.limit {
            Limit::Interrupt => write!(f, "taken away, seen at {at:.0}: {why}"),
            limit @ (Limit::Idle | Limit::Lifetime | Limit::Spend) => {
                write!(f, "ended by its {limit} at {at:.0}: {why}")
            }
        }
    }
}

impl State {
    /// How a lease ended by its own limit, unless something of it was made since.
    pub fn lapse(&self, lease: &LeaseId) -> Option<&Lapse> {
        self.lapsed.get(lease)
    }

    /// The limits that hold for a lease now: what is recorded of it, else what its newest try was written down with. None
    /// where nothing is there, or where an older stageline wrote it down.
    pub fn limits_in_force(&self, lease: &LeaseId) -> Option<LeaseLimits> {
        let recorded = self.resources.get(&Address::Lease(lease.clone()))?;
        recorded.limits_in_force()
    }

    /// The record of a lapse, unless it is recorded, or there is nothing that could lapse.
    pub(super) fn lapses_now(
        &self,
        lease: &LeaseId,
        limit: Limit,
        why: &str,
        at: Timestamp,
    ) -> Option<Record> {
        let address = Address::Lease(lease.clone());
        let recorded = self.resources.get(&address).filter(|held| held.exists())?;
        let known = self.lapse(lease).map(|lapse| lapse.generation);
        (known != Some(recorded.generation)).then(|| Record::Lapsed {
            address,
            generation: recorded.generation,
            limit,
            why: why.to_owned(),
            at,
            spot: recorded.bidding().filter(|_| limit == Limit::Interrupt),
        })
    }

    /// The record that a lapse does not count any more, unless it does not.
    pub(super) fn unlapses_now(&self, lease: &LeaseId, at: Timestamp) -> Option<Record> {
        let address = Address::Lease(lease.clone());
        self.lapse(lease).map(|_| Record::Unlapsed { address, at })
    }

    /// A lease is beyond a limit, and is ended for it.
    pub(super) fn lapsed(&mut self, address: &Address, lapse: Lapse) {
        if let Address::Lease(lease) = address {
            self.lapsed.insert(lease.clone(), lapse);
        }
    }

    /// It did, or may do, something new: it is not ended any more.
    pub(super) fn unlapsed(&mut self, address: &Address) {
        if let Address::Lease(lease) = address {
            self.lapsed.remove(lease);
        }
    }

    /// Since when a lease is rented on demand that was bid for on these terms: its machine was taken away then.
    pub fn on_demand_since(&self, lease: &LeaseId, bidding: Bidding) -> Option<Timestamp> {
        let lapse = self.lapse(lease)?;
        let falls_back = lapse.limit == Limit::Interrupt
            && lapse.spot == Some(bidding)
            && bidding.on_interrupt == OnInterrupt::OnDemand;
        falls_back.then_some(lapse.at)
    }

    /// A create is about to go out. What lapsed did something new; that a machine was taken away counts until it is bid again.
    pub(super) fn relaunched(&mut self, address: &Address, launch: &Launch) {
        let Address::Lease(lease) = address else {
            return;
        };
        let counts = self.lapse(lease).is_some_and(|lapse| {
            let after = lapse.spot.map(|spot| spot.on_interrupt);
            after == Some(OnInterrupt::OnDemand) && launch.quote.bid().is_none()
        });
        if !counts {
            self.unlapsed(address);
        }
    }

    /// Why a lease of this generation was ended, when a limit was the reason.
    pub(super) fn lapse_of(&self, lease: &LeaseId, generation: Generation) -> Option<String> {
        let lapse = self.lapsed.get(lease)?;
        (lapse.generation == generation).then(|| format!("{}: {}", lapse.limit, lapse.why))
    }
}

impl Lapse {
    /// Whether the lease is kept ended for it.
    pub fn ends(&self) -> bool {
        match self.limit {
            Limit::Idle | Limit::Lifetime | Limit::Spend => true,
            Limit::Interrupt => self
                .spot
                .is_none_or(|spot| spot.on_interrupt == OnInterrupt::End),
        }
    }
}

impl Recorded {
    /// On which terms its machine was bid for; none where it is on demand.
    pub fn bidding(&self) -> Option<Bidding> {
        let (Some(Spec::Lease(spec)), Some(Receipt::Lease(held))) = (&self.spec, &self.receipt)
        else {
            return None;
        };
        held.quote.bid()?;
        let mut terms = spec.terms.iter();
        terms.find(|terms| terms.offer == held.offer)?.spot
    }

    /// As [`State::limits_in_force`].
    pub fn limits_in_force(&self) -> Option<LeaseLimits> {
        if let Some(Spec::Lease(spec)) = &self.spec {
            return Some(LeaseLimits::of(spec));
        }
        let newest = self.attempts.values().next_back()?;
        newest.launch.limits
    }
}
