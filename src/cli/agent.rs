//! `agent`: the process on a leased machine.

use std::ffi::OsString;
use std::path::PathBuf;

use super::console::Console;
use super::{Exit, Failure, session};
use crate::agent::boot::Package;
use crate::agent::spawn::{become_shell, become_worker};
use crate::agent::{self, AgentOptions};
use crate::ambient;

/// This program, whatever has become of its file since.
const SELF: &str = "/proc/self/exe";

/// The process on a leased machine; started by stageline itself.
#[derive(Debug, clap::Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct Agent {
    /// Its folder, with its key and configuration
    #[arg(long, value_name = "DIR", required = true)]
    dir: Option<PathBuf>,
    /// Makes the folder out of the variables STAGELINE_BOOT_0.. when it is not there yet
    #[arg(long)]
    boot_env: bool,
    /// Listens here instead of where the variables say, such as 127.0.0.1:0 for a free port of this computer
    #[arg(long, value_name = "ADDR:PORT", requires = "boot_env")]
    listen: Option<std::net::SocketAddr>,
    /// Ends when standard input does
    #[arg(long)]
    until_eof: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What the agent starts of itself.
#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Become a worker that ends with its agent
    #[command(hide = true)]
    RunWorker {
        /// The agent's process
        #[arg(long)]
        agent: u32,
        /// The worker's program
        program: PathBuf,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Become a shell that ends with its agent
    #[command(hide = true)]
    RunShell {
        /// The agent's process
        #[arg(long)]
        agent: u32,
        /// Standard input is a terminal that it is to be in front of
        #[arg(long)]
        terminal: bool,
        /// The shell
        program: PathBuf,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

impl Agent {
    pub fn run(self, console: &Console) -> Result<Exit, Failure> {
        match self.part {
            Some(Part::RunWorker {
                agent,
                program,
                args,
            }) => {
                let said = become_worker(agent, &program, &args);
                console.data(&String::from_utf8_lossy(&said))?;
                return Ok(Exit::User);
            }
            Some(Part::RunShell {
                agent,
                terminal,
                program,
                args,
            }) => {
                let why = become_shell(agent, terminal, &program, &args);
                return Err(Failure::user(why));
            }
            None => {}
        }
        let dir = self.dir.unwrap_or_default();
        if self.boot_env {
            let package = Package::from_environment(ambient::variable).map_err(Failure::user)?;
            let mut package = package.ok_or_else(|| {
                Failure::user("--boot-env is given and STAGELINE_BOOT_0 is not set")
                    .hint("they are handed to the machine when it is rented")
            })?;
            package.config.listen = self.listen.or(package.config.listen);
            package
                .unpack(&dir)
                .map_err(|error| Failure::user(error.to_string()))?;
        }
        let options = AgentOptions {
            dir,
            until_eof: self.until_eof,
            runner: cfg!(target_os = "linux").then(|| PathBuf::from(SELF)),
        };
        session::runtime()?
            .block_on(agent::run(options))
            .map_err(|error| Failure::user(error.to_string()))?;
        Ok(Exit::Done)
    }
}
