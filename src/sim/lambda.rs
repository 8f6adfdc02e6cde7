//! The API of Lambda Cloud over a world: its paths, its envelopes, its codes.
//!
//! What always holds: every success is `data`, every failure `error` with a code; launches and all other requests keep the
//! provider's distances; a machine has a loopback address of its own, since there are no mapped ports. Keys `NAME.anything` are keys
//! of one account `NAME`. It refuses what the provider refuses: two SSH keys, a quantity, a name or user data that is too long.

mod account;
mod instances;
mod launch;
mod types;

use serde_json::{Value, json};

use super::fault::Fault;
use super::serve::{Reply, Request};
use super::world::World;

pub(super) use types::stock;

/// Knobs that have no meaning here.
pub(super) const CANNOT: &[(&str, &str)] = &[
    (
        "create-200-false-with-id",
        "there are no bids, and a refusal has a status of its own",
    ),
    ("bid-stays", "there are no bids"),
    ("price-asked", "prices are the provider's, who asks nobody"),
    ("traffic", "traffic costs nothing there"),
    ("rate-429-daily", "no request is counted by the day"),
    ("no-own-key", "no machine there is handed a key of its own"),
    (
        "offer-breaks-filter",
        "its list of types takes no filter that it could break",
    ),
    (
        "other-account",
        "a key is of one account for ever; take another key instead",
    ),
];

/// Least milliseconds between two requests of an account, whatever they are.
const EVERY: u64 = 1_000;

/// Least milliseconds between two launches.
const LAUNCH_EVERY: u64 = 12_000;

/// What all ids begin with; the number of the machine follows.
const ID_HEAD: &str = "5f0c1d2e3a4b5c6d7e8f9a0b";

/// An id: 32 hexadecimal digits.
pub(super) fn id(number: u64) -> String {
    format!("{ID_HEAD}{number:08x}")
}

fn number(id: &str) -> Option<u64> {
    u64::from_str_radix(id.strip_prefix(ID_HEAD)?, 16).ok()
}

/// A refusal in the API's shape.
fn no(status: u16, code: &str, message: &str) -> Reply {
    Reply::json(
        status,
        &json!({ "error": { "code": code, "message": message, "request_id": "5f0c1d2e3a4b5c6d" } }),
    )
}

fn refused(code: &str, message: &str, suggestion: &str) -> Reply {
    let error = json!({ "code": code, "message": message, "suggestion": suggestion });
    Reply::json(403, &json!({ "error": error }))
}

fn yes(data: &Value) -> Reply {
    Reply::json(200, &json!({ "data": data }))
}

pub(super) fn oops() -> Reply {
    no(
        500,
        "global/internal-error",
        "An unexpected error occurred.",
    )
}

fn unknown(what: &str) -> Reply {
    let message = format!("Specified {what} does not exist.");
    no(404, "global/object-does-not-exist", &message)
}

fn invalid(message: &str) -> Reply {
    no(400, "global/invalid-parameters", message)
}

/// One answer.
pub(super) fn answer(world: &World, request: &Request) -> Reply {
    let key = request.account.as_deref();
    let revoked = key.is_some() && world.faults.fires("auth-revoked").is_some();
    let Some(key) = key.filter(|_| !revoked) else {
        let message = "API key was invalid, expired, or deleted.";
        return no(401, "global/invalid-api-key", message);
    };
    let account = key.split('.').next().unwrap_or(key);
    let Some(path) = request.path.strip_prefix("/api/v1/") else {
        return unknown("endpoint");
    };
    if let Some(reply) = limited(world, account, endpoint(request, path)) {
        return reply;
    }
    route(world, request, account, path)
}

/// Which limit a request falls under, and by what it is counted.
fn endpoint(request: &Request, path: &str) -> &'static str {
    match (request.method.as_str(), path) {
        ("POST", "instance-operations/launch") => "create",
        ("POST", "instance-operations/terminate") => "destroy",
        ("GET", "instances") => "list",
        ("GET", "instance-types") => "search",
        _ => "other",
    }
}

/// The pace of the whole account comes first.
fn busy(fault: &Fault) -> Reply {
    let reply = Reply::text(429, "text/plain", "Too many requests");
    match fault.text {
        Some(_) => reply.header("retry-after", fault.pause("")),
        None => reply,
    }
}

fn limited(world: &World, account: &str, endpoint: &'static str) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    let every = if endpoint == "create" {
        LAUNCH_EVERY
    } else {
        0
    };
    let in_time =
        world.passes(account, "all", EVERY, 1) && world.passes(account, endpoint, every, 1);
    if endpoint == "create"
        && let Some(fault) = fires("create-429")
    {
        return Some(busy(&fault));
    }
    if fires("rate-429-plain").is_some() {
        return Some(Reply::text(429, "text/plain", "Too many requests"));
    }
    let asked = fires("rate-429-after");
    if in_time && asked.is_none() {
        return None;
    }
    let reply = no(429, "global/quota-exceeded", "Too many requests.");
    Some(match asked {
        Some(fault) => reply.header("retry-after", fault.pause("7")),
        None => reply,
    })
}

fn route(world: &World, request: &Request, account: &str, path: &str) -> Reply {
    let parts: Vec<&str> = path.split('/').collect();
    let body = &request.body;
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["instance-types"]) => types::list(world),
        ("GET", ["images"]) => types::images(),
        ("GET", ["instances"]) => instances::list(world, account, &request.query),
        ("GET", ["instances", id]) => instances::show(world, account, id),
        ("POST", ["instances", id]) => instances::rename(world, account, id, body),
        ("POST", ["instance-operations", "launch"]) => launch::launch(world, account, body),
        ("POST", ["instance-operations", "terminate"]) => {
            instances::terminate(world, account, body)
        }
        ("POST", ["instance-operations", "restart"]) => instances::restart(world, account, body),
        ("GET", ["audit-events"]) => yes(&json!({ "events": [], "page_token": null })),
        (method, parts) => account::answer(world, method, parts, account, body),
    }
}

/// Hundredths of a dollar.
fn cents(micro_dollars: u64) -> u64 {
    (micro_dollars + 5_000) / 10_000
}
