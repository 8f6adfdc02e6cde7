//! Pods: the listing and its faults, one of them, what can be done with it, its end, its log.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::machine::{Machine, Stand};
use super::super::registry;
use super::super::serve::{Reply, Request, Way};
use super::super::world::World;
use super::schema::{self, Rule, faults};
use super::{cpus, dollars, done, id, invalid, no, number, oops, unknown, yes};

/// Where an agent listens in its container.
const AGENT_PORT: u16 = 41641;

/// From so many hundredths of the pull on a pod is said to run.
const SAID_TO_RUN: u8 = 80;

/// An answer that is no listing.
fn untrue(world: &World) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("list-success-false").is_some() {
        let body = json!({ "title": "Gone", "status": 410, "detail": "this listing is over" });
        return Some(Reply::json(200, &body));
    }
    let fault = fires("list-truncated-json")?;
    Some(match fault.text.as_deref() {
        Some("html") => Reply::text(200, "text/html", "<html><body>One moment</body></html>"),
        Some("1010") => Reply::text(403, "text/html", "error code: 1010"),
        Some(_) | None => Reply::text(200, "application/json", "{\"pods\": [{\"id\": \"7h9k"),
    })
}

pub(super) fn list(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    let wanted = query.get("includeClusterPods").map(String::as_str);
    if !matches!(wanted, None | Some("true" | "false")) {
        return invalid(&["query.includeClusterPods: not as specified".to_owned()]);
    }
    if let Some(reply) = untrue(world) {
        return reply;
    }
    let now = world.clock.now();
    let odd = world.faults.fires_as("schema-drift", "status").is_some();
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let mut rows = mine(world, account, |machine| row(world, machine, now));
    if odd {
        for row in &mut rows {
            row["status"] = json!("HIBERNATING");
        }
    } else if drift {
        for row in &mut rows {
            row["cost"] = json!(row["cost"].to_string());
            row["disk"] = json!(row["disk"].to_string());
            row["cudaVersion"] = Value::Null;
            row["createdAt"] = Value::Null;
            row["a_field_of_tomorrow"] = json!([1, 2]);
        }
    }
    yes(&json!({ "pods": rows }))
}

/// Every listed pod of an account.
pub(super) fn mine<T>(world: &World, account: &str, what: impl Fn(&mut Machine) -> T) -> Vec<T> {
    let now = world.clock.now();
    let mut inner = world.lock();
    let listed = inner
        .machines
        .values_mut()
        .filter(|machine| machine.account == account && is_listed(machine, now));
    listed.map(what).collect()
}

fn is_listed(machine: &Machine, now: u64) -> bool {
    let ghost = machine.gone_from.is_some() && now < machine.ghost_until;
    now >= machine.listed_from && (machine.is_there(now) || ghost)
}

/// The record of a pod that was just made.
pub(super) fn record(world: &World, number: u64) -> Value {
    let now = world.clock.now();
    let mut inner = world.lock();
    let machine = inner.machines.get_mut(&number);
    machine.map_or(Value::Null, |machine| row(world, machine, now))
}

/// Its state, and whether a container of it is there.
pub(super) fn status(machine: &Machine, now: u64) -> (&'static str, bool) {
    match machine.stand(now) {
        Stand::Provisioning => ("PROVISIONING", false),
        Stand::Loading(done) if done < SAID_TO_RUN => ("STARTING", false),
        // Said to run, though its image is on its way.
        Stand::Loading(_) => ("RUNNING", false),
        Stand::Running => ("RUNNING", true),
        Stand::Failed(how) => match how.as_str() {
            "oci" => ("ERROR", false),
            // It is said to run, whatever becomes of the pull of its image.
            "offline" | registry::DENIED => ("RUNNING", false),
            "unknown" => ("DEGRADED", false),
            _ => ("EXITED", false),
        },
        Stand::Stopped => ("EXITED", false),
        Stand::Offline => ("RUNNING", false),
    }
}

fn actions(status: &str) -> &'static [&'static str] {
    match status {
        "RUNNING" => &["stop", "restart", "terminate"],
        "EXITED" | "ERROR" => &["start", "terminate"],
        _ => &["stop", "terminate"],
    }
}

/// A moment in RFC 3339.
pub(super) fn moment(world: &World, at: u64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "seconds of this century fit"
    )]
    let seconds = world.clock.epoch(at) as i64;
    let at = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    at.to_string()
}

fn row(world: &World, machine: &mut Machine, now: u64) -> Value {
    machine.count(now);
    let (status, up) = status(machine, now);
    let stopped = matches!(status, "EXITED" | "TERMINATED");
    let cost = if stopped {
        0.0
    } else {
        dollars(machine.meter.running_per_hour.0)
    };
    let ports = ports(machine, now, up);
    let (facts, pod) = (&machine.facts, id(machine.id));
    let started = now >= machine.runs;
    let cloud = if facts.region.is_some() {
        "SECURE"
    } else {
        "COMMUNITY"
    };
    let direct = ports.iter().find(|port| port["private"] == 22);
    let ssh = |host: &str, port: &Value, user: &str| {
        let command = format!("ssh {user}@{host} -p {port}");
        json!({ "host": host, "port": port, "username": user, "command": command })
    };
    let direct = direct.map(|port| ssh("127.0.0.1", &port["public"], "root"));
    let proxy = ssh("ssh.example.com", &json!(22), &format!("{pod}-64411eb2"));
    let more = &machine.more;
    let global = more["globalNetworking"] == json!(true);
    let (part, what) = match facts.gpus.first() {
        Some(gpu) => ("gpu", json!({ "id": gpu.model, "count": facts.gpus.len() })),
        None => ("cpu", cpus::shown(facts)),
    };
    let mut row = json!({
        "id": pod, "name": machine.label, "status": status, "actions": actions(status), "image": machine.image,
        "args": machine.onstart, "disk": machine.meter.disk_gib, "ports": more["ports"], "env": machine.env,
        "registry": more["registry"], "mounts": more["mounts"],
        "cloud": cloud, "dataCenterId": facts.region, "cudaVersion": facts.cuda,
        "ssh": { "proxy": (status != "PROVISIONING").then_some(proxy), "direct": direct },
        "template": null, "cost": cost, "locked": more["locked"], "globalNetworking": { "enabled": global },
        "runtime": up.then(|| json!({
            "uptime": now.saturating_sub(machine.runs) / 1000, "gpus": [{ "util": 0, "memoryUtil": 0 }],
            "cpu": { "util": 1 }, "memory": { "util": 2 }, "ports": ports,
        })),
        "createdAt": moment(world, machine.created),
        "startedAt": started.then(|| moment(world, machine.runs)),
    });
    row[part] = what;
    row
}

/// The mapped ports of a pod that is up, and its agent's.
fn ports(machine: &mut Machine, now: u64, up: bool) -> Vec<Value> {
    if !up || now < machine.address_from {
        return Vec::new();
    }
    let door = machine.agent.as_ref().and_then(|agent| agent.ssh());
    let asked = machine.more["ports"].as_array().into_iter().flatten();
    let mut ports: Vec<Value> = (30_000_u32..)
        .zip(asked)
        .filter_map(|(public, port)| {
            let (private, kind) = port.as_str()?.split_once('/')?;
            let private: u16 = private.parse().ok()?;
            let public = match door.filter(|_| private == 22) {
                Some(door) => u32::from(door.port()),
                None => public,
            };
            Some(json!({ "private": private, "public": public, "type": kind, "ip": "127.0.0.1" }))
        })
        .collect();
    if let Some(address) = machine.agent.as_ref().and_then(|agent| agent.address()) {
        let wrong = std::mem::take(&mut machine.wrong_address) > 0;
        let public = if wrong { 9 } else { address.port() };
        ports.push(
            json!({ "private": AGENT_PORT, "public": public, "type": "udp", "ip": "127.0.0.1" }),
        );
    }
    ports
}

pub(super) fn with<T>(
    world: &World,
    account: &str,
    id: &str,
    act: impl FnOnce(&mut Machine, u64) -> T,
) -> Option<T> {
    let now = world.clock.now();
    let mut inner = world.lock();
    let machine = inner.machines.get_mut(&number(id)?)?;
    let known = machine.account == account && machine.is_there(now) && now >= machine.found_from;
    known.then(|| act(machine, now))
}

pub(super) fn show(world: &World, account: &str, id: &str) -> Reply {
    match with(world, account, id, |machine, now| row(world, machine, now)) {
        Some(row) => yes(&row),
        None => unknown("pod"),
    }
}

/// What may be changed of a pod.
const CHANGES: &[Rule] = &[
    ("name", schema::some_text),
    ("image", schema::text),
    ("args", schema::text),
    ("disk", schema::positive),
    ("env", schema::pairs),
    ("ports", schema::texts),
    ("registry", schema::text_or_null),
    ("mounts", schema::mounts),
    ("locked", schema::flag),
    ("globalNetworking", schema::flag),
    ("templateId", schema::text),
];

pub(super) fn change(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let errors = faults(body, CHANGES, &[]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    if body.get("templateId").is_some() {
        return unknown("template");
    }
    let mounts = body.get("mounts").and_then(Value::as_object);
    if mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return no(400, "the kind of a mount is fixed at create");
    }
    let changed = with(world, account, id, |machine, _| {
        let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned);
        machine.label = text("name").unwrap_or_else(|| machine.label.clone());
        machine.image = text("image").unwrap_or_else(|| machine.image.clone());
        machine.onstart = text("args").unwrap_or_else(|| machine.onstart.clone());
        for field in ["locked", "ports", "registry", "globalNetworking"] {
            if let Some(value) = body.get(field) {
                machine.more[field] = value.clone();
            }
        }
    });
    match changed {
        Some(()) => show(world, account, id),
        None => unknown("pod"),
    }
}

pub(super) fn end(world: &World, account: &str, id: &str) -> Reply {
    if with(world, account, id, |_, _| ()).is_none()
        || !number(id).is_some_and(|number| world.release(account, number))
    {
        return unknown("pod");
    }
    if world.faults.fires("terminate-5xx").is_some() {
        return oops();
    }
    done()
}

/// What the key that a pod is handed can do: end its own pod, and nothing else.
pub(super) fn by_its_own_key(world: &World, request: &Request, own: &str) -> Reply {
    let owner = own.parse().ok().and_then(|number: u64| {
        let inner = world.lock();
        Some((number, inner.machines.get(&number)?.account.clone()))
    });
    let Some((number, owner)) = owner else {
        return no(401, "invalid token");
    };
    let id = id(number);
    if request.method != axum::http::Method::DELETE || request.path != format!("/v2/pods/{id}") {
        return no(403, "this key is for its own pod only");
    }
    end(world, &owner, &id)
}

const ACTION: &[Rule] = &[("action", |action| {
    let known = ["start", "stop", "restart", "terminate"];
    action
        .as_str()
        .is_some_and(|action| known.contains(&action))
})];

pub(super) fn act(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let errors = faults(body, ACTION, &["action"]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let action = body["action"].as_str().unwrap_or_default();
    let allowed = with(world, account, id, |machine, now| {
        let locked = machine.more["locked"] == json!(true);
        let (status, _) = status(machine, now);
        actions(status).contains(&action) && (!locked || action == "terminate")
    });
    match allowed {
        None => return unknown("pod"),
        Some(false) => return no(409, "action is not valid for the pod's current status"),
        Some(true) if action == "terminate" => return end(world, account, id),
        Some(true) => {}
    }
    turn(world, account, id, action != "stop");
    show(world, account, id)
}

/// Stops a pod, or has it run again.
pub(super) fn turn(world: &World, account: &str, id: &str, on: bool) -> bool {
    let turned = with(world, account, id, |machine, now| {
        if on {
            machine.start(now);
        } else {
            machine.stop(now);
        }
    });
    turned.is_some()
}

/// What the host says, and what the container printed; then the line stays open.
pub(super) fn logs(
    world: &World,
    account: &str,
    id: &str,
    query: &BTreeMap<String, String>,
) -> Reply {
    let wrong = |name: &str| invalid(&[format!("query.{name}: not as specified")]);
    let source = query.get("source").map(String::as_str);
    if !matches!(source, None | Some("container" | "system")) {
        return wrong("source");
    }
    let tail = query.get("tail").map_or(Ok(100), |tail| tail.parse());
    let Some(tail) = tail.ok().filter(|tail| *tail <= 5000_usize) else {
        return wrong("tail");
    };
    let is_moment = |text: &String| text.parse::<jiff::Timestamp>().is_ok();
    if query.get("since").is_some_and(|since| !is_moment(since)) {
        return wrong("since");
    }
    let lines = with(world, account, id, |machine, now| {
        let mut lines = vec![("system", format!("create container {}", machine.image))];
        if now >= machine.provisioned {
            lines.push(("system", format!("pull image {}", machine.image)));
        }
        if machine.stand(now) == Stand::Failed(registry::DENIED.to_owned()) {
            lines.push(("system", registry::denied(&machine.image)));
        } else if now >= machine.runs {
            lines.push(("system", "start container".to_owned()));
        }
        let log = machine.agent.as_ref().map(|agent| agent.log());
        let log = log.unwrap_or_default();
        lines.extend(log.lines().map(|line| ("container", line.to_owned())));
        (lines, machine.created)
    });
    let Some((lines, created)) = lines else {
        return unknown("pod");
    };
    let at = moment(world, created);
    let wanted: Vec<&(&str, String)> = lines
        .iter()
        .filter(|(from, _)| source.is_none_or(|source| source == *from))
        .collect();
    let from = wanted.len().saturating_sub(tail);
    let mut text = String::new();
    for (index, (source, line)) in wanted[from..].iter().enumerate() {
        let data = json!({ "ts": at, "source": source, "line": line });
        text += &format!("id: {at}/{index:012}\ndata: {data}\n\n");
    }
    Reply::text(200, "text/event-stream", &text)
        .header("Cache-Control", "no-cache")
        .header("X-Accel-Buffering", "no")
        .on(Way::Open)
}
