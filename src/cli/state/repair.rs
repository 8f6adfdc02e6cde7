//! `state repair`: the way out of a damaged store. It says what is lost, asks the providers what is there, and records
//! every machine with this state's mark, so that none bills unseen.

use serde::Deserialize;
use stageline_core::id::{Address, Generation, LeaseId, MachineId, Name};
use stageline_core::offer::QuoteId;
use stageline_core::resource::{LeaseReceipt, Receipt};
use stageline_core::state::{Genesis, Recorded, State};
use std::collections::{BTreeMap, BTreeSet};

use super::super::console::Console;
use super::super::project::{self, Place, Project};
use super::super::sellers::Sellers;
use super::super::surgery::Operation;
use super::super::{Exit, Failure, Global, session};
use crate::ambient;
use crate::observe::{self, Survivor};
use crate::store::{Damage, Journal, Mode};

/// Make a damaged state sound again, and say what is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Repair {
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

impl Repair {
    pub async fn run(
        &self,
        place: &Place,
        global: &Global,
        console: &Console,
    ) -> Result<Exit, Failure> {
        let reader = place.open(Mode::Read).await?;
        let Some(damage) = reader.damage().await? else {
            console.say(&format!(
                "the state of `{}` is sound; nothing to repair",
                place.name
            ));
            return Ok(Exit::Done);
        };
        let (state, notes) = self.mended(&damage, place, global).await?;
        console.line(&format!("{}", damage.error));
        for note in &notes {
            console.line(note);
        }
        let operation = Operation {
            place,
            command: "state repair",
            question: "Go on with that? Damaged objects are kept in `damaged/`.",
            auto_approve: self.auto_approve,
        };
        if !self.auto_approve && !console.confirm(operation.question)? {
            console.say("nothing was changed");
            return Ok(Exit::User);
        }
        let store = place.open(Mode::Write).await?;
        let clock = ambient::steady(session::clock());
        let (lock, writer) = operation.lock(&store, &clock).await?;
        let mended = async {
            let n = store.mend(&damage, &state).await?;
            let loaded = store.read().await?;
            let begin = operation.begin(&state);
            let journal = Journal::begin(&store, loaded, begin, writer).await?;
            journal.finish(true).await?;
            Ok::<_, Failure>(n)
        }
        .await;
        lock.release().await;
        console.say(&format!(
            "repaired as of number {}; `stageline plan` shows what is to be done now, `stageline leases` what is held",
            mended?
        ));
        Ok(Exit::Done)
    }

    /// The state that goes on, and what is to be known of it.
    async fn mended(
        &self,
        damage: &Damage,
        place: &Place,
        global: &Global,
    ) -> Result<(State, Vec<String>), Failure> {
        let mut state = damage.base.clone();
        let mut notes: Vec<String> = damage
            .lost
            .iter()
            .map(|lost| format!("lost: {lost}"))
            .collect();
        notes.push(match damage.sound.0 {
            0 => "no entry can be read from the beginning on".to_owned(),
            n => format!("what was recorded up to entry {n} is whole"),
        });
        notes.extend(
            state
                .salvage(&damage.later)
                .into_iter()
                .map(|skipped| format!("of a later entry this could not be used: {skipped}")),
        );
        let copied = damage.readable.as_deref();
        let copied = copied.map(|copy| from_copy(&mut state, copy));
        let copied = copied.unwrap_or_default();
        if copied.leases > 0 {
            let leases = copied.leases;
            notes.push(format!(
                "{leases} leases were taken from the readable copy, state.json"
            ));
        }
        if state.genesis.is_none() {
            return Err(Failure::new(
                Exit::Doubt,
                format!("{}; and nothing says which machines are its own", damage.error),
            )
            .hint(
                "put the folder back from a copy; else end what the providers' consoles show under names that begin with `sl-`",
            ));
        }
        let clock = session::clock();
        // Where it can be read it says which providers there are, also when nothing recorded does any more.
        let project = Project::load(global).ok();
        let providers = Sellers {
            topology: project.as_ref().map(|project| &project.topology),
            state: &state,
            place,
            folder: &project::folder(global),
            clock: &clock,
        }
        .providers()?;
        let mut listed = observe::survivors(&state, &providers).await.map_err(|blind| {
            Failure::new(Exit::Doubt, blind.to_string()).hint(
                "what runs there cannot be told, so nothing was repaired; mend access to that account and run it again",
            )
        })?;
        notes.extend(found(&mut state, &mut listed, &copied, clock.now()));
        Ok((state, notes))
    }
}

/// Takes what is listed into the state, and says what is there and what is not.
fn found(
    state: &mut State,
    listed: &mut [Survivor],
    copied: &Copied,
    now: stageline_core::unit::Timestamp,
) -> Vec<String> {
    let mut notes = Vec::new();
    for survivor in listed.iter_mut() {
        if let Some((_, provider)) = copied.machines.get(&survivor.machine.id) {
            // Under the name that its table has: the copy knows, who lists it here may not.
            survivor.provider.clone_from(provider);
        }
        notes.extend(take(state, survivor, now));
    }
    for (machine, (lease, _)) in &copied.machines {
        if !listed.iter().any(|one| one.machine.id == *machine) {
            notes.push(format!(
                    "{lease}: state.json names machine {machine}, which no provider that was asked lists now; if it is on \
                     another account or computer, end it there: nothing records it any more"
                ));
        }
    }
    let leases: BTreeSet<LeaseId> = state
        .existing()
        .filter_map(|(address, _)| address.lease().cloned())
        .collect();
    for lease in leases {
        if let Some(held) = state.lease(&lease) {
            let there = listed.iter().any(|one| one.machine.id == held.machine);
            let what = if there {
                format!("is there, {} per hour", held.price_per_hour)
            } else {
                "is not listed any more; the next apply or destroy proves it".to_owned()
            };
            notes.push(format!("{lease}: machine {} {what}", held.machine));
        }
    }
    notes
}

/// Records a listed machine that nothing records.
fn take(
    state: &mut State,
    survivor: &Survivor,
    now: stageline_core::unit::Timestamp,
) -> Option<String> {
    let machine = &survivor.machine;
    let key = machine.request_key.clone()?;
    let known = {
        let mut held = state.existing().filter_map(|(address, _)| address.lease());
        held.any(|lease| {
            let held = state.lease(lease);
            held.is_some_and(|held| held.machine == machine.id)
        })
    };
    if known {
        return None;
    }
    let price = machine.price_per_hour;
    let unknown = format!(
        "machine {} ({}) is at provider kind `{}`, {price} per hour, and belongs to no recorded lease; `stageline destroy` \
         ends it, `stageline import ADDR {}` takes it",
        machine.id, key, survivor.kind, machine.id
    );
    let Some(lease) = state.lease_of_key(&key) else {
        return Some(unknown);
    };
    let receipt = LeaseReceipt {
        provider: survivor.provider.clone(),
        provider_kind: survivor.kind.to_owned(),
        offer: "unknown".parse().expect("a name"),
        quote: QuoteId("found".to_owned()),
        machine: machine.id.clone(),
        request_key: key,
        account: survivor.account.clone(),
        price_per_hour: price,
        created_at: machine.created_at.unwrap_or(now),
        place: machine.facts.place(),
        ready: None,
    };
    if !state.take_back(lease.clone(), receipt) {
        return Some(unknown);
    }
    Some(format!(
        "{lease}: machine {} was lost from the state and is recorded again, {price} per hour",
        machine.id
    ))
}

/// What the readable copy of the state says of leases that nothing else knows.
#[derive(Default)]
struct Copied {
    /// How many of them.
    leases: usize,
    /// Their machines, with the tables of their providers: whether these are there is for the provider to say.
    machines: BTreeMap<MachineId, (LeaseId, Name)>,
}

/// Takes over which leases there were, so that a listed machine is told by its name; and from a copy of an older stageline the
/// receipts, which it had whole.
fn from_copy(state: &mut State, copy: &[u8]) -> Copied {
    #[derive(Deserialize)]
    struct Copy {
        genesis: Option<Genesis>,
        resources: BTreeMap<Address, Line>,
    }
    #[derive(Deserialize)]
    struct Line {
        generation: Generation,
        receipt: Option<Receipt>,
        machine: Option<MachineId>,
        provider: Option<Name>,
    }
    let mut found = Copied::default();
    let Ok(copy) = serde_json::from_slice::<Copy>(copy) else {
        return found;
    };
    if state.genesis.is_none() {
        state.genesis = copy.genesis;
    }
    for (address, line) in copy.resources {
        let known = state.resources.get(&address).is_some_and(Recorded::exists);
        let last = state.generations.get(&address).copied();
        let Address::Lease(lease) = &address else {
            continue;
        };
        if known || last.is_some_and(|last| last > line.generation) {
            continue;
        }
        found.leases += 1;
        let lease = lease.clone();
        state.generations.insert(address, line.generation);
        if let Some(Receipt::Lease(receipt)) = line.receipt {
            state.take_back(lease, *receipt);
        } else if let (Some(machine), Some(provider)) = (line.machine, line.provider) {
            found.machines.insert(machine, (lease, provider));
        }
    }
    found
}
