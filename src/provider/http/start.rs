//! The script that starts the agent on a machine: found in the image, or fetched and run when its digest fits. Pure.
//!
//! It starts an agent again that ended: the machine costs money, and an agent that is not there serves nobody. It never runs
//! what has another digest. What is fetched is the program, or a plain tar archive with the program and its workers.

use stageline_core::id::Sha256;
use stageline_core::topology::AgentSource;

/// The script. It leaves the agent behind in the background, for whatever a provider does next.
pub fn start_script(agent: &AgentSource) -> String {
    match agent {
        // One that is pushed is on no `PATH`, and nothing here starts it.
        AgentSource::Image | AgentSource::Ssh => format!("{HEAD}A=stageline\n{RUN}"),
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

/// What to say when nothing right can be had.
pub const NOT_FETCHED: &str =
    "stageline: the agent cannot be fetched, or its digest is not the one in the topology";

/// Shell functions for what is fetched. In `$D`: `fetched` is the file as it came, `stageline` the program. `current` tells whether they
/// are the right ones, `fetch` makes them so. An archive has the program as its last member, so that it is there when all is.
pub fn fetch_functions(url: &str, sha256: &Sha256) -> String {
    let url = url.replace('\'', "'\\''");
    format!(
        "A=\"$D/stageline\"
F=\"$D/fetched\"
U='{url}'
fits() {{ echo '{sha256}  '\"$1\" | sha256sum -c - >/dev/null 2>&1; }}
current() {{ fits \"$F\" && [ -x \"$A\" ]; }}
place() {{
  rm -f \"$A\" \"$D\"/stageline-worker*
  if tar -tf \"$F\" stageline >/dev/null 2>&1; then
    tar -xf \"$F\" -C \"$D\"
  else
    cp \"$F\" \"$A.new\" && chmod 755 \"$A.new\" && mv \"$A.new\" \"$A\"
  fi
}}
fetch() {{
  {{ curl -fsSL --max-time 600 -o \"$F.new\" \"$U\" || wget -q -T 60 -O \"$F.new\" \"$U\"; }} &&
    fits \"$F.new\" && mv \"$F.new\" \"$F\" && place && return
  rm -f \"$F.new\"
  return 1
}}
"
    )
}

fn fetching(url: &str, sha256: &Sha256) -> String {
    let functions = fetch_functions(url, sha256);
    format!(
        "{HEAD}{functions}n=0
until current; do
  fetch && break
  n=$((n + 1))
  if [ $n -ge 5 ]; then
    echo '{NOT_FETCHED}'
    exit 1
  fi
  sleep \"${{STAGELINE_FETCH_PAUSE:-5}}\"
done
{RUN}"
    )
}
