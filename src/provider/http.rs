//! What all clouds with an HTTP API have in common: one client with limits, one gate for each account, one mapping of failures.
//!
//! What always holds: a key is sent in a header, to its own host and to nothing else; a redirect is
//! followed by reads alone, and within the provider's own hosts; every
//! call has a total deadline and every answer a size limit; requests of one account to one endpoint keep their distance, over
//! everything in this process; reads and releases may be sent again, a create never is. An answer that is not whole JSON of the expected
//! shape is never taken for "nothing there". It refuses to send a key in clear beyond this computer.

mod account;
mod client;
mod fault;
mod gate;
mod lines;
mod listing;
mod moment;
mod place;
mod recent;
mod redirect;
mod start;
mod stream;
mod tolerant;
mod window;

#[cfg(test)]
pub(in crate::provider) mod tests;

pub use account::KeyAccount;
pub use client::{Answer, Api, Call, ITS_OWN_MIN, PROOF_MIN, Told};
pub use fault::{Fault, only};
pub use gate::Endpoint;
pub use listing::{Shared, whole};
pub use moment::{LATE_MAX, as_priced, in_time, too_many};
pub use place::{Base, clear, path};
pub use recent::Recent;
pub use start::{NOT_FETCHED, fetch_functions, start_script};
pub use tolerant::{flag, money, number, text};

use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use stageline_core::id::{Fingerprint, Name};
use stageline_core::resource::{Account, Cause};
use stageline_core::topology::SecretRef;

use crate::agent::boot::Package;
use crate::agent::folder::Config;
use crate::ambient::SharedClock;
use crate::provider::Boot;
use crate::ssh::Means;

/// What an adapter of a cloud is made from.
#[derive(Clone)]
pub struct CloudSettings {
    /// The `[provider.NAME]`.
    pub name: Name,
    /// Where the API is; none is the provider's own.
    pub url: Option<String>,
    /// The key, by reference: recorded.
    pub key_ref: SecretRef,
    /// The key, or why it cannot be had: then nothing can be seen.
    pub key: Result<Arc<SecretString>, Cause>,
    /// The account that recorded machines are on, when there are any: another one's answers prove nothing.
    pub account: Option<String>,
    /// The relay that agents keep a connection to.
    pub relay: Option<String>,
    /// What machines are logged in to with, and what could be pushed there.
    pub means: Means,
    /// For deadlines.
    pub clock: SharedClock,
}

impl CloudSettings {
    /// What is recorded of an account.
    pub fn account_of(&self, id: String) -> Account {
        Account {
            id,
            api_key: Some(self.key_ref.clone()),
            key_fingerprint: self
                .key
                .as_ref()
                .map_or_else(|_| String::new(), |key| fingerprint(key.expose_secret())),
            url: self.url.clone(),
            programs: None,
            ssh_keys: Vec::new(),
        }
    }
}

/// Tells two keys apart, and says nothing about either.
pub fn fingerprint(key: &str) -> String {
    Fingerprint::of(format!("stageline api key v1\n{key}").as_bytes()).short()
}

/// What a new machine is handed, so that its agent can prove who it is.
pub fn package(boot: &Boot, listen: Option<std::net::SocketAddr>) -> Package {
    Package {
        key: secrecy::SecretBox::new(Box::new(*boot.agent_key.expose_secret())),
        config: Config {
            operator: boot.operator,
            lineage: boot.lineage,
            lease: boot.lease.clone(),
            generation: boot.generation,
            attempt: boot.attempt,
            relay: None,
            listen,
            port: None,
            own_end: None,
        },
        relay: boot.relay.clone().map(Into::into),
    }
}
