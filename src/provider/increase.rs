//! Higher prices that hosts ask for machines which are rented: nothing of it holds before somebody agrees at the provider.

use stageline_core::id::MachineId;
use stageline_core::unit::{MicroDollars, Timestamp};

/// What a host asks for one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increase {
    /// Which.
    pub machine: MachineId,
    /// What it costs per hour, and goes on costing until its contract ends.
    pub from: MicroDollars,
    /// What it would cost.
    pub to: MicroDollars,
    /// When its contract ends, where that is told.
    pub until: Option<Timestamp>,
}
