//! `kill -9` of the real binary at random moments, and, where `strace` is installed, at its n-th sync, link, rename,
//! write, connection, folder or new process: the state can be read, and the next command finishes or ends the job with
//! every machine recorded and none twice. Here the machines are of this computer; `clouds` does the same over HTTP.
//!
//! `STAGELINE_KILLS=500` kills as often; without it a few times.

#![expect(
    clippy::disallowed_methods,
    reason = "the moment of the kill is what is tried"
)]

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use stageline::ambient::variable;

use super::world::{STUB, World, finish, kill};

/// Worlds at once: few beside other tests, many where this is all that runs, since most of it is waiting for the disk.
const AT_ONCE: (usize, usize) = (4, 12);

/// From so many kills on it is many.
const MANY: u32 = 100;

/// Kills, when nobody asks for more.
const KILLS: u32 = 10;

/// Calls to the system at which the process dies, and how many of each a command makes, about, in one thread.
const CALLS: [(&str, u64); 7] = [
    ("fsync", 24),
    ("?link,linkat", 8),
    ("?rename,?renameat,?renameat2", 4),
    ("write", 60),
    ("connect,sendmsg,sendto", 16),
    ("?mkdir,mkdirat,?unlink,unlinkat", 10),
    ("clone,clone3", 6),
];

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
#[derive(Default)]
struct Tally {
    kills: AtomicU32,
    worlds: AtomicU32,
    by: Mutex<BTreeMap<&'static str, u32>>,
}

impl Tally {
    fn told(&self) -> String {
        format!(
            "{} kills in {} worlds, 0 orphans, 0 doubles, 0 unreadable states: {:?}",
            self.kills.load(Ordering::Relaxed),
            self.worlds.load(Ordering::Relaxed),
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
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it is there")
}

/// Runs a command that dies somewhere; says by what, or none when it ended before.
fn die(world: &World, line: &str, draws: &mut Draws, traced: bool) -> Option<&'static str> {
    let args = || line.split_ascii_whitespace();
    if !traced || draws.below(3) == 0 {
        let child = start(world.command(args()));
        let pid = i32::try_from(child.id()).expect("a number");
        std::thread::sleep(Duration::from_millis(draws.below(900)));
        kill(pid, Signal::KILL);
        let died = finish(child).status.signal() == Some(9);
        return died.then_some("some moment");
    }
    let (calls, most) = CALLS[usize::try_from(draws.below(CALLS.len() as u64)).expect("few")];
    let n = 1 + draws.below(most);
    let plain = world.command(args());
    let mut command = Command::new("strace");
    // Machines are other programs: they are let go when they begin.
    command.args(["-f", "-qq", "-b", "execve", "-o", "/dev/null"]);
    command.arg("-e").arg(format!("trace={calls}"));
    command
        .arg("-e")
        .arg(format!("inject={calls}:signal=KILL:when={n}"));
    command.arg(plain.get_program()).args(plain.get_args());
    command.env_clear().stdin(Stdio::null());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(plain.get_current_dir().expect("set"));
    let output = finish(start(command));
    let died = output.status.signal() == Some(9) || output.status.code() == Some(137);
    died.then_some(calls)
}

/// One user whose program keeps being killed: up to four times, then a command that nobody kills.
fn life(seed: u64, rounds: u32, tally: &Tally, traced: bool) {
    let mut draws = Draws(seed);
    let world = World::new(STUB);
    for round in 0..rounds {
        let line = if round % 2 == 0 {
            "apply --auto-approve"
        } else {
            "destroy --auto-approve"
        };
        for _ in 0..=draws.below(4) {
            if let Some(by) = die(&world, line, &mut draws, traced) {
                tally.kills.fetch_add(1, Ordering::Relaxed);
                *tally.by.lock().expect("no panic").entry(by).or_default() += 1;
            }
            // Whatever it left can be read; before the first entry there is nothing.
            let read = world.run("state list");
            assert!(read.code == Some(0), "seed {seed}, round {round}: {read}");
        }
        let went = catch_unwind(AssertUnwindSafe(|| {
            if round % 2 == 0 {
                world.apply();
                world.agrees();
                let next = world.run("plan --detailed-exitcode");
                next.exits(0).says("Nothing to do");
            } else {
                world.destroy();
            }
        }));
        assert!(went.is_ok(), "seed {seed}, round {round}, {line}");
    }
    tally.worlds.fetch_add(1, Ordering::Relaxed);
    if world.machines().is_empty() {
        return;
    }
    world.destroy();
}

#[test]
fn a_kill_at_any_moment_or_call_leaves_no_orphan_and_nothing_twice() {
    let asked = variable("STAGELINE_KILLS").map(|kills| kills.parse().expect("a number"));
    let wanted: u32 = asked.unwrap_or(KILLS);
    let traced = strace_is_there();
    if !traced {
        eprintln!("`strace` is not installed: kills at random moments only");
    }
    let (tally, seeds) = (Tally::default(), AtomicU32::new(0));
    let lives = || {
        while tally.kills.load(Ordering::Relaxed) < wanted {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            life(u64::from(seed), 4, &tally, traced);
            // A long run may be cut off: what it did so far is told.
            println!("{}", tally.told());
        }
    };
    std::thread::scope(|scope| {
        let (few, many) = AT_ONCE;
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
