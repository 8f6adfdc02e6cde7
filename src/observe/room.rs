//! What other topologies have on an account, counted from one fresh and complete listing of it.

use std::collections::BTreeMap;

use stageline_core::id::Name;
use stageline_core::plan::{Beside, Marked, Room, is_own};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::state::State;
use stageline_core::topology::Topology;
use stageline_core::unit::MicroDollars;

use crate::provider::{Machine, MachineStatus, Provider, Providers};

/// Of each provider whose table has caps.
pub async fn rooms(
    topology: &Topology,
    state: &State,
    providers: &Providers,
) -> BTreeMap<Name, Room> {
    let capped = topology.providers.iter();
    let capped = capped.filter(|(_, declared)| !declared.caps.is_none());
    let asked = capped.map(|(name, declared)| async move {
        let beside = match providers.get(name, declared.kind.as_str()) {
            Ok(provider) => marked(provider.as_ref()).await,
            Err(cause) => Err(cause),
        };
        let room = Room {
            caps: declared.caps,
            beside: beside.map(|all| but_own(all, state, name)),
        };
        (name.clone(), room)
    });
    futures::future::join_all(asked).await.into_iter().collect()
}

/// Every machine of the account that carries our mark, also one whose name was cut.
///
/// # Errors
/// [`Cause`] when not all of the account can be seen.
pub async fn marked(provider: &dyn Provider) -> Result<Vec<Marked>, Cause> {
    if !provider.traits().sees_account {
        let why = "only machines that were made from here can be seen";
        return Err(Cause::new(FailureClass::Config, why));
    }
    let machines = provider.list().await.map_err(|blind| blind.cause)?;
    Ok(machines.iter().filter_map(mark).collect())
}

/// Without what this topology records there.
pub fn but_own(mut all: Vec<Marked>, state: &State, provider: &Name) -> Beside {
    all.retain(|one| !is_own(state, provider, &one.machine, one.key.as_ref()));
    Beside { machines: all }
}

fn mark(machine: &Machine) -> Option<Marked> {
    let alike = || machine.name.as_ref().is_some_and(|it| it.resembles_key([]));
    let ours = machine.request_key.is_some() || alike();
    // What outlives a machine is none, and what ended bills no more.
    let counts = ours && machine.ended_at.is_none() && machine.leftover().is_none();
    counts.then(|| Marked {
        machine: machine.id.clone(),
        key: machine.request_key.clone(),
        price_per_hour: told(machine),
    })
}

/// What it costs. What serves for nothing has a price that was not told; what does not serve may cost nothing in truth, unless its host
/// is only away: it counts at the price that it has again when that comes back.
fn told(machine: &Machine) -> Option<MicroDollars> {
    let price = machine.price_per_hour;
    match machine.status {
        MachineStatus::Dead(_) | MachineStatus::Interrupted(_) | MachineStatus::Ending => {
            Some(machine.away_price.unwrap_or(price))
        }
        MachineStatus::Pending(_) | MachineStatus::Running => {
            Some(price).filter(|price| *price != MicroDollars::ZERO)
        }
    }
}
