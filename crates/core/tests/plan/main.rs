//! Behaviour of the planner through its public functions.

mod basics;
mod binding;
mod disk;
mod drawn;
mod golden;
mod moves;
mod offers;
mod placement;
mod priced;
mod random;
mod regions;
mod volumes;
mod world;
