//! `kill -9` of the real binary while it rents and ends machines: at random moments, at its own points, and, where `strace`
//! is installed, at its n-th sync, write, request, answer, link, connection, rename, folder or new process. Whatever it left
//! can be read, and the next command finishes or ends the job with every machine recorded and none twice.
//!
//! Here is how it dies; whose machines they are is in `here` (of this computer) and `clouds` (of simulators, over HTTP).
//!
//! `STAGELINE_KILLS=500` kills as often at each of them; without it a few times.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the moment of the kill is what is tried; a long run says how far it is"
)]

mod clouds;
mod here;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stageline::ambient::variable;

use crate::cli::world::{Ran, finish};

/// From so many kills on it is many.
const MANY: u32 = 100;

/// Kills, when nobody asks for more.
const KILLS: u32 = 8;

/// Commands of one user, each killed up to four times before.
const ROUNDS: u32 = 4;

/// Where the process dies by itself; see `ambient::crash_point`.
const DIE_AT: &str = "STAGELINE_TEST_DIE_AT";

const UP: &str = "apply --auto-approve";
const DOWN: &str = "destroy --auto-approve";

/// By what a process dies.
#[derive(Clone, Copy)]
enum Way {
    /// A signal, so many milliseconds after its start at most.
    Moment(u64),
    /// At one of so many points of its own.
    Point(u64),
    /// At one of so many calls of these to the system, counted in each thread for itself.
    Call(&'static str, u64),
}

/// All ways, which take turns: few kills are to show many. As many as one thread of an `apply` makes, about, as
/// `strace -f -b execve` shows it; a `destroy` makes half of that.
const WAYS: [Way; 12] = [
    Way::Moment(1500),
    Way::Point(55),
    Way::Call("fsync", 30),
    Way::Call("write", 60),
    // Requests to providers, and their answers; machines of this computer are made without.
    Way::Call("writev", 7),
    Way::Call("recvfrom", 8),
    Way::Call("?link,linkat", 14),
    Way::Call("connect", 4),
    Way::Call("?rename,?renameat,?renameat2", 2),
    // Packets to agents.
    Way::Call("sendmsg,sendto", 30),
    Way::Call("?mkdir,mkdirat,?unlink,unlinkat", 14),
    Way::Call("clone,clone3", 5),
];

/// Somebody with machines somewhere.
trait User {
    /// The binary with these words behind it, where its topology is.
    fn command(&self, line: &str) -> Command;

    /// An `apply` that nobody kills: then all machines are there, none twice, all recorded, and nothing is left to do.
    fn up(&self);

    /// A `destroy` that nobody kills: then there is none.
    fn down(&self);
}

/// Dice that can be thrown again: splitmix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// What was done so far, by all.
struct Tally {
    /// Where.
    at: &'static str,
    wanted: u32,
    ways: &'static [Way],
    turn: AtomicU32,
    kills: AtomicU32,
    /// Commands that were not killed, and were right afterwards.
    mended: AtomicU32,
    users: AtomicU32,
    by: Mutex<BTreeMap<String, u32>>,
}

impl Tally {
    fn way(&self) -> Way {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.ways[turn as usize % self.ways.len()]
    }

    fn is_enough(&self) -> bool {
        self.kills.load(Ordering::Relaxed) >= self.wanted
    }

    fn told(&self) -> String {
        format!(
            "{}: {} kills of {} users, {} commands after them, 0 orphans, 0 doubles, 0 unreadable states: {:?}",
            self.at,
            self.kills.load(Ordering::Relaxed),
            self.users.load(Ordering::Relaxed),
            self.mended.load(Ordering::Relaxed),
            self.by.lock().expect("no panic"),
        )
    }
}

fn strace_is_there() -> bool {
    let tried = Command::new("strace")
        .args(["-o", "/dev/null", "-b", "execve", "-f", "true"])
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it is there")
}

/// The same command, which dies at the n-th of these calls in a thread.
fn traced(plain: &Command, calls: &str, n: u64) -> Command {
    let mut command = Command::new("strace");
    // Machines are other programs: they are let go when they begin.
    command.args(["-f", "-qq", "-b", "execve", "-o", "/dev/null"]);
    command.arg("-e").arg(format!("trace={calls}"));
    let inject = format!("inject={calls}:signal=KILL:when={n}");
    command.arg("-e").arg(inject);
    command.arg(plain.get_program()).args(plain.get_args());
    command.env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(plain.get_current_dir().expect("set"));
    command
}

/// Runs a command that dies somewhere. Says by what kind of thing, and by which; none when it ended before.
fn die(user: &impl User, line: &str, way: Way, draws: &mut Draws) -> Option<(&'static str, u64)> {
    let mut command = user.command(line);
    let mut draw = |most| draws.below(if line == UP { most } else { most.div_ceil(2) });
    let (kind, n, child) = match way {
        Way::Moment(most) => {
            let n = draw(most);
            let mut child = start(command);
            std::thread::sleep(Duration::from_millis(n));
            // It may have ended by itself.
            child.kill().ok();
            ("some moment", n, child)
        }
        Way::Point(most) => {
            let n = 1 + draw(most);
            command.env(DIE_AT, n.to_string());
            ("a point of its own", n, start(command))
        }
        Way::Call(calls, most) => {
            let n = 1 + draw(most);
            (calls, n, start(traced(&command, calls, n)))
        }
    };
    let status = finish(child).status;
    // What traces a process ends like that one.
    let died = status.signal() == Some(9) || status.code() == Some(137);
    died.then_some((kind, n))
}

/// One user whose program keeps being killed: up to four times, then a command that nobody kills.
fn life(user: &impl User, seed: u64, tally: &Tally) {
    let (mut draws, mut up, mut story) = (Draws(seed), false, vec![]);
    for _ in 0..ROUNDS {
        // Mostly what there is to do, and that again.
        let mut line = || match (up, draws.below(4)) {
            (false, 1..) | (true, 0) => UP,
            (true, 1..) | (false, 0) => DOWN,
        };
        let (first, last) = (line(), line());
        for again in 0..=draws.below(4) {
            let line = if again == 0 { first } else { last };
            let died = die(user, line, tally.way(), &mut draws);
            story.push(format!("{line}: {died:?}"));
            if let Some((kind, _)) = died {
                tally.kills.fetch_add(1, Ordering::Relaxed);
                let mut by = tally.by.lock().expect("no panic");
                *by.entry(kind.to_owned()).or_default() += 1;
            }
            // Whatever it left can be read; before the first entry there is nothing.
            let read = finish(start(user.command("state list")));
            let read = Ran::of("state list".to_owned(), read);
            assert!(read.code == Some(0), "seed {seed}, {story:#?}: {read}");
        }
        up = last == UP;
        let went = catch_unwind(AssertUnwindSafe(
            || if up { user.up() } else { user.down() },
        ));
        assert!(went.is_ok(), "seed {seed}, {story:#?}, then {last}");
        story.push(format!("{last}: well"));
        tally.mended.fetch_add(1, Ordering::Relaxed);
        if tally.is_enough() {
            break;
        }
    }
    tally.users.fetch_add(1, Ordering::Relaxed);
    if up {
        user.down();
    }
}

/// Users whose programs are killed, until that was often enough; so many at once, for few kills and for many.
fn kill_often<U: User>(at: &'static str, at_once: (usize, usize), user: impl Fn() -> U + Sync) {
    let asked = variable("STAGELINE_KILLS").map(|kills| kills.parse().expect("a number"));
    let wanted: u32 = asked.unwrap_or(KILLS);
    let by_call = |way: &Way| matches!(way, Way::Call(..));
    let ways: &[Way] = if strace_is_there() {
        &WAYS
    } else {
        eprintln!("`strace` is not installed: kills at random moments and points only");
        let rest = WAYS.iter().position(by_call).expect("they come last");
        &WAYS[..rest]
    };
    let tally = Tally {
        at,
        wanted,
        ways,
        turn: AtomicU32::new(0),
        kills: AtomicU32::new(0),
        mended: AtomicU32::new(0),
        users: AtomicU32::new(0),
        by: Mutex::default(),
    };
    let seeds = AtomicU32::new(0);
    let lives = || {
        while !tally.is_enough() {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            life(&user(), u64::from(seed), &tally);
            // A long run may be cut off: what it did so far is told.
            println!("{}", tally.told());
        }
    };
    std::thread::scope(|scope| {
        let (few, many) = at_once;
        let at_once = if wanted < MANY { few } else { many };
        let all: Vec<_> = (0..at_once).map(|_| scope.spawn(lives)).collect();
        for one in all {
            if let Err(panic) = one.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    println!("{}", tally.told());
}
