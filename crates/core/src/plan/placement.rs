//! `same` and `spread`: which machines of a table may be where.
//!
//! A region is one of its provider: two providers' regions of one name are two. A machine of which nobody tells where it is
//! binds no other one; a quote that does not tell it is not taken. Machines that are there stay where they are as long as
//! they fit together.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::lease_receipt;
use super::market::Candidate;
use crate::id::{LeaseId, Name};
use crate::offer::{Domain, Place, Quote};
use crate::resource::{LeaseReceipt, LeaseSpec};
use crate::state::Recorded;

/// Where one machine is, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Whose machine.
    pub provider: Name,
    /// As far as it is told.
    pub place: Place,
}

impl Spot {
    /// Where the machine of a quote would be.
    pub fn of(quote: &Quote) -> Self {
        Self {
            provider: quote.provider.clone(),
            place: quote.facts.place(),
        }
    }

    fn key(&self, domain: Domain) -> Option<(&Name, &str)> {
        Some((&self.provider, self.place.of(domain)?))
    }
}

/// What a lease's table asks of places, and where the others of it are.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    same: Option<Domain>,
    spread: Option<Domain>,
    others: Vec<Spot>,
}

impl Placement {
    /// For a machine beside these others of its table.
    pub fn beside(spec: &LeaseSpec, others: Vec<Spot>) -> Self {
        Self {
            same: spec.same,
            spread: spec.spread,
            others,
        }
    }

    /// It may be anywhere.
    pub const fn is_free(&self) -> bool {
        self.same.is_none() && self.spread.is_none()
    }

    /// Whether a machine may be there.
    pub fn allows(&self, spot: &Spot) -> bool {
        self.why_not(spot).is_none()
    }

    /// Why a machine must not be there, for people.
    pub fn why_not(&self, spot: &Spot) -> Option<String> {
        let untold = [self.same, self.spread].into_iter().flatten();
        for domain in untold {
            if spot.key(domain).is_none() {
                return Some(format!(
                    "provider `{}` does not tell its {domain}",
                    spot.provider
                ));
            }
        }
        if let Some(same) = self.same {
            let mut others = self.others.iter().filter_map(|other| other.key(same));
            let elsewhere = others.find(|other| Some(*other) != spot.key(same));
            if let Some((provider, place)) = elsewhere {
                return Some(format!(
                    "the others are in {same} {place} of `{provider}` (`same`)"
                ));
            }
        }
        let spread = self.spread?;
        let mut others = self.others.iter().filter_map(|other| other.key(spread));
        let (_, place) = others.find(|other| Some(*other) == spot.key(spread))?;
        Some(format!("another one is on {spread} {place} (`spread`)"))
    }
}

impl Recorded {
    /// Where its machine is, and where each open try that may have made one would be.
    pub fn spots(&self) -> impl Iterator<Item = Spot> {
        let held = lease_receipt(self).map(spot);
        let open = self.attempts.values().filter(|open| open.leaving.is_none());
        held.into_iter().chain(open.map(|open| Spot {
            provider: open.launch.provider.clone(),
            place: open.launch.place.clone(),
        }))
    }
}

/// Where a machine is.
pub(super) fn spot(receipt: &LeaseReceipt) -> Spot {
    let ready = receipt.ready.as_ref().map(|ready| ready.facts.place());
    let place = receipt.place.clone();
    Spot {
        provider: receipt.provider.clone(),
        place: Some(place)
            .filter(|place| !place.is_unknown())
            .or(ready)
            .unwrap_or_default(),
    }
}

/// Whether a table asks anything of places.
pub(super) fn asks(spec: &LeaseSpec) -> bool {
    spec.same.is_some() || spec.spread.is_some()
}

/// What it asks, as the topology says it.
pub(super) fn asked(spec: &LeaseSpec) -> Option<String> {
    let same = spec.same.map(|domain| format!("same = \"{domain}\""));
    let spread = spec.spread.map(|domain| format!("spread = \"{domain}\""));
    let asked: Vec<String> = same.into_iter().chain(spread).collect();
    (!asked.is_empty()).then(|| asked.join(", "))
}

/// The machines of one table that are there.
pub(super) struct Siblings<'a> {
    spec: &'a LeaseSpec,
    pub(super) machines: Vec<(&'a LeaseId, Spot)>,
}

impl<'a> Siblings<'a> {
    pub(super) const fn new(spec: &'a LeaseSpec) -> Self {
        Self {
            spec,
            machines: Vec::new(),
        }
    }

    /// Those that do not fit together: all but as many as possible, each with the reason.
    pub(super) fn displaced(&self) -> BTreeMap<&'a LeaseId, String> {
        let Self { spec, machines } = self;
        let mut out = BTreeMap::new();
        if let Some(same) = spec.same {
            let mut counts: BTreeMap<(&Name, &str), usize> = BTreeMap::new();
            for (_, spot) in machines {
                if let Some(key) = spot.key(same) {
                    *counts.entry(key).or_default() += 1;
                }
            }
            // Of equally many, those of the lowest machine.
            let most = counts.values().copied().max().unwrap_or_default();
            let home = machines
                .iter()
                .filter_map(|(_, spot)| spot.key(same))
                .find(|key| counts[key] == most);
            for (lease, spot) in machines {
                if let (Some(key), Some(home)) = (spot.key(same), home)
                    && key != home
                {
                    let why = format!(
                        "it is in {same} {} of `{}`, the others in {} of `{}` (`same`)",
                        key.1, key.0, home.1, home.0
                    );
                    out.insert(*lease, why);
                }
            }
        }
        if let Some(spread) = spec.spread {
            let mut seen = BTreeMap::new();
            for (lease, spot) in machines {
                let Some(key) = spot.key(spread).filter(|_| !out.contains_key(lease)) else {
                    continue;
                };
                match seen.get(&key) {
                    None => {
                        seen.insert(key, *lease);
                    }
                    Some(first) => {
                        let why = format!("it is on {spread} {}, as {first} is (`spread`)", key.1);
                        out.insert(*lease, why);
                    }
                }
            }
        }
        out
    }
}

/// The cheapest quotes for leases of one table that fit together: for each its place among the candidates. Fewer than are
/// needed when no domain has enough.
pub(super) fn choose(
    needs: usize,
    placement: &Placement,
    candidates: &[(usize, Candidate<'_>)],
    stock: &[u32],
    fine: usize,
) -> Vec<usize> {
    let allowed: Vec<(usize, Spot)> = candidates
        .iter()
        .enumerate()
        .map(|(at, (_, candidate))| (at, Spot::of(candidate.quote)))
        .filter(|(_, spot)| placement.allows(spot))
        .collect();
    let homes: BTreeSet<Option<(&Name, &str)>> = allowed
        .iter()
        .map(|(_, spot)| placement.same.and_then(|same| spot.key(same)))
        .collect();
    let within = |home: Option<(&Name, &str)>| {
        let mut chosen = Vec::new();
        let mut used = BTreeSet::new();
        let (mut failed, mut price) = (0_usize, 0_u64);
        for (at, spot) in &allowed {
            if placement.same.and_then(|same| spot.key(same)) != home {
                continue;
            }
            let (item, candidate) = &candidates[*at];
            let mut room = stock[*item];
            while room > 0 && chosen.len() < needs {
                let apart = placement.spread.and_then(|spread| spot.key(spread));
                if apart.is_some() && !used.insert(apart) {
                    break;
                }
                chosen.push(*at);
                failed += usize::from(*item >= fine);
                price = price.saturating_add(candidate.quote.price_per_hour.0);
                room -= 1;
            }
        }
        (needs - chosen.len(), failed, price, chosen)
    };
    let best = homes.into_iter().map(within).min();
    best.map(|(_, _, _, chosen)| chosen).unwrap_or_default()
}
