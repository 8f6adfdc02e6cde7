//! The data plane: hello, frames, edges, requests.
//!
//! Stage i hands hidden states to i + 1; the last one hands each token straight back to the first. There is no gossip
//! and no membership: who may speak to whom is in the roster.
//!
//! An agent makes one [`endpoint`], one [`Fabric`] on it, and puts [`Fabric::stage_protocol`] and
//! [`Fabric::infer_protocol`] into the endpoint's router under [`endpoint::STAGE_ALPN`] and [`endpoint::INFER_ALPN`]. Then:
//!
//! * [`Fabric::set_roster`] for each delivered roster: edges are dialled and kept from then on, whether workers are there
//!   or not.
//! * [`Fabric::attach`] with a [`link::WorkerLink`] each time that a worker became ready; its end fails the stage's requests.
//! * [`Fabric::infer`] for whatever wants to prompt (gateway, check), here or on another agent.
//!
//! An operator's process that only prompts uses [`remote::RemoteInfer`] and needs no fabric.

pub mod accept;
mod dial;
mod edge;
pub mod endpoint;
pub mod fabric;
pub mod frame;
mod hello;
pub mod infer;
pub mod keys;
pub mod link;
mod node;
mod outbox;
pub mod remote;
pub mod roster;
mod serve;
mod stage;
pub mod stub;
#[cfg(test)]
mod tests;

pub use fabric::{Fabric, FabricConfig, RosterChange, StageState};
pub use node::StageHandle;
pub use stage::{Drain, Timing};
