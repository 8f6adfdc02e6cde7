//! Machines that were bid for and taken away, as a watcher sees them: they bill their disk until it releases them.

use std::collections::BTreeMap;

use stageline_core::id::LeaseId;
use stageline_core::plan::taken_away;
use stageline_core::state::{Limit, Seen, State};

use super::super::Failure;
use super::Watcher;
use crate::watch::{self, Beyond, Heard};

/// Providers are asked about silent machines at one look in so many.
const ASKED_EVERY: u32 = 6;

impl Watcher<'_> {
    /// Machines that were bid for and taken away. One that answers was not, so that its provider is asked about silent ones only, and
    /// not at every look.
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
        let suspects: Vec<&LeaseId> = watch::bid_for(state).filter(|it| silent(it)).collect();
        let asked = self
            .asked
            .is_some_and(|at| now < at + self.every * ASKED_EVERY);
        if suspects.is_empty() || asked {
            return Ok(Vec::new());
        }
        self.asked = Some(now);
        let observed = self.observe(state).await?;
        let taken = suspects.into_iter().filter_map(|lease| {
            let Some(Seen::There(seen)) = observed.leases.get(lease) else {
                return None;
            };
            Some(Beyond {
                lease: lease.clone(),
                limit: Limit::Interrupt,
                why: taken_away(seen)?,
            })
        });
        Ok(taken.collect())
    }
}
