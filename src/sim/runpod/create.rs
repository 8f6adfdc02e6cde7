//! The create: what it refuses, what it makes, and all that can go wrong with its answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stageline_core::unit::Bytes;

use super::super::access::Access;
use super::super::machine::Offer;
use super::super::registry;
use super::super::serve::{Reply, Way};
use super::super::world::{Wish, World};
use super::catalogue::{self, numbers};
use super::schema::{self, Rule, faults};
use super::{cpus, invalid, no, oops, pods, registries, unknown, volumes};

/// What is taken when no disk is asked for, in GB.
const DISK: u64 = 20;

pub(super) const NO_CAPACITY: &str = "There are no longer any instances available with the requested specifications. Please refresh and try again.";

/// The API document's fields, and those that came after it: `entrypoint`, `cmd`.
const FIELDS: &[Rule] = &[
    ("name", schema::some_text),
    ("image", schema::text),
    ("args", schema::text),
    ("disk", schema::positive),
    ("env", schema::pairs),
    ("ports", schema::texts),
    ("registry", schema::text_or_null),
    ("cloud", schema::cloud),
    ("cpu", |cpu| {
        faults(cpu, CPU, &["id", "vcpuCount"]).is_empty()
    }),
    ("gpu", |gpu| faults(gpu, GPU, &["id"]).is_empty()),
    ("dataCenterIds", schema::texts),
    ("globalNetworking", schema::flag),
    ("mounts", schema::mounts),
    ("startJupyter", schema::flag),
    ("startSsh", schema::flag),
    ("templateId", schema::some_text),
    ("entrypoint", schema::texts),
    ("cmd", schema::texts),
];

/// The same, with `minRamPerGpu` and `minVcpuCountPerGpu` after it.
const GPU: &[Rule] = &[
    ("id", schema::text),
    ("count", schema::positive),
    ("allowedCudaVersions", schema::versions),
    ("minCudaVersion", schema::version),
    ("minRamPerGpu", schema::positive),
    ("minVcpuCountPerGpu", schema::positive),
];

const CPU: &[Rule] = &[
    ("id", schema::some_text),
    ("vcpuCount", |count| {
        schema::positive(count) && count.as_f64() >= Some(2.0)
    }),
];

pub(super) fn create(world: &World, account: &str, body: &Value) -> Reply {
    if let Some(reply) = unlucky(world) {
        return reply;
    }
    if let Some(fault) = world.faults.fires("price-rises") {
        world.lock().price_factor *= fault.factor.unwrap_or(1.1);
    }
    let mut errors = faults(body, FIELDS, &["name"]);
    if body.get("templateId").is_none() && body.get("image").is_none() {
        errors.push("$: missing property 'image'".to_owned());
    }
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let (mounts, bound) = match volumes::of(world, account, body) {
        Ok(found) => found,
        Err(reply) => return reply,
    };
    let offer = match placed(world, body, bound.as_deref()) {
        Ok(offer) => offer,
        Err(reply) => return reply,
    };
    if world.faults.fires("offer-gone").is_some() {
        if let Some(offer) = world.lock().offers.get_mut(&offer.id) {
            offer.taken = true;
        }
        return no(400, NO_CAPACITY);
    }
    let registry = body.get("registry").and_then(Value::as_str);
    let login = registry.map(|id| registries::login(world, account, id));
    if matches!(login, Some(None)) {
        return no(400, "container registry auth not found");
    }
    let login = login.flatten();
    let login = login
        .as_ref()
        .map(|(user, password)| (user.as_str(), password.as_str()));
    let image = body
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let wish = Wish {
        denied: !registry::may_pull(image, login),
        mounts,
        ..wish(account, body)
    };
    if world.snatch(&offer, &wish) {
        return no(400, NO_CAPACITY);
    }
    made(world, offer, wish)
}

fn unlucky(world: &World) -> Option<Reply> {
    let refusals = [
        (
            "quota",
            400,
            "You have reached the maximum number of pods for your account.",
        ),
        (
            "money",
            402,
            "Your account balance is too low to deploy this pod.",
        ),
        ("capacity", 400, NO_CAPACITY),
    ];
    let mut refusals = refusals.iter();
    if let Some((_, status, detail)) =
        refusals.find(|(knob, ..)| world.faults.fires(knob).is_some())
    {
        return Some(no(*status, detail));
    }
    let bad = world.faults.fires("bad-request")?;
    Some(match bad.text.as_deref() {
        // The API does not say what is wrong, or whether another place would do.
        Some("400") => no(400, "The pod could not be created."),
        Some("403") => no(403, "This account has no access to that pool."),
        Some(_) | None => invalid(&["$: additional properties 'bogus' not allowed".to_owned()]),
    })
}

fn strings(body: &Value, field: &str) -> Vec<String> {
    let all = body.get(field).and_then(Value::as_array);
    let all = all.into_iter().flatten().filter_map(Value::as_str);
    all.map(str::to_owned).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates"
)]
fn whole(body: &Value, field: &str) -> Option<u64> {
    body.get(field)?.as_f64().map(|number| number as u64)
}

/// Where the pod goes: one GPU type per call, no other instead.
fn placed(world: &World, body: &Value, bound: Option<&str>) -> Result<Offer, Reply> {
    let rule = |detail: &str| Err(no(400, detail));
    let (gpu, cpu) = (body.get("gpu"), body.get("cpu"));
    if gpu.is_some() == cpu.is_some() {
        return rule("exactly one of gpu or cpu must be set");
    }
    let mounts = body.get("mounts").and_then(Value::as_object);
    if mounts.is_some_and(|mounts| mounts.len() > 1) {
        return rule("mounts.persistent and mounts.network are mutually exclusive");
    }
    if body.get("templateId").is_some() {
        return Err(unknown("template"));
    }
    let mut places = strings(body, "dataCenterIds");
    if let Some(bound) = bound {
        if !places.is_empty() && !places.iter().any(|place| place == bound) {
            return rule("network volume not found in this data center");
        }
        places = vec![bound.to_owned()];
    }
    if let Some(cpu) = cpu {
        return cpus::placed(world, cpu, body, &places);
    }
    let gpu = gpu.unwrap_or(&Value::Null);
    let Some(model) = gpu["id"].as_str().and_then(catalogue::find) else {
        return Err(unknown("gpu type"));
    };
    let count = usize::try_from(whole(gpu, "count").unwrap_or(1)).unwrap_or(usize::MAX);
    let community = body.get("cloud").and_then(Value::as_str) == Some("COMMUNITY");
    let most = if community {
        model.most.1
    } else {
        model.most.0
    };
    if count > most {
        return rule(&format!("at most {most} of this GPU fit into one pod"));
    }
    let versions = strings(gpu, "allowedCudaVersions");
    let least = gpu.get("minCudaVersion").and_then(Value::as_str);
    if !versions.is_empty() && least.is_some() {
        return rule("allowedCudaVersions and minCudaVersion are mutually exclusive");
    }
    let now = world.clock.now();
    let inner = world.lock();
    let fits = |offer: &&Offer| {
        let facts = &offer.facts;
        let cuda = facts.cuda.as_deref();
        let place = facts.region.as_ref();
        facts.gpus[0].model == model.id
            && catalogue::is_secure(offer) != community
            && (places.is_empty() || place.is_none_or(|place| places.contains(place)))
            && (bound.is_none() || place.is_some())
            && (versions.is_empty()
                || cuda.is_some_and(|cuda| versions.iter().any(|one| one == cuda)))
            && least.is_none_or(|least| cuda.is_some_and(|cuda| numbers(cuda) >= numbers(least)))
            && facts.memory >= Bytes::gib(whole(gpu, "minRamPerGpu").unwrap_or(0))
            && u64::from(facts.cpus) >= whole(gpu, "minVcpuCountPerGpu").unwrap_or(0)
            && catalogue::free(world.seed(), &inner, offer, now) >= count
    };
    let Some(offer) = inner.offers.values().find(fits) else {
        return Err(no(400, NO_CAPACITY));
    };
    let times = u64::try_from(count).unwrap_or(1);
    let mut taken = offer.clone();
    taken.price.0 = catalogue::price(offer, inner.price_factor).0 * times;
    taken.facts.gpus = vec![offer.facts.gpus[0].clone(); count];
    taken.facts.memory.0 *= times;
    taken.facts.cpus *= u32::try_from(count).unwrap_or(1);
    Ok(taken)
}

fn wish(account: &str, body: &Value) -> Wish {
    let text = |field: &str| {
        body.get(field)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let env = body.get("env").and_then(Value::as_object);
    let env: BTreeMap<String, String> = env
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or("").to_owned()))
        .collect();
    let mut more = json!({
        "ports": strings(body, "ports"),
        "registry": body.get("registry").cloned().unwrap_or_default(),
        "mounts": body.get("mounts").cloned().unwrap_or(json!({})),
        "globalNetworking": body.get("globalNetworking") == Some(&json!(true)),
    });
    more["locked"] = json!(false);
    // What an image of the provider does with it: without a command of one's own it starts an SSH server.
    let key = env.get("PUBLIC_KEY").filter(|_| text("args").is_empty());
    let access = key.map(|key| Access::of("root", 0, std::iter::once(key.clone())));
    Wish {
        access,
        account: account.to_owned(),
        label: text("name"),
        image: text("image"),
        disk_gib: whole(body, "disk").unwrap_or(DISK),
        env,
        onstart: text("args"),
        // What a pod costs is told of one that is being provisioned.
        bills_booting: true,
        more,
        ..Wish::default()
    }
}

/// Makes it, or not, and says so, or not.
pub(super) fn made(world: &World, offer: Offer, wish: Wish) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    if fires("create-500-no-commit").is_some() {
        return oops();
    }
    if let Some(fault) = fires("create-late-commit") {
        let at = world.clock.now() + fault.millis(120);
        world.lock().late.push((at, offer, wish));
        return oops();
    }
    let doubled = fires("create-wrong-count");
    let nameless = doubled.as_ref().is_some_and(|fault| fault.says("none"));
    if doubled.is_some() && !nameless {
        // One answer has room for one id: the other pod is told by nothing but the list.
        world.make(offer.clone(), wish.clone());
    }
    let number = world.make(offer, wish);
    let mut pod = pods::record(world, number);
    if nameless {
        pod["id"] = Value::Null;
    }
    let reply = Reply::json(201, &pod);
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
