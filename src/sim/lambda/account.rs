//! What an account has beside machines: SSH keys, file systems, inbound rules. A new account is as one that was made ready for
//! us: it has one SSH key, and the agents' port is open.

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::world::World;
use super::{invalid, no, types, unknown, yes};

/// The names of the tables.
const KEYS: &str = "ssh_keys";
const FILES: &str = "filesystems";
const RULES: &str = "rules";

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
        ("GET", ["file-systems"]) => all(FILES),
        ("POST", ["filesystems"]) => add_files(world, account, body),
        ("DELETE", ["filesystems", id]) => remove(world, account, FILES, id, "file system"),
        ("GET", ["firewall-rules"]) => all(RULES),
        ("PUT", ["firewall-rules"]) => set_rules(world, account, body),
        _ => unknown("endpoint"),
    }
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
    table(world, account, KEYS, |keys| {
        if keys.iter().any(|key| key["name"] == name) {
            return invalid("SSH key name is in use.");
        }
        let key =
            json!({ "id": new_id(keys, name), "name": name, "public_key": public_key.trim() });
        keys.push(key.clone());
        yes(&key)
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
    let removed = table(world, account, name, |rows| {
        let before = rows.len();
        rows.retain(|row| row["id"] != id);
        before != rows.len()
    });
    match (removed, name == FILES) {
        (true, true) => yes(&json!({ "deleted_ids": [id] })),
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
