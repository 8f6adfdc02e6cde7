//! Two machines that serve a pipeline, from delivery to an answer over HTTP.

use std::collections::BTreeMap;

use stageline::agent::Agent;
use stageline::core::id::{JournalNumber, Name};
use stageline::core::resource::{
    DeliverySpec, EngineSpec, ExposureSpec, PipelineSpec, Spec, ViaSpec,
};
use stageline::core::topology::Serve;
use stageline::core::unit::Millis;
use stageline::machine::{Delivery, Machines, Target, WorkerState};
use stageline::pipeline::Drain;

use super::{World, lease, pipeline, refusal, share, spec, stage, until};

fn api() -> Name {
    "api".parse().expect("a name")
}

fn exposure(listen: &str) -> ExposureSpec {
    ExposureSpec {
        pipelines: [(pipeline(), lease(0))].into(),
        at: lease(0),
        serve: Serve::OpenAi,
        via: ViaSpec::Loopback {
            listen: listen.parse().expect("an address"),
            api_key: None,
        },
    }
}

fn check(stages: u32) -> PipelineSpec {
    PipelineSpec {
        stages: (0..stages).map(lease).collect(),
        prompt: "Hello".to_owned(),
        max_tokens: 5,
        expect: None,
        request_timeout: Millis::seconds(20),
    }
}

async fn two(world: &World, engine: &EngineSpec) -> [(Agent, Target); 2] {
    let machines = [world.agent(0).await, world.agent(1).await];
    let both = [&machines[0].1, &machines[1].1];
    world.deliver(&both, &both).await.expect("delivered");
    for (index, target) in (0..).zip(both) {
        let spec = spec(index, index, 2, engine.clone());
        world.start(target, index, &spec).await.expect("started");
        // The same again is nothing to do.
        world.start(target, index, &spec).await.expect("started");
    }
    machines
}

async fn ask(url: &str) -> Result<serde_json::Value, reqwest::Error> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let body = serde_json::json!({
        "model": "llama",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
    });
    let client = reqwest::Client::new();
    let answer = client.post(format!("{url}/chat/completions")).json(&body);
    answer.send().await?.json().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_of_two_machines_answers_over_http() {
    let world = World::new();
    let [(first, entry), (second, exit)] = two(&world, &EngineSpec::Stub).await;
    let answer = world
        .client
        .check(&entry, &pipeline(), &check(2))
        .await
        .expect("an answer");
    assert!(!answer.text.trim().is_empty());
    let up = || async {
        let status = world.status(&entry).await;
        (!status.stages[&stage(0)].edges.is_empty()).then_some(status)
    };
    let status = until("the edge to be up", up).await;
    let known = &status.stages[&stage(0)];
    assert_eq!(
        known.spec,
        Spec::Stage(Box::new(spec(0, 0, 2, EngineSpec::Stub))).fingerprint()
    );
    assert!(
        matches!(known.worker, WorkerState::Ready { .. }),
        "{known:?}"
    );

    let (api, free) = (api(), exposure("127.0.0.1:0"));
    let expose = |spec: ExposureSpec| {
        let (world, entry, api) = (&world, &entry, &api);
        async move {
            let (peers, key) = (BTreeMap::new(), None);
            world.client.expose(entry, api, &spec, peers, key).await
        }
    };
    let url = expose(free.clone()).await.expect("a listener");
    assert_eq!(expose(free.clone()).await.expect("the same"), url);
    let answer = ask(&url).await.expect("an answer");
    assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");

    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("bound").to_string();
    let (code, message) = refusal(expose(exposure(&taken)).await.expect_err("in use"));
    assert_eq!(code, "address");
    assert!(message.contains(&format!("{taken} is in use")), "{message}");
    drop(holder);

    let url = expose(free).await.expect("a listener");
    let status = world.status(&entry).await;
    assert_eq!(status.exposures[&api].1, url);
    world.client.unexpose(&entry, &api).await.expect("ended");
    world
        .client
        .unexpose(&entry, &api)
        .await
        .expect("and again");
    ask(&url).await.expect_err("nobody listens");

    world.client.stop(&exit, &stage(1)).await.expect("stopped");
    let mut short = check(2);
    short.request_timeout = Millis::seconds(3);
    let error = world.client.check(&entry, &pipeline(), &short).await;
    let (_, message) = refusal(error.expect_err("a stage is gone"));
    assert!(message.contains("stage.llama[1]"), "{message}");
    first.shutdown().await;
    second.shutdown().await;
}

/// The example worker, as processes, split over two machines; then drained.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_of_someone_elses_workers_answers_and_drains() {
    let world = World::new();
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/command-worker/worker.py"
    );
    let engine = EngineSpec::Command(vec!["python3".to_owned(), example.to_owned()]);
    let [(first, entry), (second, exit)] = two(&world, &engine).await;
    let answer = world
        .client
        .check(&entry, &pipeline(), &check(2))
        .await
        .expect("an answer");
    assert_eq!(answer.text.len(), 5, "{answer:?}");
    world
        .client
        .drain(&entry, Drain::All, Millis::seconds(5))
        .await
        .expect("drained");
    let error = world.client.check(&entry, &pipeline(), &check(2)).await;
    assert_eq!(refusal(error.expect_err("draining")).0, "draining");
    // A new start takes requests again.
    world
        .start(&entry, 0, &spec(0, 0, 2, engine))
        .await
        .expect("there already");
    world
        .client
        .check(&entry, &pipeline(), &check(2))
        .await
        .expect("an answer again");
    for (target, index) in [(&entry, 0), (&exit, 1)] {
        world
            .client
            .stop(target, &stage(index))
            .await
            .expect("stopped");
        let pid = world
            .folder(index)
            .join(format!("workers/llama-{index}.pid"));
        assert!(!pid.exists());
    }
    first.shutdown().await;
    second.shutdown().await;
}

/// The listener is not where the entry is: the roster must let its machine prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_on_another_machine_needs_leave() {
    let world = World::new();
    let [(first, entry), (second, other)] = two(&world, &EngineSpec::Stub).await;
    let mut spec = exposure("127.0.0.1:0");
    spec.at = lease(1);
    let peers = [(pipeline(), entry.clone())].into();
    let url = world
        .client
        .expose(&other, &api(), &spec, peers, None)
        .await
        .expect("a listener");
    let answer = ask(&url).await.expect("an answer");
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("may not prompt"), "{answer}");

    // A newer roster reaches agents that live, and counts at once.
    let mut share = share(&[&entry, &other]);
    share.prompt_from = vec![lease(1)];
    let spec = DeliverySpec {
        pipelines: [(pipeline(), share)].into(),
        relay: None,
    };
    for target in [&entry, &other] {
        let delivery = Delivery {
            spec: &spec,
            revision: JournalNumber(2),
            peers: super::peers(&[&entry, &other]),
            tokens: &BTreeMap::new(),
            progress: &|_, _| {},
        };
        let delivered = world.client.deliver(target, delivery).await;
        delivered.expect("delivered");
    }
    let answer = ask(&url).await.expect("an answer");
    assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    first.shutdown().await;
    second.shutdown().await;
}
