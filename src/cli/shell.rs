//! `ssh`: a shell on a leased machine, or one command there.
//!
//! Where stageline logs in to a machine the shell is that of the system's own `ssh`, which knows terminals; it is handed a file with the
//! one key that the host is known by, and refuses every other. Everywhere else the machine's agent opens it. Its exit status is ours.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use secrecy::ExposeSecret as _;
use stageline_core::id::LeaseId;
use stageline_core::state::State;

use super::console::Console;
use super::project::Place;
use super::terminal::{self, Over};
use super::way::{self, ByAgent, Way};
use super::{Exit, Failure, Global, project, session};
use crate::agent::folder;
use crate::machine::shell::ShellOrder;
use crate::ssh::{HostKey, Login};

/// As `ssh` has it: it is not known how what ran there ended.
const LOST: u8 = 255;

/// A shell on a leased machine, or one command there. Exits with its status, or with 255 when the connection was lost while it ran.
#[derive(Debug, clap::Args)]
pub(crate) struct Shell {
    /// Such as lease.gpu[0]
    lease: LeaseId,
    /// A line that the shell there runs, and ends
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Shell {
    pub fn run(self, global: &Global, console: &Console) -> Result<ExitCode, Failure> {
        let place = project::place(global)?;
        let runtime = session::runtime()?;
        match runtime.block_on(way::to(global, &place, &self.lease))? {
            Way::Login(login, known) => {
                drop(runtime);
                Err(self.by_ssh(&login, &known, &place, console))
            }
            Way::Agent(agent) => {
                let ended = runtime.block_on(self.by_agent(agent, console));
                // Whoever reads what it printed may never read on.
                runtime.shutdown_background();
                ended
            }
        }
    }

    /// The system's own takes the place of this process, with its terminal and its exit status. Returns only when it does not.
    fn by_ssh(&self, login: &Login, known: &HostKey, place: &Place, console: &Console) -> Failure {
        let mut ssh = match self.ssh(login, known, place) {
            Ok(ssh) => ssh,
            Err(failure) => return failure,
        };
        console.say(&format!("{}: ssh to {}", self.lease, login.place));
        let error = ssh.exec();
        Failure::user(format!("cannot run `ssh`: {error}"))
            .hint("install OpenSSH's client, or log in by hand")
    }

    fn ssh(&self, login: &Login, known: &HostKey, place: &Place) -> Result<Command, Failure> {
        // OpenSSH names a port only where it is not the usual one.
        let host = match login.place.port {
            22 => login.place.address.clone(),
            port => format!("[{}]:{port}", login.place.address),
        };
        let file = place
            .folder()
            .join("ssh")
            .join(format!("{}.known_hosts", self.lease));
        folder::make_dir(file.parent().unwrap_or(Path::new(".")))
            .and_then(|()| {
                folder::write_whole(&file, format!("{host} {}\n", known.as_str()).as_bytes())
            })
            .map_err(|error| Failure::user(error.to_string()))?;
        let file = std::path::absolute(&file).unwrap_or(file);
        let mut ssh = Command::new("ssh");
        ssh.arg("-o")
            .arg(format!("UserKnownHostsFile=\"{}\"", file.display()));
        for option in [
            "GlobalKnownHostsFile=none",
            "StrictHostKeyChecking=yes",
            "CheckHostIP=no",
            "UpdateHostKeys=no",
        ] {
            ssh.args(["-o", option]);
        }
        if let Some(own) = login.own.as_ref().and_then(|own| own.private()) {
            // It is drawn from the identity that lies beside it, and is of use on that machine only.
            let file = file.with_extension("key");
            folder::write_whole(&file, own.expose_secret().as_bytes())
                .map_err(|error| Failure::user(error.to_string()))?;
            ssh.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(&file);
        }
        for key in &login.keys {
            ssh.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(key);
        }
        ssh.arg("-p").arg(login.place.port.to_string());
        ssh.arg("-l")
            .arg(&login.place.user)
            .arg("--")
            .arg(&login.place.address);
        ssh.args(&self.command);
        Ok(ssh)
    }

    async fn by_agent(&self, agent: ByAgent, console: &Console) -> Result<ExitCode, Failure> {
        // As `ssh` does: words become a line again, which the shell there reads.
        let command = (!self.command.is_empty()).then(|| self.command.join(" "));
        let terminal = terminal::wanted(command.is_some());
        let order = ShellOrder {
            command,
            env: agent.env,
            terminal: terminal.clone(),
        };
        let opened = agent.hands.shell(&agent.target, order).await;
        let over = match opened {
            Ok(shell) => {
                console.say(&format!("{}: a shell by its agent", self.lease));
                terminal::show(shell, terminal.is_some()).await
            }
            Err(error) => Err(error.into()),
        };
        agent.hands.close().await;
        match over? {
            Over::Ended(status) => Ok(status.into()),
            Over::Unread => Ok(Exit::Done.into()),
            Over::Interrupted => Ok(Exit::Interrupted.into()),
            Over::Lost(why) => {
                console.line(&format!(
                    "{}: {}: the connection was lost, and what ran there is ended: {why}",
                    console.paint("1;31", "error"),
                    self.lease
                ));
                Ok(LOST.into())
            }
        }
    }
}

/// Removes what was written for the shells of machines that are not held any more.
pub(crate) fn forget(place: &Place, state: &State) {
    let files = std::fs::read_dir(place.folder().join("ssh"));
    for file in files.into_iter().flatten().flatten() {
        let path = file.path();
        let lease = path
            .file_stem()
            .and_then(|name| name.to_str()?.parse().ok());
        if lease.is_none_or(|lease: LeaseId| state.lease(&lease).is_none()) {
            // The next run tries again.
            std::fs::remove_file(path).ok();
        }
    }
}
