//! Snapshots: the fold of all entries up to a number, so that reading stays cheap; and the cleaning that they allow.
//!
//! A snapshot is made once and never changed. Entries are removed only after the snapshot that holds them was read back
//! whole. The newest snapshot is never removed: it also proves to a late writer that its number was used.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::PutMode;
use serde::{Deserialize, Serialize};
use stageline_core::id::{Fingerprint, JournalNumber};
use stageline_core::journal::{EntryError, FORMAT};
use stageline_core::state::{Snapshot, State};

use super::{JOURNAL, SNAPSHOT, SNAPSHOT_MAX, Store, StoreError, numbered};

/// Snapshots that are kept: the history.
const KEPT: usize = 32;

/// The journal may grow to this, or to the size of the snapshot, before the next one is made.
const JOURNAL_MIN: u64 = 1 << 20;

/// Rule 10: constant cost per byte of journal, amortised.
pub(super) fn is_due(journal_bytes: u64, snapshot_bytes: u64) -> bool {
    journal_bytes > JOURNAL_MIN.max(snapshot_bytes)
}

/// The same as [`Snapshot`], without a copy of the state, and in its short form.
#[derive(Serialize)]
struct Borrowed<S> {
    format: u32,
    n: JournalNumber,
    digest: Fingerprint,
    state: S,
}

/// The bytes that are stored: one line of JSON.
pub(super) fn encode(n: JournalNumber, digest: Fingerprint, state: &State) -> Bytes {
    let snapshot = Borrowed {
        format: FORMAT,
        n,
        digest,
        state: state.stored(),
    };
    let mut bytes = serde_json::to_vec(&snapshot).expect("a state is plain data");
    bytes.push(b'\n');
    bytes.into()
}

/// Reads stored bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<Snapshot, EntryError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    if bytes.last() != Some(&b'\n') {
        return Err(EntryError::Torn { bytes: bytes.len() });
    }
    let invalid = |error: serde_json::Error| EntryError::Invalid(error.to_string());
    // Looked at once as a whole, and not text by text.
    let text =
        std::str::from_utf8(bytes).map_err(|error| EntryError::Invalid(error.to_string()))?;
    match serde_json::from_str::<Snapshot>(text) {
        Ok(snapshot) if snapshot.format <= FORMAT => Ok(snapshot),
        Ok(newer) => Err(EntryError::Newer {
            found: newer.format,
        }),
        Err(error) => match serde_json::from_str::<Head>(text) {
            Ok(head) if head.format > FORMAT => Err(EntryError::Newer { found: head.format }),
            Ok(_) | Err(_) => Err(invalid(error)),
        },
    }
}

impl Store {
    /// Puts a snapshot and cleans away what it makes needless.
    pub(super) async fn put_snapshot(
        &self,
        n: JournalNumber,
        bytes: Bytes,
    ) -> Result<(), StoreError> {
        let path = numbered(SNAPSHOT, n);
        self.put(&path, bytes.clone(), PutMode::Create).await?;
        let read = self.get(&path, SNAPSHOT_MAX).await?;
        if read.as_deref().map(Fingerprint::of) != Some(Fingerprint::of(&bytes)) {
            return Err(self.corrupt(&path, "it is not what was written"));
        }
        self.clean(n).await
    }

    /// Rule 9. Called only once snapshot `n` was read back.
    async fn clean(&self, n: JournalNumber) -> Result<(), StoreError> {
        let entries = self.numbers(JOURNAL, JournalNumber(0)).await?;
        let entries = entries
            .into_iter()
            .take_while(|entry| *entry <= n)
            .map(|entry| numbered(JOURNAL, entry));
        let snapshots = self.numbers(SNAPSHOT, JournalNumber(0)).await?;
        let surplus = snapshots.len().saturating_sub(KEPT);
        let snapshots = snapshots
            .into_iter()
            .take(surplus)
            .map(|snapshot| numbered(SNAPSHOT, snapshot));
        let needless: Vec<_> = entries.chain(snapshots).map(Ok).collect();
        let mut removed = self
            .objects
            .delete_stream(futures::stream::iter(needless).boxed());
        let mut failure = None;
        loop {
            match self.timely(0, removed.try_next()).await {
                // Somebody else cleans, too.
                Ok(Some(_)) | Err(object_store::Error::NotFound { .. }) => {}
                Ok(None) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        failure.map_or(Ok(()), |error| {
            Err(self.error("removing entries that are in a snapshot", &error))
        })
    }
}
