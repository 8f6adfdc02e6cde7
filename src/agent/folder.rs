//! The agent's folder: what lies in it, and how it is written.
//!
//! Everything an agent keeps is below one folder, so that removing the folder removes the agent. Small files are written
//! to a temporary name, synced and renamed, so that a reader sees the old content or the new one, never half of it. A
//! lock on the folder keeps a second agent out for as long as the first one lives. It refuses a key file that others can
//! read.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stageline_core::id::{Attempt, Generation, LeaseId, Lineage, OperatorId, StageId};
use stageline_core::resource::Contact;

use super::own_end::OwnEnd;
use crate::machine::control::RelayGrant;

/// The environment variable by which every process of a machine can be told: the folder of its agent.
pub const MACHINE_DIR: &str = "STAGELINE_MACHINE_DIR";

/// No small file of ours comes near this; a larger one is not ours.
const SMALL_FILE_MAX: u64 = 16 << 20;

/// What an agent is told by whoever made its machine (`agent.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whom it obeys.
    pub operator: OperatorId,
    /// Which life of a topology it belongs to.
    pub lineage: Lineage,
    /// Which machine it is.
    pub lease: LeaseId,
    /// How often that machine was replaced.
    pub generation: Generation,
    /// Which try it is.
    pub attempt: Attempt,
    /// The relay to keep a connection to, as earlier versions said it: by its URL alone. Newer ones write `relay.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// Where it listens; none is a free port, of the loopback without a relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// The port that it listens on where that is free, in the place of the one of `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How it ends itself by its limits; none where it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_end: Option<OwnEnd>,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A call to the file system failed.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another agent has it.
    #[error("{} belongs to another agent that is alive; end that one first", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// A file is there and is not what it should be.
    #[error("{} is not what an agent can use: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl FolderError {
    /// Whether the disk is full, which other folders do not help.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_full(source),
            Self::Locked { .. } | Self::Unusable { .. } => false,
        }
    }
}

/// Whether a write failed because nothing more fits.
pub fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}

fn io(verb: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { verb, path, source }
}

/// The paths below an agent's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// Holds the folder; dropping it lets go.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl Folder {
    /// The folder at this path, which is there already.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The agent's secret key: 32 bytes in hexadecimal, for its owner only.
    pub fn key(&self) -> PathBuf {
        self.root.join("agent.key")
    }

    /// [`Config`].
    pub fn config(&self) -> PathBuf {
        self.root.join("agent.json")
    }

    /// The relay to keep a connection to, its token and its certificates; for its owner only. Not there is direct only.
    pub fn relay(&self) -> PathBuf {
        self.root.join("relay.json")
    }

    /// Where the agent listens; there once it does.
    pub fn contact(&self) -> PathBuf {
        self.root.join("agent.addr")
    }

    /// What the machine is said to be, in place of what would be measured: written by simulators only.
    pub fn facts(&self) -> PathBuf {
        self.root.join("facts.json")
    }

    /// [`Folder::facts`], where there are any.
    pub fn read_facts(&self) -> Option<stageline_core::offer::Facts> {
        read_json(&self.facts()).ok().flatten()
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.root.join("agent.log")
    }

    /// How far the machine's setup is; not there is that none was asked for.
    pub fn setup(&self) -> PathBuf {
        self.root.join("setup.json")
    }

    /// The script of the setup.
    pub fn setup_script(&self) -> PathBuf {
        self.root.join("setup.sh")
    }

    /// The process that runs it.
    pub fn setup_pid(&self) -> PathBuf {
        self.workers().join("setup.pid")
    }

    /// Shares and rosters.
    pub fn deliveries(&self) -> PathBuf {
        self.root.join("deliveries.json")
    }

    /// Model files by digest.
    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// Process numbers and logs of workers.
    pub fn workers(&self) -> PathBuf {
        self.root.join("workers")
    }

    /// The log of one worker: its stderr.
    pub fn worker_log(&self, stage: &StageId) -> PathBuf {
        self.workers()
            .join(format!("{}-{}.log", stage.pipeline, stage.index))
    }

    /// The process that runs one stage.
    pub fn worker_pid(&self, stage: &StageId) -> PathBuf {
        self.workers()
            .join(format!("{}-{}.pid", stage.pipeline, stage.index))
    }

    /// Takes the folder for this process.
    ///
    /// # Errors
    /// [`FolderError::Locked`] when another agent holds it.
    pub fn lock(&self) -> Result<FolderLock, FolderError> {
        let path = self.root.join("agent.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("open", &path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FolderLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FolderError::Locked {
                path: self.root.clone(),
            }),
            Err(errno) => Err(io("lock", &path)(errno.into())),
        }
    }

    /// Reads the agent's secret key.
    ///
    /// # Errors
    /// [`FolderError::Unusable`] when others can read it or it is no key.
    pub fn read_key(&self) -> Result<[u8; 32], FolderError> {
        let path = self.key();
        let unusable = |why: String| FolderError::Unusable {
            path: path.clone(),
            why,
        };
        owner_only(&path)?;
        let text = read_text(&path)?;
        // The digits of a key must not reach an error message.
        text.trim()
            .parse::<stageline_core::id::EndpointKey>()
            .map(|key| key.0)
            .map_err(|_| unusable("it does not hold 64 hexadecimal digits".to_owned()))
    }

    /// Reads the relay that the agent was told; none is direct only.
    ///
    /// # Errors
    /// [`FolderError::Unusable`] when others can read it or it is something else.
    pub fn read_relay(&self) -> Result<Option<RelayGrant>, FolderError> {
        let path = self.relay();
        if !path.exists() {
            return Ok(None);
        }
        owner_only(&path)?;
        // What is in the file must not reach an error message.
        read_json(&path).map_err(|error| match error {
            FolderError::Unusable { path, .. } => FolderError::Unusable {
                path,
                why: "it is not what was written there".to_owned(),
            },
            other @ (FolderError::Io { .. } | FolderError::Locked { .. }) => other,
        })
    }

    /// Keeps the relay for the next start; none takes it away.
    ///
    /// # Errors
    /// [`FolderError::Io`]; the old one is kept then.
    pub fn write_relay(&self, relay: Option<&RelayGrant>) -> Result<(), FolderError> {
        match relay {
            Some(relay) => write_json(&self.relay(), relay),
            None => remove_file(&self.relay()),
        }
    }

    /// Reads what the agent was told.
    ///
    /// # Errors
    /// [`FolderError`] when it is not there or is not a [`Config`].
    pub fn read_config(&self) -> Result<Config, FolderError> {
        read_json(&self.config())?.ok_or_else(|| FolderError::Unusable {
            path: self.config(),
            why: "it is missing".to_owned(),
        })
    }

    /// Tells the world where the agent listens.
    ///
    /// # Errors
    /// [`FolderError::Io`] when it cannot be written.
    pub fn write_contact(&self, contact: &Contact) -> Result<(), FolderError> {
        write_json(&self.contact(), contact)
    }

    /// Where the agent of this folder says it listens; none when it has not said so.
    ///
    /// # Errors
    /// [`FolderError`] when the file cannot be read or is not a contact.
    pub fn read_contact(&self) -> Result<Option<Contact>, FolderError> {
        read_json(&self.contact())
    }
}

/// Refuses a file that others can read.
fn owner_only(path: &Path) -> Result<(), FolderError> {
    let meta = std::fs::metadata(path).map_err(io("read", path))?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(FolderError::Unusable {
        path: path.to_owned(),
        why: format!("its mode is {mode:o}, others can read it; run `chmod 600` on it"),
    })
}

/// Makes a folder for its owner only; there already is fine.
///
/// # Errors
/// [`FolderError::Io`] when it cannot be made.
pub fn make_dir(path: &Path) -> Result<(), FolderError> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io("make", path))
}

/// Removes a file; not there is done.
///
/// # Errors
/// [`FolderError::Io`] when it stays.
pub fn remove_file(path: &Path) -> Result<(), FolderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a small file whole: temporary name, sync, rename, sync of its folder. Readable by its owner only.
///
/// # Errors
/// [`FolderError::Io`]; the old content is untouched then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let written = write_and_rename(&temporary, path, bytes);
    if written.is_err() {
        // Best effort: the next write truncates it anyway.
        std::fs::remove_file(&temporary).ok();
    }
    written
}

fn write_and_rename(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(temporary)
        .map_err(io("write", temporary))?;
    file.write_all(bytes).map_err(io("write", temporary))?;
    file.sync_all().map_err(io("sync", temporary))?;
    std::fs::rename(temporary, path).map_err(io("write", path))?;
    sync_parent(path)
}

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// [`FolderError::Io`] when the folder cannot be synced.
pub fn sync_parent(path: &Path) -> Result<(), FolderError> {
    // A name alone is in the working folder, and its parent is empty.
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", parent))
}

/// Writes a value as JSON by [`write_whole`].
///
/// # Errors
/// [`FolderError::Io`]; the old content is untouched then.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FolderError> {
    let bytes = serde_json::to_vec_pretty(value).expect("our own files have string keys");
    write_whole(path, &bytes)
}

/// Reads a small text file.
fn read_text(path: &Path) -> Result<String, FolderError> {
    let file = File::open(path).map_err(io("read", path))?;
    let mut text = String::new();
    file.take(SMALL_FILE_MAX)
        .read_to_string(&mut text)
        .map_err(io("read", path))?;
    Ok(text)
}

/// Reads a value that [`write_json`] wrote; none when there is no such file.
///
/// # Errors
/// [`FolderError::Unusable`] when it is there and is something else.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    let text = match read_text(path) {
        Err(FolderError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        other => other?,
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| FolderError::Unusable {
            path: path.to_owned(),
            why: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_kept_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(dir.path());
        let lock = folder.lock().expect("free");
        assert!(matches!(folder.lock(), Err(FolderError::Locked { .. })));
        drop(lock);
        folder.lock().expect("free again");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_and_never_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(dir.path());
        write_whole(&folder.key(), "ab".repeat(32).as_bytes()).expect("written");
        assert_eq!(folder.read_key().expect("a key"), [0xab; 32]);
        std::fs::set_permissions(folder.key(), std::fs::Permissions::from_mode(0o644))
            .expect("mode");
        let error = folder.read_key().expect_err("readable").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        write_whole(&folder.key(), b"secretish").expect("written");
        let error = folder.read_key().expect_err("no key").to_string();
        assert!(!error.contains("secretish"), "{error}");
    }

    #[test]
    fn the_relay_is_for_its_owner_and_never_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(dir.path());
        assert!(folder.read_relay().expect("none").is_none());
        let text = r#"{"url":"https://relay.example","token":"canary"}"#;
        let grant: RelayGrant = serde_json::from_str(text).expect("a grant");
        folder.write_relay(Some(&grant)).expect("written");
        assert!(folder.read_relay().expect("readable").is_some());
        assert!(!format!("{grant:?}").contains("canary"));
        std::fs::set_permissions(folder.relay(), std::fs::Permissions::from_mode(0o640))
            .expect("mode");
        let error = folder.read_relay().expect_err("readable").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        write_whole(&folder.relay(), b"\"canary").expect("written");
        let error = folder.read_relay().expect_err("cut").to_string();
        assert!(!error.contains("canary"), "{error}");
        folder.write_relay(None).expect("removed");
        assert!(folder.read_relay().expect("none").is_none());
    }

    #[test]
    fn a_file_of_something_else_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(dir.path());
        assert_eq!(folder.read_contact().expect("none yet"), None);
        std::fs::write(folder.contact(), b"{").expect("written");
        let error = folder.read_contact().expect_err("cut").to_string();
        assert!(error.contains("agent.addr"), "{error}");
    }
}
