//! Makes a machine: claims its folder, writes all that its agent needs, starts the agent, writes down which process it is.
//!
//! Refused means that nothing is left: whatever fails on the way, the folder is taken back. A kill on the way leaves a
//! folder that says so. The agent is in a process group of its own, has no terminal and survives whoever started it.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use stageline_core::id::EndpointKey;
use stageline_core::offer::Facts;
use stageline_core::resource::{Cause, FailureClass, Outcome};

use super::folder::{RECORD_FORMAT, Record, cause};
use super::process::{ProcessId, boot_id, identify};
use super::{Inner, QUOTE, REQUEST_TIMEOUT};
use crate::agent::folder::{self, Config, Folder, FolderError, MACHINE_DIR};
use crate::ambient::crash_point;
use crate::provider::{CreateRequest, Machine};

/// What an agent's program prints, beside its log.
pub(super) const OUTPUT: &str = "agent.out";

impl Inner {
    /// One create.
    pub(super) fn create(
        &self,
        request: &CreateRequest,
        facts: &Facts,
        sent: Duration,
    ) -> Outcome<Machine> {
        if request.quote.id.0 != QUOTE {
            let message = format!("this computer has no offer `{}`", request.quote.id);
            return Outcome::Refused(Cause::new(FailureClass::OfferGone, message));
        }
        match self.claim(request, sent) {
            Err(cause) => return Outcome::Refused(cause),
            // Ours already: the same key is the same machine.
            Ok(false) => return self.answer(request, facts),
            Ok(true) => {}
        }
        crash_point("a create, its folder just claimed");
        match self.furnish(request) {
            Ok(()) => self.answer(request, facts),
            Err(refusal) => match self.root.remove(&request.request_key) {
                Ok(()) => Outcome::Refused(refusal),
                Err(error) => {
                    let message = format!("{}; then: {}", refusal.message, cause(&error).message);
                    Outcome::InDoubt(Cause { message, ..refusal })
                }
            },
        }
    }

    /// Makes the folder, while nobody else counts; false when it is there already. A create that comes too late must
    /// not act any more: somebody may have waited for it and decided that it never will.
    fn claim(&self, request: &CreateRequest, sent: Duration) -> Result<bool, Cause> {
        self.root.prepare().map_err(|error| cause(&error))?;
        let _claims = self.claims.lock().expect("no holder panics");
        let keys = self.keys(&self.look()?)?;
        let taken = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        if taken >= self.slots() && !keys.contains(&request.request_key) {
            let message = format!("all {} machines of this computer are taken", self.slots());
            let cause = Cause::new(FailureClass::Capacity, message);
            return Err(cause.hint("raise `slots` of the provider, or destroy what is not needed"));
        }
        if self.clock.boottime().saturating_sub(sent) > REQUEST_TIMEOUT {
            let message = "this computer took too long to begin with the machine";
            return Err(Cause::new(FailureClass::Unknown, message)
                .hint("nothing was made; run apply again when it has less to do"));
        }
        self.root
            .claim(&request.request_key)
            .map_err(|error| cause(&error))
    }

    /// Fills the folder and starts the agent; on an error no process is left.
    fn furnish(&self, request: &CreateRequest) -> Result<(), Cause> {
        let path = self.root.machine(&request.request_key);
        let mut record = Record {
            format: RECORD_FORMAT,
            request_key: request.request_key.clone(),
            price_per_hour: self.settings.price_per_hour,
            created_at: self.clock.now(),
            agent: None,
            boot_id: boot_id(),
        };
        let written = self
            .root
            .write(&record)
            .and_then(|()| write_boot(&path, request));
        written.map_err(|error| cause(&error))?;
        crash_point("a create, its agent not yet started");
        let process = self.start(&path)?;
        crash_point("a create, its agent just started");
        record.agent = Some(process);
        self.root.write(&record).map_err(|error| {
            self.kill_all(&request.request_key);
            cause(&error)
        })
    }

    fn start(&self, path: &Path) -> Result<ProcessId, Cause> {
        let open = || {
            std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path.join(OUTPUT))
        };
        let output = open().and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) = output.map_err(|source| {
            cause(&FolderError::Io {
                verb: "write",
                path: path.join(OUTPUT),
                source,
            })
        })?;
        let (program, leading) = self.settings.program.split_first().ok_or_else(|| {
            Cause::new(FailureClass::Config, "no program is set that runs agents")
        })?;
        let child = tokio::process::Command::new(program)
            .args(leading)
            .arg("agent")
            .arg("--dir")
            .arg(path)
            .env_clear()
            .envs(&self.settings.environment)
            .env(MACHINE_DIR, path)
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .kill_on_drop(false)
            .spawn();
        let mut child = child.map_err(|error| {
            let message = format!("cannot start {}: {error}", Path::new(program).display());
            let cause = Cause::new(FailureClass::Config, message);
            cause.hint("is the program still where it was, and may you run it?")
        })?;
        // One that is gone already gets a number that nobody has: it is dead, and its last words tell why.
        let pid = child.id().unwrap_or(0);
        let process = identify(pid).unwrap_or(ProcessId {
            pid: i32::try_from(pid).unwrap_or(0),
            started: None,
        });
        // Whoever lives longer than the agent must reap it; when we end first, the system does.
        tokio::spawn(async move { child.wait().await });
        Ok(process)
    }

    fn answer(&self, request: &CreateRequest, facts: &Facts) -> Outcome<Machine> {
        let shown = self
            .look()
            .and_then(|processes| self.show(&request.request_key, &processes, facts));
        match shown {
            Ok(Some(machine)) => Outcome::Done(machine),
            Ok(None) => Outcome::InDoubt(Cause::new(
                FailureClass::Unknown,
                "the machine's folder vanished while it was made",
            )),
            Err(cause) => Outcome::InDoubt(cause),
        }
    }
}

/// Writes what the agent is told, its relay with the token and its key for its owner only.
fn write_boot(path: &Path, request: &CreateRequest) -> Result<(), FolderError> {
    let boot = &request.boot;
    let paths = Folder::new(path);
    let config = Config {
        operator: boot.operator,
        lineage: boot.lineage,
        lease: boot.lease.clone(),
        generation: boot.generation,
        attempt: boot.attempt,
        relay: None,
        listen: None,
        port: None,
        own_end: None,
    };
    folder::write_json(&paths.config(), &config)?;
    let relay = boot.relay.clone().map(Into::into);
    paths.write_relay(relay.as_ref())?;
    // The type of public keys, for its hexadecimal digits only.
    let digits = EndpointKey(*boot.agent_key.expose_secret()).to_string();
    folder::write_whole(&paths.key(), digits.as_bytes())
}
