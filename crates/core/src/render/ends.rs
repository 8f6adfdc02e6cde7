//! Who ends a lease while nobody looks, and which leases are kept ended by their own limits.

use super::page::{Ink, Page};
use crate::plan::{Change, EndsBy, Plan};
use crate::resource::Spec;
use crate::unit::Millis;

/// Most leases that are kept ended that are told one by one.
const LAPSED_MAX: usize = 12;

/// What ended by a limit of its own is no drift, and is not made again unasked.
pub(super) fn lapsed(page: &mut Page, plan: &Plan) {
    if plan.lapsed.is_empty() {
        return;
    }
    page.heading("Kept ended, by limits of their own:");
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
        EndsBy::Box => Some(format!("ends itself {when}")),
        EndsBy::Watcher => Some(format!("the watcher ends it {when}")),
        EndsBy::Nobody => {
            Some("nobody ends it while you are away: it bills until it is released".to_owned())
        }
    }
}

/// Nothing is to be done, and not all that is declared is there.
pub(super) fn nothing_but_ended(plan: &Plan, kept: usize) -> String {
    let ended = match plan.lapsed.len() {
        1 => "1 lease is kept ended by its own limit".to_owned(),
        n => format!("{n} leases are kept ended by their own limits"),
    };
    match kept {
        0 => format!("Nothing to do: {ended}."),
        1 => format!("Nothing to do: {ended}, and 1 resource stays as it is."),
        n => format!("Nothing to do: {ended}, and {n} resources stay as they are."),
    }
}
