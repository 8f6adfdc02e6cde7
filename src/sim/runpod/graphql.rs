//! As much of the older GraphQL as the provider's own SDK speaks, over the same pods: its queries are texts of a known form.
//!
//! It answers each field that the SDK asks for, whatever else was asked; what it does not know is an error with status 200, as there.

use serde_json::{Value, json};

use super::super::machine::Machine;
use super::super::serve::Reply;
use super::super::world::World;
use super::catalogue::{self, MODELS};
use super::pods::{self, status};
use super::{create, dollars, id, yes};

pub(super) fn answer(world: &World, account: &str, body: &Value) -> Reply {
    let query = body.get("query").and_then(Value::as_str).unwrap_or("");
    match data(world, account, query) {
        Ok(data) => yes(&json!({ "data": data })),
        Err(words) => yes(&json!({ "errors": [{ "message": words }], "data": null })),
    }
}

fn data(world: &World, account: &str, query: &str) -> Result<Value, String> {
    let asks = |name: &str| {
        let mut words = query.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| word == name)
    };
    let missing = || "pod not found".to_owned();
    let pod = || text(query, "podId").ok_or_else(missing);
    let turned = |on: bool| {
        let pod = pod()?;
        match pods::turn(world, account, &pod, on) {
            true => shown(world, account, &pod).ok_or_else(missing),
            false => Err(missing()),
        }
    };
    if asks("podFindAndDeployOnDemand") {
        return made(world, account, query);
    }
    if asks("podStop") {
        return Ok(json!({ "podStop": turned(false)? }));
    }
    if asks("podResume") {
        return Ok(json!({ "podResume": turned(true)? }));
    }
    if asks("podTerminate") {
        let reply = pods::end(world, account, &pod()?);
        return match reply.status {
            204 => Ok(json!({ "podTerminate": null })),
            404 => Err(missing()),
            _ => Err("Something went wrong. Please try again later or contact support.".to_owned()),
        };
    }
    if asks("gpuTypes") {
        let one = text(query, "id");
        let shown = MODELS
            .iter()
            .filter(|model| one.as_ref().is_none_or(|id| model.id == id));
        return Ok(json!({ "gpuTypes": shown.map(gpu).collect::<Vec<Value>>() }));
    }
    if asks("podId") {
        return Ok(json!({ "pod": shown(world, account, &pod()?) }));
    }
    if asks("myself") {
        let now = world.clock.now();
        let pods = pods::mine(world, account, |machine| row(machine, now));
        return Ok(json!({ "myself": {
            "id": format!("user_{}", &blake3::hash(account.as_bytes()).to_hex()[..12]), "pubKey": "",
            "networkVolumes": [], "pods": pods,
        } }));
    }
    Err("this simulator does not know that query".to_owned())
}

/// The value of `name: "..."`.
fn text(query: &str, name: &str) -> Option<String> {
    let at = query.find(&format!("{name}: \""))?;
    let rest = &query[at + name.len() + 3..];
    Some(rest[..rest.find('"')?].to_owned())
}

/// The value of `name: 5`, and of `name: WORD`.
fn word<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let at = query.find(&format!("{name}: "))?;
    let rest = &query[at + name.len() + 2..];
    rest.split([',', '\n', ' ', '}']).next()
}

fn gpu(model: &catalogue::Model) -> Value {
    let cheapest = if model.community > 0 {
        model.community
    } else {
        model.secure
    };
    json!({
        "id": model.id, "displayName": model.name, "manufacturer": model.maker, "memoryInGb": model.gigabytes,
        "maxGpuCount": model.most.0, "cudaCores": 0, "secureCloud": model.secure > 0, "communityCloud": model.community > 0,
        "securePrice": dollars(model.secure), "communityPrice": dollars(model.community), "oneMonthPrice": null,
        "threeMonthPrice": null, "oneWeekPrice": null, "communitySpotPrice": dollars(model.community / 2),
        "secureSpotPrice": dollars(model.secure / 2),
        "lowestPrice": { "minimumBidPrice": dollars(cheapest / 2), "uninterruptablePrice": dollars(cheapest) },
    })
}

/// The create, as the newer API would be asked.
fn made(world: &World, account: &str, query: &str) -> Result<Value, String> {
    let number = |name: &str| word(query, name).and_then(|text| text.parse::<u64>().ok());
    let cloud = match word(query, "cloudType") {
        Some("COMMUNITY") => "COMMUNITY",
        Some(_) | None => "SECURE",
    };
    let mut body = json!({
        "name": text(query, "name"), "image": text(query, "imageName"), "args": text(query, "dockerArgs").unwrap_or_default(),
        "cloud": cloud, "disk": number("containerDiskInGb").unwrap_or(10),
        "gpu": { "id": text(query, "gpuTypeId"), "count": number("gpuCount").unwrap_or(1) },
    });
    if let Some(place) = text(query, "dataCenterId") {
        body["dataCenterIds"] = json!([place]);
    }
    if let Some(ports) = text(query, "ports") {
        body["ports"] = json!(ports.split(',').collect::<Vec<&str>>());
    }
    let reply = create::create(world, account, &body);
    let answer: Value = serde_json::from_str(&reply.text).unwrap_or_default();
    match (reply.status, answer["id"].as_str()) {
        (201, Some(pod)) => Ok(json!({ "podFindAndDeployOnDemand": {
            "id": pod, "imageName": answer["image"], "env": [], "machineId": "simulated", "machine": { "podHostId": pod },
        } })),
        (_, _) => Err(answer["detail"].as_str().unwrap_or("no").to_owned()),
    }
}

fn shown(world: &World, account: &str, pod: &str) -> Option<Value> {
    pods::with(world, account, pod, row)
}

fn row(machine: &mut Machine, now: u64) -> Value {
    machine.count(now);
    let (status, up) = status(machine, now);
    let desired = match status {
        "EXITED" | "TERMINATED" => status,
        _ => "RUNNING",
    };
    let pairs: Vec<String> = machine
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let ports = machine.more["ports"].as_array().into_iter().flatten();
    let ports: Vec<&str> = ports.filter_map(Value::as_str).collect();
    let gpu = machine
        .facts
        .gpus
        .first()
        .map_or("", |gpu| gpu.model.as_str());
    json!({
        "id": id(machine.id), "name": machine.label, "containerDiskInGb": machine.meter.disk_gib,
        "costPerHr": dollars(machine.meter.running_per_hour.0), "desiredStatus": desired, "dockerArgs": machine.onstart,
        "dockerId": null, "env": pairs, "gpuCount": machine.facts.gpus.len(), "imageName": machine.image,
        "lastStatusChange": "", "machineId": "simulated", "memoryInGb": machine.facts.memory.0 >> 30, "podType": "RESERVED",
        "port": null, "ports": ports.join(","), "uptimeSeconds": now.saturating_sub(machine.runs) / 1000,
        "vcpuCount": machine.facts.cpus, "volumeInGb": 0, "volumeMountPath": "/runpod-volume",
        "runtime": up.then(|| json!({ "ports": [] })),
        "machine": { "gpuDisplayName": catalogue::find(gpu).map(|model| model.name), "podHostId": id(machine.id) },
    })
}
