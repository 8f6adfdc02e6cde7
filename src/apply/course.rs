//! How long a machine is on its way already, and whether that is too long.
//!
//! What always holds: the whole boot and each phase of it have a deadline, by what the provider declares for machines of that shape and
//! by what the topology says. A moment in which the account cannot be seen, or does not list the machine, has one of its own and
//! starts that of a phase anew only when it ends in another one.

use std::time::Duration;

use stageline_core::offer::Facts;
use stageline_core::resource::{LeaseSpec, Terms};
use stageline_core::topology::AgentSource;
use stageline_core::unit::Millis;

use super::doubt::horizon;
use super::setup;
use crate::provider::{Blind, BootLimits, Machine, Phase, Provider};

/// Where a machine is that is not ready.
pub(super) enum OnItsWay {
    /// In this phase.
    In(Phase),
    /// Its provider does not know it, or not yet.
    Unlisted,
    /// Nobody knows: its provider cannot be seen.
    Unseen(Blind),
}

impl OnItsWay {
    /// For people.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::In(phase) => phase.clone(),
            Self::Unlisted => Phase::new("the provider does not list it yet"),
            Self::Unseen(blind) => Phase::new(blind.to_string()),
        }
    }
}

/// The way of one machine.
pub(super) struct Course<'a> {
    provider: &'a dyn Provider,
    spec: &'a LeaseSpec,
    limits: BootLimits,
    /// The limits are those of its shape.
    shaped: bool,
    start: Duration,
    /// The phase that it was seen in last, and since when.
    phase: (String, Duration),
    /// It was listed at least once.
    listed: bool,
    /// When nothing yet spoke against its being there.
    known: Duration,
    /// Since when its provider cannot be seen.
    unseen: Option<Duration>,
}

impl<'a> Course<'a> {
    /// It begins, for a machine of which this was claimed.
    pub(super) fn begin(
        provider: &'a dyn Provider,
        spec: &'a LeaseSpec,
        claimed: Option<&Facts>,
        start: Duration,
    ) -> Self {
        Self {
            provider,
            spec,
            limits: limits(provider, spec, claimed),
            shaped: claimed.is_some(),
            start,
            phase: (String::new(), start),
            listed: false,
            known: start,
            unseen: None,
        }
    }

    /// Its provider shows it.
    pub(super) fn lists(&mut self, machine: &Machine, at: Duration) {
        self.listed = true;
        self.known = at;
        if !self.shaped {
            self.limits = limits(self.provider, self.spec, Some(&machine.facts));
            self.shaped = true;
        }
    }

    /// Why it takes too long; none as long as it does not. `before` is when it was looked for.
    pub(super) fn over(
        &mut self,
        on_its_way: &OnItsWay,
        before: Duration,
        now: Duration,
    ) -> Option<String> {
        let own = match on_its_way {
            OnItsWay::In(phase) => self.in_phase(phase, now),
            OnItsWay::Unlisted => self.unlisted(before),
            OnItsWay::Unseen(blind) => self.unseen(blind, before, now),
        };
        let whole = self.limits.acquire_timeout;
        let late = now.saturating_sub(self.start) >= whole;
        own.or_else(|| {
            let (seconds, phase) = (whole.as_secs(), on_its_way.phase());
            late.then(|| format!("it was not ready within {seconds} s: {phase}"))
        })
    }

    fn in_phase(&mut self, phase: &Phase, now: Duration) -> Option<String> {
        self.unseen = None;
        if self.phase.0 != phase.name {
            self.phase = (phase.name.clone(), now);
        }
        let within =
            setup::within(phase, self.spec).unwrap_or_else(|| self.limits.within(&phase.name));
        let (late, seconds) = (now.saturating_sub(self.phase.1) >= within, within.as_secs());
        late.then(|| format!("it was not beyond this phase within {seconds} s: {phase}"))
    }

    /// One that was listed is gone once listings are no later than this; one that never was may have been made late.
    fn unlisted(&mut self, before: Duration) -> Option<String> {
        self.unseen = None;
        let traits = self.provider.traits();
        let within = match self.listed {
            true => traits.visibility_delay,
            false => horizon(traits),
        };
        let late = before.saturating_sub(self.known) >= within;
        let why = match self.listed {
            true => "the provider does not know it any more",
            false => "the provider never listed it",
        };
        late.then(|| why.to_owned())
    }

    fn unseen(&mut self, blind: &Blind, before: Duration, now: Duration) -> Option<String> {
        self.known = before;
        let since = *self.unseen.get_or_insert(now);
        let within = self.limits.phase_timeout.min(self.limits.acquire_timeout);
        let (late, seconds) = (now.saturating_sub(since) >= within, within.as_secs());
        late.then(|| format!("nothing was seen of it for {seconds} s: {blind}"))
    }
}

/// How long a machine of which this is claimed may take under this spec.
pub(super) fn limits(
    provider: &dyn Provider,
    spec: &LeaseSpec,
    claimed: Option<&Facts>,
) -> BootLimits {
    let usual = provider.boot_limits(claimed);
    let fetches = |terms: &Terms| matches!(terms.agent, Some(AgentSource::Fetch { .. }));
    let usual = match spec.terms.iter().any(fetches) {
        true => usual.fetching(),
        false => usual,
    };
    match spec.acquire_timeout.map(Millis::duration) {
        Some(whole) => usual.allowing(whole),
        None => usual.and(setup::longer(spec)),
    }
}
