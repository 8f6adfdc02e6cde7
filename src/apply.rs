//! Runs a plan. Decides nothing.
//!
//! Every step goes through one protocol (`step`): its intention is durable before the call, its outcome after it, and
//! nothing that depends on it starts in between. Recovery is this same code on a longer journal: a step that finds its
//! work done says so. What is absent here: a whole-plan rollback, a provider's name, a second way to resume.

mod agent_steps;
mod doubt;
mod lease;
mod release;
mod schedule;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::SecretString;
use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, EndpointKey, Generation, LeaseId, Name};
use stageline_core::journal::Verb;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::SecretRef;
use stageline_core::unit::{MicroDollars, Millis};
use tokio_util::sync::CancellationToken;

pub use schedule::run;

use crate::ambient::SharedClock;
use crate::machine::Machines;
use crate::provider::{Boot, Provider};
use crate::store::AppendError;

/// The door through which all effects come in.
#[derive(Clone)]
pub struct Effects {
    /// Who sells leases.
    pub providers: Providers,
    /// Our hands on leased machines; none for a run that only ends machines.
    pub machines: Option<Arc<dyn Machines>>,
    /// The identity's keys; none for a run that only ends machines.
    pub keys: Option<Arc<dyn Keys>>,
    /// Reads secrets by reference.
    pub secrets: Arc<dyn Secrets>,
    /// Time.
    pub clock: SharedClock,
    /// Where news goes.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
}

/// The providers by table name. A lease whose table is gone is still ended, through any provider of its kind.
#[derive(Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<Name, Arc<dyn Provider>>,
    by_kind: BTreeMap<String, Arc<dyn Provider>>,
}

impl Providers {
    /// Adds a declared provider.
    pub fn insert(&mut self, name: Name, provider: Arc<dyn Provider>) {
        self.by_name.insert(name, provider);
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
        named.or_else(|| self.by_kind.get(kind)).ok_or_else(|| {
            Cause::new(
                FailureClass::Config,
                format!("provider `{name}` of kind `{kind}` cannot be reached: its table is gone"),
            )
            .hint(format!(
                "put [provider.{name}] with kind = \"{kind}\" back into the topology"
            ))
        })
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
        self.by_name.values().chain(rest)
    }
}

/// What only the holder of the identity can derive.
pub trait Keys: Send + Sync {
    /// The public key of one try of one machine.
    fn endpoint(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> EndpointKey;

    /// What a new machine needs so that its agent can prove who it is.
    fn boot(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> Boot;
}

/// Reads secrets when they are needed.
pub trait Secrets: Send + Sync {
    /// The value.
    ///
    /// # Errors
    /// [`Cause`] that names the reference, never the value.
    fn read(&self, secret: &SecretRef) -> Result<SecretString, Cause>;
}

/// How a run is steered.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps at once.
    pub parallelism: usize,
    /// All machines together, checked again before each launch.
    pub max_total_per_hour: Option<MicroDollars>,
    /// Fires at the first Ctrl-C: no new step, waits are cut.
    pub interrupt: CancellationToken,
    /// How long running calls may go on after that.
    pub grace: Millis,
}

/// Default of `--parallelism`.
pub const PARALLELISM: usize = 10;

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Steps that were done, those done by an earlier run of the same plan included.
    pub done: u32,
    /// Steps that failed, each with its reason.
    pub failed: Vec<Failed>,
    /// Steps that were never started, each with the failed resource that it waited for, if that was why.
    pub blocked: Vec<(Address, Verb, Option<Address>)>,
    /// The user interrupted.
    pub interrupted: bool,
    /// The journal could not be written: nothing more was done.
    pub journal: Option<AppendError>,
}

/// A step that did not do what it should.
#[derive(Clone, Debug)]
pub struct Failed {
    /// On what.
    pub address: Address,
    /// What should have been done.
    pub verb: Verb,
    /// Why.
    pub cause: Cause,
    /// It may have been done all the same.
    pub in_doubt: bool,
}

impl Summary {
    /// Every step was done.
    pub fn finished(&self) -> bool {
        self.failed.is_empty()
            && self.blocked.is_empty()
            && !self.interrupted
            && self.journal.is_none()
    }
}
