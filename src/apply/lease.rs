//! Renting a machine, and waiting until its agent answers.

use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, LeaseId, RequestKey};
use stageline_core::journal::Launch;
use stageline_core::offer::Facts;
use stageline_core::plan::{Choice, unfit};
use stageline_core::resource::{
    Cause, FailureClass, LeaseReady, LeaseReceipt, LeaseSpec, Outcome, Receipt, Spec,
};
use stageline_core::unit::{MicroDollars, Millis};

use super::doubt::{SEND_WINDOW, horizon, of_generation, receipt};
use super::step::{Act, Made, Run, Stop, broken, lease_of};
use crate::machine::{MachineError, Target};
use crate::provider::{CreateRequest, Machine, MachineStatus, Provider};

/// Between two looks at a machine that is on its way.
const POLL: Duration = Duration::from_millis(200);

/// How much of a machine's own output goes into the message when it fails.
const LOG_TAIL: usize = 4096;

/// Tries before a lease is given up.
const ATTEMPTS_MAX: u32 = 5;

/// How often a machine that nobody else knows is released before it is left to the next run.
const ABANDONS_MAX: u32 = 5;

/// How often an intention is stamped again because the disk took longer than the send window.
const STAMPS_MAX: u32 = 5;

/// What is seen of a machine that is on its way.
enum Glance {
    /// Its agent answers, with facts that fit.
    Ready(Box<LeaseReady>),
    /// Its agent answers, and it is not what was asked for.
    Misfit(Cause),
    /// It is broken for good.
    Dead(String),
    /// The provider knows no such machine, or not yet.
    Unlisted,
    /// It is on its way; how far, in words.
    Pending(String),
}

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
        let mut last = Cause::new(
            FailureClass::OfferGone,
            format!("{lease}: no machine of an earlier try appeared, and the plan has no offer for a new one"),
        )
        .hint("run plan and apply again");
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
        let account = provider.account().await;
        let account = account.map_err(|blind| Stop::Refused(super::doubt::blind(&blind.cause)))?;
        // Before the offer is read again and the intention is stamped: a create goes out right after these.
        let turn = provider.turn();
        if !turn.is_zero() {
            self.pause(turn).await?;
        }
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
            account,
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
            disk: spec.disk,
            image: terms.image.clone(),
            agent: terms.agent.clone(),
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
        let quote = match provider.quote(id, spec.disk).await {
            Ok(Some(quote)) => quote,
            Ok(None) => return Err(gone(format!("{lease}: offer `{id}` is gone"))),
            Err(blind) => return Err(Stop::Refused(super::doubt::blind(&blind.cause))),
        };
        let terms = spec.terms.iter().find(|terms| terms.offer == choice.offer);
        let terms = terms.ok_or_else(|| gone(format!("{lease}: no offer `{}`", choice.offer)))?;
        let why = unfit(terms, spec.memory, Some(&quote.facts), quote.price_per_hour);
        if why.is_empty() {
            return Ok(quote);
        }
        let why = why.join(", ");
        Err(gone(format!(
            "{lease}: offer `{id}` no longer is what was asked for: {why}"
        )))
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
            let own = (lease.clone(), launch.attempt);
            self.reserving.borrow_mut().remove(&own);
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
        self.within_spend(lease)?;
        let mut reserving = self.reserving.borrow_mut();
        let own = (lease.clone(), launch.attempt);
        if let Some(cap) = self.options.max_total_per_hour {
            let sum = self.state(|state| {
                let open = |(lease, attempt): &(LeaseId, Attempt)| {
                    let recorded = state.resources.get(&Address::Lease(lease.clone()))?;
                    recorded.attempts.get(attempt)
                };
                // A launch is in the state a moment before its append returns; it must not count twice then.
                let pending = reserving.iter().filter(|(key, _)| open(key).is_none());
                let pending = pending.fold(0_u64, |sum, (_, more)| sum.saturating_add(more.0));
                let again = open(&own).map_or(0, |open| open.launch.reservation.0);
                let committed = state.committed_per_hour().0.saturating_sub(again);
                let sum = committed.saturating_add(pending);
                MicroDollars(sum.saturating_add(launch.reservation.0))
            });
            if sum > cap {
                let message = format!("{lease}: all machines together could cost {sum} per hour");
                return Err(Stop::Refused(
                    Cause::new(FailureClass::Money, message).hint(format!(
                        "limits.max_total_per_hour is {cap}; raise it, or ask less"
                    )),
                ));
            }
        }
        reserving.insert(own, launch.reservation);
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
        if known {
            return;
        }
        for _ in 0..ABANDONS_MAX {
            if provider.release(&machine.id).await.is_ok() {
                let (address, machine) = (Address::Lease(lease.clone()), machine.id.clone());
                return self.emit(Event::ExtraReleased { address, machine });
            }
            self.effects.clock.sleep(POLL).await;
        }
    }

    /// Waits until the machine's agent answers with facts that fit. A machine that never gets there is released: it
    /// costs money.
    pub(super) async fn await_ready(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        let Some(held) = self.held(lease, act.step.generation) else {
            let message = format!("{lease}: its machine never became ready and has been released");
            let cause = Cause::new(FailureClass::Unknown, message)
                .hint("this plan rents no other one; plan and apply again");
            return Err(Stop::Refused(cause));
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
                self.sweep(act, lease, &held).await?;
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
        for machine in of_generation(machines, act.step.generation) {
            if machine.id != held.machine {
                self.release_extra(act, provider, &machine.id).await?;
            }
        }
        Ok(())
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
        let provider = provider.map_err(Stop::Refused)?.as_ref();
        let limit = spec
            .acquire_timeout
            .map_or(provider.traits().acquire_timeout, Millis::duration);
        let mut told = Duration::ZERO;
        let mut known = start;
        loop {
            let before = self.effects.clock.boottime();
            let glance = self.glance(provider, lease, spec, held).await;
            if !matches!(glance, Ok(Glance::Unlisted)) {
                known = before;
            }
            let phase = match glance.map_err(Stop::Refused)? {
                Glance::Ready(ready) => return Ok(Ok(*ready)),
                Glance::Misfit(cause) => return Ok(Err(cause)),
                Glance::Dead(why) => return Ok(Err(self.died(provider, lease, held, &why).await)),
                Glance::Unlisted if before.saturating_sub(known) >= horizon(provider.traits()) => {
                    let why = "the provider does not know it any more";
                    return Ok(Err(self.died(provider, lease, held, why).await));
                }
                Glance::Unlisted => "the provider does not list it yet".to_owned(),
                Glance::Pending(phase) => phase,
            };
            let waited = self.effects.clock.boottime().saturating_sub(start);
            if waited >= limit {
                let why = format!("it was not ready within {} s: {phase}", limit.as_secs());
                return Ok(Err(self.died(provider, lease, held, &why).await));
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

    /// One look at a machine that is on its way, and at its agent once it runs.
    async fn glance(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        spec: &LeaseSpec,
        held: &LeaseReceipt,
    ) -> Result<Glance, Cause> {
        let machine = match provider.describe(&held.machine).await {
            Ok(Some(machine)) => machine,
            Ok(None) => return Ok(Glance::Unlisted),
            Err(blind) => return Ok(Glance::Pending(blind.to_string())),
        };
        match machine.status {
            MachineStatus::Dead(why) => return Ok(Glance::Dead(why)),
            MachineStatus::Ending => {
                let phase = "it is being ended by somebody else";
                return Ok(Glance::Pending(phase.to_owned()));
            }
            MachineStatus::Pending(phase) => return Ok(Glance::Pending(phase.to_string())),
            MachineStatus::Running => {}
        }
        let (generation, attempt) = held.request_key.try_of();
        let target = Target {
            lease: lease.clone(),
            endpoint: self
                .keys()?
                .endpoint(&self.made_for(lease), generation, attempt),
            contact: machine.contact,
        };
        let facts = match self.machines()?.status(&target).await {
            Ok(status) => with_claims(status.facts, machine.facts),
            Err(error @ MachineError::Refused { .. }) => {
                let cause = Cause::new(FailureClass::Config, error.to_string());
                return Ok(Glance::Misfit(cause));
            }
            Err(MachineError::Unreachable { why, .. }) => return Ok(Glance::Pending(why)),
        };
        Ok(
            match gate(lease, spec, held, &facts, machine.price_per_hour) {
                Ok(()) => Glance::Ready(Box::new(LeaseReady {
                    facts: facts.into(),
                    endpoint: target.endpoint,
                    contact: target.contact,
                })),
                Err(cause) => Glance::Misfit(cause),
            },
        )
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

/// What only the provider can know is its claim: where the machine is, whether it may be taken away, and its own fields.
fn with_claims(measured: Facts, claimed: Facts) -> Facts {
    Facts {
        region: measured.region.or(claimed.region),
        spot: measured.spot || claimed.spot,
        extra: claimed.extra,
        ..measured
    }
}

/// Measured facts and the billed price against the terms of the provider that sold the machine: the same question as
/// the planner's, so that what is kept now is kept by the next plan.
fn gate(
    lease: &LeaseId,
    spec: &LeaseSpec,
    held: &LeaseReceipt,
    facts: &Facts,
    price: MicroDollars,
) -> Result<(), Cause> {
    let ours = spec.terms.iter().filter(|terms| {
        terms.provider == held.provider && terms.provider_kind == held.provider_kind
    });
    let misfits = ours.map(|terms| unfit(terms, spec.memory, Some(facts), price));
    let Some(fewest) = misfits
        .min_by_key(Vec::len)
        .filter(|misfits| !misfits.is_empty())
    else {
        return Ok(());
    };
    let message = format!(
        "{lease}: the machine is not what was asked for: {}",
        fewest.join("; ")
    );
    Err(Cause::new(FailureClass::OfferGone, message)
        .hint("it is being released; run apply again for another one"))
}
