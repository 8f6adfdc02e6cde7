//! Reading: the highest snapshot and the entries above it, or an error; never less than what is recorded.

use futures::StreamExt;
use futures::TryStreamExt;
use object_store::path::Path;
use stageline_core::id::{Fingerprint, JournalNumber};
use stageline_core::journal::{Entry, EntryError};
use stageline_core::state::State;

use super::{ENTRY_MAX, JOURNAL, READABLE, SNAPSHOT, SNAPSHOT_MAX, Store, StoreError};
use super::{local, numbered, snapshot};

/// How often reading starts again because a snapshot appeared meanwhile. Snapshots are a MiB of journal apart, so a
/// second time is already rare.
const RESTARTS_MAX: u32 = 8;

/// Entries that are fetched at once.
const FETCHES: usize = 16;

/// Entries of a folder that are held at once before they are folded.
const CHUNK: usize = 256;

/// What reading one more object costs beyond its bytes, in bytes: so that many small entries are also snapshotted.
pub(super) const ENTRY_WEIGHT: u64 = 128;

/// The state at a point of the journal.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The fold of everything up to `head`.
    pub state: State,
    /// The last entry; 0 when there is none.
    pub head: JournalNumber,
    /// Digest of that entry: what the next one names as `prev`.
    pub digest: Fingerprint,
    /// The snapshot that was read; 0 when there is none.
    pub snapshot: JournalNumber,
    /// Its size.
    pub snapshot_bytes: u64,
    /// What the entries above it weigh.
    pub journal_bytes: u64,
}

/// Why one attempt at reading failed: once more if a snapshot has appeared, else for good.
struct Suspect(StoreError);

impl Store {
    /// The recorded state. Rule 2: what cannot be told is an error, never an empty state.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read, is damaged, or is newer than this program.
    pub async fn read(&self) -> Result<Loaded, StoreError> {
        let loaded = self.read_closed().await?;
        match &loaded.state.closed {
            Some(to) => Err(StoreError::Moved {
                place: self.place.to_string(),
                to: to.clone(),
            }),
            None => Ok(loaded),
        }
    }

    /// The same, also of a place that was moved away from.
    ///
    /// # Errors
    /// As for [`Store::read`].
    pub async fn read_closed(&self) -> Result<Loaded, StoreError> {
        for _ in 0..RESTARTS_MAX {
            if let Some(folder) = self.folder() {
                local::check(folder)?;
            }
            let base = self.highest_snapshot().await?;
            let read = self.read_above(base).await;
            let moved = self.highest_snapshot().await? != base;
            match read {
                _ if moved => {}
                Ok(loaded) => return Ok(loaded),
                Err(Suspect(error)) => return Err(error),
            }
        }
        Err(StoreError::Restless {
            place: self.place.to_string(),
            times: RESTARTS_MAX,
        })
    }

    async fn highest_snapshot(&self) -> Result<Option<JournalNumber>, StoreError> {
        let numbers = self.numbers(SNAPSHOT, JournalNumber(0)).await?;
        Ok(numbers.last().map(|(n, _)| *n))
    }

    async fn read_above(&self, base: Option<JournalNumber>) -> Result<Loaded, Suspect> {
        let above = base.unwrap_or_default();
        let (start, entries) = futures::future::try_join(
            async { self.read_snapshot(base).await.map_err(Suspect) },
            async { self.numbers(JOURNAL, above).await.map_err(Suspect) },
        )
        .await?;
        self.contiguous(above, &entries).map_err(Suspect)?;
        if base.is_none() && entries.is_empty() {
            self.nothing_was_lost().await.map_err(Suspect)?;
        }
        let mut loaded = start;
        for entries in entries.chunks(CHUNK) {
            let near = self.read_near(entries).await;
            let numbers: Vec<_> = entries.iter().map(|(n, _)| *n).collect();
            let mut fetched = futures::stream::iter(numbers.into_iter().zip(near))
                .map(|(n, near)| async move {
                    match near {
                        Some(bytes) => (n, Ok(Some(bytes.into()))),
                        None => (n, self.get(&numbered(JOURNAL, n), ENTRY_MAX).await),
                    }
                })
                .buffered(FETCHES);
            while let Some((n, bytes)) = fetched.next().await {
                let path = numbered(JOURNAL, n);
                let bytes = bytes
                    .and_then(|bytes| {
                        bytes.ok_or_else(|| self.corrupt(&path, "it was listed and is gone"))
                    })
                    .map_err(Suspect)?;
                loaded.follow(self, n, &bytes).map_err(Suspect)?;
            }
        }
        Ok(loaded)
    }

    /// Entries of a folder on this computer, in one task: a task for each costs more than its file. None where a closer
    /// look must tell what is wrong.
    async fn read_near(&self, entries: &[(JournalNumber, u64)]) -> Vec<Option<Vec<u8>>> {
        let Some(folder) = self.folder() else {
            return vec![None; entries.len()];
        };
        let files: Vec<_> = entries
            .iter()
            .map(|(n, size)| (folder.join(numbered(JOURNAL, *n).as_ref()), *size))
            .collect();
        let read = move || {
            let small = files.iter().map(|(file, size)| {
                let bytes = (*size <= ENTRY_MAX)
                    .then(|| std::fs::read(file).ok())
                    .flatten();
                bytes.filter(|bytes| bytes.len() as u64 == *size)
            });
            small.collect()
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| vec![None; entries.len()])
    }

    pub(super) async fn read_snapshot(
        &self,
        base: Option<JournalNumber>,
    ) -> Result<Loaded, StoreError> {
        let Some(n) = base else {
            return Ok(Loaded::nothing());
        };
        let path = numbered(SNAPSHOT, n);
        let bytes = self.get(&path, SNAPSHOT_MAX).await?;
        let bytes = bytes.ok_or_else(|| self.corrupt(&path, "it was listed and is gone"))?;
        let read = snapshot::decode(&bytes).map_err(|error| self.unreadable(&path, error))?;
        if read.n != n {
            return Err(self.corrupt(&path, format!("it is a copy of snapshot {}", read.n)));
        }
        Ok(Loaded {
            state: read.state,
            head: n,
            digest: read.digest,
            snapshot: n,
            snapshot_bytes: bytes.len() as u64,
            journal_bytes: 0,
        })
    }

    fn contiguous(
        &self,
        above: JournalNumber,
        entries: &[(JournalNumber, u64)],
    ) -> Result<(), StoreError> {
        let mut expected = above.next();
        for (n, _) in entries {
            if *n != expected {
                let what = format!("it is missing, but entry {n} is there");
                return Err(self.corrupt(&numbered(JOURNAL, expected), what));
            }
            expected = expected.next();
        }
        Ok(())
    }

    /// A run writes its readable copy after its entries: where that is, entries were.
    async fn nothing_was_lost(&self) -> Result<(), StoreError> {
        let readable = Path::from(READABLE);
        match self.head(&readable).await? {
            Some(_) => Err(self.corrupt(
                &Path::from(JOURNAL),
                format!("it is missing with all its entries, but {READABLE} is there"),
            )),
            None => Ok(()),
        }
    }

    /// Why these bytes are no entry or snapshot.
    pub(super) fn unreadable(&self, path: &Path, error: EntryError) -> StoreError {
        match error {
            EntryError::Newer { found } => StoreError::Newer {
                place: self.place.to_string(),
                object: path.to_string(),
                found,
            },
            EntryError::Torn { .. } | EntryError::Invalid(_) => {
                self.corrupt(path, error.to_string())
            }
        }
    }

    /// The records of each entry that is still there, oldest first, for `state history` and for tests.
    ///
    /// # Errors
    /// [`StoreError`] when one cannot be read.
    pub async fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let numbers = self.numbers(JOURNAL, JournalNumber(0)).await?;
        futures::stream::iter(numbers)
            .map(|(n, _)| async move {
                let path = numbered(JOURNAL, n);
                let bytes = self.get(&path, ENTRY_MAX).await?;
                let bytes = bytes.ok_or_else(|| self.corrupt(&path, "it is gone"))?;
                Entry::decode(&bytes).map_err(|error| self.unreadable(&path, error))
            })
            .buffered(FETCHES)
            .try_collect()
            .await
    }
}

impl Loaded {
    pub(super) fn nothing() -> Self {
        Self {
            state: State::default(),
            head: JournalNumber(0),
            digest: Fingerprint([0; 32]),
            snapshot: JournalNumber(0),
            snapshot_bytes: 0,
            journal_bytes: 0,
        }
    }

    pub(super) fn follow(
        &mut self,
        store: &Store,
        n: JournalNumber,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let path = numbered(JOURNAL, n);
        let entry = Entry::decode(bytes).map_err(|error| store.unreadable(&path, error))?;
        if entry.n != n {
            return Err(store.corrupt(&path, format!("it is a copy of entry {}", entry.n)));
        }
        if entry.prev != self.digest {
            let what = format!(
                "it follows an entry with digest {}, but the entry before it has {}",
                entry.prev.short(),
                self.digest.short()
            );
            return Err(store.corrupt(&path, what));
        }
        self.state
            .apply(&entry)
            .map_err(|error| store.corrupt(&path, error.to_string()))?;
        self.head = n;
        self.digest = Entry::digest(bytes);
        self.journal_bytes += bytes.len() as u64 + ENTRY_WEIGHT;
        Ok(())
    }
}
