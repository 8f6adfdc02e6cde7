//! The recorded world: the journal, folded.
//!
//! One transition function, [`State::apply`], whether an entry was written just now or is read back after a crash:
//! recovery has no code of its own. A state never forgets a try that may still cost money.

mod bad;
mod fold;
mod lapse;
mod ledger;
mod observed;
mod rollback;
mod salvage;
pub(crate) mod stored;
mod surgery;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bad::{BAD_FOR, BAD_MAX, BadHost};
pub use fold::FoldError;
pub use lapse::{Lapse, Limit};
pub use ledger::{Billed, CHARGED_MAX, Charge, Dated, Ledger, LedgerClock, Spent};
pub use observed::{LookAlike, Observed, ObservedAgent, ObservedLease, ObservedStage, Seen, Stray};
pub use surgery::{Edit, Imported, LeaseRange, Surgery, SurgeryError};

use crate::id::{
    Address, Attempt, Epoch, Fingerprint, Generation, JournalNumber, LeaseId, Lineage, MachineId,
    Name, OperatorId, PlanId, RequestKey,
};
use crate::journal::{Launch, Verb};
use crate::offer::QuoteId;
use crate::plan::StepId;
use crate::resource::{Cause, LeaseReceipt, Receipt, Spec};
use crate::unit::{MicroDollars, Timestamp};

/// Everything that is known from the journal. As JSON for people it is written whole; see [`State::stored`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct State {
    /// Who and what; none before the first entry.
    pub genesis: Option<Genesis>,
    /// The run that was begun last.
    pub run: Option<Run>,
    /// Every resource that exists, may exist, or is on its way.
    pub resources: BTreeMap<Address, Recorded>,
    /// The last generation that each address had, so that no request key is used twice.
    pub generations: BTreeMap<Address, Generation>,
    /// Plans that were begun; whether each was finished.
    pub consumed: BTreeMap<PlanId, Consumed>,
    /// Leases that ended: at most [`ENDED_MAX`], oldest first.
    pub ended: Vec<EndedLease>,
    /// Hosts and offers that a machine failed on: at most [`BAD_MAX`], oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad: Vec<BadHost>,
    /// What each lease has cost by machines that are over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spent: BTreeMap<LeaseId, Spent>,
    /// What was charged for machines whose provider tells dates: at most [`CHARGED_MAX`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub charged: BTreeMap<MachineId, Charge>,
    /// Machines that ended up to then, by their provider's clock, may have been charged and forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub forgotten: Option<Timestamp>,
    /// What makes the ledger's times.
    #[serde(default, skip_serializing_if = "is_new")]
    pub clock: LedgerClock,
    /// Machines with our mark that were taken out of the state: not ours to end, and nobody else's either.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disowned: BTreeMap<MachineId, Disowned>,
    /// Leases that ended by a limit of their own, and stay ended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lapsed: BTreeMap<LeaseId, Lapse>,
    /// The key of each host that was met over SSH, by `address:port`: another one is refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_keys: BTreeMap<String, String>,
    /// Where it goes on, once it was moved away from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

fn is_new(clock: &LedgerClock) -> bool {
    *clock == LedgerClock::default()
}

/// How many ended leases are remembered.
pub const ENDED_MAX: usize = 32;

/// How many consumed plans are remembered; older ones have long expired.
pub const CONSUMED_MAX: usize = 256;

/// What the first record said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Genesis {
    /// Which life of the topology.
    pub lineage: Lineage,
    /// Whose identity rules its agents.
    pub operator: OperatorId,
    /// The topology's name.
    pub topology: Name,
}

/// A run of `apply` or `destroy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Number of the entry that began it.
    pub epoch: Epoch,
    /// `apply`, `destroy`, ...
    pub command: String,
    /// What it carries out.
    pub plan: Option<PlanId>,
    /// Who.
    pub by: String,
    /// Since when.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// It has not ended in order yet.
    pub open: bool,
    /// Steps of the plan that are done, also by earlier runs of the same plan: a resumed plan goes on behind them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub steps_done: BTreeSet<StepId>,
}

/// A plan that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Consumed {
    /// By which run, last.
    pub epoch: Epoch,
    /// All of its steps were done.
    pub finished: bool,
}

/// One resource as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// Rises with each replacement.
    pub generation: Generation,
    /// What it was made to be; none while it was never finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
    /// What was made; none while it was never finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// A step that started and did not end: what it does is in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Box<Pending>>,
    /// For a lease: tries that are not proven gone and are not the one in the receipt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<Attempt, OpenAttempt>,
    /// For a lease: the highest try that was ever started in this generation.
    #[serde(default)]
    pub last_attempt: Attempt,
    /// For a lease: when the first try of this generation was written down, in ledger time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tried_since: Option<Timestamp>,
    /// For a lease: the account of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed: Option<Billed>,
    /// For a lease that was moved here: the lease that its machine was made for, which its keys derive from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_for: Option<LeaseId>,
    /// For a lease: what its tries of this generation took in vain. No offer is tried twice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tried: BTreeMap<Attempt, Tried>,
}

/// What a try took in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// The `[provider.NAME]`.
    pub provider: Name,
    /// The quote.
    pub quote: QuoteId,
    /// There was a machine, and it was given up; else the create was refused.
    pub made: bool,
}

/// A step that started and did not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pending {
    /// What it does.
    pub verb: Verb,
    /// On which machine, where it was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<LeaseId>,
    /// Since when.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Why it did not end, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// A try that may have made a machine, or may still make one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenAttempt {
    /// What was asked for.
    pub launch: Launch,
    /// When it was written down, which was before it was sent.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Why it is in doubt; none when the tool died in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The same moment in ledger time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub counted_since: Option<Timestamp>,
    /// The machine that it made and that was given up: it is ended, never kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Box<LeaseReceipt>>,
    /// The account of that machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed: Option<Billed>,
}

/// A lease that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndedLease {
    /// Which.
    pub lease: LeaseId,
    /// Which generation of it.
    pub generation: Generation,
    /// What it was.
    pub receipt: LeaseReceipt,
    /// When it was proven gone.
    #[schemars(with = "String")]
    pub ended_at: Timestamp,
    /// Why.
    pub why: String,
    /// What this machine cost; none where an older stageline kept no account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

/// A machine that was taken out of the state while it was there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disowned {
    /// The lease that it was.
    pub lease: LeaseId,
    /// The `[provider.NAME]` at that time.
    pub provider: Name,
    /// The adapter.
    pub provider_kind: String,
    /// What it cost then, and may go on costing.
    pub price_per_hour: MicroDollars,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// The journal up to an entry, folded and stored whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// [`crate::journal::FORMAT`] of its writer.
    pub format: u32,
    /// The last entry in it.
    pub n: JournalNumber,
    /// Digest of that entry's bytes: what the next one names as `prev`.
    pub digest: Fingerprint,
    /// The fold.
    pub state: State,
}

impl State {
    /// What a plan binds to: resources, generations, receipts and doubts. Not the run, so that a command that changes
    /// nothing makes no plan stale.
    pub fn projection(&self) -> Fingerprint {
        let lineage = self.genesis.as_ref().map(|genesis| genesis.lineage);
        Fingerprint::of_json(&(lineage, self.world()))
    }

    /// Whether this is what a plan was drafted from. Plans of format 1 were bound to the plain form.
    pub fn is_at(&self, base: Fingerprint) -> bool {
        let plain = || {
            let lineage = self.genesis.as_ref().map(|genesis| genesis.lineage);
            Fingerprint::of_json(&(lineage, &self.resources, &self.generations))
        };
        self.projection() == base || plain() == base
    }

    /// What a store writes: the same state, and what resources have in common only once.
    pub fn stored(&self) -> impl Serialize {
        self.written()
    }

    /// The receipt of a lease, when it has one.
    pub fn lease(&self, id: &LeaseId) -> Option<&LeaseReceipt> {
        match self
            .resources
            .get(&Address::Lease(id.clone()))?
            .receipt
            .as_ref()?
        {
            Receipt::Lease(receipt) => Some(receipt),
            Receipt::Delivery(_)
            | Receipt::Stage(_)
            | Receipt::Pipeline(_)
            | Receipt::Exposure(_) => None,
        }
    }

    /// What runs now and what may run, per hour: receipts at their price, open tries at their reservation.
    pub fn committed_per_hour(&self) -> MicroDollars {
        self.resources
            .values()
            .map(Recorded::committed_per_hour)
            .sum()
    }

    /// Whether a machine with our mark is another lease's, or was given up on purpose: not an extra of this one.
    pub fn is_elsewhere(&self, lease: &LeaseId, machine: &MachineId, key: &RequestKey) -> bool {
        if self.disowned.contains_key(machine) {
            return true;
        }
        self.existing().any(|(address, recorded)| match address {
            Address::Lease(other) if other != lease => {
                let held = match &recorded.receipt {
                    Some(Receipt::Lease(held)) => held.machine == *machine,
                    Some(_) | None => false,
                };
                let mut open = recorded.attempts.values();
                held || open.any(|open| open.launch.request_key == *key)
            }
            Address::Lease(_)
            | Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => false,
        })
    }

    /// Every resource that exists or may exist, in order.
    pub fn existing(&self) -> impl Iterator<Item = (&Address, &Recorded)> {
        self.resources
            .iter()
            .filter(|(_, recorded)| recorded.exists())
    }

    /// Nothing exists and nothing may exist.
    pub fn is_empty(&self) -> bool {
        self.existing().next().is_none()
    }

    /// The generation that a new life of this address gets.
    pub fn next_generation(&self, address: &Address) -> Generation {
        self.generations
            .get(address)
            .copied()
            .unwrap_or_default()
            .next()
    }
}

impl Recorded {
    /// The machine that a stage or an exposure is on, or may be on when its start was cut off.
    pub fn on(&self) -> Option<&LeaseId> {
        match &self.spec {
            Some(Spec::Stage(spec)) => Some(&spec.on),
            Some(Spec::Exposure(spec)) => Some(&spec.at),
            Some(Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_)) | None => {
                self.pending.as_ref()?.on.as_ref()
            }
        }
    }

    /// What this resource costs or may cost per hour.
    pub fn committed_per_hour(&self) -> MicroDollars {
        let held = match &self.receipt {
            Some(Receipt::Lease(receipt)) => receipt.price_per_hour,
            Some(
                Receipt::Delivery(_)
                | Receipt::Stage(_)
                | Receipt::Pipeline(_)
                | Receipt::Exposure(_),
            )
            | None => MicroDollars::ZERO,
        };
        let open = self
            .attempts
            .values()
            .map(|open| open.launch.reservation)
            .sum();
        held.saturating_add(open)
    }

    /// Whether there is or may be something. What is left of refused tries only keeps their numbers used.
    pub fn exists(&self) -> bool {
        self.receipt.is_some() || self.pending.is_some() || !self.attempts.is_empty()
    }

    /// Its outcome is not known, so nothing may be concluded from its absence.
    pub fn is_unresolved(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Whether a try that is open could cost anything: one of what is free does not.
    pub fn may_bill(&self) -> bool {
        let mut open = self.attempts.values();
        open.any(|open| open.launch.reservation != MicroDollars::ZERO)
    }

    /// What is said of a resource whose outcome is not known.
    pub fn unresolved(&self) -> &'static str {
        if self.may_bill() || self.attempts.is_empty() {
            "unresolved, may bill"
        } else {
            "unresolved, costs nothing"
        }
    }

    /// Machines that are there or may be, those that are being ended included.
    pub fn machines(&self) -> usize {
        let held = matches!(self.receipt, Some(Receipt::Lease(_)));
        usize::from(held) + self.attempts.len()
    }
}
