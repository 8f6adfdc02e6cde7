//! The closed set of things we create: what each should be, what was made, and how a call can end.
//!
//! A spec is what the plan wants; a receipt is what was made and all that its undoing needs, so that a deleted offer
//! strands nothing. Both are recorded, so both are versioned by `journal::FORMAT`.

mod cause;
mod dates;
mod limits;
mod mounted;
mod setup;
mod terms;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{
    Address, EndpointKey, Fingerprint, JournalNumber, LeaseId, MachineId, Name, RequestKey, Sha256,
    StageId,
};
use crate::offer::{Domain, Facts, Place, QuoteId};
use crate::shared::Shared;
use crate::topology::{Dtype, Layers, Mount, Programs, SecretRef, Serve};
use crate::unit::{Bytes, MicroDollars, Millis, Timestamp};

pub use cause::{Cause, FailureClass, Outcome};
pub use dates::{Dates, Told};
pub use limits::LeaseLimits;
pub use mounted::Mounted;
pub use setup::SetupSpec;
pub use terms::Terms;

/// What one resource should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// Not tagged from within: such an enum is buffered whole while it is read, which doubles the time to read a state.
#[serde(rename_all = "lowercase")]
pub enum Spec {
    /// A machine.
    Lease(Shared<LeaseSpec>),
    /// What must be present on a machine.
    Delivery(Box<DeliverySpec>),
    /// A running worker.
    Stage(Box<StageSpec>),
    /// A chain that answers.
    Pipeline(Box<PipelineSpec>),
    /// A way in.
    Exposure(Box<ExposureSpec>),
}

/// A machine, and on which terms it may be rented.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseSpec {
    /// Any of these; the cheapest machine that fits one of them first.
    pub terms: Vec<Terms>,
    /// Free memory that its stages need; part of the requirement.
    #[serde(default)]
    pub memory: Bytes,
    /// Disk to ask for.
    #[serde(default = "usual_disk", skip_serializing_if = "is_usual_disk")]
    pub disk: Bytes,
    /// What its model files take of it, where the file leaves the disk to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Bytes>,
    /// A machine without work for this long is ended.
    pub idle_timeout: Millis,
    /// A machine this old is ended.
    pub max_lifetime: Millis,
    /// From create to ready; none is the provider's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_timeout: Option<Millis>,
    /// No command may end its machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protect: bool,
    /// Offers that are tried before it is given up.
    #[serde(default = "five", skip_serializing_if = "is_five")]
    pub attempts: u32,
    /// How long apply waits for something that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_capacity: Option<Millis>,
    /// The machines of its table come up all or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gang: bool,
    /// From the first create until all of them are ready; none is as long as each may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_timeout: Option<Millis>,
    /// All machines of its table are in one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same: Option<Domain>,
    /// No two machines of its table are in one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Domain>,
    /// What its machine runs once, before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Box<SetupSpec>>,
    /// Volumes that its machine has, as the file names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

const fn five() -> u32 {
    5
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
const fn is_five(attempts: &u32) -> bool {
    *attempts == five()
}

/// What is asked for when nothing else is said; a state of before has no other.
pub const DISK: Bytes = Bytes::gib(20);

fn usual_disk() -> Bytes {
    DISK
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_usual_disk(disk: &Bytes) -> bool {
    *disk == DISK
}

/// Whose account a machine is on, and how its key is had: all that is needed to end it when its table is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Account {
    /// The account at the provider, by which another account's key is told from its own.
    pub id: String,
    /// The key, by reference; none where the account has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// A fingerprint of the key, for messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key_fingerprint: String,
    /// Where the API is, when it is not the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The programs that are the provider, where it is one of the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Box<Programs>>,
    /// Files of SSH keys that its hosts are logged in with, by path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<std::path::PathBuf>,
}

/// What must be present on a machine before its workers start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeliverySpec {
    /// One for each pipeline with a stage on this machine.
    pub pipelines: BTreeMap<Name, PipelineShare>,
    /// The relay that the agent keeps a connection to; none is direct only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelaySpec>,
}

/// A relay by what it is told from another, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RelaySpec {
    /// Which one.
    pub url: String,
    /// Certificates that are trusted besides the usual roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaSpec>,
    /// Asked for by the relay; by reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
    /// Tells a changed token from an unchanged one; salted with the lineage. None while the token was not at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_digest: Option<Fingerprint>,
}

/// A file with certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaSpec {
    /// Where, from the topology's folder.
    pub path: std::path::PathBuf,
    /// What is in it; none while nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Fingerprint>,
}

impl RelaySpec {
    /// Whether an agent that was told the one has what the other says. What is not known on one side is not a change.
    pub fn says_the_same(&self, other: &Self) -> bool {
        fn same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> Option<bool> {
            Some(one? == other?)
        }
        let ca = match (&self.ca, &other.ca) {
            (Some(one), Some(other)) => {
                same(one.digest.as_ref(), other.digest.as_ref()).unwrap_or(one.path == other.path)
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        let token = same(self.token_digest.as_ref(), other.token_digest.as_ref())
            .unwrap_or(self.token == other.token);
        self.url == other.url && ca && token && self.token.is_some() == other.token.is_some()
    }
}

/// One machine's share of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineShare {
    /// The model, and which of its layers this machine needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Every stage of the pipeline in order: what the roster is made from.
    pub roster: Vec<RosterLine>,
    /// Machines that may send prompts besides the operator and the entry's own: those whose exposure serves this
    /// pipeline from another machine. Sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt_from: Vec<LeaseId>,
    /// Requests at once, over all stages.
    pub max_in_flight: u32,
    /// One request.
    pub request_timeout: Millis,
    /// Numbers on the hop.
    pub dtype: Dtype,
}

/// A part of a model file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shard {
    /// Which file.
    pub model: ModelRef,
    /// The layers that are needed; several when several stages share a machine.
    pub layers: Vec<Layers>,
    /// Whether the first stage is here: it needs the embedding and the tokenizer.
    pub entry: bool,
    /// Whether the last stage is here: it needs the output head.
    pub exit: bool,
    /// Bytes of the file that are needed.
    pub bytes: Bytes,
}

/// A model file by content, and where its bytes can be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRef {
    /// Its digest: what it is.
    pub sha256: Sha256,
    /// Its length.
    pub size: Bytes,
    /// Where the bytes come from; not part of what it is.
    pub origin: ModelOrigin,
    /// Asked for by the server of a URL, by reference; not part of what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
}

/// Where the bytes of a model come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelOrigin {
    /// The operator sends them out of this file.
    Operator(std::path::PathBuf),
    /// The operator fetches this URL and sends them.
    OperatorUrl(String),
    /// The machine fetches this URL.
    MachineUrl(String),
}

/// One stage as the roster names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct RosterLine {
    /// The machine that it runs on.
    pub lease: LeaseId,
    /// Its layers, for engines that have a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
}

/// A running worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageSpec {
    /// The machine that it runs on.
    pub on: LeaseId,
    /// How many stages the pipeline has.
    pub num_stages: u32,
    /// What runs.
    pub engine: EngineSpec,
    /// Its layers, for engines that have a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
    /// Its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Sha256>,
    /// More arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engine_args: Vec<String>,
    /// Environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secret environment, by reference.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretRef>,
    /// GPUs by number on that machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// Numbers on the hop.
    pub dtype: Dtype,
    /// Tokens; none is the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// From start to ready.
    pub ready_timeout: Millis,
}

/// What runs as a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineSpec {
    /// `stageline-worker`.
    Native,
    /// Any program that speaks `stage/1`.
    Command(Vec<String>),
    /// Deterministic bytes and tokens, no model.
    Stub,
}

/// A chain that answers its check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineSpec {
    /// The machines of its stages, in order.
    pub stages: Vec<LeaseId>,
    /// The prompt.
    pub prompt: String,
    /// Tokens to ask for.
    pub max_tokens: u32,
    /// Text that the answer must contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// The longest that the check may take.
    pub request_timeout: Millis,
}

/// A way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExposureSpec {
    /// Pipelines with the machine of each one's entry stage.
    pub pipelines: BTreeMap<Name, LeaseId>,
    /// The machine that listens: the entry of the first pipeline in the file.
    pub at: LeaseId,
    /// Which protocol.
    pub serve: Serve,
    /// By which way.
    pub via: ViaSpec,
}

/// The way of an exposure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ViaSpec {
    /// A listener on the loopback of the machine at the entry.
    Loopback {
        /// Address and port; port 0 takes a free one.
        listen: SocketAddr,
        /// Asked of every request when set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api_key: Option<SecretRef>,
    },
}

/// What was made, and all that its undoing needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// As for [`Spec`].
#[serde(rename_all = "lowercase")]
pub enum Receipt {
    /// A machine.
    Lease(Box<LeaseReceipt>),
    /// What is present on a machine.
    Delivery(Box<DeliveryReceipt>),
    /// A running worker.
    Stage(Box<StageReceipt>),
    /// A chain that answered.
    Pipeline(Box<PipelineReceipt>),
    /// A way in.
    Exposure(Box<ExposureReceipt>),
}

/// A machine that we hold and pay for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseReceipt {
    /// The `[provider.NAME]` at that time.
    pub provider: Name,
    /// The adapter: enough to undo it when the table is gone.
    pub provider_kind: String,
    /// The `[offer.NAME]` at that time.
    pub offer: Name,
    /// On whose account; none where there are no accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// The quote that was taken.
    pub quote: QuoteId,
    /// What the provider calls the machine.
    pub machine: MachineId,
    /// By which it can be found.
    pub request_key: RequestKey,
    /// What it costs.
    pub price_per_hour: MicroDollars,
    /// When the provider returned its id.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// Where it is, as far as the provider tells.
    #[serde(default, skip_serializing_if = "Place::is_unknown")]
    pub place: Place,
    /// What was found when it became ready; none until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<LeaseReady>,
}

/// A machine whose agent answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseReady {
    /// Measured by the agent.
    pub facts: Shared<Facts>,
    /// The agent's public key.
    pub endpoint: EndpointKey,
    /// How to reach it.
    pub contact: Contact,
}

/// How an agent can be reached.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Contact {
    /// Addresses that may work directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub direct: Vec<SocketAddr>,
    /// The relay that it keeps a connection to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
}

impl Contact {
    /// Nothing is known.
    pub fn is_unknown(&self) -> bool {
        self.direct.is_empty() && self.relay.is_none()
    }

    /// Where it is by now, when all that is told of it is new. What is reached by a relay alone has no address to lose.
    pub fn moved(&self, told: &Self) -> Option<Self> {
        let known = |address| self.direct.contains(address);
        if self.direct.is_empty() || told.direct.is_empty() || told.direct.iter().any(known) {
            return None;
        }
        Some(Self {
            direct: told.direct.clone(),
            relay: told.relay.clone().or_else(|| self.relay.clone()),
        })
    }

    /// Wherever it may be: where it is told to be now, and where it was.
    #[must_use]
    pub fn or_at(&self, now: &Self) -> Self {
        let before = self.direct.iter().filter(|it| !now.direct.contains(it));
        Self {
            direct: now.direct.iter().chain(before).copied().collect(),
            relay: now.relay.clone().or_else(|| self.relay.clone()),
        }
    }

    /// Its addresses in words.
    pub fn addresses(&self) -> String {
        let each: Vec<String> = self.direct.iter().map(ToString::to_string).collect();
        each.join(", ")
    }
}

/// What is present on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryReceipt {
    /// The agent that has it.
    pub endpoint: EndpointKey,
    /// The revision of each pipeline's roster: the journal number of the step that made it.
    pub rosters: BTreeMap<Name, JournalNumber>,
    /// The key of every machine that the rosters named: tells a roster with an old key from a current one. One that is reached
    /// elsewhere by now is taken out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<LeaseId, EndpointKey>,
}

/// A running worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageReceipt {
    /// The agent that supervises it.
    pub endpoint: EndpointKey,
    /// What the agent was told: its digest tells a changed stage from an unchanged one.
    pub spec: Fingerprint,
}

/// A chain that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineReceipt {
    /// The beginning of the answer to the check.
    pub answer: String,
    /// How long it took.
    pub took: Millis,
}

/// A way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExposureReceipt {
    /// The agent that listens.
    pub endpoint: EndpointKey,
    /// What a client is pointed at.
    pub url: String,
    /// The key of every entry machine that it was given: tells an old key from a current one. One that is reached elsewhere by
    /// now is taken out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<LeaseId, EndpointKey>,
}

impl Spec {
    /// The digest of the whole spec: equal when nothing is to be done.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_json(self)
    }
}

/// The stage that an address names, if it names one.
pub fn stage_of(address: &Address) -> Option<&StageId> {
    match address {
        Address::Stage(id) => Some(id),
        Address::Lease(_)
        | Address::Delivery(_)
        | Address::Bundle(_)
        | Address::Pipeline(_)
        | Address::Exposure(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_is_not_known_to_have_changed_has_not() {
        let relay = |token: Option<&str>, digest: Option<u8>, ca: Option<u8>| RelaySpec {
            url: "https://relay.example".to_owned(),
            ca: Some(CaSpec {
                path: "ca.pem".into(),
                digest: ca.map(|byte| Fingerprint([byte; 32])),
            }),
            token: token.map(|name| SecretRef::Env(name.to_owned())),
            token_digest: digest.map(|byte| Fingerprint([byte; 32])),
        };
        let told = relay(Some("A"), Some(1), Some(1));
        for (other, same) in [
            (relay(Some("A"), Some(1), Some(1)), true),
            // The same token by another name.
            (relay(Some("B"), Some(1), Some(1)), true),
            (relay(Some("A"), Some(2), Some(1)), false),
            (relay(Some("A"), Some(1), Some(2)), false),
            // Nobody had it at hand.
            (relay(Some("A"), None, Some(1)), true),
            (relay(Some("B"), None, Some(1)), false),
            (relay(Some("A"), Some(1), None), true),
            (relay(None, None, Some(1)), false),
        ] {
            assert_eq!(told.says_the_same(&other), same, "{other:?}");
            assert_eq!(other.says_the_same(&told), same, "{other:?}");
        }
        let elsewhere = RelaySpec {
            url: "https://other.example".to_owned(),
            ..told.clone()
        };
        assert!(!told.says_the_same(&elsewhere));
    }
}
