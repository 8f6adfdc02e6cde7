//! A disk whose power may be cut: what was written and what was synced are kept apart.
//!
//! A put is what the local folder makes of it, in the same order: a staged file, its bytes, its sync, its name, the sync
//! of the folder. A deletion is not synced. Between any two of these the power may go off; then what was not synced is
//! lost, or half of it is, by choice. It invents no loss that a file system could not show: what was synced stays.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What a disk says that could not do what it was told.
const EIO: i32 = 5;

/// What a disk syncs when it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// What it should.
    All,
    /// Names only: a file may have its name without its bytes.
    NoBytes,
    /// Bytes only: a file may lose its name.
    NoNames,
}

/// What becomes of what was not synced when the power goes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All of it is lost.
    Everything,
    /// Names are kept, and each file has the first half of its bytes.
    Halves,
    /// Each by these dice: lost, whole, or cut.
    Dice(u64),
}

/// A change of one name.
#[derive(Clone, Debug)]
struct Change {
    /// What is there if the change is lost.
    before: Option<Bytes>,
    /// What is there now.
    after: Option<Bytes>,
    /// Whether the bytes of `after` are safe.
    bytes_synced: bool,
    /// Whether the name is.
    name_synced: bool,
}

/// Asked at each moment at which the power may go off; breaks when it does.
pub type Power = Arc<dyn Fn() -> ControlFlow<()> + Send + Sync>;

/// A disk. Clones are the same disk.
#[derive(Clone)]
pub struct Disk {
    view: Arc<InMemory>,
    syncs: Syncs,
    open: Arc<Mutex<BTreeMap<Path, Change>>>,
    power: Arc<Mutex<Option<Power>>>,
    sync: Arc<Mutex<Option<Power>>>,
}

impl Disk {
    /// An empty disk.
    pub fn new(syncs: Syncs) -> Self {
        Self {
            view: Arc::new(InMemory::new()),
            syncs,
            open: Arc::default(),
            power: Arc::default(),
            sync: Arc::default(),
        }
    }

    /// From now on this is asked whether the power goes off; none is never.
    pub fn set_power(&self, power: Option<Power>) {
        *lock(&self.power) = power;
    }

    /// From now on this is asked at each sync of a folder; the sync fails where it breaks. What it should have made safe is
    /// there to be read, and safe with the next sync of that folder.
    pub fn set_sync(&self, sync: Option<Power>) {
        *lock(&self.sync) = sync;
    }

    /// What is found when the power is back.
    ///
    /// # Panics
    /// Never: the objects are in memory.
    pub async fn power_cut(&self, loss: Loss) {
        self.set_power(None);
        self.set_sync(None);
        let open = std::mem::take(&mut *lock(&self.open));
        for (number, (path, change)) in (0..).zip(open) {
            let found = change.after_loss(loss, number);
            let done = match found {
                Some(bytes) => self.view.put(&path, bytes.into()).await.map(|_| ()),
                None => match self.view.delete(&path).await {
                    Err(Error::NotFound { .. }) => Ok(()),
                    done => done,
                },
            };
            done.expect("it is in memory");
        }
    }

    /// A moment at which the power may go off: then nothing goes on here.
    async fn moment(&self) {
        let power = lock(&self.power).clone();
        if power.is_some_and(|power| power().is_break()) {
            std::future::pending::<()>().await;
        }
    }

    async fn read(&self, path: &Path) -> Result<Option<Bytes>> {
        match self.view.get(path).await {
            Ok(found) => found.bytes().await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A name means something else from now on, and that is not synced.
    fn change(&self, path: &Path, before: Option<Bytes>, after: Option<Bytes>) {
        let mut open = lock(&self.open);
        let earlier = open.get(path).filter(|change| !change.name_synced);
        let before = earlier.map_or(before, |change| change.before.clone());
        let change = Change {
            before,
            bytes_synced: after.is_none() || self.syncs != Syncs::NoBytes,
            after,
            name_synced: false,
        };
        open.insert(path.clone(), change);
    }

    /// Syncs the names in the folder of this object.
    fn sync_names(&self, path: &Path) {
        if self.syncs == Syncs::NoNames {
            return;
        }
        let folder = folder_of(path);
        let mut open = lock(&self.open);
        for (_, change) in open
            .iter_mut()
            .filter(|(path, _)| folder_of(path) == folder)
        {
            change.name_synced = true;
        }
        open.retain(|_, change| !(change.name_synced && change.bytes_synced));
    }
}

impl Change {
    fn after_loss(self, loss: Loss, number: u64) -> Option<Bytes> {
        let dice = match loss {
            Loss::Everything | Loss::Halves => 0,
            Loss::Dice(seed) => {
                let hash = blake3::hash(format!("{seed}/{number}").as_bytes());
                u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
            }
        };
        let name_is_lost = match loss {
            Loss::Everything => true,
            Loss::Halves => false,
            Loss::Dice(_) => dice % 2 == 0,
        };
        if name_is_lost && !self.name_synced {
            return self.before;
        }
        let after = self.after?;
        if self.bytes_synced {
            return Some(after);
        }
        let kept = match loss {
            Loss::Everything => 0,
            Loss::Halves => after.len() / 2,
            Loss::Dice(_) => (dice >> 1) as usize % (after.len() + 1),
        };
        Some(after.slice(..kept))
    }
}

/// All but the last part of a path.
fn folder_of(path: &Path) -> &str {
    let whole = path.as_ref();
    whole.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({:?})", self.syncs)
    }
}

#[async_trait]
impl ObjectStore for Disk {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let bytes = Bytes::from(payload.clone());
        // A staged file: nobody reads it, whatever becomes of it.
        self.moment().await;
        // Its bytes, and their sync.
        self.moment().await;
        let before = self.read(location).await?;
        let done = self.view.put_opts(location, payload, opts).await?;
        self.change(location, before, Some(bytes));
        // Its name.
        self.moment().await;
        let sync = lock(&self.sync).clone();
        if sync.is_some_and(|sync| sync().is_break()) {
            return Err(Error::Generic {
                store: "disk",
                source: Box::new(std::io::Error::from_raw_os_error(EIO)),
            });
        }
        self.sync_names(location);
        self.moment().await;
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.view.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.view.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.view.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let disk = self.clone();
        locations
            .then(move |location| {
                let disk = disk.clone();
                async move {
                    let location = location?;
                    disk.moment().await;
                    let before = disk.read(&location).await?;
                    disk.view.delete(&location).await?;
                    disk.change(&location, before, None);
                    disk.moment().await;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.view.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.view.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.view.copy_opts(from, to, options).await
    }
}
