//! `state mv` and `state rm`: another address for a lease, or none at all. Its machine stays as it is.

use stageline_core::id::{Address, LeaseId, Name};
use stageline_core::journal::Record;
use stageline_core::state::{Edit, LeaseRange, State, Surgery};
use stageline_core::unit::Timestamp;

use super::super::console::Console;
use super::super::drafting::surgery as refused;
use super::super::project::Place;
use super::super::surgery::Operation;
use super::super::{Exit, Failure};

/// Give a lease, or a table of leases, another address; or the state another topology name.
#[derive(Debug, clap::Args)]
pub(crate) struct Mv {
    /// lease.NAME, lease.NAME[i], or the topology's name
    from: String,
    /// The new one of the same kind
    to: String,
    /// Do not ask
    #[arg(long)]
    pub auto_approve: bool,
}

/// Take a resource out of the state; its machine goes on, and bills.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// lease.NAME, lease.NAME[i], or any other address
    address: String,
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

impl Mv {
    /// The topology's old and new name, when it is names that are given.
    pub fn names(&self) -> Option<(Name, Name)> {
        Some((self.from.parse().ok()?, self.to.parse().ok()?))
    }

    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let (from, to) = (range(&self.from)?, range(&self.to)?);
        let draft = |state: &State, at: Timestamp| {
            let edits = state.moves(&from, &to).map_err(refused)?;
            if edits.is_empty() {
                return Err(missing(state, &from.to_string(), place));
            }
            let mut surgery = Surgery {
                records: state.edited(&edits, at).map_err(refused)?,
                notes: Vec::new(),
            };
            for edit in &edits {
                if let Edit::Move { from, to } = edit {
                    surgery.notes.push(format!(
                        "{from} becomes {to}; {} stays",
                        machine(state, from)
                    ));
                }
            }
            surgery.notes.push(format!(
                "rename it in the topology file, too: else the next plan ends {to} and rents {from} anew. The next apply tells \
                 the machines their new names; nothing is rented or ended for it"
            ));
            Ok(surgery)
        };
        let operation = Operation {
            place,
            command: "state mv",
            question: "Change the state like that?",
            auto_approve: self.auto_approve,
        };
        operation.run(draft, console).await
    }
}

impl Rm {
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let draft = |state: &State, at: Timestamp| match self.address.parse::<LeaseRange>() {
            Ok(range) => leases(state, &range, place, at),
            Err(_) => part(state, &address(&self.address)?, place, at),
        };
        let operation = Operation {
            place,
            command: "state rm",
            question: "Take it out of the state?",
            auto_approve: self.auto_approve,
        };
        operation.run(draft, console).await
    }
}

fn leases(
    state: &State,
    range: &LeaseRange,
    place: &Place,
    at: Timestamp,
) -> Result<Surgery, Failure> {
    let edits: Vec<Edit> = state
        .leases_in(range)
        .map(|lease| Edit::Remove {
            lease: lease.clone(),
        })
        .collect();
    if edits.is_empty() {
        return Err(missing(state, &range.to_string(), place));
    }
    let records = state.edited(&edits, at).map_err(refused)?;
    let mut notes = Vec::new();
    for lease in state.leases_in(range) {
        if let Some(held) = state.lease(lease) {
            notes.push(format!(
                "{lease}: machine {} at provider {} ({}) goes on billing {} per hour, and no apply or destroy ends it; \
                 `stageline import {lease} {}` takes it back, `stageline orphans --release {}` ends it (its name at the provider is {})",
                held.machine,
                held.provider,
                held.provider_kind,
                held.price_per_hour,
                held.machine,
                held.machine,
                held.request_key
            ));
        }
    }
    let with: Vec<String> = records
        .iter()
        .filter_map(Record::address)
        .filter(|address| address.kind() != "lease")
        .map(ToString::to_string)
        .collect();
    if !with.is_empty() {
        notes.push(format!("taken out together with it: {}", with.join(", ")));
    }
    Ok(Surgery { records, notes })
}

/// Anything but a lease: it costs nothing by itself.
fn part(
    state: &State,
    address: &Address,
    place: &Place,
    at: Timestamp,
) -> Result<Surgery, Failure> {
    let recorded = state.resources.get(address);
    if !recorded.is_some_and(|recorded| recorded.exists()) {
        return Err(missing(state, &address.to_string(), place));
    }
    Ok(Surgery {
        records: vec![Record::Edited {
            address: address.clone(),
            recorded: None,
            moved_to: None,
            why: "taken out of the state".to_owned(),
            at,
        }],
        notes: vec![format!(
            "{address} is forgotten, not ended: it ends with its machine, and the next apply makes it again if it is declared"
        )],
    })
}

fn machine(state: &State, lease: &LeaseId) -> String {
    match state.lease(lease) {
        Some(held) => format!(
            "machine {}, {} per hour,",
            held.machine, held.price_per_hour
        ),
        None => "what its open tries made, or may make,".to_owned(),
    }
}

fn range(text: &str) -> Result<LeaseRange, Failure> {
    text.parse().map_err(|error: String| {
        Failure::new(Exit::Usage, error).hint(
            "only leases have addresses that can be moved; a topology is renamed with two names: `stageline state mv OLD NEW`",
        )
    })
}

fn address(text: &str) -> Result<Address, Failure> {
    text.parse()
        .map_err(|error| Failure::new(Exit::Usage, format!("{error}")))
}

fn missing(state: &State, wanted: &str, place: &Place) -> Failure {
    let near = state
        .existing()
        .map(|(address, _)| address.to_string())
        .min_by_key(|known| strsim_of(wanted, known));
    let failure = Failure::user(format!("{wanted} is not in the state of `{}`", place.name));
    match near {
        Some(near) => failure.hint(format!(
            "did you mean {near}? `stageline state list` names all"
        )),
        None => failure.hint("nothing is recorded there"),
    }
}

/// How many letters differ, roughly: enough to name the likeliest.
fn strsim_of(a: &str, b: &str) -> usize {
    let common = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    a.len().max(b.len()) - common
}
