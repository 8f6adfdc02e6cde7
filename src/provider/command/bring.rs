//! The agent of a machine whose program tells an SSH address: pushed there, unless the program starts one itself.
//!
//! The host's key is the one that the program told, else the first one that this machine shows, which is put on record before anything
//! secret is sent. A machine that shows another key, or lets nobody in, may be on its way still: it is waited for. What was pushed is
//! ended before the machine is given back, as far as we get in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stageline_core::id::MachineId;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::{AgentSource, AgentWay};

use super::answer::{self, Acquired};
use super::record::Record;
use super::{CommandProvider, wrong};
use crate::provider::ssh::{Bound, Pushes};
use crate::provider::{Bring, Brought, Phase};
use crate::ssh::{Host, HostKey, Login, OwnKey, Place};

/// How long an agent may take to end before its machine is given back anyway.
const END_MAX: Duration = Duration::from_secs(15);

/// Connections to machines, and agents on their way to them.
#[derive(Default)]
pub(super) struct Doors {
    hosts: Mutex<BTreeMap<MachineId, Arc<Host>>>,
    /// What machines let us in by that are about to be given back.
    keys: Mutex<BTreeMap<MachineId, Arc<OwnKey>>>,
    pushes: Pushes,
}

impl Doors {
    /// Keeps the key of a machine.
    pub fn hold(&self, id: &MachineId, key: OwnKey) {
        let mut keys = self.keys.lock().expect("no holder panics");
        keys.insert(id.clone(), Arc::new(key));
    }

    fn key(&self, id: &MachineId) -> Option<Arc<OwnKey>> {
        let keys = self.keys.lock().expect("no holder panics");
        keys.get(id).cloned()
    }
}

impl CommandProvider {
    /// Gets the agent there, where that is ours to do.
    pub(super) async fn push(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        let Some(mut record) = self.records.read(id)? else {
            return Ok(Brought::There);
        };
        if (record.pushed && !what.lacks_worker) || !is_ours(&record, what.agent.as_ref())? {
            return Ok(Brought::There);
        }
        let host = self.door(&record, &what)?;
        let key = record.request_key.clone();
        let machine = Bound {
            id,
            key: &key,
            name: id.as_str(),
            own: false,
            listen: None,
            own_end: None,
        };
        let builds = &self.settings.means.builds;
        let brought = self
            .doors
            .pushes
            .bring(machine, &host, builds, what)
            .await?;
        if brought != Brought::There || record.pushed {
            return Ok(brought);
        }
        let starting = || Ok(Brought::Pending(Phase::new("its agent is starting")));
        let Ok(seen) = host.look().await else {
            return starting();
        };
        let contact = seen
            .traces
            .get(&key)
            .and_then(|trace| trace.contact.as_ref());
        let (Some(contact), Some(peer)) = (contact, host.peer()) else {
            return starting();
        };
        let ports = contact.direct.iter().map(SocketAddr::port);
        let mut direct: Vec<SocketAddr> = ports.map(|port| SocketAddr::new(peer, port)).collect();
        let more = contact
            .direct
            .iter()
            .filter(|address| !address.ip().is_loopback());
        direct.extend(more);
        direct.sort();
        direct.dedup();
        direct.truncate(8);
        record.direct = direct;
        record.pushed = true;
        self.records.write(&record)?;
        Ok(Brought::There)
    }

    /// The connection to a machine.
    fn door(&self, record: &Record, what: &Bring<'_>) -> Result<Arc<Host>, Cause> {
        let mut hosts = self.doors.hosts.lock().expect("no holder panics");
        if let Some(host) = hosts.get(&record.id()) {
            return Ok(Arc::clone(host));
        }
        let own = Arc::new(OwnKey::of(&what.boot.agent_key));
        let mut login = self
            .way_in(record, Some(own))
            .ok_or_else(|| wrong("acquire", "what it says of `ssh` is no address"))?;
        let recorded = what.host_keys.get(record.id().as_str());
        login.known = login
            .known
            .or_else(|| recorded.and_then(|key| HostKey::parse(key)));
        let host = Arc::new(Host::new(login));
        hosts.insert(record.id(), Arc::clone(&host));
        Ok(host)
    }

    /// How a machine is logged in to; none when its program told no SSH address.
    pub(super) fn way_in(&self, record: &Record, own: Option<Arc<OwnKey>>) -> Option<Login> {
        let answer = answer::acquired(Some(&record.state)).ok()?;
        let means = &self.settings.means;
        let recorded = means.host_keys.get(record.id().as_str());
        let told = answer.host_key.as_ref().or(recorded);
        Some(Login {
            place: Place::parse(&answer.ssh?, &means.user)?,
            own,
            keys: Vec::new(),
            agent: means.agent.clone(),
            known: told.and_then(|key| HostKey::parse(key)),
        })
    }

    /// Ends what was pushed, as far as we get in: whoever gets the machine next must not find it.
    pub(super) async fn end_pushed(&self, record: &Record) {
        if !record.pushed {
            return;
        }
        let id = record.id();
        self.doors.pushes.stop(&id);
        let kept = self
            .doors
            .hosts
            .lock()
            .expect("no holder panics")
            .remove(&id);
        let own = self.doors.key(&id);
        let host = kept.or_else(|| Some(Arc::new(Host::new(self.way_in(record, own)?))));
        if let Some(host) = host {
            let ended = tokio::time::timeout(END_MAX, host.end(&record.request_key)).await;
            if !matches!(ended, Ok(Ok(_))) {
                tracing::warn!(
                    "{id}: its agent could not be ended over SSH; `release` has to see to it"
                );
            }
        }
    }
}

/// Which way the agent takes, by what the program told; none when it has not told anything yet.
pub(super) fn way(record: &Record) -> Option<AgentWay> {
    answer::acquired(Some(&record.state)).ok()?;
    Some(match is_ours(record, None) {
        Ok(true) => AgentWay::Ssh,
        Ok(false) | Err(_) => AgentWay::Program,
    })
}

/// Whether the agent is pushed by us.
fn is_ours(record: &Record, agent: Option<&AgentSource>) -> Result<bool, Cause> {
    let answer = answer::acquired(Some(&record.state)).ok();
    let ssh = answer.as_ref().is_some_and(|answer| answer.ssh.is_some());
    let starts_one = |answer: &Acquired| !answer.direct.is_empty();
    match agent {
        Some(AgentSource::Image | AgentSource::Fetch { .. }) => Ok(false),
        Some(AgentSource::Ssh) if !ssh => {
            let message =
                "the offer says `agent = \"ssh\"`, and its program `acquire` told no `ssh`";
            let cause = Cause::new(FailureClass::Config, message);
            Err(cause.hint("let it print `ssh`, or start the agent itself and leave `agent` away"))
        }
        Some(AgentSource::Ssh) => Ok(true),
        None => Ok(ssh && !answer.as_ref().is_some_and(starts_one)),
    }
}
