//! The topology file: TOML text to a validated [`Topology`], or *all* the diagnostics.
//!
//! One definition of the keys serves the reader, the JSON Schema, `explain` and the reference page. TOML structs end
//! here: what leaves this module is checked, has its units, and has no variables left. References lead to declared
//! tables and to machines within their count. It does not look at files, providers or models: whether a model has as many
//! layers as the stages say is the planner's to check.

mod build;
mod caps;
mod cloud;
mod commands;
mod convert;
mod digest;
mod docs;
mod files;
mod hosts;
mod interpolate;
mod keys;
mod leases;
mod model;
mod mounts;
mod moving;
mod numbered;
mod read;
mod registry;
mod rented;
mod requirement;
mod schema;
mod selection;
mod spot;
mod stages;
mod taken;
mod value;
mod vars;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

pub use caps::{Caps, Limits};
pub use cloud::Cloud;
pub use commands::{Claims, OFFER_FIELD, Programs};
pub use digest::digest;
pub use docs::{explain, explain_hint, reference_markdown};
pub use files::read;
pub use hosts::SshHost;
pub use leases::{SETUP_MAX, Setup, check_setup};
pub use mounts::Mount;
pub use registry::Registry;
pub use rented::{AgentSource, AgentWay, Requote};
pub use schema::schema;
pub use spot::{Bidding, OnInterrupt, Spot};
pub use value::{FILE_BYTES_MAX, SourceFile};
pub use vars::{ENV_PREFIX, VarSources};

use crate::id::{LeaseId, Name, Sha256};
use crate::offer::{Domain, Requirement, Selection};
use crate::state::LeaseRange;
use crate::unit::{Bytes, MicroDollars, Millis};

/// What the user declares should exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Its name; part of where state is kept.
    pub name: Name,
    /// Caps, checked while planning and before each launch.
    pub limits: Limits,
    /// Where its state is kept, as written; none is the default. Not part of the digest: a state that has moved is the
    /// same state.
    #[serde(skip_serializing)]
    pub state: Option<String>,
    /// Relay of the data plane; none means iroh's public ones (none for `local`).
    pub relay: Option<Relay>,
    /// Who sells leases.
    pub providers: BTreeMap<Name, Provider>,
    /// What may be rented, on which terms.
    pub offers: BTreeMap<Name, Offer>,
    /// Machines wanted now, one entry for each `[lease.X]`.
    pub leases: BTreeMap<Name, Lease>,
    /// Models served by chains of workers.
    pub pipelines: BTreeMap<Name, Pipeline>,
    /// How pipelines can be reached.
    pub exposures: BTreeMap<Name, Exposure>,
    /// Old addresses of leases, each with the declared one that it became.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "as_pairs"
    )]
    pub moved: BTreeMap<LeaseRange, LeaseRange>,
    /// Addresses of leases that are no longer declared.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "as_pairs"
    )]
    pub removed: BTreeMap<LeaseRange, Removed>,
}

/// A range is no key of a JSON object.
fn as_pairs<T: Serialize, S: serde::Serializer>(
    map: &BTreeMap<LeaseRange, T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// What becomes of the machines of a lease that is no longer declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// They are ended; else they are taken out of the state only.
    pub release: bool,
}

/// A secret by reference; its value is read when it is needed and never recorded.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum SecretRef {
    /// An environment variable.
    Env(String),
    /// A regular file that only its owner can read.
    File(PathBuf),
    /// A program that prints one line.
    Command(Vec<String>),
}

/// One's own relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Relay {
    /// Its URL.
    pub url: String,
    /// Access token.
    pub token: Option<SecretRef>,
    /// PEM file of a root certificate to trust.
    pub ca: Option<PathBuf>,
}

/// A `[provider.X]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provider {
    /// Which adapter, and its settings.
    pub kind: ProviderKind,
    /// What may be taken of what it sells.
    #[serde(skip_serializing_if = "Selection::is_everything")]
    pub within: Selection,
    /// Over all topologies on its account.
    #[serde(skip_serializing_if = "Caps::is_none")]
    pub caps: Caps,
}

/// The adapters that exist, with their settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ProviderKind {
    /// Process trees on this computer.
    Local {
        /// Machines at once; none is the number of cores.
        slots: Option<u32>,
        /// What a machine is said to cost, for rehearsals.
        price_per_hour: MicroDollars,
    },
    /// Machines of a cloud, rented over its API.
    Cloud {
        /// Which one.
        cloud: Cloud,
        /// The key of the account.
        api_key: SecretRef,
        /// Where the API is; none is the provider's own.
        url: Option<String>,
        /// The SSH key that machines are made with, by its name at the provider.
        #[serde(skip_serializing_if = "Option::is_none")]
        ssh_key: Option<String>,
    },
    /// Machines of one's own, by SSH.
    Ssh {
        /// Them.
        hosts: Vec<SshHost>,
    },
    /// Machines that programs of the user's own get and give back.
    Command {
        /// The programs.
        programs: Programs,
        /// How long each may take.
        timeout: Millis,
    },
}

impl ProviderKind {
    /// The word of `kind` in the file, which the adapter answers to.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Cloud { cloud, .. } => cloud.as_str(),
            Self::Ssh { .. } => "ssh",
            Self::Command { .. } => "command",
        }
    }
}

/// A `[offer.X]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The `[provider.X]` that sells it.
    pub provider: Name,
    /// Which machines.
    pub requirement: Requirement,
    /// Of which type they are, by the provider's own name; it is part of the requirement, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// What they are said to be, where the provider cannot tell by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// All in, one machine; none leaves it to `limits`.
    pub max_price_per_hour: Option<MicroDollars>,
    /// What a rented machine runs; none is the provider's plain image.
    pub image: Option<String>,
    /// Who may pull that image; none is anybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// How the agent gets onto a rented machine; none is the provider's usual way.
    pub agent: Option<AgentSource>,
    /// A machine without work for this long is ended.
    pub idle_timeout: Millis,
    /// A machine this old is ended.
    pub max_lifetime: Millis,
    /// From create to ready; none is the provider's default.
    pub acquire_timeout: Option<Millis>,
    /// Offers tried before a machine is given up.
    pub attempts: u32,
    /// What may be taken when the shortlist is used up.
    pub requote: Requote,
    /// Whether its machines are bid for; none is on demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<Spot>,
}

/// A `[lease.X]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Any of these.
    pub offers: Vec<Name>,
    /// How many machines.
    pub count: u32,
    /// Disk to ask for; none is the usual one, or what its models need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Bytes>,
    /// No command may end them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub protect: bool,
    /// They may be rented although nobody ends them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unguarded: bool,
    /// Narrows every offer's requirement.
    pub requirement: Requirement,
    /// Narrows every offer's price.
    pub max_price_per_hour: Option<MicroDollars>,
    /// Narrows every offer's limit.
    pub idle_timeout: Option<Millis>,
    /// Narrows every offer's limit.
    pub max_lifetime: Option<Millis>,
    /// Narrows every offer's limit.
    pub acquire_timeout: Option<Millis>,
    /// Narrows every offer's limit.
    pub attempts: Option<u32>,
    /// Narrows what every offer allows.
    pub requote: Option<Requote>,
    /// Of which type its machines are, by the provider's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Decides for its machines what the offers say of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Decides for its machines who may pull it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// Decides for its machines how the agent gets there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSource>,
    /// Decides for its machines what the offers say of bids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<Spot>,
    /// How long apply waits when nothing that fits can be had; none is not at all.
    pub wait_for_capacity: Option<Millis>,
    /// All machines or none; none leaves it to what they serve.
    pub gang: Option<bool>,
    /// From the first create until all are ready; none is as long as each may take.
    pub gang_timeout: Option<Millis>,
    /// All of its machines are in one of these.
    pub same: Option<Domain>,
    /// No two of its machines are in one of these.
    pub spread: Option<Domain>,
    /// Environment of every worker on its machines.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secret environment of every worker on its machines.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretRef>,
    /// What its machines run once, before anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Volumes that its machines have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// A `[pipeline.X]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pipeline {
    /// Which model; none for engines that need none.
    pub model: Option<Model>,
    /// What the workers are.
    pub engine: Engine,
    /// More arguments to the worker.
    pub engine_args: Vec<String>,
    /// Environment of every worker.
    pub env: BTreeMap<String, String>,
    /// Secret environment of every worker.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Where the layers go.
    pub stages: Stages,
    /// Numbers on the hop.
    pub dtype: Dtype,
    /// Tokens; none is the model's.
    pub context: Option<u32>,
    /// Requests at once; none is four for each stage.
    pub max_in_flight: Option<u32>,
    /// From start to ready.
    pub ready_timeout: Millis,
    /// One request.
    pub request_timeout: Millis,
    /// What the pipeline must answer to be ready.
    pub check: Check,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The file itself.
    pub source: ModelSource,
    /// Its digest; required for `url`.
    pub sha256: Option<Sha256>,
    /// Access token.
    pub token: Option<SecretRef>,
    /// Who fetches a `url`.
    pub fetch: Fetch,
}

/// The file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ModelSource {
    /// On the operator's computer, relative to the topology file.
    Path(PathBuf),
    /// On a server.
    Url(String),
}

/// Who fetches a model that has a `url`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Fetch {
    /// The leased machine.
    Machine,
    /// The operator's computer, which then delivers it.
    Operator,
}

/// What the workers of a pipeline are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Engine {
    /// `stageline-worker`.
    Native,
    /// Any program that speaks `stage/1`.
    Command(Vec<String>),
    /// Deterministic bytes and tokens, no model.
    Stub,
}

/// Numbers on the hop between stages.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 16 bits, half the bytes.
    Bf16,
    /// 32 bits: a split run equals an unsplit one, token for token.
    F32,
}

/// Layers `start..end` of a model.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
pub struct Layers {
    /// The first.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl std::fmt::Display for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Where the layers of a pipeline go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Stages {
    /// One by one.
    Listed(Vec<Stage>),
    /// One stage for each of these machines, in order; the planner finds the cuts.
    Auto {
        /// The machines.
        #[serde(serialize_with = "all_as_text")]
        on: Vec<LeaseId>,
        /// Environment of every stage.
        env: BTreeMap<String, String>,
    },
}

/// One link of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// The machine it runs on.
    #[serde(serialize_with = "as_text")]
    pub on: LeaseId,
    /// Its layers; none for engines without a model, where the planner numbers them.
    pub layers: Option<Layers>,
    /// GPUs it takes, by number.
    pub gpus: u32,
    /// Environment of this worker.
    pub env: BTreeMap<String, String>,
}

/// What a pipeline must answer to be ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The prompt.
    pub prompt: String,
    /// Tokens to ask for.
    pub max_tokens: u32,
    /// Text that the answer must contain.
    pub expect: Option<String>,
}

/// An `[exposure.X]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exposure {
    /// Told apart by `model`.
    pub pipelines: Vec<Name>,
    /// Which protocol.
    pub serve: Serve,
    /// By which way.
    pub via: Via,
}

/// The protocol of an exposure.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Serve {
    /// OpenAI-compatible HTTP at the entry stage.
    OpenAi,
}

/// The way of an exposure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Via {
    /// A listener on the loopback of the machine with the first pipeline's entry stage.
    Loopback {
        /// Address and port; port 0 takes a free one, kept from then on.
        listen: std::net::SocketAddr,
        /// Asked of every request when set.
        api_key: Option<SecretRef>,
    },
}

fn as_text<S: serde::Serializer>(id: &LeaseId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn all_as_text<S: serde::Serializer>(ids: &[LeaseId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ids.iter().map(ToString::to_string))
}

/// The starters that `init` can write, by name.
pub const TEMPLATES: [&str; 1] = ["local"];

/// A commented starter topology; none for a name that is not in [`TEMPLATES`].
pub fn template(name: &str) -> Option<&'static str> {
    match name {
        "local" => Some(include_str!("topology/template_local.toml")),
        _ => None,
    }
}
