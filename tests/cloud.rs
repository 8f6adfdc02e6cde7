//! State in buckets, on real servers that speak the clouds' APIs: what one store promises they all hold, a lost answer
//! changes nothing at whichever request, and whoever cannot get in is told what to look at.
//!
//! The servers are installed once per computer, by package name, and end with the test process. Where an installer is
//! missing the tests say so and pass, but for CI.

#[path = "cloud/faults.rs"]
mod faults;
#[path = "cloud/messages.rs"]
mod messages;
#[path = "cloud/program.rs"]
mod program;
#[path = "cloud/proxy.rs"]
mod proxy;
#[path = "cloud/servers.rs"]
mod servers;
#[path = "cloud/stores.rs"]
mod stores;
