//! The transition function: a state and a record to the next state.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Billed, CONSUMED_MAX, Consumed, Disowned, ENDED_MAX, EndedLease, Genesis, LedgerClock,
    OpenAttempt, Pending, Recorded, Run, State,
};
use crate::id::{Address, Attempt, Epoch, Generation, JournalNumber, LeaseId};
use crate::journal::{Entry, Launch, Record, Verb};
use crate::resource::{Cause, LeaseReceipt, Receipt, Spec};
use crate::unit::Timestamp;

/// Why an entry cannot follow the state it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// An entry of a run that another run has fenced.
    #[error("entry {n} belongs to run {found}, but run {current} has begun since")]
    ClosedEpoch {
        /// The entry.
        n: JournalNumber,
        /// Its run.
        found: Epoch,
        /// The run that counts.
        current: Epoch,
    },
    /// A record that makes no sense here.
    #[error("entry {n}: {what}")]
    Impossible {
        /// The entry.
        n: JournalNumber,
        /// What is wrong.
        what: String,
    },
}

impl State {
    /// The state after one more entry.
    ///
    /// # Errors
    /// [`FoldError`] when the entry belongs to a run that is over, or cannot follow. The state is then unchanged in
    /// everything that earlier entries said.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), FoldError> {
        let begins = entry
            .records
            .iter()
            .any(|record| matches!(record, Record::Begin { .. }));
        let current = self.run.as_ref().map_or(Epoch(0), |run| run.epoch);
        let expected = if begins { Epoch(entry.n.0) } else { current };
        if entry.epoch != expected {
            return Err(FoldError::ClosedEpoch {
                n: entry.n,
                found: entry.epoch,
                current: expected,
            });
        }
        entry
            .records
            .iter()
            .try_for_each(|record| self.apply_record(entry.n, record))
    }

    pub(super) fn apply_record(
        &mut self,
        n: JournalNumber,
        record: &Record,
    ) -> Result<(), FoldError> {
        let impossible = |what: &str| FoldError::Impossible {
            n,
            what: what.to_owned(),
        };
        match record {
            Record::Genesis {
                lineage,
                operator,
                topology,
                at: _,
            } => {
                if self.genesis.is_some() {
                    return Err(impossible("a second first record"));
                }
                self.genesis = Some(Genesis {
                    lineage: *lineage,
                    operator: *operator,
                    topology: topology.clone(),
                });
                Ok(())
            }
            Record::Begin {
                command,
                plan,
                by,
                at,
                boot,
            } => {
                self.clock.begin(*at, boot.as_ref());
                self.begin(Run {
                    epoch: Epoch(n.0),
                    command: command.clone(),
                    plan: *plan,
                    by: by.clone(),
                    at: *at,
                    open: true,
                    steps_done: BTreeSet::new(),
                });
                Ok(())
            }
            Record::End { finished, at: _ } => {
                self.end(*finished);
                Ok(())
            }
            Record::Closed { to, at: _ } => {
                self.closed = Some(to.clone());
                Ok(())
            }
            Record::Opened { topology, .. } => {
                self.closed = None;
                if let Some(genesis) = &mut self.genesis {
                    genesis.topology = topology.clone();
                }
                Ok(())
            }
            Record::Started { .. }
            | Record::Done { .. }
            | Record::DoneBriefly(_)
            | Record::Refused { .. }
            | Record::InDoubt { .. }
            | Record::Absent { .. }
            | Record::ExtraReleased { .. }
            | Record::Vanished { .. }
            | Record::Seen { .. }
            | Record::Edited { .. } => self.apply_news(record).map_err(impossible),
        }
    }

    /// News of one resource.
    fn apply_news(&mut self, record: &Record) -> Result<(), &'static str> {
        match record {
            Record::Genesis { .. }
            | Record::Begin { .. }
            | Record::Closed { .. }
            | Record::Opened { .. }
            | Record::End { .. } => {}
            Record::Started { .. } => self.started(record)?,
            Record::Done { .. } => self.done(record)?,
            Record::DoneBriefly(brief) => {
                let whole = brief.whole(|address| self.resources.get(address))?;
                self.done(&whole)?;
            }
            Record::Refused {
                address,
                generation,
                attempt,
                cause,
                ..
            } => self.with(address, *generation, |recorded| {
                recorded.refuse(*attempt, cause);
            }),
            Record::InDoubt {
                address,
                generation,
                attempt,
                cause,
                ..
            } => self.with(address, *generation, |recorded| {
                recorded.doubt(*attempt, cause);
            }),
            Record::Absent {
                address,
                generation,
                attempt,
                ..
            } => self.with(address, *generation, |recorded| recorded.absent(*attempt)),
            Record::ExtraReleased {
                address,
                machine,
                at,
            } => {
                self.disowned.remove(machine);
                self.extra(address, *at);
            }
            Record::Seen {
                address,
                generation,
                at,
            } => {
                let seen = self.clock.time_of(*at);
                self.with(address, *generation, |recorded| recorded.was_seen(seen));
            }
            Record::Edited {
                address,
                recorded,
                moved_to,
                why,
                at,
            } => self.edit(address, recorded.as_deref(), moved_to.as_ref(), *at, why),
            Record::Vanished {
                address,
                generation,
                why,
                at,
            } => self.close(address, *generation, *at, why),
        }
        Ok(())
    }

    /// A machine beyond the one that is kept was billed, too.
    fn extra(&mut self, address: &Address, at: Timestamp) {
        let now = self.clock.tick(at);
        let recorded = self.resources.get(address);
        if let (Address::Lease(lease), Some(recorded)) = (address, recorded) {
            let extra = recorded.extra(now);
            self.charge(lease, extra);
        }
    }

    fn started(&mut self, record: &Record) -> Result<(), &'static str> {
        let Record::Started {
            address,
            generation,
            verb,
            launch,
            on,
            at,
        } = record
        else {
            return Ok(());
        };
        let counted = self.clock.tick(*at);
        let recorded = self.open(address, *generation)?;
        recorded.start(*verb, launch.as_ref(), on.as_ref(), (*at, counted));
        Ok(())
    }

    fn done(&mut self, record: &Record) -> Result<(), &'static str> {
        let Record::Done {
            address,
            generation,
            verb,
            step,
            spec,
            receipt,
            at,
        } = record
        else {
            return Ok(());
        };
        if let (Some(step), Some(run)) = (step, &mut self.run) {
            run.steps_done.insert(*step);
        }
        match verb {
            Verb::Release | Verb::Forget | Verb::Stop | Verb::Unexpose => {
                self.close(address, *generation, *at, "released");
            }
            Verb::Acquire
            | Verb::Await
            | Verb::Record
            | Verb::Deliver
            | Verb::Start
            | Verb::Check
            | Verb::Expose => {
                let now = self.clock.tick(*at);
                let clock = self.clock.clone();
                let recorded = self.open(address, *generation)?;
                recorded.finish(spec.as_deref(), receipt.as_deref(), now, &clock);
            }
        }
        Ok(())
    }

    /// Surgery. A machine that is taken out is over for the ledger: what it costs from now on nobody counts.
    fn edit(
        &mut self,
        address: &Address,
        recorded: Option<&Recorded>,
        moved_to: Option<&Address>,
        at: Timestamp,
        why: &str,
    ) {
        match (recorded, moved_to) {
            (Some(recorded), _) => {
                let last = self.generations.entry(address.clone()).or_default();
                *last = (*last).max(recorded.generation);
                if let Some(Receipt::Lease(held)) = &recorded.receipt {
                    self.disowned.remove(&held.machine);
                }
                self.resources.insert(address.clone(), recorded.clone());
            }
            (None, Some(to)) => {
                self.resources.remove(address);
                if let (Address::Lease(from), Address::Lease(to)) = (address, to)
                    && let Some(spent) = self.spent.remove(from)
                {
                    self.charge(to, spent);
                }
            }
            (None, None) => {
                self.disown(address, at);
                if let Some(generation) = self.resources.get(address).map(|r| r.generation) {
                    self.close(address, generation, at, why);
                }
            }
        }
    }

    /// Remembers a machine that is given up, so that nobody takes it for an extra of its old address.
    fn disown(&mut self, address: &Address, at: Timestamp) {
        let recorded = self.resources.get(address);
        let receipt = recorded.and_then(|recorded| recorded.receipt.as_ref());
        if let (Address::Lease(lease), Some(Receipt::Lease(held))) = (address, receipt) {
            let disowned = Disowned {
                lease: lease.clone(),
                provider: held.provider.clone(),
                provider_kind: held.provider_kind.clone(),
                price_per_hour: held.price_per_hour,
                at,
            };
            self.disowned.insert(held.machine.clone(), disowned);
        }
    }

    fn begin(&mut self, mut run: Run) {
        if let Some(before) = &mut self.run
            && run.plan.is_some()
            && before.plan == run.plan
        {
            run.steps_done = std::mem::take(&mut before.steps_done);
        }
        if let Some(plan) = run.plan {
            self.consumed.insert(
                plan,
                Consumed {
                    epoch: run.epoch,
                    finished: false,
                },
            );
            while self.consumed.len() > CONSUMED_MAX {
                let oldest = self
                    .consumed
                    .iter()
                    .min_by_key(|(_, consumed)| consumed.epoch);
                let Some(oldest) = oldest.map(|(plan, _)| *plan) else {
                    break;
                };
                self.consumed.remove(&oldest);
            }
        }
        self.run = Some(run);
    }

    fn end(&mut self, finished: bool) {
        let Some(run) = &mut self.run else { return };
        run.open = false;
        if let Some(consumed) = run.plan.and_then(|plan| self.consumed.get_mut(&plan)) {
            consumed.finished = finished;
        }
    }

    /// The record of this generation, made when there is none. A lower generation must be gone by then: else a machine
    /// would be forgotten.
    fn open(
        &mut self,
        address: &Address,
        generation: Generation,
    ) -> Result<&mut Recorded, &'static str> {
        let last = self.generations.entry(address.clone()).or_default();
        *last = (*last).max(generation);
        let recorded = self
            .resources
            .entry(address.clone())
            .or_insert_with(|| Recorded::new(generation));
        if recorded.generation != generation {
            if recorded.exists() {
                return Err("a new generation begins while the one before it exists");
            }
            *recorded = Recorded::new(generation);
        }
        Ok(recorded)
    }

    /// Changes the record of exactly this generation; news of another one come too late to matter.
    fn with(
        &mut self,
        address: &Address,
        generation: Generation,
        change: impl FnOnce(&mut Recorded),
    ) {
        if let Some(recorded) = self.resources.get_mut(address)
            && recorded.generation == generation
        {
            change(recorded);
        }
    }

    fn close(&mut self, address: &Address, generation: Generation, at: Timestamp, why: &str) {
        let Some(recorded) = self.resources.get(address) else {
            return;
        };
        if recorded.generation != generation {
            return;
        }
        let recorded = self
            .resources
            .remove(address)
            .expect("it was looked up just now");
        let Address::Lease(lease) = address else {
            return;
        };
        let now = self.clock.tick(at);
        let spent = recorded.spent(now, false);
        self.charge(lease, spent);
        if let Some(Receipt::Lease(receipt)) = recorded.receipt {
            self.ended.push(EndedLease {
                lease: lease.clone(),
                generation,
                receipt: *receipt,
                ended_at: at,
                why: why.to_owned(),
                spent: Some(spent),
            });
            let surplus = self.ended.len().saturating_sub(ENDED_MAX);
            self.ended.drain(..surplus);
        }
    }
}

impl Recorded {
    fn new(generation: Generation) -> Self {
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
        }
    }

    /// `at` is the time of the record, and the same in ledger time.
    fn start(
        &mut self,
        verb: Verb,
        launch: Option<&Launch>,
        on: Option<&LeaseId>,
        (at, counted): (Timestamp, Timestamp),
    ) {
        self.pending = Some(Pending {
            verb,
            on: on.cloned(),
            at,
            cause: None,
        });
        if let Some(launch) = launch {
            self.last_attempt = self.last_attempt.max(launch.attempt);
            self.tried_since.get_or_insert(counted);
            let open = OpenAttempt {
                launch: launch.clone(),
                at,
                cause: None,
                counted_since: Some(counted),
            };
            self.attempts.insert(launch.attempt, open);
        }
    }

    /// For a lease, its own try is closed by the receipt.
    fn finish(
        &mut self,
        spec: Option<&Spec>,
        receipt: Option<&Receipt>,
        now: Timestamp,
        clock: &LedgerClock,
    ) {
        self.pending = None;
        if let Some(spec) = spec {
            self.spec = Some(spec.clone());
        }
        if let Some(receipt) = receipt {
            if let Receipt::Lease(lease) = receipt {
                let (_, attempt) = lease.request_key.try_of();
                let open = self.attempts.remove(&attempt);
                self.keep_account(lease, open.as_ref(), now, clock);
            }
            self.receipt = Some(receipt.clone());
        }
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
            None => Billed::of(receipt, open.and_then(|open| open.counted_since), clock),
        };
        billed.seen = billed.seen.max(now);
        self.billed = Some(billed);
    }

    fn was_seen(&mut self, seen: Timestamp) {
        if let Some((_, mut billed)) = self.account() {
            billed.seen = billed.seen.max(seen);
            self.billed = Some(billed);
        }
    }

    /// A refused try made nothing and is closed; any other refused step leaves a resource that is not as it should be.
    fn refuse(&mut self, attempt: Option<Attempt>, cause: &Cause) {
        match attempt {
            Some(attempt) => self.absent(attempt),
            None => self.doubt(None, cause),
        }
    }

    fn absent(&mut self, attempt: Attempt) {
        self.attempts.remove(&attempt);
        if self.attempts.is_empty() {
            self.pending = None;
        }
    }

    fn doubt(&mut self, attempt: Option<Attempt>, cause: &Cause) {
        if let Some(pending) = &mut self.pending {
            pending.cause = Some(cause.clone());
        }
        if let Some(open) = attempt.and_then(|attempt| self.attempts.get_mut(&attempt)) {
            open.cause = Some(cause.clone());
        }
    }
}
