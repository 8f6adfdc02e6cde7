//! What leases cost so far, for people: by the ledger of the state, with what is uncertain said.

use stageline_core::id::{LeaseId, Name};
use stageline_core::resource::Told;
use stageline_core::state::{Ledger, Spent, State};

use super::console::Console;
use crate::ambient::Clock;
use crate::observe::charges::{self, Bill};
use crate::provider::Providers;

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

/// Says what providers billed by their own word, beside the ledger: a bill comes late, and what it lacks is an estimate.
pub(crate) async fn bills(state: &State, providers: &Providers, clock: &dyn Clock) -> Vec<String> {
    let bills = charges::bills(state, providers, clock.now()).await;
    let lines = bills.into_iter().map(|(provider, bill)| match bill {
        Ok(bill) => told(&provider, &bill),
        Err(cause) => format!(
            "what provider `{provider}` billed cannot be told: {}; all of it is an estimate by prices and times",
            cause.message
        ),
    });
    lines.collect()
}

fn told(provider: &Name, bill: &Bill) -> String {
    let Some(to) = bill.to else {
        return format!(
            "provider `{provider}` has billed nothing of it yet; {} is an estimate by prices and times",
            Spent::exactly(bill.estimated)
        );
    };
    let machines = match bill.machines {
        1 => "1 machine".to_owned(),
        n => format!("{n} machines"),
    };
    format!(
        "billed by provider `{provider}` itself: {} for {machines}, up to {to:.0}; estimated since: {}",
        Spent::exactly(bill.amount),
        Spent::exactly(bill.estimated)
    )
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
