//! Start commands that fetch an agent: run as they are, by the real shell.
//!
//! All machines share this computer, so that the few paths that belong to a whole machine are other ones here: what the container's first
//! process prints to is a file of the machine's, and so is what is written to `/tmp`. A service of systemd is a loop. Where the command is the
//! container's first process, nothing that it began outlives it. Other start commands are not run: an image that has the agent in it is
//! stood for by this very program.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Kind;

/// The command of a service that starts an agent at Lambda.
const SERVICE: &str = "/usr/local/lib/stageline/start";

/// What becomes of a container whose first process ended.
const ENDS: &str = "kill -KILL 0";

/// What runs on the machine when it starts, for a shell; none where that fetches nothing.
pub(super) fn command(kind: Kind, onstart: &str, dir: &Path) -> Option<String> {
    let own = |script: &str| {
        let out = dir.join("agent.out");
        script.replace("/proc/1/fd/1", &out.display().to_string())
    };
    match kind {
        Kind::Vastai => fetches(onstart).then(|| own(onstart)),
        Kind::Runpod => {
            let (_, rest) = onstart.split_once("echo ")?;
            let (encoded, _) = rest.split_once(' ')?;
            let script = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
            let within = format!("{}/", dir.display());
            let args = onstart.replace(encoded, &STANDARD.encode(own(&script)));
            fetches(&script).then(|| format!("{}\n{ENDS}", args.replace("/tmp/", &within)))
        }
        Kind::Lambda => {
            let config: Value =
                serde_json::from_str(onstart.strip_prefix("#cloud-config\n")?).ok()?;
            let files = config["write_files"].as_array()?;
            let file = files.iter().find(|file| file["path"] == SERVICE)?;
            let script = own(file["content"].as_str()?);
            fetches(&script).then(|| format!("while :; do (\n{script}\n); sleep 5; done &"))
        }
    }
}

fn fetches(script: &str) -> bool {
    script.contains("curl ")
}
