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

mod beat;
mod beside;
#[cfg(feature = "cloud-state")]
mod cloud;
#[cfg(feature = "cloud-state")]
mod cloud_fault;
mod error;
mod history;
mod identity;
mod journal;
mod load;
mod local;
mod lock;
mod patience;
mod put;
mod repair;
mod snapshot;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod url;

use std::fmt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use stageline_core::id::{JournalNumber, Name, PlanId};

use crate::ambient::{SharedClock, SystemClock, crash_point};
pub use beat::{Beat, BeatInfo, Watching, fresh as fresh_watcher};
pub use beside::states_at;
pub use error::{AppendError, BeginError, Rival, StoreError};
pub use identity::{Identity, IdentityError};
pub use journal::{Begin, First, Journal, Writer};
pub use load::Loaded;
pub use lock::{Acquired, HEARTBEAT, Holder, Lock, LockInfo};
pub use repair::Damage;
pub use url::{Bucket, Cloud, StateUrl, Surroundings, folder_name};

use patience::{Patience, Pauser};

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

/// Whether a command may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Creates nothing, not even a folder, and works in a read-only one.
    Read,
    /// Creates the folder and proves that the fence works in it.
    Write,
}

/// The recorded state of one topology, or of one workspace of it. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    place: Arc<str>,
    folder: Option<Arc<FilePath>>,
    mode: Mode,
    patience: &'static Patience,
    /// A put that failed and is there all the same was not synced; else only its answer was lost.
    syncs: bool,
    clock: SharedClock,
    around: Arc<Surroundings>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("place", &self.place)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
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
        Self::open_in(url, topology, workspace, mode, Surroundings::of_process()).await
    }

    /// The same with other surroundings than those of this process.
    ///
    /// # Errors
    /// [`StoreError`] when the place cannot be used in this mode.
    pub async fn open_in(
        url: &StateUrl,
        topology: &Name,
        workspace: Option<&Name>,
        mode: Mode,
        around: Surroundings,
    ) -> Result<Self, StoreError> {
        let name = folder_name(topology, workspace);
        let store = match url {
            StateUrl::Folder(root) => {
                let root = root.join(name);
                let place = root.display().to_string();
                let opened = tokio::task::spawn_blocking(move || local::open(&root, mode))
                    .await
                    .map_err(|error| failed(&place, "opening the folder", &error))??;
                Self {
                    place: place.into(),
                    folder: opened.folder.map(Into::into),
                    objects: opened.objects,
                    mode,
                    patience: &patience::FOLDER,
                    syncs: true,
                    clock: Arc::new(SystemClock),
                    around: Arc::new(around),
                }
            }
            StateUrl::Bucket(bucket) => Self::in_bucket(bucket, &name, mode, around)?,
        };
        store.check().await?;
        Ok(store)
    }

    #[cfg(feature = "cloud-state")]
    fn in_bucket(
        bucket: &Bucket,
        name: &str,
        mode: Mode,
        around: Surroundings,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            objects: cloud::open(bucket, name, &around)?,
            place: format!("{bucket}/{name}").into(),
            folder: None,
            mode,
            patience: &patience::BUCKET,
            syncs: false,
            clock: Arc::new(SystemClock),
            around: Arc::new(around),
        })
    }

    #[cfg(not(feature = "cloud-state"))]
    fn in_bucket(bucket: &Bucket, _: &str, _: Mode, _: Surroundings) -> Result<Self, StoreError> {
        Err(StoreError::LeftOut {
            scheme: bucket.cloud.scheme().to_owned(),
        })
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
            patience: &patience::FOLDER,
            syncs: false,
            clock: Arc::new(SystemClock),
            around: Arc::default(),
        };
        store.check().await?;
        Ok(store)
    }

    /// The same on a disk, whose puts fail where they could not be synced.
    #[doc(hidden)]
    pub async fn on_disk(objects: Arc<dyn ObjectStore>, mode: Mode) -> Result<Self, StoreError> {
        let store = Self::on(objects, "disk", mode).await?;
        Ok(Self {
            syncs: true,
            ..store
        })
    }

    /// Whether it is on another computer, and so has no place for secrets.
    pub(crate) fn is_remote(&self) -> bool {
        self.patience.request.is_some()
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
        let probe = Bytes::from(format!("{name}\n"));
        // An answer that was lost on the way is no fault of the store: what is there decides.
        self.create(&path, &probe, doing).await?;
        let mut pauser = Pauser::new(self.patience.asking, &self.clock);
        let second = loop {
            let error = match self.put_once(&path, &probe, PutMode::Create).await {
                Err(error @ object_store::Error::AlreadyExists { .. }) => break Err(error),
                Ok(_) => break Ok(()),
                Err(error) => self.error(doing, &error),
            };
            if !error.may_pass() || !pauser.once_more(&self.clock).await {
                return Err(error);
            }
        };
        let made = self.head(&path).await;
        let removed = self.remove(&path, "removing the probe").await;
        if second.is_ok() {
            return Err(StoreError::Unfit {
                place: self.place.to_string(),
                what: "a second create of the same object passed, so two runs could not see each other"
                    .to_owned(),
            });
        }
        removed?;
        Ok(made?.map(|meta| meta.last_modified.into()))
    }

    /// Puts an object; false when another one by that name was there and the mode is to create.
    async fn put(&self, path: &Path, bytes: Bytes, mode: PutMode) -> Result<bool, StoreError> {
        self.must_write()?;
        let doing = format!("writing {path}");
        crash_point("an object beside the journal, not yet written");
        let put = match mode {
            PutMode::Create => self.create(path, &bytes, &doing).await,
            PutMode::Overwrite | PutMode::Update(_) => {
                let put = async || {
                    let put = self.put_once(path, &bytes, PutMode::Overwrite).await;
                    put.map_err(|error| self.error(&doing, &error))
                };
                self.again(put).await.map(|_| true)
            }
        };
        crash_point("an object beside the journal, just written");
        put
    }

    /// Creates an object. An answer that says that it failed, or that something is there, proves nothing: it may be our
    /// own, from a request whose answer was lost. So the object is looked at.
    async fn create(&self, path: &Path, bytes: &Bytes, doing: &str) -> Result<bool, StoreError> {
        let mut pauser = Pauser::new(self.patience.asking, &self.clock);
        loop {
            let Err(error) = self.put_once(path, bytes, PutMode::Create).await else {
                return Ok(true);
            };
            let exists = matches!(error, object_store::Error::AlreadyExists { .. });
            let error = self.error(doing, &error);
            if !exists && (self.syncs || !error.may_pass()) {
                // On a disk what failed may be there, and yet not be safe.
                return Err(error);
            }
            match self.get(path, SNAPSHOT_MAX).await {
                Ok(Some(found)) => return Ok(found == *bytes),
                Ok(None) if exists && self.patience.asking.tries == 1 => return Ok(false),
                Ok(None) if pauser.once_more(&self.clock).await => {}
                Ok(None) if exists => return Ok(false),
                Ok(None) => return Err(error),
                Err(_) if !exists => return Err(error),
                Err(unreadable) => return Err(unreadable),
            }
        }
    }

    /// One put, whatever comes of it.
    async fn put_once(
        &self,
        path: &Path,
        bytes: &Bytes,
        mode: PutMode,
    ) -> Result<(), object_store::Error> {
        let payload = PutPayload::from_bytes(bytes.clone());
        let put = self.objects.put_opts(path, payload, PutOptions::from(mode));
        self.timely(bytes.len() as u64, put).await.map(|_| ())
    }

    /// An object of at most `max` bytes, or none.
    async fn get(&self, path: &Path, max: u64) -> Result<Option<Bytes>, StoreError> {
        self.again(|| self.get_once(path, max)).await
    }

    async fn get_once(&self, path: &Path, max: u64) -> Result<Option<Bytes>, StoreError> {
        let doing = || format!("reading {path}");
        let found = match self.timely(0, self.objects.get(path)).await {
            Ok(found) => found,
            Err(error @ object_store::Error::NotFound { .. }) => {
                return self.absent(&doing(), &error).map(|()| None);
            }
            Err(error) => return Err(self.error(&doing(), &error)),
        };
        if found.meta.size > max {
            let what = format!(
                "it has {} bytes, more than the {max} that it may have",
                found.meta.size
            );
            return Err(self.corrupt(path, what));
        }
        match self.timely(found.meta.size, found.bytes()).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(self.error(&doing(), &error)),
        }
    }

    /// What is known about an object, if it is there.
    async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>, StoreError> {
        let doing = format!("looking for {path}");
        let head = async || match self.timely(0, self.objects.head(path)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error @ object_store::Error::NotFound { .. }) => {
                self.absent(&doing, &error).map(|()| None)
            }
            Err(error) => Err(self.error(&doing, &error)),
        };
        self.again(head).await
    }

    /// Deletes an object; gone is done.
    async fn remove(&self, path: &Path, doing: &str) -> Result<(), StoreError> {
        let remove = async || match self.timely(0, self.objects.delete(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error(doing, &error)),
        };
        self.again(remove).await
    }

    /// The numbers above `above` of the objects in a folder, in order.
    async fn numbers(
        &self,
        folder: &str,
        above: JournalNumber,
    ) -> Result<Vec<JournalNumber>, StoreError> {
        self.again(|| self.numbers_once(folder, above)).await
    }

    async fn numbers_once(
        &self,
        folder: &str,
        above: JournalNumber,
    ) -> Result<Vec<JournalNumber>, StoreError> {
        let prefix = Path::from(folder);
        let mut found = Vec::new();
        let mut take = |name: &str| {
            let number = name.strip_suffix(".json").and_then(|n| n.parse().ok());
            let Some(number) = number.map(JournalNumber) else {
                return Ok(());
            };
            if name != file_name(number) {
                let what = "its name is not the one that stageline gives; is it a copy?";
                return Err(self.corrupt(&prefix.clone().join(name), what));
            }
            if number > above {
                found.push(number);
            }
            Ok(())
        };
        if let Some(root) = self.folder() {
            let names = local::names(root.join(folder)).await;
            let names = names.map_err(|error| {
                StoreError::of_io(&self.place, &format!("listing {folder}"), &error)
            })?;
            names.iter().try_for_each(|name| take(name))?;
        } else {
            let mut listed = self
                .objects
                .list_with_offset(Some(&prefix), &numbered(folder, above));
            while let Some(meta) = self
                .timely(0, listed.try_next())
                .await
                .map_err(|error| self.error(&format!("listing {folder}"), &error))?
            {
                take(meta.location.filename().unwrap_or_default())?;
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Repeats what may be repeated freely.
    async fn again<T, F>(&self, ask: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pauser = Pauser::new(self.patience.asking, &self.clock);
        loop {
            match ask().await {
                Err(error) if error.may_pass() => {
                    if !pauser.once_more(&self.clock).await {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// One request, in the time that it may take.
    async fn timely<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, object_store::Error> {
        let Some(limit) = self.patience.request else {
            return request.await;
        };
        let limit = limit + Duration::from_secs(bytes >> 20);
        tokio::time::timeout(limit, request)
            .await
            .unwrap_or_else(|_| {
                Err(object_store::Error::Generic {
                    store: "state",
                    source: Box::new(patience::TooSlow {
                        seconds: limit.as_secs(),
                    }),
                })
            })
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
        #[cfg(feature = "cloud-state")]
        if self.is_remote() {
            return cloud_fault::of_object(&self.place, doing, error, &self.around.secrets());
        }
        StoreError::of_object(&self.place, doing, error)
    }

    /// An object that was not found, unless it is the whole bucket that was not.
    fn absent(&self, doing: &str, error: &object_store::Error) -> Result<(), StoreError> {
        #[cfg(feature = "cloud-state")]
        if self.is_remote() && cloud_fault::is_no_bucket(error) {
            return Err(self.error(doing, error));
        }
        let _ = (doing, error);
        Ok(())
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
    Path::from(format!("{folder}/{}", file_name(n)))
}

fn file_name(n: JournalNumber) -> String {
    format!("{:012}.json", n.0)
}

fn failed(place: &str, doing: &str, error: &dyn fmt::Display) -> StoreError {
    StoreError::Failed {
        place: place.to_owned(),
        doing: doing.to_owned(),
        what: error.to_string(),
    }
}
