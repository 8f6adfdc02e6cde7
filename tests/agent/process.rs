//! An agent as a process of its own: how it ends, and what it leaves behind when it is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stageline::agent::Folder;
use stageline::agent::process::{WorkerMark, started};
use stageline::machine::{Machines, Target, WorkerState};

use super::leased::carriers;
use super::{World, refusal, shell, spec, stage, until};

fn spawn(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_stageline"))
        .args(["agent", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawned")
}

async fn target(world: &World) -> Target {
    let folder = Folder::new(world.folder(0));
    let told = || async { folder.read_contact().ok().flatten() };
    world.target(0, until("the agent to listen", told).await)
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("sent");
}

async fn status_of(child: &mut Child) -> std::process::ExitStatus {
    let deadline = tokio::time::Instant::now() + super::PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("ours") {
            return status;
        }
        assert!(tokio::time::Instant::now() < deadline, "it does not end");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn mark(world: &World) -> WorkerMark {
    let path = world.folder(0).join("workers/llama-0.pid");
    serde_json::from_slice(&std::fs::read(path).expect("there")).expect("a mark")
}

fn is_alive(mark: &WorkerMark) -> bool {
    started(mark.pid).is_some_and(|at| Some(at) == mark.started)
}

/// A worker that obeys nothing but KILL, with a child that does the same.
const STUBBORN: &str = r#"trap '' TERM INT HUP; (trap '' TERM; sleep 600) & echo '{"status":"ready","pid":7,"protocol":"stage/1","hidden_size":4,"layers":[0,1],"vocab":256,"context":512,"dtype":"f32"}'; while :; do sleep 600; done"#;

async fn with_worker(world: &World) -> (Child, Target, WorkerMark) {
    let child = spawn(&world.folder(0));
    let target = target(world).await;
    world
        .deliver(&[&target], &[&target])
        .await
        .expect("delivered");
    let spec = spec(0, 0, 1, shell(STUBBORN));
    world.start(&target, 0, &spec).await.expect("ready");
    let mark = mark(world);
    assert!(is_alive(&mark));
    (child, target, mark)
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_to_end_it_ends_its_workers_and_exits_well() {
    let world = World::new();
    let (mut child, _, mark) = with_worker(&world).await;
    send(&child, Signal::HUP);
    send(&child, Signal::INT);
    let target = target(&world).await;
    world.status(&target).await;
    send(&child, Signal::TERM);
    assert!(status_of(&mut child).await.success());
    assert!(!is_alive(&mark));
    assert!(!world.folder(0).join("agent.addr").exists());
    let log = std::fs::read_to_string(world.folder(0).join("agent.log")).expect("a log");
    assert!(log.contains("told to end"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_it_leaves_nothing_that_the_next_agent_does_not_end() {
    let world = World::new();
    let (mut child, _, mark) = with_worker(&world).await;
    child.kill().expect("killed");
    child.wait().expect("reaped");
    // Nobody ends it but the kernel: it ignores the end of its stdin and every signal that can be ignored.
    let gone = || async { (!is_alive(&mark)).then_some(()) };
    until("the worker to die with its agent", gone).await;
    // What the worker started itself is out of the kernel's reach.
    let left = || async { (carriers(world.dir.path()) == 0).then_some(()) };
    assert!(left().await.is_none(), "the worker had a child");
    let before = target(&world).await.contact;
    let mut child = spawn(&world.folder(0));
    // The address of the killed agent is still there until the next one has begun.
    until("the worker's child to be ended", left).await;
    let listens = || async {
        let target = target(&world).await;
        world.client.status(&target).await.ok()
    };
    let status = until("the next agent to answer", listens).await;
    assert!(status.stages.is_empty(), "it starts with no worker");
    assert_eq!(status.deliveries.len(), 1, "it knows what was delivered");
    assert_eq!(
        target(&world).await.contact,
        before,
        "its neighbours find it where it was"
    );
    send(&child, Signal::TERM);
    assert!(status_of(&mut child).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_started_again_and_the_agent_stays() {
    let world = World::new();
    let (mut child, target, mark) = with_worker(&world).await;
    kill_process(Pid::from_raw(mark.pid).expect("a pid"), Signal::KILL).expect("sent");
    let again = || async {
        let status = world.status(&target).await;
        match status.stages[&stage(0)].worker {
            WorkerState::Ready { pid } => (i32::try_from(pid) != Ok(mark.pid)).then_some(()),
            WorkerState::Loading { .. }
            | WorkerState::Restarting { .. }
            | WorkerState::Failed { .. } => None,
        }
    };
    until("another worker", again).await;
    assert!(!is_alive(&mark));
    send(&child, Signal::TERM);
    assert!(status_of(&mut child).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_in_one_folder_says_why_it_does_not_run() {
    let world = World::new();
    let (agent, _) = world.agent(0).await;
    let output = spawn(&world.folder(0)).wait_with_output().expect("ended");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("another agent"), "{said}");
    agent.shutdown().await;
    // Nothing was delivered and nothing runs: the refusal is a clear one.
    let (agent, target) = world.agent(0).await;
    let spec = spec(0, 0, 1, shell("true"));
    let error = world
        .start(&target, 0, &spec)
        .await
        .expect_err("nothing there");
    assert_eq!(refusal(error).0, "not-delivered");
    agent.shutdown().await;
}
