//! The transition function: a state and a record to the next state.

mod done;
mod moved;
mod recorded;

use std::collections::BTreeSet;
use std::collections::btree_map::Entry as Held;

use super::{
    BadHost, CONSUMED_MAX, Consumed, Disowned, ENDED_MAX, EndedLease, Genesis, Lapse, LedgerClock,
    OpenAttempt, Recorded, Run, State,
};
use crate::id::{Address, Attempt, Epoch, Generation, JournalNumber, LeaseId, Name};
use crate::journal::{Entry, Record, Verb};
use crate::offer::Place;
use crate::resource::{Receipt, Told};
use crate::unit::Timestamp;
use done::Done;

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
                self.opened(topology);
                Ok(())
            }
            Record::HostKey { .. }
            | Record::Started { .. }
            | Record::Done { .. }
            | Record::DoneBriefly(_)
            | Record::Refused { .. }
            | Record::InDoubt { .. }
            | Record::Absent { .. }
            | Record::GaveUp { .. }
            | Record::ExtraReleased { .. }
            | Record::Vanished { .. }
            | Record::Seen { .. }
            | Record::Dated { .. }
            | Record::Lapsed { .. }
            | Record::Unlapsed { .. }
            | Record::Edited { .. } => self.apply_news(record).map_err(impossible),
        }
    }

    /// It goes on here, under this name.
    fn opened(&mut self, topology: &Name) {
        self.closed = None;
        if let Some(genesis) = &mut self.genesis {
            genesis.topology = topology.clone();
        }
    }

    /// News of one resource, or of the world around.
    fn apply_news(&mut self, record: &Record) -> Result<(), &'static str> {
        match record {
            Record::Genesis { .. }
            | Record::Begin { .. }
            | Record::Closed { .. }
            | Record::Opened { .. }
            | Record::End { .. } => {}
            Record::HostKey { host, key, at: _ } => {
                self.host_keys.insert(host.clone(), key.clone());
            }
            Record::Started { .. } => self.started(record)?,
            Record::Done { .. } | Record::DoneBriefly(_) => self.done(record)?,
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
                at,
            } => self.gone(address, *generation, *attempt, *at),
            Record::GaveUp { .. } => self.give_up(record),
            Record::ExtraReleased { .. } => self.extra(record),
            Record::Seen { .. } => self.seen(record),
            Record::Dated { .. } => self.told(record),
            Record::Lapsed { .. } => self.lapses(record),
            Record::Unlapsed { address, .. } => self.unlapsed(address),
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

    fn lapses(&mut self, record: &Record) {
        if let Record::Lapsed {
            address,
            generation,
            limit,
            why,
            at,
            spot,
        } = record
        {
            let lapse = Lapse {
                generation: *generation,
                limit: *limit,
                why: why.clone(),
                at: *at,
                spot: *spot,
            };
            self.lapsed(address, lapse);
        }
    }

    /// A machine beyond the one that is kept was billed, too.
    fn extra(&mut self, record: &Record) {
        let Record::ExtraReleased {
            address,
            machine,
            price_per_hour,
            at,
        } = record
        else {
            return;
        };
        self.disowned.remove(machine);
        let now = self.clock.tick(*at);
        if self.gone_by_listing(machine, now) {
            return;
        }
        let recorded = self.resources.get(address);
        if let (Address::Lease(lease), Some(recorded)) = (address, recorded) {
            let extra = recorded.extra(*price_per_hour, now);
            self.charge(lease, extra);
        }
    }

    /// A provider said from when to when a machine was billed.
    fn told(&mut self, record: &Record) {
        if let Record::Dated {
            address,
            machine,
            price_per_hour,
            dates,
            at,
        } = record
        {
            let told = Told {
                machine: machine.clone(),
                key: None,
                price_per_hour: *price_per_hour,
                dates: *dates,
            };
            let now = self.clock.tick(*at);
            self.hear(address, &told, now);
        }
    }

    /// A machine was there, perhaps at another price.
    fn seen(&mut self, record: &Record) {
        let Record::Seen {
            address,
            generation,
            attempt,
            price_per_hour,
            at,
        } = record
        else {
            return;
        };
        let seen = self.clock.time_of(*at);
        self.with(address, *generation, |recorded| match attempt {
            None => recorded.was_seen(*price_per_hour, seen),
            Some(attempt) => recorded.try_was_seen(*attempt, *price_per_hour, seen),
        });
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
        if let Some(launch) = launch {
            self.relaunched(address, launch);
        }
        let (_, recorded) = self.open(address, *generation)?;
        recorded.start(*verb, launch.as_deref(), on.as_ref(), (*at, counted));
        Ok(())
    }

    fn done(&mut self, record: &Record) -> Result<(), &'static str> {
        let Some(done) = Done::of(record, &self.resources)? else {
            return Ok(());
        };
        if let (Some(step), Some(run)) = (done.step, &mut self.run) {
            run.steps_done.insert(step);
        }
        match done.verb {
            Verb::Release | Verb::Forget | Verb::Stop | Verb::Unexpose => {
                self.close(done.address, done.generation, done.at, "released");
            }
            Verb::Acquire
            | Verb::Await
            | Verb::Record
            | Verb::Deliver
            | Verb::Start
            | Verb::Check
            | Verb::Expose => {
                let now = self.clock.tick(done.at);
                let way = self.way(done.address);
                let (clock, recorded) = self.open(done.address, done.generation)?;
                let made = done.made.is_some();
                recorded.finish(done.spec, done.made, now, clock);
                self.moved(done.address, way);
                if made {
                    self.proved_good(done.address);
                }
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
                if !self.resources.get(address).is_some_and(Recorded::exists) {
                    self.unlapsed(address);
                }
                self.resources.insert(address.clone(), recorded.clone());
            }
            (None, Some(to)) => {
                self.resources.remove(address);
                if let (Address::Lease(from), Address::Lease(to)) = (address, to)
                    && let Some(spent) = self.spent.remove(from)
                {
                    self.charge(to, spent);
                    self.charges_move(from, to);
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

    /// A machine becomes an open try that is to be ended, and its host is noted when it is at fault.
    fn give_up(&mut self, record: &Record) {
        let Record::GaveUp {
            address: address @ Address::Lease(lease),
            generation,
            launch,
            cause,
            noted,
            at,
        } = record
        else {
            return;
        };
        let mut place = Place::default();
        self.with(address, *generation, |recorded| {
            let Some(Receipt::Lease(receipt)) = recorded.receipt.take() else {
                return;
            };
            place = receipt.place.clone();
            recorded.give_up(launch, receipt, cause, *noted);
        });
        if *noted {
            self.note(BadHost {
                provider: launch.provider.clone(),
                quote: launch.quote.clone(),
                host: place.host,
                lease: lease.clone(),
                why: cause.message.clone(),
                at: *at,
            });
        }
    }

    /// A try is closed: there is no machine of it. One that it made and that was given up is charged now.
    fn gone(&mut self, address: &Address, generation: Generation, attempt: Attempt, at: Timestamp) {
        let mut gone = None;
        self.with(address, generation, |recorded| {
            gone = recorded.absent(attempt);
        });
        let Some(open) = gone.filter(|open| open.leaving.is_some()) else {
            return;
        };
        if let Address::Lease(lease) = address {
            let now = self.clock.tick(at);
            let spent = open.spent(now);
            self.charge(lease, spent);
            self.left(lease, generation, open, (at, now));
        }
    }

    /// A machine that was given up has ended.
    fn left(
        &mut self,
        lease: &LeaseId,
        generation: Generation,
        open: OpenAttempt,
        (at, now): (Timestamp, Timestamp),
    ) {
        let spent = open.spent(now);
        let Some(receipt) = open.leaving else { return };
        self.remember(lease, &receipt, open.billed, now);
        let why = open.cause.map(|cause| cause.message);
        self.ended(EndedLease {
            lease: lease.clone(),
            generation,
            receipt: *receipt,
            ended_at: at,
            why: why.unwrap_or_else(|| "given up".to_owned()),
            spent: Some(spent),
        });
    }

    fn ended(&mut self, lease: EndedLease) {
        // A key that was on record for this machine alone.
        self.host_keys.remove(lease.receipt.machine.as_str());
        self.ended.push(lease);
        let surplus = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..surplus);
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

    /// The record of this generation, made when there is none, and the clock beside it. A lower generation must be gone by
    /// then: else a machine would be forgotten.
    fn open(
        &mut self,
        address: &Address,
        generation: Generation,
    ) -> Result<(&LedgerClock, &mut Recorded), &'static str> {
        let recorded = match self.resources.entry(address.clone()) {
            Held::Occupied(held) if held.get().generation == generation => {
                return Ok((&self.clock, held.into_mut()));
            }
            Held::Occupied(held) if held.get().exists() => {
                return Err("a new generation begins while the one before it exists");
            }
            Held::Occupied(held) => {
                let recorded = held.into_mut();
                *recorded = Recorded::new(generation);
                recorded
            }
            Held::Vacant(place) => place.insert(Recorded::new(generation)),
        };
        let last = self.generations.entry(address.clone()).or_default();
        *last = (*last).max(generation);
        Ok((&self.clock, recorded))
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

    fn close(&mut self, address: &Address, generation: Generation, at: Timestamp, reason: &str) {
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
        let own = recorded.own_spent(now);
        self.charge(lease, recorded.spent(now, false));
        for (_, open) in recorded.attempts {
            self.left(lease, generation, open, (at, now));
        }
        if let Some(Receipt::Lease(receipt)) = recorded.receipt {
            self.remember(lease, &receipt, recorded.billed, now);
            let spent = own.unwrap_or_default();
            let why = self.lapse_of(lease, generation);
            let why = why.unwrap_or_else(|| reason.to_owned());
            self.ended(EndedLease {
                lease: lease.clone(),
                generation,
                receipt: *receipt,
                ended_at: at,
                why,
                spent: Some(spent),
            });
        }
    }
}
