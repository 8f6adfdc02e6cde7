//! What a record does to one resource.
//!
//! A try is closed by its receipt, by a refusal, or by proof that it made nothing or is gone; nothing else closes one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::{Billed, LedgerClock, OpenAttempt, Pending, Recorded, Tried};
use super::done::Made;
use crate::id::{Attempt, Generation, LeaseId};
use crate::journal::{Launch, Verb};
use crate::resource::{Cause, LeaseReady, LeaseReceipt, Receipt, Spec};
use crate::unit::{MicroDollars, Timestamp};

/// The account of a machine that was seen at this price.
fn seen_at(
    recorded: MicroDollars,
    mut billed: Billed,
    price: Option<MicroDollars>,
    seen: Timestamp,
) -> Billed {
    if let Some(price) = price.filter(|price| *price != recorded) {
        billed.rate_changed(recorded, price, seen);
    }
    billed.seen = billed.seen.max(seen);
    billed
}

impl Recorded {
    pub(super) fn new(generation: Generation) -> Self {
        Self {
            generation,
            spec: None,
            receipt: None,
            pending: None,
            attempts: BTreeMap::new(),
            last_attempt: Attempt(0),
            tried_since: None,
            billed: None,
            made_for: None,
            tried: BTreeMap::new(),
        }
    }

    pub(super) fn give_up(
        &mut self,
        launch: &Launch,
        receipt: Box<LeaseReceipt>,
        cause: &Cause,
        at_fault: bool,
    ) {
        self.pending = None;
        let open = OpenAttempt {
            launch: launch.clone(),
            at: receipt.created_at,
            cause: Some(cause.clone()),
            counted_since: self.billed.map(|billed| billed.maybe_since),
            leaving: Some(receipt),
            billed: self.billed.take(),
        };
        self.attempts.insert(launch.attempt, open);
        if at_fault {
            self.in_vain(launch, true);
        }
    }

    fn in_vain(&mut self, launch: &Launch, made: bool) {
        let tried = Tried {
            provider: launch.provider.clone(),
            quote: launch.quote.clone(),
            made,
        };
        self.tried.insert(launch.attempt, tried);
    }

    /// `at` is the time of the record, and the same in ledger time.
    pub(super) fn start(
        &mut self,
        verb: Verb,
        launch: Option<&Launch>,
        on: Option<&LeaseId>,
        (at, counted): (Timestamp, Timestamp),
    ) {
        self.pending = Some(Box::new(Pending {
            verb,
            on: on.cloned(),
            at,
            cause: None,
        }));
        if let Some(launch) = launch {
            self.last_attempt = self.last_attempt.max(launch.attempt);
            self.tried_since.get_or_insert(counted);
            let open = OpenAttempt {
                launch: launch.clone(),
                at,
                cause: None,
                counted_since: Some(counted),
                leaving: None,
                billed: None,
            };
            self.attempts.insert(launch.attempt, open);
        }
    }

    /// For a lease, its own try is closed by the receipt.
    pub(super) fn finish(
        &mut self,
        spec: Option<Cow<'_, Spec>>,
        made: Option<Made<'_>>,
        now: Timestamp,
        clock: &LedgerClock,
    ) {
        self.pending = None;
        if let Some(spec) = spec {
            self.spec = Some(spec.into_owned());
        }
        match made {
            None => {}
            Some(Made::Receipt(receipt)) => {
                if let Receipt::Lease(lease) = &*receipt {
                    let (_, attempt) = lease.request_key.try_of();
                    let open = self.attempts.remove(&attempt);
                    self.keep_account(lease, open.as_ref(), now, clock);
                }
                self.receipt = Some(receipt.into_owned());
            }
            Some(Made::Ready(ready)) => self.become_ready(ready, now),
        }
    }

    /// The machine in the receipt is ready: its account goes on.
    fn become_ready(&mut self, ready: LeaseReady, now: Timestamp) {
        let Some((_, mut billed)) = self.account() else {
            return;
        };
        billed.seen = billed.seen.max(now);
        if let Some(Receipt::Lease(receipt)) = &mut self.receipt {
            billed.runs(receipt.price_per_hour, now);
            receipt.ready = Some(ready);
            let (_, attempt) = receipt.request_key.try_of();
            self.attempts.remove(&attempt);
        }
        self.billed = Some(billed);
    }

    /// The account of the machine in a new receipt: opened, or gone on with, perhaps at another rate.
    fn keep_account(
        &mut self,
        receipt: &LeaseReceipt,
        open: Option<&OpenAttempt>,
        now: Timestamp,
        clock: &LedgerClock,
    ) {
        let known = self
            .account()
            .filter(|(before, _)| before.machine == receipt.machine);
        let mut billed = match known {
            Some((before, mut billed)) => {
                if before.price_per_hour != receipt.price_per_hour {
                    billed.rate_changed(before.price_per_hour, receipt.price_per_hour, now);
                }
                billed
            }
            None => Billed {
                booting: open.is_some_and(|open| open.launch.boots_free),
                ..Billed::of(receipt, open.and_then(|open| open.counted_since), clock)
            },
        };
        billed.seen = billed.seen.max(now);
        if receipt.ready.is_some() {
            billed.runs(receipt.price_per_hour, now);
        }
        self.billed = Some(billed);
    }

    /// The machine in the receipt was there, perhaps at another price.
    pub(super) fn was_seen(&mut self, price: Option<MicroDollars>, seen: Timestamp) {
        let Some((receipt, billed)) = self.account() else {
            return;
        };
        self.billed = Some(seen_at(receipt.price_per_hour, billed, price, seen));
        if let (Some(price), Some(Receipt::Lease(receipt))) = (price, &mut self.receipt) {
            receipt.price_per_hour = price;
        }
    }

    /// The machine of an open try was there. One that nobody holds counts at its ceiling, or at its price if that is more.
    pub(super) fn try_was_seen(
        &mut self,
        attempt: Attempt,
        price: Option<MicroDollars>,
        seen: Timestamp,
    ) {
        let Some(open) = self.attempts.get_mut(&attempt) else {
            return;
        };
        if let (Some(receipt), Some(billed)) = (&mut open.leaving, open.billed) {
            open.billed = Some(seen_at(receipt.price_per_hour, billed, price, seen));
            receipt.price_per_hour = price.unwrap_or(receipt.price_per_hour);
        }
        let reserved = &mut open.launch.reservation;
        *reserved = price.map_or(*reserved, |price| price.max(*reserved));
    }

    /// A refused try made nothing and is closed; any other refused step leaves a resource that is not as it should be.
    pub(super) fn refuse(&mut self, attempt: Option<Attempt>, cause: &Cause) {
        match attempt {
            Some(attempt) => {
                if let Some(open) = self.absent(attempt) {
                    self.in_vain(&open.launch, false);
                }
            }
            None => self.doubt(None, cause),
        }
    }

    /// The try is closed. What is awaited beside it goes on being awaited.
    pub(super) fn absent(&mut self, attempt: Attempt) -> Option<OpenAttempt> {
        let open = self.attempts.remove(&attempt);
        let awaits = self.receipt.is_some()
            && self
                .pending
                .as_ref()
                .is_some_and(|pending| pending.verb == Verb::Await);
        if self.attempts.is_empty() && !awaits {
            self.pending = None;
        }
        if self.attempts.is_empty() && self.receipt.is_none() {
            // What is made from now on is made under this name.
            self.made_for = None;
        }
        open
    }

    pub(super) fn doubt(&mut self, attempt: Option<Attempt>, cause: &Cause) {
        if let Some(pending) = &mut self.pending {
            pending.cause = Some(cause.clone());
        }
        if let Some(open) = attempt.and_then(|attempt| self.attempts.get_mut(&attempt)) {
            open.cause = Some(cause.clone());
        }
    }
}
