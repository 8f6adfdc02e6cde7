//! What happened, as values.
//!
//! Logic emits, the edge draws: tests, JSON and the terminal read the same events. An event is news and never an
//! instruction, holds no secret, and names its resource. Nothing here knows how it is shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Address, Attempt, Generation, LeaseId, MachineId, Name, PlanId, RequestKey};
use crate::journal::Verb;
use crate::offer::QuoteId;
use crate::resource::Cause;
use crate::state::Limit;
use crate::topology::AgentWay;
use crate::unit::{MicroDollars, Millis, Timestamp};

/// One piece of news.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A lease is beyond a limit of its own: it is being ended for that.
    Lapsed {
        /// Which.
        lease: LeaseId,
        /// The limit.
        limit: Limit,
        /// What was seen.
        why: String,
    },
    /// A run has been opened in the journal.
    RunBegan {
        /// What it carries out.
        plan: PlanId,
        /// An earlier run of this plan was cut off.
        resumed: bool,
        /// Steps of the plan.
        steps: u32,
        /// Those that were done before.
        done: u32,
    },
    /// A step's intention is on disk and its call goes out.
    StepStarted {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What is done.
        verb: Verb,
    },
    /// A step did what it should.
    StepDone {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What was done.
        verb: Verb,
        /// How long it took.
        took: Millis,
    },
    /// A step did nothing, for certain.
    StepRefused {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What should have been done.
        verb: Verb,
        /// Why, and what to do.
        cause: Cause,
        /// Another try follows by itself.
        goes_on: bool,
    },
    /// A step may have acted; this is resolved before anything else touches the resource.
    StepInDoubt {
        /// On what.
        address: Address,
        /// Which generation of it.
        generation: Generation,
        /// What may have been done.
        verb: Verb,
        /// Why nobody knows.
        cause: Cause,
    },
    /// A step is not started because one that it waits for did not succeed.
    StepBlocked {
        /// On what.
        address: Address,
        /// What would have been done.
        verb: Verb,
        /// The resource whose step failed.
        by: Address,
    },
    /// A call that may be repeated is repeated after a pause.
    Retrying {
        /// On what.
        address: Address,
        /// What is done.
        verb: Verb,
        /// Why the last try did not work.
        cause: Cause,
        /// Which try comes next; the second is 2.
        attempt: u32,
        /// After which pause.
        delay: Millis,
    },
    /// A create is about to go out.
    Launching {
        /// For which lease.
        lease: LeaseId,
        /// Which try.
        attempt: Attempt,
        /// The machine's name at the provider.
        request_key: RequestKey,
        /// The `[offer.NAME]`.
        offer: Name,
        /// What is taken.
        quote: QuoteId,
        /// What it costs.
        price_per_hour: MicroDollars,
        /// It was not on the plan's shortlist, but meets the same requirement within the ceiling.
        requoted: bool,
    },
    /// A provider returned a machine's id: it costs money from now on.
    LeaseUp {
        /// Which.
        lease: LeaseId,
        /// What the provider calls it.
        machine: MachineId,
        /// What it costs.
        price_per_hour: MicroDollars,
        /// How its agent gets there; none where it need not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<AgentWay>,
    },
    /// Something was said while a machine was being made, by a program of one's own.
    Said {
        /// For which machine.
        lease: LeaseId,
        /// One line, cleared of what would disturb a terminal.
        line: String,
    },
    /// A host was met for the first time over SSH, and its key was put on record.
    HostMet {
        /// For which machine.
        lease: LeaseId,
        /// `address:port`, or the machine where each has a host of its own.
        host: String,
        /// The fingerprint of its key.
        fingerprint: String,
    },
    /// A machine's agent answered with facts that fit.
    LeaseReady {
        /// Which.
        lease: LeaseId,
        /// Since its create.
        waited: Millis,
    },
    /// A machine does not become ready: it is being released.
    MachineFailed {
        /// Which.
        lease: LeaseId,
        /// What the provider calls it.
        machine: MachineId,
        /// Why.
        cause: Cause,
        /// Its host is noted, so that no later plan takes it.
        noted: bool,
        /// The next offer is tried.
        goes_on: bool,
        /// The end of what the machine itself printed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        log: Vec<String>,
    },
    /// A machine is proven gone.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
        /// What the provider called it.
        machine: Option<MachineId>,
    },
    /// How far something long is.
    Progress {
        /// On what.
        address: Address,
        /// How much is done.
        done: u64,
        /// Of how much; 0 when nobody knows.
        total: u64,
        /// Of what: `bytes`, `weights`, ...
        what: String,
    },
    /// Something takes its time.
    Waiting {
        /// On what.
        address: Address,
        /// What is done.
        verb: Verb,
        /// What is missing, in a few words.
        what: String,
        /// For how long already.
        waited: Millis,
    },
    /// A doubt is being resolved: listings are watched until absence is proof.
    Settling {
        /// Which lease.
        address: Address,
        /// Which try.
        attempt: Attempt,
        /// When absence becomes proof, if nothing is seen until then.
        #[schemars(with = "String")]
        until: Timestamp,
        /// Whatever it made costs nothing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        free: bool,
        /// What it costs at most.
        #[serde(default)]
        per_hour: MicroDollars,
        /// Why it is in doubt; none when the tool died in between.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A machine of a try that was in doubt was found.
    MachineFound {
        /// Of which lease.
        address: Address,
        /// What the provider calls it.
        machine: MachineId,
        /// It is the one that is kept.
        kept: bool,
    },
    /// A machine beyond the one that is kept has been released, proven by listing.
    ExtraReleased {
        /// Of which lease.
        address: Address,
        /// What the provider called it.
        machine: MachineId,
    },
    /// Listings watched for the whole horizon show no machine of a try.
    AttemptAbsent {
        /// Of which lease.
        address: Address,
        /// Which try.
        attempt: Attempt,
    },
    /// A resource is gone without our doing.
    Vanished {
        /// Which.
        address: Address,
        /// What was seen.
        why: String,
    },
    /// Another run has begun; this one writes nothing more.
    Fenced {
        /// Who.
        by: String,
    },
    /// A signal arrived.
    Interrupted {
        /// How many so far; the second ends the process at once.
        signals: u32,
    },
    /// An independent listing after a destroy.
    Verified {
        /// When.
        #[schemars(with = "String")]
        at: Timestamp,
        /// Machines that are left at providers.
        left: u32,
        /// What they cost.
        left_per_hour: MicroDollars,
        /// Items on platforms that we do not control.
        external: u32,
    },
    /// The run is closed in the journal.
    RunEnded {
        /// All steps were done.
        finished: bool,
        /// Steps done.
        done: u32,
        /// Steps that were refused.
        refused: u32,
        /// Steps in doubt.
        in_doubt: u32,
        /// Steps that were never started.
        blocked: u32,
    },
}

impl Event {
    /// The resource that it is about, when it is about one.
    pub fn address(&self) -> Option<Address> {
        match self {
            Self::StepStarted { address, .. }
            | Self::StepDone { address, .. }
            | Self::StepRefused { address, .. }
            | Self::StepInDoubt { address, .. }
            | Self::StepBlocked { address, .. }
            | Self::Retrying { address, .. }
            | Self::Progress { address, .. }
            | Self::Waiting { address, .. }
            | Self::Settling { address, .. }
            | Self::MachineFound { address, .. }
            | Self::ExtraReleased { address, .. }
            | Self::AttemptAbsent { address, .. }
            | Self::Vanished { address, .. } => Some(address.clone()),
            Self::Launching { lease, .. }
            | Self::LeaseUp { lease, .. }
            | Self::HostMet { lease, .. }
            | Self::Said { lease, .. }
            | Self::LeaseReady { lease, .. }
            | Self::MachineFailed { lease, .. }
            | Self::Lapsed { lease, .. }
            | Self::LeaseEnded { lease, .. } => Some(Address::Lease(lease.clone())),
            Self::RunBegan { .. }
            | Self::Fenced { .. }
            | Self::Interrupted { .. }
            | Self::Verified { .. }
            | Self::RunEnded { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_what_it_writes_and_names_its_kind() {
        let event = Event::LeaseReady {
            lease: "lease.gpu[0]".parse().expect("an address"),
            waited: Millis::seconds(3),
        };
        let text = serde_json::to_string(&event).expect("plain data");
        assert_eq!(
            text,
            r#"{"event":"lease-ready","lease":"lease.gpu[0]","waited":3000}"#
        );
        assert_eq!(
            serde_json::from_str::<Event>(&text).expect("round trip"),
            event
        );
        assert_eq!(
            event.address().map(|a| a.to_string()).as_deref(),
            Some("lease.gpu[0]")
        );
    }
}
