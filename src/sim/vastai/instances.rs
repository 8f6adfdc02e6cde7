//! Instances: the listing and its faults, one of them, their end, their logs, their bill.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stageline_core::unit::MicroDollars;

use super::super::machine::{Machine, Stand};
use super::super::registry;
use super::super::serve::{Reply, Request};
use super::super::world::World;
use super::offers::{claim, merge};
use super::{create, dollars, no, yes};

/// The most of a page.
const PAGE: usize = 25;

/// The highest bid that a machine can be given later.
const BID_MAX: MicroDollars = MicroDollars(32_000_000);

/// The port of agents in their containers.
const AGENT_PORT: &str = "41641/udp";

/// An answer that is no listing.
fn untrue(world: &World) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("list-success-false").is_some() {
        return Some(no(200, "deprecated_endpoint", "this listing is over"));
    }
    if let Some(fault) = fires("list-truncated-json") {
        return Some(match fault.text.as_deref() {
            Some("html") => Reply::text(200, "text/html", "<html><body>One moment</body></html>"),
            Some("1010") => Reply::text(403, "text/html", "error code: 1010"),
            Some(_) | None => Reply::text(
                200,
                "application/json",
                "{\"success\": true, \"instances\": [{\"id\": 8",
            ),
        });
    }
    None
}

pub(super) fn list(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    if let Some(reply) = untrue(world) {
        return reply;
    }
    let limit = query
        .get("limit")
        .and_then(|limit| limit.parse::<usize>().ok());
    let limit = limit.map_or(PAGE, |limit| if limit == 0 { 5 } else { limit.min(PAGE) });
    let after = query.get("after_token");
    let from: u64 = match after.map(|token| token.parse()) {
        None => 0,
        Some(Ok(id)) => id,
        Some(Err(_)) => return no(400, "invalid_token", "the token is not ours"),
    };
    let wanted = query
        .get("select_filters")
        .map(String::as_str)
        .unwrap_or("{}");
    let wanted: Value = serde_json::from_str(wanted).unwrap_or(Value::Null);
    let label = wanted["label"]["eq"].as_str();
    let now = world.clock.now();
    let odd = world.faults.fires_as("schema-drift", "status").is_some();
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let mut inner = world.lock();
    let shown = inner
        .machines
        .values_mut()
        .filter(|machine| machine.account == account && is_listed(machine, now));
    let shown = shown.filter(|machine| label.is_none_or(|label| machine.label == label));
    let mut rows: Vec<Value> = shown.map(|machine| row(world, machine, now)).collect();
    drop(inner);
    let total = rows.len();
    rows.retain(|row| row["id"].as_u64().is_some_and(|id| id > from));
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().and_then(|row| row["id"].as_u64());
    let mut next = last.filter(|_| more).map(|id| id.to_string());
    if let Some(fault) = fires("list-page-lost") {
        match fault.text.as_deref() {
            Some("500") if after.is_some() => return no(500, "internal", "page lost"),
            Some("dropped") => next = None,
            Some(_) => {}
            None => next = next.map(|_| after.cloned().unwrap_or_else(|| "0".to_owned())),
        }
    }
    if odd {
        for row in &mut rows {
            row["actual_status"] = json!("hibernating");
        }
    } else if drift {
        for row in &mut rows {
            row["id"] = json!(row["id"].to_string());
            row["dph_total"] = json!(row["dph_total"].to_string());
            row["status_msg"] = Value::Null;
            row["a_field_of_tomorrow"] = json!([1, 2]);
        }
    }
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for row in &rows {
        *counts
            .entry(row["label"].as_str().unwrap_or("").to_owned())
            .or_default() += 1;
    }
    yes(&json!({
        "success": true, "instances_found": rows.len(), "total_instances": total, "label_counts": counts,
        "next_token": next, "instances": rows,
    }))
}

fn is_listed(machine: &Machine, now: u64) -> bool {
    let ghost = machine.gone_from.is_some() && now < machine.ghost_until;
    now >= machine.listed_from && (machine.is_there(now) || ghost)
}

/// The record of an instance.
fn row(world: &World, machine: &mut Machine, now: u64) -> Value {
    let stand = machine.stand(now);
    let (actual, said) = match &stand {
        Stand::Provisioning => (None, String::new()),
        Stand::Loading(percent) => (Some("loading"), format!("pulling image {percent} %")),
        Stand::Running => (
            Some("running"),
            format!("success, running {}/ssh", machine.image),
        ),
        Stand::Failed(how) if how == "oci" => (
            Some("created"),
            "Error response from daemon: OCI runtime create failed: no such device".to_owned(),
        ),
        Stand::Failed(how) if how == registry::DENIED => {
            (Some("created"), registry::denied(&machine.image))
        }
        Stand::Failed(how) if how == "offline" => (Some("offline"), String::new()),
        Stand::Failed(how) if how == "unknown" => (Some("unknown"), String::new()),
        Stand::Failed(_) => (Some("exited"), "container exited with code 1".to_owned()),
        Stand::Stopped => (Some("stopped"), "stopped: outbid".to_owned()),
        Stand::Offline => (Some("offline"), String::new()),
    };
    let state = if stand == Stand::Stopped {
        "stopped"
    } else {
        "running"
    };
    let (address, ports) = reach(machine, now, &stand);
    let per_hour = dollars(machine.meter.per_hour().0);
    let mut row = claim(&machine.facts);
    let pairs: Vec<Value> = machine.env.iter().map(|(k, v)| json!([k, v])).collect();
    merge(
        &mut row,
        json!({
            "id": machine.id, "machine_id": machine.offer.id % 1000, "host_id": machine.offer.host, "label": machine.label,
            "actual_status": actual, "intended_status": state, "cur_state": state, "next_state": state,
            "status_msg": said, "image_uuid": machine.image, "image_runtype": "ssh", "image_args": [],
            "extra_env": pairs, "onstart": machine.onstart, "ssh_host": "ssh1.example.com", "ssh_port": 41022,
            "ssh_idx": "1", "public_ipaddr": address, "local_ipaddrs": "127.0.0.1 \n", "ports": ports,
        }),
    );
    let storage = dollars(machine.meter.disk_month.0);
    let least = machine.bid.map_or(0.0, |bid| dollars(bid.0));
    merge(
        &mut row,
        json!({
            "direct_port_start": 41000, "direct_port_end": 41063, "disk_space": machine.meter.disk_gib,
            "disk_usage": 0.1, "disk_util": -1, "gpu_util": 0.0, "gpu_temp": 40.0, "mem_limit": null,
            "dph_base": dollars(machine.meter.running_per_hour.0), "dph_total": per_hour,
            "storage_cost": storage, "is_bid": machine.bid.is_some(), "min_bid": least,
            "start_date": world.clock.epoch(machine.created), "end_date": world.clock.epoch(machine.created + 1_209_600_000),
            "uptime_mins": (now - machine.created.min(now)) / 60_000, "duration": 1_209_600.0, "verification": "verified",
            "template_id": null, "template_hash_id": null, "jupyter_token": "", "credit_balance": null,
            "instance": { "totalHour": per_hour }, "search": { "totalHour": per_hour },
        }),
    );
    row
}

/// Where its agent is, once it runs and its address is told.
fn reach(machine: &mut Machine, now: u64, stand: &Stand) -> (Value, Value) {
    if *stand != Stand::Running || now < machine.address_from {
        return (Value::Null, Value::Null);
    }
    let mapped = |port: u16| json!([{ "HostIp": "0.0.0.0", "HostPort": port.to_string() }]);
    let ssh = machine.agent.as_ref().and_then(|agent| agent.ssh());
    let ssh = ssh.map_or(41022, |address| address.port());
    let mut ports = json!({ "22/tcp": mapped(ssh) });
    if let Some(address) = machine.agent.as_ref().and_then(|agent| agent.address()) {
        let wrong = machine.wrong_address > 0;
        machine.wrong_address = 0;
        ports[AGENT_PORT] = mapped(if wrong { 9 } else { address.port() });
    }
    (json!("127.0.0.1"), ports)
}

fn with<T>(
    world: &World,
    account: &str,
    id: &str,
    act: impl FnOnce(&mut Machine, u64) -> T,
) -> Option<T> {
    let now = world.clock.now();
    let id: u64 = id.parse().ok()?;
    let mut inner = world.lock();
    let machine = inner.machines.get_mut(&id)?;
    let known = machine.account == account && machine.is_there(now) && now >= machine.found_from;
    known.then(|| act(machine, now))
}

pub(super) fn show(world: &World, account: &str, id: &str) -> Reply {
    let row = with(world, account, id, |machine, now| row(world, machine, now));
    yes(&json!({ "instances": row }))
}

/// Lets a key in to one instance.
pub(super) fn attach(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let key = body.get("ssh_key").and_then(Value::as_str).unwrap_or("");
    let limit = world.faults.fires_but("key-limit", "team");
    let says = |text: &str| limit.as_ref().is_some_and(|fault| fault.says(text));
    let taken = with(world, account, id, |machine, _| {
        let access = machine.access.as_ref();
        // Somebody else writes the keys anew, and what was taken is not among them.
        access.is_some_and(|access| says("replaced") || access.take(key))
    });
    match taken {
        Some(true) if limit.is_some() && !says("replaced") => {
            no(400, "invalid_args", "SSH key is already attached")
        }
        Some(true) => yes(&json!({ "success": true, "msg": "SSH key added to instance." })),
        Some(false) => no(400, "invalid_args", "Invalid SSH key"),
        None => no(404, "no_such_instance", &format!("no such instance {id}")),
    }
}

pub(super) fn destroy(world: &World, account: &str, id: &str) -> Reply {
    let known = with(world, account, id, |_, _| ()).is_some();
    let ended = known && id.parse().is_ok_and(|id| world.release(account, id));
    if !ended {
        return no(404, "no_such_instance", &format!("no such instance {id}"));
    }
    if world.faults.fires("terminate-5xx").is_some() {
        return no(500, "internal", "internal error");
    }
    yes(&json!({ "success": true }))
}

/// What the key that a container is handed can do: destroy its own instance, and nothing else.
pub(super) fn by_its_own_key(world: &World, request: &Request, id: &str) -> Reply {
    let own = format!("/api/v0/instances/{id}");
    if request.method != axum::http::Method::DELETE || request.path != own {
        return no(403, "forbidden", "this key is for its own instance only");
    }
    let owner = id.parse().ok().and_then(|id: u64| {
        let inner = world.lock();
        Some(inner.machines.get(&id)?.account.clone())
    });
    match owner {
        Some(owner) => destroy(world, &owner, id),
        None => no(404, "no_such_instance", &format!("no such instance {id}")),
    }
}

/// A new label, or another state.
pub(super) fn change(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned);
    let (label, state) = (text("label"), text("state"));
    let changed = with(world, account, id, |machine, now| {
        if let Some(label) = label {
            machine.label = label;
        }
        match state.as_deref() {
            Some("stopped") => machine.stop(now),
            Some("running") => machine.start(now),
            Some(_) | None => {}
        }
    });
    match changed {
        Some(()) => yes(&json!({ "success": true })),
        None => no(404, "no_such_instance", &format!("no such instance {id}")),
    }
}

/// Another bid: one that is high enough has it run, also when it stood still; one that is too low does not.
pub(super) fn rebid(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let bid = match create::bid(body) {
        Ok(Some(bid)) if bid <= BID_MAX => bid,
        Ok(_) => return no(400, "invalid_price", "Invalid price"),
        Err(reply) => return reply,
    };
    let least = |id: u64| {
        let inner = world.lock();
        let offer = &inner.machines.get(&id)?.offer.id;
        Some(inner.offers.get(offer)?.least_bid(inner.price_factor))
    };
    let least = id.parse().ok().and_then(least);
    let changed = with(world, account, id, |machine, now| {
        let before = machine.bid?;
        machine.count(now);
        machine.bid = Some(bid);
        machine.later = Some((now, bid));
        machine.count(now);
        let outbid = least.is_some_and(|least| before < least && bid >= least);
        if outbid && machine.stopped_from.is_some_and(|from| from <= now) {
            machine.start(now);
        }
        Some(())
    });
    match changed {
        Some(Some(())) => yes(&json!({ "success": true })),
        Some(None) => no(400, "invalid_args", "it is not rented for a bid"),
        None => no(404, "no_such_instance", &format!("no such instance {id}")),
    }
}

/// Its container stops and starts; what it runs at each start is run again.
pub(super) fn reboot(world: &World, account: &str, id: &str) -> Reply {
    let restarted = with(world, account, id, |machine, _| {
        if let Some(agent) = &machine.agent {
            agent.restart(machine.onstart.clone());
        }
    });
    match restarted {
        Some(()) => yes(&json!({ "success": true })),
        None => no(404, "no_such_instance", &format!("no such instance {id}")),
    }
}

pub(super) fn log(world: &World, id: &str) -> Reply {
    let inner = world.lock();
    let machine = id
        .parse::<u64>()
        .ok()
        .and_then(|id| inner.machines.get(&id));
    let log = machine
        .and_then(|machine| machine.agent.as_ref())
        .map(|agent| agent.log());
    Reply::text(
        200,
        "text/plain",
        &log.unwrap_or_else(|| "(nothing yet)\n".to_owned()),
    )
}

/// A moment as bills have it: whole seconds.
fn second(epoch: f64) -> Option<i64> {
    format!("{:.0}", epoch.floor()).parse().ok()
}

/// What was charged, in pages. A range of days must be given.
pub(super) fn charges(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    let filters = query.get("select_filters");
    let filters: Value = filters
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let bound = |name: &str| filters["day"][name].as_f64();
    if !query.is_empty() && (bound("gte").is_none() || bound("lte").is_none()) {
        return no(
            400,
            "invalid_args",
            "select_filters must have a range of `day`",
        );
    }
    let (from, to) = (
        bound("gte").unwrap_or(0.0),
        bound("lte").unwrap_or(f64::MAX),
    );
    let limit = query.get("limit").and_then(|limit| limit.parse().ok());
    let limit: usize = limit.unwrap_or(100).clamp(1, 500);
    let after = query
        .get("after_token")
        .and_then(|token| token.parse().ok());
    let after: usize = after.unwrap_or(0);
    let now = world.clock.now();
    let mut inner = world.lock();
    let mine = inner
        .machines
        .values_mut()
        .filter(|machine| machine.account == account);
    let mut rows: Vec<Value> = mine
        .map(|machine| {
            machine.count(now);
            let end = machine.gone_from.map_or(now, |gone| gone.min(now));
            let items = ["gpu", "disk", "bwd"].into_iter().zip(machine.meter.parts());
            let items = items.filter(|(_, amount)| amount.0 > 0);
            let items: Vec<Value> = items
                .map(|(kind, amount)| json!({ "type": kind, "amount": dollars(amount.0) }))
                .collect();
            json!({
                "start": second(world.clock.epoch(machine.created)), "end": second(world.clock.epoch(end)), "type": "instance",
                "source": format!("instance-{}", machine.id), "description": machine.facts.gpus.first().map(|gpu| &gpu.model),
                "amount": dollars(machine.meter.total().0), "metadata": { "label": machine.label }, "items": items,
            })
        })
        .collect();
    drop(inner);
    rows.retain(|row| {
        let ends = row["end"].as_f64().unwrap_or(0.0);
        ends >= from && row["start"].as_f64().unwrap_or(0.0) <= to
    });
    let total = rows.len();
    let page: Vec<Value> = rows.into_iter().skip(after).take(limit).collect();
    let next = after + page.len();
    let next = (next < total).then(|| next.to_string());
    yes(
        &json!({ "success": true, "count": page.len(), "total": total, "next_token": next, "results": page }),
    )
}
