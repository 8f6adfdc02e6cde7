//! A worker that cannot run says why in one line, and exits with status 1; and the program's other arguments.

use std::path::Path;
use std::process::Command;

use stageline_core::stage_protocol::{ErrorCode, FromWorker};
use stageline_worker::tiny;

use crate::chain::{PROGRAM, Stage, model};

fn check(stage: &Stage, code: ErrorCode, parts: &[&str]) {
    let mut worker = stage.start();
    match worker.next() {
        Some(FromWorker::Failed {
            code: actual,
            message,
        }) => {
            assert_eq!(actual, code, "{message}");
            for part in parts {
                assert!(message.contains(part), "`{part}` is missing: {message}");
            }
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(worker.close().code(), Some(1));
}

#[test]
fn a_bad_model_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(model()).expect("the tiny model");
    let check = |name: &str, bytes: Option<&[u8]>, parts: &[&str]| {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).expect("the folder is writable");
        }
        check(
            &Stage {
                model: path,
                ..Stage::of(0, 1)
            },
            ErrorCode::BadModel,
            &[&[name], parts].concat(),
        );
    };
    check("missing.gguf", None, &["cannot read", "No such file"]);
    check("empty.gguf", Some(b""), &["is not a GGUF file"]);
    check(
        "page.gguf",
        Some(b"<html>"),
        &["is not a GGUF file", "`<htm`"],
    );
    check(
        "header.gguf",
        Some(&whole[..3000]),
        &["header", "(3000 bytes)", "cut or damaged"],
    );
    let cut = &whole[..whole.len() - 5000];
    check(
        "cut.gguf",
        Some(cut),
        &["is cut", "output.weight", &cut.len().to_string()],
    );
    let foreign = folder.path().join("foreign.gguf");
    tiny::write_foreign(&foreign, "gemma3").expect("the folder is writable");
    check(
        "foreign.gguf",
        None,
        &["architecture `gemma3`", "`llama` only"],
    );
}

#[test]
fn layers_that_do_not_exist_are_named() {
    let stage = |stage, stages, layers: &str| Stage {
        layers: layers.into(),
        ..Stage::of(stage, stages)
    };
    let bad = ErrorCode::BadStage;
    check(
        &stage(0, 1, "0..7"),
        bad.clone(),
        &["layers 0..7", "tiny.gguf", "has 6, 0..6"],
    );
    check(
        &stage(1, 2, "5..3"),
        bad.clone(),
        &["STAGELINE_LAYERS is `5..3`"],
    );
    check(
        &stage(0, 1, "0..5"),
        bad.clone(),
        &["layers 0..5", "the last stage must end", "has 6"],
    );
    check(
        &stage(0, 2, "0..6"),
        bad.clone(),
        &["only the last stage may end"],
    );
    check(
        &stage(2, 2, "3..6"),
        bad,
        &["STAGE is 2 and NUM_STAGES is 2"],
    );
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let mut command = Command::new(PROGRAM);
    command.env("STAGELINE_DEVICE", "cuda:0");
    match Stage::of(0, 1).start_as(command).next() {
        Some(FromWorker::Failed { message, .. }) => assert!(message.contains("CUDA"), "{message}"),
        other => panic!("{other:?}"),
    }
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM)
        .args(arguments)
        .output()
        .expect("the program starts");
    (
        output.status.code(),
        String::from_utf8(output.stdout).expect("text"),
    )
}

#[test]
fn it_describes_itself() {
    let (code, text) = run(&["--describe"]);
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (code, &value["protocol"], &value["missing"]),
        (Some(0), &"stage/1".into(), &serde_json::json!([]))
    );
    assert!(value["level"].is_string());
    assert_eq!(run(&["--wrong"]), (Some(64), String::new()));
}

#[test]
fn the_tiny_model_is_the_same_wherever_it_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    let shown = path.to_str().expect("a plain path");
    assert_eq!(
        run(&["--write-tiny-model", shown]),
        (Some(0), String::new())
    );
    let read = |path: &Path| std::fs::read(path).expect("it was written");
    assert!(read(&path) == read(model()));
    assert!(read(&path).len() < 500_000);
    let (code, text) = run(&["--write-tiny-model", "/nowhere/tiny.gguf"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cannot write `/nowhere/tiny.gguf`"), "{text}");
}
