//! Clouds: our adapter and the real binary against a simulator over HTTP, and the provider's own client against the same
//! simulator. What a simulator has at the end is what is recorded: nothing beyond it, nothing twice.

mod away;
mod bill;
mod boots;
mod command;
mod cpu_pods;
pub(crate) mod desk;
mod elsewhere;
mod ends;
mod fetched;
mod gang;
mod guards;
pub(crate) mod host;
mod kept;
mod keys;
mod knobs;
mod lai;
mod lambda;
mod looked_at;
mod mounts;
mod offered;
mod official;
mod paces;
mod private;
mod pushed;
mod regions;
mod restarts;
mod room;
mod runpod;
mod runpod_clients;
mod shells;
mod spot;
mod ssh;
mod story;
mod turned;
mod verbs;
mod workers;
