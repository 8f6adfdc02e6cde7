//! `state history` and `state rollback`: what happened, and back to how it was.
//!
//! Going back makes and ends nothing, and forgets no machine: what was rented since stays recorded, what is proven gone does
//! not come back.

use std::collections::BTreeSet;

use serde::Serialize;
use stageline_core::id::{JournalNumber, MachineId};
use stageline_core::journal::{Entry, Record};
use stageline_core::state::{Limit, State};
use stageline_core::unit::Timestamp;

use super::super::console::Console;
use super::super::project::Place;
use super::super::sellers::Sellers;
use super::super::surgery::Operation;
use super::super::{Exit, Failure, session};
use crate::store::Mode;

/// What was written, newest last.
#[derive(Debug, clap::Args)]
pub(crate) struct History {
    /// At most so many runs, the last ones
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// Go back to the state as of an entry; forgets no machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    /// The number of an entry, from `state history`
    number: u64,
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

/// One run, as far as it is in the journal.
#[derive(Serialize)]
struct Line {
    first: u64,
    last: u64,
    at: Option<Timestamp>,
    command: String,
    by: String,
    ended: bool,
    what: Vec<String>,
}

impl History {
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let store = place.open(Mode::Read).await?;
        let snapshots = store.snapshots().await?;
        let entries = store.entries().await?;
        let mut lines = runs(&entries);
        let skipped = lines.len().saturating_sub(self.limit);
        lines.drain(..skipped);
        if console.json {
            #[derive(Serialize)]
            struct Document {
                snapshots: Vec<JournalNumber>,
                runs: Vec<Line>,
            }
            console.document(&Document {
                snapshots,
                runs: lines,
            })?;
            return Ok(Exit::Done);
        }
        let mut text = String::new();
        if !snapshots.is_empty() {
            let numbers: Vec<String> = snapshots.iter().map(ToString::to_string).collect();
            text.push_str(&format!(
                "Whole states are kept as of {}.\n",
                numbers.join(", ")
            ));
        }
        if skipped > 0 {
            text.push_str(&format!("{skipped} earlier runs; --limit shows more.\n"));
        }
        for line in &lines {
            let at = line.at.map_or_else(String::new, |at| format!("{at:.0}  "));
            let end = if line.ended {
                ""
            } else {
                ", not ended in order"
            };
            text.push_str(&format!(
                "{}..{}  {at}{} by {}{end}\n",
                line.first, line.last, line.command, line.by
            ));
            for what in &line.what {
                text.push_str(&format!("    {what}\n"));
            }
        }
        if lines.is_empty() && snapshots.is_empty() {
            console.say(&format!("`{}` has no history", place.name));
        }
        console.data(&text)?;
        Ok(Exit::Done)
    }
}

fn runs(entries: &[Entry]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for entry in entries {
        for record in &entry.records {
            if let Record::Begin {
                command, by, at, ..
            } = record
            {
                lines.push(Line {
                    first: entry.n.0,
                    last: entry.n.0,
                    at: Some(*at),
                    command: command.clone(),
                    by: by.clone(),
                    ended: false,
                    what: Vec::new(),
                });
            }
        }
        if lines.is_empty() {
            lines.push(Line {
                first: entry.n.0,
                last: entry.n.0,
                at: None,
                command: "a run that began before".to_owned(),
                by: "somebody".to_owned(),
                ended: false,
                what: Vec::new(),
            });
        }
        let Some(line) = lines.last_mut() else {
            continue;
        };
        line.last = entry.n.0;
        for record in &entry.records {
            line.ended |= matches!(record, Record::End { .. });
            line.what.extend(told(entry.n, record));
        }
    }
    lines
}

/// What is worth a line in a history: what was made, ended, changed by hand, or is in doubt.
fn told(n: JournalNumber, record: &Record) -> Option<String> {
    let text = match record {
        Record::Done { address, verb, .. } => format!("{address}: {} is done", verb.doing()),
        Record::DoneBriefly(brief) => {
            format!("{}: {} is done", brief.address, brief.verb.doing())
        }
        Record::Refused {
            address,
            verb,
            cause,
            ..
        } => format!("{address}: {} was refused: {cause}", verb.doing()),
        Record::GaveUp { address, cause, .. } => {
            format!("{address}: its machine was given up: {cause}")
        }
        Record::InDoubt { address, cause, .. } => format!("{address}: in doubt: {cause}"),
        Record::ExtraReleased {
            address, machine, ..
        } => format!("{address}: machine {machine} was one too many and was released"),
        Record::Vanished { address, why, .. } => format!("{address}: {why}"),
        Record::Lapsed {
            address,
            limit: Limit::Interrupt,
            why,
            ..
        } => format!("{address}: taken away: {why}"),
        Record::Lapsed {
            address,
            limit,
            why,
            ..
        } => format!("{address}: ended by its {limit}: {why}"),
        Record::Unlapsed { address, .. } => {
            format!("{address}: how it ended before is forgotten")
        }
        Record::Edited { address, why, .. } => format!("{address}: {why}"),
        Record::Closed { to, .. } => format!("moved to {to}"),
        Record::Opened { from, .. } => format!("came from {from}"),
        Record::HostKey { host, .. } => format!("{host} is known by its key from now on"),
        Record::Genesis { .. }
        | Record::Begin { .. }
        | Record::Started { .. }
        | Record::Absent { .. }
        | Record::Seen { .. }
        | Record::Dated { .. }
        | Record::End { .. } => return None,
    };
    Some(format!("{n}  {text}"))
}

impl Rollback {
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let store = place.open(Mode::Read).await?;
        let number = JournalNumber(self.number);
        let Some(then) = store.state_at(number).await? else {
            return Err(
                Failure::user(format!("the store has no state as of entry {number}")).hint(
                    "`stageline state history` shows the entries that are kept, and the numbers of whole states",
                ),
            );
        };
        let gone = gone(place, &then).await?;
        let draft = |state: &State, at: Timestamp| Ok(state.back_to(&then, &gone, at));
        let operation = Operation {
            place,
            command: "state rollback",
            question: "Go back to that, with what is said above?",
            auto_approve: self.auto_approve,
        };
        console.say(&format!(
            "back to what was recorded as of entry {number}; nothing is made or ended by it"
        ));
        operation.run(draft, console).await
    }
}

/// Machines of an earlier state that a complete, trusted listing does not have.
async fn gone(place: &Place, then: &State) -> Result<BTreeSet<MachineId>, Failure> {
    let clock = session::clock();
    let providers = Sellers::recorded(then, place, &clock).providers()?;
    let observed = crate::observe::look(then, &providers, None, clock.as_ref()).await;
    let gone = observed.leases.iter().filter_map(|(lease, seen)| {
        let held = then.lease(lease)?;
        matches!(seen, stageline_core::state::Seen::Gone).then(|| held.machine.clone())
    });
    Ok(gone.collect())
}
