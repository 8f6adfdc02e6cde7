//! Native workers on machines that the agent is pushed to: looked for before anything is rented, and sent later where one is missing.

use std::path::{Path, PathBuf};

use stageline::sim::Kind;

use super::desk::{Desk, Ran, SPEED, finish};
use super::pushed::desk_of;

/// A program of this build, without what a debugger needs of it: it is sent.
pub(super) fn put(name: &str, folder: &Path) {
    std::fs::create_dir_all(folder).expect("made");
    let whole = Path::new(env!("CARGO_BIN_EXE_stageline")).with_file_name(name);
    let mut strip = std::process::Command::new("strip");
    let status = strip.arg("-o").arg(folder.join(name)).arg(whole).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "strip (binutils) is missing, or {name} was not built"
    );
}

/// Somebody at a desk whose stageline has no worker beside it.
struct Alone {
    desk: Desk,
    folder: PathBuf,
}

impl Alone {
    fn at(kind: Kind) -> Self {
        let desk = desk_of(kind, vec![], 1);
        crate::cli::native::tiny_model(&desk.path("tiny.gguf"));
        let folder = desk.path("bin");
        put("stageline", &folder);
        Self { desk, folder }
    }

    fn run(&self, line: &str) -> Ran {
        let program = self.folder.join("stageline");
        let child = self.desk.command_of(&program, line).spawn();
        finish(child.expect("the binary is there"))
    }

    fn is_native_from_now(&self) {
        self.desk.edit(
            "engine = \"stub\"",
            "engine = \"native\"\nmodel = { path = \"tiny.gguf\" }\ndtype = \"f32\"",
        );
    }
}

#[test]
fn a_native_stage_is_not_rented_for_where_no_build_has_a_worker() {
    let alone = Alone::at(Kind::Lambda);
    alone.is_native_from_now();
    alone
        .run("apply --auto-approve")
        .exits(1)
        .says("stage.chat[0] needs a native worker on lease.node[0]")
        .says("no program that could be pushed there has one beside it")
        .says("STAGELINE_AGENTS")
        .says("nothing was rented");
    assert!(alone.desk.there().is_empty());
    // Another build has one: that one is pushed.
    let builds = alone.folder.join("agents/here");
    put("stageline", &builds);
    put("stageline-worker", &builds);
    alone.run("apply --auto-approve").exits(0);
    alone.run("ask Hello").exits(0);
    alone.run("destroy --auto-approve").exits(0);
    alone.desk.agrees(0);
}

#[test]
fn a_worker_that_a_machine_lacks_is_sent_by_the_next_apply() {
    for kind in [Kind::Lambda, Kind::Vastai] {
        let alone = Alone::at(kind);
        alone.run("apply --auto-approve").exits(0);
        let there = alone.desk.there();
        alone.is_native_from_now();
        alone
            .run("apply --auto-approve")
            .exits(1)
            .says("there is no native worker here")
            .says("put `stageline-worker` beside `stageline` and apply again");
        put("stageline-worker", &alone.folder);
        alone.run("apply --auto-approve").exits(0);
        alone.run("ask Hello").exits(0);
        assert_eq!(alone.desk.there(), there, "no other one was rented");
        alone.run("destroy --auto-approve").exits(0);
        alone.desk.agrees(0);
    }
}

/// A model whose weights are real, over the machines of a cloud: however many share it, the answer is the same.
#[test]
fn a_real_model_is_served_over_machines_of_a_cloud() {
    let desk = Desk::of(Kind::Runpod, vec![], SPEED, 1);
    crate::cli::native::tiny_model(&desk.path("tiny.gguf"));
    desk.edit(
        "engine = \"stub\"",
        "engine = \"native\"\nmodel = { path = \"tiny.gguf\" }\ndtype = \"f32\"",
    );
    desk.run("plan").exits(0).says("from provider");
    let answer = || {
        desk.run("apply --auto-approve").exits(0).says("is up");
        let ran = desk.run("ask --raw --max-tokens 40 Hello");
        ran.exits(0);
        ran.text
    };
    let one = answer();
    assert!(one.trim().len() > 3, "{one}");
    desk.agrees(1);
    desk.edit("count = 1", "count = 2");
    assert_eq!(answer(), one, "two machines, the same answer");
    desk.agrees(2);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}
