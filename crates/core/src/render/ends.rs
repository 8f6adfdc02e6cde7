//! Who ends a lease while nobody looks, and which leases are kept ended by their own limits.

use super::page::{Ink, Page};
use crate::plan::{Change, Choice, EndsBy, Plan};
use crate::resource::Spec;
use crate::state::{Edit, Limit};
use crate::topology::OnInterrupt;
use crate::unit::Millis;

/// Most leases that are kept ended that are told one by one.
const LAPSED_MAX: usize = 12;

/// What ended by a limit of its own is no drift, and is not made again unasked.
pub(super) fn lapsed(page: &mut Page, plan: &Plan) {
    if plan.lapsed.is_empty() {
        return;
    }
    page.heading(match by_own_limits(plan) {
        true => "Kept ended, by limits of their own:",
        false => "Kept ended, by limits of their own or because they were taken away:",
    });
    for (lease, lapse) in plan.lapsed.iter().take(LAPSED_MAX) {
        let text = format!("{lapse}; `stageline apply --renew {lease}` rents it again");
        page.item(2, Ink::Dim, &format!(". {lease}:"), &text);
    }
    if plan.lapsed.len() > LAPSED_MAX {
        let more = plan.lapsed.len() - LAPSED_MAX;
        let text = format!("and {more} more; `stageline apply --renew` rents all of them again");
        page.para(2, &text);
    }
}

fn by_own_limits(plan: &Plan) -> bool {
    plan.lapsed.values().all(|lapse| lapse.limit.is_own())
}

/// What an edit means, for whoever reads the plan.
pub(super) fn edited(plan: &Plan, edit: &Edit) -> (Ink, &'static str) {
    match edit {
        Edit::Move { .. } => (Ink::Changed, "its machine stays"),
        Edit::Remove { .. } => (
            Ink::Ended,
            "its machine goes on billing and nobody ends it; `stageline import` takes it back",
        ),
        Edit::Lapse {
            lease,
            limit: Limit::Interrupt,
            ..
        } if !plan.lapsed.contains_key(lease) => (Ink::Changed, "the next one is rented on demand"),
        Edit::Lapse { .. } => (Ink::Ended, "it stays ended until `--renew`"),
        Edit::Unlapse { .. } => (Ink::Changed, "declared again, it is rented again"),
    }
}

/// Who ends it while nobody looks.
pub(super) fn ends_by(ends: EndsBy, change: &Change) -> Option<String> {
    let Some(Spec::Lease(spec)) = &change.spec else {
        return None;
    };
    let idle = (spec.idle_timeout != Millis::NEVER)
        .then(|| format!("after {} without work", spec.idle_timeout));
    let old = (spec.max_lifetime != Millis::NEVER)
        .then(|| format!("when it is {} old", spec.max_lifetime));
    let when: Vec<String> = idle.into_iter().chain(old).collect();
    let when = if when.is_empty() {
        "by limits.max_spend alone".to_owned()
    } else {
        when.join(", or ")
    };
    match ends {
        EndsBy::Free => None,
        EndsBy::Box if spec.protect => Some(format!(
            "ends itself {when}, also while it is protected"
        )),
        EndsBy::Box => Some(format!("ends itself {when}")),
        EndsBy::Watcher => Some(format!("the watcher ends it {when}")),
        EndsBy::Nobody if spec.protect => Some(
            "nobody ends it while you are away, since it is protected: it bills until that is lifted and it is released"
                .to_owned(),
        ),
        EndsBy::Nobody => {
            Some("nobody ends it while you are away: it bills until it is released".to_owned())
        }
    }
}

/// What follows when a machine that is bid for is taken away.
pub(super) fn may_be_taken(choice: &Choice, change: &Change) -> Option<String> {
    let Some(Spec::Lease(spec)) = &change.spec else {
        return None;
    };
    let mut terms = spec.terms.iter();
    let terms = terms.find(|terms| terms.offer == choice.offer)?;
    let follows = match terms.bids()?.on_interrupt {
        OnInterrupt::Replace => "`apply` then bids for another one",
        OnInterrupt::OnDemand => "`apply` then rents the next one on demand",
        OnInterrupt::End => "its lease then stays ended",
    };
    Some(format!(
        "may be taken away: it bills its disk until it is released, and {follows}"
    ))
}

/// Nothing is to be done, and not all that is declared is there.
pub(super) fn nothing_but_ended(plan: &Plan, kept: usize) -> String {
    let ended = match (plan.lapsed.len(), by_own_limits(plan)) {
        (1, true) => "1 lease is kept ended by its own limit".to_owned(),
        (n, true) => format!("{n} leases are kept ended by their own limits"),
        (1, false) => "1 lease is kept ended".to_owned(),
        (n, false) => format!("{n} leases are kept ended"),
    };
    match kept {
        0 => format!("Nothing to do: {ended}."),
        1 => format!("Nothing to do: {ended}, and 1 resource stays as it is."),
        n => format!("Nothing to do: {ended}, and {n} resources stay as they are."),
    }
}
