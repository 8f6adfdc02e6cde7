//! The executor under faults and crashes: whatever goes wrong, at most one machine is kept for a lease, nothing is
//! forgotten, and the next run ends clean. All of it in this process: simulated machines, a store in memory, a clock
//! that jumps.

mod account;
#[path = "apply/boots.rs"]
mod boots;
#[path = "apply/clean.rs"]
mod clean;
#[path = "apply/crash.rs"]
mod crash;
mod drift;
#[path = "apply/failover.rs"]
mod failover;
#[path = "apply/faults.rs"]
mod faults;
#[path = "apply/fence.rs"]
mod fence;
#[path = "apply/gangs.rs"]
mod gangs;
mod ledger;
#[path = "apply/model.rs"]
mod model;
#[path = "apply/order.rs"]
mod order;
#[path = "apply/power.rs"]
mod power;
#[path = "apply/random.rs"]
mod random;
#[path = "apply/sold.rs"]
mod sold;
#[path = "apply/table.rs"]
mod table;
#[path = "apply/world.rs"]
pub(crate) mod world;
