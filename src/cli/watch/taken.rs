//! Machines whose agents fall silent, as a watcher sees them: providers are asked what became of them. One that was bid for and taken
//! away bills its disk until the watcher releases it; of one that is gone or dead the watcher says so, since renting is `apply`'s.

use std::collections::{BTreeMap, BTreeSet};

use stageline_core::id::LeaseId;
use stageline_core::plan::{dead, taken_away};
use stageline_core::state::{Limit, ObservedLease, Seen, State};

use super::super::Failure;
use super::Watcher;
use crate::watch::{self, Beyond, Heard};

/// Providers are asked about the same silent machines at one look in so many.
pub(super) const ASKED_EVERY: u32 = 6;

impl Watcher<'_> {
    /// Machines that were bid for and taken away; of others that are gone or dead it is said. One that answers is neither, so that
    /// providers are asked about silent ones only, and not at every look.
    pub(super) async fn taken_away(
        &mut self,
        state: &State,
        heard: Option<&BTreeMap<LeaseId, Heard>>,
    ) -> Result<Vec<Beyond>, Failure> {
        let now = self.clock.boottime();
        let silent = |lease: &LeaseId| {
            let heard = heard.and_then(|heard| heard.get(lease));
            heard.is_none_or(|heard| *heard == Heard::Silent)
        };
        let ready = watch::guarded(state).map(|(lease, _)| lease);
        let ready =
            ready.filter(|lease| state.lease(lease).is_some_and(|held| held.ready.is_some()));
        let (suspects, well): (Vec<&LeaseId>, Vec<_>) = ready.partition(|lease| silent(lease));
        for lease in well {
            self.said.remove(&about(lease));
        }
        let asked = self.asked.as_ref().is_some_and(|(at, before)| {
            now < *at + self.every * ASKED_EVERY
                && suspects.iter().all(|lease| before.contains(*lease))
        });
        if suspects.is_empty() || asked {
            return Ok(Vec::new());
        }
        self.asked = Some((now, suspects.iter().copied().cloned().collect()));
        let observed = self.observe(state).await?;
        for lease in &suspects {
            // It is asked there at the next look.
            if let Some(moved) = observed.moved(lease) {
                self.sight.moved.insert((*lease).clone(), moved.clone());
            }
            if let Some(what) = observed.leases.get(*lease).and_then(lost) {
                let text =
                    format!("{lease}: its machine {what}; `stageline plan` shows what that means");
                self.once(&about(lease), &text);
            }
        }
        let bid_for: BTreeSet<&LeaseId> = watch::bid_for(state).collect();
        let taken = suspects.into_iter().filter_map(|lease| {
            let Some(Seen::There(seen)) = observed.leases.get(lease) else {
                return None;
            };
            bid_for.contains(lease).then_some(())?;
            Some(Beyond {
                lease: lease.clone(),
                limit: Limit::Interrupt,
                why: taken_away(seen)?,
            })
        });
        Ok(taken.collect())
    }
}

/// What is said of a lost machine is said once.
pub(super) fn about(lease: &LeaseId) -> String {
    format!("lost {lease}")
}

/// What became of a machine that does not answer; none where it may answer again.
fn lost(seen: &Seen<ObservedLease>) -> Option<String> {
    match seen {
        Seen::Gone => Some("is gone by the provider's listing".to_owned()),
        Seen::There(seen) if !seen.interrupted => Some(format!("is dead: {}", dead(seen)?)),
        Seen::There(_) | Seen::Unknown(_) => None,
    }
}
