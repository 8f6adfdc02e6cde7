//! The verdict for a lease: the one resource that costs money.
//!
//! A machine is given up only for a reason that was seen: a trusted listing without it, a provider's word that it is
//! broken, measured facts or a price that no longer fit. Doubt is resolved by the step itself, never by guessing.

use super::Verdict;
use super::disk::{other_disk, too_small};
use super::draft::{Call, Drafting, Fate, lease_receipt, measured};
use super::interrupted::{dead, taken_away};
use super::market::unfit;
use crate::id::{Address, LeaseId, RequestKey};
use crate::journal::Verb;
use crate::offer::{Facts, Gpu, count};
use crate::resource::{Contact, LeaseReceipt, LeaseSpec, Spec};
use crate::state::{Limit, ObservedLease, Recorded, Seen, Stray};
use crate::topology::Mount;
use crate::unit::{MicroDollars, Timestamp};

/// Rents a machine and waits for its agent.
const MAKE: &[Verb] = &[Verb::Acquire, Verb::Await];

impl<'a> Drafting<'a> {
    pub(super) fn lease(
        &mut self,
        id: &'a LeaseId,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        let call = match (desired, recorded) {
            (Some(Spec::Lease(spec)), Some(recorded)) => self.both(id, spec, recorded),
            (Some(_), None) => self.missing(id),
            (_, recorded) => self.surplus(id, recorded),
        };
        let call = self.guard(id, desired, recorded, call);
        if let Some(Spec::Lease(spec)) = desired {
            self.told_on_demand(id, spec, call.verdict);
        }
        let fate = match call.verdict {
            Verdict::Create | Verdict::Replace => Fate::New,
            Verdict::Update | Verdict::Keep => Fate::Stays,
            Verdict::Delete => Fate::Ends,
        };
        self.fates.insert(id, fate);
        call
    }

    fn missing(&self, id: &LeaseId) -> Call {
        let tried = self
            .input
            .recorded
            .resources
            .get(&Address::Lease(id.clone()))
            .is_some_and(|recorded| recorded.last_attempt.0 > 0);
        if let Some(lapse) = self.input.recorded.lapse(id) {
            let how = match lapse.limit {
                Limit::Interrupt if !lapse.ends() => self.how_again(id),
                Limit::Interrupt | Limit::Idle | Limit::Lifetime | Limit::Spend => "again",
            };
            let reason = format!("rented {how}; {lapse}");
            return Call::new(Verdict::Create, reason).build(MAKE);
        }
        let reason = if tried {
            "declared; the last tries to rent it were refused"
        } else if self
            .input
            .recorded
            .generations
            .contains_key(&Address::Lease(id.clone()))
        {
            "declared, and no machine is recorded any more"
        } else {
            "declared, not there yet"
        };
        Call::new(Verdict::Create, reason).build(MAKE)
    }

    /// How a lease is rented whose machine was taken away.
    fn how_again(&self, id: &LeaseId) -> &'static str {
        let desired = self.input.desired.specs.get(&Address::Lease(id.clone()));
        match desired {
            Some(Spec::Lease(spec)) if on_demand(spec).is_some() => "on demand",
            Some(_) | None => "again",
        }
    }

    /// That a lease is rented on demand although it asks for machines that are bid for.
    fn told_on_demand(&mut self, id: &LeaseId, spec: &LeaseSpec, verdict: Verdict) {
        let rents = match verdict {
            Verdict::Create | Verdict::Replace | Verdict::Update | Verdict::Keep => true,
            Verdict::Delete => false,
        };
        if let Some(since) = on_demand(spec).filter(|_| rents) {
            self.notes.push(format!(
                "{id}: on demand since its spot machine was taken away at {since:.0}; `--replace {id}` bids for one again"
            ));
        }
    }

    fn surplus(&mut self, id: &LeaseId, recorded: Option<&Recorded>) -> Call {
        if let Some(receipt) = recorded.and_then(lease_receipt) {
            let _ = self.lost(id, receipt);
        }
        let mut reason = match self.input.options.mode {
            super::Mode::Destroy => String::from("destroy ends everything"),
            super::Mode::Apply => String::from("no longer declared"),
        };
        let ends = recorded
            .map(Recorded::committed_per_hour)
            .unwrap_or_default();
        if ends > MicroDollars::ZERO {
            reason.push_str(&format!("; {ends}/h ends"));
        }
        if recorded.is_some_and(Recorded::is_unresolved) {
            let bills = recorded.is_some_and(Recorded::may_bill);
            let bills = if bills { " and may bill" } else { "" };
            reason.push_str(&format!(
                "; a try is unresolved{bills}: it is looked for first"
            ));
        }
        Call::new(Verdict::Delete, reason).teardown(Verb::Release)
    }

    fn both(&mut self, id: &'a LeaseId, spec: &LeaseSpec, recorded: &Recorded) -> Call {
        let again = |reason: String| {
            Call::new(Verdict::Replace, reason)
                .teardown(Verb::Release)
                .build(MAKE)
        };
        let releasing = recorded
            .pending
            .as_ref()
            .is_some_and(|pending| pending.verb == Verb::Release);
        if releasing {
            return again("its release was begun and is not proven yet".to_owned());
        }
        let Some(receipt) = lease_receipt(recorded) else {
            return unresolved(recorded);
        };
        if let Some(why) = self.lost(id, receipt) {
            return again(why);
        }
        if self.replace.contains(&Address::Lease(id.clone())) {
            return again("asked for by --replace".to_owned());
        }
        if let Some(why) = self.misfits(id, spec, receipt) {
            return again(why);
        }
        if let Some(why) = self.displaced.get(id) {
            return again(format!("its machine no longer fits: {why}"));
        }
        if let Some(why) = made_otherwise(spec, recorded, receipt) {
            return again(why);
        }
        if let Some(what) = too_small(spec, receipt) {
            self.notes.push(format!("{id}: {what}"));
        }
        let moved = self.input.observed.moved(id);
        let call = settle(spec, recorded, receipt, self.price(id, receipt), moved);
        match self.extra(id, recorded) {
            Some(extra) if call.build.is_empty() => {
                let (what, is) = match extra.price_per_hour.0 {
                    // A free machine, or what is no machine.
                    0 => ("", "there too"),
                    _ => ("machine ", "up too and bills"),
                };
                let reason = format!(
                    "{what}{}, made by an earlier try of it, is {is}: it is released",
                    extra.machine
                );
                Call::new(Verdict::Update, reason).build(&[Verb::Await])
            }
            Some(_) | None => call,
        }
    }

    /// A machine that another try of this lease made and that nobody knows: a create that took effect long after it was given
    /// up. Its name proves whose it is.
    fn extra(&self, id: &LeaseId, recorded: &Recorded) -> Option<&Stray> {
        let lineage = self.input.recorded.genesis.as_ref()?.lineage;
        let address = Address::Lease(recorded.made_for.as_ref().unwrap_or(id).clone());
        let prefix = RequestKey::prefix(&lineage, &address);
        let mut strays = self.input.observed.strays.iter();
        strays.find(|stray| {
            stray.key.as_str().starts_with(&prefix) && stray.key.try_of().0 <= recorded.generation
        })
    }

    /// Why the machine must be given up, by what was seen.
    fn lost(&mut self, id: &LeaseId, receipt: &LeaseReceipt) -> Option<String> {
        let address = Address::Lease(id.clone());
        let machine = &receipt.machine;
        let observed = self.input.observed;
        let why = match observed.leases.get(id) {
            Some(Seen::Gone) if self.is_blind(receipt) => {
                self.notes.push(format!(
                    "{id}: provider `{}` cannot be seen, so its machine {machine} is taken to be there",
                    receipt.provider
                ));
                None
            }
            Some(Seen::Gone) => Some(format!(
                "its machine {machine} is gone: the complete listing of provider `{}` does not have it",
                receipt.provider
            )),
            Some(Seen::There(seen)) => {
                if let Some(why) = taken_away(seen) {
                    Some(format!("its spot machine {machine} was taken away: {why}"))
                } else if let Some(dead) = dead(seen) {
                    Some(format!("its machine {machine} is dead: {dead}"))
                } else {
                    if seen.price_per_hour != receipt.price_per_hour {
                        let what = format!(
                            "costs {}/h now, {}/h when it was rented",
                            seen.price_per_hour, receipt.price_per_hour
                        );
                        self.drifted(&address, what);
                    }
                    if let (Some(now), Some(ready)) = (&seen.moved, &receipt.ready) {
                        self.drifted(&address, address_moved(&ready.contact, now));
                    }
                    self.shown(&address, seen, receipt);
                    None
                }
            }
            Some(Seen::Unknown(cause)) => {
                let fate = match self.input.options.mode {
                    super::Mode::Destroy => "it is ended all the same",
                    super::Mode::Apply => "it is kept",
                };
                self.notes.push(format!(
                    "{id}: nobody could tell whether its machine {machine} is there ({}); {fate}",
                    cause.message
                ));
                None
            }
            None => None,
        };
        let why = why.or_else(|| self.deaf(id, receipt));
        if let Some(why) = &why {
            self.drifted(&address, why.clone());
        }
        why
    }

    /// What differs at a machine that is there, and is shown. Only GPUs that are missing may make another machine needed.
    fn shown(&mut self, address: &Address, seen: &ObservedLease, receipt: &LeaseReceipt) {
        if seen.renamed {
            let what = format!(
                "was renamed at its provider and is known by its id {} alone; name it {} again, so that it is found should \
                 the state be lost",
                receipt.machine, receipt.request_key
            );
            self.drifted(address, what);
        }
        for twin in &seen.twins {
            let what = format!(
                "is not alone: machine {twin} carries its name too; `stageline orphans` shows it, `stageline orphans \
                 --release {twin}` ends it"
            );
            self.drifted(address, what);
        }
        if let (Address::Lease(id), Some(was)) = (address, measured(receipt))
            && let Some(now) = self.other_gpus(id, receipt)
        {
            let (now, was) = (count(&now), count(&was.gpus));
            self.drifted(
                address,
                format!("has {now} now, {was} when it became ready"),
            );
        }
    }

    /// The GPUs that a machine has now, when their number is not the one that was measured: as its agent finds, else as its
    /// provider says.
    fn other_gpus(&self, id: &LeaseId, receipt: &LeaseReceipt) -> Option<Vec<Gpu>> {
        let was = &measured(receipt)?.gpus;
        let observed = self.input.observed;
        let now = match (observed.agents.get(id), observed.leases.get(id)) {
            (Some(Seen::There(agent)), _) => &agent.gpus,
            (_, Some(Seen::There(seen))) if !seen.gpus.is_empty() => &seen.gpus,
            (_, _) => return None,
        };
        (now.len() != was.len()).then(|| now.clone())
    }

    fn deaf(&mut self, id: &LeaseId, receipt: &LeaseReceipt) -> Option<String> {
        match self.input.observed.agents.get(id) {
            Some(Seen::Gone) => Some(format!(
                "the agent on its machine {} is gone",
                receipt.machine
            )),
            Some(Seen::Unknown(cause)) => {
                self.notes.push(format!(
                    "{id}: its agent did not answer ({}); what it has is taken as recorded. If it stays silent, \
                     `stageline apply --replace {id}` rents another machine",
                    cause.message
                ));
                None
            }
            Some(Seen::There(_)) | None => None,
        }
    }

    pub(super) fn is_blind(&self, receipt: &LeaseReceipt) -> bool {
        let market = self.input.markets.get(&receipt.provider);
        market.is_some_and(|market| market.quotes.is_err())
    }

    /// Why a machine that is there is not what is declared any more.
    fn misfits(&self, id: &LeaseId, spec: &LeaseSpec, receipt: &LeaseReceipt) -> Option<String> {
        let ours = |terms: &&crate::resource::Terms| {
            terms.provider == receipt.provider && terms.provider_kind == receipt.provider_kind
        };
        let price = self.price(id, receipt);
        let now = self.other_gpus(id, receipt).and_then(|gpus| {
            let facts = measured(receipt)?.clone();
            Some(Facts { gpus, ..facts })
        });
        let facts = now.as_ref().or_else(|| measured(receipt));
        let mut closest: Option<(bool, Vec<String>)> = None;
        for terms in spec.terms.iter().filter(ours) {
            let why = unfit(terms, spec.memory, facts, price);
            if why.is_empty() {
                return None;
            }
            let same = terms.offer == receipt.offer;
            if closest.as_ref().is_none_or(|(was, _)| same && !was) {
                closest = Some((same, why));
            }
        }
        Some(match closest {
            Some((_, why)) => format!("its machine no longer fits: {}", why.join(", ")),
            None => format!(
                "its provider `{}` ({}) is no longer among its offers",
                receipt.provider, receipt.provider_kind
            ),
        })
    }

    /// What a machine costs now, as far as it was seen.
    fn price(&self, id: &LeaseId, receipt: &LeaseReceipt) -> MicroDollars {
        match self.input.observed.leases.get(id) {
            Some(Seen::There(seen)) => seen.price_per_hour,
            Some(Seen::Gone | Seen::Unknown(_)) | None => receipt.price_per_hour,
        }
    }
}

/// What a machine was made with, and cannot be changed on it.
fn made_otherwise(spec: &LeaseSpec, recorded: &Recorded, receipt: &LeaseReceipt) -> Option<String> {
    let Some(Spec::Lease(before)) = &recorded.spec else {
        return None;
    };
    if let Some(why) = other_disk(spec, before, receipt) {
        return Some(why);
    }
    let ran = |spec: &LeaseSpec| spec.setup.as_ref().map(|setup| setup.fingerprint());
    if ran(before) != ran(spec) {
        let why = match (&before.setup, &spec.setup) {
            (None, _) => "it has a setup now, which a machine runs before anything else",
            (Some(_), None) => "it has no setup any more, and its machine ran one",
            (Some(_), Some(_)) => "its setup is another one now, which a machine runs once",
        };
        return Some(why.to_owned());
    }
    if let Some(why) = bought_otherwise(spec, before, receipt) {
        return Some(why);
    }
    if before.mounts != spec.mounts {
        let (was, is) = (all(&before.mounts), all(&spec.mounts));
        return Some(format!(
            "volumes are mounted when a machine is made: {was} then, {is} now"
        ));
    }
    let taken = |spec: &LeaseSpec| {
        let terms = spec.terms.iter().find(|terms| terms.offer == receipt.offer);
        terms.map(|terms| {
            (
                terms.image.clone(),
                terms.agent.clone(),
                terms.registry.clone(),
            )
        })
    };
    match (taken(before), taken(spec)) {
        (Some((image, ..)), Some((other, ..))) if image != other => {
            let text = |image: Option<String>| image.unwrap_or_else(|| "the plain one".to_owned());
            Some(format!(
                "its image was {}, now {}",
                text(image),
                text(other)
            ))
        }
        (Some((_, agent, _)), Some((_, other, _))) if agent != other => {
            Some("its agent comes another way now".to_owned())
        }
        (Some((.., login)), Some((.., other))) if login != other => {
            Some("its image is pulled by another login now".to_owned())
        }
        (_, _) => None,
    }
}

/// Whether a machine was bid for, and for how much, cannot be changed on it.
fn bought_otherwise(
    spec: &LeaseSpec,
    before: &LeaseSpec,
    receipt: &LeaseReceipt,
) -> Option<String> {
    let terms = |spec: &LeaseSpec| {
        let terms = spec.terms.iter().find(|terms| terms.offer == receipt.offer);
        terms.map(|terms| terms.bids().map(|bidding| bidding.bid))
    };
    let text = |bid: Option<Option<MicroDollars>>| match bid {
        None => "rented on demand".to_owned(),
        Some(None) => "bid for at the least that is taken".to_owned(),
        Some(Some(bid)) => format!("bid for at {bid}/h"),
    };
    let (was, is) = (terms(before)?, terms(spec)?);
    (was != is).then(|| format!("its machine was {}, it is to be {}", text(was), text(is)))
}

/// Mounts in few words.
fn all(mounts: &[Mount]) -> String {
    let each: Vec<String> = mounts
        .iter()
        .map(|mount| format!("{} at {}", mount.volume, mount.at))
        .collect();
    match each.is_empty() {
        true => "none".to_owned(),
        false => each.join(", "),
    }
}

/// A machine may be there that nobody has the id of. The acquire step looks for it before it does anything else.
fn unresolved(recorded: &Recorded) -> Call {
    let last = recorded.attempts.iter().next_back();
    let leaving = last.and_then(|(_, open)| open.leaving.as_ref());
    if let Some(leaving) = leaving {
        let reason = format!(
            "its machine {} failed and is being released; another one is rented",
            leaving.machine
        );
        return Call {
            goes_on: true,
            ..Call::new(Verdict::Create, reason).build(MAKE)
        };
    }
    let reason = match last {
        Some((attempt, open)) => format!(
            "{}: try {attempt} at provider `{}` has no answer; it is looked for before anything is rented",
            recorded.unresolved(),
            open.launch.provider
        ),
        None => "its rental was begun and not finished".to_owned(),
    };
    Call {
        goes_on: true,
        ..Call::new(Verdict::Create, reason).build(MAKE)
    }
}

/// A machine that is kept: what is still to be done about it.
fn settle(
    spec: &LeaseSpec,
    recorded: &Recorded,
    receipt: &LeaseReceipt,
    price: MicroDollars,
    moved: Option<&Contact>,
) -> Call {
    let ready = receipt.ready.is_some();
    if recorded.is_unresolved() {
        let reason = "an earlier try may still appear and bill: it is looked for";
        let build: &[Verb] = if ready { &[Verb::Acquire] } else { MAKE };
        return Call::new(Verdict::Update, reason).build(build);
    }
    let pending = recorded.pending.as_ref().map(|pending| pending.verb);
    if !ready {
        // Should it never be, the next offer follows.
        return Call::new(
            Verdict::Update,
            "was not ready yet: it is waited for, and should it fail, the next offer follows",
        )
        .build(MAKE);
    }
    if pending == Some(Verb::Await) {
        return Call::new(Verdict::Update, "was not ready yet").build(&[Verb::Await]);
    }
    if let Some(reason) = otherwise(receipt, price, moved) {
        return Call::new(Verdict::Update, reason).build(&[Verb::Record]);
    }
    let limits = |spec: &LeaseSpec| (spec.idle_timeout, spec.max_lifetime, spec.protect);
    let follows = |spec: &LeaseSpec| {
        let mut terms = spec.terms.iter();
        terms.find(|terms| terms.offer == receipt.offer)?.spot
    };
    let changed = match &recorded.spec {
        Some(Spec::Lease(before)) => {
            if limits(before) == limits(spec) && follows(before) != follows(spec) {
                let reason = "what follows when it is taken away changed";
                return Call::new(Verdict::Update, reason).build(&[Verb::Record]);
            }
            limits(before) != limits(spec)
        }
        Some(Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_)) | None => {
            true
        }
    };
    if changed || pending.is_some() {
        return Call::new(Verdict::Update, "its limits changed").build(&[Verb::Record]);
    }
    Call::new(Verdict::Keep, "as declared")
}

/// Since when it is rented on demand although it asks for machines that are bid for.
fn on_demand(spec: &LeaseSpec) -> Option<Timestamp> {
    spec.terms.iter().find_map(|terms| terms.on_demand_since)
}

/// The reason of a step that only records what a machine costs now, and where its agent is reached; none where both are as recorded.
pub(super) fn otherwise(
    receipt: &LeaseReceipt,
    price: MicroDollars,
    moved: Option<&Contact>,
) -> Option<String> {
    let before = receipt.price_per_hour;
    let price = (price != before)
        .then(|| format!("its price is recorded: {price}/h now, {before}/h before"));
    let contact = moved.zip(receipt.ready.as_ref()).map(|(now, ready)| {
        let (now, before) = (now.addresses(), ready.contact.addresses());
        format!("its address is recorded: {now} now, {before} before")
    });
    let both: Vec<String> = price.into_iter().chain(contact).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

fn address_moved(was: &Contact, is: &Contact) -> String {
    format!(
        "its address changed from {} to {}",
        was.addresses(),
        is.addresses()
    )
}
