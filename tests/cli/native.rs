//! The native worker on a tiny model: however it is split, the answer is the same, and a model that cannot be used is
//! found while planning.

use std::path::Path;
use std::process::Command;

use super::world::World;

pub(super) const TINY: &str = r#"
version = 1
name = "tiny"

[provider.here]
kind = "local"
slots = 8

[offer.small]
provider = "here"

[lease.node]
offers = ["small"]
count = 2

[pipeline.chat]
model = { path = "tiny.gguf" }
dtype = "f32"
stages = [
  { on = "lease.node[0]", layers = "0..3" },
  { on = "lease.node[1]", layers = "3..6" },
]
"#;

const STAGES: &str = r#"stages = [
  { on = "lease.node[0]", layers = "0..3" },
  { on = "lease.node[1]", layers = "3..6" },
]"#;

/// Writes the tiny model there.
pub(crate) fn tiny_model(path: &Path) {
    let worker = Path::new(env!("CARGO_BIN_EXE_stageline")).with_file_name("stageline-worker");
    assert!(
        worker.exists(),
        "{} is not there: build it first with `cargo build -p stageline-worker`",
        worker.display()
    );
    let status = Command::new(worker)
        .arg("--write-tiny-model")
        .arg(path)
        .status();
    assert!(status.expect("it runs").success());
}

/// A folder with the tiny model and this topology.
fn world(topology: &str) -> World {
    let world = World::new(topology);
    tiny_model(&world.join("tiny.gguf"));
    world
}

/// Greedy answers to a few prompts.
fn answers(world: &World) -> Vec<String> {
    let prompts = ["a", "hello there", "The quick brown fox"];
    let ask = |prompt: &&str| {
        let ran = world.run_args(["ask", "--raw", "--max-tokens", "40", prompt]);
        ran.exits(0);
        ran.out
    };
    prompts.iter().map(ask).collect()
}

#[test]
fn any_number_of_stages_gives_the_same_tokens() {
    let world = world(&TINY.replace(STAGES, "stages = { on = \"lease.node\", split = \"auto\" }"));
    world.edit("count = 2", "count = 1");
    world.apply();
    let one = answers(&world);
    assert!(one.iter().all(|answer| answer.trim().len() > 3), "{one:?}");
    for (before, now) in [(1, 2), (2, 3), (3, 5)] {
        world.edit(&format!("count = {before}"), &format!("count = {now}"));
        world.apply();
        world.agrees();
        assert_eq!(world.machines().len(), now);
        assert_eq!(answers(&world), one, "{now} stages");
    }
    world.destroy();
}

#[test]
fn several_stages_on_one_machine_and_other_layers() {
    let world = world(TINY);
    world.apply();
    let two = answers(&world);
    let machines = world.machines();

    world.edit("0..3", "0..2");
    world.edit("3..6", "2..6");
    let plan = world.run("plan");
    plan.exits(0)
        .says("~ stage.chat[0] update")
        .says("~ stage.chat[1] update")
        .says_not("lease.node[0] replace");
    plan.says_not("lease.node[0..2] replace")
        .says_not("to create");
    world.apply();
    assert_eq!(world.machines(), machines, "no lease is replaced");
    assert_eq!(answers(&world), two, "other layers, the same answer");

    let crowded = r#"stages = [
  { on = "lease.node[0]", layers = "0..1" },
  { on = "lease.node[1]", layers = "1..3" },
  { on = "lease.node[0]", layers = "3..4" },
  { on = "lease.node[0]", layers = "4..6" },
]"#;
    world.write("topology.toml", TINY.replace(STAGES, crowded));
    world.apply();
    world.run("status").exits(0).says("stage.chat[3]  ok");
    assert_eq!(world.machines(), machines);
    assert_eq!(answers(&world), two, "four stages on two machines");
    world.destroy();
}

#[test]
fn a_prompt_longer_than_the_context() {
    let world = world(TINY);
    world.apply();
    world.write("long.txt", "hello ".repeat(2000));
    let ran = world.run_args(["ask", &world.read("long.txt")]);
    ran.exits(1)
        .says("pipeline.chat")
        .says("tokens and the context 512")
        .says("hint:");
    answers(&world);
    world.run("status").exits(0);
    world.destroy();
}

#[test]
fn a_model_that_cannot_be_used_is_found_while_planning() {
    let world = world(TINY);
    let whole = std::fs::read(world.join("tiny.gguf")).expect("there");
    let model = |bytes: &[u8]| world.write("bad.gguf", bytes);
    let refused = |from: &str, to: &str, what: &[&str]| {
        world.write("topology.toml", TINY);
        world.edit(from, to);
        for line in ["plan", "apply --auto-approve"] {
            let ran = world.run(line);
            ran.exits(1).says("hint:");
            for text in what {
                ran.says(text);
            }
        }
        assert!(!world.join("state").exists(), "nothing was begun");
    };
    refused(
        "tiny.gguf",
        "absent.gguf",
        &["model/missing", "pipeline.chat", "absent.gguf"],
    );
    model(&whole[..whole.len() / 2]);
    refused(
        "tiny.gguf",
        "bad.gguf",
        &["model/cut", "pipeline.chat", "bad.gguf"],
    );
    model(&whole[..100]);
    refused("tiny.gguf", "bad.gguf", &["model/cut", "bad.gguf"]);
    model(b"hello");
    refused("tiny.gguf", "bad.gguf", &["model/not-gguf", "bad.gguf"]);
    let mut foreign = whole.clone();
    let at = foreign
        .windows(5)
        .position(|five| five == b"llama")
        .expect("it says so");
    foreign[at..at + 5].copy_from_slice(b"mamba");
    model(&foreign);
    refused(
        "tiny.gguf",
        "bad.gguf",
        &["model/unknown-architecture", "mamba", "llama"],
    );
    let wrong = format!("tiny.gguf\", sha256 = \"{}", "0".repeat(64));
    refused(
        "tiny.gguf",
        &wrong,
        &["model/digest", "pipeline.chat", "tiny.gguf"],
    );
    refused(
        "3..6",
        "3..9",
        &[
            "plan/layers",
            "stage.chat[1]",
            "out of range",
            "the model has 6",
        ],
    );
    refused(
        "3..6",
        "3..5",
        &["plan/layers", "layers 5..6 of its model are on no stage"],
    );
    refused(
        "3..6",
        "2..6",
        &["topology/layers-overlap", "topology.toml:21"],
    );
    refused("3..6", "4..6", &["topology/layers-gap", "topology.toml:21"]);
}
