//! What can be rented: facts of a machine, what a provider asks for it, what a lease requires.
//!
//! A quote is perishable and a claim; facts that count are measured on the machine. Requirements match facts, never
//! wishes.

mod bid;
mod claim;
mod disk_range;
mod ranked;
mod requirement;
mod selection;
mod volume;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use bid::Bid;
pub use claim::{broken_claims, count, side_by_side};
pub use disk_range::{DiskRange, by_disk};
pub use ranked::{Sold, ranked};
pub use requirement::{
    FIELDS, Hints, Misfit, Models, Requirement, RequirementError, distance, region,
};
pub use selection::{INSTANCE_TYPE, POOL, Ranks, Selection};
pub use volume::Volume;

use crate::id::Name;
use crate::unit::{Bytes, MicroDollars, Millis};

/// One GPU of a machine.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Gpu {
    /// The vendor's name, as `nvidia-smi` prints it.
    pub model: String,
    /// Memory of this one.
    pub vram: Bytes,
}

/// What is known of a machine, claimed by a provider or measured by the agent.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct Facts {
    /// `linux`, `macos`, as Rust's `std::env::consts::OS`.
    pub os: String,
    /// `x86_64`, `aarch64`, as Rust's `std::env::consts::ARCH`.
    pub arch: String,
    /// Logical processors that may be used.
    pub cpus: u32,
    /// Main memory.
    pub memory: Bytes,
    /// Free disk where deliveries go.
    pub disk: Bytes,
    /// Every GPU, in the order of the driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Version of the GPU driver, such as `550.54`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Highest CUDA version that the driver takes, such as `12.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// The provider's code of the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The provider's code of the building, where it tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// The provider's code of the computer that the machine is on, where it tells one: what a bad machine is noted by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Programs that are present.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Whether it may be taken away.
    #[serde(default)]
    pub spot: bool,
    /// Fields that only this provider has, matched by `provider.FIELD`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

/// Where a machine is, as far as its provider tells.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct Place {
    /// [`Facts::region`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// [`Facts::datacenter`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// [`Facts::host`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// How near two machines are, or how far apart: what they have in common, or must not.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// [`Facts::region`].
    Region,
    /// [`Facts::datacenter`].
    Datacenter,
    /// [`Facts::host`].
    Host,
}

impl Domain {
    /// As the topology says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Datacenter => "datacenter",
            Self::Host => "host",
        }
    }
}

impl std::fmt::Display for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Place {
    /// What the provider calls the place of this domain; none when it does not tell.
    pub fn of(&self, domain: Domain) -> Option<&str> {
        match domain {
            Domain::Region => self.region.as_deref(),
            Domain::Datacenter => self.datacenter.as_deref(),
            Domain::Host => self.host.as_deref(),
        }
    }

    /// Nothing is told.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

impl Facts {
    /// Where it is.
    pub fn place(&self) -> Place {
        Place {
            region: self.region.clone(),
            datacenter: self.datacenter.clone(),
            host: self.host.clone(),
        }
    }
}

/// What the provider calls one of its offers. Opaque, but for a bid on one.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct QuoteId(pub String);

impl fmt::Display for QuoteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The field in which a provider says why something cannot be had now: who has it, or that it does not answer.
pub const NOTE: &str = "note";

/// The field in which a provider says for how many hours more the owner of a host lets it.
pub const HOURS_LEFT: &str = "hours_left";

/// How many can take a quote.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Supply {
    /// An ask that only one can take.
    One,
    /// A shape of which at least this many can be had now.
    Many(u32),
}

impl Quote {
    /// For how long its host is let, where the provider says so.
    pub fn host_is_let_for(&self) -> Option<Millis> {
        let hours: u64 = self.facts.extra.get(HOURS_LEFT)?.parse().ok()?;
        Some(Millis(hours.saturating_mul(3_600_000)))
    }

    /// Why it cannot be had now, where its provider says so.
    pub fn note(&self) -> Option<&str> {
        let out = self.supply == Supply::Many(0);
        self.facts
            .extra
            .get(NOTE)
            .filter(|_| out)
            .map(String::as_str)
    }
}

/// A provider's perishable statement: such a machine at such a price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quote {
    /// The `[provider.NAME]` that was asked.
    pub provider: Name,
    /// What the provider calls it.
    pub id: QuoteId,
    /// What the provider claims.
    pub facts: Facts,
    /// All in: disk included.
    pub price_per_hour: MicroDollars,
    /// The disks that the price holds for.
    #[serde(default, skip_serializing_if = "DiskRange::is_any")]
    pub disk: DiskRange,
    /// How many can take it.
    pub supply: Supply,
    /// What is offered for a machine that may be taken away; none where it is rented on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bid: Option<Bid>,
}
