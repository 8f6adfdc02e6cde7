//! What a new instance is made from: the launch, and the user data that start the agent or let us bring it.
//!
//! The user data are cloud-init's: files and commands, as JSON, which is YAML too. Where the machine fetches its agent, the package is
//! in a file that only the machine's root can read; it is of use on that machine only. A service keeps the agent running, over restarts
//! of the machine too; it runs when its digest fits, and not otherwise. Where the agent is pushed, the user data hold the key that the
//! machine's host is known by, and nothing else that is secret; and what starts that agent again when the machine is restarted.

use std::net::SocketAddr;

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use stageline_core::id::Sha256;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::AgentSource;

use super::ready::LetIn;
use super::wire::{TAG, TAG_ACCOUNT};
use crate::provider::CreateRequest;
use crate::provider::doors::{again, without_ssh};
use crate::provider::http::{NOT_FETCHED, fetch_functions, package};
use crate::ssh::HostPair;

/// Where the agent listens: machines have an address of their own.
pub(super) const PORT: u16 = 41641;

/// The provider takes 1 MB.
const USER_DATA_MAX: usize = 1_000_000;

/// The package, as the service's environment.
const PACKAGE: &str = "/etc/stageline/boot.env";

/// The command that fetches and runs the agent.
const START: &str = "/usr/local/lib/stageline/start";

/// The service.
const UNIT: &str = "/etc/systemd/system/stageline-agent.service";

/// Starts an agent again that was pushed.
const AGAIN: &str = "/var/lib/cloud/scripts/per-boot/stageline";

/// The body of the launch.
pub(super) fn body(
    request: &CreateRequest,
    (region, kind): (&str, &str),
    ssh_key: &LetIn,
    account: &str,
) -> Result<Value, Cause> {
    let user_data = match &request.agent {
        Some(AgentSource::Fetch { url, sha256 }) => fetches(request, url, sha256),
        Some(AgentSource::Ssh) | None => is_pushed_to(request, ssh_key)?,
        Some(AgentSource::Image) => {
            let message = "a machine of this provider runs no image that could have the agent";
            let hint = "remove `agent` from the offer, or write `agent = { url = \"...\", sha256 = \"...\" }`";
            return Err(Cause::new(FailureClass::Config, message).hint(hint));
        }
    };
    if user_data.len() > USER_DATA_MAX {
        let message = "what the machine is told at its start is longer than the provider takes";
        return Err(Cause::new(FailureClass::Config, message).hint("give `agent` a shorter `url`"));
    }
    let key = request.request_key.as_str();
    let mut body = json!({
        "region_name": region,
        "instance_type_name": kind,
        "ssh_key_names": [ssh_key.name],
        "name": key,
        "tags": [{ "key": TAG, "value": key }, { "key": TAG_ACCOUNT, "value": account }],
        "user_data": user_data,
    });
    if let Some(family) = &request.image {
        body["image"] = json!({ "family": family });
    }
    let mounts = &request.mounts;
    if !mounts.is_empty() {
        let names: Vec<&String> = mounts.iter().map(|mount| &mount.name).collect();
        let at = mounts
            .iter()
            .map(|mount| json!({ "mount_point": mount.at, "file_system_id": mount.id }));
        body["file_system_names"] = json!(names);
        body["file_system_mounts"] = at.collect();
    }
    Ok(body)
}

/// The C library of the image, at least; empty where its family does not tell. A machine whose image nobody named runs the newest
/// Lambda Stack, which is Ubuntu 24.04 or later.
pub(super) fn libc(image: Option<&str>) -> &'static str {
    let family = image.unwrap_or("24-04");
    let ubuntu = [
        ("24-04", "glibc 2.39"),
        ("22-04", "glibc 2.35"),
        ("20-04", "glibc 2.31"),
    ];
    let told = ubuntu.iter().find(|(release, _)| family.ends_with(release));
    told.map_or("", |(_, libc)| libc)
}

/// A machine that the agent is pushed to is told nothing but which key it is known by: the rest comes over the connection that this
/// key is the proof of.
fn is_pushed_to(request: &CreateRequest, ssh_key: &LetIn) -> Result<String, Cause> {
    let pair = HostPair::of(&request.boot.agent_key);
    let (Some(public), Some(private)) = (pair.public(), pair.private()) else {
        return Err(without_ssh());
    };
    let mut config = json!({
        "ssh_deletekeys": true,
        "ssh_keys": { "ed25519_private": private.expose_secret(), "ed25519_public": public.as_str() },
    });
    // cloud-init runs it at every start of the machine, as root.
    let script = format!(
        "#!/bin/sh\n{}",
        again(
            "$(getent passwd ubuntu | cut -d: -f6)",
            "su ubuntu -c \"sh $A\""
        )
    );
    config["write_files"] = json!([{
        "path": AGAIN, "owner": "root:root", "permissions": "0755", "content": script,
    }]);
    if let Some(more) = &ssh_key.more {
        config["ssh_authorized_keys"] = json!([more]);
    }
    Ok(format!("#cloud-config\n{config}"))
}

fn fetches(request: &CreateRequest, url: &str, sha256: &Sha256) -> String {
    let listen = SocketAddr::from(([0, 0, 0, 0], PORT));
    let package = package(&request.boot, Some(listen)).environment();
    let package: Vec<String> = package
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    let file = |path: &str, permissions: &str, content: &str| json!({ "path": path, "owner": "root:root", "permissions": permissions, "content": content });
    let config = json!({
        "write_files": [
            file(PACKAGE, "0600", &package.concat()),
            file(START, "0755", &start(url, sha256)),
            file(UNIT, "0644", &unit()),
        ],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", "stageline-agent.service"],
        ],
    });
    format!("#cloud-config\n{config}")
}

/// Again when it ends: the machine costs money, and an agent that is not there serves nobody.
fn unit() -> String {
    format!(
        "[Unit]\nDescription=stageline agent\nWants=network-online.target\nAfter=network-online.target\n\
         StartLimitIntervalSec=0\n\n\
         [Service]\nEnvironmentFile={PACKAGE}\nExecStart={START}\nRestart=always\nRestartSec=5\nKillMode=mixed\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// The command that the service runs.
pub(super) fn start(url: &str, sha256: &Sha256) -> String {
    let functions = fetch_functions(url, sha256);
    format!(
        "#!/bin/sh
D=\"${{STAGELINE_HOME:-/var/lib/stageline}}\"
mkdir -p \"$D\"
{functions}current || fetch || {{
  echo '{NOT_FETCHED}' >&2
  exit 1
}}
exec \"$A\" agent --boot-env --dir \"$D/agent\"
"
    )
}
