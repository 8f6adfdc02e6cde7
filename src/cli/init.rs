//! `init`: writes a commented starter topology.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use stageline_core::topology;

use super::console::Console;
use super::project::TOPOLOGY;
use super::{Exit, Failure, Global};

/// Write a commented starter topology.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// Which one
    #[arg(long, value_name = "NAME", default_value = "local")]
    template: String,
}

impl Init {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let text = topology::template(&self.template).ok_or_else(|| {
            Failure::user(format!("there is no template `{}`", self.template))
                .hint("templates are: local")
        })?;
        let path = global
            .file
            .first()
            .map_or(Path::new(TOPOLOGY), |file| file.as_path());
        let shown = path.display();
        // Never over a file that is there: it may be somebody's work.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| {
                let message = if error.kind() == std::io::ErrorKind::AlreadyExists {
                    format!("{shown} is there already, and was left as it is")
                } else {
                    format!("cannot write {shown}: {error}")
                };
                Failure::user(message).hint("name another file with -f FILE")
            })?;
        file.write_all(text.as_bytes())?;
        console.say(&format!(
            "wrote {shown}; check it with `stageline validate`, then `stageline plan`"
        ));
        Ok(Exit::Done)
    }
}
