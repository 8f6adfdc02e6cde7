//! What a new pod is made from: its image, where it may be placed, and the command that starts the agent.
//!
//! The agent's package goes into environment variables: whoever has the account can read them, and they are of use on that pod
//! only. Where the agent is pushed, only the public half of a key does. The command is the container's own, so it stays in front for as long as the pod lives.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use stageline_core::resource::{Cause, FailureClass, LeaseLimits};
use stageline_core::topology::AgentSource;

use super::cpu;
use super::offer::{Choice, Cloud};
use crate::agent::OwnEnd;
use crate::provider::CreateRequest;
use crate::provider::doors::without_ssh;
use crate::provider::http::{package, start_script};
use crate::ssh::OwnKey;

/// What the provider runs when no image is asked for: one of its own, which most hosts have already.
const PLAIN_IMAGE: &str = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404";

/// Its C library.
pub(super) const PLAIN_LIBC: &str = "glibc 2.39";

/// Says to people who look at the pod which request made it, also when its name was changed.
const MARK: &str = "STAGELINE_REQUEST_KEY";

/// Says which account the pod was rented on, to whoever lists it with another key.
pub(super) const ACCOUNT: &str = "STAGELINE_ACCOUNT";

/// By which key images of the provider let one in.
const PUBLIC_KEY: &str = "PUBLIC_KEY";

/// Says in the pod's own record that its agent is pushed.
pub(super) const PUSHED: (&str, &str) = ("STAGELINE_AGENT", "ssh");

/// Each pod is handed its id and a key that is for this pod alone, so that it can end itself.
pub(super) fn own_end(limits: LeaseLimits, api: &str) -> OwnEnd {
    // What a simulator adds to its address is for the operator's side.
    let base = api.split('#').next().unwrap_or(api);
    OwnEnd {
        limits,
        url: format!("{}/v2/pods/{{id}}", base.trim_end_matches('/')),
        id: "RUNPOD_POD_ID".to_owned(),
        key: "RUNPOD_API_KEY".to_owned(),
    }
}

/// The body of the create, for an account of the service at this address.
pub(super) fn body(
    request: &CreateRequest,
    disk: u64,
    (account, api): (&str, &str),
) -> Result<Value, Cause> {
    let placed = placed(request)?;
    let agent = request.agent.as_ref().unwrap_or(&AgentSource::Image);
    let pushed = *agent == AgentSource::Ssh;
    let mut env = if pushed {
        // What the agent is told comes over the connection, and not through the provider.
        let own = OwnKey::of(&request.boot.agent_key).public();
        let own = own.ok_or_else(without_ssh)?;
        let (name, value) = PUSHED;
        BTreeMap::from([
            (PUBLIC_KEY.to_owned(), own),
            (name.to_owned(), value.to_owned()),
        ])
    } else {
        let mut package = package(&request.boot, None);
        package.config.own_end = request.boot.limits.map(|limits| own_end(limits, api));
        package.environment()
    };
    env.insert(MARK.to_owned(), request.request_key.as_str().to_owned());
    env.insert(ACCOUNT.to_owned(), account.to_owned());
    let mut body = json!({
        "name": request.request_key.as_str(),
        "image": request.image.as_deref().unwrap_or(PLAIN_IMAGE),
        "cloud": placed.cloud.as_str(),
        "dataCenterIds": placed.datacenters,
        "disk": disk,
        "env": env,
    });
    body[placed.part] = placed.asked;
    let mounts = request.mounts.iter();
    let mounts: Vec<Value> = mounts
        .map(|mount| json!({ "volumeId": mount.id, "path": mount.at }))
        .collect();
    if !mounts.is_empty() {
        body["mounts"] = json!({ "network": mounts });
    }
    if pushed {
        // The image's own command starts its SSH server.
        body["ports"] = json!(["22/tcp"]);
    } else {
        let own = request.boot.limits.map(|limits| own_end(limits, api));
        body["args"] = json!(args(agent, own.as_ref()));
    }
    Ok(body)
}

/// What is asked for, and where.
struct Placed {
    /// The field that says what: `gpu` or `cpu`.
    part: &'static str,
    asked: Value,
    cloud: Cloud,
    datacenters: Vec<String>,
}

fn placed(request: &CreateRequest) -> Result<Placed, Cause> {
    let name = &request.quote.id.0;
    if let Some(choice) = cpu::Choice::parse(name) {
        return Ok(Placed {
            part: "cpu",
            asked: choice.asked(),
            cloud: Cloud::Secure,
            datacenters: choice.datacenter.into_iter().collect(),
        });
    }
    let Some(choice) = Choice::parse(name) else {
        let message = format!("`{name}` is no offer of this provider");
        return Err(Cause::new(FailureClass::OfferGone, message));
    };
    let asks = &choice.asks;
    let mut gpu = Map::from_iter([
        ("id".to_owned(), json!(choice.gpu)),
        ("count".to_owned(), json!(asks.count)),
    ]);
    let mut asked = |field: &str, asked: bool, value: Value| {
        if asked {
            gpu.insert(field.to_owned(), value);
        }
    };
    asked(
        "allowedCudaVersions",
        !asks.cuda.is_empty(),
        json!(asks.cuda),
    );
    asked("minRamPerGpu", asks.memory > 0, json!(asks.memory));
    asked("minVcpuCountPerGpu", asks.cpus > 0, json!(asks.cpus));
    Ok(Placed {
        part: "gpu",
        asked: Value::Object(gpu),
        cloud: asks.cloud,
        datacenters: choice.datacenter.into_iter().collect(),
    })
}

/// The container's command. In one word without quotes, whatever is in it: the provider splits it as a shell does.
pub(super) fn args(agent: &AgentSource, own: Option<&OwnEnd>) -> String {
    let script = format!("{}wait\n", start_script(agent, own));
    let script = STANDARD.encode(script);
    format!(
        "sh -c 'echo {script} | base64 -d >/tmp/stageline-start && exec sh /tmp/stageline-start'"
    )
}
