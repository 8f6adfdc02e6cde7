//! What can be had now, and which lease takes what.
//!
//! A quote that misses the requirement or the ceiling is never on a shortlist; how near it came is said when nothing
//! else is left. Identical leases form a class. Classes are served one after another in the order of addresses, each by
//! the cheapest that is left: exact for one class, and for several as long as they do not compete for the same scarce
//! quote. [`take`] is the one function that a min-cost flow over classes would replace.

use std::collections::{BTreeMap, BTreeSet};

use super::Choice;
use crate::diagnostic::Diagnostic;
use crate::id::{LeaseId, Name};
use crate::offer::{Facts, Quote, QuoteId, Supply};
use crate::resource::{Cause, LeaseSpec, Terms};
use crate::state::State;
use crate::topology::Topology;
use crate::unit::{Bytes, MicroDollars};

/// Longest list of quotes that one lease may walk down.
pub const SHORTLIST_MAX: usize = 8;

/// What one provider sells now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Market {
    /// Its adapter.
    pub kind: String,
    /// Its machines cost nothing.
    pub free: bool,
    /// What it quotes; a cause when it could not be asked or not be trusted.
    pub quotes: Result<Vec<Quote>, Cause>,
}

/// What can be had now, by `[provider.NAME]`.
pub type Markets = BTreeMap<Name, Market>;

/// A lease that needs a machine.
#[derive(Clone, Debug)]
pub struct Need<'a> {
    /// Which.
    pub lease: LeaseId,
    /// What it asks for.
    pub spec: &'a LeaseSpec,
    /// The provider that gets a machine of this lease back first, or may hold one already.
    pub frees: Option<&'a Name>,
    /// A machine may be there already, so nothing may be needed at all.
    pub unresolved: bool,
}

/// What was found for every need, what could not be, and what to say.
pub(super) type Assigned = (BTreeMap<LeaseId, Vec<Choice>>, Vec<Diagnostic>, Vec<String>);

/// A quote that fits, with the terms under which it does.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    terms: &'a Terms,
    quote: &'a Quote,
}

/// How many more can be taken of each quote.
type Stock<'a> = BTreeMap<(&'a Name, &'a QuoteId), u32>;

/// Leases that ask for the same.
struct Class<'n, 'a> {
    spec: &'a LeaseSpec,
    needs: Vec<&'n Need<'a>>,
}

/// Why a machine does not meet terms; empty when it does. Facts that are not known are not held against it.
pub fn unfit(
    terms: &Terms,
    memory: Bytes,
    facts: Option<&Facts>,
    price: MicroDollars,
) -> Vec<String> {
    let mut why = Vec::new();
    if let Some(facts) = facts {
        let misfits = terms.requirement.misfits(facts);
        why.extend(
            misfits
                .iter()
                .map(|misfit| format!("{} (it has {})", misfit.term, misfit.found)),
        );
        if facts.memory < memory {
            why.push(format!(
                "its stages need {memory} of memory (it has {})",
                facts.memory
            ));
        }
    }
    if let Some(ceiling) = terms.ceiling.filter(|ceiling| price > *ceiling) {
        why.push(format!("at most {ceiling}/h (it costs {price}/h)"));
    }
    why
}

/// Shortlists for all needs.
pub(super) fn assign<'a>(needs: &[Need<'a>], markets: &'a Markets) -> Assigned {
    let mut stock = stock(needs, markets);
    let mut found = (BTreeMap::new(), Vec::new(), Vec::new());
    for class in classes(needs) {
        let (mut candidates, blind) = candidates(class.spec, markets, &[]);
        candidates.sort_by_key(|c| (c.quote.price_per_hour, &c.quote.provider, &c.quote.id));
        if !candidates.is_empty() {
            let leases = class.needs.len();
            found.2.extend(blind.iter().map(|(provider, cause)| {
                format!("provider `{provider}` cannot be seen ({}); {leases} leases are planned without it", cause.message)
            }));
        }
        take(&class, &candidates, &blind, markets, &mut stock, &mut found);
    }
    found
}

/// What is left of each quote, a machine that is given back first included.
fn stock<'a>(needs: &[Need<'a>], markets: &'a Markets) -> Stock<'a> {
    let mut stock = Stock::new();
    let mut freed: BTreeMap<&Name, u32> = BTreeMap::new();
    for provider in needs.iter().filter_map(|need| need.frees) {
        *freed.entry(provider).or_default() += 1;
    }
    for quote in markets
        .values()
        .filter_map(|market| market.quotes.as_ref().ok())
        .flatten()
    {
        let count = match quote.supply {
            Supply::One => 1,
            Supply::Many(count) => {
                count.saturating_add(freed.get(&quote.provider).copied().unwrap_or(0))
            }
        };
        stock.insert((&quote.provider, &quote.id), count);
    }
    stock
}

fn classes<'n, 'a>(needs: &'n [Need<'a>]) -> Vec<Class<'n, 'a>> {
    let mut classes: Vec<Class<'n, 'a>> = Vec::new();
    for need in needs {
        // Instances of one table stand side by side, so that looking at the last class finds nearly all.
        let same = |class: &&mut Class<'n, 'a>| {
            class.spec.memory == need.spec.memory && class.spec.terms == need.spec.terms
        };
        let near = classes.len().saturating_sub(64);
        match classes[near..].iter_mut().rev().find(same) {
            Some(class) => class.needs.push(need),
            None => classes.push(Class {
                spec: need.spec,
                needs: vec![need],
            }),
        }
    }
    classes
}

/// Every quote that fits, under the first terms that it fits; and the providers that cannot be seen.
fn candidates<'a>(
    spec: &'a LeaseSpec,
    markets: &'a Markets,
    tried: &[QuoteId],
) -> (Vec<Candidate<'a>>, Vec<(&'a Name, Cause)>) {
    let mut found: BTreeMap<(&Name, &QuoteId), Candidate<'a>> = BTreeMap::new();
    let mut blind = Vec::new();
    for terms in &spec.terms {
        let quotes = match markets.get(&terms.provider).map(|market| &market.quotes) {
            Some(Ok(quotes)) => quotes,
            Some(Err(cause)) => {
                blind.push((&terms.provider, cause.clone()));
                continue;
            }
            None => {
                let cause = Cause::new(crate::resource::FailureClass::Unknown, "it was not asked");
                blind.push((&terms.provider, cause));
                continue;
            }
        };
        for quote in quotes.iter().filter(|quote| !tried.contains(&quote.id)) {
            if unfit(terms, spec.memory, Some(&quote.facts), quote.price_per_hour).is_empty() {
                found
                    .entry((&quote.provider, &quote.id))
                    .or_insert(Candidate { terms, quote });
            }
        }
    }
    blind.dedup();
    (found.into_values().collect(), blind)
}

/// Serves one class: to each of its leases the cheapest that is left, then what else it may try.
fn take<'a>(
    class: &Class<'_, 'a>,
    candidates: &[Candidate<'a>],
    blind: &[(&Name, Cause)],
    markets: &Markets,
    stock: &mut Stock<'a>,
    found: &mut Assigned,
) {
    let mut at = 0;
    let mut taken: Vec<Option<usize>> = Vec::with_capacity(class.needs.len());
    for _ in &class.needs {
        let left = |candidate: &Candidate<'_>| {
            stock
                .get(&(&candidate.quote.provider, &candidate.quote.id))
                .copied()
                .unwrap_or(0)
        };
        while candidates
            .get(at)
            .is_some_and(|candidate| left(candidate) == 0)
        {
            at += 1;
        }
        let candidate = candidates.get(at);
        if let Some(candidate) = candidate
            && let Some(left) = stock.get_mut(&(&candidate.quote.provider, &candidate.quote.id))
        {
            *left -= 1;
        }
        taken.push(candidate.map(|_| at));
    }
    let own: BTreeSet<usize> = taken.iter().copied().flatten().collect();
    // What is left over, or can be had by many, may be tried by each lease of the class after its own.
    let spare: Vec<usize> = (0..candidates.len())
        .filter(|place| match candidates[*place].quote.supply {
            Supply::Many(_) => true,
            Supply::One => !own.contains(place),
        })
        .take(SHORTLIST_MAX)
        .collect();
    let missing: Vec<&LeaseId> = class
        .needs
        .iter()
        .zip(&taken)
        .filter(|(need, taken)| taken.is_none() && !need.unresolved)
        .map(|(need, _)| &need.lease)
        .collect();
    if !missing.is_empty() {
        found
            .1
            .push(nothing(class, candidates, blind, &missing, markets));
    }
    for (need, own) in class.needs.iter().zip(taken) {
        let others = spare.iter().copied().filter(|place| Some(*place) != own);
        let shortlist = own.into_iter().chain(others).take(SHORTLIST_MAX);
        let choices = shortlist.map(|place| candidates[place].choice()).collect();
        found.0.insert(need.lease.clone(), choices);
    }
}

/// There is no machine for some leases of a class: why.
fn nothing(
    class: &Class<'_, '_>,
    candidates: &[Candidate<'_>],
    blind: &[(&Name, Cause)],
    missing: &[&LeaseId],
    markets: &Markets,
) -> Diagnostic {
    let first = missing[0];
    let who = match missing.len() {
        1 => first.to_string(),
        n => format!("{first} and {} more like it", n - 1),
    };
    if let Some((provider, cause)) = blind.first() {
        let message = format!(
            "{who}: a machine is needed, but provider `{provider}` cannot be seen: {}",
            cause.message
        );
        let hint = cause.hint.clone().unwrap_or_else(|| {
            "nothing is rented and nothing is declared gone until it answers; run plan again then".to_owned()
        });
        return Diagnostic::error("plan/blind", message).hint(hint);
    }
    if !candidates.is_empty() {
        let had = class.needs.len() - missing.len();
        let message = format!(
            "{who}: no machine is left; of the {} that are needed, {had} can be had now",
            class.needs.len()
        );
        return Diagnostic::error("plan/no-offer", message).hint(
            "lower `count`, add an offer, or raise what the provider lets you have at once (`slots` of a local provider)",
        );
    }
    let message = format!("{who}: no machine that can be had now fits");
    Diagnostic::error("plan/no-offer", message).hint(near_misses(class.spec, markets))
}

/// The quotes that come nearest, each with the terms that stand in the way.
fn near_misses(spec: &LeaseSpec, markets: &Markets) -> String {
    let mut misses: Vec<(usize, MicroDollars, String)> = Vec::new();
    for terms in &spec.terms {
        let market = markets.get(&terms.provider);
        let quotes = market.and_then(|market| market.quotes.as_ref().ok());
        for quote in quotes.into_iter().flatten() {
            let why = unfit(terms, spec.memory, Some(&quote.facts), quote.price_per_hour);
            let text = format!(
                "{} under offer `{}` misses {}",
                quote.id,
                terms.offer,
                why.join(", ")
            );
            misses.push((why.len(), quote.price_per_hour, text));
        }
    }
    misses.sort();
    if misses.is_empty() {
        let names: Vec<String> = spec
            .terms
            .iter()
            .map(|t| format!("`{}`", t.provider))
            .collect();
        return format!(
            "provider {} quotes nothing at all now; try again later",
            names.join(", ")
        );
    }
    let nearest: Vec<String> = misses
        .into_iter()
        .take(3)
        .map(|(_, _, text)| text)
        .collect();
    format!("nearest: {}", nearest.join("; "))
}

impl Candidate<'_> {
    fn choice(&self) -> Choice {
        Choice {
            offer: self.terms.offer.clone(),
            quote: self.quote.clone(),
        }
    }
}

/// Memory of the machines of a topology, where it is known: measured where there is one, else the most that can be had
/// now under the lease's terms.
pub fn memory_known(
    topology: &Topology,
    state: &State,
    markets: &Markets,
) -> BTreeMap<LeaseId, Bytes> {
    let mut known = BTreeMap::new();
    for (name, lease) in &topology.leases {
        let offers = lease
            .offers
            .iter()
            .filter_map(|name| topology.offers.get(name));
        let fitting = offers.flat_map(|offer| {
            let requirement = offer.requirement.and(&lease.requirement);
            let market = markets.get(&offer.provider);
            let quotes = market.and_then(|market| market.quotes.as_ref().ok());
            let memory = quotes.into_iter().flatten().map(|quote| &quote.facts);
            memory
                .filter(move |facts| requirement.misfits(facts).is_empty())
                .map(|facts| facts.memory)
        });
        let most = fitting.max();
        for index in 0..lease.count {
            let id = LeaseId {
                name: name.clone(),
                index,
            };
            let ready = state.lease(&id).and_then(|receipt| receipt.ready.as_ref());
            if let Some(memory) = ready.map(|ready| ready.facts.memory).or(most) {
                known.insert(id, memory);
            }
        }
    }
    known
}

/// What a lease takes when its shortlist is used up: the cheapest that fits the same terms and was not tried.
pub fn next_offer(spec: &LeaseSpec, tried: &[QuoteId], markets: &Markets) -> Option<Choice> {
    let (candidates, _) = candidates(spec, markets, tried);
    candidates
        .into_iter()
        .filter(|candidate| candidate.quote.supply != Supply::Many(0))
        .min_by_key(|c| (c.quote.price_per_hour, &c.quote.provider, &c.quote.id))
        .map(|candidate| candidate.choice())
}
