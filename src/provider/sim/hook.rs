//! Where a test can look at, or stop, every call that the tool makes into the simulated world.
//!
//! A crash is a call that never returns: the hook breaks, the call's future stays pending for ever, and the harness,
//! which waits for [`CrashPoint::died`] beside the tool, drops the tool's runtime. The world stays as it was then.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::fault::Verb;

/// On which side of its effect a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Nothing happened yet.
    Before,
    /// It happened; the caller does not know yet.
    After,
}

/// A place where the tool may die.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPoint {
    /// The number of the call, over the whole world, from 1.
    pub call: u64,
    /// The account or the machine that is asked.
    pub who: String,
    /// What is asked.
    pub verb: Verb,
    /// Before or after the effect.
    pub side: Side,
}

/// Looks at each point; breaks to let the tool die there.
pub type Hook = Arc<dyn Fn(&CallPoint) -> ControlFlow<()> + Send + Sync>;

/// Counts points and lets the tool die at one of them. One of these may be shared by the world, the store and whatever
/// else has points, so that a test can die at each of them in turn.
#[derive(Debug)]
pub struct CrashPoint {
    passed: AtomicU64,
    dies_at: u64,
    died: watch::Sender<bool>,
}

impl CrashPoint {
    /// Only counts.
    pub fn never() -> Arc<Self> {
        Self::at(u64::MAX)
    }

    /// Dies at the `n`-th point, counted from 1, and at all that follow.
    pub fn at(n: u64) -> Arc<Self> {
        Arc::new(Self {
            passed: AtomicU64::new(0),
            dies_at: n,
            died: watch::Sender::new(false),
        })
    }

    /// How many points were reached.
    pub fn reached(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// One more point; breaks when it is the last one.
    pub fn step(&self) -> ControlFlow<()> {
        let number = self.passed.fetch_add(1, Ordering::SeqCst) + 1;
        if number >= self.dies_at {
            self.died.send_replace(true);
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// One more point of something asynchronous; never returns when it is the last one.
    pub async fn pass(&self) {
        if self.step().is_break() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the tool has died.
    pub async fn died(&self) {
        let mut died = self.died.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = died.wait_for(|died| *died).await;
    }

    /// As a hook of the world.
    pub fn hook(self: &Arc<Self>) -> Hook {
        let point = Arc::clone(self);
        Arc::new(move |_| point.step())
    }
}
