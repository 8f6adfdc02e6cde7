//! What the API answers, in neutral words. Pure, and tolerant: numbers may be strings, fields may be missing, null or new.
//!
//! What is not known is "not ready", never "gone"; what has no id is no pod, and makes its listing worthless.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use stageline_core::id::MachineId;
use stageline_core::label::Label;
use stageline_core::resource::{Cause, Contact, FailureClass};
use stageline_core::unit::MicroDollars;

use super::boot::PUSHED;
use super::offer;
pub(super) use crate::provider::http::path;
use crate::provider::http::{Answer, Fault, Told, clear, money, number, text};
use crate::provider::{Machine, MachineStatus, Phase};

/// A host is looked for.
pub(super) const PROVISIONING: &str = "being provisioned";

/// The image is on its way, or the container starts.
pub(super) const STARTING: &str = "starting its container";

/// Said to run, and nothing runs.
pub(super) const NOT_UP: &str = "running, its container not up yet";

/// It runs, and neither a relay nor a port of it is known.
pub(super) const NO_ADDRESS: &str = "running, and nothing says how to reach it";

/// Where an agent would listen if its port were mapped, as simulators do.
const PORT: f64 = 41641.0;

/// The most of a pod's own words on why it was refused.
const ERRORS_MAX: usize = 3;

/// The failure in an answer; none when it is a success.
pub(super) fn told(answer: &Answer) -> Option<Told> {
    let body = &answer.body;
    let fine = (200..300).contains(&answer.status);
    // An error document is one whatever the status beside it says.
    let status = match number(body, "status") {
        Some(status) if fine && (400.0..600.0).contains(&status) => Some(status),
        Some(_) | None => None,
    };
    if fine && status.is_none() {
        return None;
    }
    let errors = body.get("errors").and_then(Value::as_array);
    let errors = errors.into_iter().flatten().filter_map(Value::as_str);
    let errors: Vec<String> = errors.take(ERRORS_MAX).map(|one| clear(one, 120)).collect();
    let words = [
        text(body, "title"),
        text(body, "detail").or_else(|| text(body, "msg")),
        (!errors.is_empty()).then(|| errors.join("; ")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    let all = words.join(": ");
    let message = match (all.is_empty(), fine) {
        (true, _) => format!("status {} without a word", answer.status),
        (false, true) => format!("it says no: {all}"),
        (false, false) => format!("status {}: {all}", answer.status),
    };
    Some(Told {
        class: class(answer.status, &all.to_lowercase()),
        message,
    })
}

/// By the status; 400 is one for four things, told apart by its words.
fn class(status: u16, words: &str) -> FailureClass {
    let says = |some: &[&str]| some.iter().any(|one| words.contains(one));
    match status {
        401 | 403 => FailureClass::Auth,
        402 => FailureClass::Money,
        422 => FailureClass::Config,
        // A whole day is not waited for.
        429 if says(&["day window"]) => FailureClass::Quota,
        429 => FailureClass::Rate,
        400 if says(&[
            "no longer any instances",
            "instances available",
            "capacity",
            "try again later",
            "not enough free gpus",
            "could not be placed",
            "no available",
        ]) =>
        {
            FailureClass::Capacity
        }
        400 if says(&["balance", "insufficient fund", "credit"]) => FailureClass::Money,
        400 if says(&["quota", "spend limit", "limit reached", "maximum number"]) => {
            FailureClass::Quota
        }
        400 => FailureClass::Config,
        _ => FailureClass::Unknown,
    }
}

/// Why a create made nothing. The same statuses mean other things than for a read.
pub(super) fn refused(fault: Fault) -> Cause {
    let cause = fault.cause;
    let other = |class, hint: &str| Cause::new(class, cause.message.clone()).hint(hint);
    // Nobody but the API itself says so.
    let told = fault.body.is_some();
    match (fault.status, cause.class) {
        (Some(400), FailureClass::Config) => other(
            FailureClass::Capacity,
            "the provider answers alike when a pod cannot be placed and when it does not like the request: if every offer is \
             refused with these words, mend the request",
        )
        .if_all(FailureClass::Config),
        (Some(403), FailureClass::Auth) if told => other(
            FailureClass::OfferGone,
            "this account may not use that pool; if every offer is refused so, the key lacks the permission to create pods",
        )
        .if_all(FailureClass::Auth),
        (Some(404), _) => other(
            FailureClass::Config,
            "the provider does not know this type of GPU any more; plan again",
        ),
        (Some(422), _) => other(
            FailureClass::Config,
            "the request is not what the provider expects: a fault of stageline or of a new API; see whether there is a newer version",
        ),
        (_, _) => cause,
    }
}

/// The id of a pod.
pub(super) fn id(pod: &Value) -> Option<MachineId> {
    pod.get("id")?.as_str()?.parse().ok()
}

/// A list of the answer; what has none is no list without rows.
pub(super) fn rows<'a>(body: &'a Value, field: &str) -> Result<&'a Vec<Value>, Fault> {
    let rows = body.get(field).and_then(Value::as_array);
    rows.ok_or_else(|| Fault::shape(&format!("it has no list `{field}`")))
}

/// A variable of a pod's environment.
pub(super) fn mark<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    pod.get("env")?.get(name)?.as_str()
}

/// Every pod of a listing, each once.
pub(super) fn machines(pods: &[Value], relay: Option<&str>) -> Result<Vec<Machine>, Fault> {
    let mut machines = BTreeMap::new();
    for pod in pods {
        let machine = machine(pod, relay).ok_or_else(|| Fault::shape("a pod has no `id`"))?;
        machines.insert(machine.id.clone(), machine);
    }
    Ok(machines.into_values().collect())
}

/// A pod in neutral words; none when it has no id.
pub(super) fn machine(pod: &Value, relay: Option<&str>) -> Option<Machine> {
    let facts = offer::pod_facts(pod);
    let mut contact = Contact::default();
    let status = match (status(pod), address(pod)) {
        (MachineStatus::Running, None)
            if relay.is_none()
                && !(mark(pod, PUSHED.0) == Some(PUSHED.1) && ssh(pod).is_some()) =>
        {
            MachineStatus::Pending(Phase::new(NO_ADDRESS))
        }
        (MachineStatus::Running, address) => {
            contact.direct.extend(address);
            contact.relay = relay.map(str::to_owned);
            MachineStatus::Running
        }
        (other, _) => other,
    };
    // `cost` is what the GPUs cost now: nothing when it is stopped. Its disk is billed beside that. Where it is not told, nothing is
    // known of the price of a pod that runs.
    let running = number(pod, "cost").and_then(money);
    let disk = offer::disk_per_hour(facts.disk.0 >> 30);
    let price_per_hour = match (&status, running) {
        (MachineStatus::Ending, running) => running.unwrap_or_default(),
        (MachineStatus::Pending(_) | MachineStatus::Running, None) => MicroDollars::ZERO,
        (_, running) => running.unwrap_or_default().saturating_add(disk),
    };
    let name = pod.get("name").and_then(Value::as_str);
    Some(Machine {
        id: id(pod)?,
        request_key: name.and_then(|name| name.parse().ok()),
        name: name.and_then(Label::new),
        status,
        price_per_hour,
        facts,
        contact,
        created_at: text(pod, "createdAt").and_then(|text| text.parse().ok()),
        ended_at: None,
        told_at: None,
        away_price: None,
    })
}

/// Where it is in its life. Only what is known to be over is dead; a word that nobody knows is on its way.
fn status(pod: &Value) -> MachineStatus {
    let up = pod.get("runtime").is_some_and(|runtime| !runtime.is_null());
    let pending = |phase: &str| MachineStatus::Pending(Phase::new(phase));
    let dead = |why: &str| MachineStatus::Dead(why.to_owned());
    match text(pod, "status").as_deref() {
        Some("PROVISIONING") => pending(PROVISIONING),
        Some("STARTING") => pending(STARTING),
        Some("RUNNING") if up => MachineStatus::Running,
        Some("RUNNING") => pending(NOT_UP),
        Some("EXITED") => dead(
            "it is stopped (by hand, by itself, or for want of credit), and its disk is billed on",
        ),
        Some("ERROR") => dead("its container cannot run"),
        Some("TERMINATED") => MachineStatus::Ending,
        Some(other) => pending(&format!("in a state that is not known here: {other}")),
        None => pending("its state is not told"),
    }
}

/// Where the agent's port is, from outside, if it is mapped.
fn address(pod: &Value) -> Option<SocketAddr> {
    mapped(pod, PORT, "udp")
}

/// Where one gets in by SSH. The provider's proxy runs no programs and is not taken.
pub(super) fn ssh(pod: &Value) -> Option<SocketAddr> {
    mapped(pod, 22.0, "tcp")
}

fn mapped(pod: &Value, private: f64, kind: &str) -> Option<SocketAddr> {
    let ports = pod.get("runtime")?.get("ports")?.as_array()?;
    let ours = |port: &&Value| {
        number(port, "private") == Some(private) && text(port, "type").as_deref() == Some(kind)
    };
    let port = ports.iter().find(ours)?;
    let ip: IpAddr = text(port, "ip")?.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a port, by the range before it"
    )]
    let public = number(port, "public").filter(|n| (1.0..=65_535.0).contains(n))? as u16;
    Some(SocketAddr::new(ip, public))
}

/// The lines of a log, out of the events of its stream. The last event may be cut.
pub(super) fn log(stream: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(stream);
    let mut log = String::new();
    for event in text.lines().filter_map(|line| line.strip_prefix("data:")) {
        let event: Option<Value> = serde_json::from_str(event).ok();
        if let Some(line) = event.as_ref().and_then(|event| event.get("line")?.as_str()) {
            log.push_str(line.trim_end_matches('\n'));
            log.push('\n');
        }
    }
    log.into_bytes()
}
