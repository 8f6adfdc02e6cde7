//! The one way in which an entry gets into the journal: rules 3 to 5.
//!
//! An answer that says "failed" or "already exists" proves nothing: the entry may be there, and it may be our own. So
//! after every such answer the object itself is asked. A success proves nothing either until it is known that the number
//! had not been used and cleaned away before.

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use stageline_core::id::{JournalNumber, Nonce, WriterId};
use stageline_core::journal::{Entry, Record};

use super::{
    AppendError, ENTRY_MAX, JOURNAL, Pauser, Rival, SNAPSHOT, Store, StoreError, numbered,
};
use crate::ambient::{SharedClock, crash_point};

/// An entry that is ready to be put.
pub(super) struct Offered {
    pub(super) n: JournalNumber,
    pub(super) writer: WriterId,
    pub(super) nonce: Nonce,
    pub(super) bytes: Bytes,
}

/// What stands under a number.
enum Standing {
    Ours,
    Absent,
    Foreign(Box<Entry>),
}

impl Store {
    /// Makes an entry durable under exactly its number.
    pub(super) async fn put_entry(
        &self,
        offered: &Offered,
        clock: &SharedClock,
    ) -> Result<(), AppendError> {
        let doubt = |cause: StoreError| AppendError::InDoubt {
            n: offered.n,
            cause: Arc::new(cause),
        };
        self.must_write().map_err(doubt)?;
        let path = numbered(JOURNAL, offered.n);
        let mut pauser = Pauser::new(self.patience.entry, clock);
        loop {
            crash_point("a journal entry, not yet written");
            let put = self.put_once(&path, &offered.bytes, PutMode::Create).await;
            crash_point("a journal entry, just written");
            let Err(error) = put else {
                return self.not_cleaned_away(offered.n, clock).await;
            };
            match self.standing(offered, &path, clock).await.map_err(doubt)? {
                Standing::Ours if self.is_unsynced(&error) => {
                    return Err(doubt(self.error(&format!("syncing {path}"), &error)));
                }
                Standing::Ours => return self.not_cleaned_away(offered.n, clock).await,
                Standing::Foreign(entry) => {
                    let rival = match rival(&entry) {
                        Some(rival) => Some(rival),
                        None => self.at_work().await,
                    };
                    return Err(AppendError::Fenced {
                        n: offered.n,
                        rival,
                    });
                }
                Standing::Absent => {
                    let cause = self.error(&format!("writing {path}"), &error);
                    if !cause.may_pass() || !pauser.once_more(clock).await {
                        return Err(doubt(cause));
                    }
                }
            }
        }
    }

    /// Whether an entry that is there may be lost with the power: a disk said that it could not be synced. In a bucket such
    /// an error means that the answer was lost, and what is there is safe.
    fn is_unsynced(&self, error: &object_store::Error) -> bool {
        self.syncs && !matches!(error, object_store::Error::AlreadyExists { .. })
    }

    /// Rule 4.
    async fn standing(
        &self,
        offered: &Offered,
        path: &Path,
        clock: &SharedClock,
    ) -> Result<Standing, StoreError> {
        let Some(bytes) = self.patiently(clock, || self.get(path, ENTRY_MAX)).await? else {
            return Ok(Standing::Absent);
        };
        let entry = Entry::decode(&bytes).map_err(|error| self.unreadable(path, error))?;
        if entry.writer == offered.writer && entry.nonce == offered.nonce {
            Ok(Standing::Ours)
        } else {
            Ok(Standing::Foreign(Box::new(entry)))
        }
    }

    /// Rule 5: a snapshot at or above our number means that the number had been used and cleaned away.
    async fn not_cleaned_away(
        &self,
        n: JournalNumber,
        clock: &SharedClock,
    ) -> Result<(), AppendError> {
        let below = JournalNumber(n.0.saturating_sub(1));
        let found = self
            .patiently(clock, || self.numbers(SNAPSHOT, below))
            .await;
        match found {
            Ok(snapshots) if snapshots.is_empty() => Ok(()),
            Ok(_) => Err(AppendError::Fenced {
                n,
                rival: self.at_work().await,
            }),
            Err(cause) => Err(AppendError::InDoubt {
                n,
                cause: Arc::new(cause),
            }),
        }
    }

    /// Whose run is the last one, as far as that can be read.
    async fn at_work(&self) -> Option<Rival> {
        let loaded = self.read().await.ok()?;
        loaded.state.run.as_ref().map(super::journal::rival)
    }

    /// Reads may be repeated freely, and a run that has written something does not give up quickly.
    async fn patiently<T, F>(
        &self,
        clock: &SharedClock,
        read: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pauser = Pauser::new(self.patience.entry, clock);
        loop {
            match read().await {
                Err(error) if error.may_pass() => {
                    if !pauser.once_more(clock).await {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

fn rival(entry: &Entry) -> Option<Rival> {
    entry.records.iter().find_map(|record| match record {
        Record::Begin {
            command, by, at, ..
        } => Some(Rival {
            since: *at,
            by: by.clone(),
            command: command.clone(),
        }),
        Record::Genesis { .. }
        | Record::Started { .. }
        | Record::DoneBriefly(_)
        | Record::Done { .. }
        | Record::Refused { .. }
        | Record::InDoubt { .. }
        | Record::Absent { .. }
        | Record::GaveUp { .. }
        | Record::ExtraReleased { .. }
        | Record::Vanished { .. }
        | Record::Seen { .. }
        | Record::Dated { .. }
        | Record::Lapsed { .. }
        | Record::Unlapsed { .. }
        | Record::Edited { .. }
        | Record::Closed { .. }
        | Record::Opened { .. }
        | Record::HostKey { .. }
        | Record::End { .. } => None,
    })
}
