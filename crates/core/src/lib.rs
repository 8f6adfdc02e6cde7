//! The pure part of stageline.
//!
//! Everything here is a function of its arguments: no file, socket, clock, random number, environment variable or
//! hash-ordered iteration. The same input gives the same bytes. `tests/tidy.rs` of the root package enforces that by
//! words and by the dependency list.

pub mod diagnostic;
pub mod event;
pub mod graph;
pub mod id;
pub mod journal;
pub mod label;
pub mod model;
pub mod offer;
pub mod plan;
pub mod render;
pub mod resource;
pub mod retry;
pub mod shared;
pub mod stage_protocol;
pub mod state;
mod tagged;
pub mod topology;
pub mod unit;
