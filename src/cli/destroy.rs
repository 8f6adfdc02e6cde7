//! `destroy`: ends everything that the state knows, and proves it. Needs neither topology nor identity.

use std::path::Path;

use super::apply::Pace;
use super::console::Console;
use super::drafting::{self, Narrow};
use super::run::{self, Job};
use super::sellers::Sellers;
use super::{Exit, Failure, Global, plan, project, session};
use crate::store::Mode;

/// End everything that the state knows, and prove it.
#[derive(Debug, clap::Args)]
pub(crate) struct Destroy {
    #[command(flatten)]
    narrow: Narrow,
    #[command(flatten)]
    pace: Pace,
}

impl Destroy {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        session::runtime()?.block_on(async {
            let clock = session::clock();
            let reader = place.open(Mode::Read).await?;
            let drafted = drafting::destroy(&place, &reader, &self.narrow, &clock).await?;
            plan::announce(&drafted.plan, console)?;
            if drafted.plan.is_empty() {
                let state = &drafted.loaded.state;
                let sellers = Sellers::recorded(state, &place, &clock);
                let providers = sellers.providers()?;
                return run::proven(&place, &drafted.plan, state, &providers, &clock, console)
                    .await;
            }
            if !self.pace.auto_approve && !console.confirm("End all of this?")? {
                console.say("nothing was changed");
                return Ok(Exit::User);
            }
            let job = Job {
                plan: &drafted.plan,
                topology: None,
                digest: None,
                place: &place,
                folder: Path::new("."),
                parallelism: self.pace.parallelism,
                command: "destroy",
                reviewed: false,
                interrupt: None,
            };
            let store = place.open(Mode::Write).await?;
            run::run(&job, &store, &clock, console).await
        })
    }
}
