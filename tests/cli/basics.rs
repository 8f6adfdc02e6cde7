//! The ordinary life of a topology: each command does what its help says, twice is once, and nothing is left.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::world::{Ran, STUB, World};

fn url(applied: &Ran) -> &str {
    let line = applied
        .out
        .lines()
        .find(|line| line.starts_with("exposure.api: "));
    line.unwrap_or_else(|| panic!("{applied}"))
        .trim_start_matches("exposure.api: ")
}

#[test]
fn a_whole_life() {
    let world = World::empty();
    world.run("init").exits(0).says("wrote topology.toml");
    world.edit("127.0.0.1:8080", "127.0.0.1:0");
    world.run("validate").exits(0).says("my-topology: valid");
    world
        .run("plan --detailed-exitcode")
        .exits(2)
        .says("Plan: 8 to create.");
    assert!(!world.join("state").exists(), "a plan writes nothing");

    let applied = world.apply();
    applied
        .says("lease.node[1]: ready")
        .says("pipeline.chat: answers");
    assert!(url(&applied).starts_with("http://127.0.0.1:"), "{applied}");
    world.agrees();
    world
        .run("apply --auto-approve")
        .exits(0)
        .says("Nothing to do");
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");

    everything_is_shown(&world);
    let body = r#"{"model":"chat","prompt":"Hello","max_tokens":4}"#;
    let answer = post(&format!("{}/completions", url(&applied)), body);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("completion_tokens"),
        "{answer}"
    );

    world.destroy();
    world.destroy().says("Nothing to do");
    let state = world.join("state/my-topology");
    let elsewhere = |path: &&std::path::PathBuf| !path.starts_with(&state);
    let outside: Vec<_> = world.files().into_keys().collect();
    let outside: Vec<_> = outside.iter().filter(elsewhere).collect();
    assert_eq!(
        outside,
        [&world.join("topology.toml")],
        "no file outside the state"
    );
    world.run("leases").exits(0).says("ended");
    world.run("status").exits(0).says("nothing is deployed");
    world.run("apply --auto-approve").exits(0);
    world.destroy();
}

/// Every command that only looks, on a topology that is up.
fn everything_is_shown(world: &World) {
    let status = world.run("status");
    status
        .exits(0)
        .says("stage.chat[1]  ok")
        .says_not("BROKEN")
        .says_not("unknown");
    let answer = world.run_args(["ask", "Hello there"]);
    assert!(answer.exits(0).out.trim().len() > 3, "{answer}");
    assert_eq!(
        answer.out,
        world.run_args(["ask", "Hello there"]).out,
        "greedy is repeatable"
    );
    let leases = world.run("leases");
    leases.exits(0).says("lease.node[0]").says("ready");
    world.run("show").exits(0).says("pipeline.chat");
    world.run("state list").exits(0).says("exposure.api");
    world
        .run("state show stage.chat[0]")
        .exits(0)
        .says("stage.chat[0]");
    let state = world.run("state pull").exits(0).json();
    assert!(state.to_string().contains("stage.chat[0]"), "{state}");
    world
        .run("logs lease.node[0]")
        .exits(0)
        .says("the agent listens");
    world.run("logs stage.chat[0]").exits(0);
    world
        .run("graph")
        .exits(0)
        .says("digraph")
        .says("\"pipeline.chat\" -> \"stage.chat[1]\";");
    world
        .run("graph --format mermaid")
        .exits(0)
        .says("graph LR");
}

/// One request as any program would send it.
fn post(url: &str, body: &str) -> String {
    let rest = url.strip_prefix("http://").expect("an http URL");
    let (host, path) = rest.split_once('/').expect("a path");
    let mut stream = TcpStream::connect(host).expect("it listens");
    let length = body.len();
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn the_example_with_a_worker_of_ones_own() {
    let world = World::empty();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/command-worker");
    let (topology, worker) = (example.join("topology.toml"), example.join("worker.py"));
    let run = |command: &[&str]| {
        let (worker, state) = (format!("worker={}", worker.display()), world.join("state"));
        let file = topology.to_str().expect("a text");
        let state = state.to_str().expect("a text");
        let with = ["-f", file, "--var", &worker, "--state", state];
        let ran = world.run_args(command.iter().copied().chain(with));
        ran.exits(0);
        ran
    };
    run(&["apply", "--auto-approve"]).says("pipeline.toy: answers");
    world.agrees_with("--name command-worker");
    let answer = run(&["ask", "--max-tokens", "5", "Hello"]);
    assert_eq!(answer.out.trim().len(), 5, "{answer}");
    run(&["destroy", "--auto-approve"]).says("0 left at providers");
    world.is_clean();
}

#[test]
fn what_needs_no_topology() {
    let world = World::empty();
    world.run("version").exits(0).says("stageline 0.");
    assert!(world.run("version --json").exits(0).json()["version"].is_string());
    world.run("--help").exits(0).says("Usage: stageline");
    world
        .run("plan --help")
        .exits(0)
        .says("--detailed-exitcode");
    world
        .run("completions bash")
        .exits(0)
        .says("complete -F _stageline");
    world.run("explain lease.count").exits(0).says("count");
    let near = world.run("explain lease.cout");
    near.exits(1)
        .says("there is no key `lease.cout`")
        .says("did you mean lease.NAME.count");
    for of in ["topology", "plan", "state"] {
        let schema = world.run(&format!("schema {of}")).exits(0).json();
        assert!(schema["$schema"].is_string(), "{schema}");
    }
    assert!(world.files().is_empty(), "none of these writes");
}

/// Runs the binary on a terminal of 80 columns: stdout and stderr come together.
fn on_a_terminal(world: &World, line: &str) -> Ran {
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let binary = world.command([]);
    let mut command = std::process::Command::new("python3");
    let env = binary
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    command
        .args(["-c", spawn])
        .arg(binary.get_program())
        .args(line.split_ascii_whitespace())
        .env_clear()
        .envs(env)
        .env("COLUMNS", "80")
        .current_dir(world.path())
        .stdin(std::process::Stdio::null());
    Ran::of(line.to_owned(), command.output().expect("python3 is there"))
}

#[test]
fn messages_are_wrapped_on_a_terminal_and_only_there() {
    let world = World::new(STUB);
    world.apply();
    world.edit("[lease.node]", "[lease.box]");
    let lines = [
        "validate",
        "-f no-such-folder/topology.toml plan",
        "apply no-such-folder-at-all/second.plan.json",
        "--state nope://bucket/prefix plan",
    ];
    for line in lines {
        let line = format!("--color never {line}");
        let piped = world.run(&line);
        let shown = on_a_terminal(&world, &line);
        assert_eq!(shown.code, piped.code, "{shown}");
        let broken = shown.out.lines().find(|line| line.chars().count() > 80);
        assert!(broken.is_none(), "{shown}");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&shown.out), words(&piped.err), "the same is said");
        assert!(
            piped.err.lines().any(|line| line.starts_with("hint: ")),
            "{piped}"
        );
        let hints = piped.err.lines().filter(|line| line.starts_with("hint: "));
        for command in hints.flat_map(|hint| hint.split('`').skip(1).step_by(2)) {
            assert!(shown.out.contains(command), "`{command}` is whole: {shown}");
        }
    }
    world.edit("[lease.box]", "[lease.node]");
    world.destroy();
}
