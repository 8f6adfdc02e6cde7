//! Pods without a GPU: the catalogue of their flavors, and what one of them is made from.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stageline_core::offer::{Facts, INSTANCE_TYPE};
use stageline_core::unit::{Bytes, MicroDollars};

use super::super::machine::Offer;
use super::super::serve::Reply;
use super::super::world::{Inner, World};
use super::catalogue::PLACES;
use super::create::NO_CAPACITY;
use super::{dollars, invalid, no, unknown, yes};

/// A flavor.
struct Flavor {
    id: &'static str,
    name: &'static str,
    group: &'static str,
    /// Tenths of a GB for each processor.
    memory: u64,
    /// Micro-dollars for an hour of one.
    price: u64,
}

/// Made up, of about the size of real ones.
const FLAVORS: [Flavor; 3] = [
    Flavor {
        id: "cpu3c",
        name: "Compute-Optimized",
        group: "Gen 3",
        memory: 20,
        price: 30_000,
    },
    Flavor {
        id: "cpu3g",
        name: "General Purpose",
        group: "Gen 3",
        memory: 40,
        price: 40_000,
    },
    Flavor {
        id: "cpu5c",
        name: "Compute-Optimized",
        group: "Gen 5",
        memory: 25,
        price: 35_000,
    },
];

/// Processors of one pod.
const VCPUS: (u64, u64) = (2, 32);

/// Processors of a flavor in a place.
const THERE: u64 = 96;

/// The first number of an offer, which no other has.
const FIRST: u64 = 9_500_000;

/// Container disk, for a GB and a month.
const DISK_MONTH: MicroDollars = MicroDollars(100_000);

type Query = BTreeMap<String, String>;

/// Processors of a flavor that are free in a place. Some places have none of some.
fn free(world: &World, inner: &Inner, number: u64, now: u64) -> u64 {
    let digest = blake3::hash(format!("{} {number}", world.seed()).as_bytes());
    if digest.as_bytes()[0] < 48 {
        return 0;
    }
    let taken = inner.machines.values().filter(|machine| {
        machine.offer.id == number && machine.is_there(now) && machine.stopped_from.is_none()
    });
    let taken: u64 = taken.map(|machine| u64::from(machine.facts.cpus)).sum();
    THERE.saturating_sub(taken)
}

fn number(flavor: usize, place: usize) -> u64 {
    let at = flavor * PLACES.len() + place;
    FIRST + u64::try_from(at).unwrap_or(0)
}

fn level(free: u64, vcpus: u64) -> &'static str {
    match free / vcpus.max(1) {
        0 => "NONE",
        1..4 => "LOW",
        4..16 => "MEDIUM",
        _ => "HIGH",
    }
}

/// What an hour of one processor costs now.
fn price(flavor: &Flavor, factor: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "prices are small and positive"
    )]
    let price = (flavor.price as f64 * factor).round() as u64;
    price
}

/// Whether the stock is asked for, and for how many processors.
fn asked(query: &Query) -> Result<Option<u64>, Reply> {
    let wrong = |name: &str| Err(invalid(&[format!("query.{name}: not as specified")]));
    let stock = match query.get("include").map(String::as_str) {
        None => false,
        Some("AVAILABILITY") => true,
        Some(_) => return wrong("include"),
    };
    let products = query.get("product");
    let known = |text: &String| {
        text.split(',')
            .all(|one| ["POD", "SERVERLESS"].contains(&one))
    };
    if !products.is_none_or(known) {
        return wrong("product");
    }
    let vcpus = match query.get("vcpuCount").map(|text| text.parse::<u64>()) {
        None => VCPUS.0,
        Some(Ok(count)) if count >= 2 => count,
        Some(_) => return wrong("vcpuCount"),
    };
    if !vcpus.is_power_of_two() {
        return Err(no(400, "vcpuCount must be a power of two"));
    }
    match (stock, products) {
        (true, None) => Err(no(400, "include=AVAILABILITY requires product")),
        (false, Some(_)) => Err(no(400, "product requires include=AVAILABILITY")),
        (false, None) if query.contains_key("vcpuCount") => {
            Err(no(400, "vcpuCount requires include=AVAILABILITY"))
        }
        (stock, _) => Ok(stock.then_some(vcpus)),
    }
}

pub(super) fn list(world: &World, query: &Query) -> Reply {
    match asked(query) {
        Ok(asked) => {
            let rows = (0..FLAVORS.len()).map(|flavor| row(world, flavor, asked));
            yes(&json!({ "cpus": rows.collect::<Vec<Value>>() }))
        }
        Err(reply) => reply,
    }
}

pub(super) fn show(world: &World, id: &str, query: &Query) -> Reply {
    let flavor = FLAVORS.iter().position(|flavor| flavor.id == id);
    match (asked(query), flavor) {
        (Err(reply), _) => reply,
        (Ok(_), None) => unknown("cpu type"),
        (Ok(asked), Some(flavor)) => yes(&row(world, flavor, asked)),
    }
}

/// The record of a flavor.
fn row(world: &World, flavor: usize, asked: Option<u64>) -> Value {
    let now = world.clock.now();
    let inner = world.lock();
    let one = &FLAVORS[flavor];
    let price = price(one, inner.price_factor);
    #[expect(clippy::cast_precision_loss, reason = "it is small")]
    let memory = one.memory as f64 / 10.0;
    let mut row = json!({
        "id": one.id, "name": one.name, "group": one.group, "vcpu": { "min": VCPUS.0, "max": VCPUS.1 },
        "ramGbPerVcpu": memory, "price": { "securePerVcpu": dollars(price), "serverlessPerVcpu": dollars(price * 2) },
    });
    let Some(vcpus) = asked else { return row };
    let places = PLACES.iter().enumerate().map(|(place, (id, name, ..))| {
        let free = free(world, &inner, number(flavor, place), now);
        (
            free,
            json!({ "id": id, "name": name, "availability": level(free, vcpus) }),
        )
    });
    let places: Vec<(u64, Value)> = places.collect();
    let best = places.iter().map(|(free, _)| *free).max().unwrap_or(0);
    row["availability"] = json!(level(best, vcpus));
    if best >= vcpus {
        let places = places.into_iter().map(|(_, place)| place);
        row["dataCenters"] = places.collect();
    }
    row
}

/// What a pod without a GPU is made from.
pub(super) fn placed(
    world: &World,
    cpu: &Value,
    body: &Value,
    places: &[String],
) -> Result<Offer, Reply> {
    let flavor = FLAVORS.iter().position(|flavor| cpu["id"] == flavor.id);
    let Some(flavor) = flavor else {
        return Err(unknown("cpu flavor"));
    };
    if body["cloud"] == "COMMUNITY" {
        return Err(no(400, "CPU pods are available in the secure cloud only"));
    }
    if body["mounts"].get("persistent").is_some() {
        return Err(no(400, "mounts.persistent is invalid for CPU pods"));
    }
    let vcpus = cpu["vcpuCount"].as_u64().unwrap_or(0);
    if !vcpus.is_power_of_two() || !(VCPUS.0..=VCPUS.1).contains(&vcpus) {
        return Err(no(400, "vcpuCount is not valid for this CPU flavor"));
    }
    let now = world.clock.now();
    let inner = world.lock();
    let mut rows = PLACES.iter().enumerate();
    let found = rows.find(|(place, (id, ..))| {
        let asked = places.is_empty() || places.iter().any(|one| one == id);
        asked && free(world, &inner, number(flavor, *place), now) >= vcpus
    });
    let Some((place, (id, ..))) = found else {
        return Err(no(400, NO_CAPACITY));
    };
    let one = &FLAVORS[flavor];
    let mut facts = Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: u32::try_from(vcpus).unwrap_or(0),
        memory: Bytes::mib(one.memory * vcpus * 1024 / 10),
        region: Some((*id).to_owned()),
        ..Facts::default()
    };
    let kind = (INSTANCE_TYPE.to_owned(), one.id.to_owned());
    facts.extra.extend([kind]);
    Ok(Offer {
        id: number(flavor, place),
        facts,
        price: MicroDollars(price(one, inner.price_factor) * vcpus),
        disk_month: DISK_MONTH,
        many: true,
        ..Offer::default()
    })
}

/// What a pod's record says of its processors.
pub(super) fn shown(facts: &Facts) -> Value {
    json!({
        "id": facts.extra.get(INSTANCE_TYPE), "vcpuCount": facts.cpus, "memory": (facts.memory.0 >> 30).max(1),
    })
}
