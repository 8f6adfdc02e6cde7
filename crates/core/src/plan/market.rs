//! What can be had now, and whether it fits.
//!
//! A quote that misses the requirement or the ceiling is never on a shortlist.

use std::collections::{BTreeMap, BTreeSet};

use super::Choice;
use super::avoid::{Avoid, Standing};
use crate::id::{LeaseId, Name};
use crate::offer::{Facts, Gpu, Misfit, Models, Quote, QuoteId, Ranks, Selection, Supply};
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
    /// A machine of it that restarts has an empty disk.
    pub restarts_empty: bool,
    /// How an agent usually gets onto its machines; none where it need not.
    pub agent: Option<AgentWay>,
    /// What it quotes; a cause when it could not be asked or not be trusted.
    pub quotes: Result<Vec<Quote>, Cause>,
}

/// What can be had now, by `[provider.NAME]`.
pub type Markets = BTreeMap<Name, Market>;

/// Why a machine may not be taken under terms, be it for what it is or for what its provider's table leaves out.
pub fn untaken(terms: &Terms, memory: Bytes, quote: &Quote) -> Vec<String> {
    let facts = &quote.facts;
    let left_out = terms.within.left_out(facts);
    let mut why: Vec<String> = left_out
        .iter()
        .map(|misfit| format!("{} of provider `{}`", told(misfit), terms.provider))
        .collect();
    why.extend(unfit(terms, memory, Some(facts), quote.price_per_hour));
    if let Some(bid) = quote.bid.filter(|bid| bid.per_hour < bid.least) {
        why.push(format!(
            "a bid of {}/h (it takes {}/h and more)",
            bid.per_hour, bid.least
        ));
    }
    why
}

/// The ceiling of terms, where a quote costs more than that and is as asked for but for its price.
pub fn too_dear(terms: &Terms, memory: Bytes, quote: &Quote) -> Option<MicroDollars> {
    let ceiling = terms
        .ceiling
        .filter(|ceiling| quote.price_per_hour > *ceiling)?;
    (untaken(terms, memory, quote).len() == 1).then_some(ceiling)
}

fn told(misfit: &Misfit) -> String {
    format!("{} (it has {})", misfit.term, misfit.found)
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
        why.extend(misfits.iter().map(told));
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

/// What speaks against a machine that is still on its way, by its provider's own record alone: its price, and which GPUs it is
/// said to have. A record tells less than an offer: what it does not say is not held against the machine.
pub fn unfit_by_record(terms: &Terms, gpus: &[Gpu], price: MicroDollars) -> Vec<String> {
    let misfits = terms.requirement.gpu_misfits(gpus);
    let mut why: Vec<String> = misfits.iter().map(told).collect();
    why.extend(unfit(terms, Bytes(0), None, price));
    why
}

/// A quote that fits, with the terms under which it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) terms: &'a Terms,
    pub(super) quote: &'a Quote,
}

/// Every quote of every market that nothing speaks against, best first, and how many of them are without a blemish: what
/// failed before comes last. Otherwise the cheapest first; of equal price in the order of providers, of the regions that their
/// tables list, and of names.
pub(super) fn quotes<'a, 's>(
    markets: &'a Markets,
    avoid: &Avoid<'_>,
    specs: impl IntoIterator<Item = &'s LeaseSpec>,
) -> (Vec<&'a Quote>, usize) {
    let mut ranks = preferences(specs);
    let mut quotes: Vec<(Standing, usize, &Quote)> = markets
        .values()
        .filter_map(|market| market.quotes.as_ref().ok())
        .flatten()
        .map(|quote| {
            let ranks = ranks.get_mut(&quote.provider);
            let rank = ranks.map_or(Some(0), |ranks| ranks.rank(&quote.facts));
            (avoid.standing(quote), rank.unwrap_or(usize::MAX), quote)
        })
        .filter(|(standing, ..)| *standing != Standing::Never)
        .collect();
    quotes.sort_by(|(a, m, x), (b, n, y)| (a, rank(*m, x)).cmp(&(b, rank(*n, y))));
    let fine = quotes.partition_point(|(standing, ..)| *standing == Standing::Fine);
    (quotes.into_iter().map(|(.., quote)| quote).collect(), fine)
}

/// Which regions are preferred, by provider; those that prefer none are left out.
fn preferences<'s>(
    specs: impl IntoIterator<Item = &'s LeaseSpec>,
) -> BTreeMap<&'s Name, Ranks<'s>> {
    let mut ranks = BTreeMap::new();
    for terms in specs.into_iter().flat_map(|spec| &spec.terms) {
        if !terms.within.regions.is_empty() {
            let ranks = ranks.entry(&terms.provider);
            ranks.or_insert_with(|| terms.within.ranks());
        }
    }
    ranks
}

fn rank(region: usize, quote: &Quote) -> (MicroDollars, &Name, usize, &QuoteId) {
    (quote.price_per_hour, &quote.provider, region, &quote.id)
}

/// Finds the terms under which quotes fit a lease.
pub(super) struct Fitting<'a> {
    memory: Bytes,
    disk: Bytes,
    /// The terms that can be met, in the order of the file, with what their providers' tables leave.
    terms: Vec<(&'a Terms, Ranks<'a>)>,
    models: Models,
    /// The providers that cannot be seen.
    pub(super) blind: Vec<(&'a Name, Cause)>,
}

impl<'a> Fitting<'a> {
    pub(super) fn new(spec: &'a LeaseSpec, markets: &Markets) -> Self {
        let mut fitting = Self {
            memory: spec.memory,
            disk: spec.disk,
            terms: Vec::new(),
            models: Models::default(),
            blind: Vec::new(),
        };
        for terms in spec.terms.iter().filter(|terms| spec.has_volumes(terms)) {
            match markets.get(&terms.provider).map(|market| &market.quotes) {
                Some(Ok(_)) => fitting.terms.push((terms, terms.within.ranks())),
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

    /// Nor may it be of these providers.
    pub(super) fn but(mut self, closed: &BTreeSet<&Name>) -> Self {
        self.terms
            .retain(|(terms, _)| !closed.contains(&terms.provider));
        self.blind
            .retain(|(provider, _)| !closed.contains(provider));
        self
    }

    /// With this disk.
    pub(super) fn with(mut self, disk: Bytes) -> Self {
        self.disk = disk;
        self
    }

    /// The quote under the first terms that it fits.
    pub(super) fn candidate<'q>(&mut self, quote: &'q Quote) -> Option<Candidate<'q>>
    where
        'a: 'q,
    {
        let facts = &quote.facts;
        let enough = quote.bid.is_none_or(|bid| bid.per_hour >= bid.least);
        if facts.memory < self.memory || !enough || !quote.disk.holds(self.disk) {
            return None;
        }
        let models = &mut self.models;
        let mut fits = |terms: &Terms, ranks: &mut Ranks<'_>| {
            let cheap = terms
                .ceiling
                .is_none_or(|ceiling| quote.price_per_hour <= ceiling);
            cheap
                && terms.are_for(quote)
                && ranks.takes(facts).is_some()
                && terms.requirement.fits(facts, models)
        };
        let mut all = self.terms.iter_mut();
        let terms = all.find_map(|(terms, ranks)| fits(terms, ranks).then_some(*terms))?;
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
            let market = markets.get(&offer.provider);
            let provider = topology.providers.get(&offer.provider);
            let requirement = match provider {
                Some(provider) => offer.taken_by(lease, &provider.kind).requirement,
                None => offer.requirement.and(&lease.requirement),
            };
            let within = provider.map(|provider| &provider.within);
            let mut ranks = within.map(Selection::ranks);
            let quotes = market.and_then(|market| market.quotes.as_ref().ok());
            let memory = quotes.into_iter().flatten().map(|quote| &quote.facts);
            memory
                .filter(move |facts| ranks.as_mut().is_none_or(|r| r.takes(facts).is_some()))
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
    let (quotes, _) = quotes(markets, avoid, [spec]);
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
