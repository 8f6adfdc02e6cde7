//! Network volumes: each in one data center, made and deleted by their own paths, and had by pods of that data center only.

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::volume::{self, Attached};
use super::super::world::World;
use super::schema::{self, Rule, faults};
use super::{catalogue, done, invalid, no, unknown, yes};

const FIELDS: &[Rule] = &[
    ("name", schema::some_text),
    ("size", |size| {
        let fits = (10.0..=4096.0).contains(&size.as_f64().unwrap_or(0.0));
        schema::positive(size) && fits
    }),
    ("dataCenter", schema::some_text),
    ("type", |kind| {
        matches!(kind.as_str(), Some("STANDARD" | "HIGH_PERFORMANCE"))
    }),
];

/// What ids of volumes begin with.
const ID_HEAD: &str = "4v7q1z";

fn find(world: &World, account: &str, id: &str) -> Option<Value> {
    let mut rows = volume::all(world, account).into_iter();
    rows.find(|row| row["id"] == id)
}

pub(super) fn list(world: &World, account: &str) -> Reply {
    yes(&json!({ "networkVolumes": volume::all(world, account) }))
}

pub(super) fn show(world: &World, account: &str, id: &str) -> Reply {
    match find(world, account, id) {
        Some(row) => yes(&row),
        None => unknown("network volume"),
    }
}

pub(super) fn create(world: &World, account: &str, body: &Value) -> Reply {
    let errors = faults(body, FIELDS, &["name", "size", "dataCenter"]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let place = body["dataCenter"].as_str().unwrap_or("");
    if !catalogue::PLACES.iter().any(|(id, ..)| *id == place) {
        return no(400, "data center not found");
    }
    let kind = body.get("type").cloned().unwrap_or(json!("STANDARD"));
    let row = |number: u64| {
        json!({
            "id": format!("{ID_HEAD}{number:x}"), "name": body["name"], "size": body["size"], "dataCenter": place, "type": kind,
        })
    };
    Reply::json(201, &volume::add(world, account, row))
}

pub(super) fn remove(world: &World, account: &str, id: &str) -> Reply {
    if find(world, account, id).is_none() {
        return unknown("network volume");
    }
    if volume::in_use(world, account, id) {
        return no(
            400,
            "network volume is in use by a pod and cannot be deleted",
        );
    }
    volume::take_out(world, account, &json!(id));
    done()
}

/// The volumes that a pod asks for, and the data center that they bind it to.
pub(super) fn of(
    world: &World,
    account: &str,
    body: &Value,
) -> Result<(Vec<Attached>, Option<String>), Reply> {
    let mounts = body["mounts"]["network"].as_array();
    let mut place = None;
    let mut attached = Vec::new();
    for mount in mounts.into_iter().flatten() {
        let text = |field: &str| mount[field].as_str().unwrap_or("").to_owned();
        let Some(row) = find(world, account, &text("volumeId")) else {
            return Err(no(400, "network volume not found"));
        };
        place = row["dataCenter"].as_str().map(str::to_owned);
        attached.push(Attached {
            id: text("volumeId"),
            at: text("path"),
        });
    }
    Ok((attached, place))
}
