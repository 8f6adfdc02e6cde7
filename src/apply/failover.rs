//! Which offer comes next: down the plan's shortlist, then fresh quotes on the same terms, then a wait for some.
//!
//! An account without room, by its caps, is left out. No offer is taken twice, none that a machine of this topology failed on, and none that the terms or the ceiling do not
//! allow. The choice is a pure function of the core; it goes into the *started* entry of its try.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, LeaseId, Name};
use stageline_core::offer::{Quote, QuoteId, Supply};
use stageline_core::plan::{
    Avoid, Choice, LeaseTerms, Market, Markets, Placement, Spot, Verdict, next_offer,
};
use stageline_core::resource::{Cause, FailureClass, LeaseSpec, Receipt, Spec};
use stageline_core::state::{Recorded, State, Tried};
use stageline_core::topology::Requote;

use super::alike::Alike;
use super::limited::Limited;
use super::step::{Act, Run, Stop, broken};
use crate::provider::Provider;

/// First pause between two questions for something that can be had.
const ASK_FIRST: Duration = Duration::from_secs(5);

/// Longest pause between two such questions.
const ASK_LONGEST: Duration = Duration::from_secs(60);

/// The search for one machine.
struct Hunt<'a> {
    spec: &'a LeaseSpec,
    shortlist: &'a [Choice],
    /// Taken in vain by this search, beside what is recorded.
    passed: Vec<Tried>,
    /// Providers whose accounts have no room.
    full: BTreeSet<Name>,
    /// Offers that were gone before anything was written down.
    gone: u32,
    /// Creates refused before and during a wait, which do not count: it is bounded by time.
    uncounted: u32,
    /// Since when it waits for something that can be had, and the next pause.
    waiting: Option<(Duration, Duration)>,
    /// Since when the account is used too much.
    limited: Option<Limited>,
    /// What its creates were answered with.
    alike: Alike,
    last: Cause,
}

impl<'a> Run<'a> {
    /// Rents a machine. True when its step is recorded as done by that; false when it was found to be there.
    pub(super) async fn rent(&self, act: Act<'a>, lease: &LeaseId) -> Result<bool, Stop> {
        let rented = self.search(act, lease).await;
        self.placing.borrow_mut().remove(lease);
        rented
    }

    /// What is looked for; a cause where nothing is yet.
    fn wanted(&self, act: Act<'a>, lease: &LeaseId) -> Result<&'a LeaseSpec, Stop> {
        let Spec::Lease(spec) = self.spec(&act.step.address)? else {
            return Err(Stop::Refused(broken(format!(
                "the plan's spec for {lease} is no lease"
            ))));
        };
        if self.made_for(lease) != *lease {
            let message = format!(
                "{lease}: its machine was made as {} and is being released",
                self.made_for(lease)
            );
            let cause = Cause::new(FailureClass::OfferGone, message);
            return Err(Stop::Refused(cause.hint(
                "a new one is rented by the next apply, once it is proven gone",
            )));
        }
        Ok(spec)
    }

    async fn search(&self, act: Act<'a>, lease: &LeaseId) -> Result<bool, Stop> {
        let spec = self.wanted(act, lease)?;
        let mut hunt = Hunt::new(lease, spec, self.plan.leases.get(lease));
        let mut refused: Option<Cause> = None;
        loop {
            self.gang_holds(lease)?;
            let next = self.next(act, lease, &mut hunt).await?;
            let Some((choice, requoted)) = next else {
                return Err(Stop::Refused(hunt.last));
            };
            if let Some(cause) = refused.take() {
                self.emit(Event::StepRefused {
                    address: act.step.address.clone(),
                    generation: act.step.generation,
                    verb: act.step.verb,
                    cause,
                    goes_on: true,
                });
            }
            let before = self.last_attempt(act);
            self.places(lease, &choice.quote);
            match self.launch(act, lease, spec, &choice, requoted).await {
                Ok(()) => return Ok(true),
                Err(Stop::Dear(cause)) => {
                    self.placing.borrow_mut().remove(lease);
                    refused = Some(hunt.refused(&choice, false, cause));
                }
                Err(Stop::Full(cause)) => {
                    self.placing.borrow_mut().remove(lease);
                    hunt.full.insert(choice.quote.provider.clone());
                    hunt.last = cause.clone();
                    refused = Some(cause);
                }
                Err(Stop::Refused(cause)) if cause.class.moves_on() => {
                    self.placing.borrow_mut().remove(lease);
                    let sent = self.last_attempt(act) != before;
                    refused = Some(hunt.refused(&choice, sent, cause));
                }
                Err(Stop::Refused(cause)) if cause.class == FailureClass::Rate => {
                    self.placing.borrow_mut().remove(lease);
                    let now = self.last_attempt(act);
                    let sent = (now != before).then_some(Attempt(now));
                    let seller = self.seller(spec, &choice)?;
                    let so_far = &mut hunt.limited;
                    self.wait_out(act, (lease, spec), seller, so_far, (cause, sent))
                        .await?;
                }
                // Once the doubt is closed without a machine, the same offer may be tried under a new key.
                Err(Stop::InDoubt(cause)) if self.doubts(lease, act.step.generation).is_some() => {
                    self.resolve(act, lease).await?;
                    if self.held(lease, act.step.generation).is_some() {
                        return Ok(false);
                    }
                    hunt.last = cause;
                    hunt.alike.answered();
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Who sells what was chosen.
    fn seller(&self, spec: &LeaseSpec, choice: &Choice) -> Result<&'a Arc<dyn Provider>, Stop> {
        let mut terms = spec.terms.iter();
        let terms = terms.find(|terms| terms.offer == choice.offer);
        let (name, kind) = match terms {
            Some(terms) => (&terms.provider, terms.provider_kind.as_str()),
            None => (&choice.quote.provider, ""),
        };
        let effects = self.effects;
        effects.providers.get(name, kind).map_err(Stop::Refused)
    }

    fn last_attempt(&self, act: Act<'a>) -> u32 {
        self.state(|state| {
            let recorded = state.resources.get(&act.step.address);
            let same = recorded.filter(|recorded| recorded.generation == act.step.generation);
            same.map_or(0, |recorded| recorded.last_attempt.0)
        })
    }

    /// Tries of earlier runs in this generation.
    fn before(&self, act: Act<'a>) -> u32 {
        let before = self.before.get(&act.step.address);
        let same = before.filter(|(generation, _)| *generation == act.step.generation);
        same.map_or(0, |(_, last)| last.0)
    }

    /// Whether this lease may have another try.
    pub(super) fn tries_left(&self, act: Act<'a>, spec: &LeaseSpec) -> bool {
        self.sent(act) < spec.attempts
    }

    /// How many tries this run has made, without those that were only too soon.
    fn sent(&self, act: Act<'a>) -> u32 {
        let limited = u32::try_from(self.limited_tries(act).len()).unwrap_or(u32::MAX);
        let all = self.last_attempt(act) - self.before(act);
        all.saturating_sub(limited)
    }

    /// How many of them were machines that failed.
    fn failed(&self, act: Act<'a>) -> u32 {
        let before = self.before(act);
        self.state(|state| {
            let recorded = state.resources.get(&act.step.address);
            let recorded = recorded.filter(|recorded| recorded.generation == act.step.generation);
            let tried = recorded.into_iter().flat_map(|recorded| &recorded.tried);
            let failed = tried.filter(|(attempt, tried)| attempt.0 > before && tried.made);
            u32::try_from(failed.count()).unwrap_or(u32::MAX)
        })
    }

    /// What is tried next, and whether it is a fresh quote.
    async fn next(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        hunt: &mut Hunt<'a>,
    ) -> Result<Option<(Choice, bool)>, Stop> {
        loop {
            let tries = (self.sent(act) + hunt.gone).saturating_sub(hunt.uncounted);
            let used_up = tries >= hunt.spec.attempts;
            // All that only was not to be had is had later, perhaps.
            let may_wait = hunt.waiting.is_none() && hunt.last.class.moves_on();
            if used_up && self.refused_alike(act, lease, hunt) {
                return Ok(None);
            }
            if used_up
                && may_wait
                && self.failed(act) < hunt.spec.attempts
                && self.wait_for_offer(act, lease, hunt).await?
            {
                continue;
            }
            if used_up {
                // A ceiling is in the way, not the number of tries.
                if hunt.last.class != FailureClass::Money {
                    let more = format!(
                        "{tries} offers were tried, `attempts` allows {}; raise it, or run apply again",
                        hunt.spec.attempts
                    );
                    hunt.last.hint = Some(match hunt.last.hint.take() {
                        Some(hint) => format!("{hint}; {more}"),
                        None => more,
                    });
                }
                return Ok(None);
            }
            if let Some(choice) = self.listed(act, hunt) {
                return Ok(Some((choice, false)));
            }
            if let Some(choice) = self.requote(act, hunt).await? {
                return Ok(Some((choice, true)));
            }
            if self.refused_alike(act, lease, hunt)
                || hunt.is_full_everywhere()
                || !self.wait_for_offer(act, lease, hunt).await?
            {
                return Ok(None);
            }
        }
    }

    /// Whether all that was sent was refused with the same words, so that it is the request's fault or the key's: that ends it.
    fn refused_alike(&self, act: Act<'a>, lease: &LeaseId, hunt: &mut Hunt<'a>) -> bool {
        match hunt.alike.verdict(lease) {
            Some(cause) if self.failed(act) == 0 => {
                hunt.last = cause;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The next of the shortlist that nothing speaks against.
    fn listed(&self, act: Act<'a>, hunt: &Hunt<'a>) -> Option<Choice> {
        let own = (self.before(act), self.limited_tries(act));
        self.state(|state| {
            let avoid = hunt.avoid(state, act, &own, self.effects.clock.now());
            let avoid = avoid.beside(self.placement(state, act, hunt.spec));
            let mut left = hunt.shortlist.iter();
            left.find(|choice| !avoid.bars(&choice.quote) && !taken(state, &choice.quote))
                .cloned()
        })
    }

    fn places(&self, lease: &LeaseId, quote: &Quote) {
        let spot = Spot::of(quote);
        self.placing.borrow_mut().insert(lease.clone(), spot);
    }

    /// Where the other machines of the table are, those included that are on their way in.
    fn placement(&self, state: &State, act: Act<'a>, spec: &LeaseSpec) -> Placement {
        let Address::Lease(own) = &act.step.address else {
            return Placement::default();
        };
        let free = Placement::beside(spec, Vec::new());
        if free.is_free() {
            return free;
        }
        let sibling = |lease: &LeaseId| lease.name == own.name && lease != own;
        let stays = |address: &Address, recorded: &Recorded| {
            let planned = self.plan.changes.iter();
            let mut planned = planned.filter(|change| change.address == *address);
            planned.all(|change| match change.verdict {
                Verdict::Delete => false,
                Verdict::Create | Verdict::Update | Verdict::Replace | Verdict::Keep => {
                    recorded.generation >= change.generation
                }
            })
        };
        let mut others: Vec<Spot> = Vec::new();
        for (address, recorded) in &state.resources {
            if let Address::Lease(lease) = address
                && sibling(lease)
                && stays(address, recorded)
            {
                others.extend(recorded.spots());
            }
        }
        let placing = self.placing.borrow();
        let placing = placing.iter().filter(|(lease, _)| sibling(lease));
        others.extend(placing.map(|(_, spot)| spot.clone()));
        Placement::beside(spec, others)
    }

    /// The best of what is quoted now, under the same requirement and ceiling.
    async fn requote(&self, act: Act<'a>, hunt: &Hunt<'a>) -> Result<Option<Choice>, Stop> {
        let markets = self.markets(hunt.spec).await;
        let own = (self.before(act), self.limited_tries(act));
        Ok(self.state(|state| {
            let avoid = hunt.avoid(state, act, &own, self.effects.clock.now());
            let avoid = avoid.beside(self.placement(state, act, hunt.spec));
            let mut left = markets;
            for market in left.values_mut() {
                if let Ok(quotes) = &mut market.quotes {
                    quotes.retain(|quote| !taken(state, quote));
                }
            }
            next_offer(hunt.spec, &avoid, &left)
        }))
    }

    /// What the providers that may be asked for fresh quotes sell now.
    async fn markets(&self, spec: &LeaseSpec) -> Markets {
        let allowed = spec.rented_under();
        let allowed = allowed.filter(|terms| terms.requote == Requote::WithinCeiling);
        let mut markets: Markets = BTreeMap::new();
        for terms in allowed {
            let (name, kind) = (&terms.provider, &terms.provider_kind);
            let Ok(provider) = self.effects.providers.get(name, kind) else {
                continue;
            };
            let more = match terms.bids() {
                None => provider.search(&terms.requirement, spec.disk).await,
                Some(bidding) => {
                    let wanted = &terms.requirement;
                    provider.bids(wanted, spec.disk, bidding.bid).await
                }
            };
            let market = markets.entry(name.clone()).or_insert_with(|| Market {
                kind: kind.clone(),
                free: provider.traits().free,
                unbilled: false,
                self_destroy: false,
                restarts_empty: false,
                agent: None,
                quotes: Ok(Vec::new()),
            });
            // One answer that cannot be trusted says nothing about another one.
            if let (Ok(quotes), Ok(more)) = (&mut market.quotes, more) {
                let known: BTreeSet<QuoteId> = quotes.iter().map(|q| q.id.clone()).collect();
                quotes.extend(more.into_iter().filter(|quote| !known.contains(&quote.id)));
            }
        }
        markets
    }

    /// Pauses before the next question; false when there is nothing to wait for or the time is up.
    async fn wait_for_offer(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        hunt: &mut Hunt<'a>,
    ) -> Result<bool, Stop> {
        let fresh = hunt
            .spec
            .rented_under()
            .any(|terms| terms.requote == Requote::WithinCeiling);
        let Some(limit) = hunt.spec.wait_for_capacity.filter(|_| fresh) else {
            return Ok(false);
        };
        let now = self.effects.clock.boottime();
        if hunt.waiting.is_none() {
            // From here on it is bounded by time, but for machines that fail.
            let refused = self.sent(act).saturating_sub(self.failed(act));
            hunt.uncounted = refused + hunt.gone;
        }
        let (since, pause) = hunt.waiting.unwrap_or((now, ASK_FIRST));
        let left = limit.duration().saturating_sub(now.saturating_sub(since));
        if left.is_zero() {
            let message = format!("{lease}: nothing that fits could be had within {limit}");
            hunt.last = Cause::new(FailureClass::Capacity, message)
                .hint("raise `wait_for_capacity` or the ceiling, add an offer, or run apply again");
            return Ok(false);
        }
        self.emit(Event::Waiting {
            address: act.step.address.clone(),
            verb: act.step.verb,
            what: format!("nothing that fits can be had; asked again for {limit} at most"),
            waited: self.since(since),
        });
        // In slices, so that a gang that fails is noticed.
        let until = now + pause.min(left);
        while self.effects.clock.boottime() < until {
            let rest = until.saturating_sub(self.effects.clock.boottime());
            self.pause(rest.min(ASK_FIRST)).await?;
            self.gang_holds(lease)?;
            self.within_spend(lease)?;
            self.within_lifetimes()?;
        }
        hunt.waiting = Some((since, (pause * 2).min(ASK_LONGEST)));
        // What was sold out then may be had now.
        hunt.passed.clear();
        hunt.full.clear();
        Ok(true)
    }
}

impl<'a> Hunt<'a> {
    fn new(lease: &LeaseId, spec: &'a LeaseSpec, terms: Option<&'a LeaseTerms>) -> Self {
        let nothing = format!("{lease}: nothing that fits can be had now");
        Self {
            spec,
            shortlist: terms
                .map(|terms| terms.shortlist.as_slice())
                .unwrap_or_default(),
            passed: Vec::new(),
            full: BTreeSet::new(),
            gone: 0,
            uncounted: 0,
            waiting: None,
            limited: None,
            alike: Alike::default(),
            last: Cause::new(FailureClass::OfferGone, nothing).hint(
                "run plan and apply again; `wait_for_capacity` of the lease makes apply wait",
            ),
        }
    }

    /// Whether no account has room: no offer can be waited for then.
    fn is_full_everywhere(&self) -> bool {
        let mut sellers = self.spec.rented_under().map(|terms| &terms.provider);
        sellers.all(|seller| self.full.contains(seller))
    }

    /// Takes note that the next offer follows, and why.
    fn refused(&mut self, choice: &Choice, sent: bool, cause: Cause) -> Cause {
        self.passed.push(Tried {
            provider: choice.quote.provider.clone(),
            quote: choice.quote.id.clone(),
            made: false,
        });
        match (sent, self.waiting.is_some()) {
            (true, true) => self.uncounted += 1,
            (false, false) => self.gone += 1,
            (true, false) | (false, true) => {}
        }
        if sent {
            self.alike.refused(&choice.quote.id, &cause);
        }
        self.limited = None;
        self.last = cause.clone();
        cause
    }

    /// What this run does not take again: tries after its beginning, but for those that were only too soon. A wait forgets what
    /// was refused before it, never what failed.
    fn avoid<'s>(
        &'s self,
        state: &'s State,
        act: Act<'_>,
        (before, limited): &'s (u32, Vec<Attempt>),
        now: stageline_core::unit::Timestamp,
    ) -> Avoid<'s> {
        let recorded = state.resources.get(&act.step.address);
        let recorded = recorded.filter(|recorded| recorded.generation == act.step.generation);
        let tried = recorded.into_iter().flat_map(|r| &r.tried);
        let tried = tried.filter(|(attempt, _)| attempt.0 > *before && !limited.contains(attempt));
        let waits = self.waiting.is_some();
        let tried = tried.map(|(_, tried)| tried);
        Avoid::noted(state.bad_at(now))
            .and(tried.filter(move |tried| tried.made || !waits))
            .and(&self.passed)
            .closed(&self.full)
    }
}

/// Whether another lease of ours holds this ask, or tries to.
fn taken(state: &State, quote: &Quote) -> bool {
    // Whoever bids on an ask has it, and so has whoever rents it on demand.
    let is =
        |provider: &Name, id: &QuoteId| *provider == quote.provider && id.ask() == quote.id.ask();
    quote.supply == Supply::One
        && state.resources.values().any(|recorded| {
            let held = match &recorded.receipt {
                Some(Receipt::Lease(held)) => is(&held.provider, &held.quote),
                Some(
                    Receipt::Delivery(_)
                    | Receipt::Stage(_)
                    | Receipt::Pipeline(_)
                    | Receipt::Exposure(_),
                )
                | None => false,
            };
            let mut open = recorded.attempts.values();
            held || open.any(|open| is(&open.launch.provider, &open.launch.quote))
        })
}
