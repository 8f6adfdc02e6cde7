//! What programs of the user's own print, read. Pure.
//!
//! An answer that is not what the contract says is refused as a whole, in words for whoever wrote the program: half of a listing is
//! none, and an empty output is no empty listing. What an answer has beyond the contract is left alone.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::{Map, Value};
use stageline_core::id::{MachineId, RequestKey};
use stageline_core::label::Label;
use stageline_core::offer::{Facts, Gpu};
use stageline_core::unit::{Bytes, MicroDollars, Timestamp};

use super::record::lease_id;
use crate::provider::http::{clear, money};
use crate::provider::{MachineStatus, Phase};
use crate::ssh::HostKey;

/// The phase of a machine that the user's program says is on its way.
pub(super) const NOT_UP: &str = "it is not up yet";

/// What `acquire` says of a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Acquired {
    /// Where the agent may be reached, as the program says it.
    pub direct: Vec<SocketAddr>,
    /// Where it is logged in to, as the program says it.
    pub ssh: Option<String>,
    /// The key of that host.
    pub host_key: Option<String>,
    /// The machine's host, which its agent may be reached at where the program does not say better.
    pub host: Option<String>,
}

/// One machine of a `list`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    pub id: MachineId,
    pub request_key: Option<RequestKey>,
    pub name: Option<Label>,
    pub status: MachineStatus,
    pub price_per_hour: Option<MicroDollars>,
    pub direct: Vec<SocketAddr>,
    /// By the clock of whoever has the machines: when it was made, when it ended, and what that clock shows now.
    pub dates: Option<Dates>,
    /// It is no machine any more, and is told of for its dates alone.
    pub over: bool,
}

/// Dates of a machine by one clock, which is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dates {
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub now: Option<Timestamp>,
}

/// What a machine costs now, and how many there are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Priced {
    pub price_per_hour: MicroDollars,
    pub available: Option<u32>,
}

fn object(text: &str, what: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) | Err(_) => {
            let shown = clear(text, 80);
            Err(format!("its last line must be {what} and is `{shown}`"))
        }
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim())),
        Some(_) => Err(format!("`{key}` must be a text")),
    }
}

/// The last line of `acquire`.
pub(super) fn acquired(line: Option<&str>) -> Result<Acquired, String> {
    const WHAT: &str = "a JSON object with `agent`, `ssh` or `url`";
    let line = line.ok_or_else(|| format!("it printed nothing; its last line must be {WHAT}"))?;
    let object = object(line, WHAT)?;
    let (ssh, url) = (text(&object, "ssh")?, text(&object, "url")?);
    let direct = addresses(&object)?;
    if ssh.is_none() && url.is_none() && direct.is_empty() {
        return Err("its last line has neither `agent` nor `ssh` nor `url`".to_owned());
    }
    let host_key = text(&object, "host_key")?;
    if ssh.is_none() && host_key.is_some() {
        return Err("`host_key` means nothing without `ssh`".to_owned());
    }
    if host_key.is_some_and(|key| HostKey::parse(key).is_none()) {
        return Err("`host_key` must be a public key, such as \"ssh-ed25519 AAAA...\"".to_owned());
    }
    let local = |place: &str| place.starts_with('/') || place.starts_with("unix:");
    if ssh.is_some_and(local) || url.is_some_and(local) {
        return Err("a socket of this computer is no machine".to_owned());
    }
    let host = match (ssh, url) {
        (Some(ssh), _) => Some(ssh_host(ssh)),
        (None, Some(url)) => {
            let url = reqwest::Url::parse(url).map_err(|error| format!("`url`: {error}"))?;
            url.host_str().map(str::to_owned)
        }
        (None, None) => None,
    };
    Ok(Acquired {
        direct,
        ssh: ssh.map(str::to_owned),
        host_key: host_key.map(str::to_owned),
        host,
    })
}

/// `user@host`, `host:port` or `ssh://user@host:port`.
fn ssh_host(ssh: &str) -> String {
    let rest = ssh.strip_prefix("ssh://").unwrap_or(ssh);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if let Some((host, _)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host.to_owned();
    }
    match rest.split_once(':') {
        // More than one is an address of IPv6.
        Some((host, port)) if !port.contains(':') => host.to_owned(),
        Some(_) | None => rest.to_owned(),
    }
}

/// `agent`: one address or several.
fn addresses(object: &Map<String, Value>) -> Result<Vec<SocketAddr>, String> {
    let one = |value: &Value| {
        let address = value.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| {
            let shown = clear(&value.to_string(), 60);
            format!("`agent` must be an address with a port, such as \"203.0.113.7:41641\", and is {shown}")
        })
    };
    match object.get("agent") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(several)) => several.iter().take(16).map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Whether `release` has only begun with it.
pub(super) fn is_pending(line: Option<&str>) -> bool {
    let object = line.and_then(|line| serde_json::from_str::<Value>(line).ok());
    object.is_some_and(|object| object.get("pending") == Some(&Value::Bool(true)))
}

/// All that `list` printed.
pub(super) fn listed(stdout: &str) -> Result<Vec<Listed>, String> {
    if stdout.trim().is_empty() {
        return Err("it printed nothing; where there is no machine it must print []".to_owned());
    }
    let all: Vec<Value> = serde_json::from_str(stdout)
        .map_err(|error| format!("it must print one JSON array and nothing else: {error}"))?;
    all.iter().map(listed_one).collect()
}

fn listed_one(value: &Value) -> Result<Listed, String> {
    let shown = || clear(&value.to_string(), 80);
    let object = value
        .as_object()
        .ok_or_else(|| format!("a machine must be a JSON object and is {}", shown()))?;
    let (name, lease) = (text(object, "name")?, text(object, "lease")?);
    let request_key: Option<RequestKey> = name.and_then(|name| name.parse().ok());
    let id = match (&request_key, lease.or(name)) {
        (Some(key), _) => lease_id(key),
        (None, Some(name)) => name
            .parse()
            .map_err(|error| format!("`{}`: {error}", clear(name, 40)))?,
        (None, None) => {
            return Err(format!(
                "a machine has neither `name` nor `lease`: {}",
                shown()
            ));
        }
    };
    let why = text(object, "why")?.unwrap_or("its `list` calls it dead");
    let status = match text(object, "status")?.unwrap_or("running") {
        "running" => MachineStatus::Running,
        "pending" => MachineStatus::Pending(Phase::new(NOT_UP)),
        "ending" => MachineStatus::Ending,
        "dead" => MachineStatus::Dead(clear(why, 200)),
        "ended" => MachineStatus::Dead("it has ended".to_owned()),
        other => {
            let other = clear(other, 40);
            return Err(format!(
                "`status` must be running, pending, ending, dead or ended and is `{other}`"
            ));
        }
    };
    let over = text(object, "status")? == Some("ended");
    let dates = dates(object, over)?;
    let price_per_hour = match object.get("price_per_hour") {
        None | Some(Value::Null) => None,
        Some(price) => Some(dollars(price)?),
    };
    Ok(Listed {
        id,
        request_key,
        name: name.and_then(Label::new),
        status,
        price_per_hour,
        direct: addresses(object)?,
        dates,
        over,
    })
}

/// Two dates by one clock; one alone would have to be held against ours.
fn dates(object: &Map<String, Value>, over: bool) -> Result<Option<Dates>, String> {
    let date = |key: &str| -> Result<Option<Timestamp>, String> {
        let Some(said) = text(object, key)? else {
            return Ok(None);
        };
        let shown = || {
            format!(
                "`{key}` must be a time, such as \"2026-01-02T03:04:05Z\", and is `{}`",
                clear(said, 40)
            )
        };
        said.parse().map(Some).map_err(|_| shown())
    };
    let (created_at, ended_at, now) = (date("created_at")?, date("ended_at")?, date("now")?);
    let Some(created_at) = created_at else {
        return match ended_at.is_some() || over {
            true => Err(
                "what tells `ended_at` or is ended must tell `created_at`, by the same clock"
                    .to_owned(),
            ),
            false => Ok(None),
        };
    };
    if over && ended_at.is_none() {
        return Err("what is ended must tell `ended_at`".to_owned());
    }
    if ended_at.or(now).is_some_and(|to| to < created_at) {
        return Err("`ended_at` and `now` must not be before `created_at`".to_owned());
    }
    Ok(Some(Dates {
        created_at,
        ended_at,
        now,
    }))
}

fn dollars(value: &Value) -> Result<MicroDollars, String> {
    let dollars = value.as_f64();
    let price = match dollars {
        Some(0.0) => Some(MicroDollars::ZERO),
        Some(dollars) => money(dollars),
        None => None,
    };
    price.ok_or_else(|| {
        let shown = clear(&value.to_string(), 40);
        format!("a price must be a number of dollars and is {shown}")
    })
}

/// The last line of `price`: a number, or an object.
pub(super) fn priced(line: Option<&str>) -> Result<Priced, String> {
    let line = line.ok_or("it printed nothing; its last line must be a number of dollars")?;
    let value: Value = serde_json::from_str(line).map_err(|_| {
        format!(
            "its last line must be a number of dollars and is `{}`",
            clear(line, 40)
        )
    })?;
    let Value::Object(object) = &value else {
        return Ok(Priced {
            price_per_hour: dollars(&value)?,
            available: None,
        });
    };
    let price = object.get("price_per_hour").unwrap_or(&Value::Null);
    let available = match object.get("available") {
        None | Some(Value::Null) => None,
        Some(count) => {
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            Some(count.ok_or("`available` must be a whole number")?)
        }
    };
    Ok(Priced {
        price_per_hour: dollars(price)?,
        available,
    })
}

/// The words of `claims`, as JSON. Sizes are in GiB.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claimed {
    os: Option<String>,
    arch: Option<String>,
    cpus: Option<u32>,
    memory: Option<f64>,
    disk: Option<f64>,
    gpu: Option<String>,
    gpus: Option<u32>,
    vram: Option<f64>,
    region: Option<String>,
    tools: Option<Vec<String>>,
}

/// The last line of `facts`, over what is claimed already.
pub(super) fn facts(line: Option<&str>, claimed: &Facts) -> Result<Facts, String> {
    let line = line.ok_or("it printed nothing; its last line must be a JSON object")?;
    let said: Claimed = serde_json::from_str(line).map_err(|error| {
        format!("its last line must be a JSON object in the words of `claims`: {error}")
    })?;
    let size = |said: Option<f64>, claimed: Bytes| said.map_or(Ok(claimed), gib);
    let vram = size(said.vram, Bytes::default())?;
    let gpus = match said.gpu {
        Some(model) => vec![Gpu { model, vram }; said.gpus.unwrap_or(1).min(64) as usize],
        None => claimed.gpus.clone(),
    };
    Ok(Facts {
        os: said.os.unwrap_or_else(|| claimed.os.clone()),
        arch: said.arch.unwrap_or_else(|| claimed.arch.clone()),
        cpus: said.cpus.unwrap_or(claimed.cpus),
        memory: size(said.memory, claimed.memory)?,
        disk: size(said.disk, claimed.disk)?,
        gpus,
        region: said.region.or_else(|| claimed.region.clone()),
        tools: said.tools.unwrap_or_else(|| claimed.tools.clone()),
        ..claimed.clone()
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it was found to be small and not negative"
)]
fn gib(size: f64) -> Result<Bytes, String> {
    if !(0.0..=1_048_576.0).contains(&size) {
        return Err(format!("a size must be a number of GiB and is {size}"));
    }
    Ok(Bytes(((size * 1024.0).round() as u64) << 20))
}
