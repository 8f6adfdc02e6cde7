//! What providers say of machines by their own clocks: what counts most for what they cost.

use std::sync::Arc;

use stageline_core::resource::{LeaseReceipt, Receipt, Told};
use stageline_core::state::State;

use crate::provider::{Machine, MachineStatus, Provider, Providers};

/// What every provider that tells dates says of machines that are there and that are over. One that is recorded and too new to be
/// listed is asked for by its id. Who cannot be seen tells nothing.
pub async fn dates(state: &State, providers: &Providers) -> Vec<Told> {
    let asked = providers
        .all()
        .map(|provider| of(state, providers, provider));
    let told = futures::future::join_all(asked).await;
    told.into_iter().flatten().collect()
}

/// Of machines that are held, and of those that were given up and may be there.
fn receipts(state: &State) -> impl Iterator<Item = &LeaseReceipt> {
    let recorded = state.resources.values();
    recorded.flat_map(|recorded| {
        let held = match &recorded.receipt {
            Some(Receipt::Lease(held)) => Some(&**held),
            Some(_) | None => None,
        };
        let left = recorded.attempts.values();
        held.into_iter()
            .chain(left.filter_map(|open| open.leaving.as_deref()))
    })
}

async fn of(state: &State, providers: &Providers, provider: &Arc<dyn Provider>) -> Vec<Told> {
    let Ok(Some(mut machines)) = provider.dated().await else {
        return Vec::new();
    };
    for held in receipts(state) {
        let seller = providers.get(&held.provider, &held.provider_kind);
        let own = seller.is_ok_and(|seller| Arc::ptr_eq(seller, provider));
        if own && machines.iter().all(|machine| machine.id != held.machine) {
            let by_id = provider.describe(&held.machine).await;
            machines.extend(by_id.ok().flatten());
        }
    }
    let bills = |machine: &Machine| match machine.status {
        MachineStatus::Dead(_) | MachineStatus::Interrupted(_) => {
            provider.traits().bills_while_stopped || machine.ended_at.is_some()
        }
        MachineStatus::Pending(_) | MachineStatus::Running | MachineStatus::Ending => true,
    };
    let told = machines.iter().filter(|machine| bills(machine));
    told.filter_map(Machine::told).collect()
}
