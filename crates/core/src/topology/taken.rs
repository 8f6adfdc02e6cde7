//! What a lease takes of an offer: a lease may carry the keys of an offer, and says more by them, or something else.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::read::Fields;
use super::rented::found;
use super::value::At;
use super::{Lease, Offer, Provider, ProviderKind, selection};
use crate::id::Name;

impl Offer {
    /// The offer on the terms of a lease: what limits is limited by both, and of what is one thing only the lease decides.
    #[must_use]
    pub fn taken_by(&self, lease: &Lease, provider: &ProviderKind) -> Self {
        let of_type = lease.instance_type.as_ref();
        let of_type = of_type.and_then(|wanted| selection::term(provider, wanted));
        let requirement = self.requirement.and(&lease.requirement);
        let limits = [self.max_price_per_hour, lease.max_price_per_hour];
        Self {
            requirement: of_type.map_or(requirement.clone(), |term| requirement.and(&term)),
            max_price_per_hour: limits.into_iter().flatten().min(),
            image: lease.image.clone().or_else(|| self.image.clone()),
            registry: lease.registry.clone().or_else(|| self.registry.clone()),
            agent: lease.agent.clone().or_else(|| self.agent.clone()),
            requote: self.requote.max(lease.requote.unwrap_or_default()),
            ..self.clone()
        }
    }
}

impl Lease {
    /// Whether its machines run something else than its offers say.
    fn says_what_runs(&self) -> bool {
        self.image.is_some() || self.registry.is_some() || self.agent.is_some()
    }
}

/// An offer as it is used: by itself, or as a lease takes it that says something else.
pub(super) struct Taken<'a> {
    name: &'a Name,
    lease: Option<&'a Name>,
    pub(super) offer: Cow<'a, Offer>,
    /// None where no table of that name can be read, which is said elsewhere.
    pub(super) provider: Option<&'a Provider>,
}

impl Taken<'_> {
    /// Where one of its keys stands: in the lease, if that has it.
    pub(super) fn place(&self, root: &Fields<'_>, key: &str) -> At {
        let of_lease = self
            .lease
            .and_then(|lease| found(root, "lease", lease, key));
        of_lease
            .or_else(|| found(root, "offer", self.name, key))
            .unwrap_or(root.at)
    }
}

impl std::fmt::Display for Taken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lease {
            None => write!(f, "`offer.{}`", self.name),
            Some(lease) => write!(f, "`lease.{lease}` with `offer.{}`", self.name),
        }
    }
}

/// All offers as they are used, each once: one that every lease changes is not used by itself.
pub(super) fn all<'a>(
    providers: &'a BTreeMap<Name, Provider>,
    offers: &'a BTreeMap<Name, Offer>,
    leases: &'a BTreeMap<Name, Lease>,
) -> Vec<Taken<'a>> {
    let mut all = Vec::new();
    let mut plain: BTreeSet<&Name> = offers.keys().collect();
    for (lease_name, lease) in leases {
        if !lease.says_what_runs() {
            continue;
        }
        for (name, offer) in lease
            .offers
            .iter()
            .filter_map(|one| offers.get_key_value(one))
        {
            let Some(provider) = providers.get(&offer.provider) else {
                continue;
            };
            let plainly = |other: &Lease| other.offers.contains(name) && !other.says_what_runs();
            if !leases.values().any(plainly) {
                plain.remove(name);
            }
            all.push(Taken {
                name,
                lease: Some(lease_name),
                offer: Cow::Owned(offer.taken_by(lease, &provider.kind)),
                provider: Some(provider),
            });
        }
    }
    all.extend(plain.into_iter().map(|name| Taken {
        name,
        lease: None,
        offer: Cow::Borrowed(&offers[name]),
        provider: providers.get(&offers[name].provider),
    }));
    all
}
