//! The agent of an instance that is made without one: pushed over SSH, by a key that is attached to that instance alone.
//!
//! The key goes with the instance: nothing of it stays at the account. The provider tells no key of the container's host, so the first
//! one that is met is put on record, and every other one is refused from then on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use stageline_core::id::MachineId;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::AgentSource;
use tokio::time::Instant;

use super::boot::{PORT, own_end};
use super::{KEYS, LOOK_AGE, URL, Vastai, wire};
use crate::provider::doors::{Door, without_ssh};
use crate::provider::http::Call;
use crate::provider::{Bring, Brought, Phase, SSH_PHASE};
use crate::ssh::{Login, OwnKey, Place};

/// As whom one logs in to a container.
const USER: &str = "root";

/// A key that does not get one in yet is attached again after this: the provider writes them anew now and then.
const AGAIN: Duration = Duration::from_secs(60);

/// What is known of ways in to instances.
#[derive(Default)]
pub(super) struct Known {
    /// Where their SSH servers are.
    at: Mutex<BTreeMap<MachineId, SocketAddr>>,
    /// When our key was attached last.
    attached: Mutex<BTreeMap<MachineId, Instant>>,
}

impl Known {
    /// What a listing shows.
    pub(super) fn note(&self, instances: &[Value]) {
        let mut at = self.at.lock().expect("no holder panics");
        for instance in instances {
            let id = wire::id(instance, "id").and_then(|id| id.parse().ok());
            at.extend(id.zip(wire::ssh(instance)));
        }
    }

    fn at(&self, id: &MachineId) -> Option<SocketAddr> {
        self.at.lock().expect("no holder panics").get(id).copied()
    }
}

impl Vastai {
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
        match self.attach(id, &OwnKey::of(&what.boot.agent_key)).await {
            Ok(()) => {}
            Err(cause) if cause.class == FailureClass::Unknown => {
                return wait(format!(": its key cannot be attached: {}", cause.message));
            }
            Err(cause) => return Err(cause),
        }
        let here = at.ip().is_loopback();
        let api = self.settings.url.as_deref().unwrap_or(URL);
        let door = Door {
            place: place(at),
            pinned: None,
            // Containers of a simulator share this computer.
            listen: (!here).then(|| SocketAddr::from(([0, 0, 0, 0], PORT))),
            own_end: what.boot.limits.map(|limits| own_end(limits, api)),
        };
        self.doors.bring((id, &key), door, what).await
    }

    /// Attaches our key to an instance, unless that was done a moment ago.
    async fn attach(&self, id: &MachineId, own: &OwnKey) -> Result<(), Cause> {
        let before = {
            let attached = self.known.attached.lock().expect("no holder panics");
            attached.get(id).copied()
        };
        let again = self.api.above(AGAIN);
        if before.is_some_and(|at| at.elapsed() < again) {
            return Ok(());
        }
        let public = own.public().ok_or_else(without_ssh)?;
        let path = format!("/api/v0/instances/{id}/ssh/");
        let call = Call::send(Method::POST, path, KEYS, json!({ "ssh_key": public }));
        let answer = self.api.read(call).await;
        if let Err(fault) = answer {
            // One that is there already is refused.
            let refused = matches!(fault.status, Some(400 | 409));
            if !(refused && (before.is_some() || fault.cause.message.contains("already"))) {
                return Err(fault.cause);
            }
        }
        let mut attached = self.known.attached.lock().expect("no holder panics");
        attached.insert(id.clone(), Instant::now());
        Ok(())
    }

    /// How one logs in to an instance that was seen.
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
