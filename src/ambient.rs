//! The only reader of clock, randomness, environment and signals.
//!
//! Effects get these passed in, so that a test can stop the clock and repeat the dice.
#![expect(
    clippy::disallowed_methods,
    reason = "here, and only here, the real clock is read"
)]

mod dumps;
mod fake;
pub mod secret_file;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::journal::BootPoint;
use stageline_core::unit::{Millis, Timestamp};

pub use dumps::{keep_memory_private, no_core_dumps};
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
    /// Which boot [`Clock::boottime`] counts from; none where that cannot be told.
    fn boot(&self) -> Option<String> {
        None
    }
    /// This moment by the clock that nobody can set.
    fn boot_point(&self) -> Option<BootPoint> {
        let up = Millis(u64::try_from(self.boottime().as_millis()).ok()?);
        self.boot().map(|boot| BootPoint { boot, up })
    }
}

/// The clock of this computer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        // Finer than this says nothing, and is written everywhere.
        let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        match seam(CLOCK_SHIFT).and_then(|text| text.parse().ok()) {
            Some(seconds) => now
                .checked_add(jiff::SignedDuration::from_secs(seconds))
                .unwrap_or(now),
            None => now,
        }
    }

    fn boottime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    async fn sleep(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    fn boot(&self) -> Option<String> {
        Some(boot_id()).filter(|id| !id.is_empty())
    }
}

/// The wall clock as it was when a run began, carried on by the boot-time clock: whoever sets the clock of this computer
/// meanwhile moves no time that the run records.
struct Steady {
    clock: SharedClock,
    wall: Timestamp,
    boot: Duration,
}

/// A clock for the records of one run.
pub fn steady(clock: SharedClock) -> SharedClock {
    let (wall, boot) = (clock.now(), clock.boottime());
    Arc::new(Steady { clock, wall, boot })
}

#[async_trait]
impl Clock for Steady {
    fn now(&self) -> Timestamp {
        let passed = self.boottime().saturating_sub(self.boot);
        let passed = jiff::SignedDuration::try_from(passed).unwrap_or_default();
        self.wall.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    fn boottime(&self) -> Duration {
        self.clock.boottime()
    }

    async fn sleep(&self, span: Duration) {
        self.clock.sleep(span).await;
    }

    fn boot(&self) -> Option<String> {
        self.clock.boot()
    }
}

/// A clock that is passed around.
pub type SharedClock = Arc<dyn Clock>;

/// What an agent on this computer needs of our environment; all else stays here, secrets with it.
const AGENT_VARIABLES: [&str; 10] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "STAGELINE_WORKER",
    "STAGELINE_THREADS",
    "LD_LIBRARY_PATH",
];

/// The part of our environment that agents on this computer get.
pub fn agent_environment() -> BTreeMap<OsString, OsString> {
    let set = AGENT_VARIABLES
        .iter()
        .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)));
    set.collect()
}

/// `N` bytes from the operating system.
///
/// # Panics
/// When the operating system has none to give: nothing can be done safely then.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// This computer, told apart from any other one, also by a name or an address that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computer {
    /// Its name, for people.
    pub name: String,
    /// What it is known by.
    pub id: String,
}

impl Computer {
    /// The one that this runs on. By its installation; where the system does not say, by its name.
    pub fn this() -> Self {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        if let Some(other) = seam(COMPUTER) {
            return Self {
                id: other.clone(),
                name: other,
            };
        }
        let installed = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
        let mut ids = installed.iter().filter_map(|path| {
            let id = std::fs::read_to_string(path).ok()?;
            Some(id.trim().to_owned()).filter(|id| !id.is_empty())
        });
        let id = ids.next().unwrap_or_else(|| name.clone());
        Self { name, id }
    }
}

/// One process on one computer, told apart from any other that ever ran: for courtesy, not for safety.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    /// The computer's name.
    pub host: String,
    /// Drawn anew at each boot; empty where the system has none.
    pub boot: String,
    /// The process id.
    pub pid: u32,
    /// When it started, in ticks since boot, so that a process id that is used again is not taken for it; 0 where the
    /// system does not say.
    pub started: u64,
}

/// Whether a process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// Certainly.
    Yes,
    /// Certainly not.
    No,
    /// It is on another computer, or the system does not say.
    Unknown,
}

impl ProcessId {
    /// This process.
    pub fn this() -> Self {
        let pid = std::process::id();
        let other = seam(HOST);
        let host = || {
            let name = rustix::system::uname();
            name.nodename().to_string_lossy().into_owned()
        };
        Self {
            host: other.clone().unwrap_or_else(host),
            boot: other.unwrap_or_else(boot_id),
            pid,
            started: start_of(pid).unwrap_or_default(),
        }
    }

    /// Whether it is there, as seen from here.
    pub fn is_alive(&self) -> Alive {
        let here = Self::this();
        if self.boot.is_empty() || self.boot != here.boot {
            // After a boot of this computer it is surely gone, but another computer may have the same name.
            return Alive::Unknown;
        }
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let gone = pid.is_none_or(|pid| {
            rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
        });
        match start_of(self.pid) {
            _ if gone => Alive::No,
            Some(started) if self.started != 0 && started != self.started => Alive::No,
            Some(started) if started == self.started => Alive::Yes,
            Some(_) | None => Alive::Unknown,
        }
    }
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Field 22 of `/proc/PID/stat`. The second one, the program's name, may hold spaces and brackets.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// One environment variable, when it is set and is text.
#[expect(clippy::disallowed_methods, reason = "this is the module that may")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The folder in which this user's programs keep what is not to be lost, if the environment says where.
pub fn state_home() -> Option<std::path::PathBuf> {
    let named = variable("XDG_STATE_HOME").filter(|path| path.starts_with('/'));
    let home = variable("HOME").filter(|home| home.starts_with('/'));
    named
        .map(Into::into)
        .or_else(|| home.map(|home| std::path::Path::new(&home).join(".local/state")))
}

/// Every environment variable that is text and whose name begins so.
pub fn variables(prefix: &str) -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(prefix))
        .collect()
}

/// The variable that names the point at which a test has this process killed.
#[cfg(debug_assertions)]
const DIE_AT: &str = "STAGELINE_TEST_DIE_AT";
/// The same for a process that is stopped there, until somebody lets it go on.
#[cfg(debug_assertions)]
const STOP_AT: &str = "STAGELINE_TEST_STOP_AT";
/// The same for a process that panics there.
#[cfg(debug_assertions)]
const PANIC_AT: &str = "STAGELINE_TEST_PANIC_AT";
/// Another name and another boot for this computer, as on a second one.
const HOST: &str = "STAGELINE_TEST_HOST";
/// Another installation than this computer's, as on a second one.
const COMPUTER: &str = "STAGELINE_TEST_COMPUTER";
/// Seconds by which the wall clock of this computer is wrong.
const CLOCK_SHIFT: &str = "STAGELINE_TEST_CLOCK_SHIFT";
/// Milliseconds between two heartbeats of a lock.
const HEARTBEAT: &str = "STAGELINE_TEST_HEARTBEAT";

/// A seam for tests, and nothing in a release build.
fn seam(name: &str) -> Option<String> {
    if cfg!(debug_assertions) {
        variable(name)
    } else {
        None
    }
}

/// The time between two heartbeats that a test wants.
pub(crate) fn heartbeat() -> Option<Duration> {
    let millis = seam(HEARTBEAT)?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

/// A seam for tests, and nothing in a release build: the process dies at the n-th of these points, as by `kill -9`,
/// when `STAGELINE_TEST_DIE_AT` is n, or at the first of this name when it is none, is stopped there when `STAGELINE_TEST_STOP_AT` is, and panics when
/// `STAGELINE_TEST_PANIC_AT` is. They stand before and after
/// each durable write and each call to a provider, and between the effects of one call, so that a test can go through
/// all of them one by one.
#[inline]
pub fn crash_point(what: &str) {
    #[cfg(debug_assertions)]
    {
        use rustix::process::Signal;
        use std::io::Write as _;
        use std::sync::LazyLock;
        use std::sync::atomic::{AtomicU32, Ordering};
        struct Point {
            name: &'static str,
            signal: Option<Signal>,
            left: AtomicU32,
            /// None is any.
            only: Option<String>,
        }
        static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
            let all = [
                (DIE_AT, Some(Signal::KILL)),
                (STOP_AT, Some(Signal::STOP)),
                (PANIC_AT, None),
            ];
            let set = all.into_iter().filter_map(|(name, signal)| {
                let text = variable(name)?;
                let n = text.parse().ok();
                Some(Point {
                    name,
                    signal,
                    left: AtomicU32::new(n.unwrap_or(1)),
                    only: n.is_none().then_some(text),
                })
            });
            set.collect()
        });
        for Point {
            name,
            signal,
            left,
            only,
        } in POINTS.iter()
        {
            if only.as_ref().is_some_and(|only| only != what) {
                continue;
            }
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                // Nobody misses the line when nobody reads it.
                let _ = writeln!(std::io::stderr(), "{name}: at {what}");
                let Some(signal) = signal else {
                    panic!("{name}: at {what}");
                };
                let _ = rustix::process::kill_process(rustix::process::getpid(), *signal);
            }
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = what;
}

/// For people: user@host.
pub fn who() -> String {
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let host = ProcessId::this().host;
    format!("{}@{host}", user.unwrap_or_else(|| "someone".to_owned()))
}
