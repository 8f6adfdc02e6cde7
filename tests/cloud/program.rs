//! The program with its state in a bucket: a whole life, a colleague on another computer, and two computers at once.

use std::process::Stdio;

use rustix::process::Signal;

use super::servers::{Kind, Server, asks};
use crate::cli::world::{Ran, STUB, World, finish, kill, stopped, until};

/// A user whose state is on that server.
fn world(kind: Kind, server: &Server) -> (World, String) {
    let url = kind.url();
    let mut world = World::new(&format!("{STUB}\n[state]\nurl = \"{url}\"\n"));
    for (name, value) in kind.variables(server.port) {
        world.set(&name, &value);
    }
    (world, url)
}

#[test]
fn a_life_with_the_state_in_a_bucket() {
    for kind in [Kind::S3, Kind::Azure] {
        let Some(server) = kind.server() else {
            continue;
        };
        let (world, url) = world(kind, &server);
        world.run("plan --detailed-exitcode").exits(2);
        world.apply();
        world.agrees();
        world
            .run("plan --detailed-exitcode")
            .exits(0)
            .says("Nothing to do");
        world.run("state list").exits(0).says("lease.node[0]");
        world.run("ask hello").exits(0);
        assert!(
            !world.join("state/demo/journal").exists(),
            "the state is not here"
        );
        // One key, in the user's own folder; and the variables are nowhere.
        let keys = std::fs::read_dir(world.join(".local/state/stageline/keys"));
        assert_eq!(keys.expect("it is there").count(), 1);
        for (path, bytes) in world.files() {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains("secret-canary-1"), "{}", path.display());
        }
        if kind == Kind::S3 {
            let prefix = url.trim_start_matches("s3://state/");
            let line = format!("GET /state?list-type=2&prefix={prefix}/ HTTP/1.1");
            let listed = asks(server.port, &line, &[]);
            assert!(
                listed.contains("/demo/journal/000000000001.json"),
                "{listed}"
            );
            assert!(
                !listed.contains("identity") && !listed.contains(".key"),
                "{listed}"
            );
        }
        world.destroy();
        // Without the topology, by name.
        world
            .run(&format!("destroy --auto-approve --state {url} --name demo"))
            .exits(0);
    }
}

#[test]
fn a_colleague_without_the_identity_may_look_and_end_and_is_told_what_to_ask_for() {
    let Some(server) = Kind::S3.server() else {
        return;
    };
    let (mut world, _) = world(Kind::S3, &server);
    world.apply();
    let home = world.join("colleague");
    std::fs::create_dir(&home).expect("made");
    world.set("HOME", home.to_str().expect("text"));
    world.set("STAGELINE_TEST_HOST", "desk");
    world.run("plan").exits(0);
    world.edit("count = 2", "count = 1");
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("belongs to operator")
        .says(".local/state/stageline/keys/")
        .says("STAGELINE_IDENTITY");
    world.run("state list").exits(0).says("lease.node[1]");
    world.destroy();
}

#[test]
fn a_ci_job_makes_no_identity_for_a_bucket() {
    let Some(server) = Kind::S3.server() else {
        return;
    };
    let (mut world, _) = world(Kind::S3, &server);
    world.set("CI", "true");
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("would end with the job")
        .says("openssl rand -hex 32");
    world.set("STAGELINE_IDENTITY", &"5a".repeat(32));
    world.apply();
    world.destroy();
}

/// A run on one computer is stopped; one on another computer, whose clock is hours off, takes over once it has seen no
/// heartbeat; the first one wakes and is fenced.
#[test]
fn a_second_computer_takes_over_from_one_that_sleeps() {
    let Some(server) = Kind::S3.server() else {
        return;
    };
    for (point, shift) in [("16", "-18000"), ("30", "25200")] {
        let (mut world, _) = world(Kind::S3, &server);
        world.set("STAGELINE_TEST_HEARTBEAT", "1000");
        let mut first = world.command(["apply", "--auto-approve"]);
        first
            .env("STAGELINE_TEST_HOST", "laptop")
            .env("STAGELINE_TEST_STOP_AT", point)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let first = first.spawn().expect("the binary is there");
        let pid = i32::try_from(first.id()).expect("a number");
        until("the first one to stop", || stopped(pid).then_some(()));
        world.set("STAGELINE_TEST_HOST", "desk");
        world.set("STAGELINE_TEST_CLOCK_SHIFT", shift);
        let second = world.apply();
        second
            .says("on laptop) is at work since")
            .says("whether it lives shows within");
        kill(pid, Signal::CONT);
        let first = Ran::of("the first one".to_owned(), finish(first));
        first
            .exits(6)
            .says("fenced")
            .says("`apply` by tester@desk, which began at")
            .says("stageline plan");
        world.agrees();
        world.run("plan --detailed-exitcode").exits(0);
        world.destroy();
    }
}
