//! A clock that tests move.
//!
//! `manual` stands still until it is told to go on. `auto` jumps to the earliest sleeper whenever everything is idle:
//! it leans on a paused tokio runtime (`#[tokio::test(start_paused = true)]`), which knows about idleness and does not
//! jump while a file is being written. Its time outlives the runtime, so a test can end one and go on in the next.
//! Neither ever goes back, except the wall clock when [`FakeClock::shift_wall`] says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::unit::Timestamp;
use tokio::sync::watch;

use super::Clock;

/// A clock that tests move. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct FakeClock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    start: Timestamp,
    auto: bool,
    elapsed: watch::Sender<Duration>,
    shift_seconds: Mutex<i64>,
    /// How many it has been moved to.
    computers: Mutex<u32>,
    sleepers: Mutex<BTreeMap<Duration, usize>>,
}

/// Takes a sleeper off the list, also when its future is dropped.
struct Sleeper<'a> {
    inner: &'a Inner,
    deadline: Duration,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mut sleepers = lock(&self.inner.sleepers);
        if let Some(count) = sleepers.get_mut(&self.deadline) {
            *count -= 1;
            if *count == 0 {
                sleepers.remove(&self.deadline);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeClock {
    /// Moves only by [`Self::advance`] and its kin.
    pub fn manual(start: Timestamp) -> Self {
        Self::new(start, false)
    }

    /// Jumps to the earliest sleeper when all is idle; needs a paused tokio runtime, else it really waits.
    pub fn auto(start: Timestamp) -> Self {
        Self::new(start, true)
    }

    fn new(start: Timestamp, auto: bool) -> Self {
        Self {
            inner: Arc::new(Inner {
                start,
                auto,
                elapsed: watch::Sender::new(Duration::ZERO),
                shift_seconds: Mutex::new(0),
                computers: Mutex::new(0),
                sleepers: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// Lets that much time pass, at once; a computer that was suspended looks the same.
    pub fn advance(&self, span: Duration) {
        self.inner.elapsed.send_modify(|elapsed| *elapsed += span);
    }

    /// Moves to the earliest sleeper's end; false when nobody sleeps.
    pub fn advance_to_next(&self) -> bool {
        let next = lock(&self.inner.sleepers).keys().next().copied();
        if let Some(deadline) = next {
            self.reach(deadline);
        }
        next.is_some()
    }

    /// How many sleep now.
    pub fn sleepers(&self) -> usize {
        lock(&self.inner.sleepers).values().sum()
    }

    /// Moves the wall clock alone, forth or back, as a user or a time server does.
    pub fn shift_wall(&self, seconds: i64) {
        *lock(&self.inner.shift_seconds) += seconds;
    }

    /// From now on it is another computer's: it knows nothing of the boot that moments were counted from, and its wall clock
    /// differs by that much.
    pub fn elsewhere(&self, seconds: i64) {
        self.shift_wall(seconds);
        *lock(&self.inner.computers) += 1;
    }

    fn reach(&self, deadline: Duration) {
        self.inner.elapsed.send_if_modified(|elapsed| {
            let later = deadline > *elapsed;
            if later {
                *elapsed = deadline;
            }
            later
        });
    }
}

#[async_trait]
impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        let shift = jiff::SignedDuration::from_secs(*lock(&self.inner.shift_seconds));
        let elapsed = jiff::SignedDuration::try_from(self.boottime()).unwrap_or_default();
        let sum = elapsed.checked_add(shift).unwrap_or_default();
        self.inner.start.checked_add(sum).unwrap_or(Timestamp::MAX)
    }

    fn boottime(&self) -> Duration {
        *self.inner.elapsed.borrow()
    }

    async fn sleep(&self, span: Duration) {
        let deadline = self.boottime().saturating_add(span);
        *lock(&self.inner.sleepers).entry(deadline).or_default() += 1;
        let _sleeper = Sleeper {
            inner: &self.inner,
            deadline,
        };
        let mut elapsed = self.inner.elapsed.subscribe();
        if self.inner.auto {
            tokio::select! {
                biased;
                _ = elapsed.wait_for(|now| *now >= deadline) => {}
                () = tokio::time::sleep(span) => self.reach(deadline),
            }
        } else {
            // The sender lives in `self`, so this cannot fail.
            let _ = elapsed.wait_for(|now| *now >= deadline).await;
        }
    }

    fn boot(&self) -> Option<String> {
        let computers = *lock(&self.inner.computers);
        Some(format!("the only boot of computer {computers}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_who_is_due_and_nobody_else() {
        let clock = FakeClock::manual(start());
        let early = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(5)).await }
        });
        let late = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(9)).await }
        });
        while clock.sleepers() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(clock.advance_to_next());
        early.await.expect("woken");
        assert_eq!(clock.boottime(), Duration::from_secs(5));
        assert!(!late.is_finished());
        clock.advance(Duration::from_secs(4));
        late.await.expect("woken");
        assert!(!clock.advance_to_next());
    }

    #[tokio::test(start_paused = true)]
    async fn an_auto_clock_jumps_in_order_and_only_forth() {
        let clock = FakeClock::auto(start());
        let (slow, quick) = tokio::join!(
            async {
                clock.sleep(Duration::from_secs(3600)).await;
                clock.boottime()
            },
            async {
                clock.sleep(Duration::from_secs(60)).await;
                clock.boottime()
            }
        );
        assert_eq!((quick.as_secs(), slow.as_secs()), (60, 3600));
        clock.shift_wall(-7200);
        assert_eq!(clock.now().as_second(), -3600);
        assert_eq!(clock.boottime().as_secs(), 3600);
    }
}
