//! Renting a machine, and waiting until its agent answers.

use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, LeaseId, RequestKey};
use stageline_core::journal::Launch;
use stageline_core::plan::Choice;
use stageline_core::resource::{
    Cause, FailureClass, LeaseReady, LeaseReceipt, LeaseSpec, Outcome, Receipt, Spec,
};
use stageline_core::unit::{Bytes, Millis};

use super::doubt::{SEND_WINDOW, receipt};
use super::step::{Act, Made, Run, Stop, broken, lease_of};
use crate::machine::{MachineError, Target};
use crate::provider::{CreateRequest, Machine, MachineStatus, Provider};

/// Between two looks at a machine that is on its way.
const POLL: Duration = Duration::from_millis(200);

/// How much of a machine's own output goes into the message when it fails.
const LOG_TAIL: usize = 4096;

/// Tries before a lease is given up.
const ATTEMPTS_MAX: u32 = 5;

/// How often an intention is stamped again because the disk took longer than the send window.
const STAMPS_MAX: u32 = 5;

impl<'a> Run<'a> {
    /// Rents the first machine on the shortlist that can still be had on its terms.
    pub(super) async fn acquire(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        self.resolve(act, lease).await?;
        if self.held(lease, act.step.generation).is_some() {
            return self.done(act, Made::default()).await;
        }
        let terms = self.plan.leases.get(lease);
        let shortlist = terms
            .map(|terms| terms.shortlist.as_slice())
            .unwrap_or_default();
        let mut choices = shortlist.iter().peekable();
        let mut last = broken(format!("the plan has no offer for {lease}"));
        for _ in 0..ATTEMPTS_MAX {
            let Some(choice) = choices.peek() else { break };
            match self.launch(act, lease, choice).await {
                Ok(()) => return Ok(()),
                Err(Stop::Refused(cause)) if cause.class.moves_on() => {
                    choices.next();
                    self.emit(Event::StepRefused {
                        address: act.step.address.clone(),
                        generation: act.step.generation,
                        verb: act.step.verb,
                        cause: cause.clone(),
                        goes_on: choices.peek().is_some(),
                    });
                    last = cause;
                }
                // Once the doubt is closed without a machine, the same offer may be tried under a new key.
                Err(Stop::InDoubt(cause)) => {
                    self.resolve(act, lease).await?;
                    if self.held(lease, act.step.generation).is_some() {
                        return self.done(act, Made::default()).await;
                    }
                    last = cause;
                }
                Err(stop) => return Err(stop),
            }
        }
        Err(Stop::Refused(last))
    }

    /// One try: read the quote again, reserve, write down, send, write down.
    async fn launch(&self, act: Act<'a>, lease: &LeaseId, choice: &Choice) -> Result<(), Stop> {
        let Spec::Lease(spec) = self.spec(&act.step.address)? else {
            return Err(Stop::Refused(broken(format!(
                "the plan's spec for {lease} is no lease"
            ))));
        };
        let Some(terms) = spec.terms.iter().find(|terms| terms.offer == choice.offer) else {
            return Err(Stop::Refused(broken(format!(
                "{lease} has no offer `{}`",
                choice.offer
            ))));
        };
        let provider = self
            .effects
            .providers
            .get(&terms.provider, &terms.provider_kind)
            .map_err(Stop::Refused)?;
        let keys = self.keys().map_err(Stop::Refused)?;
        let quote = self
            .read_again(provider.as_ref(), lease, spec, choice)
            .await?;
        let attempt = self.next_attempt(lease, act);
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let lineage = lineage.ok_or_else(|| Stop::Refused(broken("no lineage".to_owned())))?;
        let generation = act.step.generation;
        let launch = Launch {
            attempt,
            request_key: RequestKey::derive(&lineage, &act.step.address, generation, attempt),
            provider: terms.provider.clone(),
            provider_kind: terms.provider_kind.clone(),
            offer: choice.offer.clone(),
            quote: quote.id.clone(),
            price_per_hour: quote.price_per_hour,
            reservation: terms
                .ceiling
                .unwrap_or(quote.price_per_hour)
                .max(quote.price_per_hour),
        };
        self.stamp(act, lease, &launch).await?;
        let request = CreateRequest {
            request_key: launch.request_key.clone(),
            quote,
            disk: Bytes::gib(20),
            boot: keys.boot(lease, generation, attempt),
        };
        let outcome = self.send(provider.as_ref(), request).await;
        self.launched(act, provider.as_ref(), &launch, outcome)
            .await
    }

    /// Records how a create ended. An id is durable before anything else happens.
    async fn launched(
        &self,
        act: Act<'a>,
        provider: &dyn Provider,
        launch: &Launch,
        outcome: Outcome<Machine>,
    ) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        let machine = match outcome {
            Outcome::Done(machine) => machine,
            Outcome::Refused(cause) => {
                return self
                    .outcome(act, Some(launch.attempt), Outcome::Refused(cause))
                    .await;
            }
            Outcome::InDoubt(cause) => {
                return self
                    .outcome(act, Some(launch.attempt), Outcome::InDoubt(cause))
                    .await;
            }
        };
        let receipt = receipt(launch, &machine, self.effects.clock.now());
        let made = Made {
            spec: Some(self.spec(&act.step.address)?.clone()),
            receipt: Some(Receipt::Lease(Box::new(receipt))),
        };
        match self.done(act, made).await {
            Ok(()) => {
                let (lease, price_per_hour) = (lease.clone(), machine.price_per_hour);
                self.emit(Event::LeaseUp {
                    lease,
                    machine: machine.id,
                    price_per_hour,
                });
                Ok(())
            }
            Err(stop) => {
                self.abandon(provider, lease, &machine).await;
                Err(stop)
            }
        }
    }

    /// The offer right before the launch, compared with the requirement and the ceiling again.
    async fn read_again(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        spec: &LeaseSpec,
        choice: &Choice,
    ) -> Result<stageline_core::offer::Quote, Stop> {
        let gone = |message: String| Stop::Refused(Cause::new(FailureClass::OfferGone, message));
        let id = &choice.quote.id;
        let quote = match provider.quote(id).await {
            Ok(Some(quote)) => quote,
            Ok(None) => return Err(gone(format!("{lease}: offer `{id}` is gone"))),
            Err(blind) => return Err(Stop::Refused(super::doubt::blind(&blind.cause))),
        };
        let terms = spec.terms.iter().find(|terms| terms.offer == choice.offer);
        let terms = terms.ok_or_else(|| gone(format!("{lease}: no offer `{}`", choice.offer)))?;
        if let Some(misfit) = terms.requirement.misfits(&quote.facts).first() {
            let (term, found) = (&misfit.term, &misfit.found);
            return Err(gone(format!(
                "{lease}: offer `{id}` has {found} now, asked was {term}"
            )));
        }
        if let Some(ceiling) = terms
            .ceiling
            .filter(|ceiling| quote.price_per_hour > *ceiling)
        {
            let price = quote.price_per_hour;
            return Err(gone(format!(
                "{lease}: offer `{id}` costs {price} per hour now, above the ceiling of {ceiling}"
            )));
        }
        Ok(quote)
    }

    fn next_attempt(&self, lease: &LeaseId, act: Act<'a>) -> Attempt {
        self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let same = recorded.filter(|recorded| recorded.generation == act.step.generation);
            same.map_or(Attempt(1), |recorded| recorded.last_attempt.next())
        })
    }

    /// Reserves the money and writes the try down, again when that took longer than the send window.
    async fn stamp(&self, act: Act<'a>, lease: &LeaseId, launch: &Launch) -> Result<(), Stop> {
        for _ in 0..STAMPS_MAX {
            self.reserve(lease, launch)?;
            let before = self.effects.clock.boottime();
            let started = self.started(act, Some(launch.clone())).await;
            let reserving = self.reserving.get().0 - launch.reservation.0;
            self.reserving
                .set(stageline_core::unit::MicroDollars(reserving));
            started?;
            self.emit(Event::Launching {
                lease: lease.clone(),
                attempt: launch.attempt,
                request_key: launch.request_key.clone(),
                offer: launch.offer.clone(),
                quote: launch.quote.clone(),
                price_per_hour: launch.price_per_hour,
                requoted: false,
            });
            if self.effects.clock.boottime().saturating_sub(before) <= SEND_WINDOW {
                return Ok(());
            }
        }
        let message = format!("{lease}: the state store needs more than 5 s for each write");
        let cause = Cause::new(FailureClass::Unknown, message)
            .hint("nothing was rented; use a faster place for the state, then run apply again");
        self.outcome(act, Some(launch.attempt), Outcome::Refused(cause))
            .await
    }

    /// Counts a launch against the cap until the journal does.
    fn reserve(&self, lease: &LeaseId, launch: &Launch) -> Result<(), Stop> {
        let address = Address::Lease(lease.clone());
        let committed = self.state(|state| {
            let own = state
                .resources
                .get(&address)
                .and_then(|r| r.attempts.get(&launch.attempt));
            let own = own.map_or(0, |open| open.launch.reservation.0);
            state.committed_per_hour().0.saturating_sub(own)
        });
        let pending = self.reserving.get().0;
        if let Some(cap) = self.options.max_total_per_hour {
            let sum = committed
                .saturating_add(pending)
                .saturating_add(launch.reservation.0);
            if sum > cap.0 {
                let sum = stageline_core::unit::MicroDollars(sum);
                let message = format!("{lease}: all machines together could cost {sum} per hour");
                return Err(Stop::Refused(
                    Cause::new(FailureClass::Money, message).hint(format!(
                        "limits.max_total_per_hour is {cap}; raise it, or ask less"
                    )),
                ));
            }
        }
        self.reserving.set(stageline_core::unit::MicroDollars(
            pending + launch.reservation.0,
        ));
        Ok(())
    }

    /// The one call that is unsafe to repeat. A time-out is in doubt, never refused.
    async fn send(&self, provider: &dyn Provider, request: CreateRequest) -> Outcome<Machine> {
        let key = request.request_key.clone();
        let limit = provider.traits().request_timeout;
        tokio::select! {
            biased;
            outcome = provider.create(request) => outcome,
            () = self.effects.clock.sleep(limit) => {
                let seconds = limit.as_secs();
                let message = format!("no answer to the create of {key} within {seconds} s");
                Outcome::InDoubt(Cause::new(FailureClass::Unknown, message))
            }
        }
    }

    /// A machine came up, but the journal takes no more entries from us: if the run that fenced us knows it, it is
    /// theirs; else nobody would ever end it.
    async fn abandon(&self, provider: &dyn Provider, lease: &LeaseId, machine: &Machine) {
        let known = self.journal.reread().await.is_ok_and(|state| {
            state
                .lease(lease)
                .is_some_and(|held| held.machine == machine.id)
        });
        if !known && provider.release(&machine.id).await.is_ok() {
            let (address, machine) = (Address::Lease(lease.clone()), machine.id.clone());
            self.emit(Event::ExtraReleased { address, machine });
        }
    }

    /// Waits until the machine's agent answers with facts that fit. A machine that never gets there is released: it
    /// costs money.
    pub(super) async fn await_ready(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        let Some(held) = self.held(lease, act.step.generation) else {
            return Err(Stop::Refused(broken(format!(
                "{lease} has no machine to wait for"
            ))));
        };
        let Spec::Lease(spec) = self.spec(&act.step.address)? else {
            return Err(Stop::Refused(broken(format!(
                "the plan's spec for {lease} is no lease"
            ))));
        };
        self.started(act, None).await?;
        let start = self.effects.clock.boottime();
        match self.wait(act, lease, spec, &held, start).await? {
            Ok(ready) => {
                let receipt = LeaseReceipt {
                    ready: Some(ready),
                    ..held
                };
                let made = Made {
                    spec: Some(Spec::Lease(spec.clone())),
                    receipt: Some(Receipt::Lease(Box::new(receipt))),
                };
                self.done(act, made).await?;
                self.emit(Event::LeaseReady {
                    lease: lease.clone(),
                    waited: self.since(start),
                });
                Ok(())
            }
            Err(cause) => {
                let refused = self.outcome(act, None, Outcome::Refused(cause)).await;
                if let Err(Stop::Refused(_)) = &refused {
                    self.end_lease(act, lease).await?;
                }
                refused
            }
        }
    }

    async fn wait(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        spec: &LeaseSpec,
        held: &LeaseReceipt,
        start: Duration,
    ) -> Result<Result<LeaseReady, Cause>, Stop> {
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        let provider = provider.map_err(Stop::Refused)?;
        let keys = self.keys().map_err(Stop::Refused)?;
        let machines = self.machines().map_err(Stop::Refused)?;
        let (generation, attempt) = held.request_key.try_of();
        let endpoint = keys.endpoint(lease, generation, attempt);
        let limit = spec
            .acquire_timeout
            .map_or(provider.traits().acquire_timeout, Millis::duration);
        let mut told = Duration::ZERO;
        loop {
            let phase = match provider.describe(&held.machine).await {
                Ok(Some(machine)) => match machine.status {
                    MachineStatus::Dead(why) => {
                        return Ok(Err(self.died(provider.as_ref(), lease, held, &why).await));
                    }
                    MachineStatus::Ending => "it is being ended by somebody else".to_owned(),
                    MachineStatus::Pending(phase) => phase,
                    MachineStatus::Running => {
                        let contact = machine.contact;
                        let target = Target {
                            lease: lease.clone(),
                            endpoint,
                            contact,
                        };
                        match machines.status(&target).await {
                            Ok(status) => {
                                let contact = target.contact;
                                return Ok(gate(lease, spec, status.facts).map(|facts| {
                                    LeaseReady {
                                        facts,
                                        endpoint,
                                        contact,
                                    }
                                }));
                            }
                            Err(error @ MachineError::Refused { .. }) => {
                                let message = error.to_string();
                                return Ok(Err(Cause::new(FailureClass::Config, message)));
                            }
                            Err(MachineError::Unreachable { why, .. }) => why,
                        }
                    }
                },
                Ok(None) => "the provider does not list it yet".to_owned(),
                Err(blind) => blind.to_string(),
            };
            let waited = self.effects.clock.boottime().saturating_sub(start);
            if waited >= limit {
                let why = format!("it was not ready within {} s: {phase}", limit.as_secs());
                return Ok(Err(self.died(provider.as_ref(), lease, held, &why).await));
            }
            if waited >= told {
                told = waited + Duration::from_secs(1);
                let (address, verb, waited) =
                    (act.step.address.clone(), act.step.verb, self.since(start));
                self.emit(Event::Waiting {
                    address,
                    verb,
                    what: phase,
                    waited,
                });
            }
            self.pause(POLL).await?;
        }
    }

    /// Why a machine failed, with the end of what it printed itself.
    async fn died(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        held: &LeaseReceipt,
        why: &str,
    ) -> Cause {
        let machine = &held.machine;
        let log = provider.logs(machine, LOG_TAIL).await.unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let tail = if log.trim().is_empty() {
            String::new()
        } else {
            format!("\n{}", log.trim())
        };
        Cause::new(
            FailureClass::Unknown,
            format!("{lease}: machine `{machine}` failed: {why}{tail}"),
        )
        .hint("it is being released, so that it costs nothing; run apply again for a new one")
    }
}

/// Measured facts against the requirement of the terms under which the machine was taken.
fn gate(
    lease: &LeaseId,
    spec: &LeaseSpec,
    facts: stageline_core::offer::Facts,
) -> Result<stageline_core::offer::Facts, Cause> {
    let misfits = spec
        .terms
        .iter()
        .map(|terms| terms.requirement.misfits(&facts));
    let Some(fewest) = misfits
        .min_by_key(Vec::len)
        .filter(|misfits| !misfits.is_empty())
    else {
        return Ok(facts);
    };
    let list: Vec<String> = fewest
        .iter()
        .map(|misfit| format!("asked {}, measured {}", misfit.term, misfit.found))
        .collect();
    let message = format!(
        "{lease}: the machine is not what was asked for: {}",
        list.join("; ")
    );
    Err(Cause::new(FailureClass::OfferGone, message)
        .hint("it is being released; run apply again for another one"))
}
