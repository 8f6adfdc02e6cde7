//! What a process of ours leaves behind when it crashes: no core dump, and in what a panic says no secret.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;

use super::world::{Ran, STUB, World, finish, kill, stopped, until};

const CANARY: &str = "canary-panic/7f3a?b+c d==";

/// The soft limit of core dumps of a running process, in bytes.
fn core_limit(pid: i32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    soft.and_then(|soft| soft.parse().ok()).unwrap_or(u64::MAX)
}

/// One byte at most: nothing as a file, and the one size at which no program that collects dumps gets one.
#[test]
fn no_process_of_ours_may_dump_its_memory() {
    let world = World::new(STUB);
    let mut apply = world.command(["apply", "--auto-approve"]);
    apply
        .env("STAGELINE_TEST_STOP_AT", "20")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let apply = apply.spawn().expect("the binary is there");
    let pid = i32::try_from(apply.id()).expect("a number");
    until("it to stop", || stopped(pid).then_some(()));
    assert!(core_limit(pid) <= 1, "{}", core_limit(pid));
    kill(pid, Signal::CONT);
    Ran::of("apply".to_owned(), finish(apply)).exits(0);
    let processes = world.processes();
    assert!(processes.len() >= 2, "{processes:?}");
    for (pid, command) in &processes {
        if command.contains("agent") {
            assert!(core_limit(*pid) <= 1, "{command}: {}", core_limit(*pid));
        }
    }
    // One of them crashes: it leaves no dump anywhere near.
    let (agent, _) = processes
        .iter()
        .find(|(_, command)| command.contains("agent"))
        .expect("one runs");
    kill(*agent, Signal::ABORT);
    world.apply();
    let dumps = world.files();
    let dumps = dumps.keys().filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "core" || name.starts_with("core.")
    });
    assert_eq!(dumps.count(), 0);
    world.destroy();
}

/// Panics while secrets are in use, with a whole backtrace: what is printed and what is written has none of them.
#[test]
fn a_panic_says_no_secret() {
    let exposures = "\n[exposure.by-env]\npipelines = [\"chat\"]\nlisten = \"127.0.0.1:0\"\nserve = \"openai\"\nvia = \"loopback\"\n\
                     api_key = { env = \"CANARY_KEY\" }\n\n[exposure.by-file]\npipelines = [\"chat\"]\nlisten = \"127.0.0.1:0\"\n\
                     serve = \"openai\"\nvia = \"loopback\"\napi_key = { file = \"key\" }\n";
    let mut panicked = 0;
    for point in (1..).step_by(6) {
        let mut world = World::new(&format!("{STUB}{exposures}"));
        let file = CANARY.replace("panic", "file");
        world.write("key", &file);
        let mode = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(world.join("key"), mode).expect("ours");
        world.set("CANARY_KEY", CANARY);
        world.set("RUST_BACKTRACE", "full");
        let mut apply = world.command(["apply", "--auto-approve", "-vv"]);
        apply
            .env("STAGELINE_TEST_PANIC_AT", point.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ran = Ran::of(
            format!("apply that panics at {point}"),
            finish(apply.spawn().expect("the binary is there")),
        );
        let text = ran.to_string();
        // Made at some point of it.
        let key = std::fs::read_to_string(world.join("state/demo/identity.key"));
        let key = key.unwrap_or_else(|_| "no key yet".to_owned());
        for secret in [CANARY, file.as_str(), key.trim()] {
            assert!(!text.contains(secret), "{text}");
        }
        let over = !text.contains("panicked at");
        if !over {
            panicked += 1;
            assert_ne!(ran.code, Some(0), "{ran}");
        }
        for (path, bytes) in world.files() {
            let own = path.ends_with("key") || path.ends_with("identity.key");
            let text = String::from_utf8_lossy(&bytes);
            assert!(own || !text.contains(CANARY), "{}", path.display());
        }
        world.run("destroy --auto-approve").exits(0);
        if over {
            break;
        }
    }
    assert!(panicked >= 5, "only {panicked}: is the seam still there?");
}
