//! Ends orphans by id, and lets the provider's listing prove it.

use std::collections::BTreeSet;
use std::time::Duration;

use stageline_core::id::{Address, MachineId, Name};
use stageline_core::journal::Record;
use stageline_core::state::State;

use super::super::console::Console;
use super::super::surgery::Operation;
use super::super::{Exit, Failure};
use super::Scene;
use crate::ambient::{self, Clock};
use crate::observe::orphans::{Orphan, Whose};
use crate::provider::{Machine, Provider, Released};
use crate::store::{Journal, Mode};

/// How long a machine that was released may stay listed before a person has to look.
const GONE_WITHIN: Duration = Duration::from_secs(120);

/// Between two looks.
const POLL: Duration = Duration::from_millis(500);

/// One machine at one provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(Name, MachineId);

impl Id {
    pub fn of(orphan: &Orphan) -> Self {
        Self(orphan.provider.clone(), orphan.id().clone())
    }
}

/// Looks again, then ends those that are orphans still. Where there is a state nobody else may be at work on it meanwhile,
/// and it is written down.
pub(super) async fn all(
    scene: &Scene,
    shown: &State,
    ids: &BTreeSet<Id>,
    console: &Console,
) -> Result<Exit, Failure> {
    // A state that is gone is not made anew by this.
    if shown.genesis.is_none() {
        return Ok(each(scene, ids, console).await?.0);
    }
    let clock = ambient::steady(scene.clock.clone());
    let operation = Operation {
        place: &scene.place,
        command: "orphans --release",
        question: "",
        auto_approve: true,
    };
    let store = scene.place.open(Mode::Write).await?;
    let (lock, writer) = operation.lock(&store, &clock).await?;
    let done = async {
        let loaded = store.read().await?;
        let begin = operation.begin(shown);
        let journal = Journal::begin(&store, loaded, begin, writer).await?;
        let (exit, ended) = each(scene, ids, console).await?;
        let records = ended.iter().filter_map(|orphan| {
            let address = Address::Lease(orphan.lease.clone()?);
            let at = clock.now();
            // What is no machine was never billed.
            let ours = matches!(orphan.whose, Whose::Own | Whose::GivenUp)
                && orphan.machine.leftover().is_none();
            let told = orphan.machine.told().filter(|_| ours);
            let dated = told.map(|told| told.record(address.clone(), at));
            let released = ours.then(|| Record::ExtraReleased {
                address,
                machine: orphan.id().clone(),
                price_per_hour: Some(orphan.machine.price_per_hour),
                at,
            });
            Some(dated.into_iter().chain(released))
        });
        let records: Vec<Record> = records.flatten().collect();
        if !records.is_empty() {
            journal.append(records).await?;
        }
        journal.finish(true).await?;
        Ok::<_, Failure>(exit)
    }
    .await;
    lock.release().await;
    done
}

async fn each(
    scene: &Scene,
    ids: &BTreeSet<Id>,
    console: &Console,
) -> Result<(Exit, Vec<Orphan>), Failure> {
    let survey = scene.look().await?;
    let (mut exit, mut ended) = (Exit::Done, Vec::new());
    for id in ids {
        let orphan = survey.found.orphans.iter().find(|one| Id::of(one) == *id);
        let Some(orphan) = orphan else {
            console.line(&format!(
                "machine {}: no orphan any more; it is left alone",
                id.1
            ));
            continue;
        };
        let seller = (&orphan.provider, orphan.seller.as_ref());
        let done = end(seller, &orphan.machine, scene.clock.as_ref()).await;
        match done {
            Ok(()) => {
                console.line(&format!(
                    "machine {}: released, proven by the listing of `{}`",
                    id.1, orphan.provider
                ));
                ended.push(orphan.clone());
            }
            Err(why) => {
                exit = Exit::Doubt;
                console.line(&format!(
                    "machine {}: not proven gone, and may go on billing {} per hour: {why}; run the same command again, or \
                     look into the console of `{}`",
                    id.1, orphan.machine.price_per_hour, orphan.provider
                ));
            }
        }
    }
    Ok((exit, ended))
}

/// Ends exactly this machine: one that carries another name by now is not it.
async fn end(
    (name, provider): (&Name, &dyn Provider),
    machine: &Machine,
    clock: &dyn Clock,
) -> Result<(), String> {
    let start = clock.boottime();
    loop {
        let listed = provider.view().await;
        let listed =
            listed.and_then(|view| view.but(name, |part| part.concerns(machine.id.as_str())));
        let trouble = match listed {
            Err(blind) => blind.to_string(),
            Ok(machines) => match machines.into_iter().find(|one| one.id == machine.id) {
                None => return Ok(()),
                Some(now) if now.request_key != machine.request_key => {
                    return Err("it has another name now, so it was left alone".to_owned());
                }
                Some(_) => match provider.release(&machine.id).await {
                    Ok(Released::Accepted | Released::Unknown) => "it is still listed".to_owned(),
                    Err(cause) => cause.message,
                },
            },
        };
        if clock.boottime().saturating_sub(start) >= GONE_WITHIN {
            return Err(trouble);
        }
        clock.sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests;
