//! Accounts with caps that other topologies share.

use super::page::Page;
use crate::plan::{OnAccount, Plan};

/// What others have there, and what may be there at once.
pub(super) fn accounts(page: &mut Page, plan: &Plan) {
    for account in &plan.accounts {
        page.para(0, &sentence(account));
    }
}

fn sentence(account: &OnAccount) -> String {
    let provider = &account.provider;
    let others = match account.others {
        0 => "no machine of other topologies".to_owned(),
        1 => format!(
            "1 machine of another topology, {}/h",
            account.others_per_hour
        ),
        n => format!(
            "{n} machines of other topologies, {}/h",
            account.others_per_hour
        ),
    };
    let unpriced = match account.unpriced {
        0 => String::new(),
        1 => " (the price of 1 is not told)".to_owned(),
        n => format!(" (the prices of {n} are not told)"),
    };
    let caps = account.caps;
    let most = caps.max_leases.map(|most| match most {
        1 => "1 machine".to_owned(),
        most => format!("{most} machines"),
    });
    let total = caps.max_total_per_hour.map(|total| format!("{total}/h"));
    let caps: Vec<String> = most.into_iter().chain(total).collect();
    format!(
        "Account of {provider}: {others}{unpriced}; at most {} together with these.",
        caps.join(" and ")
    )
}
