//! What providers themselves say that machines have cost: their bill, which may come late.

use std::time::Duration;

use stageline_core::id::MachineId;
use stageline_core::unit::{MicroDollars, Timestamp};

/// Longest that a bill may take: whoever waits for a status does not wait for the books of years.
pub(super) const BILL_WITHIN: Duration = Duration::from_secs(10);

/// A bill, as far as it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// Each machine once.
    pub machines: Vec<Charged>,
    /// What may be missing in it, for people.
    pub lacks: Option<String>,
}

/// What one machine has cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Which.
    pub machine: MachineId,
    /// All in.
    pub amount: MicroDollars,
    /// So much of it for traffic, as far as that is told apart.
    pub traffic: MicroDollars,
    /// Until when, by the provider's clock.
    pub to: Timestamp,
}

impl Charges {
    /// One more row about a machine.
    pub(super) fn add(&mut self, row: Charged) {
        let mut machines = self.machines.iter_mut();
        match machines.find(|one| one.machine == row.machine) {
            Some(one) => {
                one.amount = one.amount.saturating_add(row.amount);
                one.traffic = one.traffic.saturating_add(row.traffic);
                one.to = one.to.max(row.to);
            }
            None => self.machines.push(row),
        }
    }
}
