//! Everything of stageline that has effects: providers, agents, the data plane, state, and the command line.
//!
//! The pure planner is in `stageline_core`. Here a plan is carried out, writing each intention down before it acts.

pub mod agent;
pub mod ambient;
pub mod apply;
pub mod cli;
pub mod gateway;
pub mod machine;
pub mod observe;
pub mod pipeline;
pub mod provider;
pub mod sim;
pub mod ssh;
pub mod store;
pub mod watch;

pub use stageline_core as core;
