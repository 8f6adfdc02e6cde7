//! What is recorded, for people: a list, and one resource whole.

use super::page::{Ink, Page, View, table};
use crate::id::Address;
use crate::plan::fields;
use crate::resource::Receipt;
use crate::state::{Recorded, State};
use crate::unit::MicroDollars;

/// One line for each resource that exists or may exist.
pub fn list(state: &State, view: &View) -> String {
    let mut page = Page::new(view);
    let rows: Vec<Vec<String>> = state
        .existing()
        .map(|(address, recorded)| {
            vec![
                address.to_string(),
                format!("g{}", recorded.generation),
                status(recorded),
                brief(recorded),
            ]
        })
        .collect();
    if rows.is_empty() {
        page.para(0, "Nothing is recorded.");
        return page.finish();
    }
    table(&mut page, 0, &rows);
    page.blank();
    let cost = match state.committed_per_hour() {
        MicroDollars::ZERO => "They cost nothing.".to_owned(),
        price => format!("They cost or may cost {price}/h."),
    };
    page.para(0, &cost);
    page.finish()
}

/// Everything that is recorded of one resource; none when there is nothing.
pub fn show(state: &State, address: &Address, view: &View) -> Option<String> {
    let recorded = state
        .resources
        .get(address)
        .filter(|recorded| recorded.exists())?;
    let mut page = Page::new(view);
    let lead = format!("{address} (generation {}):", recorded.generation);
    page.item(0, Ink::Strong, &lead, &status(recorded));
    if let Some(spec) = &recorded.spec {
        page.heading("It was made to be");
        for (path, value) in fields::all(spec) {
            page.item(2, Ink::Plain, &path, &value);
        }
    }
    if let Some(receipt) = &recorded.receipt {
        page.heading("It was made as");
        for (path, value) in fields::receipt(receipt) {
            page.item(2, Ink::Plain, &path, &value);
        }
    }
    if let Some(pending) = &recorded.pending {
        page.heading("A step is not finished");
        let why = match &pending.cause {
            Some(cause) => format!(", {}", cause.message),
            None => String::new(),
        };
        page.para(
            2,
            &format!("{} since {}{why}", pending.verb.doing(), pending.at),
        );
    }
    if !recorded.attempts.is_empty() {
        page.heading("Tries that may have made a machine, or may still make one");
        for (attempt, open) in &recorded.attempts {
            let launch = &open.launch;
            page.para(
                2,
                &format!(
                    "try {attempt} at provider {}, {}, since {}: {} as {}, counted at {}/h",
                    launch.provider,
                    launch.offer,
                    open.at,
                    launch.quote,
                    launch.request_key,
                    launch.reservation
                ),
            );
        }
    }
    Some(page.finish())
}

fn status(recorded: &Recorded) -> String {
    if recorded.is_unresolved() {
        return recorded.unresolved().to_owned();
    }
    match (&recorded.pending, &recorded.receipt) {
        (Some(pending), _) if pending.cause.is_some() => {
            format!("{} did not succeed", pending.verb.doing())
        }
        (Some(pending), _) => format!("{} was begun", pending.verb.doing()),
        (None, Some(Receipt::Lease(lease))) if lease.ready.is_none() => "not ready yet".to_owned(),
        (None, Some(_)) => "there".to_owned(),
        (None, None) => "unknown".to_owned(),
    }
}

fn brief(recorded: &Recorded) -> String {
    match &recorded.receipt {
        Some(Receipt::Lease(lease)) => format!(
            "{} at provider {}, {}/h",
            lease.machine, lease.provider, lease.price_per_hour
        ),
        Some(Receipt::Delivery(delivery)) => {
            let pipelines: Vec<&str> = delivery.rosters.keys().map(|name| name.as_str()).collect();
            pipelines.join(", ")
        }
        Some(Receipt::Stage(stage)) => format!("spec {}", stage.spec.short()),
        Some(Receipt::Pipeline(pipeline)) => format!("answered in {}", pipeline.took),
        Some(Receipt::Exposure(exposure)) => exposure.url.clone(),
        None => String::new(),
    }
}
