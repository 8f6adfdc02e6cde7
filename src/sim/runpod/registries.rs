//! Credentials for private images: kept by name, never shown, and not removed while a pod uses them.

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::world::World;
use super::schema::{self, Rule, faults};
use super::{done, invalid, no, unknown, yes};

const FIELDS: &[Rule] = &[
    ("name", schema::some_text),
    ("username", schema::some_text),
    ("password", schema::some_text),
];

/// What ids of credentials begin with.
const ID_HEAD: &str = "6n2k8v";

/// Where an account's are, beside its keys.
fn shelf(account: &str) -> String {
    format!("{account}/registries")
}

fn shown(row: &Value) -> Value {
    json!({ "id": row["id"], "name": row["name"] })
}

fn all(world: &World, account: &str) -> Vec<Value> {
    let inner = world.lock();
    let rows = inner.accounts.get(&shelf(account));
    rows.and_then(Value::as_array).cloned().unwrap_or_default()
}

fn find(world: &World, account: &str, id: &str) -> Option<Value> {
    all(world, account).into_iter().find(|row| row["id"] == id)
}

/// User and password of one.
pub(super) fn login(world: &World, account: &str, id: &str) -> Option<(String, String)> {
    let row = find(world, account, id)?;
    let text = |field: &str| row[field].as_str().map(str::to_owned);
    Some((text("username")?, text("password")?))
}

pub(super) fn list(world: &World, account: &str) -> Reply {
    let rows: Vec<Value> = all(world, account).iter().map(shown).collect();
    yes(&json!({ "registries": rows }))
}

pub(super) fn show(world: &World, account: &str, id: &str) -> Reply {
    match find(world, account, id) {
        Some(row) => yes(&shown(&row)),
        None => unknown("registry"),
    }
}

pub(super) fn create(world: &World, account: &str, body: &Value) -> Reply {
    let errors = faults(body, FIELDS, &["name", "username", "password"]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let mut inner = world.lock();
    let count = inner
        .accounts
        .entry("registries".to_owned())
        .or_insert(json!(0));
    let number = count.as_u64().unwrap_or(0) + 1;
    *count = json!(number);
    let mut row = body.clone();
    row["id"] = json!(format!("{ID_HEAD}{number:x}"));
    let reply = Reply::json(201, &shown(&row));
    let rows = inner.accounts.entry(shelf(account)).or_insert(json!([]));
    if let Some(rows) = rows.as_array_mut() {
        rows.push(row);
    }
    reply
}

pub(super) fn remove(world: &World, account: &str, id: &str) -> Reply {
    // It answers so, and not with 404, as it has been seen to.
    if find(world, account, id).is_none() {
        return no(400, "registry credential not found");
    }
    let now = world.clock.now();
    let mut inner = world.lock();
    let mut pods = inner.machines.values();
    let used =
        pods.any(|pod| pod.account == account && pod.is_there(now) && pod.more["registry"] == id);
    if used {
        return no(
            400,
            "registry credential is in use by a pod and cannot be deleted",
        );
    }
    let rows = inner.accounts.get_mut(&shelf(account));
    if let Some(rows) = rows.and_then(Value::as_array_mut) {
        rows.retain(|row| row["id"] != id);
    }
    done()
}
