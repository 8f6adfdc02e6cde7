//! What a new instance is made from: its image, its ports, and the command that starts the agent.
//!
//! The agent's package goes into environment variables: the host owner can see them, and they are of use on that machine
//! only. The command restarts an agent that ended. A fetched agent runs when its digest fits, and not otherwise.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use stageline_core::id::Sha256;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::AgentSource;

use crate::provider::CreateRequest;
use crate::provider::http::package;

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
    let onstart = onstart(agent);
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

/// The command that starts the agent.
pub(super) fn onstart(agent: &AgentSource) -> String {
    match agent {
        AgentSource::Image => format!("{HEAD}A=stageline\n{RUN}"),
        AgentSource::Fetch { url, sha256 } => fetching(url, sha256),
    }
}

/// What the agent prints goes to the container's log.
const HEAD: &str = "\
D=\"${STAGELINE_HOME:-/var/lib/stageline}\"
[ -w /proc/1/fd/1 ] && exec >/proc/1/fd/1 2>&1
mkdir -p \"$D\"
";

/// Again when it ends: the machine costs money, and an agent that is not there serves nobody.
const RUN: &str = "\
(while :; do \"$A\" agent --boot-env --dir \"$D/agent\"; sleep 5; done) </dev/null &
";

fn fetching(url: &str, sha256: &Sha256) -> String {
    let url = url.replace('\'', "'\\''");
    format!(
        "{HEAD}A=\"$D/stageline\"
U='{url}'
n=0
until [ -x \"$A\" ]; do
  {{ curl -fsSL --max-time 600 -o \"$A.new\" \"$U\" || wget -q -T 60 -O \"$A.new\" \"$U\"; }} &&
    echo '{sha256}  '\"$A.new\" | sha256sum -c - >/dev/null &&
    chmod 755 \"$A.new\" && mv \"$A.new\" \"$A\" && break
  rm -f \"$A.new\"
  n=$((n + 1))
  if [ $n -ge 5 ]; then
    echo 'stageline: the agent cannot be fetched, or its digest is not the one in the topology'
    exit 1
  fi
  sleep \"${{STAGELINE_FETCH_PAUSE:-5}}\"
done
{RUN}"
    )
}
