//! The launch: what it refuses, what it makes, and all that can go wrong with its answer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::super::access::Access;
use super::super::machine::Offer;
use super::super::serve::{Reply, Way};
use super::super::world::{Wish, World};
use super::{account, id, invalid, no, oops, refused, types, yes};
use crate::ambient::random;

/// Where an agent that came by cloud-init listens.
const AGENT_PORT: u16 = 41641;

/// As whom one logs in, and where: port 22 of this computer is somebody else's.
const USER: &str = "ubuntu";
const SSH_PORT: u16 = 2222;

/// The file of the user data that has the agent's package.
const PACKAGE: &str = "/etc/stageline/boot.env";

/// For so long an instance is `terminating`, by the simulator's clock.
const TERMINATING_MS: u64 = 8_000;

/// Limits of the fields.
const NAME_MAX: usize = 64;
const USER_DATA_MAX: usize = 1 << 20;
const TAG_KEY_MAX: usize = 55;
const TAG_VALUE_MAX: usize = 128;

pub(super) fn launch(world: &World, account: &str, body: &Value) -> Reply {
    if let Some(reply) = unlucky(world) {
        return reply;
    }
    if let Some(fault) = world.faults.fires("price-rises") {
        world.lock().price_factor *= fault.factor.unwrap_or(1.1);
    }
    if let Some(reply) = malformed(world, account, body) {
        return reply;
    }
    let text = |field: &str| body.get(field).and_then(Value::as_str).unwrap_or("");
    let (kind, region) = (text("instance_type_name"), text("region_name"));
    if types::region(region).is_none() {
        return invalid(&format!("Invalid region: {region}"));
    }
    let offer = {
        let inner = world.lock();
        let mut offers = inner.offers.values();
        let found = offers.find(|offer| {
            let facts = &offer.facts;
            types::name(facts) == kind && facts.region.as_deref() == Some(region)
        });
        found.map(|offer| Offer {
            price: types::price(offer, inner.price_factor),
            ..offer.clone()
        })
    };
    let Some(offer) = offer else {
        let message = format!("Specified instance type {kind} does not exist.");
        return no(400, "global/object-does-not-exist", &message);
    };
    let mounts = match account::mounts(world, account, region, body) {
        Ok(mounts) => mounts,
        Err(reply) => return reply,
    };
    let gone = world.faults.fires("offer-gone").is_some();
    if let (true, Some(offer)) = (gone, world.lock().offers.get_mut(&offer.id)) {
        offer.taken = true;
    }
    if gone || offer.taken {
        return sold_out();
    }
    let wish = Wish {
        mounts,
        ..wish(world, account, &offer, body)
    };
    if world.snatch(&offer, &wish) {
        return sold_out();
    }
    made(world, offer, wish)
}

fn sold_out() -> Reply {
    no(
        400,
        "instance-operations/launch/insufficient-capacity",
        "Not enough capacity to fulfill launch request.",
    )
}

fn unlucky(world: &World) -> Option<Reply> {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("quota").is_some() {
        let message = "Quota exceeded.";
        return Some(no(400, "global/quota-exceeded", message));
    }
    if let Some(fault) = fires("money") {
        let (code, message) = match fault.says("inactive") {
            true => ("global/account-inactive", "Your account is inactive."),
            false => ("global/invalid-address", "Your billing address is invalid."),
        };
        let suggestion = "Make sure you have a valid payment method.";
        return Some(refused(code, message, suggestion));
    }
    if fires("capacity").is_some() {
        return Some(sold_out());
    }
    if fires("bad-request").is_some() {
        return Some(invalid("Invalid request data."));
    }
    None
}

/// What the provider does not take.
fn malformed(world: &World, account: &str, body: &Value) -> Option<Reply> {
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    if body.get("quantity").and_then(Value::as_u64).unwrap_or(1) != 1 {
        return Some(invalid("Too many instances."));
    }
    let keys = body.get("ssh_key_names").and_then(Value::as_array);
    let keys: Vec<&str> = keys
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let [key] = keys.as_slice() else {
        return Some(invalid("Exactly one SSH key must be specified."));
    };
    if !account::has_key(world, account, key) {
        let message = format!("Specified SSH key {key} does not exist.");
        return Some(no(400, "global/object-does-not-exist", &message));
    }
    if text("name").is_some_and(|name| name.chars().count() > NAME_MAX) {
        return Some(invalid("Name must be 64 characters or fewer."));
    }
    if text("user_data").is_some_and(|data| data.len() > USER_DATA_MAX) {
        return Some(invalid("User data must be 1 MB or less."));
    }
    let tags = body.get("tags").and_then(Value::as_array);
    let misshapen = |tag: &Value| {
        let key = tag["key"].as_str().unwrap_or("");
        let begins = key.starts_with(|c: char| c.is_ascii_lowercase());
        let plain = key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_:".contains(&b));
        let value = tag["value"].as_str();
        let fits = value.is_some_and(|value| value.len() <= TAG_VALUE_MAX);
        !begins || !plain || key.len() > TAG_KEY_MAX || key.starts_with("lambda-ai-") || !fits
    };
    if tags.into_iter().flatten().any(misshapen) {
        return Some(invalid("Invalid tag."));
    }
    let family = body.get("image").and_then(|image| image["family"].as_str());
    if family.is_some_and(|family| family != types::FAMILY) {
        let message = "Specified image family does not exist.";
        return Some(no(400, "global/object-does-not-exist", message));
    }
    None
}

fn wish(world: &World, account: &str, offer: &Offer, body: &Value) -> Wish {
    let text = |field: &str| {
        let text = body.get(field).and_then(Value::as_str);
        text.unwrap_or("").to_owned()
    };
    let user_data = text("user_data");
    let [a, b, c] = random();
    // Not the network's own address, and not its last.
    let address = Ipv4Addr::new(127, a, b, c.clamp(2, 254));
    let mut more = json!({ "ssh_key_names": body["ssh_key_names"], "tags": body.get("tags") });
    for field in ["file_system_names", "file_system_mounts", "hostname"] {
        more[field] = body.get(field).cloned().unwrap_or(Value::Null);
    }
    let access = access(world, account, body, &user_data);
    Wish {
        access: Some(access),
        account: account.to_owned(),
        label: text("name"),
        image: types::FAMILY.to_owned(),
        disk_gib: offer.facts.disk.0 >> 30,
        env: package(&user_data),
        onstart: user_data,
        bills_booting: true,
        ends_within: TERMINATING_MS,
        listen: Some(SocketAddr::from((address, AGENT_PORT))),
        more,
        ..Wish::default()
    }
}

/// Who gets in: by the account's key that the launch names, and by those of the user data.
fn access(world: &World, account: &str, body: &Value, user_data: &str) -> Access {
    let names = body["ssh_key_names"].as_array().into_iter().flatten();
    let named = names.filter_map(|name| account::public_key(world, account, name.as_str()?));
    let config = cloud_config(user_data);
    let more = config["ssh_authorized_keys"].as_array();
    let more = more.into_iter().flatten().filter_map(Value::as_str);
    let keys = named.chain(more.map(str::to_owned));
    Access {
        host_key: config["ssh_keys"]["ed25519_private"]
            .as_str()
            .map(str::to_owned),
        ..Access::of(USER, SSH_PORT, keys)
    }
}

/// User data of ours, which is JSON.
fn cloud_config(user_data: &str) -> Value {
    let config = user_data.strip_prefix("#cloud-config\n");
    config
        .and_then(|config| serde_json::from_str(config).ok())
        .unwrap_or(Value::Null)
}

/// The variables that user data of ours hands to the agent. Other user data is not run.
fn package(user_data: &str) -> BTreeMap<String, String> {
    let config = cloud_config(user_data);
    let files = config["write_files"].as_array();
    let mut files = files.into_iter().flatten();
    let file = files.find(|file| file["path"] == PACKAGE);
    let content = file.and_then(|file| file["content"].as_str()).unwrap_or("");
    let lines = content.lines().filter_map(|line| line.split_once('='));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Makes it, or not, and says so, or not.
fn made(world: &World, offer: Offer, wish: Wish) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("create-500-no-commit").is_some() {
        return oops();
    }
    if let Some(fault) = fires("create-late-commit") {
        let at = world.clock.now() + fault.millis(120);
        world.lock().late.push((at, offer, wish));
        return oops();
    }
    if let Some(fault) = fires("create-wrong-count") {
        let first = world.make(offer.clone(), wish.clone());
        if fault.says("none") {
            return yes(&json!({ "instance_ids": [] }));
        }
        let second = world.make(offer, wish);
        return yes(&json!({ "instance_ids": [id(first), id(second)] }));
    }
    let number = world.make(offer, wish);
    let reply = yes(&json!({ "instance_ids": [id(number)] }));
    if fires("create-500-after-commit").is_some() {
        return oops();
    }
    if fires("create-timeout-after-commit").is_some() {
        return reply.on(Way::Never);
    }
    if fires("create-cut").is_some() {
        return reply.on(Way::Cut);
    }
    reply
}
