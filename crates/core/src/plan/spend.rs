//! What was spent over the topology's life, and what is left of `limits.max_spend`.
//!
//! The cap is compared with the most that may have been spent: open tries count at their ceiling. A plan that rents
//! nothing is never refused by it, and ends nothing for it: what runs is drained and released by a watcher.

use super::draft::Draft;
use super::protect::will_be;
use super::{EndsBy, LeaseTerms, Money};
use crate::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::LeaseId;
use crate::state::{Seen, Spent};
use crate::unit::{MicroDollars, Millis};

/// What was spent until now.
pub(super) fn spent(input: &Draft<'_>) -> Spent {
    let now = input
        .recorded
        .ledger_now(input.options.now, input.options.boot.as_ref());
    let alive = |lease: &LeaseId| match input.observed.leases.get(lease) {
        Some(Seen::There(there)) => there.dead.is_none(),
        Some(Seen::Gone | Seen::Unknown(_)) | None => false,
    };
    input.recorded.ledger(now, alive).total
}

/// Fills in what was spent and what is left.
pub(super) fn account(money: &mut Money, input: &Draft<'_>) {
    money.spent = spent(input);
    let cap = input.options.limits.max_spend;
    money.left = cap.map(|cap| MicroDollars(cap.0.saturating_sub(money.spent.most.0)));
}

/// What goes on when the cap is reached: all that costs money where nobody watches, and what is protected in any case.
pub(super) fn unkept(leases: &BTreeMap<LeaseId, LeaseTerms>, input: &Draft<'_>) -> Option<String> {
    let cap = input.options.limits.max_spend?;
    let cost = leases
        .iter()
        .filter(|(_, terms)| terms.ends != EndsBy::Free)
        .map(|(lease, _)| lease);
    if !input.options.watched {
        return (cost.count() > 0).then(|| {
            format!(
                "limits.max_spend ({cap}) is kept by `stageline watch` alone, and no watcher runs: what runs goes on when it is reached"
            )
        });
    }
    let protected: BTreeSet<String> = cost
        .filter(|lease| will_be(lease, input))
        .map(|lease| format!("lease.{}", lease.name))
        .collect();
    (!protected.is_empty()).then(|| {
        let tables: Vec<String> = protected.into_iter().collect();
        format!(
            "limits.max_spend ({cap}) ends nothing that is protected: {} goes on when it is reached",
            tables.join(", ")
        )
    })
}

/// The cap, when renting would go beyond it.
pub(super) fn check(cap: Option<MicroDollars>, money: &Money) -> Option<Diagnostic> {
    let cap = cap.filter(|_| money.left == Some(MicroDollars::ZERO))?;
    let message = format!(
        "{} was spent so far, limits.max_spend is {cap}: nothing more is rented",
        money.spent
    );
    Some(Diagnostic::error("plan/over-limit", message).hint(
        "raise limits.max_spend, or end what runs with `stageline destroy`; `stageline leases` shows what each lease cost",
    ))
}

/// How long what is left lasts at this rate; none when it costs nothing or lasts beyond reason.
pub(super) fn lasts(money: &Money) -> Option<Millis> {
    let left = money.left?;
    let rate = money.after_per_hour;
    let millis = u128::from(left.0) * 3_600_000 / u128::from(rate.0).max(1);
    let millis = u64::try_from(millis).ok()?;
    (rate > MicroDollars::ZERO).then_some(Millis(millis / 60_000 * 60_000))
}
