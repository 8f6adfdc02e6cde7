//! The REST API v2 of RunPod over a world: its paths, its words, its odd answers; and as much of its GraphQL as its own SDK speaks.
//!
//! What always holds: what the API document does not allow is refused with 422, as the document says; requests of an account are counted
//! together, and each answer says how many are left. What a real pod does not have, an address of its agent's UDP port, is told
//! beside the ports that were asked for, so that a rehearsal needs no relay. Keys `NAME.anything` are keys of one account `NAME`;
//! `only-NUMBER` is the key that a pod is handed for itself.

mod account;
mod billing;
mod catalogue;
mod cpus;
mod create;
mod graphql;
mod pods;
mod registries;
mod schema;
mod volumes;

use serde_json::{Value, json};

use super::boot::OWN_KEY;
use super::fault::Fault;
use super::serve::{Reply, Request};
use super::world::World;

pub(super) use catalogue::stock;

/// Knobs that have no meaning here.
pub(super) const CANNOT: &[(&str, &str)] = &[
    (
        "create-200-false-with-id",
        "there are no bids, and a refusal has a status of its own",
    ),
    ("bid-stays", "there are no bids"),
    ("price-asked", "prices are the provider's, who asks nobody"),
    ("traffic", "traffic costs nothing there"),
    (
        "list-page-lost",
        "its list of pods is one answer, without pages",
    ),
    (
        "list-pages",
        "its list of pods is one answer, without pages",
    ),
    (
        "other-account",
        "a key is of one account for ever; take another key instead",
    ),
    (
        "terminate-partial",
        "a release is answered without a body, so no id can be missing",
    ),
    (
        "terminate-forget",
        "a pod that is ended is always gone at once",
    ),
    (
        "key-limit",
        "no key is registered for a pod: it goes into its environment",
    ),
];

/// So many requests may come in a minute.
const IN_A_MINUTE: usize = 60;

/// And in an hour, and in a day.
const IN_AN_HOUR: u64 = 3_000;
const IN_A_DAY: u64 = 50_000;

/// What ids of pods begin with; the number of the machine follows.
const ID_HEAD: &str = "7h9k2m";

/// An id: letters and digits.
pub(super) fn id(number: u64) -> String {
    format!("{ID_HEAD}{number:x}")
}

fn number(id: &str) -> Option<u64> {
    u64::from_str_radix(id.strip_prefix(ID_HEAD)?, 16).ok()
}

/// A refusal in the API's shape.
fn no(status: u16, detail: &str) -> Reply {
    problem(status, detail, &[])
}

fn invalid(errors: &[String]) -> Reply {
    problem(422, "Request validation failed.", errors)
}

fn problem(status: u16, detail: &str, errors: &[String]) -> Reply {
    let title = match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        _ => "Internal Server Error",
    };
    let mut body = json!({ "title": title, "status": status, "detail": detail });
    if !errors.is_empty() {
        body["errors"] = json!(errors);
    }
    Reply::text(status, "application/problem+json", &body.to_string())
}

pub(super) fn oops() -> Reply {
    no(500, "internal error")
}

fn yes(body: &Value) -> Reply {
    Reply::json(200, body)
}

/// Done, and not a word more.
fn done() -> Reply {
    Reply {
        headers: Vec::new(),
        ..Reply::text(204, "", "")
    }
}

fn unknown(what: &str) -> Reply {
    no(404, &format!("{what} not found"))
}

/// One answer.
pub(super) fn answer(world: &World, request: &Request) -> Reply {
    let key = request.account.as_deref();
    let revoked = key.is_some() && world.faults.fires("auth-revoked").is_some();
    let Some(key) = key.filter(|_| !revoked) else {
        let why = if revoked {
            "invalid token"
        } else {
            "missing bearer token"
        };
        return no(401, why);
    };
    if let Some(own) = key.strip_prefix(OWN_KEY) {
        return pods::by_its_own_key(world, request, own);
    }
    let account = key.split('.').next().unwrap_or(key);
    // Before it is counted: the answer says what is left after it.
    let limited = limited(world, account, endpoint(request));
    let reply = limited.unwrap_or_else(|| route(world, request, account));
    let (left, reset) = world.left(account, EVERYTHING, 1_000, IN_A_MINUTE);
    let sent = world.lock().requests.get(EVERYTHING).copied().unwrap_or(0);
    let (hour, day) = (
        IN_AN_HOUR.saturating_sub(sent).max(1),
        IN_A_DAY.saturating_sub(sent).max(1),
    );
    let windows =
        format!("\"minute\";r={left};t={reset}, \"hour\";r={hour};t=1800, \"day\";r={day};t=43200");
    let policy = "\"minute\";q=60;w=60, \"hour\";q=3000;w=3600, \"day\";q=50000;w=86400";
    reply
        .header("RateLimit", windows)
        .header("RateLimit-Policy", policy)
}

/// By what all requests of an account are counted.
const EVERYTHING: &str = "all";

/// What a request is, for the count of each kind.
fn endpoint(request: &Request) -> &'static str {
    let parts: Vec<&str> = request.path.trim_start_matches("/v2/").split('/').collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["catalog", ..]) => "search",
        ("POST", ["pods"]) => "create",
        ("DELETE", ["pods", _]) => "destroy",
        ("GET", ["pods"]) => "list",
        ("GET", ["pods", _]) => "show",
        _ => "other",
    }
}

fn busy(fault: &Fault) -> Reply {
    let reply = Reply::text(429, "text/plain", "Too many requests");
    match fault.text {
        Some(_) => reply.header("retry-after", fault.pause("")),
        None => reply,
    }
}

fn limited(world: &World, account: &str, endpoint: &'static str) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    let in_time = world.passes(account, EVERYTHING, 1_000, IN_A_MINUTE);
    world.passes(account, endpoint, 0, 1);
    if endpoint == "create"
        && let Some(fault) = fires("create-429")
    {
        return Some(busy(&fault));
    }
    if fires("rate-429-plain").is_some() {
        return Some(Reply::text(429, "text/plain", "Too many requests"));
    }
    if fires("rate-429-daily").is_some() {
        let reply = no(429, "rate limit exceeded for the day window");
        return Some(reply.header("Retry-After", "43200"));
    }
    let asked = fires("rate-429-after");
    if in_time && asked.is_none() {
        return None;
    }
    let (_, reset) = world.left(account, EVERYTHING, 1_000, IN_A_MINUTE);
    let reset = reset.max(1).to_string();
    let wish = asked.map_or_else(|| reset.clone(), |fault| fault.pause(&reset));
    Some(no(429, "rate limit exceeded for the minute window").header("Retry-After", wish))
}

/// Paths and the methods that each has.
const PATHS: [(&str, &str); 16] = [
    ("catalog/cpus/{}", "GET"),
    ("network-volumes", "GET, POST"),
    ("network-volumes/{}", "GET, DELETE"),
    ("registries", "GET, POST"),
    ("registries/{}", "GET, DELETE"),
    ("pods", "GET, POST"),
    ("pods/{}", "GET, PATCH, DELETE"),
    ("pods/{}/logs", "GET"),
    ("pods/{}/action", "POST"),
    ("account/ssh-keys", "GET, PUT"),
    ("catalog/gpus", "GET"),
    ("catalog/gpus/{}", "GET"),
    ("catalog/cpus", "GET"),
    ("catalog/datacenters", "GET"),
    ("catalog/datacenters/{}", "GET"),
    ("billing/pods", "GET"),
];

fn route(world: &World, request: &Request, account: &str) -> Reply {
    if request.path == "/graphql" {
        return graphql::answer(world, account, &request.body);
    }
    let path = request.path.strip_prefix("/v2/").unwrap_or_default();
    let parts: Vec<String> = path.split('/').map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (query, body) = (&request.query, &request.body);
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["pods"]) => pods::list(world, account, query),
        ("POST", ["pods"]) => create::create(world, account, body),
        ("GET", ["pods", id]) => pods::show(world, account, id),
        ("PATCH", ["pods", id]) => pods::change(world, account, id, body),
        ("DELETE", ["pods", id]) => pods::end(world, account, id),
        ("GET", ["pods", id, "logs"]) => pods::logs(world, account, id, query),
        ("POST", ["pods", id, "action"]) => pods::act(world, account, id, body),
        ("GET", ["registries"]) => registries::list(world, account),
        ("POST", ["registries"]) => registries::create(world, account, body),
        ("GET", ["registries", id]) => registries::show(world, account, id),
        ("DELETE", ["registries", id]) => registries::remove(world, account, id),
        ("GET", ["network-volumes"]) => volumes::list(world, account),
        ("POST", ["network-volumes"]) => volumes::create(world, account, body),
        ("GET", ["network-volumes", id]) => volumes::show(world, account, id),
        ("DELETE", ["network-volumes", id]) => volumes::remove(world, account, id),
        ("GET", ["account", "ssh-keys"]) => account::keys(world, account),
        ("PUT", ["account", "ssh-keys"]) => account::set_keys(world, account, body),
        ("GET", ["catalog", "gpus"]) => catalogue::types(world, query),
        ("GET", ["catalog", "gpus", id]) => catalogue::show(world, id, query),
        ("GET", ["catalog", "cpus"]) => cpus::list(world, query),
        ("GET", ["catalog", "cpus", id]) => cpus::show(world, id, query),
        ("GET", ["catalog", "datacenters"]) => catalogue::places(world, query),
        ("GET", ["catalog", "datacenters", id]) => catalogue::place(world, id, query),
        ("GET", ["billing", "pods"]) => billing::bill(world, account, query),
        (_, parts) => misplaced(parts),
    }
}

/// No such path, or no such method of it.
fn misplaced(parts: &[&str]) -> Reply {
    let same = |path: &str| {
        let path: Vec<&str> = path.split('/').collect();
        path.len() == parts.len() && path.iter().zip(parts).all(|(a, b)| *a == "{}" || a == b)
    };
    match PATHS.iter().find(|(path, _)| same(path)) {
        Some((_, methods)) => {
            no(405, "The requested method is not allowed for this path.").header("Allow", *methods)
        }
        None => unknown("resource"),
    }
}

/// A segment of a path as it was meant.
fn decoded(segment: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = code.and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[expect(clippy::cast_precision_loss, reason = "amounts here are small")]
fn dollars(micro: u64) -> f64 {
    micro as f64 / 1e6
}
