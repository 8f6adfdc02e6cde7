//! The journal of one run: intentions and outcomes, durable before anyone builds on them.
//!
//! One put is in flight at a time; whatever is appended meanwhile becomes the next entry (group commit). What is
//! acknowledged is durable, folded and not fenced. Records that cannot follow the state are refused before they are
//! written, so that no journal ever holds an entry that cannot be read back. After a failure that leaves doubt, nothing
//! more is written.

mod queue;
mod readable;

use std::sync::{Arc, RwLock};

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use stageline_core::id::{
    Epoch, Fingerprint, JournalNumber, Lineage, Name, Nonce, OperatorId, PlanId, WriterId,
};
use stageline_core::journal::{Entry, FORMAT, Record};
use stageline_core::state::{FoldError, Run, State};
use tokio::sync::{mpsc, oneshot, watch};

use super::put::Offered;
use super::{AppendError, BeginError, Loaded, READABLE, Rival, Store, StoreError, snapshot};
use crate::ambient::SharedClock;

/// How often a run tries to begin while others write in between.
const BEGINS_MAX: u32 = 16;

/// Appends that may wait in the queue; the next caller waits for room.
const QUEUE: usize = 1024;

/// Who writes, and by which clock.
#[derive(Clone)]
pub struct Writer {
    /// Drawn once per process.
    pub id: WriterId,
    /// For the times in records, and for pauses.
    pub clock: SharedClock,
}

/// How a run opens.
#[derive(Clone, Debug)]
pub struct Begin {
    /// `apply`, `destroy`, ...
    pub command: String,
    /// Who, for people: user@host, process id.
    pub by: String,
    /// The plan that is carried out, consumed by this.
    pub plan: Option<PlanId>,
    /// Goes on with a plan that was begun and not finished. Its projection is not compared: it is the plan that has
    /// changed the state.
    pub resume: bool,
    /// The projection that the plan was drafted from; none compares nothing.
    pub expect_projection: Option<Fingerprint>,
    /// Written first when the journal is empty; else unused.
    pub first: Option<First>,
    /// Refuse while another run has begun and not ended. Whether that one is alive is for the caller to judge.
    pub wait_for_open: bool,
}

/// What the first record says.
#[derive(Clone, Debug)]
pub struct First {
    /// Drawn for this journal.
    pub lineage: Lineage,
    /// Whose identity rules its agents.
    pub operator: OperatorId,
    /// The topology's name.
    pub topology: Name,
}

/// A run that has begun. Cheap to clone; all clones write to the same queue.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Request>,
}

struct Shared {
    store: Store,
    writer: Writer,
    epoch: Epoch,
    folded: RwLock<Folded>,
    head: watch::Sender<JournalNumber>,
}

struct Folded {
    state: State,
    head: JournalNumber,
    digest: Fingerprint,
    journal_bytes: u64,
    snapshot_bytes: u64,
}

enum Request {
    Append(
        Vec<Record>,
        oneshot::Sender<Result<JournalNumber, AppendError>>,
    ),
    Finish(bool, oneshot::Sender<Result<JournalNumber, AppendError>>),
}

impl Journal {
    /// Opens a run right after the prefix that was checked: when somebody has written in between, what they wrote is
    /// read and checked first. Fences every earlier run for good.
    ///
    /// # Errors
    /// [`BeginError`]; nothing was consumed, unless it says that this is in doubt.
    pub async fn begin(
        store: &Store,
        loaded: Loaded,
        begin: Begin,
        writer: Writer,
    ) -> Result<Self, BeginError> {
        let mut loaded = loaded;
        for _ in 0..BEGINS_MAX {
            if let Some(to) = &loaded.state.closed {
                let place = store.place().to_owned();
                let to = to.clone();
                return Err(BeginError::Store(StoreError::Moved { place, to }));
            }
            admit(&loaded.state, &begin)?;
            let entry = first_entry(&loaded, &begin, &writer)?;
            let bytes = Bytes::from(entry.encode());
            let offered = Offered {
                n: entry.n,
                writer: entry.writer,
                nonce: entry.nonce,
                bytes: bytes.clone(),
            };
            match store.put_entry(&offered, &writer.clock).await {
                Ok(()) => return Self::opened(store.clone(), loaded, &entry, &bytes, writer),
                // Somebody was faster. They may have changed nothing that matters to us.
                Err(AppendError::Fenced { .. }) => loaded = store.read().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(BeginError::Store(super::StoreError::Restless {
            place: store.place().to_owned(),
            times: BEGINS_MAX,
        }))
    }

    fn opened(
        store: Store,
        loaded: Loaded,
        entry: &Entry,
        bytes: &Bytes,
        writer: Writer,
    ) -> Result<Self, BeginError> {
        let mut folded = Folded {
            state: loaded.state,
            head: loaded.head,
            digest: loaded.digest,
            journal_bytes: loaded.journal_bytes,
            snapshot_bytes: loaded.snapshot_bytes,
        };
        folded
            .follow(entry, bytes)
            .map_err(AppendError::Impossible)?;
        let (head, _) = watch::channel(entry.n);
        let shared = Arc::new(Shared {
            store,
            writer,
            epoch: entry.epoch,
            folded: RwLock::new(folded),
            head,
        });
        let (queue, requests) = mpsc::channel(QUEUE);
        tokio::spawn(queue::serve(shared.clone(), requests));
        Ok(Self { shared, queue })
    }

    /// Makes records durable, together and in order, and returns the number of their entry. They are in the state when
    /// this returns. Many callers at once are cheap: they share an entry. A caller that stops waiting does not take its
    /// records back.
    ///
    /// # Errors
    /// [`AppendError`]; after anything but [`AppendError::Impossible`] this run must stop.
    pub async fn append(&self, records: Vec<Record>) -> Result<JournalNumber, AppendError> {
        self.request(|reply| Request::Append(records, reply)).await
    }

    /// Closes the run in order: an `end` record, a snapshot if one is due, and the readable copy. `finished` says that
    /// all steps of the plan were done; else it may be resumed. Later appends fail.
    ///
    /// # Errors
    /// [`AppendError`] when the `end` is not durable. The readable copy and the snapshot are best effort.
    pub async fn finish(&self, finished: bool) -> Result<JournalNumber, AppendError> {
        self.request(|reply| Request::Finish(finished, reply)).await
    }

    async fn request(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<JournalNumber, AppendError>>) -> Request,
    ) -> Result<JournalNumber, AppendError> {
        let (reply, answer) = oneshot::channel();
        self.queue
            .send(request(reply))
            .await
            .map_err(|_| AppendError::Closed)?;
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Looks at the state as of the last durable entry, without a copy. The journal stands still meanwhile: be brief.
    pub fn with_state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.shared.read().state)
    }

    /// Reads the journal again as it stands in the store, entries of a run that fenced this one included.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub async fn reread(&self) -> Result<State, StoreError> {
        Ok(self.shared.store.read_closed().await?.state)
    }

    /// The number of the last durable entry, whenever it changes.
    pub fn changes(&self) -> watch::Receiver<JournalNumber> {
        self.shared.head.subscribe()
    }

    /// How many appends wait.
    #[cfg(test)]
    pub(super) fn queue_len(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Makes a snapshot now, due or not.
    #[doc(hidden)]
    pub async fn snapshot_now(&self) {
        self.shared.put_snapshot().await;
    }

    /// The number of the entry with this run's `begin`.
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Which life of the topology this is.
    pub fn lineage(&self) -> Lineage {
        self.with_state(|state| {
            let genesis = state.genesis.as_ref();
            genesis
                .expect("no run begins before the first record")
                .lineage
        })
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Folded> {
        self.folded.read().expect("no fold panics")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Folded> {
        self.folded.write().expect("no fold panics")
    }

    /// Makes the readable copy; nothing depends on it.
    async fn put_readable(&self) {
        let bytes = {
            let folded = self.read();
            readable::text(folded.head, &folded.state)
        };
        let path = Path::from(READABLE);
        let put = self.store.put(&path, bytes.into(), PutMode::Overwrite);
        if let Err(error) = put.await {
            tracing::warn!(%error, "the readable copy of the state was not written");
        }
    }

    /// Makes a snapshot of what is durable now.
    async fn put_snapshot(&self) {
        let (n, bytes) = {
            let folded = self.read();
            let bytes = snapshot::encode(folded.head, folded.digest, &folded.state);
            (folded.head, bytes)
        };
        let size = bytes.len() as u64;
        match self.store.put_snapshot(n, bytes).await {
            Ok(()) => self.write().snapshot_bytes = size,
            // The journal simply stays longer; the next one is tried when it has grown by as much again.
            Err(error) => tracing::warn!(%error, "no snapshot was made"),
        }
    }
}

impl Folded {
    fn follow(&mut self, entry: &Entry, bytes: &[u8]) -> Result<(), FoldError> {
        self.state.apply(entry)?;
        self.head = entry.n;
        self.digest = Entry::digest(bytes);
        self.journal_bytes += bytes.len() as u64 + super::load::ENTRY_WEIGHT;
        Ok(())
    }
}

/// Whether this run may begin on that state.
fn admit(state: &State, begin: &Begin) -> Result<(), BeginError> {
    if begin.wait_for_open
        && let Some(run) = state.run.as_ref().filter(|run| run.open)
    {
        return Err(BeginError::RunOpen {
            epoch: run.epoch,
            rival: rival(run),
        });
    }
    if let Some(plan) = begin.plan {
        admit_plan(state, plan, begin.resume)?;
    }
    match begin.expect_projection {
        Some(expected) if !begin.resume && !state.is_at(expected) => Err(BeginError::Stale),
        Some(_) | None => Ok(()),
    }
}

/// A plan is consumed once; an unfinished one may be resumed until another plan has begun.
fn admit_plan(state: &State, plan: PlanId, resume: bool) -> Result<(), BeginError> {
    let not_resumable = |why| Err(BeginError::NotResumable { plan, why });
    let Some(consumed) = state.consumed.get(&plan) else {
        return if resume {
            not_resumable("it was never begun here")
        } else {
            Ok(())
        };
    };
    let (epoch, finished) = (consumed.epoch, consumed.finished);
    if finished || !resume {
        return Err(BeginError::Consumed {
            plan,
            epoch,
            finished,
        });
    }
    if state.consumed.values().any(|other| other.epoch > epoch) {
        return not_resumable("another plan has begun since");
    }
    Ok(())
}

pub(super) fn rival(run: &Run) -> Rival {
    Rival {
        since: run.at,
        by: run.by.clone(),
        command: run.command.clone(),
    }
}

/// The entry that opens the run; in an empty journal it says first whose it is.
fn first_entry(loaded: &Loaded, begin: &Begin, writer: &Writer) -> Result<Entry, AppendError> {
    let n = loaded.head.next();
    let at = writer.clock.now();
    let mut records = Vec::new();
    if loaded.state.genesis.is_none() {
        let Some(first) = &begin.first else {
            return Err(AppendError::Impossible(FoldError::Impossible {
                n,
                what: "a run begins before the first record".to_owned(),
            }));
        };
        records.push(Record::Genesis {
            lineage: first.lineage,
            operator: first.operator,
            topology: first.topology.clone(),
            at,
        });
    }
    records.push(Record::Begin {
        command: begin.command.clone(),
        plan: begin.plan,
        by: begin.by.clone(),
        at,
        boot: writer.clock.boot_point(),
    });
    Ok(Entry {
        format: FORMAT,
        n,
        prev: loaded.digest,
        epoch: Epoch(n.0),
        writer: writer.id,
        nonce: Nonce(crate::ambient::random()),
        records,
    })
}
