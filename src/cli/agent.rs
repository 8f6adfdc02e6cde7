//! `agent`: the process on a leased machine.

use std::path::PathBuf;

use super::console::Console;
use super::{Exit, Failure, session};
use crate::agent::{self, AgentOptions};

/// The process on a leased machine; started by stageline itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Agent {
    /// Its folder, with its key and configuration
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Agent {
    pub fn run(self, _console: &Console) -> Result<Exit, Failure> {
        let options = AgentOptions { dir: self.dir };
        session::runtime()?
            .block_on(agent::run(options))
            .map_err(|error| Failure::user(error.to_string()))?;
        Ok(Exit::Done)
    }
}
