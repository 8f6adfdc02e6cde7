//! An account that others use too: a create that is refused because of too many requests is waited out, and ends no step.
//!
//! What always holds: such a refusal made nothing, and nevertheless the provider is asked for a machine of that try before the next
//! one goes out, under a key of its own. What the provider asked for is kept by its own gate. The waiting is bounded by what the
//! machine may take to get ready; no offer is given up for it, and it does not count as a try.

use std::sync::Arc;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Attempt, LeaseId};
use stageline_core::resource::{Cause, FailureClass, LeaseSpec};
use stageline_core::unit::Millis;

use super::doubt::{Found, blind};
use super::step::{Act, Run, Stop};
use crate::provider::{Blind, Provider};

/// First and longest pause between two tries.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// In slices, so that a gang that fails is noticed.
const SLICE: Duration = Duration::from_secs(1);

/// How long it has been so.
pub(super) struct Limited {
    since: Duration,
    pause: Duration,
}

/// A read that failed before a create went out. One that came too soon is told from one that cannot be trusted.
pub(super) fn unread(error: &Blind) -> Stop {
    Stop::Refused(match error.cause.class {
        FailureClass::Rate => error.cause.clone(),
        FailureClass::Capacity
        | FailureClass::OfferGone
        | FailureClass::Quota
        | FailureClass::Money
        | FailureClass::Auth
        | FailureClass::Config
        | FailureClass::Unknown => blind(&error.cause),
    })
}

impl<'a> Run<'a> {
    /// Tries of this generation that were refused for it.
    pub(super) fn limited_tries(&self, act: Act<'a>) -> Vec<Attempt> {
        let all = self.limited.borrow();
        let of = (act.step.address.clone(), act.step.generation);
        all.get(&of).cloned().unwrap_or_default()
    }

    /// Waits before the next try. `sent` is the try that was refused; none when not even that went out.
    ///
    /// # Errors
    /// [`Stop::Refused`] when the time for it is up.
    pub(super) async fn wait_out(
        &self,
        act: Act<'a>,
        (lease, spec): (&LeaseId, &LeaseSpec),
        provider: &Arc<dyn Provider>,
        so_far: &mut Option<Limited>,
        (cause, sent): (Cause, Option<Attempt>),
    ) -> Result<(), Stop> {
        self.note_limited(act, sent);
        let now = self.effects.clock.boottime();
        let limit = spec
            .acquire_timeout
            .map_or(provider.traits().acquire_timeout, Millis::duration);
        let state = so_far.get_or_insert_with(|| {
            self.emit(Event::Retrying {
                address: act.step.address.clone(),
                verb: act.step.verb,
                cause: cause.clone(),
                attempt: sent.unwrap_or(Attempt(1)).next().0,
                delay: millis(FIRST),
            });
            Limited {
                since: now,
                pause: FIRST,
            }
        });
        loop {
            let waited = self.effects.clock.boottime().saturating_sub(state.since);
            if waited + state.pause > limit {
                return Err(Stop::Refused(too_long(lease, cause, limit)));
            }
            self.emit(Event::Waiting {
                address: act.step.address.clone(),
                verb: act.step.verb,
                what: format!(
                    "too many requests of others on the same account; tried again for {} at most",
                    millis(limit)
                ),
                waited: millis(waited),
            });
            self.rest(lease, state.pause).await?;
            state.pause = (state.pause * 2).min(LONGEST);
            // What cannot be seen is looked for again: nothing goes out before that.
            if let Ok(extra) = self.made_anyway(act, lease, provider.as_ref()).await {
                for machine in &extra.machines {
                    self.release_extra(act, provider, machine).await?;
                }
                return self.remove_left(act, provider, &extra.left).await;
            }
        }
    }

    fn note_limited(&self, act: Act<'a>, sent: Option<Attempt>) {
        let of = (act.step.address.clone(), act.step.generation);
        self.limited
            .borrow_mut()
            .entry(of)
            .or_default()
            .extend(sent);
    }

    /// A pause in slices, so that a gang that fails is noticed.
    async fn rest(&self, lease: &LeaseId, span: Duration) -> Result<(), Stop> {
        let until = self.effects.clock.boottime() + span;
        loop {
            let left = until.saturating_sub(self.effects.clock.boottime());
            if left.is_zero() {
                return Ok(());
            }
            self.pause(left.min(SLICE)).await?;
            self.gang_holds(lease)?;
        }
    }

    /// Machines of tries that were refused.
    async fn made_anyway(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &dyn Provider,
    ) -> Result<Found, Blind> {
        let tries = self.limited_tries(act);
        let lineage = self.state(|state| state.genesis.as_ref().map(|genesis| genesis.lineage));
        let (Some(lineage), false) = (lineage, tries.is_empty()) else {
            return Ok(Found::of(Vec::new()));
        };
        let mut found = self.find_ours(provider, lease, &lineage).await?;
        found.retain(|machine| {
            let key = machine.request_key.as_ref();
            key.is_some_and(|key| {
                let (generation, attempt) = key.try_of();
                generation == act.step.generation && tries.contains(&attempt)
            })
        });
        Ok(Found::of(found))
    }
}

fn too_long(lease: &LeaseId, cause: Cause, limit: Duration) -> Cause {
    let message = format!(
        "{lease}: others used the same account too much for {}, and nothing was rented: {}",
        millis(limit),
        cause.message
    );
    Cause::new(FailureClass::Rate, message).hint(
        "see who else uses this account; then run the same command again, or raise `acquire_timeout`",
    )
}

fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
