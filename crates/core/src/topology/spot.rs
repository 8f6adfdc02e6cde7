//! The key `spot`: machines that their provider may take away again, bid for instead of rented on demand.
//!
//! A bid is for the machine without its disk. Where a provider takes no bids, the key is a fault and never a machine on demand.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::convert;
use super::keys::Kind;
use super::read::Fields;
use super::rented::place;
use super::{Cloud, Lease, Limits, Offer, Provider, ProviderKind};
use crate::id::Name;
use crate::offer::Requirement;
use crate::unit::MicroDollars;

/// What follows when a machine that was ready is taken away.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OnInterrupt {
    /// Another one is rented on the same terms.
    #[default]
    Replace,
    /// The next one is rented on demand, under the same ceiling.
    OnDemand,
    /// The lease has ended, as by a limit of its own.
    End,
}

/// On which terms a machine is bid for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Bidding {
    /// Dollars per hour for the machine, without its disk; none is the least that is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bid: Option<MicroDollars>,
    /// What follows when it is taken away.
    #[serde(default, skip_serializing_if = "is_replace")]
    pub on_interrupt: OnInterrupt,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_replace(on_interrupt: &OnInterrupt) -> bool {
    *on_interrupt == OnInterrupt::Replace
}

/// The key as an offer or a lease says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spot {
    /// `false`.
    No,
    /// `true`, or a table.
    Yes {
        /// As in [`Bidding`].
        #[serde(skip_serializing_if = "Option::is_none")]
        bid: Option<MicroDollars>,
        /// As in [`Bidding`].
        #[serde(skip_serializing_if = "Option::is_none")]
        on_interrupt: Option<OnInterrupt>,
    },
}

impl Spot {
    /// What holds for the machines of a lease that are rented by an offer; none is on demand. The lease decides whether, and of two
    /// bids the smaller one holds.
    pub fn of(offer: Option<Self>, lease: Option<Self>) -> Option<Bidding> {
        let yes = |spot: Option<Self>| match spot {
            Some(Self::Yes { bid, on_interrupt }) => Some((bid, on_interrupt)),
            Some(Self::No) | None => None,
        };
        yes(lease.or(offer))?;
        let (one, other) = (yes(offer), yes(lease));
        let both = one.into_iter().chain(other);
        let follows = other.and_then(|(_, it)| it).or(one.and_then(|(_, it)| it));
        Some(Bidding {
            bid: both.filter_map(|(bid, _)| bid).min(),
            on_interrupt: follows.unwrap_or_default(),
        })
    }
}

impl Cloud {
    /// Whether it takes bids for machines that it may take away again.
    pub const fn takes_bids(self) -> bool {
        match self {
            Self::Vastai => true,
            Self::Lambda | Self::Runpod => false,
        }
    }
}

impl ProviderKind {
    /// As [`Cloud::takes_bids`].
    pub const fn takes_bids(&self) -> bool {
        match self {
            Self::Cloud { cloud, .. } => cloud.takes_bids(),
            Self::Local { .. } | Self::Ssh { .. } | Self::Command { .. } => false,
        }
    }
}

/// Reads the key of an offer or a lease.
pub(super) fn read(fields: &Fields<'_>) -> Option<Spot> {
    let field = fields.get("spot")?;
    let Kind::BoolOrTable(def) = field.key.kind else {
        unreachable!("`spot` is defined as a bool or a table")
    };
    if field.node.value.table().is_none() {
        let yes = Spot::Yes {
            bid: None,
            on_interrupt: None,
        };
        return convert::boolean(field).map(|is| if is { yes } else { Spot::No });
    }
    let inner = Fields::inside(field, def, fields.address("spot"))?;
    let follows = [
        OnInterrupt::Replace,
        OnInterrupt::OnDemand,
        OnInterrupt::End,
    ];
    Some(Spot::Yes {
        bid: inner.read("bid", convert::money),
        on_interrupt: inner
            .has("on_interrupt")
            .then(|| inner.read("on_interrupt", |field| convert::choice(field, &follows)))
            .flatten(),
    })
}

/// Whether each bid can be made, and can be met.
pub(super) fn check(
    root: &Fields<'_>,
    limits: &Limits,
    providers: &BTreeMap<Name, Provider>,
    offers: &BTreeMap<Name, Offer>,
    leases: &BTreeMap<Name, Lease>,
) {
    for (name, offer) in offers {
        let whose = Whose {
            table: ("offer", name),
            offer: (name, offer),
            lease: None,
        };
        whose.check(root, limits, providers);
    }
    for (name, lease) in leases {
        if lease.spot.is_none() && lease.max_price_per_hour.is_none() {
            continue;
        }
        for (offer_name, offer) in lease
            .offers
            .iter()
            .filter_map(|name| offers.get_key_value(name))
        {
            let whose = Whose {
                table: ("lease", name),
                offer: (offer_name, offer),
                lease: Some(lease),
            };
            // One fault for a key.
            if whose.check(root, limits, providers) {
                break;
            }
        }
    }
}

/// The table that says it last, and the offer that it is about.
struct Whose<'a> {
    table: (&'static str, &'a Name),
    offer: (&'a Name, &'a Offer),
    lease: Option<&'a Lease>,
}

impl Whose<'_> {
    /// Whether something is wrong.
    fn check(
        &self,
        root: &Fields<'_>,
        limits: &Limits,
        providers: &BTreeMap<Name, Provider>,
    ) -> bool {
        let (offer_name, offer) = self.offer;
        let own = self.lease.and_then(|lease| lease.spot);
        let (Some(bidding), Some(provider)) = (
            Spot::of(offer.spot, own),
            // One that is missing is said elsewhere.
            providers.get(&offer.provider),
        ) else {
            return false;
        };
        let (kind, name) = self.table;
        let table = match self.lease.and_then(|lease| lease.spot) {
            Some(_) => (kind, name),
            None => ("offer", offer_name),
        };
        let fault = |message: String, hint: String| {
            let at = place(root, table.0, table.1, "spot");
            root.fault(at, "topology/conflict", message, hint);
            true
        };
        if !provider.kind.takes_bids() {
            // The offer's own fault is said there.
            return (self.lease.is_none() || own.is_some())
                && fault(self.no_bids(provider.kind.as_str()), no_bids_hint());
        }
        let says_not = |requirement: &Requirement| requirement.says_spot() == Some(false);
        let narrowed = self.lease.map(|lease| &lease.requirement);
        if says_not(&offer.requirement) || narrowed.is_some_and(says_not) {
            let message =
                format!("`{kind}.{name}`: its `where` says `!spot`, and `spot` takes nothing else");
            return fault(message, "take one of the two out".to_owned());
        }
        let ceilings = [
            offer.max_price_per_hour,
            self.lease.and_then(|lease| lease.max_price_per_hour),
            limits.max_price_per_hour,
        ];
        let ceiling = ceilings.into_iter().flatten().min();
        match (bidding.bid, ceiling) {
            (Some(bid), Some(ceiling)) if bid >= ceiling => fault(
                format!(
                    "`{kind}.{name}` bids {bid}/h for a machine that may cost {ceiling}/h at most, its disk included"
                ),
                "lower `bid`, or raise `max_price_per_hour`".to_owned(),
            ),
            (_, _) => false,
        }
    }

    fn no_bids(&self, provider: &str) -> String {
        let (kind, name) = self.table;
        let by = match self.lease {
            None => String::new(),
            Some(_) => format!(" (by offer `{}`)", self.offer.0),
        };
        format!(
            "`{kind}.{name}`: a provider of kind `{provider}`{by} sells no machines for a bid, and none is rented on demand instead"
        )
    }
}

fn no_bids_hint() -> String {
    let mut all = Cloud::ALL.into_iter();
    let one = all.find(|cloud| cloud.takes_bids());
    format!(
        "remove `spot`; a provider of kind `{}` takes bids",
        one.map_or("vastai", Cloud::as_str)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_decides_whether_and_the_smaller_bid_holds() {
        let yes = |bid: Option<u64>, on_interrupt| {
            Some(Spot::Yes {
                bid: bid.map(MicroDollars),
                on_interrupt,
            })
        };
        let plain = yes(None, None);
        let end = yes(Some(3), Some(OnInterrupt::End));
        let bidding = |bid: Option<u64>, on_interrupt| {
            Some(Bidding {
                bid: bid.map(MicroDollars),
                on_interrupt,
            })
        };
        for (offer, lease, holds) in [
            (None, None, None),
            (Some(Spot::No), None, None),
            (plain, Some(Spot::No), None),
            (plain, None, bidding(None, OnInterrupt::Replace)),
            (None, plain, bidding(None, OnInterrupt::Replace)),
            (end, plain, bidding(Some(3), OnInterrupt::End)),
            (
                end,
                yes(Some(2), Some(OnInterrupt::Replace)),
                bidding(Some(2), OnInterrupt::Replace),
            ),
            (end, yes(Some(4), None), bidding(Some(3), OnInterrupt::End)),
        ] {
            assert_eq!(Spot::of(offer, lease), holds, "{offer:?} and {lease:?}");
        }
    }
}
