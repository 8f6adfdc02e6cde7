//! The one way in which an entry gets into the journal: rules 3 to 5.
//!
//! An answer that says "failed" or "already exists" proves nothing: the entry may be there, and it may be our own. So
//! after every such answer the object itself is asked. A success proves nothing either until it is known that the number
//! had not been used and cleaned away before.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{PutMode, PutOptions, PutPayload};
use stageline_core::id::{JournalNumber, Nonce, WriterId};
use stageline_core::journal::{Entry, Record};

use super::{AppendError, ENTRY_MAX, JOURNAL, Rival, SNAPSHOT, Store, StoreError, numbered};
use crate::ambient::{SharedClock, crash_point};

/// How often the same bytes are offered under the same number: about 1.5 s with the pauses in between.
const TRIES_MAX: u32 = 6;
/// The first pause; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(50);

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
        let mut pause = PAUSE;
        for last in (0..TRIES_MAX).rev() {
            let payload = PutPayload::from_bytes(offered.bytes.clone());
            let options = PutOptions::from(PutMode::Create);
            crash_point("a journal entry, not yet written");
            let put = self.objects.put_opts(&path, payload, options).await;
            crash_point("a journal entry, just written");
            let Err(error) = put else {
                return self.not_cleaned_away(offered.n, clock).await;
            };
            match self.standing(offered, &path, clock).await.map_err(doubt)? {
                Standing::Ours => return self.not_cleaned_away(offered.n, clock).await,
                Standing::Foreign(entry) => {
                    return Err(AppendError::Fenced {
                        n: offered.n,
                        rival: rival(&entry),
                    });
                }
                Standing::Absent => {
                    let cause = self.error(&format!("writing {path}"), &error);
                    if last == 0 || !cause.may_pass() {
                        return Err(doubt(cause));
                    }
                    clock.sleep(pause).await;
                    pause *= 2;
                }
            }
        }
        unreachable!("the last try returns")
    }

    /// Rule 4.
    async fn standing(
        &self,
        offered: &Offered,
        path: &Path,
        clock: &SharedClock,
    ) -> Result<Standing, StoreError> {
        let Some(bytes) = patiently(clock, || self.get(path, ENTRY_MAX)).await? else {
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
        let found = patiently(clock, || self.numbers(SNAPSHOT, below)).await;
        match found {
            Ok(snapshots) if snapshots.is_empty() => Ok(()),
            Ok(_) => Err(AppendError::Fenced { n, rival: None }),
            Err(cause) => Err(AppendError::InDoubt {
                n,
                cause: Arc::new(cause),
            }),
        }
    }
}

/// Reads may be repeated freely.
async fn patiently<T, F>(clock: &SharedClock, read: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        match read().await {
            Err(error) if error.may_pass() => clock.sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    read().await
}

fn rival(entry: &Entry) -> Option<Rival> {
    entry.records.iter().find_map(|record| match record {
        Record::Begin { command, by, .. } => Some(Rival {
            by: by.clone(),
            command: command.clone(),
        }),
        Record::Genesis { .. }
        | Record::Started { .. }
        | Record::Done { .. }
        | Record::Refused { .. }
        | Record::InDoubt { .. }
        | Record::Absent { .. }
        | Record::ExtraReleased { .. }
        | Record::Vanished { .. }
        | Record::Seen { .. }
        | Record::Edited { .. }
        | Record::Closed { .. }
        | Record::Opened { .. }
        | Record::End { .. } => None,
    })
}
