//! A store that misbehaves, for tests and for the crash harness.
//!
//! It counts every request and asks a script what becomes of it. It never invents a fault that a real store or a kill
//! could not show: a request is carried out whole or not at all, and its answer may be lost, or wait.

mod disk;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::watch;

pub use disk::{Disk, Loss, Power, Syncs};

/// What kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Create only if absent.
    Create,
    /// Put over what is there.
    Overwrite,
    /// Get an object or what is known about it.
    Get,
    /// List a folder.
    List,
    /// Delete one object.
    Delete,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// From 0, over everything that this store was asked.
    pub index: u64,
    /// Its kind.
    pub verb: Verb,
    /// The object or folder.
    pub path: String,
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It is carried out and answered.
    Pass,
    /// It is not carried out; the answer is an error.
    Refuse,
    /// It is carried out; the answer is an error.
    LoseAnswer,
    /// It is carried out; the answer of a create is "already exists", as from a library that repeats a lost request.
    Repeat,
    /// Before its effect the process dies: this and all later requests come to nothing.
    DieBefore,
    /// After its effect the process dies.
    DieAfter,
    /// It is carried out when the gate gives a permit: a process that is stopped before its request went out.
    Hold(Gate),
    /// It is carried out at once and answered when the gate gives a permit.
    HoldAnswer(Gate),
    /// The disk is full: not carried out.
    Full,
}

/// Where a request waits until a test lets it go on.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<watch::Sender<(bool, bool)>>);

impl Gate {
    /// Lets through whatever waits and whatever comes.
    pub fn open(&self) {
        self.0.send_modify(|(_, open)| *open = true);
    }

    /// Returns when a request waits here, or has passed.
    pub async fn reached(&self) {
        self.when(|(reached, _)| reached).await;
    }

    async fn pass(&self) {
        self.0.send_modify(|(reached, _)| *reached = true);
        self.when(|(_, open)| open).await;
    }

    async fn when(&self, holds: impl Fn((bool, bool)) -> bool) {
        let mut changes = self.0.subscribe();
        let found = changes.wait_for(|state| holds(*state)).await;
        drop(found.expect("the gate has its own sender"));
    }
}

type Script = dyn Fn(&Request) -> Fate + Send + Sync;

/// Any object store, with faults by a script.
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    script: Arc<Script>,
    requests: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
    clobbers: bool,
}

impl FaultyStore {
    /// Faults as the script says.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        script: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            script: Arc::new(script),
            requests: Arc::default(),
            dead: Arc::default(),
            clobbers: false,
        }
    }

    /// A store without create-if-absent: a create goes over what is there.
    pub fn clobbering(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            clobbers: true,
            ..Self::new(inner, |_| Fate::Pass)
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Whether the script has killed the process.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn door(&self) -> Door {
        Door {
            script: self.script.clone(),
            requests: self.requests.clone(),
            dead: self.dead.clone(),
        }
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}

/// What every request goes through.
#[derive(Clone)]
struct Door {
    script: Arc<Script>,
    requests: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
}

impl Door {
    async fn pass<T>(
        &self,
        verb: Verb,
        path: &Path,
        effect: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(fault("the process is dead"));
        }
        let index = self.requests.fetch_add(1, Ordering::SeqCst);
        let request = Request {
            index,
            verb,
            path: path.to_string(),
        };
        match (self.script)(&request) {
            Fate::Pass => effect.await,
            Fate::Refuse => Err(fault("refused")),
            Fate::Full => Err(object_store::Error::Generic {
                store: "faulty",
                source: Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
            }),
            Fate::LoseAnswer => {
                effect.await?;
                Err(fault("the answer was lost"))
            }
            Fate::Repeat => {
                effect.await?;
                Err(object_store::Error::AlreadyExists {
                    path: path.to_string(),
                    source: "asked twice".into(),
                })
            }
            Fate::DieBefore => {
                self.dead.store(true, Ordering::SeqCst);
                Err(fault("killed before the effect"))
            }
            Fate::DieAfter => {
                let done = effect.await;
                self.dead.store(true, Ordering::SeqCst);
                done?;
                Err(fault("killed after the effect"))
            }
            Fate::Hold(gate) => {
                gate.pass().await;
                effect.await
            }
            Fate::HoldAnswer(gate) => {
                let done = effect.await;
                gate.pass().await;
                done
            }
        }
    }
}

fn fault(what: &'static str) -> object_store::Error {
    object_store::Error::Generic {
        store: "faulty",
        source: what.into(),
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let opts = if self.clobbers {
            PutOptions::from(PutMode::Overwrite)
        } else {
            opts
        };
        let verb = match opts.mode {
            PutMode::Create => Verb::Create,
            PutMode::Overwrite | PutMode::Update(_) => Verb::Overwrite,
        };
        let effect = self.inner.put_opts(location, payload, opts);
        self.door().pass(verb, location, effect).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let effect = self.inner.get_opts(location, options);
        self.door().pass(Verb::Get, location, effect).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        let effect = self.inner.get_ranges(location, ranges);
        self.door().pass(Verb::Get, location, effect).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (door, inner) = (self.door(), self.inner.clone());
        locations
            .then(move |location| {
                let (door, inner) = (door.clone(), inner.clone());
                async move {
                    let location = location?;
                    let effect = inner.delete(&location);
                    door.pass(Verb::Delete, &location, effect).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (door, inner) = (self.door(), self.inner.clone());
        let prefix = prefix.cloned().unwrap_or_default();
        futures::stream::once(async move {
            let listed = async { Ok(inner.list(Some(&prefix)).collect::<Vec<_>>().await) };
            match door.pass(Verb::List, &prefix, listed).await {
                Ok(found) => found,
                Err(error) => vec![Err(error)],
            }
        })
        .flat_map(futures::stream::iter)
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
