//! Ending machines, and proving it by the provider's own listing.
//!
//! A release may be repeated freely and needs neither topology nor identity. It is done only when complete, trusted
//! listings show no machine of this lease and no open try can still make one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId, Lineage, MachineId, Name, RequestKey};
use stageline_core::journal::Record;
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt, Outcome};
use stageline_core::state::{Billed, Recorded, State};
use stageline_core::unit::{MicroDollars, Millis};

use super::doubt::{POLL, blind, horizon, of_generation};
use super::step::{Act, Made, Run, Stop, lease_of};
use crate::observe;
use crate::provider::{Blind, Machine, MachineStatus, Provider, Released};

/// For how long a machine is looked at for its price alone.
const LOOK_WITHIN: Duration = Duration::from_secs(3);

/// A provider by the name of its table.
type Seller = (Name, Arc<dyn Provider>);

/// What may be there still.
#[derive(Clone, Copy)]
pub(super) enum Survivor<'m> {
    /// Whatever a lease has.
    Lease,
    /// A machine, and what it costs per hour.
    Machine(&'m MachineId, MicroDollars),
    /// What was made beside a machine.
    Leftover(&'m MachineId),
}

impl<'a> Run<'a> {
    /// Ends whatever was made for this lease up to this generation.
    pub(super) async fn release(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        self.started(act, None).await?;
        let held = self.held(lease, act.step.generation);
        let outcome = self.end_all(act, lease, held.as_ref()).await?;
        let done = matches!(outcome, Outcome::Done(_));
        self.outcome(act, None, outcome).await?;
        if done {
            let machine = held.map(|held| held.machine);
            self.emit(Event::LeaseEnded {
                lease: lease.clone(),
                machine,
            });
        }
        Ok(())
    }

    async fn end_all(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        held: Option<&LeaseReceipt>,
    ) -> Result<Outcome<Made>, Stop> {
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let Some(lineage) = lineage else {
            return Ok(Outcome::Done(Made::default()));
        };
        // What is in the way at one of them keeps nobody from ending what the others have.
        let mut survives = None;
        for seller in self.sellers(lease, held) {
            let cause = match seller {
                Ok(seller) => self.end_with(act, lease, &seller, held, &lineage).await?,
                Err(cause) => Some(cause),
            };
            survives = survives.or(cause);
        }
        Ok(match survives {
            Some(cause) => Outcome::InDoubt(cause),
            None => Outcome::Done(Made::default()),
        })
    }

    /// Ends what one seller has. A cause is what is still in the way.
    async fn end_with(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        (name, provider): &Seller,
        held: Option<&LeaseReceipt>,
        lineage: &Lineage,
    ) -> Result<Option<Cause>, Stop> {
        // By name: two accounts of one kind may use the same id for different machines.
        let mine = held.filter(|held| held.provider == *name);
        if let Some(other) = self.other_account(provider.as_ref(), lease).await {
            return Ok(Some(self.whole_survives(lease, provider, Some(other))));
        }
        self.end_at(act, lease, provider, mine, lineage).await
    }

    /// Every provider that may have a machine of this lease; the one that has it for sure comes first.
    fn sellers(&self, lease: &LeaseId, held: Option<&LeaseReceipt>) -> Vec<Result<Seller, Cause>> {
        let mut sellers: Vec<(Name, String)> = self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let open = recorded
                .into_iter()
                .flat_map(|recorded| recorded.attempts.values());
            open.map(|open| {
                (
                    open.launch.provider.clone(),
                    open.launch.provider_kind.clone(),
                )
            })
            .collect()
        });
        sellers.extend(held.map(|held| (held.provider.clone(), held.provider_kind.clone())));
        sellers.sort();
        sellers.dedup();
        sellers.sort_by_key(|(name, _)| held.is_none_or(|held| held.provider != *name));
        let get = |(name, kind): (Name, String)| {
            let provider = self.effects.providers.get(&name, &kind)?.clone();
            Ok((name, provider))
        };
        sellers.into_iter().map(get).collect()
    }

    /// Ends what one provider has of this lease. A cause is what is still in the way.
    async fn end_at(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &Arc<dyn Provider>,
        held: Option<&LeaseReceipt>,
        lineage: &Lineage,
    ) -> Result<Option<Cause>, Stop> {
        let address = Address::Lease(lease.clone());
        let start = self.effects.clock.boottime();
        let quiet = self.quiet(act, lease, provider, held);
        let mut known = held.map(|held| held.machine.clone());
        if let Some(held) = held {
            self.note_standing(act, lease, provider.as_ref(), held)
                .await?;
        }
        let mut seen: BTreeMap<MachineId, Machine> = BTreeMap::new();
        let mut told = Duration::from_secs(1);
        let mut troubled = false;
        loop {
            let watched = self.effects.clock.boottime().saturating_sub(start);
            let mut trouble = None;
            if let Some(machine) = &known {
                // It was there when it was asked for; when the answer comes it may be over for some time.
                let asked = self.effects.clock.now();
                match provider.release(machine).await {
                    Ok(Released::Accepted) => {
                        self.sightings.borrow_mut().insert(address.clone(), asked);
                        known = None;
                    }
                    Ok(Released::Unknown) => known = None,
                    Err(cause) => trouble = Some(cause),
                }
            }
            match self.left(act, lease, provider, held, lineage).await {
                // Why it could not be released says more.
                Err(cause) => trouble = trouble.or(Some(cause)),
                Ok(left) => {
                    if left.is_empty() && trouble.is_none() && watched >= quiet {
                        trouble = self.note_rest(act, (provider, held), &seen).await?;
                        if trouble.is_none() {
                            return Ok(None);
                        }
                    }
                    for machine in &left {
                        self.note_price(act, lease, machine).await?;
                        seen.insert(machine.id.clone(), machine.clone());
                        if let Some(key) = &machine.request_key {
                            self.lets_in(provider.as_ref(), lease, (&machine.id, key));
                        }
                        if let Err(cause) = provider.release(&machine.id).await {
                            trouble = Some(cause);
                        }
                    }
                }
            }
            let limit = patience(provider.as_ref(), trouble.as_ref());
            if watched >= limit + quiet {
                return Ok(Some(self.whole_survives(lease, provider, trouble)));
            }
            if let (Some(cause), false) = (&trouble, troubled) {
                // Once: how it goes on is told by the waiting.
                troubled = true;
                self.emit(retrying(act, &address, cause, limit + quiet));
            }
            if watched >= told {
                told = watched + Duration::from_secs(1);
                self.emit(Event::Waiting {
                    address: address.clone(),
                    verb: act.step.verb,
                    what: trouble.map_or_else(
                        || "the provider's listing still has to prove it gone".to_owned(),
                        |cause| cause.message,
                    ),
                    waited: self.since(start),
                });
            }
            self.pause(POLL).await?;
        }
    }

    /// For how long listings must be without a machine of this lease until that proves that there is none.
    fn quiet(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &Arc<dyn Provider>,
        held: Option<&LeaseReceipt>,
    ) -> Duration {
        if self.doubts(lease, act.step.generation).is_some() {
            return horizon(provider.traits());
        }
        let billed = self.state(|state| {
            let recorded = state.resources.get(&act.step.address);
            recorded.and_then(|recorded| recorded.billed)
        });
        let held = held.map(|held| self.unlisted(provider, held, billed.as_ref()));
        held.unwrap_or_default()
            .max(self.unlisted_leaving(lease, provider))
    }

    /// What is seen to before a machine is ended. One that stands still or is dead costs less since some time, and the price of one that
    /// runs may have moved: that is on record before it is ended, and is not listed any more. No release waits for it for long.
    async fn note_standing(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &dyn Provider,
        held: &LeaseReceipt,
    ) -> Result<(), Stop> {
        self.lets_in(provider, lease, (&held.machine, &held.request_key));
        if !provider.traits().bills_while_stopped {
            return Ok(());
        }
        let bills = |machine: &Machine| match machine.status {
            MachineStatus::Dead(_) | MachineStatus::Interrupted(_) | MachineStatus::Running => true,
            MachineStatus::Pending(_) | MachineStatus::Ending => false,
        };
        match self.look_at(provider, &held.machine).await {
            Some(machine) if bills(&machine) => self.note_price(act, lease, &machine).await,
            // It is ended in any case.
            Some(_) | None => Ok(()),
        }
    }

    /// A machine as it is seen now, if that takes no time.
    async fn look_at(&self, provider: &dyn Provider, machine: &MachineId) -> Option<Machine> {
        tokio::select! {
            biased;
            seen = provider.describe(machine) => seen.ok()?,
            () = self.effects.clock.sleep(LOOK_WITHIN) => None,
        }
    }

    /// Writes down what a machine is seen to cost, and when it ended, where the ledger cannot know it.
    async fn note_price(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        machine: &Machine,
    ) -> Result<(), Stop> {
        self.note_end(machine).await?;
        let address = Address::Lease(lease.clone());
        let price = machine.price_per_hour;
        let stands = match machine.status {
            MachineStatus::Running | MachineStatus::Pending(_) => false,
            MachineStatus::Dead(_) | MachineStatus::Interrupted(_) | MachineStatus::Ending => true,
        };
        // Of one that runs it is not told: what it may cost is what is recorded.
        if price == MicroDollars::ZERO && !stands {
            return Ok(());
        }
        let of = self.state(|state| {
            let held = state.lease(lease);
            if let Some(held) = held.filter(|held| held.machine == machine.id) {
                return (held.price_per_hour != price).then_some(None);
            }
            let (generation, attempt) = machine.request_key.as_ref()?.try_of();
            let recorded = state.resources.get(&address)?;
            let open = recorded.attempts.get(&attempt)?;
            let same = recorded.generation == generation;
            let dearer = match &open.leaving {
                Some(receipt) => receipt.machine == machine.id && receipt.price_per_hour != price,
                None => open.launch.reservation < price,
            };
            (same && dearer).then_some(Some(attempt))
        });
        let Some(attempt) = of else { return Ok(()) };
        let record = Record::Seen {
            address,
            generation: act.step.generation,
            attempt,
            price_per_hour: Some(price),
            at: self.effects.clock.now(),
        };
        self.journal.append(vec![record]).await?;
        Ok(())
    }

    /// Writes down what there was beside the machine of the receipt. A cause is why that cannot be told yet.
    async fn note_rest(
        &self,
        act: Act<'a>,
        (provider, held): (&Arc<dyn Provider>, Option<&LeaseReceipt>),
        seen: &BTreeMap<MachineId, Machine>,
    ) -> Result<Option<Cause>, Stop> {
        let trouble = self.note_tries(act, lease_of(act.step)?, provider).await?;
        if trouble.is_none() {
            self.note_extras(act, held, seen).await?;
        }
        Ok(trouble)
    }

    /// Writes down machines that were ended beside those that a receipt or an open try stands for: they were billed, too.
    async fn note_extras(
        &self,
        act: Act<'a>,
        held: Option<&LeaseReceipt>,
        seen: &BTreeMap<MachineId, Machine>,
    ) -> Result<(), Stop> {
        // One machine for the receipt, one for each try that is open: the ledger has those.
        let mut counted: BTreeSet<RequestKey> = self.state(|state| {
            let recorded = state.resources.get(&act.step.address);
            let open = recorded.into_iter().flat_map(|r| r.attempts.values());
            open.map(|open| open.launch.request_key.clone()).collect()
        });
        if let Some(held) = held {
            counted.remove(&held.request_key);
        }
        let machines = seen.values().filter(|one| one.leftover().is_none());
        let others = machines.filter(|machine| held.is_none_or(|held| held.machine != machine.id));
        let extra = others.filter(|machine| {
            let key = machine.request_key.as_ref();
            key.is_some_and(|key| !counted.remove(key))
        });
        let at = self.effects.clock.now();
        let records = extra.flat_map(|machine| {
            let released = Record::ExtraReleased {
                address: act.step.address.clone(),
                machine: machine.id.clone(),
                price_per_hour: Some(machine.price_per_hour),
                at,
            };
            let dated = self.dates_of(&act.step.address, machine);
            dated.into_iter().chain([released])
        });
        let records: Vec<Record> = records.collect();
        if !records.is_empty() {
            self.journal.append(records).await?;
        }
        Ok(())
    }

    /// What this provider still has of a lease: by name, and by the id that is recorded, since somebody may have renamed
    /// the machine.
    async fn left(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &Arc<dyn Provider>,
        held: Option<&LeaseReceipt>,
        lineage: &Lineage,
    ) -> Result<Vec<Machine>, Cause> {
        let found = self.find_ours(provider.as_ref(), lease, lineage).await;
        let machines = found.map_err(|error| blind(&error.cause))?;
        let mut left = of_generation(machines, act.step.generation);
        let renamed = left.iter().all(|one| one.leftover().is_some());
        if let Some(held) = held.filter(|_| renamed) {
            let found = provider.describe(&held.machine).await;
            left.extend(found.map_err(|error| blind(&error.cause))?);
        }
        let name = self.effects.providers.name_of(provider.as_ref());
        for machine in self.given_up(lease, &name) {
            if left.iter().all(|one| one.id != machine) {
                let missed = provider.missed(&machine).await;
                left.extend(missed.map_err(|error| blind(&error.cause))?);
            }
        }
        Ok(left)
    }

    /// Machines of a lease at this provider that were given up and are not proven gone.
    fn given_up(&self, lease: &LeaseId, provider: &Name) -> Vec<MachineId> {
        self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let attempts = recorded.into_iter().flat_map(|r| r.attempts.values());
            let leaving = attempts.filter_map(|open| open.leaving.as_deref());
            let there = leaving.filter(|receipt| receipt.provider == *provider);
            there.map(|receipt| receipt.machine.clone()).collect()
        })
    }

    /// How long absence from listings proves nothing, because the machine may be too young to be listed. Its age is counted
    /// as the ledger counts: whoever sets the clock makes no machine older.
    pub(super) fn unlisted(
        &self,
        provider: &Arc<dyn Provider>,
        held: &LeaseReceipt,
        billed: Option<&Billed>,
    ) -> Duration {
        let clock = self.effects.clock.as_ref();
        let age = self.state(|state| observe::age(state, billed, held, clock));
        provider.traits().visibility_delay.saturating_sub(age)
    }

    /// The same for machines that were given up.
    fn unlisted_leaving(&self, lease: &LeaseId, provider: &Arc<dyn Provider>) -> Duration {
        let receipts: Vec<(LeaseReceipt, Option<Billed>)> = self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let attempts = recorded.into_iter().flat_map(|r| r.attempts.values());
            let leaving =
                attempts.filter_map(|open| Some((open.leaving.as_deref()?.clone(), open.billed)));
            leaving.collect()
        });
        let young = receipts
            .iter()
            .map(|(receipt, billed)| self.unlisted(provider, receipt, billed.as_ref()));
        young.max().unwrap_or_default()
    }

    /// The same of whatever a lease has.
    fn whole_survives(
        &self,
        lease: &LeaseId,
        provider: &Arc<dyn Provider>,
        trouble: Option<Cause>,
    ) -> Cause {
        self.survives(lease, Survivor::Lease, provider.as_ref(), trouble)
    }

    /// What is told of what could not be proven gone: why, what it may cost on, and what to do.
    pub(super) fn survives(
        &self,
        lease: &LeaseId,
        what: Survivor<'_>,
        provider: &dyn Provider,
        trouble: Option<Cause>,
    ) -> Cause {
        let (why, hint) = match trouble {
            Some(cause) => (cause.message, cause.hint),
            None => ("it is still listed".to_owned(), None),
        };
        let usual =
            "run the same command again; look into the provider's own console if this stays";
        let kind = provider.kind();
        let (who, price) = match what {
            Survivor::Lease => {
                let recorded = |state: &State| {
                    let recorded = state.resources.get(&Address::Lease(lease.clone()));
                    recorded.map(Recorded::committed_per_hour)
                };
                (lease.to_string(), self.state(recorded))
            }
            Survivor::Machine(id, price) => (format!("{lease}: machine `{id}`"), Some(price)),
            Survivor::Leftover(id) => (format!("{lease}: {id}"), None),
        };
        let may = match price.filter(|price| *price > MicroDollars::ZERO) {
            _ if matches!(what, Survivor::Leftover(_)) => "it bills nothing".to_owned(),
            _ if !provider.bills() => "it may still run".to_owned(),
            Some(price) => format!("it may still bill {price}/h"),
            None => "it may still cost money".to_owned(),
        };
        Cause::new(
            FailureClass::Unknown,
            format!("{who} could not be proven gone at provider kind `{kind}`, {may}: {why}"),
        )
        .hint(hint.unwrap_or_else(|| usual.to_owned()))
    }

    /// Ends one machine by id and waits until the listing has it no more.
    pub(super) async fn end_machine(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        ends: &Machine,
    ) -> Result<(), Stop> {
        let machine = &ends.id;
        let start = self.effects.clock.boottime();
        loop {
            let trouble = match provider.release(machine).await {
                Ok(Released::Accepted | Released::Unknown) => {
                    match self.without(provider, machine).await {
                        Ok(machines) if machines.iter().any(|other| other.id == *machine) => None,
                        Ok(machines) => {
                            let lease = lease_of(act.step)?;
                            let told = self
                                .is_of_account(provider.as_ref(), lease, &machines)
                                .await;
                            match told {
                                Ok(()) => return Ok(()),
                                Err(error) => Some(error.cause),
                            }
                        }
                        Err(error) => Some(error.cause),
                    }
                }
                Err(cause) => Some(cause),
            };
            let watched = self.effects.clock.boottime().saturating_sub(start);
            if watched >= patience(provider.as_ref(), trouble.as_ref()) {
                let lease = lease_of(act.step)?;
                let what = match ends.leftover() {
                    Some(_) => Survivor::Leftover(machine),
                    None => Survivor::Machine(machine, ends.price_per_hour),
                };
                return Err(Stop::InDoubt(self.survives(
                    lease,
                    what,
                    provider.as_ref(),
                    trouble,
                )));
            }
            self.pause(POLL).await?;
        }
    }

    /// A listing that tells whether this machine is there.
    async fn without(
        &self,
        provider: &Arc<dyn Provider>,
        machine: &MachineId,
    ) -> Result<Vec<Machine>, Blind> {
        let name = self.effects.providers.name_of(provider.as_ref());
        let view = provider.view().await?;
        let mut machines = view.but(&name, |part| part.concerns(machine.as_str()))?;
        if machines.iter().all(|other| other.id != *machine) {
            machines.extend(provider.missed(machine).await?);
        }
        Ok(machines)
    }
}

/// What is in the way, and for how long that is put up with.
fn retrying(act: Act<'_>, address: &Address, cause: &Cause, limit: Duration) -> Event {
    let millis = |span: Duration| Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let limit = millis(limit);
    Event::Retrying {
        address: address.clone(),
        verb: act.step.verb,
        cause: Cause {
            message: format!("{} (tried for {limit} at most)", cause.message),
            ..cause.clone()
        },
        attempt: 2,
        delay: millis(POLL),
    }
}

/// For how long one goes on: with what is in the way, or with a machine that is only still listed.
pub(super) fn patience(provider: &dyn Provider, trouble: Option<&Cause>) -> Duration {
    match trouble {
        Some(_) => provider.traits().refused_after,
        None => provider.traits().gone_within,
    }
}
