//! What the API answers, in neutral words. Pure, and tolerant: numbers may be strings, fields may be missing, null or new.
//!
//! What is not known is "not ready", never "gone"; what has no id is no instance, and makes its listing worthless. Tokens and
//! URLs of notebooks in an answer are secrets, and are not read.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use stageline_core::id::{MachineId, RequestKey};
use stageline_core::label::Label;
use stageline_core::resource::{Contact, FailureClass};
use stageline_core::unit::MicroDollars;

use super::boot::PORT;
use super::offer;
use crate::provider::http::{Answer, Fault, Told, clear};
use crate::provider::{Machine, MachineStatus, Phase};

/// The longest text of the provider's that is repeated.
const WORDS_MAX: usize = 240;

/// More of a thing than any machine has, or costs.
const WHOLE_MAX: u64 = 1 << 40;

/// The first phase, and all that the provider tells before a machine runs.
pub(super) const BOOTING: &str = "booting";

/// It runs, and its address is not known yet.
pub(super) const NO_ADDRESS: &str = "running, its address not told yet";

/// The tag that has the request key.
pub(super) const TAG: &str = "stageline";

/// The tag that says under which key's account a machine was made.
pub(super) const TAG_ACCOUNT: &str = "stageline-account";

/// A whole number, also one in quotes or with a fraction of zero.
pub(super) fn whole(value: &Value, field: &str) -> Option<u64> {
    let number = match value.get(field)? {
        Value::Number(number) => number.as_u64().or_else(|| {
            let text = number.to_string();
            text.strip_suffix(".0")?.parse().ok()
        }),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number.filter(|number| *number <= WHOLE_MAX)
}

/// A text that says something.
pub(super) fn text(value: &Value, field: &str) -> Option<String> {
    let text = clear(value.get(field)?.as_str()?, WORDS_MAX);
    (!text.is_empty()).then_some(text)
}

/// What a success is about.
pub(super) fn data(body: &Value) -> Result<&Value, Fault> {
    body.get("data")
        .ok_or_else(|| Fault::shape("it has no `data`"))
}

/// The code of a failure.
pub(super) fn code(body: &Value) -> Option<String> {
    text(body.get("error")?, "code")
}

/// The failure in an answer; none when it is a success.
pub(super) fn told(answer: &Answer) -> Option<Told> {
    let error = answer.body.get("error").filter(|error| !error.is_null());
    let well = (200..300).contains(&answer.status);
    if well && error.is_none() {
        return None;
    }
    let code = code(&answer.body);
    let word = |field: &str| error.and_then(|error| text(error, field));
    let mut words: Vec<String> = [code.clone(), word("message"), word("suggestion")]
        .into_iter()
        .flatten()
        .collect();
    words.extend(text(&answer.body, "msg"));
    let all = words.join(": ");
    let message = match (all.is_empty(), well) {
        (true, _) => format!("status {} without a word", answer.status),
        (false, true) => format!("it says no: {all}"),
        (false, false) => format!("status {}: {all}", answer.status),
    };
    Some(Told {
        class: class(answer.status, code.as_deref()),
        message,
    })
}

/// By its code, and by its status where that has none that is known. Want of capacity is a 400, as a bad request is.
fn class(status: u16, code: Option<&str>) -> FailureClass {
    match code.unwrap_or_default() {
        // Too many requests come under the same code as too many machines.
        "global/quota-exceeded" if status == 429 => FailureClass::Rate,
        "global/quota-exceeded" => FailureClass::Quota,
        "global/invalid-api-key" | "global/account-inactive" => FailureClass::Auth,
        "global/invalid-address" => FailureClass::Money,
        "instance-operations/launch/insufficient-capacity" => FailureClass::Capacity,
        "global/invalid-parameters"
        | "global/duplicate"
        | "global/object-does-not-exist"
        | "instance-operations/launch/file-system-in-wrong-region"
        | "instance-operations/launch/file-systems-not-supported" => FailureClass::Config,
        "global/internal-error" | "global/unknown" => FailureClass::Unknown,
        _ => match status {
            401 | 403 => FailureClass::Auth,
            402 => FailureClass::Money,
            429 => FailureClass::Rate,
            400 | 404 | 409 | 422 => FailureClass::Config,
            _ => FailureClass::Unknown,
        },
    }
}

/// What to do about a failure, where the code says more than its class does.
pub(super) fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "global/account-inactive" => {
            "verify the account's e-mail address and its payment method at Lambda's console"
        }
        "global/invalid-address" => "correct the billing address at Lambda's console",
        "global/quota-exceeded" => {
            "ask Lambda to raise the account's quota; another region does not help"
        }
        _ => return None,
    })
}

/// Whether a refusal leaves open what happened, although its status says that nothing did.
pub(super) fn is_open(code: Option<&str>) -> bool {
    matches!(code, Some("global/unknown" | "global/internal-error"))
}

/// Whether a refusal says that there is no such thing.
pub(super) fn knows_none(fault: &Fault) -> bool {
    let code = fault.body.as_ref().and_then(code);
    fault.status == Some(404) && code.as_deref() == Some("global/object-does-not-exist")
}

/// Every instance id in the answer to a launch: one, when all is well.
pub(super) fn launched(body: &Value) -> Vec<MachineId> {
    let ids = body.get("data").and_then(|data| data.get("instance_ids"));
    let ids = ids.and_then(Value::as_array).into_iter().flatten();
    ids.filter_map(|id| id.as_str()?.parse().ok()).collect()
}

/// Whether the answer to a release names this instance; only those that it names were taken.
pub(super) fn terminates(body: &Value, id: &MachineId) -> bool {
    let data = body.get("data");
    let taken = data.and_then(|data| data.get("terminated_instances"));
    let mut taken = taken.and_then(Value::as_array).into_iter().flatten();
    taken.any(|instance| text(instance, "id").as_deref() == Some(id.as_str()))
}

/// A page of a listing: rows with their ids, and where the next one is.
pub(super) struct Page {
    pub(super) rows: Vec<(String, Value)>,
    pub(super) next: Option<String>,
}

/// Reads a page; what is none is no page without instances.
pub(super) fn page(body: &Value) -> Result<Page, Fault> {
    let Value::Array(rows) = data(body)? else {
        return Err(Fault::shape("its `data` is no list"));
    };
    let rows: Option<Vec<(String, Value)>> = rows
        .iter()
        .map(|row| Some((text(row, "id")?, row.clone())))
        .collect();
    let next = match body.get("page_token") {
        None | Some(Value::Null) => None,
        Some(Value::String(token)) if token.is_empty() => None,
        Some(Value::String(token)) => Some(token.clone()),
        Some(_) => return Err(Fault::shape("its `page_token` is no text")),
    };
    Ok(Page {
        rows: rows.ok_or_else(|| Fault::shape("an instance has no `id`"))?,
        next,
    })
}

/// The value of a tag.
pub(super) fn tag(instance: &Value, key: &str) -> Option<String> {
    let tags = instance.get("tags")?.as_array()?;
    let tag = tags
        .iter()
        .find(|tag| text(tag, "key").as_deref() == Some(key))?;
    text(tag, "value")
}

/// Where it is.
pub(super) fn ip(instance: &Value) -> Option<IpAddr> {
    text(instance, "ip")?.parse().ok()
}

/// The request key that the SSH key is named by which it was made with; none when that is no key of ours.
pub(super) fn ssh_key(instance: &Value) -> Option<RequestKey> {
    let names = instance.get("ssh_key_names")?.as_array()?;
    let mut names = names.iter().filter_map(|name| name.as_str()?.parse().ok());
    names.next()
}

/// An instance in neutral words; none when it has no id.
pub(super) fn machine(instance: &Value, relay: Option<&str>) -> Option<Machine> {
    let mut contact = Contact::default();
    let mut status = status(instance);
    if status == MachineStatus::Running {
        let ip = ip(instance);
        contact.relay = relay.map(str::to_owned);
        contact
            .direct
            .extend(ip.map(|ip| SocketAddr::new(ip, PORT)));
        if ip.is_none() && relay.is_none() {
            status = MachineStatus::Pending(Phase::new(NO_ADDRESS));
        }
    }
    // The tag stays when somebody renames it in the console; the name is what an API without tags keeps.
    let key = |text: Option<String>| text.and_then(|text| text.parse::<RequestKey>().ok());
    let kind = instance.get("instance_type").unwrap_or(&Value::Null);
    let region = instance
        .get("region")
        .and_then(|region| text(region, "name"));
    Some(Machine {
        id: text(instance, "id")?.parse().ok()?,
        request_key: key(tag(instance, TAG)).or_else(|| key(text(instance, "name"))),
        name: instance
            .get("name")
            .and_then(Value::as_str)
            .and_then(Label::new),
        status,
        // What was taken back is billed no more.
        price_per_hour: match is(instance, "preempted") || is(instance, "terminated") {
            true => MicroDollars::ZERO,
            false => price(kind).unwrap_or_default(),
        },
        facts: offer::facts(kind, region.as_deref()),
        contact,
        created_at: None,
        ended_at: None,
        told_at: None,
        away_price: None,
    })
}

/// Cents for an hour of the whole machine, exactly.
pub(super) fn price(kind: &Value) -> Option<MicroDollars> {
    let cents = whole(kind, "price_cents_per_hour").filter(|cents| *cents > 0)?;
    cents.checked_mul(10_000).map(MicroDollars)
}

/// Whether an instance has this status.
pub(super) fn is(instance: &Value, status: &str) -> bool {
    text(instance, "status").as_deref() == Some(status)
}

/// Where it is in its life. Only what is known to be over is dead; a word that nobody knows is on its way.
fn status(instance: &Value) -> MachineStatus {
    let dead = |why: &str| MachineStatus::Dead(why.to_owned());
    match text(instance, "status").as_deref() {
        Some("active") => MachineStatus::Running,
        Some("unhealthy") => dead("the provider calls it unhealthy, and bills it on"),
        Some("preempted") => dead("the provider took it back (preempted)"),
        Some("terminated") => dead("it was terminated, and not by this topology"),
        Some("terminating") => MachineStatus::Ending,
        Some(phase) => MachineStatus::Pending(Phase::new(phase)),
        None => MachineStatus::Pending(Phase::new(BOOTING)),
    }
}
