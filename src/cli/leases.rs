//! `leases` and `release`: the machines we hold, and ending one of them now.

use std::path::Path;

use serde::Serialize;
use stageline_core::id::{Address, LeaseId};
use stageline_core::plan::is_protected;
use stageline_core::state::{EndedLease, Spent, State};

use super::apply::Pace;
use super::console::Console;
use super::drafting::{self, Narrow};
use super::run::{self, Job};
use super::{Exit, Failure, Global, money, plan, project, session};
use crate::store::Mode;

/// The machines we hold, ended ones too.
#[derive(Debug, clap::Args)]
pub(crate) struct Leases {}

/// One line of the listing.
#[derive(Serialize)]
struct Line {
    lease: LeaseId,
    machine: Option<String>,
    provider: String,
    price_per_hour: String,
    /// What this machine, and every earlier one of the lease where it is held, cost so far.
    spent: Option<Spent>,
    status: String,
}

impl Leases {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let state = session::reading()?.block_on(async {
            Ok::<_, Failure>(place.open(Mode::Read).await?.read().await?.state)
        })?;
        let mut lines: Vec<Line> = held(&state)
            .chain(state.ended.iter().rev().map(ended))
            .collect();
        let clock = session::clock();
        let ledger = money::ledger(&state, clock.as_ref(), |_| false, &[]);
        for line in &mut lines {
            if line.spent.is_none() {
                line.spent = ledger.leases.get(&line.lease).copied();
            }
        }
        if console.json {
            console.document(&lines)?;
        } else if lines.is_empty() {
            console.say(&format!("`{}` holds no machine and never did", place.name));
        } else {
            let mut text = table(&lines, console);
            for (machine, disowned) in &state.disowned {
                text.push_str(&format!(
                    "machine {machine} was taken out of the state at {:.0}, was {}, {}/h: it may go on billing\n",
                    disowned.at, disowned.lease, disowned.price_per_hour
                ));
            }
            if let Some(total) = money::total(&ledger) {
                text.push_str(&format!("{total}\n"));
            }
            console.data(&text)?;
        }
        Ok(Exit::Done)
    }
}

fn held(state: &State) -> impl Iterator<Item = Line> + '_ {
    state.existing().filter_map(|(address, recorded)| {
        let Address::Lease(lease) = address else {
            return None;
        };
        let held = state.lease(lease);
        let open = recorded.attempts.values().next_back();
        let status = match held {
            Some(held) if held.ready.is_some() => "ready".to_owned(),
            Some(_) => "up, its agent was not heard yet".to_owned(),
            None => recorded.unresolved().to_owned(),
        };
        let status = match (held, recorded.is_unresolved()) {
            (Some(_), true) => format!("{status}; an earlier try is {}", recorded.unresolved()),
            (_, _) => status,
        };
        Some(Line {
            lease: lease.clone(),
            machine: held.map(|held| held.machine.to_string()),
            provider: held
                .map(|held| held.provider.to_string())
                .or_else(|| open.map(|open| open.launch.provider.to_string()))
                .unwrap_or_default(),
            price_per_hour: recorded.committed_per_hour().to_string(),
            spent: None,
            status,
        })
    })
}

fn ended(lease: &EndedLease) -> Line {
    Line {
        lease: lease.lease.clone(),
        machine: Some(lease.receipt.machine.to_string()),
        provider: lease.receipt.provider.to_string(),
        price_per_hour: lease.receipt.price_per_hour.to_string(),
        spent: lease.spent.or(Some(Spent::default())),
        status: format!("ended {:.0}: {}", lease.ended_at, lease.why),
    }
}

fn table(lines: &[Line], console: &Console) -> String {
    let mut text = String::new();
    let width = lines
        .iter()
        .map(|line| line.lease.to_string().len())
        .max()
        .unwrap_or_default();
    for line in lines {
        let machine = line.machine.as_deref().unwrap_or("-");
        let lease = line.lease.to_string();
        let detail = format!(
            "{machine}  {}  {}/h  {}{}",
            line.provider,
            line.price_per_hour,
            line.status,
            spent(line)
        );
        text.push_str(&console.row(&format!("{lease:width$}  "), width + 2, &detail));
    }
    text
}

fn spent(line: &Line) -> String {
    match &line.spent {
        Some(spent) if !spent.is_zero() => format!(", {spent} so far"),
        Some(_) | None => String::new(),
    }
}

/// End one machine now.
#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    /// Such as lease.gpu[0]
    address: Address,
    #[command(flatten)]
    pace: Pace,
}

impl Release {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let Address::Lease(lease) = &self.address else {
            return Err(Failure::new(
                Exit::Usage,
                format!("{} is a {}, not a lease", self.address, self.address.kind()),
            )
            .hint("`stageline leases` lists what can be released"));
        };
        let place = project::place(global)?;
        session::runtime()?.block_on(async {
            let clock = session::clock();
            let reader = place.open(Mode::Read).await?;
            let recorded = reader.read().await?.state;
            let exists = |state: &State| {
                state
                    .resources
                    .get(&self.address)
                    .is_some_and(|recorded| recorded.exists())
            };
            if !exists(&recorded) {
                if recorded.ended.iter().any(|ended| ended.lease == *lease) {
                    console.say(&format!("{lease} has ended already"));
                    return Ok(Exit::Done);
                }
                return Err(Failure::user(format!("`{}` holds no {lease}", place.name))
                    .hint("`stageline leases` lists what can be released"));
            }
            if is_protected(&recorded, lease) {
                let message = format!("{lease} is protected: no command ends its machine");
                return Err(Failure::new(Exit::Guard, message).hint(format!(
                    "set `protect = false` in [lease.{}] and apply, then release it",
                    lease.name
                )));
            }
            let narrow = Narrow::only(self.address.clone());
            let drafted = drafting::destroy(&place, &reader, &narrow, &clock).await?;
            plan::announce(&drafted.plan, console)?;
            if !self.pace.auto_approve && !console.confirm(&format!("End {lease}?"))? {
                console.say("nothing was changed");
                return Ok(Exit::User);
            }
            let job = Job {
                plan: &drafted.plan,
                topology: None,
                digest: None,
                place: &place,
                folder: Path::new("."),
                parallelism: self.pace.parallelism,
                command: "release",
                reviewed: false,
                interrupt: None,
            };
            let store = place.open(Mode::Write).await?;
            run::run(&job, &store, &clock, console).await
        })
    }
}
