//! Instances: the listing and its faults, one of them, their end.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::super::machine::{FORGOTTEN, Machine, Stand};
use super::super::serve::Reply;
use super::super::world::World;
use super::{id, invalid, no, number, oops, types, unknown, yes};

/// For so long one that is gone is listed as `terminated`, by the simulator's clock.
const TERMINATED_MS: u64 = 30_000;

/// Instances of one page, when there are pages.
const PAGE: usize = 2;

/// An answer that is no listing.
fn untrue(world: &World) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("list-success-false").is_some() {
        return Some(no(200, "global/unknown", "this listing is over"));
    }
    let fault = fires("list-truncated-json")?;
    Some(match fault.text.as_deref() {
        Some("html") => Reply::text(200, "text/html", "<html><body>One moment</body></html>"),
        Some("1010") => Reply::text(403, "text/html", "error code: 1010"),
        Some(_) | None => Reply::text(
            200,
            "application/json",
            "{\"data\": [{\"id\": \"5f0c1d2e3a4b5c",
        ),
    })
}

pub(super) fn list(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    if let Some(reply) = untrue(world) {
        return reply;
    }
    let now = world.clock.now();
    let odd = world.faults.fires_as("schema-drift", "status").is_some();
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let mut inner = world.lock();
    let mut rows: Vec<Value> = inner
        .machines
        .values_mut()
        .filter(|machine| machine.account == account && is_listed(machine, now))
        .map(|machine| row(machine, now))
        .collect();
    drop(inner);
    if odd {
        for row in &mut rows {
            row["status"] = json!("hibernating");
        }
    } else if drift {
        for row in &mut rows {
            row["name"] = Value::Null;
            row["private_ip"] = Value::Null;
            row["hostname"] = Value::Null;
            let price = row["instance_type"]["price_cents_per_hour"].to_string();
            row["instance_type"]["price_cents_per_hour"] = json!(price);
            row["a_field_of_tomorrow"] = json!([1, 2]);
        }
    }
    paged(world, rows, query.get("page_token"))
}

/// All of them at once, but for the knobs.
fn paged(world: &World, mut rows: Vec<Value>, token: Option<&String>) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    let lost = fires("list-page-lost");
    if lost.is_none() && fires("list-pages").is_none() && token.is_none() {
        return yes(&json!(rows));
    }
    let from: usize = match token.map(|token| token.parse()) {
        None => 0,
        Some(Ok(from)) => from,
        Some(Err(_)) => return invalid("Invalid page token."),
    };
    if token.is_some() && lost.as_ref().is_some_and(|fault| fault.says("500")) {
        return oops();
    }
    rows.drain(..from.min(rows.len()));
    let more = rows.len() > PAGE;
    rows.truncate(PAGE);
    let mut next = more.then(|| (from + PAGE).to_string());
    match lost.as_ref().map(|fault| fault.text.as_deref()) {
        // A page that leads to itself.
        Some(None) => next = next.map(|_| from.to_string()),
        Some(Some("dropped")) => next = None,
        Some(Some(_)) | None => {}
    }
    Reply::json(200, &json!({ "data": rows, "page_token": next }))
}

fn ghost(machine: &Machine, now: u64) -> bool {
    machine.gone_from.is_some() && now < machine.ghost_until
}

fn is_listed(machine: &Machine, now: u64) -> bool {
    let fading = machine
        .gone_from
        .is_some_and(|from| now < from + TERMINATED_MS && machine.more[FORGOTTEN].is_null());
    now >= machine.listed_from && (machine.is_there(now) || ghost(machine, now) || fading)
}

fn status(machine: &Machine, now: u64) -> &'static str {
    if let Some(from) = machine.gone_from.filter(|_| !ghost(machine, now)) {
        return if now < from {
            "terminating"
        } else {
            "terminated"
        };
    }
    match machine.stand(now) {
        Stand::Provisioning | Stand::Loading(_) => "booting",
        Stand::Running => "active",
        Stand::Failed(_) | Stand::Offline => "unhealthy",
        Stand::Stopped => "preempted",
    }
}

/// The record of an instance. What is not known is missing.
fn row(machine: &mut Machine, now: u64) -> Value {
    machine.count(now);
    let status = status(machine, now);
    let there = |yes: bool| match yes {
        true => json!({ "available": true }),
        false => json!({
            "available": false, "reason_code": "vm-has-not-launched",
            "reason_description": "Instance is still launching.",
        }),
    };
    let up = status == "active";
    let mut row = json!({
        "id": id(machine.id), "status": status,
        "ssh_key_names": machine.more["ssh_key_names"], "file_system_names": [], "tags": [],
        "region": machine.facts.region.as_deref().and_then(types::region),
        "instance_type": types::row(&machine.facts, machine.meter.running_per_hour, machine.meter.disk_gib),
        "actions": {
            "migrate": there(false), "rebuild": there(up), "restart": there(up), "cold_reboot": there(up),
            "terminate": { "available": true },
        },
    });
    if !machine.label.is_empty() {
        row["name"] = json!(machine.label);
    }
    for field in [
        "file_system_names",
        "file_system_mounts",
        "tags",
        "hostname",
    ] {
        if !machine.more[field].is_null() {
            row[field] = machine.more[field].clone();
        }
    }
    if up && let Some(ip) = address(machine, now) {
        row["ip"] = json!(ip.to_string());
        row["private_ip"] = json!("10.19.5.7");
        row["jupyter_token"] = json!("not-to-be-shown");
        row["jupyter_url"] = json!("https://jupyter.example.com/?token=not-to-be-shown");
    }
    row
}

/// Where it is, once its address is told; with a fault, at first somewhere else.
fn address(machine: &mut Machine, now: u64) -> Option<Ipv4Addr> {
    let listen = machine.listen.filter(|_| now >= machine.address_from)?;
    if machine.wrong_address > 0 {
        machine.wrong_address = 0;
        return Some(Ipv4Addr::new(127, 0, 0, 9));
    }
    match listen.ip() {
        std::net::IpAddr::V4(ip) => Some(ip),
        std::net::IpAddr::V6(_) => None,
    }
}

fn with<T>(
    world: &World,
    account: &str,
    id: &str,
    act: impl FnOnce(&mut Machine, u64) -> T,
) -> Option<T> {
    let now = world.clock.now();
    let number = number(id)?;
    let mut inner = world.lock();
    let machine = inner.machines.get_mut(&number)?;
    let known = machine.account == account && now >= machine.found_from;
    (known && (is_listed(machine, now) || machine.is_there(now))).then(|| act(machine, now))
}

pub(super) fn show(world: &World, account: &str, id: &str) -> Reply {
    match with(world, account, id, row) {
        Some(row) => yes(&row),
        None => unknown("instance"),
    }
}

pub(super) fn rename(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let name = body.get("name").and_then(Value::as_str).map(str::to_owned);
    let renamed = with(world, account, id, |machine, now| {
        if let Some(name) = name {
            machine.label = name;
        }
        row(machine, now)
    });
    match renamed {
        Some(row) => yes(&row),
        None => unknown("instance"),
    }
}

fn ids(body: &Value) -> Vec<String> {
    let ids = body.get("instance_ids").and_then(Value::as_array);
    let ids = ids.into_iter().flatten().filter_map(Value::as_str);
    ids.map(str::to_owned).collect()
}

pub(super) fn terminate(world: &World, account: &str, body: &Value) -> Reply {
    let ids = ids(body);
    if ids.is_empty() {
        return invalid("No instances were specified.");
    }
    let there = |id: &String| {
        with(world, account, id, |machine, now| machine.is_there(now)).unwrap_or(false)
    };
    if !ids.iter().all(there) {
        return unknown("instance");
    }
    if world.faults.fires("terminate-partial").is_some() {
        return yes(&json!({ "terminated_instances": [] }));
    }
    let forgotten = world.faults.fires("terminate-forget").is_some();
    let mut rows = Vec::new();
    for id in &ids {
        let number = number(id).unwrap_or_default();
        world.release(account, number);
        rows.extend(with(world, account, id, row));
        let mut inner = world.lock();
        if let (true, Some(machine)) = (forgotten, inner.machines.get_mut(&number)) {
            machine.gone_from = Some(world.clock.now());
            machine.more[FORGOTTEN] = json!(true);
        }
    }
    if world.faults.fires("terminate-5xx").is_some() {
        return oops();
    }
    yes(&json!({ "terminated_instances": rows }))
}

/// What cloud-init runs at each start, by the files that the user data have it write.
fn per_boot(user_data: &str) -> String {
    let config = user_data.strip_prefix("#cloud-config\n").unwrap_or("{}");
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let files = config["write_files"].as_array().into_iter().flatten();
    let per_boot = files.filter(|file| {
        let path = file["path"].as_str().unwrap_or_default();
        path.starts_with("/var/lib/cloud/scripts/per-boot/")
    });
    let scripts = per_boot.filter_map(|file| file["content"].as_str());
    scripts.collect::<Vec<_>>().join("\n")
}

pub(super) fn restart(world: &World, account: &str, body: &Value) -> Reply {
    let ids = ids(body);
    let rows: Vec<Value> = ids
        .iter()
        .filter_map(|id| with(world, account, id, row))
        .collect();
    if rows.len() != ids.len() {
        return unknown("instance");
    }
    for id in &ids {
        with(world, account, id, |machine, _| {
            if let Some(agent) = &machine.agent {
                agent.restart(per_boot(&machine.onstart));
            }
        });
    }
    yes(&json!({ "restarted_instances": rows }))
}
