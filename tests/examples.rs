//! Every example has its rendered plan in `plans/`, and the plan is what the program draws.
//!
//! `UPDATE_GOLDEN=1` writes the plans anew. What this computer is does not belong into them and is left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use stageline::sim::Kind;

use crate::clouds::host::{self, Host};

/// What an example asks to be told.
const ARGUMENTS: [(&str, &[&str]); 1] = [("command-worker", &["--var", "worker=/opt/worker.py"])];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What a machine of this computer is said to be differs from computer to computer.
fn without_facts(plan: &str) -> String {
    let line = |line: &str| match line.split_once(", offer ") {
        Some((before, after)) if before.trim_start().starts_with("local from provider") => {
            let offer = after.split(':').next().unwrap_or_default();
            format!("{before}, offer {offer}: (this computer)\n")
        }
        // A stand-in for a host has another port each time.
        Some((before, after)) if before.contains("@127.0.0.1:") => {
            let provider = before.split(" from provider ").last().unwrap_or_default();
            let offer = after.split(':').next().unwrap_or_default();
            format!("        (a host) from provider {provider}, offer {offer}: (this computer)\n")
        }
        Some(_) | None => format!("{line}\n"),
    };
    plan.lines().map(line).collect()
}

/// The clouds that examples rent at.
const CLOUDS: [(&str, Kind); 3] = [
    ("vast", Kind::Vastai),
    ("lambda", Kind::Lambda),
    ("runpod", Kind::Runpod),
];

/// What cloud an example rents at: a simulator, the same each time.
fn practice(runtime: &tokio::runtime::Runtime, kind: Kind) -> stageline::sim::Running {
    let options = stageline::sim::Options {
        kind,
        listen: "127.0.0.1:0".parse().expect("an address"),
        faults: stageline::sim::Faults::default(),
        speed: 60,
        seed: 1,
        program: None,
        fetch: false,
    };
    runtime
        .block_on(stageline::sim::start(options))
        .expect("it listens")
}

/// Draws the plan of an example, against a state that is empty.
fn drawn(example: &Path, url: &str, hosts: &[Host]) -> String {
    let fetch = example.join("fetch-model");
    if fetch.exists() {
        let status = Command::new(&fetch).status().expect("the script runs");
        assert!(status.success(), "{} failed", fetch.display());
    }
    let state = tempfile::tempdir().expect("a folder");
    let name = example.file_name().unwrap_or_default();
    let asked = ARGUMENTS.iter().find(|(example, _)| name == *example);
    let port = |n: usize| hosts.get(n).map_or(1, |host| host.port).to_string();
    let key = hosts.first().map(|host| host.path("user"));
    let output = Command::new(env!("CARGO_BIN_EXE_stageline"))
        .args(["plan", "--color", "never", "-f", "topology.toml", "--state"])
        .arg(state.path())
        .args(asked.map(|(_, arguments)| *arguments).unwrap_or_default())
        .current_dir(example)
        .env("COLUMNS", "100")
        .env("STAGELINE_VAR_URL", url)
        .env("STAGELINE_VAR_FIRST", port(0))
        .env("STAGELINE_VAR_SECOND", port(1))
        .env("STAGELINE_VAR_USER", host::user())
        .env("STAGELINE_VAR_KEY", key.unwrap_or_default())
        .env("VAST_API_KEY", "any")
        .env("LAMBDA_API_KEY", "any")
        .env("RUNPOD_API_KEY", "any")
        .output()
        .expect("the program runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", example.display());
    without_facts(&String::from_utf8(output.stdout).expect("a plan is text"))
}

#[test]
fn every_example_has_the_plan_that_is_drawn_for_it() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let clouds = CLOUDS.map(|(example, kind)| (example, practice(&runtime, kind)));
    // Both take the key of the first one.
    let hosts: Vec<Host> = (0..2).filter_map(|_| Host::new()).collect();
    if let [first, second] = &hosts[..] {
        std::fs::copy(first.path("authorized"), second.path("authorized")).expect("copied");
    }
    let mut examples: Vec<PathBuf> = std::fs::read_dir(root().join("examples"))
        .expect("there are examples")
        .map(|entry| entry.expect("a folder").path())
        .filter(|path| path.is_dir())
        .collect();
    examples.sort();
    assert!(examples.len() >= 2, "{examples:?}");
    for example in examples {
        let name = example
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let golden = root().join("plans").join(format!("{name}.txt"));
        let cloud = clouds.iter().find(|(example, _)| *example == name);
        let url = cloud.map_or_else(String::new, |(_, cloud)| cloud.url());
        if name == "ssh" && hosts.len() < 2 {
            continue;
        }
        let drawn = drawn(&example, &url, &hosts);
        #[expect(
            clippy::disallowed_methods,
            reason = "asked for by whoever runs the tests"
        )]
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &drawn).expect("plans/ can be written");
        }
        let kept = std::fs::read_to_string(&golden)
            .unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
        assert_eq!(
            kept,
            drawn,
            "{} is not what is drawn; UPDATE_GOLDEN=1 writes it",
            golden.display()
        );
    }
}
