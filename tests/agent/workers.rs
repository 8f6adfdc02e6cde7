//! Workers that do wrong, each in its own way, and an agent that lives on.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use stageline::core::resource::{EngineSpec, PipelineSpec};
use stageline::core::unit::Millis;
use stageline::machine::{LogSource, Machines, Target, WorkerState};

use super::{World, lease, pipeline, refusal, shell, spec, stage, until};

const READY: &str = r#"echo '{"status":"ready","pid":7,"protocol":"stage/1","hidden_size":4,"layers":[0,1],"vocab":256,"context":512,"dtype":"f32"}'"#;

fn command(argv: &[&str]) -> EngineSpec {
    EngineSpec::Command(argv.iter().map(|&arg| arg.to_owned()).collect())
}

/// Starts a worker and returns why it does not run.
async fn why(world: &World, target: &Target, engine: EngineSpec) -> (String, String) {
    let mut spec = spec(0, 0, 1, engine);
    spec.ready_timeout = Millis(1500);
    let started = world.start(target, 0, &spec).await;
    refusal(started.expect_err("it was to fail"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_become_ready_is_explained() {
    let world = World::new();
    let (agent, target) = world.delivered().await;
    let table = [
        (
            command(&["no-such-program-here"]),
            "worker-missing",
            "`no-such-program-here` does not exist",
        ),
        (
            command(&["/etc/passwd"]),
            "worker-missing",
            "cannot be started",
        ),
        (
            shell("echo hello; sleep 60"),
            "worker-protocol",
            "not a stage/1 message",
        ),
        (
            shell(r"printf '\033[31m\000\001' ; sleep 60"),
            "worker-timeout",
            "not ready within 1s500ms",
        ),
        (
            shell("echo no memory here >&2; exit 3"),
            "worker-exited",
            "exited with status 3 before it was ready; its log ends: no memory here",
        ),
        (shell("kill -9 $$"), "worker-exited", "killed by signal 9"),
        (
            shell(
                r#"echo '{"status":"failed","code":"bad-model","message":"/m is cut at byte 9"}'; exit 1"#,
            ),
            "worker-failed",
            "/m is cut at byte 9 (bad-model)",
        ),
        (
            shell(r#"echo '{"status":"loading","done":0.4,"what":"weights"}'; sleep 60"#),
            "worker-timeout",
            "it was at 40 % of weights",
        ),
        (
            shell(
                r#"echo '{"status":"ready","pid":7,"protocol":"stage/9","hidden_size":4,"layers":[0,1],"vocab":256,"context":512,"dtype":"f32"}'; sleep 60"#,
            ),
            "worker-protocol",
            "stage/9",
        ),
        (
            shell("exec >&-; trap '' TERM; sleep 60"),
            "worker-protocol",
            "closed its stdout",
        ),
    ];
    for (engine, code, part) in table {
        let shown = format!("{engine:?}");
        let (found, message) = why(&world, &target, engine).await;
        assert_eq!(found, code, "{shown}: {message}");
        assert!(message.contains(part), "{shown}: {message}");
        assert!(message.starts_with("stage.llama[0]"), "{message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
        let status = world.status(&target).await;
        let worker = &status.stages[&stage(0)].worker;
        assert!(matches!(worker, WorkerState::Failed { .. }), "{worker:?}");
    }
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_without_a_delivery_is_refused_and_one_under_another_name_is_not() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    let (code, _) = why(&world, &target, EngineSpec::Stub).await;
    assert_eq!(code, "not-delivered");
    world
        .deliver(&[&target], &[&target])
        .await
        .expect("delivered");
    // What its lease is called may have changed since it was made: its key says which machine is meant.
    let renamed = spec(5, 0, 1, EngineSpec::Stub);
    world
        .start(&target, 0, &renamed)
        .await
        .expect("started under another name");
    agent.shutdown().await;
}

fn check() -> PipelineSpec {
    PipelineSpec {
        stages: vec![lease(0)],
        prompt: "Hello".to_owned(),
        max_tokens: 4,
        expect: None,
        request_timeout: Millis::seconds(10),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_at_the_first_request_is_named_and_given_up_in_the_end() {
    let world = World::new();
    let (agent, target) = world.delivered().await;
    let dies = format!("{READY}; read line; echo cannot multiply >&2; exit 4");
    let spec = spec(0, 0, 1, shell(&dies));
    world
        .start(&target, 0, &spec)
        .await
        .expect("ready at first");
    // Ready again after each death, until the budget of two is used up.
    for _ in 0..3 {
        let ask = || async {
            let status = world.status(&target).await;
            let ready = matches!(status.stages[&stage(0)].worker, WorkerState::Ready { .. });
            ready.then_some(())
        };
        until("the worker to be ready", ask).await;
        let answer = world.client.check(&target, &pipeline(), &check()).await;
        let (code, message) = refusal(answer.expect_err("it died"));
        assert_eq!(code, "stage-down", "{message}");
        assert!(message.contains("stage.llama[0]"), "{message}");
        assert!(message.contains("exited with status 4"), "{message}");
        assert!(message.contains("cannot multiply"), "{message}");
    }
    let ask = || async {
        match world.status(&target).await.stages[&stage(0)].worker.clone() {
            WorkerState::Failed { why } => Some(why),
            WorkerState::Loading { .. }
            | WorkerState::Ready { .. }
            | WorkerState::Restarting { .. } => None,
        }
    };
    let why = until("the agent to give up", ask).await;
    assert!(why.contains("given up after 2 restarts"), "{why}");
    // Asked again, it is tried again.
    world.start(&target, 0, &spec).await.expect("ready again");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_after_ready_costs_the_worker_and_not_the_agent() {
    let world = World::new();
    let (agent, target) = world.delivered().await;
    let garbage = format!("{READY}; read line; head -c 3000000 /dev/zero; sleep 60");
    world
        .start(&target, 0, &spec(0, 0, 1, shell(&garbage)))
        .await
        .expect("ready");
    let answer = world.client.check(&target, &pipeline(), &check()).await;
    let (code, message) = refusal(answer.expect_err("garbage"));
    assert_eq!(code, "stage-down", "{message}");
    assert!(message.contains("longer than"), "{message}");
    world
        .client
        .stop(&target, &stage(0))
        .await
        .expect("stopped");
    world
        .client
        .stop(&target, &stage(0))
        .await
        .expect("and again");
    assert!(world.status(&target).await.stages.is_empty());
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sees_its_secrets_and_its_log_does_not() {
    let world = World::new();
    let (agent, target) = world.delivered().await;
    let chatty = format!(
        r"printf '\033[2Jkey=%s of %s\n' $TOKEN $STAGE >&2; {READY}; while read line; do echo more >&2; done"
    );
    let secrets: BTreeMap<_, _> = [("TOKEN".to_owned(), "canary-77".to_owned().into())].into();
    world
        .client
        .start(&target, &stage(0), &spec(0, 0, 1, shell(&chatty)), secrets)
        .await
        .expect("ready");
    let source = LogSource::Stage(stage(0));
    let mut log = world
        .client
        .logs(&target, source.clone(), 1 << 20, true)
        .await
        .expect("a log");
    let first = log.next().await.expect("something").expect("readable");
    assert_eq!(String::from_utf8_lossy(&first), "key=*** of 0\n");
    // What comes later follows: any request makes it write.
    let check = check();
    let (pipeline, _) = (pipeline(), ());
    let mut request = Box::pin(world.client.check(&target, &pipeline, &check));
    tokio::select! {
        more = log.next() => {
            let more = more.expect("something").expect("readable");
            assert_eq!(String::from_utf8_lossy(&more), "more\n");
        }
        answer = &mut request => panic!("it never answers: {answer:?}"),
    }
    drop(request);
    let on_disk = std::fs::read(world.folder(0).join("workers/llama-0.log")).expect("there");
    assert!(!String::from_utf8_lossy(&on_disk).contains("canary"));
    let says =
        shell(r#"printf '{"status":"failed","code":"internal","message":"%s"}\n' $TOKEN; exit 1"#);
    let secrets: BTreeMap<_, _> = [("TOKEN".to_owned(), "canary-77".to_owned().into())].into();
    let says = spec(0, 0, 1, says);
    let started = world.client.start(&target, &stage(0), &says, secrets).await;
    let (_, message) = refusal(started.expect_err("it says so"));
    assert!(
        message.contains("***") && !message.contains("canary"),
        "{message}"
    );
    let unknown = LogSource::Stage(stage(9));
    let error = world.client.logs(&target, unknown, 9, false).await;
    let (code, _) = refusal(error.err().expect("no such stage"));
    assert_eq!(code, "unknown-stage");
    agent.shutdown().await;
}
