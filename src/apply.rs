//! Runs a plan. Decides nothing.
//!
//! Every step goes through one protocol (`step`): its intention is durable before the call, its outcome after it, and
//! nothing that depends on it starts in between. Recovery is this same code on a longer journal: a step that finds its
//! work done says so. What is absent here: a whole-plan rollback, a provider's name, a second way to resume.

mod agent_steps;
mod alike;
mod awake;
mod boot;
mod bring;
mod claims;
mod course;
mod dates;
mod doubt;
mod failover;
mod gang;
mod last_lines;
mod lease;
mod leave;
mod limited;
mod named;
mod release;
mod room;
mod schedule;
mod setup;
mod step;
pub mod testing;

use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::SecretString;
use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, EndpointKey, Fingerprint, Generation, LeaseId, Name};
use stageline_core::journal::Verb;
use stageline_core::resource::Cause;
use stageline_core::topology::{Caps, SecretRef};
use stageline_core::unit::{MicroDollars, Millis};
use tokio_util::sync::CancellationToken;

pub use room::is_to_be_seen;
pub use schedule::run;

pub use crate::provider::Providers;

use crate::ambient::SharedClock;
use crate::machine::Machines;
use crate::provider::Boot;
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

/// What only the holder of the identity can derive.
pub trait Keys: Send + Sync {
    /// The public key of one try of one machine.
    fn endpoint(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> EndpointKey;

    /// What a new machine needs so that its agent can prove who it is.
    fn boot(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> Boot;

    /// What the relay's token is recorded by; none without one.
    fn relay_token_digest(&self) -> Option<Fingerprint> {
        None
    }
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
    /// Over the topology's life, by the ledger; checked again before each launch.
    pub max_spend: Option<MicroDollars>,
    /// Machines at once, those that are being ended included; checked again before each launch.
    pub max_leases: Option<u32>,
    /// Over all topologies on the account of a provider, by its table; counted again around each launch.
    pub caps: BTreeMap<Name, Caps>,
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
