//! `show`: a saved plan, or what is recorded.

use std::path::PathBuf;

use stageline_core::render;

use super::console::Console;
use super::{Exit, Failure, Global, plan, project, session};
use crate::store::Mode;

/// Show a saved plan, or what is recorded.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// A saved plan; without it, the recorded state
    #[arg(value_name = "PLAN")]
    plan: Option<PathBuf>,
}

impl Show {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        if let Some(path) = &self.plan {
            plan::show(&plan::load(path)?, console)?;
            return Ok(Exit::Done);
        }
        let place = project::place(global)?;
        let state = session::reading()?.block_on(async {
            Ok::<_, Failure>(place.open(Mode::Read).await?.read().await?.state)
        })?;
        if console.json {
            console.data(&format!(
                "{}\n",
                render::json::StateDocument::new(&state).text()
            ))?;
        } else {
            console.data(&render::state::list(&state, &console.view()))?;
        }
        Ok(Exit::Done)
    }
}
