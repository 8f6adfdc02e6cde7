//! What leases cost so far, for people: by the ledger of the state, with what is uncertain said.

use std::time::Duration;

use serde::Serialize;
use stageline_core::id::{Address, LeaseId, MachineId, Name};
use stageline_core::resource::{LeaseReceipt, Told};
use stageline_core::state::{Ledger, Spent, State};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::console::Console;
use crate::ambient::Clock;
use crate::observe::charges::{self, Answer};
use crate::provider::Providers;

/// Longest that a status waits for what hosts ask.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// Leases that are told one by one; of more only the sum.
const LEASES_MAX: usize = 10;

/// What everything cost until now. `alive` are leases whose machine was seen just now, and `told` is what providers say by
/// their own clocks, which counts for more.
pub(crate) fn ledger(
    state: &State,
    clock: &dyn Clock,
    alive: impl Fn(&LeaseId) -> bool,
    told: &[Told],
) -> Ledger {
    let now = state.ledger_now(clock.now(), clock.boot_point().as_ref());
    state.ledger_told(now, alive, told)
}

/// The sum in one sentence; none when nothing was spent.
pub(crate) fn total(ledger: &Ledger) -> Option<String> {
    let total = &ledger.total;
    if total.is_zero() {
        return None;
    }
    let since = total
        .since
        .map_or_else(String::new, |since| format!(" since {since:.0}"));
    let why = if total.is_uncertain() {
        "; a range where nobody saw when a machine began to run or ended, or looked since"
    } else {
        ""
    };
    Some(format!("{total} spent{since}{why}"))
}

/// What one provider billed by its own word, beside the ledger: a bill comes late, and what it lacks is an estimate.
#[derive(Serialize)]
pub(crate) struct Billed {
    provider: Name,
    #[serde(flatten)]
    said: Said,
    /// What these numbers lack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lacks: Vec<String>,
}

/// What it said.
#[derive(Serialize)]
#[serde(untagged)]
enum Said {
    Bill {
        machines: usize,
        amount: MicroDollars,
        /// So much of it for traffic, where that is told apart and is not nothing.
        #[serde(skip_serializing_if = "Option::is_none")]
        traffic: Option<MicroDollars>,
        /// Up to when; none where nothing is billed yet.
        to: Option<Timestamp>,
        /// Not billed yet, by prices and times.
        estimated: MicroDollars,
    },
    Nothing {
        cannot_tell: String,
    },
}

/// A host that asks for more than its machine costs.
#[derive(Serialize)]
pub(crate) struct Asked {
    lease: LeaseId,
    machine: MachineId,
    provider: Name,
    from: MicroDollars,
    to: MicroDollars,
    /// When its contract ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            lease,
            machine,
            provider,
            from,
            to,
            until,
        } = self;
        write!(
            f,
            "{lease}: the host of machine {machine} asks for {to}/h, it costs {from}/h; that changes only if you accept it at \
             provider `{provider}` yourself"
        )?;
        match until {
            Some(until) => write!(f, ", and its contract ends {until:.0}"),
            None => Ok(()),
        }
    }
}

/// What hosts ask for machines that are held. A provider that cannot be asked now is passed over: nothing hangs on it.
pub(crate) async fn asked(state: &State, providers: &Providers, clock: &dyn Clock) -> Vec<Asked> {
    let held: Vec<(&LeaseId, &LeaseReceipt)> = state
        .existing()
        .filter_map(|(address, _)| match address {
            Address::Lease(lease) => Some((lease, state.lease(lease)?)),
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => None,
        })
        .collect();
    let mut all = Vec::new();
    for (name, provider) in providers.named() {
        let ours = held.iter().filter(|(_, held)| held.provider == name);
        let ours: Vec<_> = ours.collect();
        if ours.is_empty() {
            continue;
        }
        let increases = tokio::select! {
            biased;
            increases = provider.increases() => increases.unwrap_or_default(),
            () = clock.sleep(ASKED_WITHIN) => Vec::new(),
        };
        for increase in increases {
            let of = ours
                .iter()
                .find(|(_, held)| held.machine == increase.machine);
            all.extend(of.map(|(lease, held)| Asked {
                lease: (*lease).clone(),
                machine: held.machine.clone(),
                provider: name.clone(),
                from: increase.from,
                to: increase.to,
                until: increase.until,
            }));
        }
    }
    all
}

/// Asks providers for what they billed.
pub(crate) async fn bills(state: &State, providers: &Providers, clock: &dyn Clock) -> Vec<Billed> {
    let bills = charges::bills(state, providers, clock.now()).await;
    bills.into_iter().map(billed).collect()
}

fn billed((provider, answer): (Name, Answer)) -> Billed {
    let nothing = |cannot_tell: String| Said::Nothing { cannot_tell };
    let (said, lacks, beside) = match answer {
        Answer::Told(bill) => {
            let said = Said::Bill {
                machines: bill.machines,
                amount: bill.amount,
                traffic: Some(bill.traffic).filter(|traffic| traffic.0 > 0),
                to: bill.to,
                estimated: bill.estimated,
            };
            (said, bill.lacks, bill.beside)
        }
        Answer::Never { beside } => (nothing("it tells no bill".to_owned()), Vec::new(), beside),
        Answer::Blind(cause) => (nothing(cause.message), Vec::new(), None),
    };
    let beside = beside.map(str::to_owned);
    Billed {
        provider,
        said,
        lacks: lacks.into_iter().chain(beside).collect(),
    }
}

impl std::fmt::Display for Billed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let provider = &self.provider;
        match &self.said {
            Said::Nothing { cannot_tell } => write!(
                f,
                "what provider `{provider}` billed cannot be told: {cannot_tell}; all of it is an estimate by prices and times"
            )?,
            Said::Bill {
                to: None,
                estimated,
                ..
            } => write!(
                f,
                "provider `{provider}` has billed nothing of it yet; {} is an estimate by prices and times",
                Spent::exactly(*estimated)
            )?,
            Said::Bill {
                machines,
                amount,
                traffic,
                to: Some(to),
                estimated,
            } => {
                let s = if *machines == 1 { "" } else { "s" };
                let traffic = traffic
                    .map(|traffic| format!(" ({} of it for traffic)", Spent::exactly(traffic)));
                let traffic = traffic.unwrap_or_default();
                write!(
                    f,
                    "billed by provider `{provider}` itself: {} for {machines} machine{s}{traffic}, up to {to:.0}; estimated since: {}",
                    Spent::exactly(*amount),
                    Spent::exactly(*estimated)
                )?;
            }
        }
        self.lacks.iter().try_for_each(|lack| write!(f, "; {lack}"))
    }
}

/// The same by the ledger alone: no provider is asked.
pub(crate) fn tell_of(
    state: &State,
    clock: &dyn Clock,
    alive: impl Fn(&LeaseId) -> bool,
    console: &Console,
) {
    tell(&ledger(state, clock, alive, &[]), console);
}

/// Says what each lease cost, when they are few, and the sum.
pub(crate) fn tell(ledger: &Ledger, console: &Console) {
    let spent = ledger.leases.iter().filter(|(_, spent)| !spent.is_zero());
    let spent: Vec<_> = spent.collect();
    if (2..=LEASES_MAX).contains(&spent.len()) {
        for (lease, spent) in &spent {
            console.say(&format!("{lease}: {spent} spent"));
        }
    }
    if let Some(total) = total(ledger) {
        console.say(&total);
    }
}
