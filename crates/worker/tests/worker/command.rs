//! The example of a worker in another language.

use std::path::Path;
use std::process::Command;

use stageline_core::stage_protocol::{Dtype, ErrorCode, Finish, RequestNumber, ToWorker};
use stageline_core::topology::{Engine, SourceFile, VarSources, read};

use crate::chain::{Answer, Chain, Stage, Worker, greedy, text};

fn start(stage: u32, stages: u32, dtype: Dtype) -> Worker {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/command-worker/worker.py");
    let mut command = Command::new("python3");
    command.arg(script);
    Stage {
        dtype,
        context: Some(100),
        ..Stage::of(stage, stages)
    }
    .start_as(command)
}

fn ask(stages: u32, dtype: Dtype) -> Answer {
    let workers = (0..stages)
        .map(|stage| start(stage, stages, dtype))
        .collect();
    let mut chain = Chain::of(workers);
    let answer = chain.ask(1, text("Hello"), &greedy(9));
    for worker in chain.workers {
        assert!(worker.close().success());
    }
    answer
}

#[test]
fn the_example_worker_answers_however_it_is_split() {
    let unsplit = ask(1, Dtype::F32);
    assert_eq!(
        (unsplit.tokens.len(), unsplit.finish, unsplit.prompt_tokens),
        (9, Finish::Length, 5)
    );
    // `o` at position 4 after six layers, and so on.
    assert_eq!(
        unsplit.text().chars().next(),
        Some(char::from(b'a' + (b'o' + 4 + 6) % 26))
    );
    for (stages, dtype) in [
        (1, Dtype::Bf16),
        (2, Dtype::F32),
        (2, Dtype::Bf16),
        (3, Dtype::Bf16),
    ] {
        assert_eq!(ask(stages, dtype), unsplit, "{stages} stages, {dtype:?}");
    }
}

#[test]
fn the_example_worker_survives_mistakes() {
    let mut worker = start(0, 1, Dtype::Bf16);
    worker.ready();
    let id = RequestNumber(1);
    worker.send(&ToWorker::Token {
        id,
        token: 1,
        position: 1,
    });
    assert_eq!(worker.error().1, ErrorCode::UnknownRequest);
    worker.send_bytes(b"hello\n");
    assert_eq!(worker.error().1, ErrorCode::BadRequest);
    worker.send(&ToWorker::Start {
        id,
        prompt: text(&"x".repeat(100)),
        sampling: greedy(1),
    });
    assert_eq!(worker.error().1, ErrorCode::ContextOverflow);
    worker.send(&ToWorker::Start {
        id,
        prompt: text("x"),
        sampling: greedy(1),
    });
    assert_eq!(worker.token().finish, Some(Finish::Length));
}

#[test]
fn the_example_topology_names_the_example_worker() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/command-worker/topology.toml");
    let bytes = std::fs::read(path).expect("the example is there");
    let file = SourceFile::from_bytes("topology.toml", bytes).expect("text");
    let vars = VarSources {
        cli: vec![("worker".into(), "/opt/worker.py".into())],
        ..VarSources::default()
    };
    let (topology, warnings) = read(&[file], &vars).unwrap_or_else(|errors| panic!("{errors:?}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let engines: Vec<_> = topology
        .pipelines
        .values()
        .map(|pipeline| &pipeline.engine)
        .collect();
    assert_eq!(
        engines,
        [&Engine::Command(vec![
            "python3".into(),
            "/opt/worker.py".into()
        ])]
    );
}
