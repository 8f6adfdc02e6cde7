//! What a watcher judges: which leases are beyond their limits, and when what failed is tried again.
//!
//! What always holds: limits come from what is recorded, ages from the ledger's time and idle times from a clock that
//! nobody can set; a machine that does not answer is idle; a watcher that starts, or that slept, gives each lease a fresh
//! window. It refuses to act: ending a lease is a plan like every other, and whoever runs the watcher carries it out.

use std::collections::BTreeMap;
use std::time::Duration;

use stageline_core::id::{Address, Generation, LeaseId};
use stageline_core::journal::Verb;
use stageline_core::plan::is_protected;
use stageline_core::resource::LeaseLimits;
use stageline_core::state::{Lapse, Limit, Recorded, State};
use stageline_core::topology::OnInterrupt;
use stageline_core::unit::{MicroDollars, Millis, Timestamp};

/// What an agent that was asked says of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing counted as work for so long.
    Idle(Millis),
    /// It does not tell, being of an earlier version: it counts as working.
    Untold,
    /// It does not answer.
    Silent,
}

/// Since when each lease has been idle, as far as this watcher knows.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    since: BTreeMap<(LeaseId, Generation), Duration>,
    looked: Option<Duration>,
}

/// A lease that is beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// Which.
    pub lease: LeaseId,
    /// The limit.
    pub limit: Limit,
    /// What was seen.
    pub why: String,
}

impl Windows {
    /// Begins a look. After a longer gap than `gap_max` since the last one, as after a suspend, nothing that was known
    /// counts: agents may have worked meanwhile and could not be asked.
    pub fn look(&mut self, now: Duration, gap_max: Duration) {
        let slept = self
            .looked
            .is_some_and(|looked| now.saturating_sub(looked) > gap_max);
        if slept {
            self.since.clear();
        }
        self.looked = Some(now);
    }

    /// Ends a look, however long it took.
    pub const fn looked(&mut self, now: Duration) {
        self.looked = Some(now);
    }

    /// For how long a lease has been idle, with what was heard of it now.
    pub fn idle(
        &mut self,
        lease: &LeaseId,
        generation: Generation,
        heard: Heard,
        now: Duration,
    ) -> Duration {
        let since = self.since.entry((lease.clone(), generation)).or_insert(now);
        match heard {
            Heard::Idle(idle) => *since = (*since).max(now.saturating_sub(idle.duration())),
            Heard::Untold => *since = now,
            Heard::Silent => {}
        }
        now.saturating_sub(*since)
    }

    /// Its window begins anew: somebody is at work on it.
    pub fn renew(&mut self, lease: &LeaseId, generation: Generation, now: Duration) {
        self.since.insert((lease.clone(), generation), now);
    }

    /// Forgets leases that are not there any more.
    pub fn keep(&mut self, state: &State) {
        self.since.retain(|(lease, generation), _| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            recorded.is_some_and(|held| held.exists() && held.generation == *generation)
        });
    }
}

/// Every recorded lease that costs or may cost money, but for protected ones.
pub fn guarded(state: &State) -> impl Iterator<Item = (&LeaseId, &Recorded)> {
    let leases = state
        .existing()
        .filter(|(address, _)| matches!(address, Address::Lease(_)))
        .filter_map(|(address, recorded)| Some((address.lease()?, recorded)));
    leases.filter(|(lease, _)| !is_protected(state, lease))
}

/// Those of them whose machine was ready and may be taken away, and is not known to have been.
pub fn bid_for(state: &State) -> impl Iterator<Item = &LeaseId> {
    let may_go = guarded(state).filter(|(lease, recorded)| {
        let known = state.lapse(lease).map(|lapse| lapse.generation);
        let ready = state.lease(lease).is_some_and(|held| held.ready.is_some());
        ready && recorded.bidding().is_some() && known != Some(recorded.generation)
    });
    may_go.map(|(lease, _)| lease)
}

/// What becomes of a lease that is released, and what to do.
pub fn what_follows(lease: &LeaseId, lapse: &Lapse) -> String {
    match lapse.spot.map(|spot| spot.on_interrupt) {
        Some(OnInterrupt::Replace) => "`stageline apply` rents another one".to_owned(),
        Some(OnInterrupt::OnDemand) => "`stageline apply` rents the next one on demand".to_owned(),
        Some(OnInterrupt::End) | None => {
            format!("`stageline apply --renew {lease}` rents it again")
        }
    }
}

/// Whether a lease lived longer than it may. `now` is a ledger time.
pub fn outlived(recorded: &Recorded, limits: LeaseLimits, now: Timestamp) -> Option<String> {
    let born = match recorded.billed {
        Some(billed) => billed.born(),
        None => recorded.tried_since?,
    };
    let age = u64::try_from(now.duration_since(born).as_millis()).unwrap_or(0);
    (age >= limits.max_lifetime.0).then(|| {
        let (age, most) = (whole(Millis(age)), limits.max_lifetime);
        format!("it is {age} old, and may be {most}")
    })
}

/// Whether a lease was idle for longer than it may.
pub fn idled(idle: Duration, limits: LeaseLimits, heard: Heard) -> Option<String> {
    let millis = Millis(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    (millis.0 >= limits.idle_timeout.0).then(|| {
        let (idle, most) = (whole(millis), limits.idle_timeout);
        match heard {
            Heard::Silent => {
                format!("its agent did not answer for {idle}, and {most} is the limit")
            }
            Heard::Idle(_) | Heard::Untold => {
                format!("it did no work for {idle}, and {most} is the limit")
            }
        }
    })
}

/// Whether the topology has spent what it may.
pub fn spent(state: &State, now: Timestamp, cap: MicroDollars) -> Option<String> {
    let spent = state.ledger(now, |_| false).total;
    (spent.most >= cap).then(|| format!("up to {} was spent, and {cap} is the limit", spent.most))
}

/// Releases that were begun and are not proven, and leases that lapsed and are still there.
pub fn pending(state: &State) -> Vec<LeaseId> {
    let open = guarded(state).filter(|(lease, recorded)| {
        let begun = recorded
            .pending
            .as_ref()
            .is_some_and(|pending| pending.verb == Verb::Release);
        let lapsed = state
            .lapse(lease)
            .is_some_and(|lapse| lapse.generation == recorded.generation);
        let mut attempts = recorded.attempts.values();
        let leaving = recorded.receipt.is_none()
            && !recorded.attempts.is_empty()
            && attempts.all(|open| open.leaving.is_some());
        begun || lapsed || leaving
    });
    open.map(|(lease, _)| lease.clone()).collect()
}

/// Seconds are enough for people; what is longer than an hour needs none.
fn whole(span: Millis) -> Millis {
    let unit = if span.0 >= 3_600_000 { 60_000 } else { 1000 };
    if span.0 < 1000 {
        return span;
    }
    Millis(span.0 / unit * unit)
}

/// When something that failed is tried again: after twice the pause of before, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    pause: Duration,
    at: Duration,
}

/// The longest pause between two tries of a release.
const PAUSE_MAX: Duration = Duration::from_secs(300);

impl Again {
    /// The first try failed just now.
    pub fn after(first: Duration, now: Duration) -> Self {
        Self {
            pause: first,
            at: now + first,
        }
    }

    /// It failed once more.
    #[must_use]
    pub fn once_more(self, now: Duration) -> Self {
        Self::after((self.pause * 2).min(PAUSE_MAX), now)
    }

    /// Not before as long has passed as the last try took: for so long that held what other commands need, too.
    #[must_use]
    pub fn rested(self, took: Duration, now: Duration) -> Self {
        Self::after(self.pause.max(took.min(PAUSE_MAX)), now)
    }

    /// Its time has come.
    pub fn is_due(self, now: Duration) -> bool {
        now >= self.at
    }

    /// How long the pause is.
    pub const fn pause(self) -> Duration {
        self.pause
    }
}

/// A unit for systemd that keeps a watcher running. `command` is its whole command line.
pub fn unit(name: &str, folder: &str, command: &[String]) -> String {
    let line: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    format!(
        "# Keeps the leases of `{name}` within their limits. As a unit of your own user:\n\
         #   stageline watch --print-unit > ~/.config/systemd/user/stageline-{name}.service\n\
         #   systemctl --user enable --now stageline-{name}\n\
         #   loginctl enable-linger     # also while you are logged out\n\
         # Keys that the topology takes from the environment go into the file below, one NAME=VALUE a line, readable\n\
         # by its owner only.\n\
         [Unit]\n\
         Description=stageline watch for {name}\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Service]\n\
         Type=exec\n\
         WorkingDirectory={}\n\
         EnvironmentFile=-%h/.config/stageline/{name}.env\n\
         ExecStart={}\n\
         Restart=always\n\
         RestartSec=5\n\
         TimeoutStopSec=30\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        folder.replace('%', "%%"),
        line.join(" ")
    )
}

/// As systemd reads a word of a command line.
fn quoted(word: &str) -> String {
    let escaped = word
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);

    fn lease() -> LeaseId {
        "lease.gpu[0]".parse().expect("an id")
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_watcher_that_starts_or_slept_gives_each_lease_a_fresh_window() {
        let mut windows = Windows::default();
        let one = Generation(1);
        let hour = Heard::Idle(Millis::minutes(60));
        windows.look(seconds(100), TICK * 3);
        assert_eq!(windows.idle(&lease(), one, hour, seconds(100)), seconds(0));
        windows.look(seconds(105), TICK * 3);
        assert_eq!(windows.idle(&lease(), one, hour, seconds(105)), seconds(5));
        windows.look(seconds(4000), TICK * 3);
        let silent = windows.idle(&lease(), one, Heard::Silent, seconds(4000));
        assert_eq!(silent, seconds(0), "it slept");
    }

    #[test]
    fn a_machine_that_is_silent_is_idle_and_one_that_works_is_not() {
        let mut windows = Windows::default();
        let one = Generation(1);
        for now in (0..60).step_by(5).map(seconds) {
            windows.look(now, TICK * 3);
            let idle = windows.idle(&lease(), one, Heard::Silent, now);
            assert_eq!(idle, now);
        }
        let worked = Heard::Idle(Millis::seconds(2));
        let now = seconds(60);
        assert_eq!(windows.idle(&lease(), one, worked, now), seconds(2));
        assert_eq!(windows.idle(&lease(), one, Heard::Untold, now), seconds(0));
        let other = windows.idle(&lease(), Generation(2), Heard::Silent, now);
        assert_eq!(other, seconds(0), "another machine");
    }

    #[test]
    fn limits_say_what_was_seen_and_never_is_never() {
        let limits = LeaseLimits {
            idle_timeout: Millis::seconds(20),
            max_lifetime: Millis::NEVER,
        };
        assert_eq!(idled(seconds(19), limits, Heard::Silent), None);
        let why = idled(seconds(21), limits, Heard::Silent).expect("beyond");
        assert_eq!(
            why,
            "its agent did not answer for 21s, and 20s is the limit"
        );
        let never = LeaseLimits {
            idle_timeout: Millis::NEVER,
            max_lifetime: Millis::NEVER,
        };
        assert_eq!(idled(seconds(1 << 30), never, Heard::Silent), None);
    }

    #[test]
    fn what_failed_is_tried_again_for_ever_and_ever_less_often() {
        let mut again = Again::after(TICK, seconds(0));
        assert!(!again.is_due(seconds(4)) && again.is_due(seconds(5)));
        for _ in 0..20 {
            again = again.once_more(seconds(0));
        }
        assert_eq!(again.pause(), PAUSE_MAX);
        assert!(again.is_due(PAUSE_MAX));
    }

    #[test]
    fn what_held_the_lock_for_long_leaves_it_for_as_long() {
        let again = Again::after(TICK, seconds(0));
        assert_eq!(again.rested(seconds(1), seconds(0)), again);
        let again = again.rested(seconds(120), seconds(200));
        assert!(!again.is_due(seconds(319)) && again.is_due(seconds(320)));
        assert_eq!(again.rested(seconds(4000), seconds(0)).pause(), PAUSE_MAX);
    }

    #[test]
    fn a_unit_keeps_its_words_apart() {
        let command = ["/opt/my tools/stageline", "watch", "--var", "x=$1 50%"];
        let text = unit("demo", "/srv/demo", &command.map(str::to_owned));
        assert!(
            text.contains("ExecStart=\"/opt/my tools/stageline\" watch --var \"x=$$1 50%%\"\n"),
            "{text}"
        );
    }
}
