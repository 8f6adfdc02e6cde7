//! The simulator's clock: real time, multiplied, and moved on by whoever asks.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use stageline_core::unit::Timestamp;

use crate::ambient::{Clock as _, SystemClock};

/// Milliseconds since the simulator began, by its own clock.
pub struct SimClock {
    began: Duration,
    wall: Timestamp,
    speed: u32,
    moved: AtomicU64,
    off: AtomicI64,
}

impl SimClock {
    pub(super) fn new(speed: u32) -> Self {
        Self {
            began: SystemClock.boottime(),
            wall: SystemClock.now(),
            speed: speed.max(1),
            moved: AtomicU64::new(0),
            off: AtomicI64::new(0),
        }
    }

    /// How fast it runs.
    pub fn speed(&self) -> u32 {
        self.speed
    }

    /// Milliseconds since the beginning.
    pub fn now(&self) -> u64 {
        let real = SystemClock.boottime().saturating_sub(self.began) * self.speed;
        let real = u64::try_from(real.as_millis()).unwrap_or(u64::MAX);
        real.saturating_add(self.moved.load(Ordering::Relaxed))
    }

    /// Moves on.
    pub fn advance(&self, millis: u64) {
        self.moved.fetch_add(millis, Ordering::Relaxed);
    }

    /// What it tells as the time is off by so many milliseconds from now on; how fast it runs is not.
    pub fn set_off(&self, millis: i64) {
        self.off.store(millis, Ordering::Relaxed);
    }

    /// Seconds of the epoch, as providers tell times.
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds of this century fit"
    )]
    pub fn epoch(&self, at: u64) -> f64 {
        let began = self.wall.as_millisecond() + self.off.load(Ordering::Relaxed);
        began as f64 / 1000.0 + at as f64 / 1000.0
    }
}
