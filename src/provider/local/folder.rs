//! The folders of the machines of this computer: names, the record in each, and what the file system says against them.
//!
//! A folder is named by its request key, so making it is the claim. The record is written whole or not at all. A folder
//! on its way out is renamed first, so that half of a machine is never listed. Names that are not ours are never touched.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stageline_core::id::RequestKey;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::process::ProcessId;
use crate::agent::folder::{self, FolderError};
use crate::ambient::crash_point;

/// Folders that are on their way out begin with this.
const TRASH: &str = ".trash-";

/// The version of [`Record`].
pub(super) const RECORD_FORMAT: u32 = 1;

/// What a machine's folder says about it (`machine.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// [`RECORD_FORMAT`].
    pub(super) format: u32,
    /// The folder's name, once more.
    pub(super) request_key: RequestKey,
    /// What it is said to cost.
    pub(super) price_per_hour: MicroDollars,
    /// When the folder was made.
    pub(super) created_at: Timestamp,
    /// Its agent; none until it was started.
    pub(super) agent: Option<ProcessId>,
    /// In which run of this computer.
    pub(super) boot_id: String,
}

/// A worker as its agent names it; the agent's own format, of which we need this.
#[derive(Deserialize)]
struct WorkerMark {
    #[serde(flatten)]
    process: ProcessId,
}

/// What is in the root folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The machines.
    pub(super) keys: Vec<RequestKey>,
    /// Something that is not ours, if there is something.
    pub(super) foreign: Option<PathBuf>,
}

/// The root folder of all machines.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of one machine.
    pub(super) fn machine(&self, key: &RequestKey) -> PathBuf {
        self.0.join(key.as_str())
    }

    /// Makes the root, when it is not there, and clears what a killed release left.
    pub(super) fn prepare(&self) -> Result<(), FolderError> {
        folder::make_dir(&self.0)?;
        self.sweep();
        Ok(())
    }

    /// Makes the folder of one machine, durably; false when it is there already.
    pub(super) fn claim(&self, key: &RequestKey) -> Result<bool, FolderError> {
        let path = self.machine(key);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => folder::sync_parent(&path).map(|()| true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(FolderError::Io {
                verb: "make",
                path,
                source,
            }),
        }
    }

    /// What is there; nothing when the root is not.
    pub(super) fn list(&self) -> Result<Listing, FolderError> {
        self.sweep();
        let io = |source| FolderError::Io {
            verb: "list",
            path: self.0.clone(),
            source,
        };
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Listing::default()),
            entries => entries.map_err(io)?,
        };
        let mut listing = Listing::default();
        for entry in entries {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let name = name.to_str();
            if name.is_some_and(|name| name.starts_with(TRASH)) {
                continue;
            }
            match name.and_then(|name| name.parse().ok()) {
                Some(key) => listing.keys.push(key),
                None => listing.foreign = Some(entry.path()),
            }
        }
        listing.keys.sort();
        Ok(listing)
    }

    /// Reads a machine's record; none when it was never finished.
    pub(super) fn read(&self, key: &RequestKey) -> Result<Option<Record>, FolderError> {
        let path = self.machine(key).join("machine.json");
        let record: Option<Record> = folder::read_json(&path)?;
        let why = match &record {
            Some(record) if record.format != RECORD_FORMAT => {
                format!(
                    "it was written by another version (format {})",
                    record.format
                )
            }
            Some(record) if record.request_key != *key => {
                format!("it belongs to another machine, {}", record.request_key)
            }
            Some(_) | None => return Ok(record),
        };
        Err(FolderError::Unusable { path, why })
    }

    /// Writes a machine's record, durably.
    pub(super) fn write(&self, record: &Record) -> Result<(), FolderError> {
        let path = self.machine(&record.request_key).join("machine.json");
        folder::write_json(&path, record)
    }

    /// The processes that a machine's folder names: its agent and its workers. Numbers of an earlier run of this
    /// computer name nobody.
    pub(super) fn named(&self, key: &RequestKey, boot_id: &str) -> Vec<ProcessId> {
        // What cannot be read names nobody; those processes still carry the folder.
        let record = self.read(key).ok().flatten();
        let Some(record) = record.filter(|record| record.boot_id == boot_id) else {
            return vec![];
        };
        let mut named: Vec<ProcessId> = record.agent.into_iter().collect();
        let workers = folder::Folder::new(self.machine(key)).workers();
        for entry in std::fs::read_dir(workers).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "pid") {
                let mark: Option<WorkerMark> = folder::read_json(&path).ok().flatten();
                named.extend(mark.map(|mark| mark.process));
            }
        }
        named
    }

    /// Removes a machine's folder; not there is done.
    pub(super) fn remove(&self, key: &RequestKey) -> Result<(), FolderError> {
        let path = self.machine(key);
        let trash = (0..u32::MAX)
            .map(|n| self.0.join(format!("{TRASH}{key}-{n}")))
            .find(|trash| std::fs::symlink_metadata(trash).is_err())
            .expect("fewer folders than numbers");
        let io = |verb, path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { verb, path, source }
        };
        match std::fs::rename(&path, &trash) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => {
                renamed.map_err(io("rename", &path))?;
                folder::sync_parent(&path)?;
            }
        }
        crash_point("a release, its folder renamed");
        match std::fs::remove_dir_all(&trash) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io("remove", &trash)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Clears what a killed release left. What resists is tried again at the next call.
    fn sweep(&self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let ours = entry
                .file_name()
                .to_str()
                .is_some_and(|n| n.starts_with(TRASH));
            if ours && let Err(error) = std::fs::remove_dir_all(entry.path()) {
                tracing::debug!(path = %entry.path().display(), %error, "left for later");
            }
        }
    }
}

/// What the file system said, with what to do now.
pub(super) fn cause(error: &FolderError) -> Cause {
    let kind = match error {
        FolderError::Io { source, .. } => Some(source.kind()),
        FolderError::Locked { .. } | FolderError::Unusable { .. } => None,
    };
    let hint = if error.is_full() {
        "make room on that disk, then try again"
    } else {
        match kind {
            Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                "make that folder writable for you, or put the state somewhere else"
            }
            Some(_) => "look at that path, mend it, then try again",
            None => "move that file away, or restore it, then try again",
        }
    };
    let message = match error {
        // The words of the store, which shares the disk.
        FolderError::Io { verb, path, .. } if error.is_full() => {
            format!("no space left to {verb} {}", path.display())
        }
        FolderError::Io { .. } | FolderError::Locked { .. } | FolderError::Unusable { .. } => {
            error.to_string()
        }
    };
    Cause::new(FailureClass::Config, message).hint(hint)
}
