//! The watcher's heartbeat: an object beside the lock that says who ends leases while nobody looks.
//!
//! A plan relies on it, so it is never believed for being there: it is fresh when its process lives on this computer, or
//! when its counter is seen to move within its own interval of our own clock. Clocks of two hosts are never compared, and
//! a file that was left behind by a dead watcher is nobody. A watcher that could end nothing takes it away: see
//! [`Beat::silence`].

use std::time::Duration;

use object_store::PutMode;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use stageline_core::unit::{Millis, Timestamp};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Store, StoreError};
use crate::ambient::{Alive, ProcessId, SharedClock};

const BEAT: &str = "watcher.json";

/// Largest heartbeat that is read.
const BEAT_MAX: u64 = 64 << 10;

/// What an interval may be late by before the counter counts as still.
const SLACK: Duration = Duration::from_secs(2);

/// Between two looks at a counter that should move.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// No watcher's interval is believed to be longer: nobody waits for it.
const INTERVAL_MAX: Millis = Millis::minutes(1);

/// The heartbeat as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeatInfo {
    /// Its process, with host and boot.
    pub process: ProcessId,
    /// For people: user@host.
    pub by: String,
    /// Since when, by its clock: for people.
    pub since: Timestamp,
    /// Time between two heartbeats.
    pub interval: Millis,
    /// Rises while it lives.
    pub heartbeat: u64,
}

/// Our own heartbeat, until it is ended or dropped.
#[derive(Debug)]
pub struct Beat {
    store: Store,
    process: ProcessId,
    stop: CancellationToken,
    heart: Option<JoinHandle<()>>,
}

/// Whether one may watch.
#[derive(Debug)]
pub enum Watching {
    /// Nobody else does.
    Ours(Beat),
    /// Somebody does already.
    Another(Box<BeatInfo>),
}

impl Beat {
    /// Begins to beat, unless another watcher lives.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub async fn begin(
        store: &Store,
        by: String,
        clock: &SharedClock,
        interval: Duration,
    ) -> Result<Watching, StoreError> {
        if let Some(other) = fresh(store, clock).await? {
            return Ok(Watching::Another(Box::new(other)));
        }
        let info = BeatInfo {
            process: ProcessId::this(),
            by,
            since: clock.now(),
            interval: Millis(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX)),
            heartbeat: 0,
        };
        store
            .put(&path(), info.encode(), PutMode::Overwrite)
            .await?;
        let stop = CancellationToken::new();
        let process = info.process.clone();
        let heart = beat(store.clone(), info, clock.clone(), interval, stop.clone());
        Ok(Watching::Ours(Self {
            store: store.clone(),
            process,
            stop,
            heart: Some(tokio::spawn(heart)),
        }))
    }

    /// Another watcher's heartbeat took the place of ours: it took us for dead.
    pub async fn was_taken(&self) -> bool {
        let found = look(&self.store).await;
        matches!(found, Ok(Some(found)) if found.process != self.process)
    }

    /// It was begun and did not fall silent since.
    pub const fn beats(&self) -> bool {
        self.heart.is_some()
    }

    /// Falls silent: from now on nobody watches, though the process lives. False where the heartbeat may still be read; it can be
    /// asked for again.
    pub async fn silence(&mut self) -> bool {
        self.stop.cancel();
        if let Some(heart) = self.heart.take() {
            drop(heart.await);
        }
        match look(&self.store).await {
            Ok(Some(found)) if found.process == self.process => {
                let removed = self.store.remove(&path(), "ending the heartbeat").await;
                removed.is_ok()
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Ends it with its process. Left behind, it is no lie: that is gone.
    pub async fn end(mut self) {
        self.silence().await;
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl BeatInfo {
    fn encode(&self) -> bytes::Bytes {
        let mut bytes = serde_json::to_vec(self).expect("a heartbeat is plain data");
        bytes.push(b'\n');
        bytes.into()
    }

    /// Its process is on this computer: it sleeps when this computer does.
    pub fn is_here(&self) -> bool {
        self.process.host == ProcessId::this().host
    }
}

fn path() -> Path {
    Path::from(BEAT)
}

async fn look(store: &Store) -> Result<Option<BeatInfo>, StoreError> {
    let bytes = store.get(&path(), BEAT_MAX).await?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// The watcher that lives, if one does. That of another computer takes one of its intervals to be believed.
///
/// # Errors
/// [`StoreError`] when the store does not answer.
pub async fn fresh(store: &Store, clock: &SharedClock) -> Result<Option<BeatInfo>, StoreError> {
    let Some(first) = look(store).await? else {
        return Ok(None);
    };
    match first.process.is_alive() {
        Alive::Yes => return Ok(Some(first)),
        Alive::No => return Ok(None),
        Alive::Unknown => {}
    }
    let until = clock.boottime() + first.interval.min(INTERVAL_MAX).duration() + SLACK;
    while clock.boottime() < until {
        clock.sleep(LOOK_EVERY).await;
        match look(store).await? {
            None => return Ok(None),
            Some(now) if now != first => return Ok(Some(now)),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// A heartbeat that could not be written is made up for by the next one. It never takes another's place.
async fn beat(
    store: Store,
    mut info: BeatInfo,
    clock: SharedClock,
    interval: Duration,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(interval) => {}
        }
        match look(&store).await {
            Ok(Some(found)) if found.process != info.process => return,
            Ok(_) => {}
            Err(_) => continue,
        }
        info.heartbeat += 1;
        drop(store.put(&path(), info.encode(), PutMode::Overwrite).await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::ambient::FakeClock;
    use crate::store::Mode;

    const EVERY: Duration = Duration::from_secs(5);

    async fn store() -> Store {
        let objects = Arc::new(InMemory::new());
        Store::on(objects, "memory", Mode::Write)
            .await
            .expect("a store")
    }

    fn elsewhere(heartbeat: u64) -> BeatInfo {
        let process = ProcessId {
            host: "other".to_owned(),
            boot: "other".to_owned(),
            pid: 1,
            started: 1,
        };
        BeatInfo {
            process,
            by: "ada@other".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            interval: Millis::seconds(5),
            heartbeat,
        }
    }

    async fn put(store: &Store, info: &BeatInfo) {
        let (path, bytes) = (path(), info.encode());
        let put = store.put(&path, bytes, PutMode::Overwrite).await;
        put.expect("written");
    }

    #[tokio::test]
    async fn our_own_process_is_believed_at_once_and_one_that_ended_is_nobody() {
        let store = store().await;
        let fake = FakeClock::manual(Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(fake.clone());
        assert_eq!(fresh(&store, &clock).await.expect("read"), None);
        let by = "ada@here".to_owned();
        let begun = Beat::begin(&store, by.clone(), &clock, EVERY).await;
        let Watching::Ours(beat) = begun.expect("written") else {
            panic!("nobody else watches")
        };
        let seen = fresh(&store, &clock).await.expect("read").expect("fresh");
        assert!(seen.is_here());
        let second = Beat::begin(&store, by, &clock, EVERY).await;
        assert!(matches!(second, Ok(Watching::Another(_))));
        beat.end().await;
        assert_eq!(fresh(&store, &clock).await.expect("read"), None);
        let mut dead = seen;
        dead.process.started += 1;
        put(&store, &dead).await;
        assert_eq!(fresh(&store, &clock).await.expect("read"), None);
    }

    #[tokio::test]
    async fn one_that_falls_silent_is_nobody_though_its_process_lives_and_may_begin_again() {
        let store = store().await;
        let clock: SharedClock = Arc::new(FakeClock::manual(Timestamp::UNIX_EPOCH));
        let begin = async || {
            let begun = Beat::begin(&store, "ada@here".to_owned(), &clock, EVERY).await;
            match begun.expect("written") {
                Watching::Ours(beat) => beat,
                Watching::Another(other) => panic!("{other:?} is no other"),
            }
        };
        let mut beat = begin().await;
        assert!(fresh(&store, &clock).await.expect("read").is_some());
        assert!(beat.beats() && beat.silence().await && !beat.beats());
        assert_eq!(fresh(&store, &clock).await.expect("read"), None);
        let again = begin().await;
        assert!(again.beats());
        assert!(fresh(&store, &clock).await.expect("read").is_some());
        again.end().await;
        assert_eq!(fresh(&store, &clock).await.expect("read"), None);
    }

    #[tokio::test]
    async fn one_on_another_computer_is_believed_when_it_is_seen_to_move() {
        let store = store().await;
        put(&store, &elsewhere(7)).await;
        let clock: SharedClock = Arc::new(FakeClock::auto(Timestamp::UNIX_EPOCH));
        let before = clock.boottime();
        assert_eq!(fresh(&store, &clock).await.expect("read"), None, "still");
        assert!(clock.boottime() - before < EVERY * 2, "nobody waits longer");
        let fake = FakeClock::manual(Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(fake.clone());
        let asked = tokio::spawn({
            let store = store.clone();
            async move { fresh(&store, &clock).await }
        });
        while fake.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        put(&store, &elsewhere(8)).await;
        fake.advance(LOOK_EVERY);
        let seen = asked.await.expect("no panic").expect("read");
        assert_eq!(seen.map(|seen| seen.heartbeat), Some(8));
    }
}
