//! Ends machines that were given up, beside whatever the run does meanwhile, and proves it.
//!
//! Such a machine is an open try in the state: it counts against every cap until a complete listing has it no more. What
//! cannot be proven within the bound is in doubt, and the next command that may write goes on with it.

use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, Generation, LeaseId, Lineage};
use stageline_core::journal::Record;
use stageline_core::resource::LeaseReceipt;
use stageline_core::state::Billed;
use stageline_core::unit::MicroDollars;

use super::doubt::blind;
use super::release::{Survivor, patience};
use super::step::{Run, Stop};
use crate::provider::{Blind, Machine, MachineStatus, Provider};

/// First and longest pause between two looks.
const POLL: Duration = Duration::from_millis(500);
const POLL_LONGEST: Duration = Duration::from_secs(5);

impl Run<'_> {
    /// Every machine that was given up and is not proven gone.
    pub(super) fn all_leaving(&self) -> Vec<(LeaseId, Generation, Attempt)> {
        self.state(|state| {
            let mut all = Vec::new();
            for (address, recorded) in &state.resources {
                let Address::Lease(lease) = address else {
                    continue;
                };
                let leaving = recorded.attempts.iter();
                let leaving = leaving.filter(|(_, open)| open.leaving.is_some());
                all.extend(
                    leaving.map(|(attempt, _)| (lease.clone(), recorded.generation, *attempt)),
                );
            }
            all
        })
    }

    /// Machines without those that were given up, and without what those and the one that is held may need while they are not
    /// listed.
    pub(super) fn but_leaving(&self, lease: &LeaseId, mut machines: Vec<Machine>) -> Vec<Machine> {
        self.state(|state| {
            let Some(recorded) = state.resources.get(&Address::Lease(lease.clone())) else {
                return;
            };
            let leaving = recorded.attempts.values();
            let leaving: Vec<&LeaseReceipt> =
                leaving.filter_map(|open| open.leaving.as_deref()).collect();
            machines.retain(|machine| {
                let mut known = leaving.iter().copied().chain(state.lease(lease));
                match machine.leftover() {
                    None => leaving.iter().all(|gone| gone.machine != machine.id),
                    Some(_) => known.all(|known| !is_of(machine, known)),
                }
            });
        });
        machines
    }

    /// Writes down what a machine is seen to cost while nobody else looks at it, where that is not what it was quoted at: in the end
    /// it is billed.
    pub(super) async fn note_cost(&self, lease: &LeaseId, machine: &Machine) -> Result<(), Stop> {
        let price = machine.price_per_hour;
        let address = Address::Lease(lease.clone());
        let bills = match &machine.status {
            MachineStatus::Pending(_) | MachineStatus::Running => price > MicroDollars::ZERO,
            MachineStatus::Ending | MachineStatus::Dead(_) | MachineStatus::Interrupted(_) => false,
        };
        // Not that of its name: a machine may be recorded under a later one than it was made for.
        let recorded = self.state(|state| {
            let recorded = state.resources.get(&address)?;
            let held = state.lease(lease)?;
            let other = held.machine == machine.id && held.price_per_hour != price;
            other.then_some(recorded.generation)
        });
        let Some(generation) = recorded.filter(|_| bills) else {
            return Ok(());
        };
        let record = Record::Seen {
            address,
            generation,
            attempt: None,
            price_per_hour: Some(price),
            at: self.effects.clock.now(),
        };
        self.journal.append(vec![record]).await?;
        Ok(())
    }

    fn leaving(
        &self,
        lease: &LeaseId,
        generation: Generation,
        attempt: Attempt,
    ) -> Option<(LeaseReceipt, Option<Billed>)> {
        self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()))?;
            let same = (recorded.generation == generation).then_some(recorded)?;
            let open = same.attempts.get(&attempt)?;
            Some((open.leaving.as_deref()?.clone(), open.billed))
        })
    }

    /// What there is of one machine, with what was made beside it: by the listing, and by its id, which a listing may have lost.
    async fn still_there(
        &self,
        provider: &Arc<dyn Provider>,
        lease: &LeaseId,
        receipt: &LeaseReceipt,
        lineage: &Lineage,
    ) -> Result<Vec<Machine>, Blind> {
        let mut listed = self.find_ours(provider.as_ref(), lease, lineage).await?;
        listed.retain(|one| is_of(one, receipt));
        if listed.iter().all(|one| one.id != receipt.machine) {
            listed.extend(provider.missed(&receipt.machine).await?);
        }
        Ok(listed)
    }

    /// Releases one machine that was given up until the listing proves it gone.
    pub(super) async fn see_off(
        &self,
        lease: &LeaseId,
        generation: Generation,
        attempt: Attempt,
    ) -> Result<(), Stop> {
        let Some((receipt, billed)) = self.leaving(lease, generation, attempt) else {
            return Ok(());
        };
        let provider = self
            .effects
            .providers
            .get(&receipt.provider, &receipt.provider_kind)
            .map_err(Stop::InDoubt)?;
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let Some(lineage) = lineage else {
            return Ok(());
        };
        let what = Survivor::Machine(&receipt.machine, receipt.price_per_hour);
        if let Some(other) = self.other_account(provider.as_ref(), lease).await {
            let cause = self.survives(lease, what, provider.as_ref(), Some(other));
            return Err(Stop::InDoubt(cause));
        }
        let address = Address::Lease(lease.clone());
        let quiet = self.unlisted(provider, &receipt, billed.as_ref());
        let machine = (&receipt.machine, &receipt.request_key);
        self.lets_in(provider.as_ref(), lease, machine);
        let start = self.effects.clock.boottime();
        let mut pause = POLL;
        loop {
            let watched = self.effects.clock.boottime().saturating_sub(start);
            let mut trouble = provider.release(&receipt.machine).await.err();
            match self.still_there(provider, lease, &receipt, &lineage).await {
                Err(error) => trouble = trouble.or_else(|| Some(blind(&error.cause))),
                Ok(listed) => {
                    for one in &listed {
                        self.note_end(one).await?;
                        if one.leftover().is_some() {
                            let left = provider.release(&one.id).await;
                            trouble = trouble.or(left.err());
                        }
                    }
                    if listed.is_empty() && trouble.is_none() && watched >= quiet {
                        break;
                    }
                }
            }
            if watched >= patience(provider.as_ref(), trouble.as_ref()) + quiet {
                return Err(Stop::InDoubt(self.survives(
                    lease,
                    what,
                    provider.as_ref(),
                    trouble,
                )));
            }
            self.pause(pause).await?;
            pause = (pause * 2).min(POLL_LONGEST);
        }
        let absent = Record::Absent {
            address: address.clone(),
            generation,
            attempt,
            at: self.effects.clock.now(),
        };
        // A release of the whole lease may have closed it meanwhile.
        if self.leaving(lease, generation, attempt).is_some() {
            self.journal.append(vec![absent]).await?;
            self.emit(Event::ExtraReleased {
                address,
                machine: receipt.machine,
            });
        }
        Ok(())
    }
}

/// Whether it is this machine, or was made beside it.
fn is_of(listed: &Machine, receipt: &LeaseReceipt) -> bool {
    let beside = listed.leftover().is_some();
    listed.id == receipt.machine
        || beside && listed.request_key.as_ref() == Some(&receipt.request_key)
}
