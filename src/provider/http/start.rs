//! The script that starts the agent in a container: found in the image, or fetched and run when its digest fits. Pure.
//!
//! It starts an agent again that ended: the machine costs money, and an agent that is not there serves nobody. It never runs
//! what has another digest.

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
