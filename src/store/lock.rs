//! The courtesy lock: who is at work, for a good message.
//!
//! Safety does not rest on it: a second writer is stopped by the fence of the journal. So a dead lock never blocks: it is
//! taken when its process is gone from this computer, or when its heartbeat has shown nothing new for three intervals of
//! our own clock. Clocks of two hosts are never compared.

use std::fmt;
use std::time::Duration;

use object_store::PutMode;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use stageline_core::id::WriterId;
use stageline_core::unit::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{LOCK, Store, StoreError};
use crate::ambient::{Alive, ProcessId, SharedClock};

/// Time between two heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// So many intervals without a new heartbeat mean that the holder is dead or asleep.
const SILENT_INTERVALS: u32 = 3;

/// How long giving it back may take.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// How often a lock that changes hands under our eyes is looked at again.
const LOOKS_MAX: u32 = 8;

/// Largest lock that is read.
const LOCK_MAX: u64 = 64 << 10;

/// Who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The writer of its entries.
    pub writer: WriterId,
    /// Its process.
    pub process: ProcessId,
    /// For people: user@host.
    pub by: String,
    /// `apply`, `destroy`, ...
    pub command: String,
}

/// The lock as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// Whose it is.
    pub holder: Holder,
    /// Since when, by the holder's clock: for people.
    pub since: Timestamp,
    /// Rises while the holder lives.
    pub heartbeat: u64,
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder {
            process,
            by,
            command,
            ..
        } = &self.holder;
        let (who, since) = (
            format!("process {} on {}", process.pid, process.host),
            self.since,
        );
        match process.is_alive() {
            Alive::No => write!(
                f,
                "`{command}` by {by} ({who}) began at {since:.0} and died; what it began is written down: the next `apply` or \
                 `destroy` goes on with it"
            ),
            Alive::Yes | Alive::Unknown => {
                write!(f, "`{command}` by {by} ({who}) is at work since {since:.0}")
            }
        }
    }
}

impl LockInfo {
    /// What to do now.
    pub fn hint(&self) -> String {
        let process = &self.holder.process;
        format!(
            "wait until it ends; to end it, type `kill {}` on {}. A dead one is noticed by itself; where it is stopped or \
             hangs, type `stageline state unlock`, and it can do no harm any more",
            process.pid, process.host
        )
    }

    /// What to say when it takes a while to find out whether it lives; none when that is known at once.
    pub fn doubt(&self) -> Option<String> {
        let silent = HEARTBEAT.as_secs() * u64::from(SILENT_INTERVALS);
        match self.holder.process.is_alive() {
            Alive::Unknown => Some(format!("{self}; whether it lives shows within {silent} s")),
            Alive::Yes | Alive::No => None,
        }
    }
}

/// Whether one got it.
#[derive(Debug)]
pub enum Acquired {
    /// It is ours.
    Lock(Box<Lock>),
    /// Somebody is at work.
    Held(Box<LockInfo>),
}

/// The lock, ours until it is released or dropped.
#[derive(Debug)]
pub struct Lock {
    store: Store,
    holder: Holder,
    stop: CancellationToken,
    heart: Option<JoinHandle<()>>,
}

enum Judged {
    Gone,
    Dead,
    Alive(Box<LockInfo>),
}

impl Lock {
    /// Takes the lock, unless somebody who lives has it. `interval` is [`HEARTBEAT`] outside of tests.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub async fn acquire(
        store: &Store,
        holder: Holder,
        clock: &SharedClock,
        interval: Duration,
    ) -> Result<Acquired, StoreError> {
        let info = LockInfo {
            holder,
            since: clock.now(),
            heartbeat: 0,
        };
        for _ in 0..LOOKS_MAX {
            if store.put(&path(), info.encode(), PutMode::Create).await? {
                return Ok(Acquired::Lock(Box::new(Self::held(
                    store, info, clock, interval,
                ))));
            }
            match judge(store, clock, interval).await? {
                Judged::Gone => {}
                Judged::Alive(held) => return Ok(Acquired::Held(held)),
                Judged::Dead => {
                    store
                        .put(&path(), info.encode(), PutMode::Overwrite)
                        .await?;
                    // Two may have judged so at once; the later of them has it.
                    if store.is_ours(&info.holder).await? {
                        return Ok(Acquired::Lock(Box::new(Self::held(
                            store, info, clock, interval,
                        ))));
                    }
                }
            }
        }
        Err(StoreError::Restless {
            place: store.place().to_owned(),
            times: LOOKS_MAX,
        })
    }

    /// Who has the lock, as far as it says.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub async fn look(store: &Store) -> Result<Option<LockInfo>, StoreError> {
        let bytes = store.get(&path(), LOCK_MAX).await?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Takes the lock away, whoever has it. That stops nobody: a run that lives ends when the next one begins.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub async fn take_away(store: &Store) -> Result<(), StoreError> {
        store.must_write()?;
        store.remove(&path(), "taking the lock away").await
    }

    /// Whether there is one, also one that cannot be read.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub async fn is_there(store: &Store) -> Result<bool, StoreError> {
        Ok(store.head(&path()).await?.is_some())
    }

    fn held(store: &Store, info: LockInfo, clock: &SharedClock, interval: Duration) -> Self {
        let stop = CancellationToken::new();
        let holder = info.holder.clone();
        let beat = beat(store.clone(), info, clock.clone(), interval, stop.clone());
        Self {
            store: store.clone(),
            holder,
            stop,
            heart: Some(tokio::spawn(beat)),
        }
    }

    /// Gives the lock back.
    pub async fn release(mut self) {
        self.stop.cancel();
        if let Some(heart) = self.heart.take() {
            let given = give_back(self.store.clone(), self.holder.clone(), heart);
            // On a dead line it lapses by itself, and nobody who interrupts a run waits for it.
            drop(tokio::time::timeout(GIVE_BACK, given).await);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.stop.cancel();
        if let (Some(heart), Ok(runtime)) =
            (self.heart.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(give_back(self.store.clone(), self.holder.clone(), heart));
        }
    }
}

impl Store {
    async fn is_ours(&self, holder: &Holder) -> Result<bool, StoreError> {
        let found = Lock::look(self).await?;
        Ok(found.is_some_and(|found| found.holder == *holder))
    }
}

impl LockInfo {
    fn encode(&self) -> bytes::Bytes {
        let mut bytes = serde_json::to_vec(self).expect("a lock is plain data");
        bytes.push(b'\n');
        bytes.into()
    }
}

fn path() -> Path {
    Path::from(LOCK)
}

/// Whether the holder lives: by its process where that can be told, else by new heartbeats.
async fn judge(
    store: &Store,
    clock: &SharedClock,
    interval: Duration,
) -> Result<Judged, StoreError> {
    let Some(first) = store.get(&path(), LOCK_MAX).await? else {
        return Ok(Judged::Gone);
    };
    if let Ok(info) = serde_json::from_slice::<LockInfo>(&first) {
        match info.holder.process.is_alive() {
            Alive::Yes => return Ok(Judged::Alive(Box::new(info))),
            Alive::No => return Ok(Judged::Dead),
            Alive::Unknown => {}
        }
    }
    for _ in 0..SILENT_INTERVALS {
        clock.sleep(interval).await;
        let Some(now) = store.get(&path(), LOCK_MAX).await? else {
            return Ok(Judged::Gone);
        };
        if now == first {
            continue;
        }
        if let Ok(info) = serde_json::from_slice::<LockInfo>(&now) {
            return Ok(Judged::Alive(Box::new(info)));
        }
    }
    Ok(Judged::Dead)
}

/// Best effort: a heartbeat that is missed costs nothing but a worse message.
async fn beat(
    store: Store,
    mut info: LockInfo,
    clock: SharedClock,
    interval: Duration,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(interval) => {}
        }
        match store.is_ours(&info.holder).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => continue,
        }
        info.heartbeat += 1;
        // The next one makes up for it.
        drop(store.put(&path(), info.encode(), PutMode::Overwrite).await);
    }
}

async fn give_back(store: Store, holder: Holder, heart: JoinHandle<()>) {
    // A heartbeat that is under way would put the lock back.
    drop(heart.await);
    if matches!(store.is_ours(&holder).await, Ok(true)) {
        // It lapses by itself.
        drop(store.remove(&path(), "giving the lock back").await);
    }
}
