//! `validate`, `schema`, `explain`: all from one definition of the keys.

use stageline_core::render::json::{PlanDocument, StateDocument};
use stageline_core::topology;

use super::console::Console;
use super::project::Project;
use super::{Exit, Failure, Global};

/// Check the topology and show every fault at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Validate {}

impl Validate {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let project = Project::load(global)?;
        console.findings(&project.warnings, &project.files);
        if console.json {
            console.document(&serde_json::json!({
                "valid": true,
                "topology": project.topology.name.as_str(),
                "digest": project.digest.to_string(),
                "warnings": project.warnings,
            }))?;
        } else {
            console.say(&format!("{}: valid", project.topology.name));
        }
        Ok(Exit::Done)
    }
}

/// Print the JSON Schema of a file format, for editors and scripts.
#[derive(Debug, clap::Args)]
pub(crate) struct Schema {
    /// Of which format
    #[arg(value_enum, default_value = "topology")]
    of: Format,
}

/// A format that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The topology file.
    Topology,
    /// What `plan --json` prints.
    Plan,
    /// What `state show --json` prints.
    State,
}

impl Schema {
    pub fn run(self, console: &Console) -> Result<Exit, Failure> {
        let schema = match self.of {
            Format::Topology => topology::schema(),
            Format::Plan => PlanDocument::schema(),
            Format::State => StateDocument::schema(),
        };
        console.document(&schema)?;
        Ok(Exit::Done)
    }
}

/// Print the documentation of a key of the topology.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// The key, such as `lease.count`
    key: String,
}

impl Explain {
    pub fn run(self, console: &Console) -> Result<Exit, Failure> {
        match topology::explain(&self.key) {
            Ok(text) => {
                console.data(&format!("{}\n", text.trim_end()))?;
                Ok(Exit::Done)
            }
            Err(near) => {
                let failure = Failure::user(format!("there is no key `{}`", self.key));
                Err(match near.first() {
                    None => failure.hint("docs/TOPOLOGY.md lists every key"),
                    Some(_) => failure.hint(format!("did you mean {}?", near.join(", "))),
                })
            }
        }
    }
}
