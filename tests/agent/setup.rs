//! What a machine runs once: once whoever asks and however often, and never again.

use std::collections::BTreeMap;

use secrecy::SecretString;
use stageline::core::resource::SetupSpec;
use stageline::core::unit::Millis;
use stageline::machine::{Machines as _, SetupState, SetupStatus, Target};

use super::{World, refusal, until};

fn script(text: &str) -> SetupSpec {
    SetupSpec {
        script: text.to_owned(),
        env: [("OF_THE_LEASE".to_owned(), "seen".to_owned())].into(),
        secrets: BTreeMap::new(),
    }
}

async fn begin(world: &World, target: &Target, setup: &SetupSpec, timeout: Millis) {
    let secrets = [("KEY".to_owned(), SecretString::from("canary-setup-31f0"))].into();
    let begun = world.client.set_up(target, setup, secrets, timeout).await;
    begun.expect("begun");
}

async fn ended(world: &World, target: &Target) -> SetupStatus {
    until("the end of the setup", || async {
        // An agent that was started again is dialled anew.
        let status = world.client.status(target).await.ok()?;
        let status = status.setup.expect("it was begun");
        (status.state != SetupState::Running).then_some(status)
    })
    .await
}

fn lines_of(state: SetupState) -> (String, Vec<String>) {
    match state {
        SetupState::Failed { why, lines } => (why, lines),
        SetupState::Running | SetupState::Done => panic!("it failed"),
    }
}

const MINUTE: Millis = Millis::minutes(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_runs_once_in_the_life_of_a_folder() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    assert_eq!(world.status(&target).await.setup, None);
    let setup = script("echo once >> ran\necho $OF_THE_LEASE $KEY > env.of");
    begin(&world, &target, &setup, MINUTE).await;
    begin(&world, &target, &setup, MINUTE).await;
    let status = ended(&world, &target).await;
    assert_eq!(
        (status.script, status.state),
        (setup.fingerprint(), SetupState::Done)
    );
    agent.shutdown().await;

    let (_agent, target) = world.agent(0).await;
    assert_eq!(ended(&world, &target).await.state, SetupState::Done);
    begin(&world, &target, &setup, MINUTE).await;
    let other = world
        .client
        .set_up(&target, &script("true"), BTreeMap::new(), MINUTE)
        .await;
    let (code, _) = refusal(other.expect_err("it ran another one"));
    assert_eq!(code, "setup-other");
    let file = |name: &str| std::fs::read_to_string(world.folder(0).join(name)).expect("there");
    assert_eq!(file("ran"), "once\n");
    assert_eq!(file("env.of"), "seen canary-setup-31f0\n");
    assert!(!file("setup.json").contains("canary") && !file("setup.sh").contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_that_fails_says_its_last_lines_without_secrets_and_stays_failed() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    let text = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; done; echo key $KEY >&2; false; echo never";
    let setup = script(text);
    begin(&world, &target, &setup, MINUTE).await;
    let (why, lines) = lines_of(ended(&world, &target).await.state);
    assert_eq!(why, "it exited with status 1");
    assert_eq!(lines.len(), 60, "{lines:?}");
    assert!(lines.contains(&"line 100".to_owned()), "{lines:?}");
    assert!(lines.contains(&"key ***".to_owned()), "{lines:?}");
    assert!(!lines.contains(&"never".to_owned()), "sh -e stops");
    agent.shutdown().await;
    let (_agent, target) = world.agent(0).await;
    begin(&world, &target, &setup, MINUTE).await;
    let (why, _) = lines_of(ended(&world, &target).await.state);
    assert_eq!(why, "it exited with status 1", "it is not run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_that_takes_too_long_is_ended_with_all_that_it_started() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let setup = script("sleep 600 & echo $! > child; wait");
    begin(&world, &target, &setup, Millis(1500)).await;
    let (why, _) = lines_of(ended(&world, &target).await.state);
    assert_eq!(why, "it was not done within 1 s");
    let child = std::fs::read_to_string(world.folder(0).join("child")).expect("it began");
    let stat = format!("/proc/{}/stat", child.trim());
    until("the end of its child", || async {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_that_was_cut_off_is_not_run_again() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    let setup = script("echo begun >> ran; while :; do sleep 1; done");
    begin(&world, &target, &setup, MINUTE).await;
    until("its begin", || async {
        world.folder(0).join("ran").exists().then_some(())
    })
    .await;
    let noted = std::fs::read(world.folder(0).join("setup.json")).expect("it is noted first");
    agent.shutdown().await;
    // An agent that was killed wrote nothing more.
    std::fs::write(world.folder(0).join("setup.json"), noted).expect("written");
    let (_agent, target) = world.agent(0).await;
    begin(&world, &target, &setup, MINUTE).await;
    let (why, _) = lines_of(ended(&world, &target).await.state);
    assert_eq!(why, "it was cut off when the agent ended");
    let ran = std::fs::read_to_string(world.folder(0).join("ran")).expect("there");
    assert_eq!(ran, "begun\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_run_by_what_it_names() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let setup = script("#!/usr/bin/env python3\nprint('from python')\nraise SystemExit(3)\n");
    begin(&world, &target, &setup, MINUTE).await;
    let (why, lines) = lines_of(ended(&world, &target).await.state);
    assert_eq!(
        (why.as_str(), lines),
        ("it exited with status 3", vec!["from python".to_owned()])
    );
}
