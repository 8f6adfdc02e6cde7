//! The script that starts the agent on a machine: found in the image, or fetched and run when its digest fits. Pure.
//!
//! It starts an agent again that ended: the machine costs money, and an agent that is not there serves nobody. It never runs
//! what has another digest. What is fetched is the program, or a plain tar archive with the program and its workers.

use stageline_core::id::Sha256;
use stageline_core::resource::LeaseLimits;
use stageline_core::topology::AgentSource;
use stageline_core::unit::Millis;

use crate::agent::OwnEnd;

/// The script. It leaves the agent behind in the background, for whatever a provider does next. A machine that can end itself does so,
/// by its limits, also where no agent ever ran on it.
pub fn start_script(agent: &AgentSource, own: Option<&OwnEnd>) -> String {
    let ends = own.map(without_agent).unwrap_or_default();
    match agent {
        // One that is pushed is on no `PATH`, and nothing here starts it.
        AgentSource::Image | AgentSource::Ssh => format!("{HEAD}{ends}A=stageline\n{RUN}"),
        AgentSource::Fetch { url, sha256 } => fetching(&ends, url, sha256),
    }
}

/// Longest that a machine whose agent never ran waits for one, where it may be idle for less.
const BOOTS: Millis = Millis::minutes(30);

/// Ends the machine where no agent began to count its time. The key is on no command line. An image that fetches an agent may have
/// `wget` alone, and that reads the key from a file.
fn without_agent(own: &OwnEnd) -> String {
    let LeaseLimits {
        idle_timeout,
        max_lifetime,
    } = own.limits;
    let within = max_lifetime.min(idle_timeout.max(BOOTS));
    if within == Millis::NEVER {
        return String::new();
    }
    let seconds = within.0.div_ceil(1000);
    let (url, key) = (
        own.url.replace("{id}", &format!("${{{}}}", own.id)),
        &own.key,
    );
    format!(
        "(sleep {seconds}
[ -e \"$D/agent/born.json\" ] && exit
while :; do
  printf 'header = \"Authorization: Bearer %s\"\\n' \"${key}\" | curl -sS --max-time 30 -X DELETE -K - \"{url}\" || {{
    (umask 077; printf 'header = Authorization: Bearer %s\\n' \"${key}\" >\"$D/end\")
    wget -q -t 1 -T 30 -O /dev/null --method=DELETE --config=\"$D/end\" \"{url}\"
  }}
  sleep 30
done) </dev/null &
"
    )
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

/// Where something is to end the machine in time, this goes on: the script may be the machine's first process, and whatever it left
/// behind ends with it.
fn fetching(ends: &str, url: &str, sha256: &Sha256) -> String {
    let functions = fetch_functions(url, sha256);
    let then = match ends.is_empty() {
        true => "exit 1",
        false => "sleep 60",
    };
    format!(
        "{HEAD}{ends}{functions}n=0
until current; do
  fetch && break
  n=$((n + 1))
  if [ $n -ge 5 ]; then
    echo '{NOT_FETCHED}'
    {then}
  fi
  sleep \"${{STAGELINE_FETCH_PAUSE:-5}}\"
done
{RUN}"
    )
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// What a request to end the machine says, where the machine has these programs.
    fn said_with(programs: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a folder");
        for program in programs {
            let found = ["/usr/bin", "/bin"].map(|folder| format!("{folder}/{program}"));
            let found = found
                .iter()
                .find(|path| std::path::Path::new(path).exists());
            let found = found.unwrap_or_else(|| panic!("{program} is missing"));
            std::os::unix::fs::symlink(found, dir.path().join(program)).expect("linked");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = OwnEnd {
            limits: LeaseLimits {
                idle_timeout: Millis::NEVER,
                max_lifetime: Millis::seconds(1),
            },
            url: format!(
                "http://{}/pods/{{id}}",
                listener.local_addr().expect("bound")
            ),
            id: "POD_ID".to_owned(),
            key: "POD_KEY".to_owned(),
        };
        let script = format!("{}wait\n", without_agent(&own));
        let mut machine = Command::new("/bin/sh")
            .args(["-c", &script])
            .env_clear()
            .env("PATH", dir.path())
            .env("D", dir.path())
            .envs([("POD_ID", "p1"), ("POD_KEY", "only-1")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let (mut stream, _) = listener.accept().expect("it asks");
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let said = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).expect("answered");
        let group = format!("-{}", machine.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(killed.expect("it is there").success());
        machine.wait().expect("ours");
        said
    }

    #[test]
    fn a_machine_ends_itself_with_whichever_program_its_image_has() {
        for programs in [["sleep", "curl"], ["sleep", "wget"]] {
            let said = said_with(&programs);
            assert_eq!(said[0], "DELETE /pods/p1 HTTP/1.1", "{programs:?}");
            let key = "Authorization: Bearer only-1".to_owned();
            assert!(said.contains(&key), "{programs:?}: {said:?}");
        }
    }
}
