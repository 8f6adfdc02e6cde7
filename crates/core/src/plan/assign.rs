//! Which lease takes which quote: the least total price.
//!
//! Identical leases form a class. A class takes the cheapest quotes that fit it; where classes want the same scarce quotes,
//! [`flow`] finds the least total price exactly. Above [`CLASSES_MAX`] classes that compete, they are served one after
//! another in the order of addresses, and the plan says so. Tables with `same` or `spread` are served before all others, each
//! at the least price that [`placement`] allows it, and in a second round after them, the last table first: the round that
//! costs less counts. Quotes are sorted once, and looked at only as far as they can matter. Equal shortlists are one value,
//! however many leases have them.

use std::collections::{BTreeMap, BTreeSet};

use super::asks::Asks;
use super::avoid::Avoid;
use super::flow::{self, Given, Wanting};
use super::market::{Candidate, Fitting, Markets, SHORTLIST_MAX, quotes};
use super::mounts::Unmounted;
use super::placement::{self, Placement, Spot};
use super::{Choice, shortage};
use crate::diagnostic::Diagnostic;
use crate::id::{LeaseId, Name};
use crate::offer::{Quote, Supply};
use crate::resource::{Cause, LeaseSpec, Terms};
use crate::shared::Shared;
use crate::unit::Bytes;

/// Most classes that are assigned exactly.
const CLASSES_MAX: usize = 64;

/// What taking a quote that failed before counts for, in micro-dollars: more than any price.
const BLEMISH: u64 = 1 << 48;

/// A lease that needs a machine.
#[derive(Clone, Debug)]
pub(super) struct Need<'a> {
    /// Which.
    pub(super) lease: LeaseId,
    /// What it asks for.
    pub(super) spec: &'a Shared<LeaseSpec>,
    /// The provider that gets a machine of this lease back first, or may hold one already.
    pub(super) frees: Option<&'a Name>,
    /// A machine may be there already, so nothing may be needed at all.
    pub(super) unresolved: bool,
    /// Offers that are left out for its volumes.
    pub(super) unmounted: &'a [Unmounted],
    /// Providers whose accounts have no room for it.
    pub(super) closed: BTreeSet<&'a Name>,
}

/// What was found for every need, what could not be, and what to say.
#[derive(Default)]
pub(super) struct Assigned {
    pub(super) shortlists: BTreeMap<LeaseId, Shared<Vec<Choice>>>,
    pub(super) faults: Vec<Diagnostic>,
    /// How many get nothing of their own, and what the others cost.
    lacking: usize,
    sum: u64,
    pub(super) notes: Vec<String>,
    /// Accounts that have no room for all that would be rented there, and why.
    pub(super) crowded: BTreeMap<Name, Cause>,
}

/// Leases that ask for the same.
pub(super) struct Class<'n, 'a> {
    pub(super) spec: &'a LeaseSpec,
    pub(super) needs: Vec<&'n Need<'a>>,
    /// What fits, cheapest first, by the quote's place. No more than can matter.
    pub(super) candidates: Vec<(usize, Candidate<'a>)>,
    /// The providers that cannot be seen.
    pub(super) blind: Vec<(&'a Name, Cause)>,
    /// Where its machines may be.
    pub(super) beside: Placement,
}

/// Shortlists for all needs. `stays` has where the machines of a table are that stay.
pub(super) fn assign<'a>(
    needs: &[Need<'a>],
    markets: &'a Markets,
    avoid: &Avoid<'_>,
    stays: &BTreeMap<&Name, Vec<Spot>>,
) -> Assigned {
    if needs.is_empty() {
        return Assigned::default();
    }
    let specs = needs.iter().map(|need| &**need.spec);
    let (quotes, fine) = quotes(markets, avoid, specs);
    let stock = stock(needs, &quotes);
    let sale = Sale {
        markets,
        avoid,
        stays,
        asks: Asks::of(&quotes),
        quotes,
        fine,
        needs: needs.len(),
    };
    let (bound, free): (Vec<_>, Vec<_>) = needs.iter().partition(|need| placement::asks(need.spec));
    let tables = bound.chunk_by(|a, b| a.lease.name == b.lease.name);
    let mut tables: Vec<&[&Need<'a>]> = tables.collect();
    let first = sale.serve(&tables, &free, stock.clone(), true);
    if tables.is_empty() || (tables.len() == 1 && free.is_empty()) {
        return first;
    }
    // Whoever is served first may take what another one needs more.
    tables.reverse();
    let second = sale.serve(&tables, &free, stock, false);
    match second.worth() < first.worth() {
        true => second,
        false => first,
    }
}

/// What is for sale, and to whom not.
struct Sale<'s, 'a> {
    markets: &'a Markets,
    avoid: &'s Avoid<'s>,
    stays: &'s BTreeMap<&'s Name, Vec<Spot>>,
    asks: Asks<'a>,
    /// The best first; those from `fine` on when there is nothing else.
    quotes: Vec<&'a Quote>,
    fine: usize,
    needs: usize,
}

impl Assigned {
    /// The less, the better.
    const fn worth(&self) -> (usize, u64) {
        (self.lacking, self.sum)
    }
}

impl<'a> Sale<'_, 'a> {
    fn serve(
        &self,
        tables: &[&[&Need<'a>]],
        free: &[&Need<'a>],
        mut stock: Vec<u32>,
        tables_first: bool,
    ) -> Assigned {
        let mut found = Assigned::default();
        if !tables_first {
            self.classes(free, &mut stock, &mut found);
        }
        for table in tables {
            self.table(table, &mut stock, &mut found);
        }
        if tables_first {
            self.classes(free, &mut stock, &mut found);
        }
        found
    }

    /// The leases of a table that asks something of places.
    fn table(&self, table: &[&Need<'a>], stock: &mut [u32], found: &mut Assigned) {
        let stays = self.stays.get(&table[0].lease.name).cloned();
        let stays = stays.unwrap_or_default();
        let (quotes, fine) = (&self.quotes, self.fine);
        let (class, given) = Class::placed(table, stays, self.markets, quotes, stock, fine);
        for (item, count) in &given {
            stock[*item] -= count;
        }
        self.asks.close(quotes, given.keys(), stock);
        class.unseen(&mut found.notes);
        class.list(&given, stock, self.markets, self.avoid, found);
    }

    /// All others.
    fn classes(&self, free: &[&Need<'a>], stock: &mut [u32], found: &mut Assigned) {
        let mut classes = classes(free);
        for class in &mut classes {
            class.look(self.markets, &self.quotes, stock, self.needs);
            class.unseen(&mut found.notes);
        }
        let mut both = 0;
        let given = loop {
            let mut notes = Vec::new();
            let given = share(&classes, stock, self.fine, &mut notes);
            let twice = self.asks.twice(&self.quotes, &given);
            if twice.is_empty() {
                found.notes.extend(notes);
                break given;
            }
            both += twice.len();
            for item in twice {
                stock[item] = 0;
            }
        };
        if both > 0 {
            found.notes.push(format!(
                "what is rented on demand went before what is bid for, where both want the same ask ({both}): another choice may be \
                 cheaper in sum"
            ));
        }
        for (item, count) in given.iter().flatten() {
            stock[*item] -= count;
        }
        let taken = given.iter().flat_map(BTreeMap::keys);
        self.asks.close(&self.quotes, taken, stock);
        for (class, given) in classes.iter().zip(&given) {
            class.list(given, stock, self.markets, self.avoid, found);
        }
    }
}

/// How many can be taken of each quote, a machine that is given back first included.
fn stock(needs: &[Need<'_>], quotes: &[&Quote]) -> Vec<u32> {
    let mut freed: BTreeMap<&Name, u32> = BTreeMap::new();
    for provider in needs.iter().filter_map(|need| need.frees) {
        *freed.entry(provider).or_default() += 1;
    }
    let count = |quote: &&Quote| match quote.supply {
        Supply::One => 1,
        Supply::Many(count) => {
            count.saturating_add(freed.get(&quote.provider).copied().unwrap_or(0))
        }
    };
    quotes.iter().map(count).collect()
}

fn classes<'n, 'a>(needs: &[&'n Need<'a>]) -> Vec<Class<'n, 'a>> {
    let mut classes: Vec<Class<'n, 'a>> = Vec::new();
    type Key<'n, 'a> = (Bytes, usize, &'a [Terms], &'n BTreeSet<&'a Name>);
    let mut places: BTreeMap<Key<'n, 'a>, usize> = BTreeMap::new();
    let mut last: Option<(&Need<'_>, usize)> = None;
    for need in needs {
        let same = |last: &Need<'_>| last.spec.is(need.spec) && last.closed == need.closed;
        let place = match last.filter(|(last, _)| same(last)) {
            Some((_, place)) => place,
            None => {
                let spec = need.spec;
                let terms = spec.terms.as_slice();
                let key = (spec.memory, spec.mounts.len(), terms, &need.closed);
                *places.entry(key).or_insert_with(|| {
                    classes.push(Class {
                        spec: need.spec,
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

/// How many of each quote each class gets.
///
/// Quotes from place `fine` on are taken when there is nothing else.
fn share(classes: &[Class<'_, '_>], stock: &[u32], fine: usize, notes: &mut Vec<String>) -> Given {
    let mut wanted = vec![0_u64; stock.len()];
    let alone: Given = classes.iter().map(|class| class.take(stock)).collect();
    for (item, count) in alone.iter().flatten() {
        wanted[*item] += u64::from(*count);
    }
    let enough = wanted
        .iter()
        .zip(stock)
        .all(|(wanted, stock)| *wanted <= u64::from(*stock));
    // Nobody is in anybody's way: no other assignment can be cheaper for any class.
    if enough {
        return alone;
    }
    if classes.len() <= CLASSES_MAX {
        let wanting: Vec<Wanting> = classes.iter().map(|class| class.wanting(fine)).collect();
        return flow::cheapest(&wanting, stock);
    }
    notes.push(format!(
        "{} kinds of leases compete for the same offers: they were served one after another, so another choice may be cheaper in sum",
        classes.len()
    ));
    let mut left = stock.to_vec();
    let mut serve = |class: &Class<'_, '_>| {
        let given = class.take(&left);
        for (item, count) in &given {
            left[*item] -= count;
        }
        given
    };
    classes.iter().map(&mut serve).collect()
}

/// The providers that cannot be seen, or whose volumes cannot.
fn blind<'a>(fitting: Fitting<'a>, need: &Need<'a>) -> Vec<(&'a Name, Cause)> {
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
    /// The leases of a table that asks something of places, with what fits beside each other, and what they take of it.
    fn placed(
        needs: &[&'n Need<'a>],
        stays: Vec<Spot>,
        markets: &Markets,
        quotes: &[&'a Quote],
        stock: &[u32],
        fine: usize,
    ) -> (Self, BTreeMap<usize, u32>) {
        let spec: &'a LeaseSpec = needs[0].spec;
        let closed: BTreeSet<&Name> = needs
            .iter()
            .flat_map(|need| &need.closed)
            .copied()
            .collect();
        let mut fitting = Fitting::new(spec, markets).but(&closed);
        // Machines of one table may need different memory; one that fits all is looked for.
        let mut specs: Vec<&'a LeaseSpec> = needs.iter().map(|need| &**need.spec).collect();
        specs.dedup();
        let mut others: Vec<Fitting<'a>> = specs[1..]
            .iter()
            .map(|spec| Fitting::new(spec, markets).but(&closed))
            .collect();
        let mut candidates: Vec<(usize, Candidate<'a>)> = Vec::new();
        for (item, quote) in quotes
            .iter()
            .enumerate()
            .filter(|(item, _)| stock[*item] > 0)
        {
            let candidate = fitting.candidate(quote);
            let all = others
                .iter_mut()
                .all(|other| other.candidate(quote).is_some());
            candidates.extend(candidate.filter(|_| all).map(|candidate| (item, candidate)));
        }
        let beside = Placement::beside(spec, stays.clone());
        let chosen = placement::choose(needs.len(), &beside, &candidates, stock, fine);
        let mut given: BTreeMap<usize, u32> = BTreeMap::new();
        let mut all = stays;
        for at in &chosen {
            let (item, candidate) = &candidates[*at];
            *given.entry(*item).or_default() += 1;
            all.push(Spot::of(candidate.quote));
        }
        // What may follow when the first choice fails: beside all that were chosen.
        let beside = Placement::beside(spec, all);
        candidates.retain(|(item, candidate)| {
            given.contains_key(item) || beside.allows(&Spot::of(candidate.quote))
        });
        let class = Self {
            spec,
            needs: needs.to_vec(),
            candidates,
            blind: blind(fitting, needs[0]),
            beside,
        };
        (class, given)
    }

    /// Providers that cannot be seen, where others can.
    fn unseen(&self, notes: &mut Vec<String>) {
        if !self.candidates.is_empty() {
            let leases = self.needs.len();
            notes.extend(self.blind.iter().map(|(provider, cause)| {
                format!("provider `{provider}` cannot be seen ({}); {leases} leases are planned without it", cause.message)
            }));
        }
    }

    /// Finds what fits, cheapest first: as much as all leases together could take, and alternatives.
    fn look(&mut self, markets: &'a Markets, quotes: &[&'a Quote], stock: &[u32], needs: usize) {
        let mut fitting = Fitting::new(self.spec, markets).but(&self.needs[0].closed);
        let (mut items, mut count) = (0_usize, 0_u64);
        let enough = u64::try_from(needs).expect("few leases");
        for (place, quote) in quotes.iter().enumerate() {
            let Some(candidate) = fitting.candidate(quote) else {
                continue;
            };
            if count >= enough && stock[place] == 0 {
                // Sold out: no alternative, and it must not crowd out one.
                continue;
            }
            self.candidates.push((place, candidate));
            if count >= enough {
                items += 1;
                if items >= SHORTLIST_MAX {
                    break;
                }
            }
            count += u64::from(stock[place]);
        }
        self.blind = blind(fitting, self.needs[0]);
    }

    fn count(&self) -> u32 {
        u32::try_from(self.needs.len()).expect("few leases")
    }

    fn wanting(&self, fine: usize) -> Wanting {
        let takes = self.candidates.iter();
        let cost = |item: usize, candidate: &Candidate<'_>| {
            let price = candidate.quote.price_per_hour.0;
            match item < fine {
                true => price,
                false => price.saturating_add(BLEMISH),
            }
        };
        Wanting {
            count: self.count(),
            takes: takes
                .map(|(item, candidate)| (*item, cost(*item, candidate)))
                .collect(),
        }
    }

    /// The cheapest that are left.
    fn take(&self, left: &[u32]) -> BTreeMap<usize, u32> {
        let mut given = BTreeMap::new();
        let mut lacks = self.count();
        for (item, _) in &self.candidates {
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
    fn list(
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
