//! Our hands on a leased machine: what can be asked of its agent.
//!
//! Everything here may be repeated: the agent compares what it is told with what it has. One implementation speaks the
//! control protocol (`client`), one is a simulator for tests (`sim`).

pub mod carry;
pub mod client;
pub mod control;
pub mod fetch;
pub mod plain;
pub mod shell;
pub mod sim;
pub mod spans;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use stageline_core::id::{EndpointKey, Fingerprint, JournalNumber, LeaseId, Name, StageId};
use stageline_core::offer::Facts;
use stageline_core::resource::{
    Contact, DeliverySpec, ExposureSpec, LeaseLimits, PipelineShare, PipelineSpec, SetupSpec,
    StageSpec,
};
use stageline_core::unit::Millis;

use crate::pipeline::Drain;

/// Whom we talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which machine, for messages.
    pub lease: LeaseId,
    /// The agent's public key.
    pub endpoint: EndpointKey,
    /// How to reach it.
    pub contact: Contact,
}

/// A delivery with everything that only `apply` knows.
pub struct Delivery<'a> {
    /// What must be present.
    pub spec: &'a DeliverySpec,
    /// The journal number of the step: the revision of every roster in it.
    pub revision: JournalNumber,
    /// Every machine that the rosters name, by lease.
    pub peers: BTreeMap<LeaseId, Target>,
    /// For servers of models that ask for one, by pipeline.
    pub tokens: &'a BTreeMap<Name, SecretString>,
    /// Called with (bytes there, bytes needed) while the model is on its way.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// The digest by which a delivered share is told from a changed one.
pub fn share_fingerprint(share: &PipelineShare) -> Fingerprint {
    Fingerprint::of(&serde_json::to_vec(share).expect("a share is plain data"))
}

/// What a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WorkerState {
    /// Loading: how far, of what.
    Loading {
        /// How far.
        percent: u8,
        /// What is loaded.
        what: String,
    },
    /// Answers.
    Ready {
        /// Its process.
        pid: u32,
    },
    /// Died and will be started again.
    Restarting {
        /// Why it died: exit status and the end of its log.
        why: String,
        /// How often it was started.
        starts: u32,
    },
    /// Died and will not be started again by itself.
    Failed {
        /// Why: exit status and the end of its log.
        why: String,
    },
}

/// One stage as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStatus {
    /// Digest of the spec that it was started with.
    pub spec: Fingerprint,
    /// Its worker.
    pub worker: WorkerState,
    /// The edges that are up, by the neighbour's stage.
    pub edges: Vec<u32>,
    /// Requests in flight.
    pub in_flight: u32,
}

/// What an agent has and does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Of the agent's program.
    pub version: String,
    /// Measured now.
    pub facts: Facts,
    /// Digest of each delivered share and the roster's revision, by pipeline.
    pub deliveries: BTreeMap<Name, (Fingerprint, JournalNumber)>,
    /// Every stage that it supervises.
    pub stages: BTreeMap<StageId, StageStatus>,
    /// Every listener, with its URL and the digest of its spec.
    pub exposures: BTreeMap<Name, (Fingerprint, String)>,
    /// For how long nothing counted as work; none from an agent of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Millis>,
    /// The limits by which it ends its machine; none where it does not, and from an agent of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LeaseLimits>,
    /// What it ran once before it was ready, or is running; none where it was not asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<SetupStatus>,
}

/// How far the setup of a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupStatus {
    /// Digest of its script.
    pub script: Fingerprint,
    /// How far.
    #[serde(flatten)]
    pub state: SetupState,
}

/// How far the setup of a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum SetupState {
    /// It runs.
    Running,
    /// It ended well, once and for all.
    Done,
    /// It did not, and is not run again.
    Failed {
        /// How it ended.
        why: String,
        /// The last lines that it printed.
        lines: Vec<String>,
    },
}

/// Whose output is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogSource {
    /// The agent's own.
    Agent,
    /// A worker's stderr.
    Stage(StageId),
}

/// Why a machine did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "kebab-case")]
pub enum MachineError {
    /// No answer from the agent: it may be dead, on its way, or cut off.
    #[error("{lease}: the agent does not answer: {why}")]
    Unreachable {
        /// Which machine.
        lease: LeaseId,
        /// The last thing that was seen.
        why: String,
    },
    /// The agent answered and refused; trying again does not help.
    #[error("{lease}: {message}")]
    Refused {
        /// Which machine.
        lease: LeaseId,
        /// `code` of the control protocol.
        code: String,
        /// One sentence.
        message: String,
        /// What to do now.
        hint: Option<String>,
    },
}

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// How long it took.
    pub took: Millis,
}

/// Our hands. Every call may be repeated and has the same result then.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Returns what the agent has and does.
    async fn status(&self, target: &Target) -> Result<AgentStatus, MachineError>;

    /// Makes model shard, configuration and roster present.
    async fn deliver(&self, target: &Target, delivery: Delivery<'_>) -> Result<(), MachineError>;

    /// Starts a worker, or restarts it when its spec changed, and waits until it is ready or has failed.
    async fn start(
        &self,
        target: &Target,
        stage: &StageId,
        spec: &StageSpec,
        secrets: BTreeMap<String, SecretString>,
    ) -> Result<(), MachineError>;

    /// Ends a worker; unknown is done.
    async fn stop(&self, target: &Target, stage: &StageId) -> Result<(), MachineError>;

    /// Sends a prompt to the entry of a pipeline and waits for the whole answer.
    async fn check(
        &self,
        entry: &Target,
        pipeline: &Name,
        spec: &PipelineSpec,
    ) -> Result<Answer, MachineError>;

    /// Starts a listener, or changes it; returns its URL. `peers` has the entry machine of every pipeline it serves.
    async fn expose(
        &self,
        target: &Target,
        exposure: &Name,
        spec: &ExposureSpec,
        peers: BTreeMap<Name, Target>,
        api_key: Option<SecretString>,
    ) -> Result<String, MachineError>;

    /// Ends a listener; unknown is done.
    async fn unexpose(&self, target: &Target, exposure: &Name) -> Result<(), MachineError>;

    /// Takes no new request and returns when those in flight have ended, or after `timeout`.
    async fn drain(
        &self,
        target: &Target,
        what: Drain,
        timeout: Millis,
    ) -> Result<(), MachineError>;

    /// Tells a machine that ends itself which limits it keeps from now on.
    async fn limit(&self, target: &Target, limits: LeaseLimits) -> Result<(), MachineError>;

    /// Begins the setup of a machine unless it was begun, at most for so long; [`AgentStatus::setup`] tells how it ends.
    async fn set_up(
        &self,
        target: &Target,
        setup: &SetupSpec,
        secrets: BTreeMap<String, SecretString>,
        timeout: Millis,
    ) -> Result<(), MachineError>;

    /// Tells an agent that its machine is in use, so that it does not end it as idle.
    ///
    /// # Errors
    /// When it was not told.
    async fn at_work(&self, target: &Target) -> Result<(), MachineError>;

    /// The last `tail` bytes of an output, and what follows when `follow` is set.
    async fn logs(
        &self,
        target: &Target,
        source: LogSource,
        tail: usize,
        follow: bool,
    ) -> Result<BoxStream<'static, Result<Bytes, MachineError>>, MachineError>;
}
