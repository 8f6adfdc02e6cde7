//! One gate for each account and endpoint, shared by everything in this process.
//!
//! Requests of one account to one endpoint keep their distance (of all accounts, where the provider counts by address); whoever comes gets the next free moment, in the order of
//! coming. When the provider asks for a pause, later comers wait for its end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
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
        let now = Instant::now();
        let mut times = self.lock();
        let at = self.next(&times, now);
        self.take(&mut times, at);
        at.saturating_duration_since(now)
    }

    /// The same, if that is within this time. Otherwise none is taken, as nobody would use it and all others would wait for it.
    pub fn reserve_within(&self, most: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut times = self.lock();
        let at = self.next(&times, now);
        let wait = at.saturating_duration_since(now);
        (wait <= most).then(|| {
            self.take(&mut times, at);
            wait
        })
    }

    /// The same for a request that passes this gate and another one after it: it takes the same moment of both, or of neither.
    pub fn reserve_both(&self, other: &Self, most: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut times = self.lock();
        let mut others = other.lock();
        let at = other.next(&others, self.next(&times, now));
        let wait = at.saturating_duration_since(now);
        (wait <= most).then(|| {
            self.take(&mut times, at);
            other.take(&mut others, at);
            wait
        })
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().expect("no holder panics")
    }

    /// The next free moment that is no sooner than this one.
    fn next(&self, times: &Times, earliest: Instant) -> Instant {
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
        at
    }

    fn take(&self, times: &mut Times, at: Instant) {
        times.recent.push_back(at);
        while times.recent.len() > self.burst {
            times.recent.pop_front();
        }
    }

    /// Nobody passes before this much time has passed.
    pub fn hold(&self, span: Duration) {
        let until = Instant::now() + span;
        let mut times = self.lock();
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
    async fn a_moment_that_nobody_waits_for_is_not_taken() {
        let gate = Gate::new(Duration::from_secs(5), 1);
        gate.hold(Duration::from_secs(30));
        let most = Duration::from_secs(20);
        for _ in 0..8 {
            assert_eq!(gate.reserve_within(most), None);
        }
        tokio::time::advance(Duration::from_secs(12)).await;
        let seconds = |wait: Option<Duration>| wait.map(|wait| wait.as_secs());
        assert_eq!(seconds(gate.reserve_within(most)), Some(18));
        assert_eq!(seconds(gate.reserve_within(most)), None);
        assert_eq!(gate.reserve().as_secs(), 23);
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_two_gates_takes_one_moment_of_both_or_none() {
        let rare = Gate::new(Duration::from_secs(12), 1);
        let any = Gate::new(Duration::from_secs(1), 1);
        let most = Duration::from_secs(20);
        let seconds = |wait: Option<Duration>| wait.map(|wait| wait.as_secs());
        any.hold(Duration::from_secs(5));
        assert_eq!(seconds(rare.reserve_both(&any, most)), Some(5));
        assert_eq!(any.reserve().as_secs(), 6);
        assert_eq!(seconds(rare.reserve_both(&any, most)), Some(17));
        assert_eq!(seconds(rare.reserve_both(&any, most)), None);
        assert_eq!(any.reserve().as_secs(), 18);
        any.hold(Duration::from_secs(40));
        tokio::time::advance(Duration::from_secs(17)).await;
        assert_eq!(seconds(rare.reserve_both(&any, most)), None);
        assert_eq!(seconds(rare.reserve_within(most)), Some(12));
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
