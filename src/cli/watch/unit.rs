//! The systemd unit that keeps a watcher running.

use stageline_core::id::Name;

use super::super::console::Console;
use super::super::project::Place;
use super::super::{Exit, Failure, Global};
use crate::watch;

/// A unit with this very command, from this very folder.
pub(super) fn print(global: &Global, place: &Place, console: &Console) -> Result<Exit, Failure> {
    let program = std::env::current_exe()?;
    let folder = std::env::current_dir()?;
    let mut command = vec![program.display().to_string(), "watch".to_owned()];
    let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
    for file in &global.file {
        option("-f", file.display().to_string());
    }
    for (name, value) in &global.var {
        option("--var", format!("{name}={value}"));
    }
    for file in &global.var_file {
        option("--var-file", file.display().to_string());
    }
    for (name, value) in [
        ("--state", &global.state),
        ("--name", &global.name),
        ("--workspace", &global.workspace),
    ] {
        if let Some(value) = value {
            option(name, value.clone());
        }
    }
    let name: &Name = &place.name;
    let folder = folder.display().to_string();
    console.data(&watch::unit(name.as_str(), &folder, &command))?;
    Ok(Exit::Done)
}
