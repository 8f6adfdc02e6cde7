//! Where the recorded state lives: a journal with snapshots on an object store, a local folder included.
//!
//! For reading ([`Store::read`]), for writing down intentions and outcomes ([`Journal`]), and for telling people who
//! else is at work ([`Lock`]). What always holds: an entry counts only when it is durable and nobody has fenced its
//! run; numbers never go back; a gap, a cut object or an unreadable answer is an error and never "nothing is deployed".
//! It refuses stores without create-if-absent, formats that are newer than this program, and identities that others
//! can read. What the state means is not decided here: that is the fold in `stageline_core`.
//!
//! ```text
//! journal/N.json   entries; N has twelve digits, so that names sort as numbers
//! snapshot/N.json  the fold of all entries up to N
//! plans/ID.json    plans, stored before the run that carries them out begins
//! state.json       a readable copy, never read back
//! identity.key     the operator's secret, owner-only
//! lock.json        who is at work: a courtesy, not the fence
//! ```

mod error;
mod history;
mod identity;
mod journal;
mod load;
mod local;
mod lock;
mod put;
mod repair;
mod snapshot;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use stageline_core::id::{JournalNumber, Name, PlanId};

use crate::ambient::crash_point;
pub use error::{AppendError, BeginError, Rival, StoreError};
pub use identity::{Identity, IdentityError};
pub use journal::{Begin, First, Journal, Writer};
pub use load::Loaded;
pub use lock::{Acquired, HEARTBEAT, Holder, Lock, LockInfo};
pub use repair::Damage;

/// Largest entry that is read: what one process can queue during one slow put is far below.
const ENTRY_MAX: u64 = 16 << 20;
/// Largest snapshot that is read: some 300,000 leases.
const SNAPSHOT_MAX: u64 = 256 << 20;
/// Largest plan that is read.
const PLAN_MAX: u64 = 256 << 20;

const JOURNAL: &str = "journal";
const SNAPSHOT: &str = "snapshot";
const PLANS: &str = "plans";
const READABLE: &str = "state.json";
const LOCK: &str = "lock.json";
/// What a probe is called; the rest of the name is random.
const PROBE: &str = "probe-";

/// A place that holds the state of any number of topologies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateUrl(PathBuf);

impl StateUrl {
    /// A folder.
    pub fn of(root: PathBuf) -> Self {
        Self(root)
    }

    /// The folder that holds the state of every topology.
    pub fn root(&self) -> &FilePath {
        &self.0
    }

    /// The folder of one topology, or of one workspace of it.
    pub fn folder(&self, topology: &Name, workspace: Option<&Name>) -> PathBuf {
        // A name has no dot, so the two kinds never meet.
        self.0.join(workspace.map_or_else(
            || topology.to_string(),
            |workspace| format!("{topology}.{workspace}"),
        ))
    }
}

impl FromStr for StateUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let url = |why: &str| StoreError::Url {
            url: text.to_owned(),
            why: why.to_owned(),
        };
        let path = match text.split_once("://") {
            None => text,
            Some(("file", path)) => path,
            Some((scheme, _)) => {
                return Err(StoreError::Scheme {
                    scheme: scheme.to_owned(),
                });
            }
        };
        if path.is_empty() || path.contains('\0') {
            return Err(url("it names no folder"));
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for StateUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file://{}", self.0.display())
    }
}

/// Whether a command may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Creates nothing, not even a folder, and works in a read-only one.
    Read,
    /// Creates the folder and proves that the fence works in it.
    Write,
}

/// The recorded state of one topology, or of one workspace of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    place: Arc<str>,
    folder: Option<Arc<FilePath>>,
    mode: Mode,
}

impl Store {
    /// Opens the place of one topology. For writing, rule 1: a second create of the same object must fail.
    ///
    /// # Errors
    /// [`StoreError`] when the place cannot be used in this mode.
    pub async fn open(
        url: &StateUrl,
        topology: &Name,
        workspace: Option<&Name>,
        mode: Mode,
    ) -> Result<Self, StoreError> {
        let root = url.folder(topology, workspace);
        let place = root.display().to_string();
        let objects = tokio::task::spawn_blocking(move || local::open(&root, mode))
            .await
            .map_err(|error| failed(&place, "opening the folder", &error))??;
        let store = Self {
            place: place.into(),
            folder: objects.folder.map(Into::into),
            objects: objects.objects,
            mode,
        };
        store.check().await?;
        Ok(store)
    }

    /// The same on any object store: for stores that no URL names yet, and for tests.
    #[doc(hidden)]
    pub async fn on(
        objects: Arc<dyn ObjectStore>,
        place: &str,
        mode: Mode,
    ) -> Result<Self, StoreError> {
        let store = Self {
            objects,
            place: place.into(),
            folder: None,
            mode,
        };
        store.check().await?;
        Ok(store)
    }

    /// Where it is, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The folder, when it is a local one that exists.
    pub fn folder(&self) -> Option<&FilePath> {
        self.folder.as_deref()
    }

    /// Stores a plan, so that another host can resume it. Must be done before its run begins.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be stored.
    pub async fn put_plan(&self, id: PlanId, bytes: Vec<u8>) -> Result<(), StoreError> {
        // The name is the digest of the content: what is there already is the same plan.
        let path = Path::from(format!("{PLANS}/{id}.json"));
        self.put(&path, bytes.into(), PutMode::Create)
            .await
            .map(|_| ())
    }

    /// A stored plan, if there is one by that name.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be told.
    pub async fn get_plan(&self, id: PlanId) -> Result<Option<Bytes>, StoreError> {
        let path = Path::from(format!("{PLANS}/{id}.json"));
        self.get(&path, PLAN_MAX).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.mode {
            Mode::Read => Ok(()),
            Mode::Write => {
                let probed = self.probe().await?;
                if let Some(folder) = self.folder.clone() {
                    local::sweep(&folder, probed);
                }
                Ok(())
            }
        }
    }

    /// Rule 1. Returns when the store thinks that the probe was made, by its own clock.
    async fn probe(&self) -> Result<Option<SystemTime>, StoreError> {
        let name = stageline_core::id::Nonce(crate::ambient::random());
        let path = Path::from(format!("{PROBE}{name}"));
        let doing = "trying whether a second create of an object fails";
        let create = || {
            let payload = PutPayload::from_static(b"probe\n");
            self.objects
                .put_opts(&path, payload, PutOptions::from(PutMode::Create))
        };
        create().await.map_err(|error| self.error(doing, &error))?;
        let second = create().await;
        let made = self.objects.head(&path).await.ok();
        let removed = self.objects.delete(&path).await;
        match second {
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(self.error(doing, &error)),
            Ok(_) => {
                return Err(StoreError::Unfit {
                    place: self.place.to_string(),
                    what: "a second create of the same object passed, so two runs could not see each other"
                        .to_owned(),
                });
            }
        }
        removed.map_err(|error| self.error("removing the probe", &error))?;
        Ok(made.map(|meta| meta.last_modified.into()))
    }

    /// Puts an object; false when one by that name was there and the mode is to create.
    async fn put(&self, path: &Path, bytes: Bytes, mode: PutMode) -> Result<bool, StoreError> {
        self.must_write()?;
        crash_point("an object beside the journal, not yet written");
        let put =
            self.objects
                .put_opts(path, PutPayload::from_bytes(bytes), PutOptions::from(mode));
        let put = put.await;
        crash_point("an object beside the journal, just written");
        match put {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.error(&format!("writing {path}"), &error)),
        }
    }

    /// An object of at most `max` bytes, or none.
    async fn get(&self, path: &Path, max: u64) -> Result<Option<Bytes>, StoreError> {
        let doing = || format!("reading {path}");
        let found = match self.objects.get(path).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.error(&doing(), &error)),
        };
        if found.meta.size > max {
            let what = format!(
                "it has {} bytes, more than the {max} that it may have",
                found.meta.size
            );
            return Err(self.corrupt(path, what));
        }
        match found.bytes().await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(self.error(&doing(), &error)),
        }
    }

    /// The numbers above `above` of the objects in a folder, in order, each with its size.
    async fn numbers(
        &self,
        folder: &str,
        above: JournalNumber,
    ) -> Result<Vec<(JournalNumber, u64)>, StoreError> {
        let mut found = Vec::new();
        let prefix = Path::from(folder);
        let mut listed = self
            .objects
            .list_with_offset(Some(&prefix), &numbered(folder, above));
        while let Some(meta) = listed
            .try_next()
            .await
            .map_err(|error| self.error(&format!("listing {folder}"), &error))?
        {
            let name = meta.location.filename().unwrap_or_default();
            let number = name.strip_suffix(".json").and_then(|n| n.parse().ok());
            let Some(number) = number.map(JournalNumber) else {
                continue;
            };
            if meta.location != numbered(folder, number) {
                let what = "its name is not the one that stageline gives; is it a copy?";
                return Err(self.corrupt(&meta.location, what));
            }
            if number > above {
                found.push((number, meta.size));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn must_write(&self) -> Result<(), StoreError> {
        match self.mode {
            Mode::Write => Ok(()),
            Mode::Read => Err(StoreError::OpenedToRead {
                place: self.place.to_string(),
            }),
        }
    }

    fn error(&self, doing: &str, error: &object_store::Error) -> StoreError {
        StoreError::of_object(&self.place, doing, error)
    }

    fn corrupt(&self, object: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt {
            place: self.place.to_string(),
            object: object.to_string(),
            what: what.into(),
        }
    }
}

/// `folder/N.json`, padded so that names sort as numbers.
fn numbered(folder: &str, n: JournalNumber) -> Path {
    Path::from(format!("{folder}/{:012}.json", n.0))
}

fn failed(place: &str, doing: &str, error: &dyn fmt::Display) -> StoreError {
    StoreError::Failed {
        place: place.to_owned(),
        doing: doing.to_owned(),
        what: error.to_string(),
    }
}
