//! Agents as an operator meets them: real ones on loopback, in this process or as processes of their own.

#[path = "agent/deliver.rs"]
mod deliver;
#[path = "agent/leased.rs"]
mod leased;
#[path = "agent/limits.rs"]
mod limits;
#[path = "agent/open.rs"]
mod open;
#[path = "agent/process.rs"]
mod process;
#[path = "agent/relay.rs"]
mod relay;
#[path = "agent/serve.rs"]
mod serve;
#[path = "agent/setup.rs"]
mod setup;
#[path = "agent/workers.rs"]
mod workers;

use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stageline::agent::{Agent, AgentOptions, Config, RestartPolicy};
use stageline::core::id::{Attempt, Generation, JournalNumber, LeaseId, Lineage, Name, StageId};
use stageline::core::resource::{
    Contact, DeliverySpec, EngineSpec, PipelineShare, RosterLine, StageSpec,
};
use stageline::core::topology::{Dtype, Layers};
use stageline::core::unit::Millis;
use stageline::machine::client::{AgentClient, ClientOptions};
use stageline::machine::{AgentStatus, Delivery, MachineError, Machines, Target};
use stageline::pipeline::keys;

/// Longest that anything here may take before the test says what it waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// An operator with some machines.
struct World {
    dir: tempfile::TempDir,
    identity: keys::Secret,
    lineage: Lineage,
    client: AgentClient,
}

fn lease(index: u32) -> LeaseId {
    LeaseId {
        name: "cpu".parse().expect("a name"),
        index,
    }
}

fn stage(index: u32) -> StageId {
    StageId {
        pipeline: pipeline(),
        index,
    }
}

fn pipeline() -> Name {
    "llama".parse().expect("a name")
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let (identity, lineage) = (keys::Secret::new([42; 32]), Lineage([7; 16]));
        let client = client(&identity, lineage, dir.path());
        Self {
            dir,
            identity,
            lineage,
            client,
        }
    }

    /// Makes a machine's folder, as a provider does.
    fn folder(&self, index: u32) -> PathBuf {
        let dir = self.dir.path().join(format!("machine-{index}"));
        if dir.exists() {
            return dir;
        }
        std::fs::create_dir(&dir).expect("made");
        let config = Config {
            port: None,
            own_end: None,
            operator: keys::operator(&self.identity, &self.lineage).operator(),
            lineage: self.lineage,
            lease: lease(index),
            generation: Generation(1),
            attempt: Attempt(1),
            relay: None,
            listen: None,
        };
        let text = serde_json::to_vec(&config).expect("plain data");
        std::fs::write(dir.join("agent.json"), text).expect("written");
        let digits: String = self
            .key(index)
            .expose()
            .map(|b| format!("{b:02x}"))
            .concat();
        let mut file = std::fs::OpenOptions::new();
        let file = file.create_new(true).write(true).mode(0o600);
        let mut file = file.open(dir.join("agent.key")).expect("made");
        std::io::Write::write_all(&mut file, digits.as_bytes()).expect("written");
        dir
    }

    fn key(&self, index: u32) -> keys::Secret {
        let address = format!("lease.cpu[{index}]").parse().expect("an address");
        let (generation, attempt) = (Generation(1), Attempt(1));
        keys::agent(&self.identity, &self.lineage, &address, generation, attempt)
    }

    fn target(&self, index: u32, contact: Contact) -> Target {
        Target {
            lease: lease(index),
            endpoint: self.key(index).endpoint(),
            contact,
        }
    }

    /// Starts an agent in this process.
    async fn agent(&self, index: u32) -> (Agent, Target) {
        let options = AgentOptions {
            until_eof: false,
            dir: self.folder(index),
            runner: Some(env!("CARGO_BIN_EXE_stageline").into()),
        };
        let policy = RestartPolicy {
            restarts_max: 2,
            window: Duration::from_secs(600),
            delay_min: Duration::from_millis(10),
            delay_max: Duration::from_millis(50),
        };
        let agent = Agent::start_with(&options, policy).await.expect("started");
        let target = self.target(index, agent.contact().await);
        (agent, target)
    }

    /// The same with a pipeline of one stage delivered to it.
    async fn delivered(&self) -> (Agent, Target) {
        let (agent, target) = self.agent(0).await;
        let delivered = self.deliver(&[&target], &[&target]).await;
        delivered.expect("delivered");
        (agent, target)
    }

    /// Delivers a pipeline without a model, one stage for each of these machines in order.
    async fn deliver(&self, to: &[&Target], order: &[&Target]) -> Result<(), MachineError> {
        let spec = DeliverySpec {
            pipelines: [(pipeline(), share(order))].into(),
            relay: None,
        };
        for target in to {
            let delivery = Delivery {
                spec: &spec,
                revision: JournalNumber(1),
                peers: peers(order),
                tokens: &BTreeMap::new(),
                progress: &|_, _| {},
            };
            self.client.deliver(target, delivery).await?;
        }
        Ok(())
    }

    async fn start(
        &self,
        target: &Target,
        index: u32,
        spec: &StageSpec,
    ) -> Result<(), MachineError> {
        self.client
            .start(target, &stage(index), spec, BTreeMap::new())
            .await
    }

    async fn status(&self, target: &Target) -> AgentStatus {
        self.client.status(target).await.expect("a status")
    }
}

fn client(identity: &keys::Secret, lineage: Lineage, dir: &Path) -> AgentClient {
    let operator = keys::operator(identity, &lineage);
    let mut options = ClientOptions::new(operator, lineage, dir.join("cache"));
    options.dial_timeout = Duration::from_secs(3);
    AgentClient::new(options)
}

fn peers(order: &[&Target]) -> BTreeMap<LeaseId, Target> {
    order
        .iter()
        .map(|target| (target.lease.clone(), (*target).clone()))
        .collect()
}

fn share(order: &[&Target]) -> PipelineShare {
    let line = |(index, target): (usize, &&Target)| {
        let start = u32::try_from(index).expect("few");
        RosterLine {
            lease: target.lease.clone(),
            layers: Some(Layers {
                start,
                end: start + 1,
            }),
        }
    };
    PipelineShare {
        shard: None,
        roster: order.iter().enumerate().map(line).collect(),
        prompt_from: Vec::new(),
        max_in_flight: 8,
        request_timeout: Millis::seconds(20),
        dtype: Dtype::F32,
    }
}

/// Stage `index` of `num_stages` on machine `on`.
fn spec(on: u32, index: u32, num_stages: u32, engine: EngineSpec) -> StageSpec {
    StageSpec {
        on: lease(on),
        num_stages,
        engine,
        layers: Some(Layers {
            start: index,
            end: index + 1,
        }),
        model: None,
        engine_args: Vec::new(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        gpus: Vec::new(),
        dtype: Dtype::F32,
        context: None,
        ready_timeout: Millis::seconds(20),
    }
}

/// A worker written for `sh`.
fn shell(script: &str) -> EngineSpec {
    EngineSpec::Command(["sh", "-c", script].map(ToOwned::to_owned).to_vec())
}

fn refusal(error: MachineError) -> (String, String) {
    match error {
        MachineError::Refused { code, message, .. } => (code, message),
        MachineError::Unreachable { lease, why } => panic!("{lease} is unreachable: {why}"),
    }
}

/// Asks again until the answer is there.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_operator_is_listened_to() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    let status = world.status(&target).await;
    assert_eq!(status.facts.os, std::env::consts::OS);
    assert!(status.stages.is_empty() && status.deliveries.is_empty());

    let stranger = client(&keys::Secret::new([1; 32]), world.lineage, world.dir.path());
    let error = stranger.status(&target).await.expect_err("a stranger");
    let (code, message) = refusal(error);
    assert_eq!(code, "forbidden", "{message}");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_gone_is_unreachable_and_one_that_is_back_is_found() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    world.status(&target).await;
    agent.shutdown().await;
    let error = world.client.status(&target).await.expect_err("gone");
    assert!(matches!(error, MachineError::Unreachable { .. }), "{error}");
    let (agent, target) = world.agent(0).await;
    world.status(&target).await;
    agent.shutdown().await;
}
