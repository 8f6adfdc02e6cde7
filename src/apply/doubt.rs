//! Doubt about a create, resolved before anything else touches the lease.
//!
//! A try that was written down may have made a machine, whatever its answer was. Found: the receipt is recorded and
//! machines beyond it are released. Absent is proof only after this process itself has watched complete, trusted
//! listings for the settle horizon. Cannot tell: the try stays open and says so. What was made beside a machine is no machine, and no
//! proof of one: it is removed once it is known that its machine is not there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, Generation, LeaseId, Lineage, MachineId, RequestKey};
use stageline_core::journal::{Launch, Record};
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt};
use stageline_core::state::{OpenAttempt, Recorded};

use super::step::{Act, Run, Stop};
use crate::provider::{Machine, MachineStatus, Provider, Traits};

/// A create goes out within this much boot time of its durable start, checked last.
pub(super) const SEND_WINDOW: Duration = Duration::from_secs(5);

/// Between two listings while something is watched.
pub(super) const POLL: Duration = Duration::from_millis(500);

/// For how long listings may fail in a row before a watch is given up as blind.
const BLIND_AFTER: Duration = Duration::from_secs(30);

/// For how long listings without a machine must be watched until that proves that no create of ours made one.
pub(super) fn horizon(traits: &Traits) -> Duration {
    SEND_WINDOW + traits.request_timeout + traits.visibility_delay + traits.late_commit_window
}

/// The tries of one lease that are open, by provider.
pub(super) struct Doubts {
    pub open: BTreeMap<Attempt, OpenAttempt>,
    pub lineage: Lineage,
}

/// What a listing has of a lease.
pub(super) struct Found {
    pub machines: Vec<Machine>,
    /// What was made beside machines that it does not have.
    pub left: Vec<Machine>,
}

impl<'a> Run<'a> {
    pub(super) fn doubts(&self, lease: &LeaseId, generation: Generation) -> Option<Doubts> {
        self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()))?;
            let lineage = state.genesis.as_ref()?.lineage;
            let open = recorded.attempts.iter();
            // A machine that was given up is known: it is seen off, not looked for.
            let open: BTreeMap<_, _> = open
                .filter(|(_, open)| open.leaving.is_none())
                .map(|(attempt, open)| (*attempt, open.clone()))
                .collect();
            let ours = recorded.generation == generation && !open.is_empty();
            ours.then_some(Doubts { open, lineage })
        })
    }

    /// Closes every open try of a lease: at most one machine is kept, by its receipt.
    pub(super) async fn resolve(&self, act: Act<'a>, lease: &LeaseId) -> Result<(), Stop> {
        let generation = act.step.generation;
        while let Some(doubts) = self.doubts(lease, generation) {
            let (attempt, open) = doubts.open.last_key_value().expect("it is not empty");
            let launch = &open.launch;
            let provider = self
                .effects
                .providers
                .get(&launch.provider, &launch.provider_kind)
                .map_err(Stop::InDoubt)?;
            let found = self.watch(act, provider, &doubts, *attempt).await?;
            if found.machines.is_empty() {
                self.remove_left(act, provider, &found.left).await?;
                self.close_absent(act, provider, &doubts).await?;
                continue;
            }
            let machines = &found.machines;
            let keep = choose(machines, self.held(lease, generation).as_ref(), generation);
            self.adopt(act, lease, &doubts, machines, keep.as_ref())
                .await?;
        }
        Ok(())
    }

    /// Watches until a machine of this lease is seen, or until absence is proof.
    async fn watch(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        doubts: &Doubts,
        attempt: Attempt,
    ) -> Result<Found, Stop> {
        let address = &act.step.address;
        let lease = super::step::lease_of(act.step)?;
        if let Some(other) = self.other_account(provider.as_ref(), lease).await {
            return Err(self.still_in_doubt(act, other, attempt).await?);
        }
        let start = self.effects.clock.boottime();
        let horizon = horizon(provider.traits());
        let until = self.effects.clock.now()
            + jiff::SignedDuration::try_from(horizon).unwrap_or(jiff::SignedDuration::ZERO);
        let open = doubts.open.get(&attempt);
        let why = open.and_then(|open| open.cause.as_ref());
        self.emit(Event::Settling {
            address: address.clone(),
            attempt,
            until,
            per_hour: open.map(|open| open.launch.reservation).unwrap_or_default(),
            why: why.map(|cause| cause.message.clone()),
            free: !self.state(|state| {
                let recorded = state.resources.get(address);
                recorded.is_none_or(Recorded::may_bill)
            }),
        });
        let mut seen = Duration::ZERO;
        loop {
            // Read before the listing: a listing proves something about the time before it only.
            let watched = self.effects.clock.boottime().saturating_sub(start);
            match self
                .find_ours(provider.as_ref(), lease, &doubts.lineage)
                .await
            {
                Ok(machines) => {
                    seen = watched;
                    let ours = of_generation(machines, act.step.generation);
                    let found = Found::of(self.but_leaving(lease, ours));
                    if !found.machines.is_empty() || watched >= horizon {
                        return Ok(found);
                    }
                }
                Err(error) => {
                    if watched.saturating_sub(seen) >= BLIND_AFTER {
                        return Err(self.still_in_doubt(act, error.cause, attempt).await?);
                    }
                }
            }
            self.pause(POLL).await?;
        }
    }

    fn doubt(&self, address: &Address) -> &'static str {
        self.state(|state| {
            let recorded = state.resources.get(address);
            recorded.map_or("unresolved, may bill", Recorded::unresolved)
        })
    }

    /// Records once more why a try stays open.
    async fn still_in_doubt(
        &self,
        act: Act<'a>,
        cause: Cause,
        attempt: Attempt,
    ) -> Result<Stop, Stop> {
        let cause = Cause::new(
            cause.class,
            format!(
                "{}: {}: {}",
                act.step.address,
                self.doubt(&act.step.address),
                cause.message
            ),
        )
        .hint(cause.hint.unwrap_or_else(|| {
            "mend access to the provider's account, then run the same command again".to_owned()
        }));
        let record = Record::InDoubt {
            address: act.step.address.clone(),
            generation: act.step.generation,
            verb: act.step.verb,
            attempt: Some(attempt),
            cause: cause.clone(),
            at: self.effects.clock.now(),
        };
        self.journal.append(vec![record]).await?;
        Ok(Stop::InDoubt(cause))
    }

    /// No machine of any try at this provider: those tries are closed.
    async fn close_absent(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        doubts: &Doubts,
    ) -> Result<(), Stop> {
        let address = &act.step.address;
        for attempt in self.close_tries(act, provider, doubts).await? {
            self.emit(Event::AttemptAbsent {
                address: address.clone(),
                attempt,
            });
        }
        Ok(())
    }

    /// Writes down that the tries at this provider are over, and which these are.
    pub(super) async fn close_tries(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        doubts: &Doubts,
    ) -> Result<Vec<Attempt>, Stop> {
        let at = self.effects.clock.now();
        let here = doubts.open.iter().filter(|(_, open)| {
            let launch = &open.launch;
            self.effects
                .providers
                .get(&launch.provider, &launch.provider_kind)
                .is_ok_and(|other| Arc::ptr_eq(other, provider))
        });
        let closed: Vec<Attempt> = here.map(|(attempt, _)| *attempt).collect();
        let absent = |attempt: &Attempt| Record::Absent {
            address: act.step.address.clone(),
            generation: act.step.generation,
            attempt: *attempt,
            at,
        };
        if !closed.is_empty() {
            let records = closed.iter().map(absent).collect();
            self.journal.append(records).await?;
        }
        Ok(closed)
    }

    /// Records the kept machine, releases the others by id, and closes what is proven.
    async fn adopt(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        doubts: &Doubts,
        machines: &[Machine],
        keep: Option<&MachineId>,
    ) -> Result<(), Stop> {
        let address = &act.step.address;
        for machine in machines {
            let kept = Some(&machine.id) == keep;
            let machine = machine.id.clone();
            self.emit(Event::MachineFound {
                address: address.clone(),
                machine,
                kept,
            });
        }
        let kept = machines.iter().find(|machine| Some(&machine.id) == keep);
        let kept_key = kept.and_then(|machine| machine.request_key.as_ref());
        let launch = kept_key
            .and_then(|key| doubts.open.get(&key.try_of().1))
            .map(|open| open.launch.clone());
        let last = doubts.open.values().last().map(|open| open.launch.clone());
        let launch = launch.or(last).expect("there is an open try");
        let provider = self
            .effects
            .providers
            .get(&launch.provider, &launch.provider_kind)
            .map_err(Stop::InDoubt)?;
        for extra in machines.iter().filter(|machine| Some(&machine.id) != keep) {
            self.release_extra(act, provider, extra).await?;
        }
        let Some(kept) = kept else { return Ok(()) };
        if self.held(lease, act.step.generation).is_none() {
            let receipt = receipt(&launch, kept, self.effects.clock.now());
            let spec = self.spec(address).ok().cloned();
            let receipt = stageline_core::resource::Receipt::Lease(Box::new(receipt));
            // Beside the plan: the step itself says when it is done.
            let record = Record::Done {
                address: address.clone(),
                generation: act.step.generation,
                verb: stageline_core::journal::Verb::Acquire,
                step: None,
                spec: spec.map(Box::new),
                receipt: Some(Box::new(receipt)),
                at: self.effects.clock.now(),
            };
            let dated = self.dates_of(address, kept);
            let records = std::iter::once(record).chain(dated).collect();
            self.journal.append(records).await?;
            let price_per_hour = kept.price_per_hour;
            let agent = self.agent_way(provider.as_ref(), lease, (&launch.offer, &kept.id));
            let (lease, machine) = (lease.clone(), kept.id.clone());
            self.emit(Event::LeaseUp {
                lease,
                machine,
                price_per_hour,
                agent,
            });
        }
        // Other tries may still appear; they stay open until the horizon has passed without them.
        self.settle_others(act, provider, doubts).await
    }

    /// Watches the tries that are still open beside a kept machine; what appears is released.
    async fn settle_others(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        before: &Doubts,
    ) -> Result<(), Stop> {
        let Act { step, .. } = act;
        let Address::Lease(lease) = &step.address else {
            return Ok(());
        };
        if self.doubts(lease, step.generation).is_none() {
            return Ok(());
        }
        let start = self.effects.clock.boottime();
        let horizon = horizon(provider.traits());
        let mut seen = Duration::ZERO;
        loop {
            let watched = self.effects.clock.boottime().saturating_sub(start);
            let found = self
                .find_ours(provider.as_ref(), lease, &before.lineage)
                .await;
            let machines = match found {
                Ok(machines) => machines,
                Err(error) if watched.saturating_sub(seen) >= BLIND_AFTER => {
                    let last = before.open.last_key_value();
                    let attempt = last.map_or(Attempt(1), |(attempt, _)| *attempt);
                    return Err(self.still_in_doubt(act, error.cause, attempt).await?);
                }
                Err(_) => {
                    self.pause(POLL).await?;
                    continue;
                }
            };
            seen = watched;
            let kept = self.held(lease, step.generation).map(|held| held.machine);
            let found = of_generation(machines, step.generation);
            let mut found = Found::of(self.but_leaving(lease, found));
            found
                .machines
                .retain(|machine| Some(&machine.id) != kept.as_ref());
            for machine in &found.machines {
                self.release_extra(act, provider, machine).await?;
            }
            if found.machines.is_empty() && watched >= horizon {
                self.remove_left(act, provider, &found.left).await?;
                return match self.doubts(lease, step.generation) {
                    Some(doubts) => self.close_absent(act, provider, &doubts).await,
                    None => Ok(()),
                };
            }
            self.pause(POLL).await?;
        }
    }

    /// Ends a machine that is not kept, and proves it. The intention goes first: a run that has been fenced in the
    /// meantime learns it there, and leaves what may be its successor's alone.
    pub(super) async fn release_extra(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        extra: &Machine,
    ) -> Result<(), Stop> {
        let machine = &extra.id;
        let why = format!("machine {machine} is one too many and is being released");
        self.end_intended(act, provider, extra, why).await?;
        let record = Record::ExtraReleased {
            address: act.step.address.clone(),
            machine: machine.clone(),
            price_per_hour: Some(extra.price_per_hour),
            at: self.effects.clock.now(),
        };
        let dated = self.dates_of(&act.step.address, extra);
        let records = dated.into_iter().chain([record]).collect();
        self.journal.append(records).await?;
        let address = act.step.address.clone();
        self.emit(Event::ExtraReleased {
            address,
            machine: machine.clone(),
        });
        Ok(())
    }

    /// Removes what was made beside machines that are not there. It was never billed.
    pub(super) async fn remove_left(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        left: &[Machine],
    ) -> Result<(), Stop> {
        for one in left {
            let id = &one.id;
            let why = format!("{id} is left over and is being removed");
            self.end_intended(act, provider, one, why).await?;
        }
        Ok(())
    }

    async fn end_intended(
        &self,
        act: Act<'a>,
        provider: &Arc<dyn Provider>,
        machine: &Machine,
        why: String,
    ) -> Result<(), Stop> {
        let intended = Record::InDoubt {
            address: act.step.address.clone(),
            generation: act.step.generation,
            verb: act.step.verb,
            attempt: None,
            cause: Cause::new(FailureClass::Unknown, why),
            at: self.effects.clock.now(),
        };
        self.journal.append(vec![intended]).await?;
        self.end_machine(act, provider, machine).await
    }
}

impl Found {
    pub(super) fn of(all: Vec<Machine>) -> Self {
        let (left, machines) = all
            .into_iter()
            .partition(|machine| machine.leftover().is_some());
        Self { machines, left }
    }
}

/// Machines of this generation and older ones: a newer generation is somebody else's business.
pub(super) fn of_generation(machines: Vec<Machine>, generation: Generation) -> Vec<Machine> {
    let ours = |machine: &Machine| {
        machine
            .request_key
            .as_ref()
            .is_some_and(|key| key.try_of().0 <= generation)
    };
    machines.into_iter().filter(ours).collect()
}

/// Which of several machines is kept: a recorded id wins, then the newest try, then the lowest id. None when all of
/// them are over or of an older generation: nothing is worth keeping then.
fn choose(
    machines: &[Machine],
    held: Option<&LeaseReceipt>,
    generation: Generation,
) -> Option<MachineId> {
    if let Some(held) = held {
        return Some(held.machine.clone());
    }
    let ours = |machine: &&Machine| {
        let key = machine.request_key.as_ref();
        key.is_some_and(|key| key.try_of().0 == generation) && !is_over(&machine.status)
    };
    let alive = machines.iter().filter(ours);
    let rank = |machine: &&Machine| {
        let newest = machine.request_key.as_ref().map(RequestKey::try_of);
        (std::cmp::Reverse(newest), machine.id.clone())
    };
    alive.min_by_key(rank).map(|machine| machine.id.clone())
}

fn is_over(status: &MachineStatus) -> bool {
    match status {
        MachineStatus::Dead(_) | MachineStatus::Interrupted(_) | MachineStatus::Ending => true,
        MachineStatus::Pending(_) | MachineStatus::Running => false,
    }
}

/// What is recorded of a machine the moment its id is known.
pub(super) fn receipt(
    launch: &Launch,
    machine: &Machine,
    now: stageline_core::unit::Timestamp,
) -> LeaseReceipt {
    LeaseReceipt {
        provider: launch.provider.clone(),
        provider_kind: launch.provider_kind.clone(),
        account: launch.account.clone(),
        offer: launch.offer.clone(),
        quote: launch.quote.clone(),
        machine: machine.id.clone(),
        request_key: machine
            .request_key
            .clone()
            .unwrap_or_else(|| launch.request_key.clone()),
        price_per_hour: machine.price_per_hour,
        created_at: now,
        place: machine.facts.place(),
        ready: None,
    }
}

/// A watch that cannot go on because the listing cannot be trusted.
pub(super) fn blind(cause: &Cause) -> Cause {
    let usual = "mend access to the provider's account, then run the same command again";
    let hint = cause.hint.clone().unwrap_or_else(|| usual.to_owned());
    Cause::new(FailureClass::Unknown, cause.message.clone()).hint(hint)
}
