//! Setups that are in files: read before anything is planned, so that a plan holds what will be run.

use std::io::Read as _;
use std::path::Path;

use stageline_core::id::Name;
use stageline_core::topology::{SETUP_MAX, Setup, Topology, check_setup};

use super::Failure;

/// Puts what is in the files of setups in their place.
///
/// # Errors
/// [`Failure`] that names the lease, for a file that is not there or is no setup.
pub(crate) fn read_in(topology: &mut Topology, folder: &Path) -> Result<(), Failure> {
    for (name, lease) in &mut topology.leases {
        if let Some(Setup::File(path)) = &lease.setup {
            lease.setup = Some(Setup::Script(read(name, &folder.join(path))?));
        }
    }
    Ok(())
}

fn read(name: &Name, path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        Failure::user(format!("lease.{name}: cannot read its setup {shown}: {error}"))
            .hint("one word with a `/` or the ending `.sh` is the path of a file, relative to the topology file")
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    let most = u64::try_from(SETUP_MAX).unwrap_or(u64::MAX);
    file.take(most + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    check_setup(&text).map_err(|why| {
        // Only a part of a longer one was read.
        let why = match text.len() > SETUP_MAX {
            true => format!("has more than {SETUP_MAX} bytes"),
            false => why,
        };
        Failure::user(format!("lease.{name}: its setup {shown} {why}"))
            .hint("put what is large where the machine can fetch it")
    })?;
    Ok(text)
}
