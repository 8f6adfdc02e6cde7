//! `state repair`: the way out of a damaged store. It says what is lost, asks the providers what is there, and records
//! every machine with this state's mark, so that none bills unseen.

use serde::Deserialize;
use stageline_core::id::{Address, Generation};
use stageline_core::offer::QuoteId;
use stageline_core::resource::{LeaseReceipt, Receipt};
use stageline_core::state::{Genesis, Recorded, State};
use std::collections::BTreeMap;

use super::super::console::Console;
use super::super::project::Place;
use super::super::sellers::Sellers;
use super::super::surgery::Operation;
use super::super::{Exit, Failure, session};
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
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let reader = place.open(Mode::Read).await?;
        let Some(damage) = reader.damage().await? else {
            console.say(&format!(
                "the state of `{}` is sound; nothing to repair",
                place.name
            ));
            return Ok(Exit::Done);
        };
        let (state, notes) = self.mended(&damage, place).await?;
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
        if let Some(copy) = damage.readable.as_deref()
            && let Some(more) = from_copy(&mut state, copy)
        {
            notes.push(more);
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
        let providers = Sellers {
            topology: None,
            state: &state,
            place,
            folder: std::path::Path::new("."),
            clock: &clock,
        }
        .providers()?;
        let listed = observe::survivors(&state, &providers).await.map_err(|blind| {
            Failure::new(Exit::Doubt, blind.to_string()).hint(
                "what runs there cannot be told, so nothing was repaired; mend access to that account and run it again",
            )
        })?;
        for survivor in &listed {
            notes.extend(take(&mut state, survivor, clock.now()));
        }
        let leases: Vec<_> = state
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
        Ok((state, notes))
    }
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

/// Leases that only the readable copy of the state knows.
fn from_copy(state: &mut State, copy: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Copy {
        genesis: Option<Genesis>,
        resources: BTreeMap<Address, Line>,
    }
    #[derive(Deserialize)]
    struct Line {
        generation: Generation,
        receipt: Option<Receipt>,
    }
    let copy: Copy = serde_json::from_slice(copy).ok()?;
    if state.genesis.is_none() {
        state.genesis = copy.genesis;
    }
    let mut taken = 0;
    for (address, line) in copy.resources {
        let known = state.resources.get(&address).is_some_and(Recorded::exists);
        let newer = state
            .generations
            .get(&address)
            .is_some_and(|n| *n > line.generation);
        if let (Address::Lease(lease), Some(Receipt::Lease(receipt)), false, false) =
            (address, line.receipt, known, newer)
            && state.take_back(lease, *receipt)
        {
            taken += 1;
        }
    }
    (taken > 0).then(|| format!("{taken} leases were taken from the readable copy, state.json"))
}
