//! What providers themselves say that machines have cost: their bill, which may come late.

use stageline_core::id::MachineId;
use stageline_core::unit::{MicroDollars, Timestamp};

/// What one machine has cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Which.
    pub machine: MachineId,
    /// All in.
    pub amount: MicroDollars,
    /// Until when, by the provider's clock.
    pub to: Timestamp,
}

impl Charged {
    /// One more row about a machine.
    pub(super) fn add(all: &mut Vec<Self>, row: Self) {
        match all.iter_mut().find(|one| one.machine == row.machine) {
            Some(one) => {
                one.amount = one.amount.saturating_add(row.amount);
                one.to = one.to.max(row.to);
            }
            None => all.push(row),
        }
    }
}
