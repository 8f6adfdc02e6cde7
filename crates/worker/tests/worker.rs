//! The built program, driven over pipes as an agent drives it.

#[path = "worker/chain.rs"]
mod chain;
#[path = "worker/command.rs"]
mod command;
#[path = "worker/failures.rs"]
mod failures;
#[path = "worker/requests.rs"]
mod requests;
#[path = "worker/splits.rs"]
mod splits;
