//! From a machine that exists to one that is ready, and what becomes of one that never is.
//!
//! Ready is an agent that answers with facts that it measured and that fit, at a price within the ceiling. A machine that is
//! dead, too slow, too dear or another than claimed is given up: it is written down as one that is to be ended, and the next offer
//! follows where the plan rents one. How long is too long is said in [`super::course`].

use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Generation, LeaseId};
use stageline_core::journal::{Launch, Record, Verb};
use stageline_core::offer::Facts;
use stageline_core::plan::{StepId, as_made};
use stageline_core::resource::{
    Cause, FailureClass, LeaseLimits, LeaseReady, LeaseReceipt, LeaseSpec, Receipt, Spec,
};

use super::bring::{SLOW_LINE, is_upload, not_pulled, why_not_heard};
use super::claims::{cannot_end_itself, contradicts, gate, held_against, with_claims};
use super::course::{Course, OnItsWay};
use super::doubt::{Found, of_generation};
use super::lease::reserved;
use super::room::Counted;
use super::setup;
use super::step::{Act, Made, Nudge, Run, Stop, broken, lease_of};
use crate::machine::{MachineError, Target};
use crate::provider::{AGENT_PHASE, Blind, Machine, MachineStatus, NOT_PULLED, Phase, Provider};

/// Between two looks at a machine that is on its way.
const POLL: Duration = Duration::from_millis(200);

/// What is seen of a machine that is on its way.
pub(super) enum Glance {
    /// Its agent answers, with facts that fit.
    Ready(Box<Ready>),
    /// It will never be what was asked for.
    Failed(Failure),
    /// The provider knows no such machine, or not yet.
    Unlisted,
    /// The provider's answer says nothing of it.
    Blind(Blind),
    /// It is on its way; how far.
    Pending(Phase),
}

/// A machine whose agent answers with facts that fit.
pub(super) struct Ready {
    pub(super) found: LeaseReady,
    /// The limits by which it ends itself, where it does.
    keeps: Option<LeaseLimits>,
}

/// Why a machine is given up.
pub(super) struct Failure {
    pub cause: Cause,
    /// It is the machine's fault: its host is noted.
    pub noted: bool,
    /// Another machine may do better.
    pub moves_on: bool,
    /// What explains it best; without any, the end of what the machine printed does.
    pub lines: Vec<String>,
}

impl Failure {
    /// No other machine would do better.
    pub fn for_good(cause: Cause) -> Self {
        Self {
            cause,
            noted: false,
            moves_on: false,
            lines: Vec::new(),
        }
    }

    /// It is that machine's fault.
    pub fn of_machine(cause: Cause) -> Self {
        Self {
            noted: true,
            moves_on: true,
            ..Self::for_good(cause)
        }
    }
}

impl<'a> Run<'a> {
    /// Waits until the machine's agent answers with facts that fit. A machine that never gets there is given up, and the
    /// next offer is tried where this plan rents one.
    pub(super) async fn await_ready(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        let Spec::Lease(spec) = self.spec(&act.step.address)? else {
            return Err(Stop::Refused(broken(format!(
                "the plan's spec for {lease} is no lease"
            ))));
        };
        let renting = self.renting(act);
        self.gang_begins(lease);
        loop {
            let Some(held) = self.held(lease, act.step.generation) else {
                let Some(renting) = renting else {
                    let message =
                        format!("{lease}: its machine never became ready and has been released");
                    let cause = Cause::new(FailureClass::Unknown, message)
                        .hint("this plan rents no other one; plan and apply again");
                    return Err(Stop::Refused(cause));
                };
                self.resolve(renting, lease).await?;
                if self.held(lease, act.step.generation).is_none() {
                    self.gang_is_clear(lease).await?;
                    self.rent(renting, lease).await?;
                }
                continue;
            };
            self.started(act, None).await?;
            let start = self.effects.clock.boottime();
            let waited = self.wait(act, lease, spec, &held, start).await?;
            // What it costs may have been another thing than what was quoted.
            let held = self.held(lease, act.step.generation).unwrap_or(held);
            let failure = match waited {
                Ok(ready) => return self.is_ready(act, lease, held, ready, start).await,
                Err(failure) => failure,
            };
            let goes_on =
                failure.moves_on && renting.is_some_and(|renting| self.tries_left(renting, spec));
            let cause = self.give_up(act, lease, &held, failure, goes_on).await?;
            if !goes_on {
                return Err(Stop::Refused(cause));
            }
        }
    }

    /// The step of this plan that rents the machine, if one does.
    fn renting(&self, act: Act<'a>) -> Option<Act<'a>> {
        let steps = (0_u32..).zip(&self.plan.steps);
        let rents = |(id, step): (u32, &'a stageline_core::plan::Step)| {
            let own = step.address == act.step.address && step.generation == act.step.generation;
            (own && step.verb == Verb::Acquire).then_some(Act {
                id: StepId(id),
                step,
            })
        };
        // It stands right before.
        let before: Vec<_> = steps.take(act.id.0 as usize).collect();
        before.into_iter().rev().find_map(rents)
    }

    async fn is_ready(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        held: LeaseReceipt,
        Ready { found, keeps }: Ready,
        start: Duration,
    ) -> Result<(), Stop> {
        self.sweep(act, lease, &held).await?;
        self.keeps_what_is_declared(act, lease, &found, keeps)
            .await?;
        let receipt = LeaseReceipt {
            ready: Some(found),
            ..held
        };
        self.gang_has(lease);
        if let Some(cause) = self.gang_broken(lease) {
            let failure = Failure::for_good(cause);
            let cause = self.give_up(act, lease, &receipt, failure, false).await?;
            return Err(Stop::Refused(cause));
        }
        let wanted = self.spec(&act.step.address)?;
        let made = Made {
            // It may have been made by an earlier plan.
            spec: Some(self.state(|state| {
                let recorded = state.resources.get(&act.step.address);
                as_made(wanted, recorded.and_then(|recorded| recorded.spec.as_ref()))
            })),
            receipt: Some(Receipt::Lease(Box::new(receipt.clone()))),
            dated: None,
        };
        self.done(act, made).await?;
        if let Some(cause) = self.gang_broken(lease) {
            // While that was written down.
            self.disband(lease, act.step.generation, &receipt).await?;
            return Err(Stop::Refused(cause));
        }
        self.emit(Event::LeaseReady {
            lease: lease.clone(),
            waited: self.since(start),
        });
        Ok(())
    }

    /// The file may say other limits by the time a machine is ready than it booted with. One that ends itself is told.
    async fn keeps_what_is_declared(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        found: &LeaseReady,
        keeps: Option<LeaseLimits>,
    ) -> Result<(), Stop> {
        let Spec::Lease(spec) = self.spec(&act.step.address)? else {
            return Ok(());
        };
        let limits = LeaseLimits::of(spec);
        if keeps.is_none_or(|keeps| keeps == limits) {
            return Ok(());
        }
        let target = Target {
            lease: lease.clone(),
            endpoint: found.endpoint,
            contact: found.contact.clone(),
        };
        let machines = self.machines().map_err(Stop::Refused)?;
        let told = self.ask(|| machines.limit(&target, limits)).await?;
        told.map_err(Stop::Refused)
    }

    /// Writes down that a machine is to be ended, tells why, and has it ended beside whatever comes next.
    async fn give_up(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        held: &LeaseReceipt,
        failure: Failure,
        goes_on: bool,
    ) -> Result<Cause, Stop> {
        let Failure {
            cause,
            noted,
            lines,
            ..
        } = failure;
        let log = match lines.is_empty() {
            true => self.last_lines(held).await,
            false => lines,
        };
        let hint = if goes_on {
            "it is being released, so that it costs nothing; the next offer follows"
        } else {
            "it is being released, so that it costs nothing; run apply again for a new one"
        };
        let cause = match cause.hint {
            Some(_) => cause,
            None => cause.hint(hint),
        };
        self.leave(lease, act.step.generation, held, &cause, noted)
            .await?;
        self.emit(Event::MachineFailed {
            lease: lease.clone(),
            machine: held.machine.clone(),
            cause: cause.clone(),
            noted,
            goes_on,
            log,
        });
        Ok(cause)
    }

    /// Records that a machine is to be ended, and starts to end it.
    pub(super) async fn leave(
        &self,
        lease: &LeaseId,
        generation: Generation,
        held: &LeaseReceipt,
        cause: &Cause,
        noted: bool,
    ) -> Result<(), Stop> {
        let (_, attempt) = held.request_key.try_of();
        let address = Address::Lease(lease.clone());
        let record = Record::GaveUp {
            address: address.clone(),
            generation,
            launch: Box::new(self.launch_behind(&address, held)),
            cause: cause.clone(),
            noted,
            at: self.effects.clock.now(),
        };
        self.journal.append(vec![record]).await?;
        self.nudge(Nudge::Leave(lease.clone(), generation, attempt));
        Ok(())
    }

    /// The try that made a machine, at the most that it may cost.
    fn launch_behind(&self, address: &Address, held: &LeaseReceipt) -> Launch {
        let (_, attempt) = held.request_key.try_of();
        let ceiling = self.state(|state| {
            let recorded = state.resources.get(address)?;
            let Some(Spec::Lease(spec)) = &recorded.spec else {
                return None;
            };
            let mut terms = spec.terms.iter();
            terms.find(|terms| terms.offer == held.offer)?.ceiling
        });
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        Launch {
            attempt,
            request_key: held.request_key.clone(),
            provider: held.provider.clone(),
            provider_kind: held.provider_kind.clone(),
            account: held.account.clone(),
            offer: held.offer.clone(),
            quote: held.quote.clone(),
            price_per_hour: held.price_per_hour,
            boots_free: provider
                .as_ref()
                .is_ok_and(|provider| !provider.traits().bills_booting),
            reservation: match provider {
                Ok(provider) => reserved(provider.as_ref(), ceiling, held.price_per_hour),
                Err(_) => ceiling
                    .unwrap_or(held.price_per_hour)
                    .max(held.price_per_hour),
            },
            limits: self.state(|state| state.resources.get(address)?.limits_in_force()),
            place: held.place.clone(),
        }
    }

    /// One create may make two machines, and the second may be listed when the first is kept already: what is there
    /// beside a machine that is ready now is released. A blind listing shows no extra, and hides none for long.
    async fn sweep(&self, act: Act<'a>, lease: &LeaseId, held: &LeaseReceipt) -> Result<(), Stop> {
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        let (Some(lineage), Ok(provider)) = (lineage, provider) else {
            return Ok(());
        };
        let found = self.find_ours(provider.as_ref(), lease, &lineage).await;
        let machines = found.unwrap_or_default();
        let machines = of_generation(machines, act.step.generation);
        let found = Found::of(self.but_leaving(lease, machines));
        for machine in &found.machines {
            if machine.id != held.machine {
                self.release_extra(act, provider, machine).await?;
            }
        }
        self.remove_left(act, provider, &found.left).await
    }

    async fn wait(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        spec: &LeaseSpec,
        held: &LeaseReceipt,
        start: Duration,
    ) -> Result<Result<Ready, Failure>, Stop> {
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        let provider = provider.map_err(Stop::Refused)?.as_ref();
        let mut told = Duration::ZERO;
        let mut counted = Counted::default();
        let mut course = Course::begin(provider, spec, self.quoted(lease, held), start);
        loop {
            if let Some(cause) = self.gang_broken(lease) {
                return Ok(Err(Failure::for_good(cause)));
            }
            let before = self.effects.clock.boottime();
            let glance = match self.look(provider, lease, held).await {
                Ok(machine) => {
                    course.lists(&machine, before);
                    self.glance(provider, lease, spec, held, &machine).await?
                }
                Err(glance) => glance,
            };
            let own = (lease, held);
            let on_its_way = match self.within_caps(own, provider, &mut counted, glance).await {
                Glance::Ready(ready) => return Ok(Ok(*ready)),
                Glance::Failed(failure) => return Ok(Err(failure)),
                Glance::Unlisted => OnItsWay::Unlisted,
                Glance::Blind(cause) => OnItsWay::Unseen(cause),
                Glance::Pending(phase) => OnItsWay::In(phase),
            };
            let now = self.effects.clock.boottime();
            let phase = on_its_way.phase();
            if let Some(why) = course.over(&on_its_way, before, now) {
                return Ok(Err(too_slow(lease, held, &why, &on_its_way)));
            }
            let waited = now.saturating_sub(start);
            if waited >= told {
                told = waited + Duration::from_secs(1);
                let (address, verb, waited) =
                    (act.step.address.clone(), act.step.verb, self.since(start));
                self.emit(Event::Waiting {
                    address,
                    verb,
                    what: phase.to_string(),
                    waited,
                });
            }
            self.pause(POLL).await?;
        }
    }

    /// The machine as its provider shows it now, where it does.
    async fn look(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        held: &LeaseReceipt,
    ) -> Result<Machine, Glance> {
        match provider.describe(&held.machine).await {
            Ok(Some(machine)) => Ok(machine),
            Ok(None) => Err(match self.is_of_account(provider, lease, &[]).await {
                Ok(()) => Glance::Unlisted,
                Err(blind) => Glance::Blind(blind),
            }),
            Err(blind) => Err(Glance::Blind(blind)),
        }
    }

    /// What is to be said of a machine that its provider shows, and of its agent once it runs.
    async fn glance(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        spec: &LeaseSpec,
        held: &LeaseReceipt,
        machine: &Machine,
    ) -> Result<Glance, Stop> {
        self.note_cost(lease, machine).await?;
        if let Some(glance) = by_record(lease, spec, held, machine) {
            return Ok(glance);
        }
        if provider.brings()
            && let Some(glance) = self.bring(provider, (lease, held), false).await?
        {
            return Ok(glance);
        }
        let (generation, attempt) = held.request_key.try_of();
        let target = Target {
            lease: lease.clone(),
            endpoint: self.keys().map_err(Stop::Refused)?.endpoint(
                &self.made_for(lease),
                generation,
                attempt,
            ),
            contact: machine.contact.clone(),
        };
        let machines = self.machines().map_err(Stop::Refused)?;
        let (facts, keeps, known) = match machines.status(&target).await {
            Ok(status) => {
                let facts = with_claims(status.facts, &machine.facts);
                (facts, status.limits, status.setup)
            }
            Err(error @ MachineError::Refused { .. }) => {
                return Ok(Glance::Failed(Failure::for_good(Cause::new(
                    FailureClass::Config,
                    error.to_string(),
                ))));
            }
            Err(MachineError::Unreachable { .. }) => {
                return Ok(Glance::Pending(Phase::new(AGENT_PHASE)));
            }
        };
        let claimed = self.quoted(lease, held).unwrap_or(&machine.facts);
        let claimed = held_against(provider, spec, claimed);
        if let Err(cause) = gate(lease, spec, held, &claimed, &facts, machine.price_per_hour) {
            return Ok(Glance::Failed(Failure::of_machine(cause)));
        }
        if let Some(cause) = cannot_end_itself(lease, provider, spec, keeps) {
            return Ok(Glance::Failed(Failure::for_good(cause)));
        }
        if let Some(glance) = self.set_up(lease, spec, held, &target, known).await? {
            return Ok(glance);
        }
        Ok(Glance::Ready(Box::new(Ready {
            found: LeaseReady {
                facts: facts.into(),
                endpoint: target.endpoint,
                contact: target.contact,
            },
            keeps,
        })))
    }

    /// What was claimed when the machine was chosen; none of a fresh quote, of which only the machine's own record is left.
    fn quoted(&self, lease: &LeaseId, held: &LeaseReceipt) -> Option<&Facts> {
        let terms = self.plan.leases.get(lease);
        let mut shortlist = terms.into_iter().flat_map(|terms| terms.shortlist.iter());
        let chosen = shortlist
            .find(|choice| choice.quote.provider == held.provider && choice.quote.id == held.quote);
        chosen.map(|choice| &choice.quote.facts)
    }
}

/// What is to be said of a machine by its provider's record alone; none of one that runs and may be what was asked for.
fn by_record(
    lease: &LeaseId,
    spec: &LeaseSpec,
    held: &LeaseReceipt,
    machine: &Machine,
) -> Option<Glance> {
    let pending = match &machine.status {
        MachineStatus::Dead(why) | MachineStatus::Interrupted(why) => {
            return Some(Glance::Failed(died(lease, held, why)));
        }
        MachineStatus::Ending => return Some(Glance::Failed(ended(lease, held))),
        MachineStatus::Pending(phase) => Some(Glance::Pending(phase.clone())),
        MachineStatus::Running => None,
    };
    match contradicts(lease, spec, held, machine) {
        Err(cause) => Some(Glance::Failed(Failure::of_machine(cause))),
        Ok(()) => pending,
    }
}

fn died(lease: &LeaseId, held: &LeaseReceipt, why: &str) -> Failure {
    if why.starts_with(NOT_PULLED) {
        return not_pulled(lease, held, why);
    }
    let machine = &held.machine;
    let message = format!("{lease}: machine `{machine}` failed: {why}");
    Failure::of_machine(Cause::new(FailureClass::Unknown, message))
}

/// Nobody but us may end it as far as we know, and it was not us. Its host did nothing wrong.
fn ended(lease: &LeaseId, held: &LeaseReceipt) -> Failure {
    Failure {
        noted: false,
        ..died(lease, held, "it is being ended by somebody else")
    }
}

/// A machine that took too long. One that runs and whose agent is not heard may only be behind a firewall; one whose provider cannot
/// be seen may be as it should.
fn too_slow(lease: &LeaseId, held: &LeaseReceipt, why: &str, on_its_way: &OnItsWay) -> Failure {
    let mut failure = died(lease, held, why);
    let phase = match on_its_way {
        OnItsWay::In(phase) => phase,
        OnItsWay::Unlisted => return failure,
        OnItsWay::Unseen(blind) => {
            // It may be as it should: a second one is not rented because nobody can look.
            (failure.noted, failure.moves_on) = (false, false);
            failure.cause.class = blind.cause.class;
            return failure;
        }
    };
    if setup::is_setup(phase) {
        (failure.noted, failure.moves_on) = (false, false);
        let hint = "see why `setup` takes so long, or give it longer by `acquire_timeout`; the machine is being released";
        failure.cause = failure.cause.hint(hint);
    }
    if is_upload(phase) {
        (failure.noted, failure.moves_on) = (false, false);
        failure.cause = failure.cause.hint(SLOW_LINE);
    }
    if let Some(hint) = why_not_heard(phase) {
        failure.cause = failure.cause.hint(hint);
    }
    failure
}

#[cfg(test)]
mod tests {
    use stageline_core::id::RequestKey;

    use super::*;
    use crate::ssh::UPLOADS;

    #[test]
    fn an_upload_that_is_too_slow_is_no_fault_of_the_host_and_costs_no_second_machine() {
        let key: RequestKey = "sl-00112233445566aa-0011aabb-g1a1".parse().expect("a key");
        let name = || "own".parse().expect("a name");
        let held = LeaseReceipt {
            provider: name(),
            provider_kind: "ssh".to_owned(),
            account: None,
            offer: name(),
            quote: stageline_core::offer::QuoteId("one".to_owned()),
            machine: key.as_str().parse().expect("an id"),
            request_key: key,
            price_per_hour: stageline_core::unit::MicroDollars(1),
            created_at: Default::default(),
            place: Default::default(),
            ready: None,
        };
        let lease = LeaseId {
            name: name(),
            index: 0,
        };
        let slow = |phase: &str| {
            let failure = too_slow(&lease, &held, "too long", &OnItsWay::In(Phase::new(phase)));
            (failure.noted, failure.moves_on)
        };
        assert_eq!(UPLOADS.map(slow), [(false, false); 2]);
        assert_eq!(slow("loading"), (true, true));
    }
}
