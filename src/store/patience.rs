//! How long a store is waited for, and how often it is asked again.
//!
//! Ours, and not the library's: a create whose answer was lost is never simply repeated, so every request goes out once,
//! and what its failure means is decided where it is known what the request was. A folder answers or fails at once. A
//! bucket may be a bad line away; but a command that only looks says within some 15 s that it cannot.

use std::time::Duration;

use crate::ambient::SharedClock;

/// When a request is asked again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// Requests in all.
    pub(super) tries: u32,
    /// The first pause; each is twice the one before, up to `longest`.
    pub(super) first: Duration,
    pub(super) longest: Duration,
    /// None is begun after this.
    pub(super) within: Duration,
}

/// What may be expected of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For one request, and a second more for each MiB of it; none where the system call simply takes what it takes.
    pub(super) request: Option<Duration>,
    /// For requests that may be repeated freely, and for objects beside the journal.
    pub(super) asking: Pauses,
    /// For an entry of the journal: a run that has rented machines does not give up quickly.
    pub(super) entry: Pauses,
}

const ONCE: Pauses = Pauses {
    tries: 1,
    first: Duration::ZERO,
    longest: Duration::ZERO,
    within: Duration::ZERO,
};

/// A folder: an entry is offered six times, about 1.5 s.
pub(super) static FOLDER: Patience = Patience {
    request: None,
    asking: ONCE,
    entry: Pauses {
        tries: 6,
        first: Duration::from_millis(50),
        longest: Duration::from_secs(1),
        within: Duration::MAX,
    },
};

/// A bucket. One request of 8 s begun at the last moment of 5 s ends within 13 s.
#[cfg(any(feature = "cloud-state", test))]
pub(super) static BUCKET: Patience = Patience {
    request: Some(Duration::from_secs(8)),
    asking: Pauses {
        tries: 6,
        first: Duration::from_millis(100),
        longest: Duration::from_secs(2),
        within: Duration::from_secs(5),
    },
    entry: Pauses {
        tries: 20,
        first: Duration::from_millis(100),
        longest: Duration::from_secs(5),
        within: Duration::from_secs(45),
    },
};

/// One request took too long.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {seconds} s")]
pub(super) struct TooSlow {
    pub(super) seconds: u64,
}

/// Counts the tries of one request.
pub(super) struct Pauser {
    pauses: Pauses,
    left: u32,
    next: Duration,
    began: Duration,
}

impl Pauser {
    pub(super) fn new(pauses: Pauses, clock: &SharedClock) -> Self {
        Self {
            pauses,
            left: pauses.tries.saturating_sub(1),
            next: pauses.first,
            began: clock.boottime(),
        }
    }

    /// True, after a pause, when it may be tried once more.
    pub(super) async fn once_more(&mut self, clock: &SharedClock) -> bool {
        let took = clock.boottime().saturating_sub(self.began);
        if self.left == 0 || took >= self.pauses.within {
            return false;
        }
        self.left -= 1;
        clock.sleep(self.next).await;
        self.next = (self.next * 2).min(self.pauses.longest);
        true
    }
}
