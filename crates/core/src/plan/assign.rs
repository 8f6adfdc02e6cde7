//! Which lease takes which quote: the least total price.
//!
//! Identical leases form a class. A class takes the cheapest quotes that fit it; where classes want the same scarce quotes,
//! [`flow`] finds the least total price exactly. Above [`CLASSES_MAX`] classes that compete, they are served one after
//! another in the order of addresses, and the plan says so. A table with `same` or `spread` is served by itself, at the least price that
//! [`placement`] allows it: where such tables and others want the same quotes, the order that costs the least counts, and the plan says by
//! how much another choice could be cheaper. Quotes are sorted once, and looked at only as far as they can matter. Equal shortlists are
//! one value, however many leases have them.

use std::collections::{BTreeMap, BTreeSet};

use super::Choice;
use super::asks::Asks;
use super::avoid::Avoid;
use super::class::{Class, Disks, blind, classes};
use super::flow::{self, Given, Wanting};
use super::market::{Candidate, Fitting, Markets, SHORTLIST_MAX, quotes};
use super::mounts::Unmounted;
use super::placement::{self, Placement, Spot};
use crate::diagnostic::Diagnostic;
use crate::id::{LeaseId, Name};
use crate::offer::{Quote, Supply};
use crate::resource::{Cause, LeaseSpec};
use crate::shared::Shared;
use crate::unit::MicroDollars;

/// Less than this per hour is not worth a word, in micro-dollars.
const CENT: u64 = 10_000;

/// Most classes that are assigned exactly.
const CLASSES_MAX: usize = 64;

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
    pub(super) lacking: usize,
    pub(super) sum: u64,
    /// Another choice may be cheaper.
    rough: bool,
    pub(super) notes: Vec<String>,
    /// Accounts that have no room for all that would be rented there, and why.
    pub(super) crowded: BTreeMap<Name, Cause>,
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
        disks: Disks::of(&quotes),
        quotes,
        fine,
        needs: u64::try_from(needs.len()).expect("few leases"),
    };
    let (bound, free): (Vec<_>, Vec<_>) = needs.iter().partition(|need| placement::asks(need.spec));
    let tables = bound.chunk_by(|a, b| a.lease.name == b.lease.name);
    let mut parties: Vec<Party<'_, 'a>> = tables.map(Party::Table).collect();
    if !free.is_empty() {
        parties.push(Party::Free(&free));
    }
    let all: Vec<&Need<'a>> = needs.iter().collect();
    sale.settle(&parties, &all, &stock)
}

/// Who is served together.
#[derive(Clone, Copy)]
enum Party<'p, 'a> {
    /// A table that asks something of places.
    Table(&'p [&'p Need<'a>]),
    /// All leases that ask nothing of places.
    Free(&'p [&'p Need<'a>]),
}

/// What is for sale, and to whom not.
struct Sale<'s, 'a> {
    markets: &'a Markets,
    avoid: &'s Avoid<'s>,
    stays: &'s BTreeMap<&'s Name, Vec<Spot>>,
    asks: Asks,
    disks: Disks,
    /// The best first; those from `fine` on when there is nothing else.
    quotes: Vec<&'a Quote>,
    fine: usize,
    needs: u64,
}

impl Assigned {
    /// The less, the better.
    const fn worth(&self) -> (usize, u64) {
        (self.lacking, self.sum)
    }

    /// Both in sum.
    fn and(self, other: Self) -> Self {
        Self {
            lacking: self.lacking + other.lacking,
            sum: self.sum.saturating_add(other.sum),
            rough: self.rough || other.rough,
            ..Self::default()
        }
    }

    /// By how much another choice can be better at most, where nothing is cheaper than this one; none where that is not known.
    fn bounds(&self, other: &Self) -> Option<u64> {
        let known = !self.rough && self.lacking == other.lacking;
        known.then(|| other.sum.saturating_sub(self.sum))
    }
}

impl<'a> Sale<'_, 'a> {
    /// Serves all parties, in the order that costs the least. Whoever is served first may take what another one needs more, so each
    /// order is tried where there are few.
    fn settle(&self, parties: &[Party<'_, 'a>], needs: &[&Need<'a>], stock: &[u32]) -> Assigned {
        let mut best = self.serve(parties, stock);
        if parties.len() < 2 {
            return best;
        }
        // Nothing costs less than each party by itself does, or than all together where places do not matter.
        let alone = parties.iter().map(|party| self.serve(&[*party], stock));
        let alone = alone.fold(Assigned::default(), Assigned::and);
        let anywhere = self.serve(&[Party::Free(needs)], stock);
        let bounds = [alone, anywhere];
        let gap = |best: &Assigned| {
            let gaps = bounds.iter().filter_map(|bound| bound.bounds(best));
            gaps.min()
        };
        for order in orders(parties) {
            if gap(&best) == Some(0) {
                return best;
            }
            let other = self.serve(&order, stock);
            if other.worth() < best.worth() {
                best = other;
            }
        }
        if let Some(gap) = gap(&best).filter(|gap| *gap >= CENT) {
            best.notes.push(format!(
                "tables with `same` or `spread` and other leases want the same offers: they are served one after another, in the cheapest \
                 order of those tried; another choice may be cheaper in sum, by at most {}/h",
                MicroDollars(gap)
            ));
        }
        best
    }

    fn serve(&self, parties: &[Party<'_, 'a>], stock: &[u32]) -> Assigned {
        let mut found = Assigned::default();
        let mut stock = stock.to_vec();
        for party in parties {
            match party {
                Party::Table(table) => self.table(table, &mut stock, &mut found),
                Party::Free(free) => self.classes(free, &mut stock, &mut found),
            }
        }
        found
    }

    /// The leases of a table that asks something of places.
    fn table(&self, table: &[&Need<'a>], stock: &mut [u32], found: &mut Assigned) {
        let stays = self.stays.get(&table[0].lease.name).cloned();
        let stays = stays.unwrap_or_default();
        let (class, given) = self.placed(table, stays, stock);
        for (item, count) in &given {
            self.asks.take(*item, *count, stock);
        }
        class.unseen(&mut found.notes);
        class.list(&given, stock, self.markets, self.avoid, found);
    }

    /// The leases of a table that asks something of places, with what fits beside each other, and what they take of it.
    fn placed<'n>(
        &self,
        needs: &[&'n Need<'a>],
        stays: Vec<Spot>,
        stock: &[u32],
    ) -> (Class<'n, 'a>, BTreeMap<usize, u32>) {
        let spec: &'a LeaseSpec = needs[0].spec;
        let closed: BTreeSet<&Name> = needs
            .iter()
            .flat_map(|need| &need.closed)
            .copied()
            .collect();
        // Machines of one table may need different memory and disks; one that fits all is looked for.
        let mut specs: Vec<&'a LeaseSpec> = needs.iter().map(|need| &**need.spec).collect();
        specs.dedup();
        let disk = specs
            .iter()
            .map(|spec| spec.disk)
            .max()
            .unwrap_or(spec.disk);
        let fitting =
            |spec: &'a LeaseSpec| Fitting::new(spec, self.markets).but(&closed).with(disk);
        let mut fittings: Vec<Fitting<'a>> = specs.into_iter().map(fitting).collect();
        let mut candidates: Vec<(usize, Candidate<'a>)> = Vec::new();
        for (item, quote) in self
            .quotes
            .iter()
            .enumerate()
            .filter(|(item, _)| stock[*item] > 0)
        {
            let mut all = fittings.iter_mut().map(|fitting| fitting.candidate(quote));
            let first = all.next().flatten();
            let rest = all.all(|other| other.is_some());
            candidates.extend(first.filter(|_| rest).map(|candidate| (item, candidate)));
        }
        let beside = Placement::beside(spec, stays.clone());
        // One offer cannot be taken in two ways.
        let mut seen = BTreeSet::new();
        let mut once = candidates.clone();
        once.retain(|(item, _)| seen.insert(self.asks.first(*item)));
        let chosen = placement::choose(needs.len(), &beside, &once, stock, self.fine);
        let mut given: BTreeMap<usize, u32> = BTreeMap::new();
        let mut all = stays;
        for at in &chosen {
            let (item, candidate) = &once[*at];
            *given.entry(*item).or_default() += 1;
            all.push(Spot::of(candidate.quote));
        }
        // What may follow when the first choice fails: beside all that were chosen.
        let beside = Placement::beside(spec, all);
        candidates.retain(|(item, candidate)| {
            given.contains_key(item) || beside.allows(&Spot::of(candidate.quote))
        });
        let class = Class {
            spec,
            disk,
            needs: needs.to_vec(),
            candidates,
            blind: blind(fittings.swap_remove(0), needs[0]),
            beside,
        };
        (class, given)
    }

    /// All others.
    fn classes(&self, free: &[&Need<'a>], stock: &mut [u32], found: &mut Assigned) {
        let mut classes = classes(free, &self.disks);
        for class in &mut classes {
            self.look(class, stock);
            class.unseen(&mut found.notes);
        }
        let given = self.share(&classes, stock, found);
        for (item, count) in given.iter().flatten() {
            self.asks.take(*item, *count, stock);
        }
        for (class, given) in classes.iter().zip(&given) {
            class.list(given, stock, self.markets, self.avoid, found);
        }
    }

    /// Finds what fits, cheapest first: as much as all leases together could take, and alternatives.
    fn look(&self, class: &mut Class<'_, 'a>, stock: &[u32]) {
        let fitting = Fitting::new(class.spec, self.markets);
        let mut fitting = fitting.but(&class.needs[0].closed);
        let (mut items, mut count) = (0_usize, 0_u64);
        let mut seen = BTreeSet::new();
        for (place, quote) in self.quotes.iter().enumerate() {
            let Some(candidate) = fitting.candidate(quote) else {
                continue;
            };
            if count >= self.needs && stock[place] == 0 {
                // Sold out: no alternative, and it must not crowd out one.
                continue;
            }
            class.candidates.push((place, candidate));
            if count >= self.needs {
                items += 1;
                if items >= SHORTLIST_MAX {
                    break;
                }
            }
            if seen.insert(self.asks.first(place)) {
                count += u64::from(stock[place]);
            }
        }
        class.blind = blind(fitting, class.needs[0]);
    }

    /// How many of each quote each class gets.
    ///
    /// Quotes from place `fine` on are taken when there is nothing else.
    fn share(&self, classes: &[Class<'_, '_>], stock: &[u32], found: &mut Assigned) -> Given {
        let asks = &self.asks;
        let mut wanted = vec![0_u64; stock.len()];
        let alone: Given = classes
            .iter()
            .map(|class| class.take(asks, stock))
            .collect();
        for (item, count) in alone.iter().flatten() {
            wanted[asks.first(*item)] += u64::from(*count);
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
            let wanting = |class: &Class<'_, '_>| class.wanting(asks, self.fine);
            let wanting: Vec<Wanting> = classes.iter().map(wanting).collect();
            let given = flow::cheapest(&wanting, stock);
            let own = classes.iter().zip(given);
            return own.map(|(class, given)| class.own(asks, &given)).collect();
        }
        found.rough = true;
        found.notes.push(format!(
            "{} kinds of leases compete for the same offers: they were served one after another, so another choice may be cheaper in sum",
            classes.len()
        ));
        let mut left = stock.to_vec();
        let mut serve = |class: &Class<'_, '_>| {
            let given = class.take(asks, &left);
            for (item, count) in &given {
                asks.take(*item, *count, &mut left);
            }
            given
        };
        classes.iter().map(&mut serve).collect()
    }
}

/// The most parties that are served in every order.
const PARTIES_MAX: usize = 4;

/// Every other order of the parties; the reverse alone where they are many.
fn orders<T: Copy>(parties: &[T]) -> Vec<Vec<T>> {
    if parties.len() > PARTIES_MAX {
        return vec![parties.iter().rev().copied().collect()];
    }
    let mut orders: Vec<Vec<T>> = vec![Vec::new()];
    for party in parties {
        let at = |order: &Vec<T>| {
            let order = order.clone();
            (0..=order.len()).rev().map(move |place| {
                let mut longer = order.clone();
                longer.insert(place, *party);
                longer
            })
        };
        orders = orders.iter().flat_map(at).collect();
    }
    // The first one is the given one.
    orders.split_off(1)
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
