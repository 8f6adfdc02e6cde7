//! Behaviour of the planner through its public functions.

mod basics;
mod world;
