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
use crate::journal::Record;
use crate::resource::{LeaseLimits, Spec};
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
}

impl Limit {
    /// Its key in the topology.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Idle => "idle_timeout",
            Self::Lifetime => "max_lifetime",
            Self::Spend => "limits.max_spend",
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
        write!(
            f,
            "ended by its {} at {:.0}: {}",
            self.limit, self.at, self.why
        )
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

    /// Why a lease of this generation was ended, when a limit was the reason.
    pub(super) fn lapse_of(&self, lease: &LeaseId, generation: Generation) -> Option<String> {
        let lapse = self.lapsed.get(lease)?;
        (lapse.generation == generation).then(|| format!("{}: {}", lapse.limit, lapse.why))
    }
}

impl Recorded {
    /// As [`State::limits_in_force`].
    pub fn limits_in_force(&self) -> Option<LeaseLimits> {
        if let Some(Spec::Lease(spec)) = &self.spec {
            return Some(LeaseLimits::of(spec));
        }
        let newest = self.attempts.values().next_back()?;
        newest.launch.limits
    }
}
