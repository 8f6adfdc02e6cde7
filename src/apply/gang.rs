//! Gangs: the machines of one table come up all or none.
//!
//! A gang is made of the machines that this plan rents or waits for. When one of them cannot be had, or not in time (they have a deadline together), every
//! one that serves nothing yet is given up, and each is proven gone. One that serves already stays. None is rented while
//! an earlier try of another one is in doubt.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Generation, LeaseId, Name};
use stageline_core::journal::Verb;
use stageline_core::offer::{Facts, Quote};
use stageline_core::plan::Plan;
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt, LeaseSpec, Spec};
use stageline_core::unit::Millis;

use super::course::limits;
use super::step::{Act, Nudge, Run, Stop};
use crate::provider::Providers;

/// Between two looks at the others.
const POLL: Duration = Duration::from_millis(200);

/// One gang in this run.
pub(super) struct Gang {
    members: BTreeMap<LeaseId, Generation>,
    timeout: Duration,
    /// The file says how long that is.
    said: bool,
    /// Since when its first machine is being rented.
    since: Option<Duration>,
    /// Who did not come up, and why.
    broken: Option<(LeaseId, Cause)>,
    /// Members that are ready.
    ready: BTreeSet<LeaseId>,
    /// Members whose tries of earlier runs are not looked for yet.
    doubtful: BTreeSet<LeaseId>,
}

/// The gangs of a plan.
pub(super) fn gangs(plan: &Plan, providers: &Providers) -> BTreeMap<Name, Gang> {
    let mut gangs: BTreeMap<Name, Gang> = BTreeMap::new();
    for step in plan.steps.iter().filter(|step| step.verb == Verb::Await) {
        let (Address::Lease(lease), Some(change)) = (&step.address, plan.change(&step.address))
        else {
            continue;
        };
        let Some(Spec::Lease(spec)) = change.spec.as_ref() else {
            continue;
        };
        if !spec.gang {
            continue;
        }
        let gang = gangs.entry(lease.name.clone()).or_insert_with(|| Gang {
            members: BTreeMap::new(),
            timeout: Duration::ZERO,
            said: spec.gang_timeout.is_some(),
            since: None,
            broken: None,
            ready: BTreeSet::new(),
            doubtful: BTreeSet::new(),
        });
        let own = spec.gang_timeout.map(Millis::duration);
        let own = own.unwrap_or_else(|| longest(plan, providers, lease, spec));
        gang.timeout = gang.timeout.max(own);
        gang.members.insert(lease.clone(), step.generation);
        if plan.leases.get(lease).is_some_and(|terms| terms.unresolved) {
            gang.doubtful.insert(lease.clone());
        }
    }
    gangs
}

/// The longest that a machine of this lease may take to get ready, whatever of its shortlist it will be.
fn longest(plan: &Plan, providers: &Providers, lease: &LeaseId, spec: &LeaseSpec) -> Duration {
    let terms = plan.leases.get(lease).into_iter();
    let quotes: Vec<&Quote> = terms
        .flat_map(|terms| terms.shortlist.iter().map(|choice| &*choice.quote))
        .collect();
    let sellers = spec.rented_under().filter_map(|terms| {
        let provider = providers.get(&terms.provider, &terms.provider_kind).ok()?;
        Some((&terms.provider, provider.as_ref()))
    });
    let limits = sellers.flat_map(|(name, provider)| {
        let ours = quotes.iter().filter(move |quote| quote.provider == *name);
        let mut facts: Vec<Option<&Facts>> = ours.map(|quote| Some(&quote.facts)).collect();
        if facts.is_empty() {
            facts.push(None);
        }
        facts
            .into_iter()
            .map(move |facts| limits(provider, spec, facts).acquire_timeout)
    });
    limits.max().unwrap_or(Duration::MAX)
}

impl<'a> Run<'a> {
    /// The clock of the gang starts with its first machine: when it is rented, or, where something to rent may be waited for, once
    /// it is up.
    pub(super) fn gang_begins(&self, lease: &LeaseId) {
        let now = self.effects.clock.boottime();
        if let Some(gang) = self.gangs.borrow_mut().get_mut(&lease.name) {
            gang.since.get_or_insert(now);
        }
    }

    /// Why this machine is not wanted any more, if its gang cannot be whole.
    pub(super) fn gang_broken(&self, lease: &LeaseId) -> Option<Cause> {
        let now = self.effects.clock.boottime();
        let mut gangs = self.gangs.borrow_mut();
        let gang = gangs.get_mut(&lease.name)?;
        gang.members.get(lease)?;
        if gang.ready.len() == gang.members.len() {
            return None;
        }
        if let (None, Some(since)) = (&gang.broken, gang.since)
            && now.saturating_sub(since) >= gang.timeout
        {
            let timeout = millis(gang.timeout);
            let what = match gang.said {
                true => format!("`gang_timeout` {timeout}"),
                false => format!("{timeout}, the longest that one may take (`gang_timeout`)"),
            };
            let why = format!("not all of them were ready within {what}");
            let cause = Cause::new(FailureClass::Capacity, why);
            gang.broken = Some((lease.clone(), cause));
        }
        let (by, cause) = gang.broken.as_ref()?;
        let first = cause.message.lines().next().unwrap_or_default();
        let message = format!(
            "{lease}: the machines of lease.{} come up all or none (`gang`), and {by} did not: {first}",
            lease.name
        );
        Some(Cause::new(cause.class, message).hint(
            "what came up and serves nothing yet is released; mend that one's cause, then run apply again",
        ))
    }

    /// Takes note of a member that is ready.
    pub(super) fn gang_has(&self, lease: &LeaseId) {
        if let Some(gang) = self.gangs.borrow_mut().get_mut(&lease.name)
            && gang.members.contains_key(lease)
        {
            gang.ready.insert(lease.clone());
        }
    }

    /// Stops what would rent for a gang that cannot be whole.
    pub(super) fn gang_holds(&self, lease: &LeaseId) -> Result<(), Stop> {
        self.gang_broken(lease)
            .map_or(Ok(()), |cause| Err(Stop::Refused(cause)))
    }

    /// Waits until no earlier try of another member is in doubt. Who waits here takes no place among the running steps.
    pub(super) async fn gang_is_clear(&self, lease: &LeaseId) -> Result<(), Stop> {
        let clear = || {
            let mut gangs = self.gangs.borrow_mut();
            let Some(gang) = gangs.get_mut(&lease.name) else {
                return true;
            };
            let members = &gang.members;
            gang.doubtful.retain(|member| {
                let generation = members.get(member);
                let open = generation.and_then(|generation| self.doubts(member, *generation));
                member != lease && open.is_some()
            });
            !gang.members.contains_key(lease) || gang.doubtful.is_empty()
        };
        if clear() {
            return Ok(());
        }
        self.parked.set(self.parked.get() + 1);
        self.nudge(Nudge::Parked);
        let result = async {
            while !clear() {
                self.gang_holds(lease)?;
                self.pause(POLL).await?;
            }
            Ok(())
        }
        .await;
        self.parked.set(self.parked.get() - 1);
        result
    }

    /// A member's step failed: the gang cannot be whole, and what came up already is given up.
    pub(super) async fn break_gang(&self, act: Act<'a>, cause: &Cause) -> Result<(), Stop> {
        let (Address::Lease(lease), Verb::Acquire | Verb::Await) =
            (&act.step.address, act.step.verb)
        else {
            return Ok(());
        };
        let members = {
            let mut gangs = self.gangs.borrow_mut();
            let Some(gang) = gangs.get_mut(&lease.name) else {
                return Ok(());
            };
            if !gang.members.contains_key(lease) {
                return Ok(());
            }
            gang.broken.get_or_insert((lease.clone(), cause.clone()));
            gang.doubtful.remove(lease);
            gang.members.clone()
        };
        for (member, generation) in members {
            let ready = self
                .held(&member, generation)
                .filter(|held| held.ready.is_some());
            if let Some(held) = ready.filter(|_| member != *lease && !self.serves(&member)) {
                self.disband(&member, generation, &held).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn disband(
        &self,
        member: &LeaseId,
        generation: Generation,
        held: &LeaseReceipt,
    ) -> Result<(), Stop> {
        let cause = self.gang_broken(member).unwrap_or_else(|| {
            Cause::new(
                FailureClass::Unknown,
                format!("{member}: its gang is not whole"),
            )
        });
        self.leave(member, generation, held, &cause, false).await?;
        self.emit(Event::MachineFailed {
            lease: member.clone(),
            machine: held.machine.clone(),
            cause,
            noted: false,
            goes_on: false,
            log: Vec::new(),
        });
        Ok(())
    }

    /// Whether a worker stands on that machine.
    fn serves(&self, lease: &LeaseId) -> bool {
        self.state(|state| {
            state.existing().any(|(_, recorded)| match &recorded.spec {
                Some(Spec::Stage(stage)) => stage.on == *lease && recorded.receipt.is_some(),
                Some(
                    Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_) | Spec::Exposure(_),
                )
                | None => false,
            })
        })
    }
}

fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
