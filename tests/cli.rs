//! The real binary as a user drives it, with real processes: output, exit codes, and what is left on disk and in the
//! process table. Nothing of these tests is shared: each has a folder of its own, an empty environment and free ports.

mod basics;
mod crash;
mod disk;
mod drift;
mod faults;
mod fetched;
mod lease_keys;
mod memory;
pub(crate) mod native;
mod orphans;
mod pause;
mod plans;
mod relay;
pub(crate) mod secrets;
mod shell;
mod signals;
mod surgery;
mod watch;
pub(crate) mod world;
