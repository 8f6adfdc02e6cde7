//! `graph`: who needs whom, with the verdicts of a plan when there are changes.

use std::path::PathBuf;

use stageline_core::plan;
use stageline_core::render;

use super::console::Console;
use super::drafting::{self, Narrow};
use super::project::Project;
use super::{Exit, Failure, Global, model, session};
use crate::store::Mode;

/// Draw who needs whom, as DOT or Mermaid.
#[derive(Debug, clap::Args)]
pub(crate) struct Graph {
    /// In which language
    #[arg(long, value_enum, default_value = "dot")]
    format: Format,
    /// Mark what this saved plan does
    #[arg(value_name = "PLAN")]
    plan: Option<PathBuf>,
    /// Mark what a plan drafted now would do
    #[arg(long)]
    changes: bool,
}

/// A language for graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For Graphviz.
    Dot,
    /// For Markdown.
    Mermaid,
}

impl Graph {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let project = Project::load(global)?;
        console.findings(&project.warnings, &project.files);
        let clock = session::clock();
        let (desired, drafted) = session::reading()?.block_on(async {
            let fail = |faults| Failure::diagnostics(faults, project.files.clone());
            let models = model::look(&project.topology, &project.folder)
                .await
                .map_err(fail)?;
            let desired = plan::expand(&project.topology, &models).map_err(fail)?;
            let drafted = if self.changes {
                let store = project.place.open(Mode::Read).await?;
                let drafted = drafting::apply(&project, &store, &Narrow::default(), &clock).await?;
                Some(drafted.plan)
            } else {
                None
            };
            Ok::<_, Failure>((desired, drafted))
        })?;
        let marked = match &self.plan {
            Some(path) => Some(super::plan::load(path)?),
            None => drafted,
        };
        let text = match self.format {
            Format::Dot => render::graph::dot(&desired.graph(), marked.as_ref()),
            Format::Mermaid => render::graph::mermaid(&desired.graph(), marked.as_ref()),
        };
        console.data(&text)?;
        Ok(Exit::Done)
    }
}
