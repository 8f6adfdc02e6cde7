//! What a new instance is made from: the launch, and the user data that start the agent.
//!
//! The user data are cloud-init's: files and commands, as JSON, which is YAML too. The agent's package is in a file that only
//! the machine's root can read; it is of use on that machine only. A service keeps the agent running, over restarts of the machine
//! too. The agent is always fetched, and runs when its digest fits, and not otherwise.

use std::net::SocketAddr;

use serde_json::{Value, json};
use stageline_core::id::Sha256;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::AgentSource;

use super::wire::{TAG, TAG_ACCOUNT};
use crate::provider::CreateRequest;
use crate::provider::http::package;

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

/// The body of the launch.
pub(super) fn body(
    request: &CreateRequest,
    (region, kind): (&str, &str),
    ssh_key: &str,
    account: &str,
) -> Result<Value, Cause> {
    let Some(AgentSource::Fetch { url, sha256 }) = &request.agent else {
        let message = "a machine of this provider runs no image that could have the agent";
        let hint = "add `agent = { url = \"...\", sha256 = \"...\" }` to the offer";
        return Err(Cause::new(FailureClass::Config, message).hint(hint));
    };
    let user_data = user_data(request, url, sha256);
    if user_data.len() > USER_DATA_MAX {
        let message = "what the machine is told at its start is longer than the provider takes";
        return Err(Cause::new(FailureClass::Config, message).hint("give `agent` a shorter `url`"));
    }
    let key = request.request_key.as_str();
    let mut body = json!({
        "region_name": region,
        "instance_type_name": kind,
        "ssh_key_names": [ssh_key],
        "name": key,
        "tags": [{ "key": TAG, "value": key }, { "key": TAG_ACCOUNT, "value": account }],
        "user_data": user_data,
    });
    if let Some(family) = &request.image {
        body["image"] = json!({ "family": family });
    }
    Ok(body)
}

fn user_data(request: &CreateRequest, url: &str, sha256: &Sha256) -> String {
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
    let url = url.replace('\'', "'\\''");
    format!(
        "#!/bin/sh
D=\"${{STAGELINE_HOME:-/var/lib/stageline}}\"
A=\"$D/stageline\"
U='{url}'
mkdir -p \"$D\"
fits() {{ echo '{sha256}  '\"$1\" | sha256sum -c - >/dev/null 2>&1; }}
if ! fits \"$A\"; then
  {{ curl -fsSL --max-time 600 -o \"$A.new\" \"$U\" || wget -q -T 60 -O \"$A.new\" \"$U\"; }} &&
    fits \"$A.new\" && chmod 755 \"$A.new\" && mv \"$A.new\" \"$A\" || {{
    rm -f \"$A.new\"
    echo 'stageline: the agent cannot be fetched, or its digest is not the one in the topology' >&2
    exit 1
  }}
fi
exec \"$A\" agent --boot-env --dir \"$D/agent\"
"
    )
}
