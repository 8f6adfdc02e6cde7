//! Sellers of leases: the trait that each adapter implements, and what adapters declare about themselves.
//!
//! The rest of the program branches on declared [`Traits`], never on names. Wire formats end inside an adapter. An
//! adapter knows nothing of plans, state or journals.

mod account;
mod charges;
pub mod command;
mod doors;
pub mod http;
mod increase;
pub mod lambda;
mod leftover;
mod limits;
pub mod local;
mod phase;
pub mod runpod;
pub mod sim;
pub mod ssh;
pub mod vastai;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::{SecretBox, SecretString};
use stageline_core::id::{
    Attempt, Generation, LeaseId, Lineage, MachineId, Name, OperatorId, RequestKey,
};
use stageline_core::label::Label;
use stageline_core::offer::{Facts, Quote, QuoteId, Requirement, Volume};
use stageline_core::resource::{
    Account, Cause, Contact, Dates, FailureClass, LeaseLimits, Mounted, Outcome, Told,
};
use stageline_core::topology::{AgentSource, AgentWay};
use stageline_core::unit::{Bytes, MicroDollars, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

pub use account::same_account;
pub use charges::{Charged, Charges};
pub use increase::Increase;
pub use limits::{BootLimits, PhaseLimit};
pub use phase::{AGENT_PHASE, NOT_PULLED, Phase, SSH_PHASE};
pub use view::{Unseen, View};

use crate::pipeline::endpoint::RelayAccess;
use crate::ssh::{Login, OwnKey};

/// What an adapter declares, so that nobody has to know its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// `find` sees a machine by the request key it was made with.
    pub finds_by_key: bool,
    /// A created machine may be missing from listings for this long.
    pub visibility_delay: Duration,
    /// A create that was answered with an error may still take effect for this long.
    pub late_commit_window: Duration,
    /// Longest that one create request may take before it is given up.
    pub request_timeout: Duration,
    /// From create to ready for the slowest shape, when the topology says nothing.
    pub acquire_timeout: Duration,
    /// How long a provider that takes no release, or cannot be seen, is asked again before that is told.
    pub refused_after: Duration,
    /// How long a machine may be listed on whose end was agreed to, before it is told that it may still be there.
    pub gone_within: Duration,
    /// A machine costs money from its create on; else from when it runs.
    pub bills_booting: bool,
    /// A stopped machine goes on costing money.
    pub bills_while_stopped: bool,
    /// The machine can end itself with a key that can do only that.
    pub self_destroy: bool,
    /// A machine that restarts, as after a failure of its host, has an empty disk: what was pushed there is gone.
    pub restarts_empty: bool,
    /// A quote can be taken by one only.
    pub offers_are_one: bool,
    /// It bills what a machine sends and receives, beside its price.
    pub bills_traffic: bool,
    /// Machines cost nothing, so nobody needs to guard their end.
    pub free: bool,
    /// How an agent gets onto its machines where the offer does not say; none where it need not.
    pub agent: Option<AgentWay>,
    /// It lists all machines of the account. Else it sees only those that were made from here: one that nothing records cannot be
    /// seen, and one is gone when its release said so.
    pub sees_account: bool,
    /// Least time between two requests to one endpoint; zero is no gate.
    pub rate: Duration,
    /// How long a machine of the slowest shape may stay in these phases of its boot.
    pub phases: Vec<PhaseLimit>,
    /// How long it may stay in any other one.
    pub phase_timeout: Duration,
}

/// [`Traits::refused_after`] of a provider in a data centre: what it cannot do now it may in a minute.
pub const REFUSED_AFTER: Duration = Duration::from_secs(120);

/// [`Traits::gone_within`], likewise.
pub const GONE_WITHIN: Duration = Duration::from_secs(10 * 60);

/// All that a new machine needs so that its agent can prove who it is.
pub struct Boot {
    /// The agent's secret key, derived from identity, lineage, address, generation and attempt.
    pub agent_key: SecretBox<[u8; 32]>,
    /// Whom the agent obeys.
    pub operator: OperatorId,
    /// Which life of a topology it belongs to.
    pub lineage: Lineage,
    /// Which machine it is.
    pub lease: LeaseId,
    /// How often it was replaced.
    pub generation: Generation,
    /// Which try it is.
    pub attempt: Attempt,
    /// The relay to keep a connection to; none is direct only.
    pub relay: Option<RelayAccess>,
    /// The limits that the machine keeps by itself, where it can end itself.
    pub limits: Option<LeaseLimits>,
}

/// One create. Unsafe to repeat.
pub struct CreateRequest {
    /// The machine's name or label.
    pub request_key: RequestKey,
    /// What is taken.
    pub quote: Quote,
    /// What was asked for.
    pub requirement: Requirement,
    /// Disk to ask for.
    pub disk: Bytes,
    /// What the machine runs; none is the provider's plain image.
    pub image: Option<String>,
    /// Who may pull that image; none is anybody.
    pub registry: Option<RegistryLogin>,
    /// How the agent gets there; none is the provider's usual way.
    pub agent: Option<AgentSource>,
    /// Volumes that it has.
    pub mounts: Vec<Mounted>,
    /// For the agent.
    pub boot: Boot,
    /// Who hears what is said while it is made, line by line; for adapters that hear something themselves.
    pub told: Option<UnboundedSender<String>>,
}

/// A login at a registry of images, with its password.
#[derive(Debug)]
pub struct RegistryLogin {
    /// Which registry.
    pub server: String,
    /// Who pulls.
    pub username: String,
    /// Never printed.
    pub password: SecretString,
}

impl CreateRequest {
    /// The machine that a create was answered with: on its way, in this phase, and as the quote said.
    pub fn made(&self, id: MachineId, phase: &str) -> Machine {
        Machine {
            id,
            request_key: Some(self.request_key.clone()),
            name: Label::new(self.request_key.as_str()),
            status: MachineStatus::Pending(Phase::new(phase)),
            price_per_hour: self.quote.price_per_hour,
            facts: self.quote.facts.clone(),
            contact: Contact::default(),
            created_at: None,
            ended_at: None,
            told_at: None,
            away_price: None,
        }
    }
}

/// What a machine is handed that has no agent yet.
pub struct Bring<'a> {
    /// For the agent.
    pub boot: Boot,
    /// How the agent gets there; none is the provider's usual way.
    pub agent: Option<AgentSource>,
    /// A native worker is to run there.
    pub native: bool,
    /// Its agent runs, and said that it has none.
    pub lacks_worker: bool,
    /// The keys of hosts that are on record, by `address:port`.
    pub host_keys: &'a BTreeMap<String, String>,
}

/// How far a machine is that is being handed its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Brought {
    /// Nothing more is to be done: its agent was started, or gets there otherwise.
    There,
    /// It is on its way.
    Pending(Phase),
    /// Nothing secret was sent yet: the host shows a key that is to be put on record first.
    Met {
        /// `address:port`.
        host: String,
        /// Its key, as OpenSSH writes it.
        key: String,
        /// For people.
        fingerprint: String,
    },
}

/// Where a machine is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineStatus {
    /// On its way.
    Pending(Phase),
    /// Up, which says nothing about its agent.
    Running,
    /// On its way out, still billed.
    Ending,
    /// Ended, or broken for good, in the provider's words. May still be billed until released.
    Dead(String),
    /// It was bid for and is stopped: taken away, or never begun for too low a bid. Billed until released, at what is said.
    Interrupted(String),
}

/// A machine as the provider shows it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What the provider calls it.
    pub id: MachineId,
    /// The name or label, when it is one of our keys.
    pub request_key: Option<RequestKey>,
    /// What it is called there, whoever called it so; none where machines have no name.
    pub name: Option<Label>,
    /// Where it is in its life.
    pub status: MachineStatus,
    /// What it costs.
    pub price_per_hour: MicroDollars,
    /// What the provider claims.
    pub facts: Facts,
    /// How its agent may be reached, as far as known.
    pub contact: Contact,
    /// When it was made, by the provider's clock.
    pub created_at: Option<Timestamp>,
    /// When it ended and billed no more, by the provider's clock; only where the provider itself says so.
    pub ended_at: Option<Timestamp>,
    /// What that clock, if nobody sets it, showed when this was said: it was billed from [`Machine::created_at`] until then.
    pub told_at: Option<Timestamp>,
    /// What it costs again when its host, which is away, comes back.
    pub away_price: Option<MicroDollars>,
}

impl Machine {
    /// Whether its name is one of our keys and begins with this.
    pub fn carries(&self, key_prefix: &str) -> bool {
        let key = self.request_key.as_ref();
        key.is_some_and(|key| key.as_str().starts_with(key_prefix))
    }

    /// From when to when it was billed, as far as its provider says both.
    pub fn told(&self) -> Option<Told> {
        let from = self.created_at?;
        let to = self.ended_at.or(self.told_at)?;
        Some(Told {
            machine: self.id.clone(),
            key: self.request_key.clone(),
            price_per_hour: self.price_per_hour,
            dates: Dates {
                from,
                to: to.max(from),
                over: self.ended_at.is_some(),
            },
        })
    }
}

/// A read that did not yield a trustworthy answer. Never the same as an empty one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot see the account of provider `{provider}`: {}", cause.message)]
pub struct Blind {
    /// Which provider.
    pub provider: Name,
    /// Why.
    pub cause: Cause,
    /// How long the provider asked us to wait.
    pub retry_after: Option<Duration>,
}

/// What a release call said. Only a listing proves that the machine is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The provider took it.
    Accepted,
    /// The provider knows no such machine.
    Unknown,
}

/// Sells leases.
#[async_trait]
pub trait Provider: Send + Sync {
    /// The adapter, such as `local`.
    fn kind(&self) -> &'static str;

    /// What it declares.
    fn traits(&self) -> &Traits;

    /// What can be rented now, as claimed, priced with this much disk; the caller compares each with the requirement again. A
    /// shape of which there are several and that is sold out is among it as `Many(0)`, since a caller may give a machine back
    /// first; an offer that only one can take is not there any more once it is taken. Every adapter that can see this does
    /// it so.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn search(&self, requirement: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind>;

    /// Its own names of types of machines, those included that are sold out and those of several types; none where it has no such
    /// names.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn instance_types(&self) -> Result<BTreeSet<String>, Blind> {
        Ok(BTreeSet::new())
    }

    /// What can be had for a bid, as [`Provider::search`]; each quote is for just this bid, or for the least that is taken, and its
    /// price is what is bid and the disk. Asks that take no such bid are among it and say so. None where it takes no bids.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn bids(
        &self,
        _: &Requirement,
        _: Bytes,
        _: Option<MicroDollars>,
    ) -> Result<Vec<Quote>, Blind> {
        Ok(Vec::new())
    }

    /// The volumes of the account that can be mounted on a machine. They are looked at and never changed.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn volumes(&self) -> Result<Vec<Volume>, Blind> {
        Ok(Vec::new())
    }

    /// One quote, read again right before a launch and priced with this much disk; none when it is gone or sold out.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind>;

    /// Whose account it rents on and lists; none where there are no accounts. A listing proves nothing about machines of
    /// another one.
    ///
    /// # Errors
    /// [`Blind`] when that cannot be told.
    async fn account(&self) -> Result<Option<Account>, Blind> {
        Ok(None)
    }

    /// Whether anybody is billed for its machines. A price without a bill is for rehearsals.
    fn bills(&self) -> bool {
        true
    }

    /// Whether its machines write to one disk, each other's and ours. What is free of it is an observation then, and no claim.
    fn shares_disk(&self) -> bool {
        false
    }

    /// Whether what costs nothing now goes on doing so, so that a try of it is no risk.
    fn stays_free(&self) -> bool {
        self.traits().free
    }

    /// How long a machine with these facts may take to get ready; without facts, the slowest that it sells.
    fn boot_limits(&self, _: Option<&Facts>) -> BootLimits {
        BootLimits::of(self.traits())
    }

    /// Takes the next turn for a create and says how long it is until then: a create goes out right after its intention
    /// is written down, so that it waits before.
    fn turn(&self) -> Duration {
        Duration::ZERO
    }

    /// Rents a machine. Sent at most once; a time-out or a cut connection is in doubt.
    async fn create(&self, request: CreateRequest) -> Outcome<Machine>;

    /// Whether [`Provider::bring`] has anything to do.
    fn brings(&self) -> bool {
        false
    }

    /// Gets the agent onto a machine that runs, where the adapter does that itself. Asked again until it is there; what takes
    /// long goes on meanwhile.
    ///
    /// # Errors
    /// [`Cause`] when that machine will never have one.
    async fn bring(&self, _: &MachineId, _: Bring<'_>) -> Result<Brought, Cause> {
        Ok(Brought::There)
    }

    /// How the agent gets onto a machine of an offer that says this.
    fn agent_way(&self, _: &MachineId, source: Option<&AgentSource>) -> Option<AgentWay> {
        AgentWay::of(source, self.traits().agent)
    }

    /// The C library (`glibc 2.35`) that machines of this image have at least; none is the provider's plain image. Empty where nobody
    /// tells.
    fn libc(&self, _: Option<&str>) -> &'static str {
        ""
    }

    /// Takes the key by which a machine that it brought an agent to lets us in, where whoever releases it has the identity.
    fn holds_key(&self, _: &MachineId, _: OwnKey) {}

    /// Every machine whose key begins with this, ended ones that are still billed included.
    ///
    /// # Errors
    /// [`Blind`] when the listing is not complete and trusted.
    async fn find(&self, key_prefix: &str) -> Result<Vec<Machine>, Blind> {
        let mut machines = self.list().await?;
        machines.retain(|machine| machine.carries(key_prefix));
        Ok(machines)
    }

    /// Every machine of the account, also one that carries no key of ours: somebody may have renamed it.
    ///
    /// # Errors
    /// [`Blind`] when the listing is not complete and trusted.
    async fn list(&self) -> Result<Vec<Machine>, Blind>;

    /// Whether parts of the account can be seen without the others: then [`Provider::view`] may lack some.
    fn has_parts(&self) -> bool {
        false
    }

    /// The same as [`Provider::list`], and which parts of the account are missing in it.
    ///
    /// # Errors
    /// [`Blind`] when nothing of it can be trusted.
    async fn view(&self) -> Result<View, Blind> {
        Ok(View {
            machines: self.list().await?,
            unseen: Vec::new(),
        })
    }

    /// Every machine with its dates, those included that are over and cost nothing any more, for as long as the provider
    /// tells of them: for the ledger alone. None where it tells no dates.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn dated(&self) -> Result<Option<Vec<Machine>>, Blind> {
        Ok(None)
    }

    /// What it billed for machines of the account since then, by its own word; none where it has no call for that.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn charges(&self, _: Timestamp, _: Timestamp) -> Result<Option<Charges>, Blind> {
        Ok(None)
    }

    /// What hosts ask for machines of the account that cost less now.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn increases(&self) -> Result<Vec<Increase>, Blind> {
        Ok(Vec::new())
    }

    /// One machine; none when the provider knows no such id, which is no proof that it never will.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind>;

    /// A recorded machine that a listing lacks, asked for by its id alone where the API tells so of one that a whole listing may have
    /// lost; none when it is not there either.
    ///
    /// # Errors
    /// [`Blind`] when the answer cannot be trusted.
    async fn missed(&self, _: &MachineId) -> Result<Option<Machine>, Blind> {
        Ok(None)
    }

    /// Ends a machine. May be repeated freely.
    ///
    /// # Errors
    /// [`Cause`] when the provider did not take it.
    async fn release(&self, id: &MachineId) -> Result<Released, Cause>;

    /// How one may log in to a machine; none where its provider lets nobody in by SSH, or we do not know how.
    ///
    /// # Errors
    /// [`Cause`] when that cannot be told.
    fn login(&self, _: &MachineId) -> Result<Option<Login>, Cause> {
        Ok(None)
    }

    /// The last `tail` bytes of what the machine itself printed.
    ///
    /// # Errors
    /// [`Cause`] when there are none to be had.
    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause>;
}

impl Blind {
    /// Blindness of a kind that is not known better.
    pub fn unknown(provider: &Name, message: impl Into<String>) -> Self {
        Self {
            provider: provider.clone(),
            cause: Cause::new(FailureClass::Unknown, message),
            retry_after: None,
        }
    }
}

/// The providers by table name. A lease whose table is gone is still ended, through any provider of its kind.
#[derive(Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<Name, Arc<dyn Provider>>,
    by_kind: BTreeMap<String, Arc<dyn Provider>>,
    recorded: Vec<(Name, Arc<dyn Provider>)>,
}

impl Providers {
    /// Adds a declared provider.
    pub fn insert(&mut self, name: Name, provider: Arc<dyn Provider>) {
        self.by_name.insert(name, provider);
    }

    /// Adds the provider that recorded machines are on, where its table is gone or has another kind now. Another one under
    /// that name stays.
    pub fn insert_recorded(&mut self, name: Name, provider: Arc<dyn Provider>) {
        self.recorded.push((name, provider));
    }

    /// Adds the provider for leases whose table is gone.
    pub fn insert_kind(&mut self, provider: Arc<dyn Provider>) {
        self.by_kind.insert(provider.kind().to_owned(), provider);
    }

    /// The provider of a table, or one of that kind when the table is gone or has another kind now.
    pub fn get(&self, name: &Name, kind: &str) -> Result<&Arc<dyn Provider>, Cause> {
        let named = self
            .by_name
            .get(name)
            .filter(|provider| provider.kind() == kind);
        let recorded = self
            .recorded
            .iter()
            .find(|(recorded, provider)| recorded == name && provider.kind() == kind)
            .map(|(_, provider)| provider);
        named
            .or(recorded)
            .or_else(|| self.by_kind.get(kind))
            .ok_or_else(|| {
                Cause::new(
                    FailureClass::Config,
                    format!(
                        "provider `{name}` of kind `{kind}` cannot be reached: its table is gone"
                    ),
                )
                .hint(format!(
                    "put [provider.{name}] with kind = \"{kind}\" back into the topology"
                ))
            })
    }

    /// Every provider once with its name.
    pub fn named(&self) -> impl Iterator<Item = (Name, &Arc<dyn Provider>)> {
        self.all()
            .map(|provider| (self.name_of(provider.as_ref()), provider))
    }

    /// The name of a provider's table, also of one that is gone; one for all tables that are gone has its kind's.
    pub fn name_of(&self, provider: &dyn Provider) -> Name {
        let recorded = self.recorded.iter().map(|(name, other)| (name, other));
        let mut all = self.by_name.iter().chain(recorded);
        let found = all.find(|(_, other)| std::ptr::addr_eq(Arc::as_ptr(other), provider));
        let kind = || provider.kind().parse().expect("a kind is a name");
        found.map_or_else(kind, |(name, _)| name.clone())
    }

    /// Every provider once, by name, those for missing tables last.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        let named: Vec<&str> = self
            .by_name
            .values()
            .map(|provider| provider.kind())
            .collect();
        let rest = self
            .by_kind
            .values()
            .filter(move |provider| !named.contains(&provider.kind()));
        let recorded = self.recorded.iter().map(|(_, provider)| provider);
        self.by_name.values().chain(recorded).chain(rest)
    }
}
