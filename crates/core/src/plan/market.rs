//! What can be had now, and whether it fits.
//!
//! A quote that misses the requirement or the ceiling is never on a shortlist.

use std::collections::BTreeMap;

use super::Choice;
use super::avoid::{Avoid, Standing};
use crate::id::{LeaseId, Name};
use crate::offer::{Facts, Models, Quote, QuoteId, Supply};
use crate::resource::{Cause, FailureClass, LeaseSpec, Terms};
use crate::state::State;
use crate::topology::{AgentWay, Requote, Topology};
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
    /// Nobody is billed for its machines, whatever their price says: it is for rehearsals.
    pub unbilled: bool,
    /// Its machines can end themselves by their limits.
    pub self_destroy: bool,
    /// How an agent usually gets onto its machines; none where it need not.
    pub agent: Option<AgentWay>,
    /// What it quotes; a cause when it could not be asked or not be trusted.
    pub quotes: Result<Vec<Quote>, Cause>,
}

/// What can be had now, by `[provider.NAME]`.
pub type Markets = BTreeMap<Name, Market>;

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

/// A quote that fits, with the terms under which it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) terms: &'a Terms,
    pub(super) quote: &'a Quote,
}

/// Every quote of every market that nothing speaks against, best first, and how many of them are without a blemish: what
/// failed before comes last. Otherwise the cheapest first; of equal price in the order of providers and names.
pub(super) fn quotes<'a>(markets: &'a Markets, avoid: &Avoid<'_>) -> (Vec<&'a Quote>, usize) {
    let mut quotes: Vec<(Standing, &Quote)> = markets
        .values()
        .filter_map(|market| market.quotes.as_ref().ok())
        .flatten()
        .map(|quote| (avoid.standing(quote), quote))
        .filter(|(standing, _)| *standing != Standing::Never)
        .collect();
    quotes.sort_by(|(a, x), (b, y)| (a, rank(x)).cmp(&(b, rank(y))));
    let fine = quotes.partition_point(|(standing, _)| *standing == Standing::Fine);
    (quotes.into_iter().map(|(_, quote)| quote).collect(), fine)
}

fn rank(quote: &Quote) -> (MicroDollars, &Name, &QuoteId) {
    (quote.price_per_hour, &quote.provider, &quote.id)
}

/// Finds the terms under which quotes fit a lease.
pub(super) struct Fitting<'a> {
    memory: Bytes,
    /// The terms that can be met, in the order of the file.
    terms: Vec<&'a Terms>,
    models: Models,
    /// The providers that cannot be seen.
    pub(super) blind: Vec<(&'a Name, Cause)>,
}

impl<'a> Fitting<'a> {
    pub(super) fn new(spec: &'a LeaseSpec, markets: &Markets) -> Self {
        let mut fitting = Self {
            memory: spec.memory,
            terms: Vec::new(),
            models: Models::default(),
            blind: Vec::new(),
        };
        for terms in &spec.terms {
            match markets.get(&terms.provider).map(|market| &market.quotes) {
                Some(Ok(_)) => fitting.terms.push(terms),
                Some(Err(cause)) => fitting.blind.push((&terms.provider, cause.clone())),
                None => {
                    let cause = Cause::new(FailureClass::Unknown, "it was not asked");
                    fitting.blind.push((&terms.provider, cause));
                }
            }
        }
        fitting.blind.dedup();
        fitting
    }

    /// The quote under the first terms that it fits.
    pub(super) fn candidate<'q>(&mut self, quote: &'q Quote) -> Option<Candidate<'q>>
    where
        'a: 'q,
    {
        let facts = &quote.facts;
        if facts.memory < self.memory {
            return None;
        }
        let models = &mut self.models;
        let fits = |terms: &&&'a Terms| {
            let cheap = terms
                .ceiling
                .is_none_or(|ceiling| quote.price_per_hour <= ceiling);
            cheap && terms.provider == quote.provider && terms.requirement.fits(facts, models)
        };
        let terms = self.terms.iter().find(fits)?;
        Some(Candidate { terms, quote })
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

/// What a lease takes when its shortlist is used up: the cheapest that fits the same terms, as far as they allow a fresh
/// quote, and that nothing speaks against.
pub fn next_offer(spec: &LeaseSpec, avoid: &Avoid<'_>, markets: &Markets) -> Option<Choice> {
    let mut fitting = Fitting::new(spec, markets);
    let (quotes, _) = quotes(markets, avoid);
    let candidate = quotes
        .into_iter()
        .filter(|quote| quote.supply != Supply::Many(0))
        .filter_map(|quote| fitting.candidate(quote))
        .find(|candidate| candidate.terms.requote == Requote::WithinCeiling)?;
    Some(Choice {
        offer: candidate.terms.offer.clone(),
        quote: candidate.quote.clone().into(),
    })
}
