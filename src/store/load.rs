//! Reading: the highest snapshot and the entries above it, or an error; never less than what is recorded.

use futures::StreamExt;
use futures::TryStreamExt;
use object_store::path::Path;
use stageline_core::id::{Fingerprint, JournalNumber};
use stageline_core::journal::{Entry, EntryError};
use stageline_core::state::State;

use super::{ENTRY_MAX, JOURNAL, READABLE, SNAPSHOT, SNAPSHOT_MAX, Store, StoreError};
use super::{file_name, local, numbered, snapshot};

/// How often reading starts again because a snapshot appeared meanwhile. Snapshots are a MiB of journal apart, so a
/// second time is already rare.
const RESTARTS_MAX: u32 = 8;

/// Entries that are fetched at once.
const FETCHES: usize = 16;

/// What reading one more object costs beyond its bytes, in bytes: so that many small entries are also snapshotted. On a
/// disk it costs as much time as 400 bytes; more snapshots would cost more than they save.
pub(super) const ENTRY_WEIGHT: u64 = 256;

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

/// Why bytes are not the next entry.
pub(super) enum NotNext {
    Unreadable(EntryError),
    Wrong(String),
}

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
        Ok(numbers.last().copied())
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
        let (mut loaded, entries) = self.follow_near(start, entries).await.map_err(Suspect)?;
        let mut fetched = futures::stream::iter(entries)
            .map(|n| async move { (n, self.get(&numbered(JOURNAL, n), ENTRY_MAX).await) })
            .buffered(FETCHES);
        while let Some((n, bytes)) = fetched.next().await {
            let bytes = bytes.map_err(Suspect)?.ok_or_else(|| {
                Suspect(self.corrupt(&numbered(JOURNAL, n), "it was listed and is gone"))
            })?;
            loaded
                .follow(n, &bytes)
                .map_err(|wrong| Suspect(self.not_next(n, wrong)))?;
        }
        Ok(loaded)
    }

    /// Follows the entries of a folder on this computer, in one task: a task for each costs more than its file. Returns
    /// also those that are left, from the first that a closer look must tell what is wrong with.
    async fn follow_near(
        &self,
        mut loaded: Loaded,
        mut entries: Vec<JournalNumber>,
    ) -> Result<(Loaded, Vec<JournalNumber>), StoreError> {
        let Some(root) = self.folder() else {
            return Ok((loaded, entries));
        };
        let folder = root.join(JOURNAL);
        let follow = move || {
            let Ok(mut lines) = local::Lines::in_folder(&folder, ENTRY_MAX) else {
                return Ok((loaded, entries));
            };
            let mut followed = 0;
            for n in &entries {
                let Ok(Some(line)) = lines.read(&file_name(*n)) else {
                    break;
                };
                loaded.follow(*n, line).map_err(|wrong| (*n, wrong))?;
                followed += 1;
            }
            entries.drain(..followed);
            Ok((loaded, entries))
        };
        let followed = tokio::task::spawn_blocking(follow).await;
        followed
            .expect("no entry makes the reader panic")
            .map_err(|(n, wrong)| self.not_next(n, wrong))
    }

    /// Why an entry does not follow the one before it.
    pub(super) fn not_next(&self, n: JournalNumber, wrong: NotNext) -> StoreError {
        let path = numbered(JOURNAL, n);
        match wrong {
            NotNext::Unreadable(error) => self.unreadable(&path, error),
            NotNext::Wrong(what) => self.corrupt(&path, what),
        }
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
        entries: &[JournalNumber],
    ) -> Result<(), StoreError> {
        let mut expected = above.next();
        for n in entries {
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
            .map(|n| async move {
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

    pub(super) fn follow(&mut self, n: JournalNumber, bytes: &[u8]) -> Result<(), NotNext> {
        let wrong = |what| Err(NotNext::Wrong(what));
        let entry = Entry::decode(bytes).map_err(NotNext::Unreadable)?;
        if entry.n != n {
            return wrong(format!("it is a copy of entry {}", entry.n));
        }
        if entry.prev != self.digest {
            return wrong(format!(
                "it follows an entry with digest {}, but the entry before it has {}",
                entry.prev.short(),
                self.digest.short()
            ));
        }
        if let Err(error) = self.state.apply(&entry) {
            return wrong(error.to_string());
        }
        self.head = n;
        self.digest = Entry::digest(bytes);
        self.journal_bytes += bytes.len() as u64 + ENTRY_WEIGHT;
        Ok(())
    }
}
