//! The agent of a pod that is made without one: pushed over SSH, by a key that the pod alone is told.
//!
//! The key is in the pod's environment, from where images of the provider let it in: nothing of it stays at the account. The provider
//! tells no key of the pod's host, so the first one that is met is put on record, and every other one is refused from then on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use serde_json::Value;
use stageline_core::id::MachineId;
use stageline_core::resource::Cause;
use stageline_core::topology::AgentSource;

use super::boot::own_end;
use super::{LOOK_AGE, Runpod, URL, wire};
use crate::provider::doors::Door;
use crate::provider::{Bring, Brought, Phase, SSH_PHASE};
use crate::ssh::{Login, Place};

/// As whom one logs in to a pod.
const USER: &str = "root";

/// Where the SSH servers of pods are.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<MachineId, SocketAddr>>);

impl Known {
    /// What a listing shows.
    pub(super) fn note(&self, pods: &[Value]) {
        let mut at = self.0.lock().expect("no holder panics");
        at.extend(
            pods.iter()
                .filter_map(|pod| Some((wire::id(pod)?, wire::ssh(pod)?))),
        );
    }

    fn at(&self, id: &MachineId) -> Option<SocketAddr> {
        self.0.lock().expect("no holder panics").get(id).copied()
    }
}

impl Runpod {
    /// Pushes the agent, where it gets there so.
    pub(super) async fn push(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        if what.agent != Some(AgentSource::Ssh) {
            return Ok(Brought::There);
        }
        let wait = |why: String| Ok(Brought::Pending(Phase::new(SSH_PHASE).because(why)));
        let seen = match self.all(LOOK_AGE).await {
            Ok(all) => all.into_iter().find(|machine| machine.id == *id),
            Err(fault) => return wait(format!(": {}", fault.cause.message)),
        };
        let key = seen.and_then(|machine| machine.request_key);
        let (Some(key), Some(at)) = (key, self.known.at(id)) else {
            return wait(": its SSH port is not told yet".to_owned());
        };
        let api = self.settings.url.as_deref().unwrap_or(URL);
        let door = Door {
            place: place(at),
            pinned: None,
            // It is reached by a relay.
            listen: None,
            own_end: what.boot.limits.map(|limits| own_end(limits, api)),
        };
        self.doors.bring((id, &key), door, what).await
    }

    /// How one logs in to a pod that was seen.
    pub(super) fn way_in(&self, id: &MachineId) -> Option<Login> {
        self.doors.login(id, place(self.known.at(id)?))
    }
}

fn place(at: SocketAddr) -> Place {
    Place {
        user: USER.to_owned(),
        address: at.ip().to_string(),
        port: at.port(),
    }
}
