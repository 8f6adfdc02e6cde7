//! The program as a process: start-up, and `plan` over many leases. Processor time and the most memory of each child.
//!
//! Every figure is the least of several runs, since a busy computer only ever adds. Children are measured by the
//! difference of what the kernel accounts for ended children; the most memory is that of the largest one so far, so the
//! cases come in rising order.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;

const RUNS: usize = 7;

fn usage() -> Usage {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("the kernel counts children")
}

fn span(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or_default())
}

fn cpu() -> Duration {
    let usage = usage();
    span(usage.user_time()) + span(usage.system_time())
}

/// Runs the program and prints the least processor time that it took.
fn case(name: &str, folder: &Path, arguments: &[&str]) {
    let mut least = Duration::MAX;
    for _ in 0..RUNS {
        let before = cpu();
        let status = Command::new(env!("CARGO_BIN_EXE_stageline"))
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::null())
            .status()
            .expect("the program runs");
        assert!(status.success(), "{arguments:?}: {status}");
        least = least.min(cpu() - before);
    }
    let most = usage().max_rss() / 1024;
    println!(
        "{name:<44} {:>8.1} ms CPU {most:>6} MiB at most so far",
        least.as_secs_f64() * 1000.0
    );
}

/// One `local` provider has at most 1,024 slots, so there are as many providers as that takes.
fn topology(folder: &Path, leases: usize) {
    let providers = leases.div_ceil(1024);
    let mut text = "version = 1\nname = \"bench\"\n".to_owned();
    for n in 0..providers {
        text.push_str(&format!(
            "[provider.here{n}]\nkind = \"local\"\nslots = 1024\n[offer.any{n}]\nprovider = \"here{n}\"\n"
        ));
    }
    let offers: Vec<String> = (0..providers).map(|n| format!("\"any{n}\"")).collect();
    text.push_str(&format!(
        "[lease.box]\noffers = [{}]\ncount = {leases}\n",
        offers.join(", ")
    ));
    std::fs::write(folder.join("topology.toml"), text).expect("a folder");
}

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    case("version", folder.path(), &["version"]);
    for leases in [1_000, 10_000] {
        topology(folder.path(), leases);
        let name = format!("plan --no-refresh, {leases} leases, empty state");
        case(&name, folder.path(), &["plan", "--no-refresh"]);
    }
}
