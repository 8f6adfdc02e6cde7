//! Eight leases at each cloud's simulator, at its real rate limits and by the real clock: how long `apply` takes against the least time
//! that the limits and the boots allow, how many requests each lease costs, and how soon it is noticed that a machine is gone.
//!
//! The least time: eight creates, as far apart as the provider allows, and the boot of the last one. What comes before the first
//! create (the plan with its search, the run's beginning) and after the last boot (the agents' answers, deliveries, stages, the check) is
//! ours, and in the figure. A request that came too soon fails the run.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stageline::ambient::{Clock as _, SystemClock};
use stageline::sim::{self, Faults, Kind, Options, Running};

/// How many leases.
const COUNT: u32 = 8;

/// A simulated boot: 5 s until there is a machine, 40 s until it runs.
const BOOT: Duration = Duration::from_secs(45);

/// Until every machine is older than the listing of a cloud may lag.
const LISTED: Duration = Duration::from_secs(125);

/// A cloud: least seconds between two creates, how its offer is written, which variable has its key.
struct Cloud {
    kind: Kind,
    apart: f64,
    offer: &'static str,
    key: &'static str,
}

const CLOUDS: [Cloud; 3] = [
    Cloud {
        kind: Kind::Vastai,
        apart: 4.5,
        offer: "where = \"gpu=any\"\nimage = \"stageline/agent:1\"",
        key: "VAST_API_KEY",
    },
    Cloud {
        kind: Kind::Lambda,
        apart: 12.0,
        offer: "where = \"gpu=any\"",
        key: "LAMBDA_API_KEY",
    },
    // 60 requests a minute: eight creates need no distance.
    Cloud {
        kind: Kind::Runpod,
        apart: 0.0,
        offer: "where = \"gpu=any\"\nimage = \"stageline/agent:1\"",
        key: "RUNPOD_API_KEY",
    },
];

fn topology(cloud: &Cloud, url: &str) -> String {
    let offer = cloud.offer;
    // Where machines do not end themselves, nobody does: that is no matter here.
    let unguarded = "unguarded = true";
    format!(
        r#"
version = 1
name = "eight"
[provider.cloud]
kind = "{}"
url = "{url}"
[offer.gpu]
provider = "cloud"
{offer}
[lease.node]
offers = ["gpu"]
count = {COUNT}
{unguarded}
[pipeline.chat]
engine = "stub"
stages = {{ on = "lease.node", split = "auto" }}
[exposure.api]
pipelines = ["chat"]
listen = "127.0.0.1:0"
"#,
        cloud.kind.as_str()
    )
}

fn command(cloud: &Cloud, folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
    command
        .args(line.split_ascii_whitespace())
        .current_dir(folder)
        .env(cloud.key, "rehearsal-key-of-a-bench")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end.
fn run(cloud: &Cloud, folder: &Path, line: &str) -> Duration {
    let began = Instant::now();
    let output = command(cloud, folder, line).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}");
    began.elapsed()
}

fn requests(running: &Running) -> std::collections::BTreeMap<&'static str, u64> {
    let inner = running.world.lock();
    assert_eq!(inner.too_soon, 0, "requests came too soon");
    inner.requests.clone()
}

/// From the moment that a machine is lost until the watcher says so.
fn noticed(cloud: &Cloud, folder: &Path, running: &Running) -> Duration {
    let mut watch = command(cloud, folder, "watch").spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stderr.take().expect("piped")).lines();
    let mut next = || lines.next().expect("it goes on").expect("text");
    while !next().contains("watching `eight`") {}
    // By the provider's console, as it were.
    let lost = Instant::now();
    {
        let now = running.world.clock.now();
        let mut inner = running.world.lock();
        let mut there = inner.machines.values_mut();
        let machine = there.find(|machine| machine.is_there(now));
        machine.expect("there are eight").gone_from = Some(now);
    }
    while !next().contains("is gone by the provider's listing") {}
    let took = lost.elapsed();
    watch.kill().expect("ours");
    watch.wait().expect("ours");
    took
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // `-- runpod`: that one alone.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |cloud: &Cloud| {
        let named = wanted.iter().filter(|word| !word.starts_with('-'));
        let mut named = named.peekable();
        named.peek().is_none() || named.any(|word| word == cloud.kind.as_str())
    };
    for cloud in CLOUDS.into_iter().filter(is_wanted) {
        let options = Options {
            kind: cloud.kind,
            listen: "127.0.0.1:0".parse().expect("an address"),
            faults: Faults::new(Vec::new(), 7),
            speed: 1,
            seed: 7,
            program: Some(Path::new(env!("CARGO_BIN_EXE_stageline")).to_owned()),
            fetch: false,
        };
        let running = runtime.block_on(sim::start(options)).expect("it listens");
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(
            dir.path().join("topology.toml"),
            topology(&cloud, &running.url()),
        )
        .expect("written");
        let took = run(&cloud, dir.path(), "apply --auto-approve").as_secs_f64();
        let mut sent = requests(&running);
        // Where one limit is for all, that is counted beside each.
        sent.remove("all");
        let least = f64::from(COUNT - 1) * cloud.apart + BOOT.as_secs_f64();
        let each: Vec<String> = sent
            .iter()
            .map(|(endpoint, count)| format!("{endpoint} {count}"))
            .collect();
        let all: u64 = sent.values().sum();
        println!(
            "{:>7}: apply of {COUNT} leases {took:.1} s, at least {least:.1} s: {:.3} x; {:.1} requests a lease ({})",
            cloud.kind.as_str(),
            took / least,
            f64::from(u32::try_from(all).expect("few")) / f64::from(COUNT),
            each.join(", ")
        );
        let plan = run(&cloud, dir.path(), "plan");
        // What is younger than a listing may lag is not called gone because it is not listed.
        runtime.block_on(SystemClock.sleep(LISTED));
        let seen = noticed(&cloud, dir.path(), &running);
        println!(
            "         a look (`plan`) takes {:.1} s; the watcher says that a machine is gone after {:.1} s",
            plan.as_secs_f64(),
            seen.as_secs_f64()
        );
        run(&cloud, dir.path(), "destroy --auto-approve");
        runtime.block_on(running.stop());
    }
}
