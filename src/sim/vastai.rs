//! The API of vast.ai over a world: its paths, its words, its odd answers.

mod create;
mod increases;
mod instances;
mod offers;
mod volumes;

use axum::http::Method;
use serde_json::{Value, json};

use super::boot::OWN_KEY;
use super::fault::Fault;
use super::serve::{Reply, Request, Way};
use super::world::World;

pub(super) use offers::stock;

/// Knobs that have no meaning here.
pub(super) const CANNOT: &[(&str, &str)] = &[
    ("list-pages", "its listings always come in pages"),
    (
        "terminate-partial",
        "a release there names no machines in its answer",
    ),
    (
        "terminate-forget",
        "an instance that is ended is always gone at once",
    ),
];

/// Least milliseconds between two requests, and how many may come at once.
const LIMITS: [(&str, u64, usize); 8] = [
    ("search", 6_000, 10),
    ("create", 4_500, 1),
    ("destroy", 3_000, 1),
    ("show", 2_000, 1),
    ("list", 1_000, 1),
    ("change", 1_000, 1),
    ("bid", 5_500, 1),
    ("other", 0, 1),
];

/// Searches are counted by the day, in seconds.
const DAY: f64 = 86_400.0;

/// Milliseconds that a create has to wait for which came too soon.
const TOO_SOON: u64 = 12_000;

/// A refusal in the API's shape.
fn no(status: u16, error: &str, words: &str) -> Reply {
    let msg = format!("error {status}/3467: {words}");
    Reply::json(
        status,
        &json!({ "success": false, "error": error, "msg": msg }),
    )
}

fn yes(body: &Value) -> Reply {
    Reply::json(200, body)
}

/// Which limit a request falls under.
fn endpoint(method: &Method, path: &str) -> &'static str {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (method.as_str(), parts.as_slice()) {
        ("POST", [.., "bundles"]) | ("PUT", [.., "search", "asks"]) => "search",
        ("PUT", [.., "asks", _]) => "create",
        ("DELETE", [.., "instances", _] | [.., "instances"]) => "destroy",
        ("GET", [_, "v1", "instances"] | [_, "v0", "instances"]) => "list",
        (_, [.., "instances", part]) if part.contains("price-increase") => "other",
        ("PUT", [.., "instances", "bid_price", _]) => "bid",
        ("GET", [.., "instances", _]) => "show",
        ("PUT", [.., "instances", _]) => "change",
        _ => "other",
    }
}

/// One answer.
pub(super) fn answer(world: &World, request: &Request) -> Reply {
    let path = request.path.as_str();
    if let (&Method::GET, Some(id)) = (&request.method, path.strip_prefix("/logs/")) {
        return instances::log(world, id);
    }
    if let (&Method::GET, true) = (&request.method, path.ends_with("/gpu_names/unique")) {
        return yes(&json!({ "gpu_names": offers::names(world) }));
    }
    let endpoint = endpoint(&request.method, path);
    let known = request.account.as_deref();
    let known = known.filter(|_| world.faults.fires("auth-revoked").is_none());
    if let Some(id) = known.and_then(|key| key.strip_prefix(OWN_KEY)) {
        return instances::by_its_own_key(world, request, id);
    }
    let Some(account) = known else {
        // The search has a word of its own for it.
        let status = if endpoint == "search" { 404 } else { 401 };
        return no(status, "auth_error", "Invalid user key");
    };
    let account = match world.faults.fires("other-account") {
        Some(_) => "somebody-else",
        None => account,
    };
    if let Some(reply) = limited(world, account, endpoint) {
        return reply;
    }
    route(world, request, account, path)
}

fn busy(fault: &Fault) -> Reply {
    let reply = Reply::text(
        429,
        "text/plain",
        "API requests too frequent endpoint threshold=3.0",
    );
    match fault.text {
        Some(_) => reply.header("retry-after", fault.pause("")),
        None => reply,
    }
}

fn limited(world: &World, account: &str, endpoint: &'static str) -> Option<Reply> {
    let limit = LIMITS.iter().find(|(name, ..)| *name == endpoint);
    let (_, every, burst) = limit.copied().unwrap_or(("other", 0, 1));
    let fires = |knob: &str| world.faults.fires(knob);
    // Searches are counted by the address that they come from, whoever asks, and here all come from one.
    let account = match endpoint {
        "search" => "",
        _ => account,
    };
    let too_many = "API requests too frequent endpoint threshold=3.0";
    let passes = world.passes(account, endpoint, every, burst);
    if !passes && endpoint == "create" {
        world.punish(account, endpoint, (every, TOO_SOON));
    }
    if !passes || fires("rate-429-plain").is_some() {
        return Some(Reply::text(429, "text/plain", too_many));
    }
    if endpoint == "create"
        && let Some(fault) = fires("create-429")
    {
        return Some(busy(&fault));
    }
    if let Some(fault) = fires("rate-429-after") {
        let wish = fault.pause("7");
        let reply = no(429, "rate_limit_exceeded", too_many);
        return Some(reply.header("retry-after", wish));
    }
    if endpoint == "search" && fires("rate-429-daily").is_some() {
        let reply = no(
            429,
            "search_quota_exceeded",
            "daily search quota is used up",
        );
        let midnight = (world.clock.epoch(world.clock.now()) / DAY).floor() * DAY + DAY;
        return Some(reply.header("x-ratelimit-reset", format!("{midnight:.0}")));
    }
    None
}

fn route(world: &World, request: &Request, account: &str, path: &str) -> Reply {
    let parts: Vec<&str> = path.trim_start_matches("/api/").split('/').collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("POST", ["v0", "bundles"]) => offers::search(world, &request.body),
        ("PUT", ["v0", "search", "asks"]) => offers::search(world, &request.body["q"]),
        ("PUT", ["v0", "asks", id]) => create::create(world, account, id, &request.body),
        ("GET", ["v1", "instances"]) => instances::list(world, account, &request.query),
        ("GET", ["v0", "instances"]) => {
            no(200, "deprecated_endpoint", "use /api/v1/instances/ instead")
        }
        ("GET", ["v0", "instances", "pending-price-increases"]) => increases::list(world, account),
        ("GET", ["v0", "instances", id]) => instances::show(world, account, id),
        ("POST", ["v0", "instances", id, "ssh"]) => {
            instances::attach(world, account, id, &request.body)
        }
        ("DELETE", ["v0", "instances", id]) => instances::destroy(world, account, id),
        ("PUT", ["v0", "instances", "request_logs", id]) => yes(
            &json!({ "success": true, "result_url": format!("http://{}/logs/{id}", request.host) }),
        ),
        ("PUT", ["v0", "instances", "accept-price-increase"]) => {
            increases::decide(world, account, &request.body, true)
        }
        ("PUT", ["v0", "instances", "reject-price-increase"]) => {
            increases::decide(world, account, &request.body, false)
        }
        ("PUT", ["v0", "instances", "reboot", id]) => instances::reboot(world, account, id),
        ("PUT", ["v0", "instances", "bid_price", id]) => {
            instances::rebid(world, account, id, &request.body)
        }
        ("PUT", ["v0", "instances", "recycle", _]) => {
            no(501, "not_implemented", "recycling is not played here")
        }
        ("PUT", ["v0", "instances", id]) => instances::change(world, account, id, &request.body),
        ("GET", ["v0", "charges"]) => instances::charges(world, account, &request.query),
        ("GET", ["v0", "users", "current"]) => yes(&user(world, account)),
        ("GET", ["v0", "volumes"]) => volumes::list(world, account),
        ("POST", ["v0", "volumes", "search"]) => volumes::search(world),
        ("PUT", ["v0", "volumes"]) => volumes::create(world, account, &request.body),
        ("DELETE", ["v0", "volumes"]) => volumes::remove(world, account, &request.body),
        ("GET", ["v0", "ssh"]) => yes(&json!([])),
        ("POST", ["v0", "ssh"]) if world.faults.fires_as("key-limit", "team").is_some() => {
            let words = "Team accounts may not have SSH keys.";
            no(400, "team_ssh_keys_not_supported", words)
        }
        _ => no(404, "not_found", "there is no such endpoint here"),
    }
}

/// The number of an account: the same for the same key.
fn number(account: &str) -> u64 {
    let digest = blake3::hash(account.as_bytes());
    u64::from(u32::from_le_bytes([
        digest.as_bytes()[0],
        digest.as_bytes()[1],
        digest.as_bytes()[2],
        0,
    ]))
}

fn user(world: &World, account: &str) -> Value {
    let spent = dollars(world.bill().0);
    json!({
        "id": number(account), "username": "rehearsal", "email": "rehearsal@example.com",
        "balance": 100.0 - spent, "credit": 100.0 - spent, "ssh_key": "", "sid": "1",
    })
}

#[expect(clippy::cast_precision_loss, reason = "amounts here are small")]
fn dollars(micro: u64) -> f64 {
    micro as f64 / 1e6
}

/// Hurt on its way.
fn hurt(reply: Reply, way: Way) -> Reply {
    reply.on(way)
}
