//! What `[[moved]]`, `[[removed]]` and leases that are no longer declared ask of the recorded state: done before the first
//! step, and drafted from.

use std::collections::BTreeSet;

use crate::diagnostic::Diagnostic;
use crate::id::LeaseId;
use crate::state::{Edit, State};
use crate::topology::Topology;
use crate::unit::Timestamp;

/// The edits that the file asks for and that are not done yet.
///
/// # Errors
/// What stands in their way, with what to do.
pub fn edits(topology: &Topology, state: &State) -> Result<Vec<Edit>, Vec<Diagnostic>> {
    let mut edits = Vec::new();
    let mut named: BTreeSet<LeaseId> = BTreeSet::new();
    let refused = |error: crate::state::SurgeryError| {
        let hint = error.hint();
        vec![Diagnostic::error("plan/moved", format!("[[moved]]: {error}")).hint(hint)]
    };
    for (from, to) in &topology.moved {
        for edit in state.moves(from, to).map_err(refused)? {
            if let Edit::Move { from, .. } = &edit
                && named.insert(from.clone())
            {
                edits.push(edit);
            }
        }
    }
    for (range, removed) in &topology.removed {
        if removed.release {
            continue;
        }
        for lease in state.leases_in(range) {
            let declared = topology.leases.get(&lease.name);
            let declared = declared.is_some_and(|table| lease.index < table.count);
            if !declared && named.insert(lease.clone()) {
                edits.push(Edit::Remove {
                    lease: lease.clone(),
                });
            }
        }
    }
    for lease in state.lapsed.keys() {
        let declared = topology.leases.get(&lease.name);
        if declared.is_none_or(|table| lease.index >= table.count) {
            edits.push(Edit::Unlapse {
                lease: lease.clone(),
            });
        }
    }
    state
        .edited(&edits, Timestamp::UNIX_EPOCH)
        .map_err(refused)?;
    Ok(edits)
}
