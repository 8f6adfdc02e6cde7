//! What an account has beside machines: SSH keys, file systems, inbound rules. A new account is as one that was made ready for
//! us: it has one SSH key, and the agents' port is open.

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::volume::{self, Attached};
use super::super::world::World;
use super::{invalid, no, types, unknown, yes};

/// The names of the tables.
const KEYS: &str = "ssh_keys";
const FILES: &str = "filesystems";
const RULES: &str = "rules";

/// Below which folders of the root file systems are mounted.
const MOUNT_POINTS: [&str; 3] = ["lambda/nfs/", "home/", "data/"];

fn fresh() -> Value {
    let rule = |protocol: &str, ports: Value, description: &str| {
        json!({
            "protocol": protocol, "source_network": "0.0.0.0/0", "description": description, "port_range": ports,
        })
    };
    let mut icmp = rule("icmp", Value::Null, "ping");
    if let Value::Object(icmp) = &mut icmp {
        icmp.remove("port_range");
    }
    json!({
        KEYS: [{
            "id": "0123456789abcdef0123456789abcd01", "name": "rehearsal",
            "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOzJtz8jLXfTnAhmTDLV9bqBUaqYVrqrxqvnbDJ9qxVv rehearsal",
        }],
        FILES: [],
        RULES: [
            rule("tcp", json!([22, 22]), "SSH"), icmp,
            rule("udp", json!([41641, 41641]), "agents of stageline"),
        ],
    })
}

/// Reads or changes a table of the account.
fn table<T>(world: &World, account: &str, name: &str, act: impl FnOnce(&mut Vec<Value>) -> T) -> T {
    let mut inner = world.lock();
    let own = inner
        .accounts
        .entry(account.to_owned())
        .or_insert_with(fresh);
    match own[name].as_array_mut() {
        Some(rows) => act(rows),
        None => act(&mut Vec::new()),
    }
}

pub(super) fn has_key(world: &World, account: &str, name: &str) -> bool {
    table(world, account, KEYS, |keys| {
        keys.iter().any(|key| key["name"] == name)
    })
}

/// The public half of a key.
pub(super) fn public_key(world: &World, account: &str, name: &str) -> Option<String> {
    table(world, account, KEYS, |keys| {
        let key = keys.iter().find(|key| key["name"] == name)?;
        key["public_key"].as_str().map(str::to_owned)
    })
}

pub(super) fn answer(
    world: &World,
    method: &str,
    parts: &[&str],
    account: &str,
    body: &Value,
) -> Reply {
    let all = |name: &str| yes(&table(world, account, name, |rows| json!(rows)));
    match (method, parts) {
        ("GET", ["ssh-keys"]) => all(KEYS),
        ("POST", ["ssh-keys"]) => add_key(world, account, body),
        ("DELETE", ["ssh-keys", id]) => remove(world, account, KEYS, id, "SSH key"),
        ("GET", ["file-systems"]) => yes(&json!(files(world, account))),
        ("POST", ["filesystems"]) => add_files(world, account, body),
        ("DELETE", ["filesystems", id]) => remove(world, account, FILES, id, "file system"),
        ("GET", ["firewall-rules"]) => all(RULES),
        ("PUT", ["firewall-rules"]) => set_rules(world, account, body),
        _ => unknown("endpoint"),
    }
}

/// File systems, and whether an instance has each.
fn files(world: &World, account: &str) -> Vec<Value> {
    let mut rows = table(world, account, FILES, |rows| rows.clone());
    for row in &mut rows {
        row["is_in_use"] = json!(volume::in_use(world, account, &volume::text(&row["id"])));
    }
    rows
}

/// The file systems that a launch asks for, each with its mount point.
pub(super) fn mounts(
    world: &World,
    account: &str,
    region: &str,
    body: &Value,
) -> Result<Vec<Attached>, Reply> {
    let all = table(world, account, FILES, |rows| rows.clone());
    let missing = || {
        let message = "Specified file system does not exist.";
        no(400, "global/object-does-not-exist", message)
    };
    let list = |field: &str| body[field].as_array().cloned().unwrap_or_default();
    let mut found: Vec<(Value, String)> = Vec::new();
    for name in list("file_system_names") {
        let row = all.iter().find(|row| row["name"] == name);
        let row = row.ok_or_else(missing)?;
        found.push((
            row.clone(),
            row["mount_point"].as_str().unwrap_or("").to_owned(),
        ));
    }
    for mount in list("file_system_mounts") {
        let row = all.iter().find(|row| row["id"] == mount["file_system_id"]);
        let row = row.ok_or_else(missing)?;
        let at = mount["mount_point"].as_str().unwrap_or("").to_owned();
        let path = at.strip_prefix('/').unwrap_or_default();
        if !MOUNT_POINTS.iter().any(|point| path.starts_with(point)) {
            return Err(invalid("Invalid mount point."));
        }
        found.retain(|(other, _)| other["id"] != row["id"]);
        found.push((row.clone(), at));
    }
    if found.iter().any(|(row, _)| row["region"]["name"] != region) {
        return Err(no(
            400,
            "instance-operations/launch/file-system-in-wrong-region",
            "One or more of the specified file systems are not in the same region as the instance.",
        ));
    }
    let attached = found.into_iter().map(|(row, at)| Attached {
        id: volume::text(&row["id"]),
        at,
    });
    Ok(attached.collect())
}

/// An id that no other row has.
fn new_id(rows: &[Value], head: &str) -> String {
    let digest = blake3::hash(format!("{head}/{}", rows.len()).as_bytes());
    digest.to_hex()[..32].to_owned()
}

fn add_key(world: &World, account: &str, body: &Value) -> Reply {
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    let Some(name) = text("name").filter(|name| !name.is_empty() && name.len() <= 64) else {
        return invalid("Name must be 1 to 64 characters.");
    };
    // A pair that Lambda makes itself is not played: whoever wants one brings its public half.
    let Some(public_key) = text("public_key") else {
        return invalid("A public key is required here.");
    };
    let limit = world.faults.fires("key-limit");
    let says = |text: &str| limit.as_ref().is_some_and(|fault| fault.says(text));
    if says("team") {
        return invalid("SSH keys cannot be added to a team account.");
    }
    table(world, account, KEYS, |keys| {
        if keys.iter().any(|key| key["name"] == name) {
            return invalid("SSH key name is in use.");
        }
        let key =
            json!({ "id": new_id(keys, name), "name": name, "public_key": public_key.trim() });
        if says("replaced") {
            // Somebody else writes the set anew.
            return yes(&key);
        }
        keys.push(key.clone());
        match limit {
            Some(_) => no(400, "global/duplicate", "SSH key name is in use."),
            None => yes(&key),
        }
    })
}

fn add_files(world: &World, account: &str, body: &Value) -> Reply {
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    let region = text("region").and_then(types::region);
    let (Some(name), Some(region)) = (text("name"), region) else {
        return invalid("Invalid name or region.");
    };
    table(world, account, FILES, |files| {
        if files.iter().any(|file| file["name"] == name) {
            return no(
                400,
                "global/duplicate",
                "A file system of that name exists.",
            );
        }
        let file = json!({
            "id": new_id(files, name), "name": name, "mount_point": format!("/lambda/nfs/{name}"),
            "created": "2026-01-05T00:00:00+00:00", "is_in_use": false, "bytes_used": 0, "region": region,
            "created_by": { "id": "0123456789abcdef0123456789abcdef", "email": "rehearsal@example.com", "status": "active" },
        });
        files.push(file.clone());
        yes(&file)
    })
}

fn remove(world: &World, account: &str, name: &str, id: &str, what: &str) -> Reply {
    if name == FILES && volume::in_use(world, account, id) {
        let message = "The file system is in use by an instance.";
        return no(400, "filesystems/filesystem-in-use", message);
    }
    let removed = table(world, account, name, |rows| {
        let before = rows.len();
        rows.retain(|row| row["id"] != id);
        before != rows.len()
    });
    match (removed, name == FILES) {
        (true, true) => {
            world.wipe(account, id);
            yes(&json!({ "deleted_ids": [id] }))
        }
        (true, false) => yes(&json!({})),
        (false, _) => unknown(what),
    }
}

/// The whole list is replaced.
fn set_rules(world: &World, account: &str, body: &Value) -> Reply {
    let Some(Value::Array(new)) = body.get("data") else {
        return invalid("A list of rules is required.");
    };
    table(world, account, RULES, |rules| {
        rules.clone_from(new);
        yes(&json!(rules))
    })
}
