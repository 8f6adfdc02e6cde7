//! One gate for each account and endpoint, shared by everything in this process.
//!
//! Requests of one account to one endpoint keep their distance (of all accounts, where the provider counts by address); whoever comes gets the next free moment, in the order of
//! coming. When the provider asks for a pause, later comers wait for its end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::time::Instant;

/// An endpoint as the provider limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name, by which requests are counted together.
    pub name: &'static str,
    /// Least time between two requests, on average.
    pub every: Duration,
    /// Requests that may go out at once after a quiet time.
    pub burst: usize,
    /// It is limited by the address that requests come from: whoever's they are, they pass one gate.
    pub by_address: bool,
}

impl Endpoint {
    /// One request at a time.
    pub const fn each(name: &'static str, every: Duration) -> Self {
        Self {
            name,
            every,
            burst: 1,
            by_address: false,
        }
    }
}

/// On its way a request may catch up with the one before by about this much.
const JITTER: Duration = Duration::from_millis(150);

#[derive(Default)]
struct Times {
    /// When requests went out or will, the latest at the end.
    recent: VecDeque<Instant>,
    held_until: Option<Instant>,
}

/// The gate of one account at one endpoint.
pub struct Gate {
    every: Duration,
    burst: usize,
    times: Mutex<Times>,
}

impl Gate {
    fn new(every: Duration, burst: usize) -> Self {
        Self {
            every,
            burst: burst.max(1),
            times: Mutex::default(),
        }
    }

    /// Takes the next free moment; returns how long it is until then.
    pub fn reserve(&self) -> Duration {
        self.reserve_after(Duration::ZERO)
    }

    /// The same, no sooner than after this much time: a request may have to pass another gate too.
    pub fn reserve_after(&self, span: Duration) -> Duration {
        let now = Instant::now();
        let mut times = self.times.lock().expect("no holder panics");
        let earliest = now + span;
        let mut at = times
            .held_until
            .map_or(earliest, |until| until.max(earliest));
        if let Some(last) = times.recent.back() {
            // Never before one that came earlier.
            at = at.max(*last);
        }
        if times.recent.len() >= self.burst {
            let first = times.recent[times.recent.len() - self.burst];
            let window = self.every * u32::try_from(self.burst).unwrap_or(u32::MAX);
            at = at.max(first + window);
        }
        times.recent.push_back(at);
        while times.recent.len() > self.burst {
            times.recent.pop_front();
        }
        at.saturating_duration_since(now)
    }

    /// Nobody passes before this much time has passed.
    pub fn hold(&self, span: Duration) {
        let until = Instant::now() + span;
        let mut times = self.times.lock().expect("no holder panics");
        times.held_until = Some(times.held_until.map_or(until, |held| held.max(until)));
    }
}

type Key = (String, String, &'static str);

/// The gate of an account, by host and fingerprint of its key. The same for everybody in this process. Two keys of one account
/// have two: by its key alone no API says whose it is, and two accounts must not wait for each other.
pub fn gate(host: &str, account: &str, endpoint: &Endpoint, speed: u32) -> Arc<Gate> {
    static GATES: LazyLock<Mutex<BTreeMap<Key, Arc<Gate>>>> = LazyLock::new(Mutex::default);
    let account = match endpoint.by_address {
        true => "",
        false => account,
    };
    let key = (host.to_owned(), account.to_owned(), endpoint.name);
    let mut gates = GATES.lock().expect("no holder panics");
    let every = match endpoint.every.is_zero() {
        true => Duration::ZERO,
        false => endpoint.every / speed.max(1) + JITTER / speed.max(1),
    };
    let gate = gates
        .entry(key)
        .or_insert_with(|| Arc::new(Gate::new(every, endpoint.burst)));
    Arc::clone(gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_come_at_once_are_spread_and_a_burst_is_allowed() {
        let gate = Gate::new(Duration::from_secs(6), 2);
        let waits: Vec<u64> = (0..5).map(|_| gate.reserve().as_secs()).collect();
        assert_eq!(waits, [0, 0, 12, 12, 24]);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(gate.reserve(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_was_asked_for_holds_everybody() {
        let gate = Gate::new(Duration::from_secs(1), 1);
        gate.hold(Duration::from_secs(7));
        gate.hold(Duration::from_secs(3));
        let waits: Vec<u64> = (0..2).map(|_| gate.reserve().as_secs()).collect();
        assert_eq!(waits, [7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_two_gates_is_waited_for_by_later_ones() {
        let gate = Gate::new(Duration::from_secs(1), 1);
        assert_eq!(gate.reserve_after(Duration::from_secs(5)).as_secs(), 5);
        assert_eq!(gate.reserve().as_secs(), 6);
    }

    #[test]
    fn one_account_has_one_gate_and_another_its_own() {
        let endpoint = Endpoint::each("create", Duration::from_secs(4));
        let own = gate("gate.test", "a", &endpoint, 1);
        assert!(Arc::ptr_eq(&own, &gate("gate.test", "a", &endpoint, 1)));
        assert!(!Arc::ptr_eq(&own, &gate("gate.test", "b", &endpoint, 1)));
        let by_address = Endpoint {
            by_address: true,
            ..Endpoint::each("search", Duration::from_secs(6))
        };
        let own = gate("gate.test", "a", &by_address, 1);
        assert!(Arc::ptr_eq(&own, &gate("gate.test", "b", &by_address, 1)));
        assert!(!Arc::ptr_eq(&own, &gate("other.test", "a", &by_address, 1)));
    }
}
