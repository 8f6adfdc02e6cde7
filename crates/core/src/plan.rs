//! The plan: what a reviewer approves and the executor carries out without choosing.
//!
//! A plan is a value. It binds to the recorded state that it was drafted from (its
//! [projection](crate::state::State::projection)) and to the topology's digest, is consumed once, and holds no secret and
//! no identity, so it may be attached to a pull request.
//! Reasons and notes are for people: no code branches on them.

mod asks;
mod assign;
mod avoid;
mod binding;
mod check;
mod class;
mod digest;
mod disk;
mod draft;
mod edits;
mod environment;
mod expand;
pub(crate) mod fields;
mod flow;
mod full;
mod guard;
mod interrupted;
mod lapsed;
mod layers;
mod lease;
mod limits;
mod market;
mod models;
mod mounts;
mod parts;
mod placement;
mod protect;
mod refresh;
mod room;
mod scope;
mod shortage;
mod spend;
mod steps;
mod told;
mod types;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Address, Fingerprint, Generation, LeaseId, Lineage, Name, PlanId};
use crate::journal::Verb;
use crate::offer::Quote;
use crate::resource::{Contact, Spec};
use crate::shared::Shared;
use crate::state::{Edit, Lapse, Spent};
use crate::topology::AgentWay;
use crate::unit::{MicroDollars, Millis, Timestamp};

pub use avoid::Avoid;
pub use binding::{Refusal, Start, may_apply};
pub use check::check;
pub use disk::as_made;
pub use draft::{Draft, Options, draft};
pub use edits::edits;
pub use expand::{Desired, expand, expand_within, recorded_graph};
pub use interrupted::{dead, interruptions, taken_away};
pub use lapsed::{Renew, lapses};
pub use market::{
    Market, Markets, SHORTLIST_MAX, memory_known, next_offer, too_dear, unfit, unfit_by_record,
    untaken,
};
pub use models::{Loaded, Memory, ModelFacts, ModelShape};
pub use mounts::Volumes;
pub use placement::{Placement, Spot};
pub use protect::is_protected;
pub use room::{
    Beside, Marked, OnAccount, Own, Room, Verdict as RoomVerdict, is_own, judge, refused,
};
pub use scope::{Selector, select};
pub use types::unknown_types;

/// The version that is written. A newer one is refused. 2 has another [digest](Plan::digest) than 1.
pub const FORMAT: u32 = 2;

/// How long a plan may be applied after it was drafted.
pub const EXPIRES_AFTER: Millis = Millis(7 * 24 * 3_600_000);

/// What would be done, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// [`FORMAT`] of its writer.
    pub format: u32,
    /// Digest of all the rest.
    pub id: PlanId,
    /// The topology's name.
    pub topology: Name,
    /// For what.
    pub mode: Mode,
    /// Which life of the topology; none before the first apply.
    pub lineage: Option<Lineage>,
    /// The recorded state that it was drafted from.
    pub base: Fingerprint,
    /// The topology that it was drafted from; none for a destroy.
    pub topology_digest: Option<Fingerprint>,
    /// When it was drafted.
    #[schemars(with = "String")]
    pub drafted_at: Timestamp,
    /// From when on it is refused.
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
    /// When the world was looked at; none when it was not.
    #[schemars(with = "Option<String>")]
    pub observed_at: Option<Timestamp>,
    /// Where the observed world differs from the recorded one.
    pub drift: Vec<Drift>,
    /// The verdict for every resource, in graph order.
    pub changes: Vec<Change>,
    /// What is done. A step comes after all that it waits for.
    pub steps: Vec<Step>,
    /// What is changed in the state alone, before the first step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// Leases that ended by a limit of their own and are kept ended by this plan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lapsed: BTreeMap<LeaseId, Lapse>,
    /// Money and choice for every lease that is wanted.
    pub leases: BTreeMap<LeaseId, LeaseTerms>,
    /// Money in sum.
    pub money: Money,
    /// Accounts with caps, and what other topologies have there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<OnAccount>,
    /// What else a reviewer should know.
    pub notes: Vec<String>,
}

/// For what a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// To make the world as declared.
    Apply,
    /// To end everything: the plan of an empty topology.
    Destroy,
}

/// A difference between recorded and observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Of which resource.
    pub address: Address,
    /// What was seen.
    pub what: String,
}

/// What happens to one resource.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is made.
    Create,
    /// It is changed in place.
    Update,
    /// It is ended and made anew.
    Replace,
    /// It is ended.
    Delete,
    /// It stays as it is.
    Keep,
}

/// The verdict for one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Which.
    pub address: Address,
    /// What happens.
    pub verdict: Verdict,
    /// The generation that it has afterwards, or had, when it is deleted.
    pub generation: Generation,
    /// Why, for people.
    pub reason: String,
    /// The fields that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
    /// What it should be; none when it is deleted, or kept as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
}

/// One field of a spec before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    /// Its path, such as `roster[1].layers`.
    pub path: String,
    /// Before; none when it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// After; none when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A step's number: its place in [`Plan::steps`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct StepId(pub u32);

/// One remote effect, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// On what.
    pub address: Address,
    /// Which generation of it.
    pub generation: Generation,
    /// What is done.
    pub verb: Verb,
    /// The steps that must be done before; all have a lower number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepId>,
}

/// Money and choice for one lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseTerms {
    /// What it costs now, or would cost with the first quote.
    pub price_per_hour: MicroDollars,
    /// The most that it may cost; none is no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<MicroDollars>,
    /// A try is in doubt: a machine may be there and bill. It is looked for before anything else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unresolved: bool,
    /// What is tried, in this order; empty for a lease that is kept. May be empty when it is unresolved.
    #[serde(default, skip_serializing_if = "nothing_listed")]
    pub shortlist: Shared<Vec<Choice>>,
    /// How many offers are tried before it is given up; 0 for a lease that is kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// When the shortlist is used up, what is quoted then may be taken under the same requirement and ceiling.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requote: bool,
    /// When nothing can be had, apply waits so long and asks again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Millis>,
    /// Who ends it when the operator sleeps.
    pub ends: EndsBy,
    /// How the agent gets onto the first choice; none where it need not, and for a lease that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentWay>,
    /// Where the agent of a machine that is kept is reached by now, when that is to be recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Contact>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A quote together with the offer under whose terms it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// The `[offer.NAME]`.
    pub offer: Name,
    /// What is taken.
    pub quote: Shared<Quote>,
}

fn nothing_listed(shortlist: &Shared<Vec<Choice>>) -> bool {
    shortlist.is_empty()
}

/// Who ends a lease when the operator sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndsBy {
    /// It costs nothing; nobody needs to.
    Free,
    /// The machine itself, by a key that can do only that.
    Box,
    /// A watcher, whose heartbeat is fresh.
    Watcher,
    /// Nobody.
    Nobody,
}

/// Money in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Money {
    /// Per hour, before.
    pub now_per_hour: MicroDollars,
    /// Per hour, when every first quote is taken.
    pub after_per_hour: MicroDollars,
    /// The most per hour at any moment, fail-over included.
    pub at_most_per_hour: MicroDollars,
    /// Of that, what runs only while a machine that failed is being released and the next one is there already.
    #[serde(default)]
    pub overlap_per_hour: MicroDollars,
    /// Machines that run afterwards.
    pub leases_after: u32,
    /// Spent so far, over the topology's life.
    #[serde(default, skip_serializing_if = "Spent::is_zero")]
    pub spent: Spent,
    /// What is left of `limits.max_spend`; none without that cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<MicroDollars>,
}

/// Why bytes are not a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFileError {
    /// Written by a newer stageline.
    #[error(
        "the plan has format {found}, this stageline reads up to {FORMAT}; use the one that made it, or plan again"
    )]
    Newer {
        /// Its format.
        found: u32,
    },
    /// No plan, or cut.
    #[error("this is no plan, or it is cut: {0}; plan again")]
    Invalid(String),
    /// Something in it was changed by hand.
    #[error("{0}; a reviewed plan is applied as it was reviewed or not at all, so plan again")]
    Changed(String),
}

impl Plan {
    /// The bytes of a plan file: JSON on several lines, so that two of them can be compared.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a plan is plain data");
        bytes.push(b'\n');
        bytes
    }

    /// Reads a plan file, and checks it.
    ///
    /// # Errors
    /// [`PlanFileError`] when it is newer, no plan, or was changed.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanFileError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let invalid = |error: serde_json::Error| PlanFileError::Invalid(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(invalid)?;
        if head.format > FORMAT {
            return Err(PlanFileError::Newer { found: head.format });
        }
        let plan: Self = serde_json::from_slice(bytes).map_err(invalid)?;
        check(&plan).map_err(PlanFileError::Changed)?;
        Ok(plan)
    }

    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.edits.is_empty()
    }

    /// How long what is left of `limits.max_spend` lasts at the rate afterwards.
    pub fn lasts(&self) -> Option<Millis> {
        spend::lasts(&self.money)
    }

    /// How many resources get each verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.changes
            .iter()
            .filter(|change| change.verdict == verdict)
            .count()
    }

    /// The change of one resource.
    pub fn change(&self, address: &Address) -> Option<&Change> {
        let place = self
            .changes
            .binary_search_by(|change| change.address.cmp(address));
        place.ok().map(|place| &self.changes[place])
    }
}
