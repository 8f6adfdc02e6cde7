//! `state list|show|pull`: looks into the recorded state. None of them writes.

use stageline_core::id::Address;
use stageline_core::render;

use super::console::Console;
use super::{Exit, Failure, Global, project, session};
use crate::store::{Loaded, Mode};

/// Look into the recorded state.
#[derive(Debug, clap::Args)]
pub(crate) struct State {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// One line for each resource
    List,
    /// Everything about one resource
    Show {
        /// Such as lease.gpu[0]
        address: Address,
    },
    /// The whole state as one JSON document
    Pull,
}

impl State {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let loaded: Loaded = session::runtime()?
            .block_on(async { Ok::<_, Failure>(place.open(Mode::Read).await?.read().await?) })?;
        let state = &loaded.state;
        match self.command {
            Command::List if console.json => {
                let list: Vec<String> = state
                    .existing()
                    .map(|(address, _)| address.to_string())
                    .collect();
                console.document(&list)?;
            }
            Command::List => console.data(&render::state::list(state, &console.view()))?,
            Command::Show { address } => {
                let recorded = state
                    .resources
                    .get(&address)
                    .filter(|recorded| recorded.exists());
                let Some(recorded) = recorded else {
                    return Err(Failure::user(format!(
                        "{address} is not in the state of `{}`",
                        place.name
                    ))
                    .hint("`stageline state list` shows what is"));
                };
                if console.json {
                    console.document(recorded)?;
                } else {
                    let text = render::state::show(state, &address, &console.view());
                    console.data(&text.unwrap_or_default())?;
                }
            }
            Command::Pull => {
                console.data(&format!(
                    "{}\n",
                    render::json::StateDocument::new(state).text()
                ))?;
            }
        }
        Ok(Exit::Done)
    }
}
