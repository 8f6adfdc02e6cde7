//! What can be rented: types of instances, the regions that have some, and the images.

use serde_json::{Map, Value, json};
use stageline_core::offer::{Facts, Gpu};
use stageline_core::unit::{Bytes, MicroDollars};

use super::super::machine::Offer;
use super::super::serve::Reply;
use super::super::world::World;
use super::{cents, yes};

/// A type as it is stocked.
struct Type {
    name: &'static str,
    model: &'static str,
    /// GiB of one, and how many.
    vram: u64,
    gpus: usize,
    /// For an hour of all of it.
    cents: u64,
    cpus: u32,
    /// GiB.
    memory: u64,
    disk: u64,
}

const fn of(
    name: &'static str,
    model: &'static str,
    (gpus, vram): (usize, u64),
    cents: u64,
    (cpus, memory, disk): (u32, u64, u64),
) -> Type {
    Type {
        name,
        model,
        vram,
        gpus,
        cents,
        cpus,
        memory,
        disk,
    }
}

const TYPES: [Type; 11] = [
    of("cpu_4x_general", "", (0, 0), 8, (4, 16, 128)),
    of("gpu_1x_rtx6000", "RTX 6000", (1, 24), 50, (14, 46, 512)),
    of("gpu_1x_a10", "A10 PCIe", (1, 24), 75, (30, 200, 1400)),
    of("gpu_1x_a6000", "RTX A6000", (1, 48), 80, (14, 100, 512)),
    of(
        "gpu_1x_a100_sxm4",
        "A100 SXM4",
        (1, 40),
        129,
        (30, 220, 512),
    ),
    of("gpu_1x_gh200", "GH200", (1, 96), 149, (64, 432, 4096)),
    of("gpu_2x_a6000", "RTX A6000", (2, 48), 160, (28, 200, 1024)),
    of(
        "gpu_1x_h100_pcie",
        "H100 PCIe",
        (1, 80),
        249,
        (26, 225, 1024),
    ),
    of(
        "gpu_1x_h100_sxm5",
        "H100 SXM5",
        (1, 80),
        329,
        (26, 225, 2816),
    ),
    of(
        "gpu_8x_h100_sxm5",
        "H100 SXM5",
        (8, 80),
        2392,
        (208, 1800, 22_528),
    ),
    of(
        "gpu_8x_b200_sxm6",
        "B200 SXM6",
        (8, 180),
        3992,
        (208, 2900, 22_528),
    ),
];

/// Code and name.
pub(super) const REGIONS: [(&str, &str); 8] = [
    ("us-east-1", "Virginia, USA"),
    ("us-west-1", "California, USA"),
    ("us-west-2", "Arizona, USA"),
    ("us-south-1", "Texas, USA"),
    ("us-midwest-1", "Illinois, USA"),
    ("europe-central-1", "Germany"),
    ("asia-northeast-1", "Osaka, Japan"),
    ("australia-east-1", "Sydney, Australia"),
];

pub(super) fn region(name: &str) -> Option<Value> {
    let (name, description) = REGIONS.iter().find(|(code, _)| *code == name)?;
    Some(json!({ "name": name, "description": description }))
}

/// Fills the shelves, the same for the same seed: every type in every region, some of it sold out.
pub(in crate::sim) fn stock(world: &World) {
    let mut dice = world.seed().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below.max(1)
    };
    let mut inner = world.lock();
    let mut id = 0;
    for kind in &TYPES {
        // One GPU is to be had in about half of the regions, eight hardly ever; the first region always has small ones.
        let rare = if kind.gpus > 1 { 6 } else { 2 };
        for (index, (region, _)) in REGIONS.iter().enumerate() {
            id += 1;
            let there = draw(rare) == 0 || (index == 1 && kind.gpus < 2);
            inner.offers.insert(id, offer(id, kind, region, there));
        }
    }
}

fn offer(id: u64, kind: &Type, region: &str, there: bool) -> Offer {
    let gpu = Gpu {
        model: kind.model.to_owned(),
        vram: Bytes::gib(kind.vram),
    };
    let arch = if kind.model == "GH200" {
        "aarch64"
    } else {
        "x86_64"
    };
    let mut facts = Facts {
        os: "linux".to_owned(),
        arch: arch.to_owned(),
        cpus: kind.cpus,
        memory: Bytes::gib(kind.memory),
        disk: Bytes::gib(kind.disk),
        gpus: vec![gpu; kind.gpus],
        region: Some(region.to_owned()),
        ..Facts::default()
    };
    facts
        .extra
        .insert("instance_type".to_owned(), kind.name.to_owned());
    Offer {
        id,
        facts,
        price: MicroDollars(kind.cents * 10_000),
        taken: !there,
        many: true,
        ..Offer::default()
    }
}

/// What an offer costs now, in whole cents.
pub(super) fn price(offer: &Offer, factor: f64) -> MicroDollars {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "prices are small and positive"
    )]
    let cents = (cents(offer.price.0) as f64 * factor).round() as u64;
    MicroDollars(cents * 10_000)
}

pub(super) fn name(facts: &Facts) -> &str {
    facts.extra.get("instance_type").map_or("", String::as_str)
}

/// `A10 (24 GB PCIe)`: the only place that has model and memory.
fn gpu_description(facts: &Facts) -> String {
    let Some(gpu) = facts.gpus.first() else {
        return "N/A".to_owned();
    };
    let gib = gpu.vram.0 >> 30;
    let form = gpu.model.rsplit_once(' ').filter(|(_, form)| {
        let form = form.to_lowercase();
        form == "pcie" || form.starts_with("sxm")
    });
    match form {
        Some((model, form)) => format!("{model} ({gib} GB {form})"),
        None => format!("{} ({gib} GB)", gpu.model),
    }
}

/// The record of a type.
pub(super) fn row(facts: &Facts, price: MicroDollars, disk_gib: u64) -> Value {
    let gpu = gpu_description(facts);
    let count = facts.gpus.len();
    let arch = match facts.arch.as_str() {
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "name": name(facts), "description": format!("{count}x {gpu}"), "gpu_description": gpu,
        "price_cents_per_hour": cents(price.0), "architecture": arch,
        "specs": {
            "vcpus": facts.cpus, "memory_gib": facts.memory.0 >> 30, "storage_gib": disk_gib, "gpus": count,
        },
    })
}

pub(super) fn list(world: &World) -> Reply {
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let inner = world.lock();
    let mut data: Map<String, Value> = Map::new();
    for offer in inner.offers.values() {
        let facts = &offer.facts;
        let entry = data.entry(name(facts)).or_insert_with(|| {
            let price = price(offer, inner.price_factor);
            json!({
                "instance_type": row(facts, price, facts.disk.0 >> 30),
                "regions_with_capacity_available": [],
            })
        });
        let place = facts.region.as_deref().and_then(region);
        if let (false, Some(place), Value::Array(regions)) = (
            offer.taken,
            place,
            &mut entry["regions_with_capacity_available"],
        ) {
            regions.push(place);
        }
    }
    drop(inner);
    if drift {
        for (_, entry) in &mut data {
            let kind = &mut entry["instance_type"];
            kind["price_cents_per_hour"] = json!(kind["price_cents_per_hour"].to_string());
            kind["specs"]["gpus"] = json!(kind["specs"]["gpus"].to_string());
            kind["architecture"] = Value::Null;
            kind["description"] = Value::Null;
            kind["a_field_of_tomorrow"] = json!({ "x": 1 });
        }
    }
    yes(&Value::Object(data))
}

/// One family, in every region.
pub(super) fn images() -> Reply {
    let rows = REGIONS.iter().zip(1_u64..).map(|((region, _), number)| {
        json!({
            "id": format!("{number:032x}"), "created_time": "2026-01-05T00:00:00+00:00",
            "updated_time": "2026-01-05T00:00:00+00:00", "name": "Lambda Stack 24.04", "description": "Lambda Stack",
            "family": FAMILY, "version": "24.4.5", "architecture": "x86_64", "region": super::types::region(region),
        })
    });
    yes(&rows.collect())
}

/// The family of images that there is.
pub(super) const FAMILY: &str = "lambda-stack-24-04";
