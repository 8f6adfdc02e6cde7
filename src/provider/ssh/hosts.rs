//! The hosts, how machines on them are named, and what was seen of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stageline_core::id::{MachineId, Name, RequestKey};
use stageline_core::offer::{Facts, QuoteId};
use stageline_core::resource::Contact;
use stageline_core::topology::Claims;
use stageline_core::unit::MicroDollars;
use tokio::sync::OnceCell;

use crate::provider::http::Shared;
use crate::ssh::{Host, HostKey, Measured, Place, Seen, SshError};

/// One host of one's own.
#[derive(Clone, Debug)]
pub struct OwnHost {
    /// Where, and as whom.
    pub place: Place,
    /// Files of keys; none asks the SSH agent.
    pub keys: Vec<PathBuf>,
    /// The socket of the SSH agent.
    pub agent: Option<PathBuf>,
    /// Its key, as the topology says or the state recorded.
    pub known: Option<HostKey>,
    /// What an hour of it counts for.
    pub price_per_hour: MicroDollars,
    /// Words for `where`.
    pub tags: Vec<String>,
    /// It may be taken; else it is there for the machine that is on it.
    pub declared: bool,
}

/// What separates a host from a machine on it.
const MACHINE: char = '/';

/// The name of a machine.
pub(super) fn machine_of(place: &Place, key: &RequestKey) -> MachineId {
    let text = format!("{place}{MACHINE}{key}");
    text.parse().expect("hosts have short and printable names")
}

/// The host of a machine, and its request key.
pub(super) fn place_and_key(id: &MachineId) -> Option<(&str, RequestKey)> {
    let (place, key) = id.as_str().split_once(MACHINE)?;
    Some((place, key.parse().ok()?))
}

/// What a host is sold as by an offer.
pub(super) fn quote_of(offer: &Name, place: &Place) -> QuoteId {
    QuoteId(format!("{offer}:{place}"))
}

/// The host that a recorded machine is on, or that a recorded try was for.
pub fn recorded_host(machine_or_quote: &str) -> Option<Place> {
    let place = match machine_or_quote.split_once(MACHINE) {
        Some((place, _)) => place,
        None => machine_or_quote.split_once(':')?.1,
    };
    Place::parse(place, "").filter(|read| read.to_string() == place)
}

/// A host, and what was seen of it.
pub(super) struct Desk {
    pub of: OwnHost,
    pub host: Arc<Host>,
    measured: OnceCell<Measured>,
    seen: Shared<Seen>,
}

impl Desk {
    pub fn new(of: OwnHost) -> Self {
        Self {
            host: Arc::new(Host::new(super::login(&of))),
            of,
            measured: OnceCell::new(),
            seen: Shared::new(),
        }
    }

    /// Who has it: no older than this.
    pub async fn look(&self, age: Duration) -> Result<Seen, SshError> {
        self.seen.get(age, async || self.host.look().await).await
    }

    /// What was seen says nothing about what was done since.
    pub async fn forget(&self) {
        self.seen.forget().await;
    }

    /// What it is: that does not change while we look.
    pub async fn measured(&self) -> Result<Measured, SshError> {
        let measured = self.measured.get_or_try_init(|| self.host.measure()).await;
        measured.cloned()
    }

    pub async fn facts(&self) -> Result<Facts, SshError> {
        Ok(self.measured().await?.facts)
    }

    /// What it was when it was seen last; else what is claimed of it.
    pub fn unseen(&self, offers: &BTreeMap<Name, Claims>) -> Facts {
        let claimed = || offers.values().next().map(|claims| claims.facts.clone());
        match self.measured.get() {
            Some(measured) => measured.facts.clone(),
            None => claimed().unwrap_or_default(),
        }
    }

    /// What was measured, and what only its owner can know.
    pub fn claimed(&self, measured: &Facts, claims: &Claims) -> Facts {
        let own = &claims.facts;
        let mut facts = Facts {
            region: own.region.clone(),
            tools: own.tools.clone(),
            host: Some(self.host.place().host()),
            ..measured.clone()
        };
        if facts.gpus.is_empty() {
            facts.gpus.clone_from(&own.gpus);
        }
        let address = self.host.place().address.clone();
        facts.extra.insert("address".to_owned(), address);
        if !self.of.tags.is_empty() {
            facts
                .extra
                .insert("tags".to_owned(), self.of.tags.join(" "));
        }
        facts
    }

    /// How an agent on it may be reached: at the address that answers us, and at whatever else it says.
    pub fn contact(&self, told: Contact, relay: Option<&String>) -> Contact {
        let mut direct = Vec::new();
        if let Some(peer) = self.host.peer() {
            let mut ports: Vec<u16> = told.direct.iter().map(SocketAddr::port).collect();
            ports.sort_unstable();
            ports.dedup();
            direct.extend(
                ports
                    .into_iter()
                    .take(4)
                    .map(|port| SocketAddr::new(peer, port)),
            );
        }
        let more = told
            .direct
            .into_iter()
            .filter(|address| !address.ip().is_loopback());
        direct.extend(more.take(8));
        direct.dedup();
        Contact {
            direct,
            relay: told.relay.or_else(|| relay.cloned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_tries_name_their_host() {
        let place = Place {
            user: "root".to_owned(),
            address: "2001:db8::1".to_owned(),
            port: 2222,
        };
        let key: RequestKey = "sl-0102030405060708-aabbccdd-g1a2".parse().expect("a key");
        let id = machine_of(&place, &key);
        assert_eq!(place_and_key(&id), Some((place.to_string().as_str(), key)));
        assert_eq!(recorded_host(id.as_str()), Some(place.clone()));
        let quote = quote_of(&"own".parse().expect("a name"), &place);
        assert_eq!(recorded_host(&quote.0), Some(place));
        for text in ["", "i-0123", "own", "own:", "own:x@-o"] {
            assert_eq!(recorded_host(text), None, "{text}");
        }
    }
}
