//! The terms of an offer as a lease takes them: who sells, which machines, the most it may cost, and whether it is bid for.
//!
//! A quote is for terms of its own kind alone: nothing that is bid for is rented on demand, nor the other way round.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LeaseSpec, Mounted};
use crate::id::Name;
use crate::offer::{Quote, Requirement, Selection};
use crate::topology::{AgentSource, Bidding, Registry, Requote};
use crate::unit::{MicroDollars, Timestamp};

/// One offer of a lease: who sells, which machines, the most it may cost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Terms {
    /// The `[offer.NAME]`.
    pub offer: Name,
    /// The `[provider.NAME]` that sells it.
    pub provider: Name,
    /// The adapter of that provider, such as `local`.
    pub provider_kind: String,
    /// The offer's and the lease's terms together.
    pub requirement: Requirement,
    /// What the provider's table leaves of its market; no part of what a machine that is held must be.
    #[serde(default, skip_serializing_if = "Selection::is_everything")]
    pub within: Selection,
    /// The smallest of all limits that apply; none is no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<MicroDollars>,
    /// What may be taken of it when the shortlist is used up.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub requote: Requote,
    /// What a rented machine runs; none is the provider's plain image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Who may pull that image; none is anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// How the agent gets there; none is the provider's usual way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSource>,
    /// The lease's volumes as this provider has them. That a machine is where they are is part of the requirement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mounted>,
    /// On which terms its machines are bid for; none is on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot: Option<Bidding>,
    /// Rented on demand all the same, since a machine that was bid for was taken away then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub on_demand_since: Option<Timestamp>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
fn is_usual(requote: &Requote) -> bool {
    *requote == Requote::default()
}

impl Terms {
    /// How its next machine is bid for; none is on demand.
    pub fn bids(&self) -> Option<Bidding> {
        self.spot.filter(|_| self.on_demand_since.is_none())
    }

    /// Whether a quote is of this provider, and for such terms: on demand, or for just this bid.
    pub fn are_for(&self, quote: &Quote) -> bool {
        let same = match (self.bids(), quote.bid) {
            (None, None) => true,
            (Some(bidding), Some(_)) => quote.id.bid() == Some(bidding.bid),
            (Some(_), None) | (None, Some(_)) => false,
        };
        same && self.provider == quote.provider
    }
}

impl LeaseSpec {
    /// Whether a machine that is rented under these terms gets each volume of the lease.
    pub fn has_volumes(&self, terms: &Terms) -> bool {
        terms.mounts.len() >= self.mounts.len()
    }

    /// The terms that a machine may be rented under; all of them where there are none.
    pub fn rented_under(&self) -> impl Iterator<Item = &Terms> {
        let none = !self.terms.iter().any(|terms| self.has_volumes(terms));
        let terms = self.terms.iter();
        terms.filter(move |terms| none || self.has_volumes(terms))
    }
}
