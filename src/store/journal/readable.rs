//! The copy of the state that people read: JSON with one line for each resource.
//!
//! It leaves out what each resource should be, which is in the topology, and of a machine all but what people ask for: so it
//! costs a run little to write it whole.
//! `state pull` gives everything.

use std::collections::BTreeMap;

use serde::Serialize;
use stageline_core::id::{Address, Attempt, Generation, JournalNumber, MachineId, Name};
use stageline_core::resource::Receipt;
use stageline_core::state::{EndedLease, Genesis, OpenAttempt, Pending, Recorded, State};
use stageline_core::unit::{MicroDollars, Timestamp};

#[derive(Serialize)]
struct Line<'a> {
    generation: Generation,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    receipt: Option<Made<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<&'a Pending>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attempts: &'a BTreeMap<Attempt, OpenAttempt>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Made<'a> {
    Machine {
        machine: &'a MachineId,
        provider: &'a Name,
        price_per_hour: MicroDollars,
        created_at: Timestamp,
        ready: bool,
    },
    Other {
        receipt: &'a Receipt,
    },
}

impl<'a> Made<'a> {
    fn of(receipt: &'a Receipt) -> Self {
        match receipt {
            Receipt::Lease(lease) => Self::Machine {
                machine: &lease.machine,
                provider: &lease.provider,
                price_per_hour: lease.price_per_hour,
                created_at: lease.created_at,
                ready: lease.ready.is_some(),
            },
            Receipt::Delivery(_)
            | Receipt::Stage(_)
            | Receipt::Pipeline(_)
            | Receipt::Exposure(_) => Self::Other { receipt },
        }
    }
}

/// The whole file.
pub(super) fn text(n: JournalNumber, state: &State) -> Vec<u8> {
    let mut text = String::from("{\n");
    let genesis: Option<&Genesis> = state.genesis.as_ref();
    field(&mut text, "as_of_entry", &n);
    field(&mut text, "genesis", &genesis);
    let run = state.run.as_ref();
    field(&mut text, "command", &run.map(|run| &run.command));
    field(&mut text, "by", &run.map(|run| &run.by));
    field(&mut text, "ended_in_order", &run.map(|run| !run.open));
    let lines = state
        .resources
        .iter()
        .map(|(address, recorded)| resource(address, recorded));
    text.push_str(&format!("\"resources\": {{{}}},\n", block(lines)));
    let ended = state.ended.iter().map(|ended: &EndedLease| json(ended));
    text.push_str(&format!("\"ended\": [{}]\n}}\n", block(ended)));
    text.into_bytes()
}

fn field(text: &mut String, name: &str, value: &impl Serialize) {
    text.push_str(&format!("\"{name}\": {},\n", json(value)));
}

fn resource(address: &Address, recorded: &Recorded) -> String {
    let line = Line {
        generation: recorded.generation,
        receipt: recorded.receipt.as_ref().map(Made::of),
        pending: recorded.pending.as_deref(),
        attempts: &recorded.attempts,
    };
    format!("{}: {}", json(address), json(&line))
}

/// Each on a line of its own.
fn block(lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\n{}\n", lines.join(",\n"))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a state is plain data")
}
