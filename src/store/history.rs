//! What the store still knows of earlier times: the entries that are there, and the state as of a number.
//!
//! Snapshots and the entries above them are the history. Numbers never go back: to return to an earlier state is to
//! append what makes the present one like it.

use futures::StreamExt;
use object_store::path::Path;
use stageline_core::id::{JournalNumber, Name};
use stageline_core::journal::Entry;
use stageline_core::state::State;

use super::{ENTRY_MAX, JOURNAL, Loaded, SNAPSHOT, Store, StoreError, numbered};

impl Store {
    /// The numbers of all snapshots, in order.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be listed.
    pub async fn snapshots(&self) -> Result<Vec<JournalNumber>, StoreError> {
        self.numbers(SNAPSHOT, JournalNumber(0)).await
    }

    /// The state as of an entry; none when the store does not reach back so far, or has no such entry yet.
    ///
    /// # Errors
    /// [`StoreError`] when what is there cannot be read.
    pub async fn state_at(&self, n: JournalNumber) -> Result<Option<State>, StoreError> {
        let base = self
            .snapshots()
            .await?
            .into_iter()
            .rfind(|snapshot| *snapshot <= n);
        let mut loaded = self.read_snapshot(base).await?;
        while loaded.head < n {
            let next = loaded.head.next();
            let path = numbered(JOURNAL, next);
            let Some(bytes) = self.get(&path, ENTRY_MAX).await? else {
                return Ok(None);
            };
            loaded
                .follow(next, &bytes)
                .map_err(|wrong| self.not_next(next, wrong))?;
        }
        Ok(Some(loaded.state))
    }

    /// Puts a whole state here, as of its own number and under this topology name, so that runs go on from it. Saying it
    /// again is fine. That the place is free for it is for the caller to see to.
    ///
    /// # Errors
    /// [`StoreError`] when another state is here, or it cannot be written.
    pub async fn receive(&self, loaded: &Loaded, topology: &Name) -> Result<(), StoreError> {
        self.must_write()?;
        let here = self.read_closed().await?;
        let lineage = |state: &State| state.genesis.as_ref().map(|genesis| genesis.lineage);
        let same = lineage(&here.state) == lineage(&loaded.state);
        if here.head != JournalNumber(0) && !same {
            let place = self.place.to_string();
            return Err(StoreError::Occupied { place });
        }
        if here.head >= loaded.head {
            return Ok(());
        }
        let mut state = loaded.state.clone();
        state.closed = None;
        if let Some(genesis) = &mut state.genesis {
            genesis.topology = topology.clone();
        }
        let bytes = super::snapshot::encode(loaded.head, loaded.digest, &state);
        self.put_snapshot(loaded.head, bytes).await
    }

    /// Every entry that can be read, and every one that cannot with the reason: for mending.
    pub(super) async fn entries_one_by_one(
        &self,
    ) -> Result<Vec<(JournalNumber, Result<(Entry, bytes::Bytes), StoreError>)>, StoreError> {
        let numbers = self.numbers(JOURNAL, JournalNumber(0)).await?;
        let read = futures::stream::iter(numbers).map(|n| async move {
            let path: Path = numbered(JOURNAL, n);
            let entry = async {
                let bytes = self.get(&path, ENTRY_MAX).await?;
                let bytes = bytes.ok_or_else(|| self.corrupt(&path, "it is gone"))?;
                let entry = Entry::decode(&bytes).map_err(|error| self.unreadable(&path, error))?;
                Ok((entry, bytes))
            };
            (n, entry.await)
        });
        Ok(read.buffered(16).collect().await)
    }
}
