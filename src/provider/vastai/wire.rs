//! What the API answers, in neutral words. Pure, and tolerant: numbers may be strings, fields may be missing, null or new.
//!
//! What is not known is "not ready", never "gone"; what has no id is no instance, and makes its listing worthless.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use stageline_core::id::MachineId;
use stageline_core::label::Label;
use stageline_core::resource::{Contact, FailureClass};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::boot::{PORT, PUSHED};
use super::offer;
use crate::provider::http::{Answer, Fault, Told};
pub(super) use crate::provider::http::{flag, money, number, text};
use crate::provider::{Machine, MachineStatus, NOT_PULLED, Phase};

/// The host has not begun yet.
pub(super) const PROVISIONING: &str = "being provisioned";

/// The image is on its way, or the container starts.
pub(super) const LOADING: &str = "loading its image";

/// It runs, and where its ports are is not known yet.
pub(super) const NO_ADDRESS: &str = "running, its address not told yet";

/// An id: a whole number, maybe in quotes.
pub(super) fn id(value: &Value, field: &str) -> Option<String> {
    id_of(value.get(field)?)
}

fn id_of(value: &Value) -> Option<String> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number.map(|number| number.to_string())
}

/// The failure in an answer; none when it is a success.
pub(super) fn told(answer: &Answer) -> Option<Told> {
    let body = &answer.body;
    let code = text(body, "error");
    let said = text(body, "msg")
        .or_else(|| text(body, "message"))
        .or_else(|| text(body, "detail"));
    let success = flag(body, "success");
    let failed = !(200..300).contains(&answer.status)
        || success == Some(false)
        || (code.is_some() && success != Some(true));
    if !failed {
        return None;
    }
    let words: Vec<&str> = [code.as_deref(), said.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    let all = words.join(": ");
    let message = match (all.is_empty(), answer.status) {
        (true, status) => format!("status {status} without a word"),
        (false, 200..300) => format!("it says no: {all}"),
        (false, status) => format!("status {status}: {all}"),
    };
    let class = class(answer.status, &all.to_lowercase());
    let until = answer.resets_at.filter(|_| class == FailureClass::Quota);
    let until = until.map(|at| format!(", until {at:.0}"));
    Some(Told {
        class,
        message: format!("{message}{}", until.unwrap_or_default()),
    })
}

fn class(status: u16, words: &str) -> FailureClass {
    let says = |some: &[&str]| some.iter().any(|one| words.contains(one));
    // The search answers a bad key with 404, and an expired session too.
    let auth = [
        "auth_error",
        "invalid user key",
        "two-factor",
        "session expired",
        "unauthorized",
    ];
    let money = [
        "missing_billing",
        "insufficient",
        "credit",
        "billing",
        "account-inactive",
        "account_inactive",
    ];
    match status {
        401 => FailureClass::Auth,
        _ if says(&auth) => FailureClass::Auth,
        _ if says(&["search_quota_exceeded", "quota"]) => FailureClass::Quota,
        429 => FailureClass::Rate,
        402 => FailureClass::Money,
        _ if says(&["no_such_ask", "no longer available"]) => FailureClass::OfferGone,
        410 => FailureClass::OfferGone,
        _ if says(&["capacity", "not available", "unavailable"]) && status < 500 => {
            FailureClass::Capacity
        }
        _ if says(&money) && status < 500 => FailureClass::Money,
        403 if says(&["permission", "scope", "forbidden"]) => FailureClass::Auth,
        400 | 403 | 422 => FailureClass::Config,
        _ => FailureClass::Unknown,
    }
}

/// Whether a refusal says that there is no such instance.
pub(super) fn knows_no_instance(fault: &Fault) -> bool {
    let code = fault.body.as_ref().and_then(|body| text(body, "error"));
    let known = ["not_found", "no_such_instance"];
    fault.status == Some(404) && code.is_some_and(|code| known.contains(&code.as_str()))
}

/// Every instance id in the answer to a create: one, when all is well.
pub(super) fn contracts(body: &Value) -> Vec<MachineId> {
    let found = match body.get("new_contract") {
        Some(Value::Array(several)) => several.iter().filter_map(id_of).collect(),
        Some(one) => id_of(one).into_iter().collect(),
        None => Vec::new(),
    };
    found.iter().filter_map(|id| id.parse().ok()).collect()
}

/// A page of the listing.
pub(super) struct Page {
    pub(super) instances: Vec<(String, Value)>,
    pub(super) next: Option<String>,
    pub(super) total: Option<usize>,
}

/// Reads a page; what is none is no page without instances.
pub(super) fn page(body: &Value) -> Result<Page, Fault> {
    let Some(Value::Array(rows)) = body.get("instances") else {
        return Err(Fault::shape("it has no list `instances`"));
    };
    let instances: Option<Vec<(String, Value)>> = rows
        .iter()
        .map(|row| Some((id(row, "id")?, row.clone())))
        .collect();
    let next = match body.get("next_token") {
        None | Some(Value::Null) => None,
        Some(Value::String(token)) if token.is_empty() => None,
        Some(Value::String(token)) => Some(token.clone()),
        Some(_) => return Err(Fault::shape("its `next_token` is no text")),
    };
    let total = body.get("total_instances").and_then(Value::as_u64);
    Ok(Page {
        instances: instances.ok_or_else(|| Fault::shape("an instance has no `id`"))?,
        next,
        total: total.and_then(|total| usize::try_from(total).ok()),
    })
}

/// The provider's own spelling of every GPU.
pub(super) fn names(body: &Value) -> Result<Vec<String>, Fault> {
    let list = ["gpu_names", "names", "unique_names"]
        .into_iter()
        .find_map(|field| body.get(field)?.as_array());
    let list = list.ok_or_else(|| Fault::shape("it has no list `gpu_names`"))?;
    let names = list.iter().filter_map(|name| name.as_str());
    Ok(names.map(|name| name.replace('_', " ")).collect())
}

/// An instance in neutral words; none when it has no id.
pub(super) fn machine(instance: &Value, relay: Option<&str>) -> Option<Machine> {
    let status = status(instance);
    let mut contact = Contact::default();
    let status = match (status, address(instance)) {
        (MachineStatus::Running, Some(address)) => {
            contact.direct.push(address);
            contact.relay = relay.map(str::to_owned);
            MachineStatus::Running
        }
        (MachineStatus::Running, None)
            if relay.is_some() || (is_pushed(instance) && ssh(instance).is_some()) =>
        {
            contact.relay = relay.map(str::to_owned);
            MachineStatus::Running
        }
        (MachineStatus::Running, None) => MachineStatus::Pending(Phase::new(NO_ADDRESS)),
        (other, _) => other,
    };
    let price = number(instance, "dph_total")
        .or_else(|| number(instance.get("instance")?, "totalHour"))
        .or_else(|| number(instance.get("search")?, "totalHour"));
    let label = instance.get("label").and_then(Value::as_str);
    let price_per_hour = match (bills(instance), number(instance, "disk_space")) {
        (Bills::Nothing, _) => MicroDollars::ZERO,
        (Bills::Disk, Some(disk)) => offer::disk_price(instance, whole(disk)),
        (Bills::Disk, None) | (Bills::All, _) => price.and_then(money).unwrap_or_default(),
    };
    Some(Machine {
        id: id(instance, "id")?.parse().ok()?,
        request_key: label.and_then(|label| label.parse().ok()),
        name: label.and_then(Label::new),
        status,
        price_per_hour,
        facts: offer::facts(instance),
        contact,
        created_at: number(instance, "start_date").and_then(timestamp),
        ended_at: None,
        told_at: None,
        away_price: price
            .and_then(money)
            .filter(|_| matches!(bills(instance), Bills::Nothing)),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates"
)]
fn whole(gibibytes: f64) -> u64 {
    gibibytes.ceil() as u64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a cast from float saturates"
)]
fn timestamp(seconds: f64) -> Option<Timestamp> {
    Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()
}

/// What of an instance is billed, whatever it says that it costs.
enum Bills {
    All,
    /// It stands still.
    Disk,
    /// Its host is away.
    Nothing,
}

fn bills(instance: &Value) -> Bills {
    match text(instance, "actual_status").as_deref() {
        Some("offline") => Bills::Nothing,
        Some("stopped" | "frozen") => Bills::Disk,
        Some(_) | None if stands_still(instance) => Bills::Disk,
        Some(_) | None => Bills::All,
    }
}

/// Whether it was stopped, or is not to run.
fn stands_still(instance: &Value) -> bool {
    let is = |field: &str, state: &str| text(instance, field).as_deref() == Some(state);
    is("intended_status", "stopped") || (is("cur_state", "stopped") && is("next_state", "stopped"))
}

/// Where it is in its life. Only what is known to be over is dead; a word that nobody knows is on its way.
fn status(instance: &Value) -> MachineStatus {
    let word = |field: &str| text(instance, field);
    let said = word("status_msg");
    let dead = |why: &str| {
        let said = said
            .as_ref()
            .map_or_else(String::new, |said| format!(": {said}"));
        MachineStatus::Dead(format!("{why}{said}"))
    };
    let broken = said
        .as_deref()
        .is_some_and(|said| said.contains("OCI runtime create failed"));
    let denied = said
        .as_deref()
        .is_some_and(|said| said.contains("pull access denied") || said.contains("unauthorized"));
    let is = |field: &str, state: &str| word(field).as_deref() == Some(state);
    if is("cur_state", "unloaded") || is("next_state", "unloaded") {
        return MachineStatus::Ending;
    }
    let stands_still = stands_still(instance);
    if flag(instance, "is_bid") == Some(true) && (stands_still || is("actual_status", "stopped")) {
        let said = said.map_or_else(String::new, |said| format!(" (`{said}`)"));
        let why = "it stands still, because somebody bids more, or by hand";
        return MachineStatus::Interrupted(format!("{why}{said}"));
    }
    if stands_still {
        return dead(
            "it is stopped (outbid, its contract over, or by hand), and its disk is billed on",
        );
    }
    match word("actual_status").as_deref() {
        Some("loading" | "created" | "scheduling") if broken => {
            dead("its container cannot be made")
        }
        None | Some("loading" | "created" | "scheduling") if denied => dead(NOT_PULLED),
        Some("running") => MachineStatus::Running,
        Some("exited") => dead("its container ended"),
        Some("offline") => dead("its host is away"),
        Some("unknown") => dead("its host does not report any more"),
        Some("stopped" | "frozen") => dead("it is stopped, and its disk is billed on"),
        None => MachineStatus::Pending(Phase::new(PROVISIONING)),
        Some("loading") => MachineStatus::Pending(loading(said.as_deref())),
        Some(phase) => MachineStatus::Pending(Phase::new(phase)),
    }
}

/// Free text tells how far the image is.
fn loading(said: Option<&str>) -> Phase {
    let phase = Phase::new(LOADING);
    let percent = said.and_then(|said| {
        let before = said
            .split('%')
            .next()
            .filter(|_| said.contains('%'))?
            .trim_end();
        let digits = before
            .rsplit(|c: char| !(c.is_ascii_digit() || c == '.'))
            .next()?;
        digits.split('.').next()?.parse().ok()
    });
    match percent {
        Some(percent) => phase.at(percent),
        None => phase,
    }
}

/// Where the agent's port is, from outside.
fn address(instance: &Value) -> Option<SocketAddr> {
    mapped(instance, &format!("{PORT}/udp"))
}

/// Where one gets in by SSH. The provider's proxy shows keys of its own and is not taken.
pub(super) fn ssh(instance: &Value) -> Option<SocketAddr> {
    mapped(instance, "22/tcp")
}

fn mapped(instance: &Value, port: &str) -> Option<SocketAddr> {
    let ip: IpAddr = text(instance, "public_ipaddr")?.parse().ok()?;
    let mapped = instance.get("ports")?.get(port)?.get(0)?;
    let port = id(mapped, "HostPort")?.parse().ok()?;
    Some(SocketAddr::new(ip, port))
}

/// Whether its agent is pushed: its own record says so.
pub(super) fn is_pushed(instance: &Value) -> bool {
    let pairs = instance.get("extra_env").and_then(Value::as_array);
    let word = |pair: &Value, at: usize| pair.get(at).and_then(Value::as_str).map(str::to_owned);
    let ours = |pair: &Value| {
        word(pair, 0).as_deref() == Some(PUSHED.0) && word(pair, 1).as_deref() == Some(PUSHED.1)
    };
    pairs.into_iter().flatten().any(ours)
}
