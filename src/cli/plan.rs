//! `plan`: shows what apply would do and what that costs.

use std::path::PathBuf;

use stageline_core::plan::Plan as PlanValue;
use stageline_core::render;

use super::console::Console;
use super::drafting::{self, Narrow};
use super::project::{self, Project};
use super::session;
use super::{Exit, Failure, Global};
use crate::store::Mode;

/// Show what apply would do and what that costs; changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    narrow: Narrow,
    /// Plan to end everything; needs neither topology nor identity
    #[arg(long)]
    destroy: bool,
    /// Save the plan, so that exactly this is applied later
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Exit with 2 when there are changes
    #[arg(long)]
    detailed_exitcode: bool,
}

impl Plan {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let runtime = session::reading()?;
        let clock = session::clock();
        let drafted = runtime.block_on(async {
            if self.destroy {
                let place = project::place(global)?;
                let store = place.open(Mode::Read).await?;
                drafting::destroy(&place, &store, &self.narrow, &clock).await
            } else {
                let project = Project::load(global)?;
                console.findings(&project.warnings, &project.files);
                let store = project.place.open(Mode::Read).await?;
                drafting::apply(&project, &store, &self.narrow, &clock).await
            }
        })?;
        let plan = &drafted.plan;
        if let Some(path) = &self.out {
            save(plan, path)?;
        }
        show(plan, console)?;
        if let Some(path) = &self.out {
            console.say(&format!(
                "saved as {}; apply exactly this with `stageline apply {}`",
                path.display(),
                path.display()
            ));
        }
        if plan.is_empty() && !drafted.unseen.is_empty() {
            drafted.unseen.tell(console);
            return Ok(Exit::Doubt);
        }
        let changes = self.detailed_exitcode && !plan.is_empty();
        Ok(if changes { Exit::Changes } else { Exit::Done })
    }
}

/// Prints a plan at the level that was asked for.
pub(crate) fn show(plan: &PlanValue, console: &Console) -> Result<(), Failure> {
    if console.json {
        return console.data(&format!(
            "{}\n",
            render::json::PlanDocument::new(plan).text()
        ));
    }
    console.data(&render::plan::plan(plan, &console.view()))
}

/// Prints a plan that is about to be carried out. As JSON it is one line, since events follow, one a line.
pub(crate) fn announce(plan: &PlanValue, console: &Console) -> Result<(), Failure> {
    if !console.json {
        return show(plan, console);
    }
    let document = render::json::PlanDocument::new(plan);
    let line = serde_json::to_string(&document).expect("documents are plain data");
    console.data(&format!("{line}\n"))
}

/// Writes the plan file, whole or not at all.
fn save(plan: &PlanValue, path: &std::path::Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::user(format!(
            "cannot save the plan as {}: {error}",
            path.display()
        ))
        .hint("nothing was changed; name another file with --out")
    };
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut bytes = serde_json::to_vec_pretty(plan).expect("a plan is plain data");
    bytes.push(b'\n');
    crate::agent::folder::write_whole(path, &bytes).map_err(|error| {
        Failure::user(format!("the plan was not saved: {error}"))
            .hint("nothing was changed; name another file with --out")
    })
}

/// Reads a plan file.
pub(crate) fn load(path: &std::path::Path) -> Result<PlanValue, Failure> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::user(format!("cannot read the plan {shown}: {error}")).hint(
            "save one with `stageline plan --out FILE`; without PLAN, `apply` drafts a new one",
        )
    })?;
    #[derive(serde::Deserialize)]
    struct Head {
        format: u32,
    }
    let head: Head = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::user(format!("{shown} is no plan: {error}"))
            .hint("make one with `stageline plan --out FILE`")
    })?;
    if head.format > stageline_core::plan::FORMAT {
        return Err(stageline_core::plan::Refusal::Newer { found: head.format }.into());
    }
    let plan: PlanValue = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::user(format!("{shown} is no plan: {error}"))
            .hint("make one with `stageline plan --out FILE`")
    })?;
    if plan.digest() != plan.id {
        return Err(Failure::new(
            Exit::Guard,
            format!("{shown} was changed after it was drafted"),
        )
        .hint("a plan is applied as reviewed or not at all; plan again"));
    }
    stageline_core::plan::check(&plan)
        .map_err(|why| Failure::new(Exit::Guard, format!("{shown} contradicts itself: {why}")))?;
    Ok(plan)
}
