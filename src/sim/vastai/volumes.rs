//! Volumes: each on one machine, made from that machine's ask and had by instances there only.

use serde_json::{Value, json};

use super::super::machine::Offer;
use super::super::serve::Reply;
use super::super::volume::{self, Attached};
use super::super::world::World;
use super::{no, offers, yes};

/// An ask for space on a machine is numbered from here on, by its machine.
const ASKS: u64 = 900_000;

/// GB when nothing is said.
const SIZE: u64 = 15;

pub(super) fn list(world: &World, account: &str) -> Reply {
    let mut rows = volume::all(world, account);
    for row in &mut rows {
        let id = volume::text(&row["id"]);
        let now = world.clock.now();
        let inner = world.lock();
        let own = inner.machines.values().filter(|machine| {
            let has = machine.mounts.iter().any(|mount| mount.id == id);
            has && machine.account == account && machine.is_there(now)
        });
        let own: Vec<Value> = own.map(|machine| json!({ "id": machine.id })).collect();
        row["instances"] = json!(own);
    }
    yes(&json!({ "volumes": rows }))
}

/// Space to be had, a row for each machine.
pub(super) fn search(world: &World) -> Reply {
    let inner = world.lock();
    let mut machines: Vec<u64> = inner.offers.values().map(offers::machine).collect();
    machines.sort_unstable();
    machines.dedup();
    let row = |machine: &u64| {
        json!({
            "id": ASKS + machine, "machine_id": machine, "disk_space": 500.0, "storage_cost": 0.15, "reliability2": 0.995,
        })
    };
    let rows: Vec<Value> = machines.iter().map(row).collect();
    yes(&json!({ "offers": rows }))
}

pub(super) fn create(world: &World, account: &str, body: &Value) -> Reply {
    let machine = body["id"].as_u64().and_then(|id| id.checked_sub(ASKS));
    let known = |machine: &u64| {
        let inner = world.lock();
        inner
            .offers
            .values()
            .any(|offer| offers::machine(offer) == *machine)
    };
    let Some(machine) = machine.filter(known) else {
        return no(404, "no_such_volume", "there is no such ask for a volume");
    };
    let size = body["size"].as_u64().unwrap_or(SIZE);
    let row = volume::add(world, account, |number| {
        json!({
            "id": 20_118_480 + number, "machine_id": machine, "host_id": machine / 7, "disk_space": size, "status": "created",
            "start_date": 1_780_000_000.0, "storage_total_cost": 0.0, "cpu_arch": "amd64", "verification": "verified",
        })
    });
    yes(&json!({ "success": true, "volume_name": format!("V.{}", row["id"]) }))
}

pub(super) fn remove(world: &World, account: &str, body: &Value) -> Reply {
    let id = &body["id"];
    if !volume::all(world, account)
        .iter()
        .any(|row| row["id"] == *id)
    {
        return no(404, "no_such_volume", "Volume with that ID does not exist.");
    }
    if volume::in_use(world, account, &volume::text(id)) {
        return no(400, "invalid_args", "The volume is in use by an instance.");
    }
    volume::take_out(world, account, id);
    yes(&json!({ "success": true }))
}

/// The volume that an instance asks for, on the machine of this offer.
pub(super) fn of(
    world: &World,
    account: &str,
    offer: &Offer,
    body: &Value,
) -> Result<Vec<Attached>, Reply> {
    let info = &body["volume_info"];
    if info.is_null() {
        return Ok(Vec::new());
    }
    if info["create_new"] == json!(true) {
        let words = "a volume that is made with an instance is not played here";
        return Err(no(400, "invalid_args", words));
    }
    let rows = volume::all(world, account);
    let row = rows.iter().find(|row| row["id"] == info["volume_id"]);
    let Some(row) = row else {
        return Err(no(
            404,
            "no_such_volume",
            "Volume with that ID does not exist.",
        ));
    };
    if row["machine_id"] != json!(offers::machine(offer)) {
        return Err(no(
            400,
            "invalid_args",
            "The volume is not on this machine.",
        ));
    }
    Ok(vec![Attached {
        id: volume::text(&row["id"]),
        at: info["mount_path"].as_str().unwrap_or("").to_owned(),
    }])
}
