//! Leases that ask for the same: what fits them, what they take of it, and what each of them tries in turn.

use std::collections::{BTreeMap, BTreeSet};

use super::asks::Asks;
use super::assign::{Assigned, Need};
use super::avoid::Avoid;
use super::flow::Wanting;
use super::market::{Candidate, Fitting, Markets, SHORTLIST_MAX};
use super::placement::Placement;
use super::{Choice, shortage};
use crate::id::Name;
use crate::offer::{Quote, Supply};
use crate::resource::{Cause, LeaseSpec, Terms};
use crate::shared::Shared;
use crate::unit::Bytes;

/// What taking a quote that failed before counts for, in micro-dollars: more than any price.
const BLEMISH: u64 = 1 << 48;

/// Leases that ask for the same.
pub(super) struct Class<'n, 'a> {
    pub(super) spec: &'a LeaseSpec,
    /// The largest disk that any of them asks for.
    pub(super) disk: Bytes,
    pub(super) needs: Vec<&'n Need<'a>>,
    /// What fits, cheapest first, by the quote's place; of an offer the cheapest way to take it comes first. No more than can matter.
    pub(super) candidates: Vec<(usize, Candidate<'a>)>,
    /// The providers that cannot be seen.
    pub(super) blind: Vec<(&'a Name, Cause)>,
    /// Where its machines may be.
    pub(super) beside: Placement,
}

/// The ends of all ranges of disks that prices hold for.
pub(super) struct Disks(BTreeSet<Bytes>);

impl Disks {
    pub(super) fn of(quotes: &[&Quote]) -> Self {
        Self(quotes.iter().filter_map(|quote| quote.disk.most).collect())
    }

    /// Disks of one range pay the same prices.
    pub(super) fn range(&self, disk: Bytes) -> usize {
        self.0.range(..disk).count()
    }
}

/// Leases by what they ask for.
pub(super) fn classes<'n, 'a>(needs: &[&'n Need<'a>], disks: &Disks) -> Vec<Class<'n, 'a>> {
    let mut classes: Vec<Class<'n, 'a>> = Vec::new();
    type Key<'n, 'a> = (Bytes, usize, usize, &'a [Terms], &'n BTreeSet<&'a Name>);
    let mut places: BTreeMap<Key<'n, 'a>, usize> = BTreeMap::new();
    let mut last: Option<(&Need<'_>, usize)> = None;
    for need in needs {
        let same = |last: &Need<'_>| last.spec.is(need.spec) && last.closed == need.closed;
        let place = match last.filter(|(last, _)| same(last)) {
            Some((_, place)) => place,
            None => {
                let spec = need.spec;
                let terms = spec.terms.as_slice();
                let mounts = spec.mounts.len();
                let key = (
                    spec.memory,
                    disks.range(spec.disk),
                    mounts,
                    terms,
                    &need.closed,
                );
                *places.entry(key).or_insert_with(|| {
                    classes.push(Class {
                        spec: need.spec,
                        disk: spec.disk,
                        needs: Vec::new(),
                        candidates: Vec::new(),
                        blind: Vec::new(),
                        beside: Placement::default(),
                    });
                    classes.len() - 1
                })
            }
        };
        last = Some((need, place));
        classes[place].needs.push(need);
    }
    classes
}

/// The providers that cannot be seen, or whose volumes cannot.
pub(super) fn blind<'a>(fitting: Fitting<'a>, need: &Need<'a>) -> Vec<(&'a Name, Cause)> {
    let mut blind = fitting.blind;
    for one in need.unmounted {
        let known = blind.iter().any(|(provider, _)| **provider == one.provider);
        if let Some(cause) = one.unseen().filter(|_| !known) {
            blind.push((&one.provider, cause));
        }
    }
    blind
}

impl<'n, 'a> Class<'n, 'a> {
    /// Providers that cannot be seen, where others can.
    pub(super) fn unseen(&self, notes: &mut Vec<String>) {
        if !self.candidates.is_empty() {
            let leases = self.needs.len();
            notes.extend(self.blind.iter().map(|(provider, cause)| {
                format!("provider `{provider}` cannot be seen ({}); {leases} leases are planned without it", cause.message)
            }));
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.needs.len()).expect("few leases")
    }

    /// What it takes of each offer: the cheapest way to have that.
    fn ways<'c>(&'c self, asks: &'c Asks) -> impl Iterator<Item = &'c (usize, Candidate<'a>)> + 'c {
        let mut seen = BTreeSet::new();
        let candidates = self.candidates.iter();
        candidates.filter(move |(item, _)| seen.insert(asks.first(*item)))
    }

    pub(super) fn wanting(&self, asks: &Asks, fine: usize) -> Wanting {
        let cost = |item: usize, candidate: &Candidate<'_>| {
            let price = candidate.quote.price_per_hour.0;
            match item < fine {
                true => price,
                false => price.saturating_add(BLEMISH),
            }
        };
        let takes = self.ways(asks);
        let takes = takes.map(|(item, way)| (asks.first(*item), cost(*item, way)));
        Wanting {
            count: self.count(),
            takes: takes.collect(),
        }
    }

    /// Which quotes of what it was given of each offer.
    pub(super) fn own(&self, asks: &Asks, given: &BTreeMap<usize, u32>) -> BTreeMap<usize, u32> {
        let ways = self.ways(asks).map(|(item, _)| *item);
        ways.filter_map(|item| Some((item, *given.get(&asks.first(item))?)))
            .collect()
    }

    /// The cheapest that are left.
    pub(super) fn take(&self, asks: &Asks, left: &[u32]) -> BTreeMap<usize, u32> {
        let mut given = BTreeMap::new();
        let mut lacks = self.count();
        for (item, _) in self.ways(asks) {
            let amount = lacks.min(left[*item]);
            if amount > 0 {
                lacks -= amount;
                given.insert(*item, amount);
            }
            if lacks == 0 {
                break;
            }
        }
        given
    }

    /// Gives each lease its own, and then what else it may try.
    pub(super) fn list(
        &self,
        given: &BTreeMap<usize, u32>,
        left: &[u32],
        markets: &Markets,
        avoid: &Avoid<'_>,
        found: &mut Assigned,
    ) {
        // Places are in the order of prices, so the first leases get the cheapest.
        let own = given
            .iter()
            .flat_map(|(item, count)| std::iter::repeat_n(Some(*item), *count as usize))
            .chain(std::iter::repeat(None));
        // What is left over, or can be had by many, may be tried by each lease of the class after its own. What is sold out
        // would cost a try for nothing.
        let spare: Vec<usize> = (0..self.candidates.len())
            .filter(|place| {
                let (item, candidate) = &self.candidates[*place];
                match candidate.quote.supply {
                    Supply::Many(0) => false,
                    Supply::Many(_) => true,
                    Supply::One => left[*item] > 0,
                }
            })
            .take(SHORTLIST_MAX)
            .collect();
        let quotes: BTreeMap<usize, Shared<crate::offer::Quote>> = spare
            .iter()
            .map(|place| (*place, self.candidates[*place].1.quote.clone().into()))
            .collect();
        let choice = |place: usize| Choice {
            offer: self.candidates[place].1.terms.offer.clone(),
            quote: match quotes.get(&place) {
                Some(quote) => quote.clone(),
                None => self.candidates[place].1.quote.clone().into(),
            },
        };
        let mut missing = Vec::new();
        let mut last: Option<(Option<usize>, Shared<Vec<Choice>>)> = None;
        for (need, own) in self.needs.iter().zip(own) {
            if own.is_none() && !need.unresolved {
                match need.spec.wait_for_capacity.filter(|_| self.blind.is_empty()) {
                    None => missing.push(&need.lease),
                    Some(span) => found.notes.push(format!(
                        "{}: nothing that fits can be had now; apply may wait {span} for it and asks again meanwhile",
                        need.lease
                    )),
                }
            }
            let shortlist = match last {
                Some((same, list)) if same == own => list,
                Some(_) | None => {
                    let own = own.and_then(|item| {
                        self.candidates
                            .binary_search_by_key(&item, |(item, _)| *item)
                            .ok()
                    });
                    let others = spare.iter().copied().filter(|place| Some(*place) != own);
                    let places = own.into_iter().chain(others).take(SHORTLIST_MAX);
                    Shared::new(places.map(choice).collect())
                }
            };
            match own.and(shortlist.first()) {
                None => found.lacking += 1,
                Some(own) => found.sum = found.sum.saturating_add(own.quote.price_per_hour.0),
            }
            found
                .shortlists
                .insert(need.lease.clone(), shortlist.clone());
            last = Some((own, shortlist));
        }
        if !missing.is_empty() {
            found
                .faults
                .push(shortage::nothing(self, &missing, markets, avoid));
        }
    }
}
