//! Who ends what a reviewed plan rents: a plan that leaves machines to a watcher may be applied when none runs any more.
//!
//! Always holds: what is refused here is what a fresh plan would refuse at the same moment. What is there already, or may be,
//! is never refused: to leave it unfinished would end nothing.

use std::collections::BTreeMap;

use super::limits::{self, Unguarded};
use super::{EndsBy, Plan, Verdict};
use crate::diagnostic::Diagnostic;
use crate::id::{Address, Name};
use crate::resource::{LeaseSpec, Spec};
use crate::state::State;

/// The leases of a plan that are still to be rented and are left to a watcher. Of which tables, with what is said of each.
fn left_to_a_watcher<'a>(plan: &'a Plan, state: &State) -> BTreeMap<&'a Name, Unguarded<'a>> {
    let mut tables = BTreeMap::new();
    for (lease, terms) in &plan.leases {
        let address = Address::Lease(lease.clone());
        let Some(change) = plan.change(&address) else {
            continue;
        };
        let rents = match change.verdict {
            Verdict::Create | Verdict::Replace => true,
            Verdict::Update | Verdict::Delete | Verdict::Keep => false,
        };
        let there = state
            .resources
            .get(&address)
            .is_some_and(|recorded| recorded.exists() && recorded.generation == change.generation);
        let (Some(Spec::Lease(spec)), EndsBy::Watcher) = (&change.spec, terms.ends) else {
            continue;
        };
        if rents && !there {
            let table = tables.entry(&lease.name);
            let table: &mut Unguarded<'_> = table.or_insert_with(|| Unguarded::of(spec));
            table.add(terms.price_per_hour);
        }
    }
    tables
}

impl Plan {
    /// It rents machines that nobody but a watcher would end.
    pub fn needs_a_watcher(&self, state: &State) -> bool {
        !left_to_a_watcher(self, state).is_empty()
    }

    /// Why it may not be applied while no watcher runs: a finding for each table. `meant` says that the file has
    /// `unguarded = true`, or that nothing of it is billed; `ends_itself`, that machines of a provider do.
    pub fn without_a_watcher(
        &self,
        state: &State,
        meant: impl Fn(&Name, &LeaseSpec) -> bool,
        ends_itself: impl Fn(&Name) -> bool,
    ) -> Vec<Diagnostic> {
        let tables = left_to_a_watcher(self, state).into_iter();
        tables
            .filter(|(name, table)| !meant(name, table.spec))
            .map(|(name, table)| {
                limits::ends_by_nobody(name, &table, &ends_itself).hint(format!(
                    "let `stageline watch` run on a computer that is always on, and apply this plan then; or plan again: \
                     with offers whose machines end themselves by their limits, or with `unguarded = true` in \
                     [lease.{name}], which says that you will end them"
                ))
            })
            .collect()
    }
}
