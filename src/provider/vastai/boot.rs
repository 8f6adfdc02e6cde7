//! What a new instance is made from: its image, its ports, and the command that starts the agent.
//!
//! The agent's package goes into environment variables: the host owner can see them, and they are of use on that machine
//! only. The command restarts an agent that ended. A fetched agent runs when its digest fits, and not otherwise.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::AgentSource;

use crate::provider::CreateRequest;
use crate::provider::http::{package, start_script};

/// Where the agent listens in its container; the provider maps it to a free port of the host.
pub(super) const PORT: u16 = 41641;

/// What the provider runs when no image is asked for.
const PLAIN_IMAGE: &str = "vastai/base-image:@vastai-automatic-tag";

/// The provider takes 4048 characters.
const ONSTART_MAX: usize = 4000;

/// The body of the create.
pub(super) fn body(request: &CreateRequest, disk: u64) -> Result<Value, Cause> {
    let listen = SocketAddr::from(([0, 0, 0, 0], PORT));
    let mut env: Map<String, Value> = package(&request.boot, Some(listen))
        .environment()
        .into_iter()
        .map(|(name, value)| (name, Value::String(value)))
        .collect();
    env.insert(format!("-p {PORT}:{PORT}/udp"), json!("1"));
    let agent = request.agent.as_ref().unwrap_or(&AgentSource::Image);
    let onstart = start_script(agent);
    if onstart.len() > ONSTART_MAX {
        let message = "the address of the agent is too long for the command that starts it";
        return Err(Cause::new(FailureClass::Config, message).hint("give `agent` a shorter `url`"));
    }
    Ok(json!({
        "client_id": "me",
        "image": request.image.as_deref().unwrap_or(PLAIN_IMAGE),
        "env": env,
        "disk": disk,
        "label": request.request_key.as_str(),
        "onstart": onstart,
        "runtype": "ssh_direct",
        "cancel_unavail": true,
        "target_state": "running",
    }))
}
