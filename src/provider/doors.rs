//! Rented machines that let us in by a key of their own: the way in, and agents on their way there.
//!
//! What always holds: a machine is handed nothing secret before the key of its host is on record; where that key is known before the
//! machine is met, every other one is refused, and where it is not, every other one than the first. What may pass while a machine
//! boots is waited for: the caller's deadline ends that. It refuses to ask anybody's SSH agent for a key while it pushes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use stageline_core::id::{MachineId, RequestKey};
use stageline_core::offer::Quote;
use stageline_core::resource::{Cause, FailureClass};

use super::ssh::{Bound, Pushes};
use super::{Bring, Brought};
use crate::agent::OwnEnd;
use crate::ssh::{BUILD_ONE, Host, HostKey, Login, Means, Measured, OwnKey, Place};

/// A command for the boot of a machine: it starts every agent again that was pushed there, and nothing where none was yet. `run` runs the
/// script `$A`, as its user.
pub(super) fn again(home: &str, run: &str) -> String {
    format!(
        "for A in {home}/.stageline/*/machines/*/again; do [ -f \"$A\" ] && {run}; done; true\n"
    )
}

/// Ways in to the machines of one account.
pub(super) struct Doors {
    means: Means,
    hosts: Mutex<BTreeMap<MachineId, Arc<Host>>>,
    keys: Mutex<BTreeMap<MachineId, Arc<OwnKey>>>,
    pushes: Pushes,
}

/// How a machine is got in to.
pub(super) struct Door {
    /// Where, and as whom.
    pub place: Place,
    /// The key that its host was told to have; none is the one on record, or the first that it shows.
    pub pinned: Option<HostKey>,
    /// Where its agent is to listen; none is any port.
    pub listen: Option<SocketAddr>,
    /// How the machine ends itself; none where it cannot.
    pub own_end: Option<OwnEnd>,
}

impl Doors {
    /// No machine is connected to before something is brought there.
    pub fn new(means: Means) -> Self {
        Self {
            means,
            hosts: Mutex::default(),
            keys: Mutex::default(),
            pushes: Pushes::default(),
        }
    }

    /// Whether an agent could be pushed to what is sold: there is a program of ours for it, as far as its processor and its image's C
    /// library (`glibc 2.35`; empty where nobody tells) are known. Asked before money is spent.
    pub fn ready(&self, quote: &Quote, libc: &str) -> Result<(), Cause> {
        if cfg!(not(feature = "ssh")) {
            return Err(without_ssh());
        }
        let mut facts = quote.facts.clone();
        "linux".clone_into(&mut facts.os);
        let libc = libc.to_owned();
        let fits = self.means.builds.could_fit(&Measured { facts, libc });
        fits.map_err(|error| {
            let message = format!("no agent could be pushed there: {error}");
            Cause::new(FailureClass::OfferGone, message).hint(BUILD_ONE)
        })
    }

    /// Begins to push the agent, or tells how far that is.
    pub async fn bring(
        &self,
        (id, key): (&MachineId, &RequestKey),
        door: Door,
        what: Bring<'_>,
    ) -> Result<Brought, Cause> {
        let own = OwnKey::of(&what.boot.agent_key);
        let host = self.host(id, own, &door, what.host_keys);
        let machine = Bound {
            id,
            key,
            name: id.as_str(),
            own: false,
            listen: door.listen,
            own_end: door.own_end,
        };
        let builds = &self.means.builds;
        self.pushes.bring(machine, &host, builds, what).await
    }

    /// The connection to a machine; a new one where its address is another by now.
    fn host(
        &self,
        id: &MachineId,
        own: OwnKey,
        door: &Door,
        on_record: &BTreeMap<String, String>,
    ) -> Arc<Host> {
        let mut hosts = self.hosts.lock().expect("no holder panics");
        if let Some(host) = hosts.get(id).filter(|host| *host.place() == door.place) {
            return Arc::clone(host);
        }
        let recorded = || HostKey::parse(on_record.get(id.as_str())?);
        let host = Arc::new(Host::new(Login {
            place: door.place.clone(),
            own: Some(Arc::new(own)),
            keys: Vec::new(),
            agent: None,
            known: door.pinned.clone().or_else(recorded),
        }));
        hosts.insert(id.clone(), Arc::clone(&host));
        host
    }

    /// Keeps the key of a machine, for whoever logs in there.
    pub fn hold(&self, id: &MachineId, key: OwnKey) {
        let mut keys = self.keys.lock().expect("no holder panics");
        keys.insert(id.clone(), Arc::new(key));
    }

    /// How one logs in to a machine: by its own key where that is held, else by the SSH agent. None where no key of its host is on
    /// record: nothing was pushed there.
    pub fn login(&self, id: &MachineId, place: Place) -> Option<Login> {
        let keys = self.keys.lock().expect("no holder panics");
        let recorded = self.means.host_keys.get(id.as_str())?;
        Some(Login {
            place,
            own: keys.get(id).cloned(),
            keys: Vec::new(),
            agent: self.means.agent.clone(),
            known: Some(HostKey::parse(recorded)?),
        })
    }

    /// What a machine's agent said, where this process has a way in to it.
    pub async fn logs(&self, id: &MachineId, key: &RequestKey, tail: usize) -> Option<Vec<u8>> {
        let host = {
            let hosts = self.hosts.lock().expect("no holder panics");
            Arc::clone(hosts.get(id)?)
        };
        let mut log = host.logs(key, tail).await.ok()?;
        Some(log.split_off(log.len().saturating_sub(tail)))
    }
}

/// Said where nothing can be pushed.
pub(super) fn without_ssh() -> Cause {
    let message = "this stageline was built without SSH, and pushes no agent";
    Cause::new(FailureClass::Config, message).hint(
        "use one that was built with the feature `ssh`, or write `agent = { url = \"...\", sha256 = \"...\" }`",
    )
}
