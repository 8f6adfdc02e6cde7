//! Who gets in to a machine by SSH, and what it is known by.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::ssh::HostKey;

/// What a machine's SSH server is told.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// As whom one logs in.
    pub user: &'static str,
    /// Where it listens; 0 is a free port, which is mapped.
    pub port: u16,
    /// The private key of its host, as OpenSSH keeps it; none is one that nobody was told.
    pub host_key: Option<String>,
    /// What is in the environment of whoever logs in.
    pub env: BTreeMap<String, String>,
    /// For so long it cuts every connection.
    pub refuses_for: Duration,
    /// For so long it shows another key than it was told.
    pub shows_other_for: Duration,
    /// For so long it takes no key.
    pub denies_for: Duration,
    /// Public keys that let one in.
    pub authorized: Arc<Mutex<Vec<HostKey>>>,
}

impl Access {
    /// For this user, with these public keys.
    pub fn of(user: &'static str, port: u16, keys: impl Iterator<Item = String>) -> Self {
        let access = Self {
            user,
            port,
            ..Self::default()
        };
        for key in keys {
            access.take(&key);
        }
        access
    }

    /// One key more. False when it is none.
    pub fn take(&self, public: &str) -> bool {
        let Some(key) = HostKey::parse(public) else {
            return false;
        };
        let mut authorized = self.authorized.lock().expect("no holder panics");
        authorized.push(key);
        true
    }

    /// Whether this key lets one in.
    pub fn lets_in(&self, key: &HostKey) -> bool {
        let authorized = self.authorized.lock().expect("no holder panics");
        authorized.contains(key)
    }
}
