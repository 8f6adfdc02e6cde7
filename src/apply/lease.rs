//! Renting a machine: one try, from the quote that is read again to the id that is on disk.
//!
//! A create goes out once, right after its intention is durable, and only within every cap: what may still cost money
//! counts. Which offer comes next is `failover`'s; whether the machine gets ready is `boot`'s.

use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, LeaseId, RequestKey};
use stageline_core::journal::Launch;
use stageline_core::offer::{Place, Quote, Supply};
use stageline_core::plan::{Choice, too_dear, untaken};
use stageline_core::resource::{
    Account, Cause, FailureClass, LeaseLimits, LeaseSpec, Outcome, Receipt, Spec, Terms,
};
use stageline_core::topology::Registry;
use stageline_core::unit::MicroDollars;

use super::doubt::{SEND_WINDOW, receipt};
use super::limited::unread;
use super::room::NoRoom;
use super::step::{Act, Made, Run, Stop, broken, lease_of};
use crate::provider::{Boot, CreateRequest, Machine, Provider, RegistryLogin};

/// Between two looks while something is waited for.
const POLL: Duration = Duration::from_millis(200);

/// How often a machine that nobody else knows is released before it is left to the next run.
const ABANDONS_MAX: u32 = 5;

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
        self.gang_is_clear(lease).await?;
        if !self.waits_for_capacity(act)? {
            self.gang_begins(lease);
        }
        if self.rent(act, lease).await? {
            return Ok(());
        }
        self.done(act, Made::default()).await
    }

    /// Whether something that can be had may be waited for: that is no part of a boot.
    fn waits_for_capacity(&self, act: Act<'a>) -> Result<bool, Stop> {
        Ok(match self.spec(&act.step.address)? {
            Spec::Lease(spec) => spec.wait_for_capacity.is_some(),
            Spec::Delivery(_) | Spec::Pipeline(_) | Spec::Stage(_) | Spec::Exposure(_) => false,
        })
    }

    /// One try: read the quote again, reserve, write down, send, write down.
    pub(super) async fn launch(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        spec: &LeaseSpec,
        choice: &Choice,
        requoted: bool,
    ) -> Result<(), Stop> {
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
        let registry = terms.registry.as_ref().map(|login| self.login(login));
        let registry = registry.transpose().map_err(Stop::Refused)?;
        let (quote, launch) = self
            .priced(act, lease, spec, terms, provider.as_ref(), choice)
            .await?;
        self.stamp(act, lease, &launch, requoted).await?;
        let request = CreateRequest {
            request_key: launch.request_key.clone(),
            requirement: terms.requirement.clone(),
            quote,
            disk: spec.disk,
            image: terms.image.clone(),
            registry,
            agent: terms.agent.clone(),
            mounts: terms.mounts.clone(),
            boot: Boot {
                limits: launch.limits.filter(|_| provider.traits().self_destroy),
                ..keys.boot(lease, act.step.generation, launch.attempt)
            },
            told: None,
        };
        let outcome = self.send(provider.as_ref(), lease, request).await;
        self.launched(act, provider.as_ref(), &launch, outcome)
            .await
    }

    /// A login with its password, read now.
    fn login(&self, login: &Registry) -> Result<RegistryLogin, Cause> {
        Ok(RegistryLogin {
            server: login.server.clone(),
            username: login.username.clone(),
            password: self.effects.secrets.read(&login.password)?,
        })
    }

    /// The quote as it is now, and the try that takes it. Where there is no room for it yet, the release that makes some
    /// is waited for, and the quote is read again after that.
    async fn priced(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        spec: &LeaseSpec,
        terms: &Terms,
        provider: &dyn Provider,
        choice: &Choice,
    ) -> Result<(Quote, Launch), Stop> {
        let seen = self.is_seen(lease, (&terms.provider, provider)).await;
        seen.map_err(Stop::Full)?;
        let account = provider.account().await.map_err(|error| unread(&error))?;
        loop {
            // Before the offer is read again and the intention is stamped: a create goes out right after these.
            let turn = provider.turn();
            if !turn.is_zero() {
                self.pause(turn).await?;
            }
            let quote = self.read_again(provider, lease, spec, choice).await?;
            let launch = self.launch_of(
                act,
                lease,
                (spec, terms),
                (provider, account.clone()),
                &quote,
            )?;
            let counted = self.count_room(&launch, provider).await;
            counted.map_err(Stop::Refused)?;
            match self.no_room(lease, &launch) {
                None => return Ok((quote, launch)),
                Some(none) => {
                    self.wait_for_room(act, lease, (&launch, provider), none)
                        .await?;
                }
            }
        }
    }

    /// Waits until a machine that was given up is proven gone and makes room.
    async fn wait_for_room(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        (launch, provider): (&Launch, &dyn Provider),
        mut none: NoRoom,
    ) -> Result<(), Stop> {
        let start = self.effects.clock.boottime();
        let mut told = Duration::ZERO;
        loop {
            if !self.room_may_come(&none, launch) {
                return Err(none.into());
            }
            let waited = self.effects.clock.boottime().saturating_sub(start);
            if waited >= provider.traits().gone_within {
                let none = none.but("no release made room for it");
                return match none {
                    NoRoom::OnAccount(cause) => Err(Stop::Full(cause)),
                    NoRoom::InAll(cause) => self.outcome(act, None, Outcome::InDoubt(cause)).await,
                };
            }
            if waited >= told {
                told = waited + Duration::from_secs(1);
                self.emit(Event::Waiting {
                    address: act.step.address.clone(),
                    verb: act.step.verb,
                    what: format!("room for the next try: {}", none.cause().message),
                    waited: self.since(start),
                });
            }
            self.pause(POLL).await?;
            self.gang_holds(lease)?;
            match self.no_room(lease, launch) {
                None => return Ok(()),
                Some(still) => none = still,
            }
        }
    }

    fn launch_of(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        (spec, terms): (&LeaseSpec, &Terms),
        (provider, account): (&dyn Provider, Option<Account>),
        quote: &Quote,
    ) -> Result<Launch, Stop> {
        let attempt = self.next_attempt(lease, act);
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let lineage = lineage.ok_or_else(|| Stop::Refused(broken("no lineage".to_owned())))?;
        let (address, generation) = (&act.step.address, act.step.generation);
        Ok(Launch {
            attempt,
            request_key: RequestKey::derive(&lineage, address, generation, attempt),
            provider: terms.provider.clone(),
            provider_kind: terms.provider_kind.clone(),
            account,
            offer: terms.offer.clone(),
            quote: quote.id.clone(),
            price_per_hour: quote.price_per_hour,
            reservation: reserved(provider, terms.ceiling, quote.price_per_hour),
            limits: Some(LeaseLimits::of(spec)),
            boots_free: !provider.traits().bills_booting,
            place: match (spec.same, spec.spread) {
                (None, None) => Place::default(),
                (_, _) => quote.facts.place(),
            },
        })
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
            dated: self.dates_of(&act.step.address, &machine),
        };
        match self.done(act, made).await {
            Ok(()) => {
                let price_per_hour = machine.price_per_hour;
                let agent = self.agent_way(provider, lease, (&launch.offer, &machine.id));
                self.emit(Event::LeaseUp {
                    lease: lease.clone(),
                    machine: machine.id,
                    price_per_hour,
                    agent,
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
    ) -> Result<Quote, Stop> {
        let gone = |message: String| Stop::Refused(Cause::new(FailureClass::OfferGone, message));
        let id = &choice.quote.id;
        let quote = match provider.quote(id, spec.disk).await {
            Ok(Some(quote)) => quote,
            Ok(None) => return Err(gone(format!("{lease}: offer `{id}` is gone"))),
            Err(error) => return Err(unread(&error)),
        };
        let terms = spec.terms.iter().find(|terms| terms.offer == choice.offer);
        let terms = terms.ok_or_else(|| gone(format!("{lease}: no offer `{}`", choice.offer)))?;
        let mut why = untaken(terms, spec.memory, &quote);
        if !spec.has_volumes(terms) {
            why.push(format!(
                "offer `{}` has not all volumes of the lease",
                terms.offer
            ));
        }
        if why.is_empty() && quote.supply == Supply::Many(0) {
            let note = quote.note().map(|note| format!(": {note}"));
            let message = format!(
                "{lease}: offer `{id}` is sold out{}",
                note.unwrap_or_default()
            );
            return Err(Stop::Refused(Cause::new(FailureClass::Capacity, message)));
        }
        if why.is_empty() {
            return Ok(quote);
        }
        if let Some(ceiling) = too_dear(terms, spec.memory, &quote) {
            return Err(dear(lease, choice, &quote, ceiling));
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
    async fn stamp(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        launch: &Launch,
        requoted: bool,
    ) -> Result<(), Stop> {
        for stamp in 0..STAMPS_MAX {
            if let Err(stop) = self.reserve(lease, launch) {
                return Err(self.unstamp(act, launch, stop, stamp > 0).await?);
            }
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
                requoted,
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

    /// Closes a try that was written down and will not be sent; gives back why.
    async fn unstamp(
        &self,
        act: Act<'a>,
        launch: &Launch,
        stop: Stop,
        written: bool,
    ) -> Result<Stop, Stop> {
        let cause = match &stop {
            Stop::Refused(cause) | Stop::Full(cause) if written => cause.clone(),
            Stop::Refused(_)
            | Stop::Full(_)
            | Stop::Dear(_)
            | Stop::InDoubt(_)
            | Stop::Cut
            | Stop::Journal(_) => return Ok(stop),
        };
        let closed = self.outcome(act, Some(launch.attempt), Outcome::Refused(cause));
        match closed.await {
            Ok(()) | Err(Stop::Refused(_)) => Ok(stop),
            Err(other) => Err(other),
        }
    }

    /// Counts a launch against the caps until the journal does.
    fn reserve(&self, lease: &LeaseId, launch: &Launch) -> Result<(), Stop> {
        self.within_spend(lease)?;
        if let Some(none) = self.no_room(lease, launch) {
            return Err(none.into());
        }
        let own = (lease.clone(), launch.attempt);
        let reserved = (launch.provider.clone(), launch.reservation);
        self.reserving.borrow_mut().insert(own, reserved);
        Ok(())
    }

    /// Why this launch would break a cap: everything that is not proven gone counts, a try at its ceiling.
    fn no_room(&self, lease: &LeaseId, launch: &Launch) -> Option<NoRoom> {
        let leaving = self.state(|state| {
            let own = state.resources.get(&Address::Lease(lease.clone()));
            let attempts = own.into_iter().flat_map(|own| own.attempts.values());
            attempts.filter(|open| open.leaving.is_some()).count()
        });
        if leaving > 1 {
            // The plan says what may run at once: one that fails beside its successor.
            let message =
                format!("{lease}: {leaving} machines that failed are not proven gone yet");
            let hint = "`stageline destroy` or the next apply goes on releasing them";
            return Some(NoRoom::InAll(
                Cause::new(FailureClass::Money, message).hint(hint),
            ));
        }
        let own = (lease.clone(), launch.attempt);
        if let Some(cause) = self.no_room_on_account(&own, launch) {
            return Some(NoRoom::OnAccount(cause));
        }
        let (total, most) = (self.options.max_total_per_hour, self.options.max_leases);
        if total.is_none() && most.is_none() {
            return None;
        }
        let (sum, machines) = self.with_it(lease, launch);
        if let Some(cap) = total.filter(|cap| sum > *cap) {
            let message = format!("{lease}: all machines together could cost {sum} per hour");
            let hint = format!("limits.max_total_per_hour is {cap}; raise it, or ask less");
            return Some(NoRoom::InAll(
                Cause::new(FailureClass::Money, message).hint(hint),
            ));
        }
        let cap = most.filter(|cap| machines > *cap as usize)?;
        let message = format!("{lease}: with it there would be {machines} machines at once");
        let hint = format!("limits.max_leases is {cap}; raise it, or ask less");
        Some(NoRoom::InAll(
            Cause::new(FailureClass::Money, message).hint(hint),
        ))
    }

    /// What all machines could cost per hour with this launch, and how many they could be. Each resource is looked at.
    fn with_it(&self, lease: &LeaseId, launch: &Launch) -> (MicroDollars, usize) {
        let reserving = self.reserving.borrow();
        let own = (lease.clone(), launch.attempt);
        self.state(|state| {
            let open = |(lease, attempt): &(LeaseId, Attempt)| {
                let recorded = state.resources.get(&Address::Lease(lease.clone()))?;
                recorded.attempts.get(attempt)
            };
            // A launch is in the state a moment before its append returns; it must not count twice then.
            let pending = reserving
                .iter()
                .filter(|(key, _)| **key != own && open(key).is_none());
            let again = open(&own).map_or(0, |open| open.launch.reservation.0);
            let mut sum = state.committed_per_hour().0.saturating_sub(again);
            let mut machines = usize::from(open(&own).is_none());
            for (_, (_, more)) in pending {
                sum = sum.saturating_add(more.0);
                machines += 1;
            }
            let recorded = state.resources.values();
            machines += recorded.map(|recorded| recorded.machines()).sum::<usize>();
            let sum = sum.saturating_add(launch.reservation.0);
            (MicroDollars(sum), machines)
        })
    }

    /// Whether a machine is on its way out that counts until it is proven gone.
    fn room_may_come(&self, none: &NoRoom, launch: &Launch) -> bool {
        let counts = |other: &Launch| match none {
            NoRoom::InAll(_) => true,
            NoRoom::OnAccount(_) => other.provider == launch.provider,
        };
        self.state(|state| {
            let mut attempts = state.resources.values().flat_map(|r| r.attempts.values());
            attempts.any(|open| open.leaving.is_some() && counts(&open.launch))
        })
    }

    /// The one call that is unsafe to repeat. A time-out is in doubt, never refused.
    async fn send(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        mut request: CreateRequest,
    ) -> Outcome<Machine> {
        let key = request.request_key.clone();
        let limit = provider.traits().request_timeout;
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        request.told = Some(told);
        let create = provider.create(request);
        let too_long = self.effects.clock.sleep(limit);
        tokio::pin!(create, too_long);
        loop {
            tokio::select! {
                biased;
                Some(line) = heard.recv() => {
                    let lease = lease.clone();
                    self.emit(Event::Said { lease, line });
                }
                outcome = &mut create => return outcome,
                () = &mut too_long => {
                    let seconds = limit.as_secs();
                    let message = format!("no answer to the create of {key} within {seconds} s");
                    return Outcome::InDoubt(Cause::new(FailureClass::Unknown, message));
                }
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
}

/// What was within the ceiling when it was planned, and is not any more.
fn dear(lease: &LeaseId, choice: &Choice, quote: &Quote, ceiling: MicroDollars) -> Stop {
    let (id, price) = (&quote.id, quote.price_per_hour);
    let message =
        format!("{lease}: offer `{id}` costs {price}/h now, and its ceiling is {ceiling}/h");
    let hint = format!(
        "it was not rented; raise `max_price_per_hour` of [offer.{}], [lease.{}] or [limits], add an offer, or run apply again later",
        choice.offer, lease.name
    );
    Stop::Dear(Cause::new(FailureClass::Money, message).hint(hint))
}

/// The most that a try may cost per hour: its ceiling, since a price may rise; what costs nothing goes on doing so.
pub(super) fn reserved(
    provider: &dyn Provider,
    ceiling: Option<MicroDollars>,
    price: MicroDollars,
) -> MicroDollars {
    match (provider.stays_free(), price) {
        (true, MicroDollars::ZERO) => MicroDollars::ZERO,
        (_, price) => ceiling.unwrap_or(price).max(price),
    }
}
