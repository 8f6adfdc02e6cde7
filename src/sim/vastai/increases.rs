//! Prices that hosts ask for machines which are rented: pending until their client accepts or rejects them.

use serde_json::{Value, json};

use super::super::machine::Machine;
use super::super::serve::Reply;
use super::super::world::World;
use super::{dollars, no, yes};

/// Such a row has a number of its own, by its machine.
const ROWS: u64 = 500_000;

/// Days that a contract goes on.
const CONTRACT_DAYS: u64 = 14;

pub(super) fn list(world: &World, account: &str) -> Reply {
    let now = world.clock.now();
    let inner = world.lock();
    let mine = inner
        .machines
        .values()
        .filter(|machine| machine.account == account);
    let rows: Vec<Value> = mine
        .filter(|machine| machine.is_there(now))
        .filter_map(|machine| row(world, machine, now))
        .collect();
    yes(&json!({
        "success": true, "count": rows.len(), "truncated": false, "pending_price_increases": rows,
    }))
}

fn row(world: &World, machine: &Machine, now: u64) -> Option<Value> {
    let (_, asked) = machine.asked.filter(|(from, _)| *from <= now)?;
    let second = |micro: u64| dollars(micro) / 3600.0;
    let end = machine.created + CONTRACT_DAYS * 86_400_000;
    let seconds = |at: u64| world.clock.epoch(at);
    let disk = second(
        machine
            .meter
            .per_hour()
            .0
            .saturating_sub(machine.meter.running_per_hour.0),
    );
    Some(json!({
        "pending_price_increase_id": ROWS + machine.id, "contract_id": machine.id, "host_id": 1,
        "old_gpu_costpersec": second(machine.meter.running_per_hour.0), "new_gpu_costpersec": second(asked.0),
        "old_disk_ram_costpersec": disk, "new_disk_ram_costpersec": disk, "old_bwu_cost": null, "new_bwu_cost": null,
        "old_bwd_cost": null, "new_bwd_cost": null, "old_platform_fee": null, "new_platform_fee": null,
        "contract_end_date": seconds(end), "ask_end_date": seconds(end * 2), "created_at": seconds(now),
    }))
}

/// Accepts one, which holds from now on, or rejects it.
pub(super) fn decide(world: &World, account: &str, body: &Value, accepts: bool) -> Reply {
    let fields = body.as_object().map(serde_json::Map::len);
    let Some(id) = body["pending_price_increase_id"]
        .as_u64()
        .filter(|_| fields == Some(1))
    else {
        return no(
            400,
            "invalid_args",
            "only `pending_price_increase_id` belongs in it",
        );
    };
    let now = world.clock.now();
    let mut inner = world.lock();
    let machine = id
        .checked_sub(ROWS)
        .and_then(|id| inner.machines.get_mut(&id));
    let machine = machine.filter(|machine| machine.account == account && machine.is_there(now));
    let asked = machine.and_then(|machine| {
        let (_, price) = machine.asked.take_if(|(from, _)| *from <= now)?;
        if accepts {
            machine.later = Some((now, price));
            machine.count(now);
        }
        Some(machine.id)
    });
    match asked {
        Some(machine) => yes(&json!({
            "success": true, "pending_price_increase_id": id, "contract_id": machine,
        })),
        None => no(
            404,
            "no_pending_price_increase",
            "it is not pending any more",
        ),
    }
}
