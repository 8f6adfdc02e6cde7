//! Deliveries: models in pieces, cut and resumed, on a full disk, kept over a restart.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sha2::Digest as _;
use stageline::core::id::{JournalNumber, Sha256};
use stageline::core::resource::{DeliverySpec, ModelOrigin, ModelRef, Shard};
use stageline::core::topology::Layers;
use stageline::core::unit::Bytes;
use stageline::machine::{Delivery, MachineError, Machines, Target, share_fingerprint};

use super::{World, peers, pipeline, refusal, share, until};

const MODEL_BYTES: usize = 9 << 20;

/// Bytes that differ everywhere, written where a model would be.
fn model(dir: &Path) -> (Vec<u8>, ModelRef) {
    let mut bytes = vec![0; MODEL_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    let path = dir.join("model.gguf");
    std::fs::write(&path, &bytes).expect("written");
    let model = ModelRef {
        sha256: Sha256(sha2::Sha256::digest(&bytes).into()),
        size: Bytes(u64::try_from(bytes.len()).expect("small")),
        origin: ModelOrigin::Operator(path),
        token: None,
    };
    (bytes, model)
}

fn spec(target: &Target, model: &ModelRef) -> DeliverySpec {
    let mut share = share(&[target]);
    share.shard = Some(Shard {
        model: model.clone(),
        layers: vec![Layers { start: 0, end: 1 }],
        entry: true,
        exit: true,
        // Less than all, of a file that is no model to us: all of it is sent then.
        bytes: Bytes(model.size.0 - 1),
    });
    DeliverySpec {
        pipelines: [(pipeline(), share)].into(),
        relay: None,
    }
}

/// Delivers and returns how much was there at each report.
async fn deliver(
    world: &World,
    target: &Target,
    spec: &DeliverySpec,
    revision: u64,
) -> Result<Vec<u64>, MachineError> {
    let reports = Mutex::new(Vec::new());
    let delivery = Delivery {
        spec,
        revision: JournalNumber(revision),
        peers: peers(&[target]),
        tokens: &BTreeMap::new(),
        progress: &|done, _| reports.lock().expect("alive").push(done),
    };
    world.client.deliver(target, delivery).await?;
    Ok(reports.into_inner().expect("alive"))
}

fn blob(dir: &Path, model: &ModelRef) -> std::path::PathBuf {
    dir.join(format!("blobs/{}/model.gguf", model.sha256))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_sent_once_and_known_after_a_restart() {
    let world = World::new();
    let (bytes, model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    let spec = spec(&target, &model);
    let reports = deliver(&world, &target, &spec, 3).await.expect("delivered");
    assert_eq!(reports.first(), Some(&0));
    assert_eq!(reports.last(), Some(&model.size.0));
    let there = std::fs::read(blob(&world.folder(0), &model)).expect("there");
    assert!(there == bytes, "the model differs");

    agent.shutdown().await;
    let (agent, target) = world.agent(0).await;
    let status = world.status(&target).await;
    let digest = share_fingerprint(&spec.pipelines[&pipeline()]);
    let expected = [(pipeline(), (digest, JournalNumber(3)))].into();
    assert_eq!(status.deliveries, expected);
    let reports = deliver(&world, &target, &spec, 4).await.expect("again");
    assert_eq!(
        reports.first(),
        Some(&model.size.0),
        "nothing is sent again"
    );
    // What a neighbour of the same plan has told already is no news, and no fault.
    deliver(&world, &target, &spec, 2).await.expect("the same");
    let kept = world.status(&target).await.deliveries;
    assert_eq!(kept, [(pipeline(), (digest, JournalNumber(4)))].into());
    let mut other = spec.clone();
    let share = other.pipelines.get_mut(&pipeline()).expect("there");
    share.max_in_flight += 1;
    let error = deliver(&world, &target, &other, 2)
        .await
        .expect_err("older");
    assert_eq!(refusal(error).0, "stale");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_delivery_goes_on_where_it_was() {
    let world = World::new();
    let (bytes, model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    let spec = spec(&target, &model);
    let half = tokio::sync::Notify::new();
    {
        let delivery = Delivery {
            spec: &spec,
            revision: JournalNumber(1),
            peers: peers(&[&target]),
            tokens: &BTreeMap::new(),
            progress: &|done, total| {
                if done > total / 2 {
                    half.notify_one();
                }
            },
        };
        tokio::select! {
            biased;
            () = half.notified() => {}
            done = world.client.deliver(&target, delivery) => {
                panic!("it was to be cut: {done:?}");
            }
        }
    }
    assert!(world.status(&target).await.deliveries.is_empty());
    let reports = deliver(&world, &target, &spec, 1).await.expect("resumed");
    let first = *reports.first().expect("a report");
    assert!(first > 0, "something of the first try must count");
    assert!(first < model.size.0, "the first try was cut");
    let there = std::fs::read(blob(&world.folder(0), &model)).expect("there");
    assert!(there == bytes, "the model differs");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_room_helps() {
    let world = World::new();
    let (_, model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    let spec = spec(&target, &model);
    // Enough to begin with, by what the system says; the disk fills while it is written.
    agent.limit_writes(model.size.0);
    let other = world.dir.path().join("x.gguf");
    std::fs::copy(world.dir.path().join("model.gguf"), &other).expect("copied");
    agent.limit_writes(3 << 20);
    let error = deliver(&world, &target, &spec, 1).await.expect_err("full");
    let (code, message) = refusal(error);
    assert_eq!(code, "disk-full", "{message}");
    assert!(world.status(&target).await.deliveries.is_empty());
    agent.limit_writes(1 << 40);
    deliver(&world, &target, &spec, 1).await.expect("room now");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_file_never_leaves_the_operator() {
    let world = World::new();
    let (_, mut model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    model.sha256 = Sha256([1; 32]);
    let error = deliver(&world, &target, &spec(&target, &model), 1)
        .await
        .expect_err("another digest");
    let (code, message) = refusal(error);
    assert_eq!(code, "model-changed");
    assert!(message.contains("is another file"), "{message}");
    assert!(!blob(&world.folder(0), &model).exists());
    agent.shutdown().await;
}

/// A delivery without a model that is no longer needed removes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_fetches_a_model_itself_and_forgets_it_when_told() {
    let world = World::new();
    let (bytes, mut model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    let served = bytes.clone();
    let app = axum::Router::new().route("/m", axum::routing::get(|| async { served }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    model.origin = ModelOrigin::MachineUrl(format!("http://{address}/m"));
    deliver(&world, &target, &spec(&target, &model), 1)
        .await
        .expect("fetched");
    let path = blob(&world.folder(0), &model);
    assert!(std::fs::read(&path).expect("there") == bytes);

    let nothing = DeliverySpec {
        pipelines: BTreeMap::new(),
        relay: None,
    };
    deliver(&world, &target, &nothing, 2)
        .await
        .expect("emptied");
    until("the model to go", || async {
        (!path.exists()).then_some(())
    })
    .await;

    model.origin = ModelOrigin::MachineUrl(format!("http://{address}/none?token=canary"));
    let error = deliver(&world, &target, &spec(&target, &model), 3)
        .await
        .expect_err("no such file");
    let (code, message) = refusal(error);
    assert_eq!(code, "fetch");
    assert!(
        message.contains("404") && !message.contains("canary"),
        "{message}"
    );
    agent.shutdown().await;
}

/// What was fetched is kept for later, and fetched again when it is not what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_model_that_was_spoiled_is_fetched_again_by_the_operator() {
    let world = World::new();
    let (bytes, mut model) = model(world.dir.path());
    let (agent, target) = world.agent(0).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let (served, count) = (bytes.clone(), Arc::clone(&asked));
    let answer = move || async move {
        count.fetch_add(1, Ordering::SeqCst);
        served
    };
    let app = axum::Router::new().route("/m", axum::routing::get(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    model.origin = ModelOrigin::OperatorUrl(format!("http://{address}/m"));
    let kept = world
        .dir
        .path()
        .join(format!("cache/{}.gguf", model.sha256));
    let spoiled = vec![0; bytes.len()];
    for (times, client) in [
        (1, "whole"),
        (1, "the same file"),
        (2, "another one of its length"),
    ] {
        if times == 2 {
            std::fs::write(&kept, &spoiled).expect("written");
        }
        // Another process knows nothing of what this one read.
        let other = super::client(&world.identity, world.lineage, world.dir.path());
        let spec = spec(&target, &model);
        let delivery = Delivery {
            spec: &spec,
            revision: JournalNumber(1),
            peers: peers(&[&target]),
            tokens: &BTreeMap::new(),
            progress: &|_, _| {},
        };
        other.deliver(&target, delivery).await.expect(client);
        assert_eq!(asked.load(Ordering::SeqCst), times, "{client}");
        assert!(std::fs::read(&kept).expect("there") == bytes, "{client}");
    }
    let there = std::fs::read(blob(&world.folder(0), &model)).expect("there");
    assert!(there == bytes, "the model differs");
    agent.shutdown().await;
}
