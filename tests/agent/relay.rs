//! Machines that are reached by a relay alone: by its token and its own certificate authority, and when these change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stageline::agent::{Agent, AgentOptions, Folder};
use stageline::core::id::JournalNumber;
use stageline::core::resource::{Contact, DeliverySpec, EngineSpec, PipelineSpec, RelaySpec};
use stageline::core::unit::Millis;
use stageline::machine::client::{AgentClient, ClientOptions};
use stageline::machine::shell::{FromShell, ShellOrder};
use stageline::machine::{Delivery, MachineError, Machines as _, Target};
use stageline::pipeline::endpoint::{RelayAccess, RelaySettings};
use stageline::pipeline::keys;

use super::{World, peers, pipeline, refusal, share, spec, stage, until};
use crate::relay::Relay;

fn access(relay: &Relay, token: &str) -> RelayAccess {
    RelayAccess {
        settings: RelaySettings {
            url: relay.url.clone(),
            ca_pem: Some(relay.ca_pem.clone()),
        },
        token: Some(token.to_owned().into()),
    }
}

/// An operator who tells agents the first of these relays, and reaches them by any.
fn client(world: &World, relays: &[RelayAccess]) -> AgentClient {
    let operator = keys::operator(&world.identity, &world.lineage);
    let mut options = ClientOptions::new(operator, world.lineage, world.dir.path().join("cache"));
    options.told = relays.first().cloned();
    options.relays = relays.to_vec();
    AgentClient::new(options)
}

/// An agent whose machine was made with this relay, and how to reach it without any direct address.
async fn agent(world: &World, index: u32, relay: &RelayAccess) -> (Agent, Target) {
    let folder = Folder::new(world.folder(index));
    let grant = relay.clone().into();
    folder.write_relay(Some(&grant)).expect("written");
    let (agent, mut target) = world.agent(index).await;
    target.contact = Contact {
        direct: Vec::new(),
        relay: Some(relay.settings.url.clone()),
    };
    (agent, target)
}

async fn deliver(
    client: &AgentClient,
    targets: &[&Target],
    url: &str,
    revision: u64,
) -> Result<(), MachineError> {
    let spec = DeliverySpec {
        pipelines: [(pipeline(), share(targets))].into(),
        relay: Some(RelaySpec {
            url: url.to_owned(),
            ca: None,
            token: None,
            token_digest: None,
        }),
    };
    for target in targets {
        let delivery = Delivery {
            spec: &spec,
            revision: JournalNumber(revision),
            peers: peers(targets),
            tokens: &BTreeMap::new(),
            progress: &|_, _| {},
        };
        client.deliver(target, delivery).await?;
    }
    Ok(())
}

fn check() -> PipelineSpec {
    PipelineSpec {
        stages: vec![super::lease(0), super::lease(1)],
        prompt: "Hello".to_owned(),
        max_tokens: 4,
        expect: None,
        request_timeout: Millis::seconds(20),
    }
}

/// A prompt through both stages, asked again while edges are made anew.
async fn answers(client: &AgentClient, entry: &Target) {
    let ask = || async {
        let answer = client.check(entry, &pipeline(), &check()).await;
        answer.ok().filter(|answer| !answer.text.is_empty())
    };
    until("an answer", ask).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_goes_by_a_relay_alone() {
    let relay = Relay::start(&["canary-one"]).await;
    let world = World::new();
    let told = access(&relay, "canary-one");
    let (_agent, target) = agent(&world, 0, &told).await;
    let order = ShellOrder {
        command: Some("echo by relay; exit 4".to_owned()),
        env: BTreeMap::new(),
        terminal: None,
    };
    let operator = client(&world, &[told]);
    let mut shell = operator.shell(&target, order).await.expect("opened");
    let said = [shell.from.next().await, shell.from.next().await];
    let output = FromShell::Output(b"by relay\n".to_vec());
    assert_eq!(said, [Ok(output), Ok(FromShell::Ended(4))]);
    assert!(relay.carried() > 0, "nothing went by the relay");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_answer_by_a_relay_alone_and_follow_it_when_it_changes() {
    let first = Relay::start(&["canary-one"]).await;
    let world = World::new();
    let told = access(&first, "canary-one");
    let (one, two) = (agent(&world, 0, &told).await, agent(&world, 1, &told).await);
    let targets = [&one.1, &two.1];
    let operator = client(&world, std::slice::from_ref(&told));
    deliver(&operator, &targets, &first.url, 1)
        .await
        .expect("delivered");
    for (index, target) in (0..).zip(targets) {
        let spec = spec(index, index, 2, EngineSpec::Stub);
        let stage = stage(index);
        let started = operator.start(target, &stage, &spec, BTreeMap::new());
        started.await.expect("ready");
    }
    answers(&operator, &one.1).await;
    assert!(first.carried() > 0, "nothing went by the relay");

    // Another token of the same relay.
    first.lets_in(&["canary-one", "canary-two"]);
    let other = access(&first, "canary-two");
    let renewed = client(&world, std::slice::from_ref(&other));
    deliver(&renewed, &targets, &first.url, 2)
        .await
        .expect("delivered");
    let key = |target: &Target| target.endpoint.0;
    for target in targets {
        let moved = || async {
            let token = first.token_of(&key(target));
            (token.as_deref() == Some("canary-two")).then_some(())
        };
        until("the agent to come with the new token", moved).await;
    }
    first.lets_in(&["canary-two"]);
    answers(&renewed, &one.1).await;

    // Another relay, with another authority. The operator still reaches the agents by the one of before.
    let second = Relay::start(&["canary-three"]).await;
    let there = access(&second, "canary-three");
    let moving = client(&world, &[there.clone(), other.clone()]);
    deliver(&moving, &targets, &second.url, 3)
        .await
        .expect("delivered");
    for target in targets {
        let moved = || async { second.token_of(&key(target)) };
        until("the agent to come to the other relay", moved).await;
    }
    first.stop().await;
    let settled = client(&world, &[there]);
    answers(&settled, &one.1).await;
    assert!(second.carried() > 0, "nothing went by the other relay");

    // What the machine keeps is for its owner only, and in one file.
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new(world.folder(0));
    let mode = std::fs::metadata(folder.relay())
        .expect("there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    for name in ["agent.json", "agent.addr", "agent.log", "deliveries.json"] {
        let text = std::fs::read_to_string(folder.root().join(name)).unwrap_or_default();
        assert!(!text.contains("canary"), "{name} has a token");
    }
    for client in [operator, renewed, moving, settled] {
        client.close().await;
    }
    one.0.shutdown().await;
    two.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_or_authority_is_said_by_whoever_has_it() {
    let relay = Relay::start(&["right"]).await;
    let world = World::new();
    let right = access(&relay, "right");
    let wrong = access(&relay, "canary-wrong");
    let (agent, target) = agent(&world, 0, &right).await;

    // The operator has it.
    let operator = client(&world, std::slice::from_ref(&wrong));
    let began = Instant::now();
    let error = operator.status(&target).await.expect_err("not let in");
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    let MachineError::Refused {
        code,
        message,
        hint,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(code, "relay");
    assert!(
        message.contains("does not let this endpoint in: no such token"),
        "{message}"
    );
    assert!(
        message.contains(&relay.url) && !message.contains("canary"),
        "{message}"
    );
    assert!(
        hint.unwrap_or_default()
            .contains("check `token` of [relay]")
    );

    operator.close().await;
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_told_a_relay_that_does_not_work_stays_where_it_is() {
    let relay = Relay::start(&["right"]).await;
    let world = World::new();
    let right = access(&relay, "right");
    let wrong = access(&relay, "canary-wrong");
    let (agent, target) = agent(&world, 0, &right).await;
    let share = |told: RelayAccess| {
        let mut options = ClientOptions::new(
            keys::operator(&world.identity, &world.lineage),
            world.lineage,
            world.dir.path().join("cache"),
        );
        options.relays = vec![right.clone()];
        options.told = Some(told);
        AgentClient::new(options)
    };
    for (told, expected) in [
        (wrong.clone(), "no such token"),
        (
            RelayAccess {
                settings: RelaySettings {
                    ca_pem: None,
                    ..right.settings.clone()
                },
                ..right.clone()
            },
            "cannot be used",
        ),
    ] {
        let operator = share(told);
        let told = deliver(&operator, &[&target], &relay.url, 1).await;
        let (code, message) = refusal(told.expect_err("a relay that does not work"));
        assert_eq!(code, "relay", "{message}");
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("seen from this machine"), "{message}");
        operator.status(&target).await.expect("it is still reached");
        operator.close().await;
    }
    agent.shutdown().await;

    // A machine is made with it.
    let folder = Folder::new(world.folder(0));
    folder.write_relay(Some(&wrong.into())).expect("written");
    let options = AgentOptions {
        dir: world.folder(0),
        until_eof: false,
        runner: None,
    };
    let error = Agent::start(&options)
        .await
        .err()
        .expect("not let in")
        .to_string();
    assert!(
        error.contains("no such token") && !error.contains("canary"),
        "{error}"
    );
}
