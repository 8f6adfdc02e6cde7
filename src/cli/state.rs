//! `state ...`: looks into the recorded state, and the verbs that change it, each in a file of its own.

mod edit;
mod history;
mod push;
mod repair;
mod unlock;

use stageline_core::id::Address;
use stageline_core::render;

use super::console::Console;
use super::project::Place;
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
    /// What was written, run by run
    History(history::History),
    /// Give a lease, or a table of leases, another address; or the topology another name
    Mv(edit::Mv),
    /// Take a resource out of the state; its machine goes on, and bills
    Rm(edit::Rm),
    /// Move the state to another store; nobody goes on at the old one
    Push(push::Push),
    /// Go back to the state as of an entry; forgets no machine
    Rollback(history::Rollback),
    /// Make a damaged state sound again, and say what is lost
    Repair(repair::Repair),
    /// Take the lock away from a run that is stopped or hangs
    Unlock(unlock::Unlock),
}

impl State {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        if let Some(done) = self.change(&place, global, console)? {
            return Ok(done);
        }
        let loaded: Loaded = session::reading()?
            .block_on(async { Ok::<_, Failure>(place.open(Mode::Read).await?.read().await?) })?;
        let state = &loaded.state;
        match self.command {
            Command::History(_)
            | Command::Mv(_)
            | Command::Rm(_)
            | Command::Push(_)
            | Command::Rollback(_)
            | Command::Repair(_)
            | Command::Unlock(_) => {}
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

    /// The verbs that have files of their own.
    fn change(
        &self,
        place: &Place,
        global: &Global,
        console: &Console,
    ) -> Result<Option<Exit>, Failure> {
        let runtime = session::runtime()?;
        let done = match &self.command {
            Command::List | Command::Show { .. } | Command::Pull => return Ok(None),
            Command::History(command) => runtime.block_on(command.run(place, console)),
            Command::Mv(command) => match command.names() {
                Some((from, to)) => {
                    let renamed = push::rename(place, from, to, command.auto_approve, console);
                    runtime.block_on(renamed)
                }
                None => runtime.block_on(command.run(place, console)),
            },
            Command::Rm(command) => runtime.block_on(command.run(place, console)),
            Command::Push(command) => runtime.block_on(command.run(place, console)),
            Command::Rollback(command) => runtime.block_on(command.run(place, console)),
            Command::Repair(command) => runtime.block_on(command.run(place, global, console)),
            Command::Unlock(command) => runtime.block_on(command.run(place, console)),
        };
        done.map(Some)
    }
}
