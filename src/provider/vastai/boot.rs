//! What a new instance is made from: its image, its ports, and the command that starts the agent.
//!
//! The agent's package goes into environment variables: the host owner can see them, and they are of use on that machine
//! only; where the agent is pushed, it comes over SSH instead. The command restarts an agent that ended. A fetched agent runs when its digest fits, and not otherwise.

use std::net::SocketAddr;

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use stageline_core::resource::{Cause, FailureClass, LeaseLimits};
use stageline_core::topology::AgentSource;
use stageline_core::unit::MicroDollars;

use crate::agent::OwnEnd;
use crate::provider::doors::again;
use crate::provider::http::{package, start_script};
use crate::provider::{CreateRequest, RegistryLogin};

/// Where the agent listens in its container; the provider maps it to a free port of the host.
pub(super) const PORT: u16 = 41641;

/// What the provider runs when no image is asked for.
const PLAIN_IMAGE: &str = "vastai/base-image:@vastai-automatic-tag";

/// Its C library, at least: it is Ubuntu 22.04 or later.
pub(super) const PLAIN_LIBC: &str = "glibc 2.35";

/// The provider takes 4048 characters.
const ONSTART_MAX: usize = 4000;

/// Each container is handed a key that can start, stop and destroy its own instance, and nothing else.
pub(super) fn own_end(limits: LeaseLimits, api: &str) -> OwnEnd {
    // What a simulator adds to its address is for the operator's side.
    let base = api.split('#').next().unwrap_or(api);
    OwnEnd {
        limits,
        url: format!("{}/api/v0/instances/{{id}}/", base.trim_end_matches('/')),
        id: "CONTAINER_ID".to_owned(),
        key: "CONTAINER_API_KEY".to_owned(),
    }
}

/// Says in the instance's own record that its agent is pushed.
pub(super) const PUSHED: (&str, &str) = ("STAGELINE_AGENT", "ssh");

/// The body of the create.
pub(super) fn body(request: &CreateRequest, disk: u64, api: &str) -> Result<Value, Cause> {
    let mut env: Map<String, Value> = Map::new();
    let agent = request.agent.as_ref().unwrap_or(&AgentSource::Image);
    let onstart = if *agent == AgentSource::Ssh {
        // What the agent is told comes over the connection, and not through the provider.
        env.insert(PUSHED.0.to_owned(), json!(PUSHED.1));
        again("\"$HOME\"", "sh \"$A\"")
    } else {
        let listen = SocketAddr::from(([0, 0, 0, 0], PORT));
        let mut package = package(&request.boot, Some(listen));
        package.config.own_end = request.boot.limits.map(|limits| own_end(limits, api));
        let variables = package.environment().into_iter();
        env.extend(variables.map(|(name, value)| (name, Value::String(value))));
        start_script(agent, package.config.own_end.as_ref())
    };
    env.insert(format!("-p {PORT}:{PORT}/udp"), json!("1"));
    if onstart.len() > ONSTART_MAX {
        let message = "the address of the agent is too long for the command that starts it";
        return Err(Cause::new(FailureClass::Config, message).hint("give `agent` a shorter `url`"));
    }
    let login = request.registry.as_ref().map(login).transpose()?;
    let mut body = json!({
        "client_id": "me",
        "image": request.image.as_deref().unwrap_or(PLAIN_IMAGE),
        "env": env,
        "disk": disk,
        "label": request.request_key.as_str(),
        "onstart": onstart,
        "runtype": "ssh_direct",
        "cancel_unavail": true,
        "target_state": "running",
    });
    if let Some(bid) = request.quote.bid {
        // With one it is a machine that may be taken away, without one it is on demand.
        body["price"] = json!(dollars(bid.per_hour));
    }
    if let Some(mount) = request.mounts.first() {
        let Ok(number) = mount.id.parse::<u64>() else {
            let message = format!("`{}` is no volume of this provider", mount.id);
            return Err(Cause::new(FailureClass::Config, message));
        };
        body["volume_info"] =
            json!({ "create_new": false, "volume_id": number, "mount_path": mount.at });
    }
    if let Some(login) = login {
        body["image_login"] = Value::String(login);
    }
    Ok(body)
}

/// As the provider writes amounts.
#[expect(
    clippy::cast_precision_loss,
    reason = "a bid has fewer than 2^53 micro-dollars"
)]
fn dollars(amount: MicroDollars) -> f64 {
    amount.0 as f64 / 1e6
}

/// Who pulls the image, as words of a command line: the provider takes no others.
fn login(login: &RegistryLogin) -> Result<String, Cause> {
    let password = login.password.expose_secret();
    let words = [&*login.username, password, &*login.server];
    let plain = |word: &str| {
        word.bytes()
            .all(|b| b.is_ascii_graphic() && !b"'\"\\`$".contains(&b))
    };
    if !words.into_iter().all(plain) {
        let message = "the provider takes a login for images only without blanks, quotes, `$` and backslashes";
        let cause = Cause::new(FailureClass::Config, message);
        return Err(cause
            .hint("take an access token in the place of a password in `registry` of the offer"));
    }
    let [username, password, server] = words;
    Ok(format!("-u {username} -p {password} {server}"))
}
