//! The observed world: what was seen by asking, with its date. Possibly partial.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Fingerprint, LeaseId, MachineId, Name, RequestKey, StageId};
use crate::label::Label;
use crate::offer::Gpu;
use crate::resource::{Cause, Contact};
use crate::unit::{MicroDollars, Timestamp};

/// The answer to one question. Not knowing is never the same as absence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seen<T> {
    /// It is there.
    There(T),
    /// A complete, trusted answer does not have it.
    Gone,
    /// Nobody could tell.
    Unknown(Cause),
}

/// What was seen. A lease that is not in it was not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    /// When; none when nothing was asked (`--no-refresh`).
    #[schemars(with = "Option<String>")]
    pub at: Option<Timestamp>,
    /// Machines, by the provider's listing.
    pub leases: BTreeMap<LeaseId, Seen<ObservedLease>>,
    /// Those that are not listed and may only be too new for it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub young: BTreeSet<LeaseId>,
    /// Machines with our mark that no lease stands for, at the providers that were asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<Stray>,
    /// Machines whose names look like ours and are not, at the providers that were asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub look_alikes: Vec<LookAlike>,
    /// What their agents say. Missing where nobody asked, for want of the identity.
    pub agents: BTreeMap<LeaseId, Seen<ObservedAgent>>,
}

impl Observed {
    /// Where the agent of a machine that is up is reached by now, when that is nowhere that is recorded.
    pub fn moved(&self, lease: &LeaseId) -> Option<&Contact> {
        match self.leases.get(lease)? {
            Seen::There(there) if there.dead.is_none() => there.moved.as_ref(),
            Seen::There(_) | Seen::Gone | Seen::Unknown(_) => None,
        }
    }
}

/// A machine as its provider shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedLease {
    /// Broken for good, in the provider's words; none when it is up or on its way.
    pub dead: Option<String>,
    /// It was bid for and is dead for having been taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// What it costs now.
    pub price_per_hour: MicroDollars,
    /// The GPUs that the provider says it has now; empty where it does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Somebody gave it another name than the one it was made under.
    #[serde(default)]
    pub renamed: bool,
    /// Other machines of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub twins: Vec<MachineId>,
    /// Where its agent is reached by now; none where that is as recorded, or not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Contact>,
}

/// A machine with our mark that no lease stands for. It is shown, and left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stray {
    /// The provider that lists it.
    pub provider: Name,
    /// Which.
    pub machine: MachineId,
    /// Its name.
    pub key: RequestKey,
    /// What it costs.
    pub price_per_hour: MicroDollars,
    /// Its name is of this state's lineage; else it is another topology's, or only looks like one.
    pub own: bool,
}

/// A machine whose name looks like one of ours and is no request key. It is not ours, is shown, and is never touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LookAlike {
    /// The provider that lists it.
    pub provider: Name,
    /// Which.
    pub machine: MachineId,
    /// What it is called.
    pub name: Label,
    /// What it costs.
    pub price_per_hour: MicroDollars,
}

/// What an agent has and does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedAgent {
    /// Digest of the delivery spec that it has, whole; none when something is missing.
    pub delivery: Option<Fingerprint>,
    /// The GPUs that it finds now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Every stage that it supervises.
    pub stages: BTreeMap<StageId, ObservedStage>,
    /// Digest of the spec of each listener.
    pub exposures: BTreeMap<Name, Fingerprint>,
}

/// A worker as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedStage {
    /// Digest of the spec that it was started with.
    pub spec: Fingerprint,
    /// Why it is down for good; none when it runs or is being started again.
    pub failed: Option<String>,
}
