//! What can go wrong in the simulated world, and when.
//!
//! The knob names are those of the fault table that every simulator of ours shares. Each fault is a value, and the dice
//! are a hash of the seed, so that a run can be repeated exactly.

use std::time::Duration;

use stageline_core::offer::Facts;
use stageline_core::resource::FailureClass;
use stageline_core::unit::MicroDollars;

/// What can be asked of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Of an account: offers.
    Search,
    /// Of an account: one offer again.
    Quote,
    /// Of an account: a machine.
    Create,
    /// Of an account: machines by key.
    Find,
    /// Of an account: all machines.
    List,
    /// Of an account: one machine.
    Describe,
    /// Of an account: the end of a machine.
    Release,
    /// Of an account: what a machine printed.
    Logs,
    /// Of an account: whose it is.
    Account,
    /// Of an agent: what it has and does.
    Status,
    /// Of an agent: shares of pipelines.
    Deliver,
    /// Of an agent: a worker.
    Start,
    /// Of an agent: the end of a worker.
    Stop,
    /// Of an agent: an answer.
    Check,
    /// Of an agent: a listener.
    Expose,
    /// Of an agent: the end of a listener.
    Unexpose,
    /// Of an agent: no new requests.
    Drain,
    /// Of an agent: other limits.
    Limit,
    /// Of an agent: what its machine runs once.
    SetUp,
    /// Of an agent: output.
    AgentLogs,
}

/// One way in which a call, or the machine that it makes, goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 1: the machine is made, the answer is an error.
    CreateErrorAfterCommit,
    /// 2: the machine is made, no answer until the request's time is up.
    CreateTimeoutAfterCommit,
    /// 3: the machine is made, the connection breaks.
    CreateCut,
    /// 4: nothing is made, and the answer does not say so.
    CreateErrorNoCommit,
    /// 5: the answer is an error; the machine appears after this long.
    CreateLateCommit(Duration),
    /// 6: refused, yet a stopped machine is there and billed.
    CreateRefusedWithId,
    /// 7: none or several machines by one request.
    CreateWrongCount(u32),
    /// 8 to 10: too many requests; the wait that is asked for, if one is.
    RateLimited(Option<Duration>),
    /// 11: the machine that this makes is missing from lists for so long.
    ListLag(Duration),
    /// 12: the machine that this makes is unknown by id for so long.
    GetLag(Duration),
    /// 13: the machine that this ends is still listed as running for so long; it is not billed.
    ListGhost(Duration),
    /// 14: an error body with success written on it, noticed by the adapter.
    ListSuccessFalse,
    /// 15: a page is missing, noticed by the adapter.
    ListPageLost,
    /// 16: half a body, noticed by the adapter.
    ListTruncated,
    /// 17: the machine that this makes never comes up.
    BootNever,
    /// 18: it needs so long.
    BootSlow(Duration),
    /// 19: it dies after so long, in the provider's words.
    BootDies(Duration, String),
    /// 20: its agent measures other facts than were claimed.
    BootWrongFacts(Box<Facts>),
    /// 14 of the first table: it runs, and its agent never answers.
    AgentMute,
    /// 22: no address is shown.
    AddressMissing,
    /// 23: another one took the offer.
    OfferGone,
    /// 23: none left.
    CapacityGone,
    /// 24: the machine costs so many thousandths of what was quoted.
    PricePerMille(u32),
    /// 24: the price becomes this after so long.
    PriceLater(Duration, MicroDollars),
    /// 25: refused for a reason of this class.
    Refused(FailureClass),
    /// 26: the key no longer works.
    AuthRevoked,
    /// 26: the key is another account's, which is empty.
    OtherAccount,
    /// 27: the end is accepted and nothing happens.
    TerminateNoop,
    /// 27: the end is accepted and the answer is an error.
    TerminateErrorAfterCommit,
    /// 27: an error, and nothing happens.
    TerminateErrorNoCommit,
    /// 28: taken away after so long.
    Preempt(Duration),
    /// 28: its host is cut off after so long, for so long.
    HostOffline(Duration, Duration),
    /// 30: the provider's date is off by so many seconds.
    ServerClockOff(i64),
    /// 31: the answer takes so long.
    Slow(Duration),
    /// 36: offers that do not fit what was asked are answered too.
    OfferBreaksFilter,
    /// 37: the provider's own record of the machine names other facts.
    CreateOtherMachine(Box<Facts>),
    /// 38: the end is accepted; the machine is listed and billed for so long.
    DeleteLate(Duration),
    /// The agent does not answer; nothing happens.
    Unreachable,
    /// The agent does as asked and the answer is lost.
    CutAfterEffect,
    /// The agent refuses, by this code, with this sentence.
    AgentRefuses(String, String),
    /// The worker starts and fails, for this reason.
    WorkerFails(String),
    /// The pipeline answers with this.
    WrongAnswer(String),
}

impl Fault {
    /// Its name in the fault table.
    pub fn knob(&self) -> &'static str {
        match self {
            Self::CreateErrorAfterCommit => "create-500-after-commit",
            Self::CreateTimeoutAfterCommit => "create-timeout-after-commit",
            Self::CreateCut => "create-cut",
            Self::CreateErrorNoCommit => "create-500-no-commit",
            Self::CreateLateCommit(_) => "create-late-commit",
            Self::CreateRefusedWithId => "create-200-false-with-id",
            Self::CreateWrongCount(_) => "create-wrong-count",
            Self::RateLimited(None) => "rate-429-plain",
            Self::RateLimited(Some(_)) => "rate-429-after",
            Self::ListLag(_) => "list-lag",
            Self::GetLag(_) => "get-404-lag",
            Self::ListGhost(_) => "list-ghost",
            Self::ListSuccessFalse => "list-success-false",
            Self::ListPageLost => "list-page-lost",
            Self::ListTruncated => "list-truncated-json",
            Self::BootNever => "boot-never",
            Self::BootSlow(_) => "boot-slow",
            Self::BootDies(..) => "boot-dies",
            Self::BootWrongFacts(_) => "boot-wrong-gpu",
            Self::AgentMute => "agent-mute",
            Self::AddressMissing => "ip-missing",
            Self::OfferGone => "offer-gone",
            Self::CapacityGone => "capacity",
            Self::PricePerMille(_) | Self::PriceLater(..) => "price-rises",
            Self::Refused(FailureClass::Money) => "money",
            Self::Refused(FailureClass::Auth) => "auth",
            Self::Refused(_) => "quota",
            Self::AuthRevoked => "auth-revoked-mid-run",
            Self::OtherAccount => "auth-other-account",
            Self::TerminateNoop => "terminate-noop",
            Self::TerminateErrorAfterCommit => "terminate-5xx",
            Self::TerminateErrorNoCommit => "terminate-fails",
            Self::Preempt(_) => "preempt",
            Self::HostOffline(..) => "host-offline",
            Self::ServerClockOff(_) => "clock",
            Self::Slow(_) => "slow",
            Self::OfferBreaksFilter => "offer-breaks-filter",
            Self::CreateOtherMachine(_) => "create-other-machine",
            Self::DeleteLate(_) => "delete-late",
            Self::Unreachable => "agent-unreachable",
            Self::CutAfterEffect => "agent-cut",
            Self::AgentRefuses(..) => "agent-refuses",
            Self::WorkerFails(_) => "worker-fails",
            Self::WrongAnswer(_) => "wrong-answer",
        }
    }
}

/// Which calls of a verb are hit. Calls are counted per account and per verb, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This one.
    Nth(u64),
    /// This one and all that follow.
    From(u64),
    /// All up to this one.
    Until(u64),
    /// All.
    Always,
    /// So many in a hundred, by the table's seed.
    Percent(u8),
}

/// One line of a fault table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which verb; none is every verb.
    pub verb: Option<Verb>,
    /// Which of its calls.
    pub when: When,
    /// What happens.
    pub fault: Fault,
}

/// All that goes wrong in one account, its machines included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTable {
    rules: Vec<Rule>,
    seed: u64,
}

impl FaultTable {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self::default()
    }

    /// The seed of the dice of [`When::Percent`].
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// One more line.
    #[must_use]
    pub fn on(mut self, verb: Verb, when: When, fault: Fault) -> Self {
        self.rules.push(Rule {
            verb: Some(verb),
            when,
            fault,
        });
        self
    }

    /// One more line, for every verb.
    #[must_use]
    pub fn on_any(mut self, when: When, fault: Fault) -> Self {
        self.rules.push(Rule {
            verb: None,
            when,
            fault,
        });
        self
    }

    /// The faults of the `count`-th call of a verb, in the table's order.
    pub fn hits(&self, verb: Verb, count: u64) -> Vec<Fault> {
        let rules = self.rules.iter().enumerate();
        rules
            .filter(|(line, rule)| {
                rule.verb.is_none_or(|only| only == verb) && self.is_due(*line, rule, verb, count)
            })
            .map(|(_, rule)| rule.fault.clone())
            .collect()
    }

    fn is_due(&self, line: usize, rule: &Rule, verb: Verb, count: u64) -> bool {
        match rule.when {
            When::Nth(n) => count == n,
            When::From(n) => count >= n,
            When::Until(n) => count <= n,
            When::Always => true,
            When::Percent(percent) => {
                let dice =
                    blake3::hash(format!("{}/{line}/{verb:?}/{count}", self.seed).as_bytes());
                let draw = u16::from_le_bytes([dice.as_bytes()[0], dice.as_bytes()[1]]);
                draw % 100 < u16::from(percent)
            }
        }
    }
}
