//! `apply`: carries out a plan, a saved one or a new one.

use std::path::PathBuf;

use stageline_core::plan::{Mode as PlanMode, Plan as PlanValue};

use super::console::Console;
use super::drafting::{self, Narrow};
use super::project::{self, Project};
use super::run::{self, Job};
use super::{Exit, Failure, Global, plan, session};
use crate::apply::PARALLELISM;
use crate::store::Mode;

/// Carry out a plan, a saved one or a new one.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// A saved plan; without it, one is drafted and shown first
    #[arg(value_name = "PLAN")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    narrow: Narrow,
    #[command(flatten)]
    pace: Pace,
}

/// How fast, and whether to ask.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Pace {
    /// Steps at once
    #[arg(long, value_name = "N", default_value_t = PARALLELISM)]
    pub parallelism: usize,
    /// Do not ask
    #[arg(long)]
    pub auto_approve: bool,
}

impl Apply {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        match &self.plan {
            Some(path) => self.saved(&plan::load(path)?, global, console),
            None => self.fresh(global, console),
        }
    }

    fn fresh(&self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let project = Project::load(global)?;
        console.findings(&project.warnings, &project.files);
        session::runtime()?.block_on(async {
            let clock = session::clock();
            let reader = project.place.open(Mode::Read).await?;
            let drafted = drafting::apply(&project, &reader, &self.narrow, &clock).await?;
            plan::announce(&drafted.plan, console)?;
            if drafted.plan.is_empty() {
                if drafted.unseen.is_empty() {
                    return Ok(Exit::Done);
                }
                drafted.unseen.tell(console);
                return Ok(Exit::Doubt);
            }
            if !self.pace.auto_approve && !console.confirm("Apply this plan?")? {
                console.say("nothing was changed");
                return Ok(Exit::User);
            }
            let job = self.job(&drafted.plan, &project, !self.pace.auto_approve);
            let store = project.place.open(Mode::Write).await?;
            run::run(&job, &store, &clock, console).await
        })
    }

    fn saved(&self, plan: &PlanValue, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let runtime = session::runtime()?;
        let clock = session::clock();
        if plan.mode == PlanMode::Destroy {
            let place = project::place(global)?;
            return runtime.block_on(async {
                let store = place.open(Mode::Write).await?;
                let job = Job {
                    plan,
                    topology: None,
                    digest: None,
                    place: &place,
                    folder: std::path::Path::new("."),
                    parallelism: self.pace.parallelism,
                    command: "destroy",
                    reviewed: true,
                    interrupt: None,
                };
                run::run(&job, &store, &clock, console).await
            });
        }
        let project = Project::load(global)?;
        if plan.topology != project.topology.name {
            return Err(Failure::new(
                Exit::Guard,
                format!(
                    "the plan is for topology `{}`, the file here is `{}`",
                    plan.topology, project.topology.name
                ),
            )
            .hint("name the topology file that the plan was drafted from with -f"));
        }
        runtime.block_on(async {
            let store = project.place.open(Mode::Write).await?;
            run::run(&self.job(plan, &project, true), &store, &clock, console).await
        })
    }

    fn job<'a>(&self, plan: &'a PlanValue, project: &'a Project, reviewed: bool) -> Job<'a> {
        Job {
            plan,
            topology: Some(&project.topology),
            digest: Some(project.digest),
            place: &project.place,
            folder: &project.folder,
            parallelism: self.pace.parallelism,
            command: "apply",
            reviewed,
            interrupt: None,
        }
    }
}
