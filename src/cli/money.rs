//! What leases cost so far, for people: by the ledger of the state, with what is uncertain said.

use stageline_core::id::LeaseId;
use stageline_core::resource::Told;
use stageline_core::state::{Ledger, State};

use super::console::Console;
use crate::ambient::Clock;

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
        "; a range where nobody saw when a machine ended, or looked since"
    } else {
        ""
    };
    Some(format!("{total} spent{since}{why}"))
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
