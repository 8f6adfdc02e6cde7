//! `state unlock`: takes the lock away from a run that is stopped or hangs.
//!
//! It needs no id: there is one lock for a state, and taking it away is harmless, since the fence of the journal stops
//! whoever had it as soon as another run begins. A dead run's lock needs no unlocking.

use super::super::console::Console;
use super::super::project::Place;
use super::super::{Exit, Failure};
use crate::ambient::Alive;
use crate::store::{Lock, Mode};

/// Take the lock away from a run that is stopped or hangs
#[derive(Debug, clap::Args)]
pub(crate) struct Unlock {
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

impl Unlock {
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let store = place.open(Mode::Write).await?;
        let name = &place.name;
        if !Lock::is_there(&store).await? {
            console.say(&format!("nobody holds the lock of `{name}`"));
            return Ok(Exit::Done);
        }
        let held = Lock::look(&store).await?;
        let alive = held.as_ref().map(|held| held.holder.process.is_alive());
        if let (Some(held), Some(Alive::Yes | Alive::Unknown)) = (&held, alive) {
            console.line(&held.to_string());
            console.line(
                "without its lock it still runs, until another apply or destroy begins: that one fences it for good",
            );
            if !self.auto_approve && !console.confirm("Take its lock away?")? {
                console.say("nothing was changed");
                return Ok(Exit::User);
            }
        }
        Lock::take_away(&store).await?;
        console.say(&match held {
            Some(held) => format!("the lock of `{name}` is free; it was: {held}"),
            None => format!("the lock of `{name}` is free; it was not readable"),
        });
        Ok(Exit::Done)
    }
}
