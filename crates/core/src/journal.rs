//! Entries of the journal: what is written before and after each call, and how it is read back.
//!
//! The journal is the truth; the state is its fold. Every entry names the digest of the one before it, the run that it
//! belongs to, and its writer, so that a lost answer, a second writer and a missing entry can be told apart. Records
//! are only ever added to this format; a change of meaning raises [`FORMAT`].

pub(crate) mod brief;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{
    Address, Attempt, Epoch, Fingerprint, Generation, JournalNumber, LeaseId, Lineage, MachineId,
    Name, Nonce, OperatorId, PlanId, RequestKey, WriterId,
};
use crate::offer::{Place, QuoteId};
use crate::plan::StepId;
use crate::resource::{Account, Cause, Dates, LeaseLimits, Receipt, Spec};
use crate::state::{Limit, Recorded};
use crate::tagged::Tagged;
use crate::topology::Bidding;
use crate::unit::{MicroDollars, Millis, Timestamp};

pub use brief::{Brief, ReadyBriefly, shorten};

/// The version that is written. A newer one is refused, an older one read: 2 knows records and states in short forms, which 1
/// did not.
pub const FORMAT: u32 = 2;

/// One object of the journal: records that became durable together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// [`FORMAT`] of its writer.
    pub format: u32,
    /// Its number: one more than the entry before it.
    pub n: JournalNumber,
    /// Digest of the bytes of the entry before it; all zero for the first.
    pub prev: Fingerprint,
    /// The run that it belongs to: the number of the entry with its `begin`.
    pub epoch: Epoch,
    /// The process that wrote it.
    pub writer: WriterId,
    /// Tells this entry from another process's with the same number.
    pub nonce: Nonce,
    /// What happened, in order.
    pub records: Vec<Record>,
}

/// One thing that was intended or that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self", rename_all = "kebab-case")]
#[schemars(!remote, tag = "record")]
pub enum Record {
    /// The first record of a journal.
    Genesis {
        /// Drawn for this journal.
        lineage: Lineage,
        /// Whose identity rules its agents.
        operator: OperatorId,
        /// The topology's name.
        topology: Name,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// Opens a run; the entry's own number is the run's epoch. Fences every earlier run for good.
    Begin {
        /// `apply`, `destroy`, ...
        command: String,
        /// The plan that it carries out, consumed by this record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<PlanId>,
        /// Who: user@host, process id.
        by: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
        /// The same moment by the boot-time clock, where the system has one: what the ledger trusts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot: Option<BootPoint>,
    },
    /// A step is about to act.
    Started {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What it does.
        verb: Verb,
        /// For an acquire: the try.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        launch: Option<Box<Launch>>,
        /// On which machine, for what stands on one: known also when the outcome never came. Entries of before have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on: Option<LeaseId>,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A step did what it should.
    Done {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What it did.
        verb: Verb,
        /// The step of the run's plan that this completes; none for what is done beside it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepId>,
        /// What it should be from now on; none when it is unchanged or gone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spec: Option<Box<Spec>>,
        /// What was made; none when it is unchanged or gone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Box<Receipt>>,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// The same as `done`, in few words: what the state knows already is named and not repeated. Only stores write it.
    DoneBriefly(Box<Brief>),
    /// A step did nothing, for certain.
    Refused {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What it should have done.
        verb: Verb,
        /// For an acquire: which try. It is closed by this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
        /// Why.
        cause: Cause,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A step may have acted.
    InDoubt {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What it may have done.
        verb: Verb,
        /// For an acquire: which try. It stays open.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
        /// Why.
        cause: Cause,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// Listings watched for the whole settle horizon show no machine of this try: it is closed.
    Absent {
        /// The lease.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// Which try.
        attempt: Attempt,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A machine does not become ready and is given up: from now on it is an open try that is to be ended, counted until
    /// it is proven gone, and the lease is free for its next try.
    GaveUp {
        /// The lease.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// The try that made the machine.
        launch: Box<Launch>,
        /// Why.
        cause: Cause,
        /// It is the machine's fault, so that its host is noted as bad.
        noted: bool,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A machine beyond the one that is kept was found and has been released; proven by listing.
    ExtraReleased {
        /// The lease that it was made for.
        address: Address,
        /// The machine.
        machine: MachineId,
        /// What it was seen to cost; entries of before have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        price_per_hour: Option<MicroDollars>,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A resource is gone without our doing: seen, with its date, by a trusted listing.
    Vanished {
        /// Which.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What was seen.
        why: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A machine was seen at its provider: it billed until then at least.
    Seen {
        /// The lease.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// The machine of this open try; none is the one in the receipt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
        /// What it was seen to cost, where that is not what is recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        price_per_hour: Option<MicroDollars>,
        /// When it was seen.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// The provider said from when to when a machine was billed, by its own clock: the ledger counts that.
    Dated {
        /// The lease that it was made for.
        address: Address,
        /// The machine: held, given up, one too many, or long over.
        machine: MachineId,
        /// What it costs, or cost when it ended.
        price_per_hour: MicroDollars,
        /// From when to when.
        dates: Dates,
        /// When it was said.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A lease is beyond a limit of its own: it is ended for that, and stays ended.
    Lapsed {
        /// Which.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// The limit.
        limit: Limit,
        /// What was seen.
        why: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
        /// The terms of its bid, when its machine was taken away.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spot: Option<Bidding>,
    },
    /// That a lease lapsed does not count any more: it is no longer declared.
    Unlapsed {
        /// Which.
        address: Address,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// Surgery: what is recorded of a resource becomes exactly this, whatever it was. Nothing is made or ended by it.
    Edited {
        /// Which.
        address: Address,
        /// What is recorded from now on; none takes it out of the state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recorded: Option<Box<Recorded>>,
        /// Where its account goes on, when it goes on under another address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moved_to: Option<Address>,
        /// Why, for people.
        why: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// The state goes on in another place: nobody begins a run here any more.
    Closed {
        /// Where it goes on: a URL with the topology's name, for people and to compare.
        to: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// The state came from another place, or got another name: it goes on here.
    Opened {
        /// The topology's name from now on.
        topology: Name,
        /// Where it was.
        from: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// A host was met for the first time, or is said to have another key now: from here on it is known by this one. Written
    /// before anything secret is sent to it.
    HostKey {
        /// Where it answers: `address:port`.
        host: String,
        /// Its key: the type and the base64 of OpenSSH.
        key: String,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
    /// Closes a run in order. A run without it was killed and may be resumed.
    End {
        /// All steps of the plan were done.
        finished: bool,
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
    },
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, Tagged::new("record", serializer))
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(Tagged::new("record", deserializer))
    }
}

/// A moment by a clock that nobody can set. Only two moments of the same boot can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootPoint {
    /// Drawn anew at each boot of a computer.
    pub boot: String,
    /// Time since then, suspend included.
    pub up: Millis,
}

/// One try to rent a machine, written down before the request goes out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Launch {
    /// Which try.
    pub attempt: Attempt,
    /// The machine's name at the provider.
    pub request_key: RequestKey,
    /// The `[provider.NAME]`.
    pub provider: Name,
    /// The adapter: enough to look for it when the table is gone.
    pub provider_kind: String,
    /// On whose account; none where there are no accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// The `[offer.NAME]`.
    pub offer: Name,
    /// The quote that is taken.
    pub quote: QuoteId,
    /// What it costs, as read again right before.
    pub price_per_hour: MicroDollars,
    /// The most that it may cost: counted against every cap until the try is proven gone.
    pub reservation: MicroDollars,
    /// The limits that its machine is under from its first moment. Entries of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LeaseLimits>,
    /// Its provider bills a machine from when it runs, not while it boots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boots_free: bool,
    /// Where the quote's machine is, for a lease that must be near others or apart from them.
    #[serde(default, skip_serializing_if = "Place::is_unknown")]
    pub place: Place,
}

/// What a step does. One remote effect, with at most one call that is unsafe to repeat.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Rents a machine. The one call that is unsafe to repeat.
    Acquire,
    /// Waits until the machine's agent answers with facts that fit.
    Await,
    /// Writes a changed limit into the state; no call.
    Record,
    /// Makes model shard, configuration and roster present.
    Deliver,
    /// Starts a worker, or starts it again when its spec changed.
    Start,
    /// Ends a worker on a machine that stays.
    Stop,
    /// Sends the pipeline's check.
    Check,
    /// Makes pipelines reachable.
    Expose,
    /// Takes that back on a machine that stays.
    Unexpose,
    /// Takes a resource out of the state that ends together with its machine; no call.
    Forget,
    /// Ends a machine and proves it.
    Release,
}

/// Why bytes are not an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Empty or cut: the writer died before it was whole. Never written by a store that syncs.
    #[error("the entry is cut off after {bytes} bytes")]
    Torn {
        /// How many there are.
        bytes: usize,
    },
    /// Written by a newer stageline.
    #[error("the entry has format {found}, this stageline reads up to {FORMAT}")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// Whole, but no entry.
    #[error("the entry cannot be read: {0}")]
    Invalid(String),
}

impl Entry {
    /// The bytes that are stored: one line of JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("an entry is plain data");
        bytes.push(b'\n');
        bytes
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`EntryError`] when they are cut, newer, or no entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, EntryError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        if bytes.last() != Some(&b'\n') {
            return Err(EntryError::Torn { bytes: bytes.len() });
        }
        let invalid = |error: serde_json::Error| EntryError::Invalid(error.to_string());
        // Looked at once as a whole, and not text by text.
        let text =
            std::str::from_utf8(bytes).map_err(|error| EntryError::Invalid(error.to_string()))?;
        serde_json::from_str(text)
            .or_else(|error| {
                let head: Head = serde_json::from_str(text).map_err(invalid)?;
                Err(if head.format > FORMAT {
                    EntryError::Newer { found: head.format }
                } else {
                    invalid(error)
                })
            })
            .and_then(|entry: Self| {
                if entry.format > FORMAT {
                    return Err(EntryError::Newer {
                        found: entry.format,
                    });
                }
                Ok(entry)
            })
    }

    /// What the next entry names as `prev`.
    pub fn digest(bytes: &[u8]) -> Fingerprint {
        Fingerprint::of(bytes)
    }
}

impl Record {
    /// The resources that it is about or names.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        let brief = match self {
            Self::DoneBriefly(brief) => Some(brief.names()),
            Self::Genesis { .. }
            | Self::Begin { .. }
            | Self::Started { .. }
            | Self::Done { .. }
            | Self::Refused { .. }
            | Self::InDoubt { .. }
            | Self::Absent { .. }
            | Self::GaveUp { .. }
            | Self::ExtraReleased { .. }
            | Self::Vanished { .. }
            | Self::Seen { .. }
            | Self::Dated { .. }
            | Self::Lapsed { .. }
            | Self::Unlapsed { .. }
            | Self::Edited { .. }
            | Self::Closed { .. }
            | Self::Opened { .. }
            | Self::HostKey { .. }
            | Self::End { .. } => None,
        };
        let named = brief.into_iter().flatten();
        self.address().into_iter().chain(named)
    }

    /// The resource that it is about; none when it is about the run.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Started { address, .. }
            | Self::Done { address, .. }
            | Self::Refused { address, .. }
            | Self::InDoubt { address, .. }
            | Self::Absent { address, .. }
            | Self::GaveUp { address, .. }
            | Self::ExtraReleased { address, .. }
            | Self::Vanished { address, .. }
            | Self::Seen { address, .. }
            | Self::Dated { address, .. }
            | Self::Lapsed { address, .. }
            | Self::Unlapsed { address, .. }
            | Self::Edited { address, .. } => Some(address),
            Self::DoneBriefly(brief) => Some(&brief.address),
            Self::Genesis { .. }
            | Self::Begin { .. }
            | Self::Closed { .. }
            | Self::Opened { .. }
            | Self::HostKey { .. }
            | Self::End { .. } => None,
        }
    }
}

impl Verb {
    /// In sentences: what is going on.
    pub const fn doing(self) -> &'static str {
        match self {
            Self::Acquire => "renting",
            Self::Await => "waiting for its agent",
            Self::Record => "recording",
            Self::Deliver => "delivering",
            Self::Start => "starting",
            Self::Stop => "stopping",
            Self::Check => "checking",
            Self::Expose => "exposing",
            Self::Unexpose => "taking down",
            Self::Forget => "forgetting",
            Self::Release => "releasing",
        }
    }
}
