//! The only reader of clock, randomness, environment and signals.
//!
//! Effects get these passed in, so that a test can stop the clock and repeat the dice.
#![expect(
    clippy::disallowed_methods,
    reason = "here, and only here, the real clock is read"
)]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::unit::Timestamp;

pub use fake::FakeClock;

/// Time, as an effect.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// The wall clock: for people and records, never compared between two hosts.
    fn now(&self) -> Timestamp;
    /// Time since boot, suspend included: for windows and deadlines.
    fn boottime(&self) -> Duration;
    /// Returns when that much of `boottime` has passed.
    async fn sleep(&self, span: Duration);
}

/// The clock of this computer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boottime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    async fn sleep(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }
}

/// A clock that is passed around.
pub type SharedClock = Arc<dyn Clock>;

/// `N` bytes from the operating system.
///
/// # Panics
/// When the operating system has none to give: nothing can be done safely then.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
