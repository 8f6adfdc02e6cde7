//! Offers: what is asked for, and what an offer says as a quote. Pure.
//!
//! The filter only spares work. What comes back may break it, may have numbers as strings, nulls and fields that nobody knows;
//! an offer without a price or an id is none.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stageline_core::id::Name;
use stageline_core::offer::{
    Bid, DiskRange, Facts, Gpu, HOURS_LEFT, Quote, QuoteId, Requirement, Supply, Volume,
};
use stageline_core::unit::{Bytes, MicroDollars};

use super::wire::{flag, id, money, number, text};
use crate::provider::http::Fault;

/// Offers that one search asks for. Where as many come back there may be more, which the next search asks for.
pub(super) const OFFERS_MAX: usize = 1000;

/// What two prices may differ by for having been written down: whoever asks for more from a price on asks from a little below it.
const PRICE_SLACK: f64 = 0.000_001;

/// More GPUs than a machine has.
const GPUS_MAX: u32 = 64;

/// Hours of a month, as storage is priced by.
const MONTH: f64 = 720.0;

/// Numbers of an offer that `provider.FIELD` may ask for, as they are called there.
const NUMBERS: [&str; 12] = [
    "inet_up",
    "inet_down",
    "inet_up_cost",
    "inet_down_cost",
    "direct_port_count",
    "dlperf",
    "disk_bw",
    "pcie_bw",
    "gpu_mem_bw",
    "compute_cap",
    "machine_id",
    "host_id",
];

/// How an ask is taken: on demand, or for a bid, which is the least that is taken where no amount is said.
pub(super) type Buy = Option<Option<MicroDollars>>;

/// Asks for offers from this price on, for an hour with the disk; the cheapest come first.
pub(super) fn from_price(filter: &mut Value, price: f64) {
    filter["dph_total"] = json!({ "gte": price - PRICE_SLACK });
}

/// The price of the dearest of these, as searches are ordered by.
pub(super) fn dearest(offers: &[Value]) -> Option<f64> {
    let prices = offers.iter().filter_map(|offer| number(offer, "dph_total"));
    prices.reduce(f64::max)
}

/// The body of a search.
pub(super) fn filter(
    requirement: &Requirement,
    gpu_names: &[String],
    disk: u64,
    buy: Buy,
) -> Value {
    let hints = requirement.hints();
    let mut body = common(disk, buy);
    let mut at_least = |field: &str, least: Value| {
        body.insert(field.to_owned(), json!({ "gte": least }));
    };
    at_least(
        "disk_space",
        json!(hints.disk.0.div_ceil(1 << 30).max(disk)),
    );
    if hints.gpus > 0 {
        at_least("num_gpus", json!(hints.gpus));
    }
    if hints.vram > Bytes(0) {
        at_least("gpu_ram", json!(hints.vram.0 >> 20));
    }
    if hints.cpus > 0 {
        at_least("cpu_cores_effective", json!(hints.cpus));
    }
    if hints.memory > Bytes(0) {
        at_least("cpu_ram", json!(hints.memory.0 >> 20));
    }
    let reliability = hints.at_least.get("reliability");
    if let Some(least) = reliability.and_then(|text| text.parse::<f64>().ok()) {
        at_least("reliability", json!(least));
    }
    // The agent is reached by a port of its own.
    at_least("direct_port_count", json!(1));
    // One machine among all would hardly be among the cheapest.
    for field in ["machine_id", "host_id"] {
        let id = hints.exactly.get(field);
        if let Some(id) = id.and_then(|text| text.parse::<u64>().ok()) {
            body.insert(field.to_owned(), json!({ "eq": id }));
        }
    }
    if !gpu_names.is_empty() {
        body.insert("gpu_name".to_owned(), json!({ "in": gpu_names }));
    }
    body.insert("verified".to_owned(), json!({ "eq": true }));
    body.insert("limit".to_owned(), json!(OFFERS_MAX));
    Value::Object(body)
}

/// Volumes: each is on one machine, and has a number and no name.
pub(super) fn volumes(body: &Value) -> Result<Vec<Volume>, Fault> {
    let rows = body.get("volumes").and_then(Value::as_array);
    let rows = rows.ok_or_else(|| Fault::shape("it has no list `volumes`"))?;
    let volume = |row: &Value| {
        let host = id(row, "machine_id")?;
        Some(Volume {
            id: id(row, "id")?,
            name: String::new(),
            requirement: format!("provider.machine_id={host}").parse().ok()?,
            place: format!("machine {host}"),
            region: None,
        })
    };
    let all: Option<Vec<Volume>> = rows.iter().map(volume).collect();
    all.ok_or_else(|| Fault::shape("a volume has no `id` or no machine"))
}

/// The body that reads one offer again.
pub(super) fn one(id: u64, disk: u64, buy: Buy) -> Value {
    let mut body = common(disk, buy);
    body.insert("id".to_owned(), json!({ "eq": id }));
    body.insert("limit".to_owned(), json!(1));
    Value::Object(body)
}

fn common(disk: u64, buy: Buy) -> Map<String, Value> {
    let body = json!({
        "type": if buy.is_some() { "bid" } else { "ondemand" },
        "external": { "eq": false },
        "rentable": { "eq": true },
        "rented": { "eq": false },
        "allocated_storage": disk,
        "order": [["dph_total", "asc"]],
    });
    match body {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// An offer in neutral words, all in; none when it cannot be rented as asked or makes no sense.
pub(super) fn quote(provider: &Name, offer: &Value, disk: u64, buy: Buy) -> Option<Quote> {
    let quote_id = id(offer, "id").or_else(|| id(offer, "ask_contract_id"))?;
    let rentable = flag(offer, "rentable") != Some(false) && flag(offer, "rented") != Some(true);
    let roomy = number(offer, "disk_space").is_none_or(|space| space >= exact(disk));
    let reachable = number(offer, "direct_port_count").is_none_or(|ports| ports >= 1.0);
    if !(rentable && roomy && reachable) {
        return None;
    }
    let (id, bid, price_per_hour) = match buy {
        None => (QuoteId(quote_id), None, price(offer, disk)?),
        Some(amount) => {
            let least = money(number(offer, "min_bid")?)?;
            let per_hour = amount.unwrap_or(least);
            let price = per_hour.saturating_add(disk_price(offer, disk));
            let id = QuoteId::bidding(&quote_id, amount);
            (id, Some(Bid { per_hour, least }), price)
        }
    };
    Some(Quote {
        provider: provider.clone(),
        id,
        facts: Facts {
            spot: bid.is_some(),
            ..facts(offer)
        },
        price_per_hour,
        disk: DiskRange::default(),
        supply: Supply::One,
        bid,
    })
}

/// What a disk costs per hour.
pub(super) fn disk_price(claim: &Value, disk: u64) -> MicroDollars {
    let storage = number(claim, "storage_cost").unwrap_or(0.0).max(0.0);
    money(exact(disk) * storage / MONTH).unwrap_or_default()
}

/// GPUs and disk; the dearer of what the offer sums up itself and what its parts come to.
fn price(offer: &Value, disk: u64) -> Option<MicroDollars> {
    let total = number(offer, "dph_total").filter(|total| *total > 0.0);
    let parts = number(offer, "dph_base")
        .filter(|base| *base > 0.0)
        .map(|base| {
            let storage = number(offer, "storage_cost").unwrap_or(0.0).max(0.0);
            base + exact(disk) * storage / MONTH
        });
    match (total, parts) {
        (Some(total), Some(parts)) => money(total.max(parts)),
        (Some(one), None) | (None, Some(one)) => money(one),
        (None, None) => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a disk has fewer than 2^53 GiB")]
fn exact(gibibytes: u64) -> f64 {
    gibibytes as f64
}

/// What an offer or an instance claims to be.
pub(super) fn facts(claim: &Value) -> Facts {
    let whole = |field: &str| number(claim, field).filter(|n| *n >= 0.0).unwrap_or(0.0);
    let cores = whole("cpu_cores_effective");
    let all_cores = number(claim, "cpu_cores").filter(|all| *all > 0.0);
    // The memory of the whole machine is told; an instance gets its share by cores.
    let share = all_cores.map_or(1.0, |all| (cores / all).min(1.0));
    let gpu = Gpu {
        model: text(claim, "gpu_name").unwrap_or_default(),
        vram: mebibytes(whole("gpu_ram")),
    };
    let count = number(claim, "num_gpus").map_or(0, count_of).min(GPUS_MAX);
    Facts {
        os: "linux".to_owned(),
        arch: match text(claim, "cpu_arch").as_deref() {
            Some("amd64" | "x86_64") | None => "x86_64".to_owned(),
            Some("arm64" | "aarch64") => "aarch64".to_owned(),
            Some(other) => other.to_owned(),
        },
        cpus: count_of(cores),
        memory: mebibytes(whole("cpu_ram") * share),
        disk: mebibytes(whole("disk_space") * 1024.0),
        gpus: vec![gpu; usize::try_from(count).unwrap_or(0)],
        driver: text(claim, "driver_version"),
        cuda: number(claim, "cuda_max_good").map(|cuda| format!("{cuda:.1}")),
        region: text(claim, "geolocation"),
        datacenter: None,
        host: number(claim, "machine_id").map(|id| id.to_string()),
        tools: Vec::new(),
        spot: flag(claim, "is_bid") == Some(true),
        extra: extra(claim),
    }
}

fn extra(claim: &Value) -> BTreeMap<String, String> {
    let mut extra = BTreeMap::new();
    let reliability = number(claim, "reliability2").or_else(|| number(claim, "reliability"));
    if let Some(reliability) = reliability {
        extra.insert("reliability".to_owned(), reliability.to_string());
    }
    for field in NUMBERS {
        if let Some(number) = number(claim, field) {
            extra.insert(field.to_owned(), number.to_string());
        }
    }
    if let Some(hours) = number(claim, "duration").map(|seconds| (seconds / 3600.0).floor()) {
        extra.insert(HOURS_LEFT.to_owned(), hours.to_string());
    }
    if let Some(verification) = text(claim, "verification") {
        extra.insert("verification".to_owned(), verification);
    }
    if let Some(static_ip) = flag(claim, "static_ip") {
        extra.insert("static_ip".to_owned(), static_ip.to_string());
    }
    if let Some(hosting) = number(claim, "hosting_type") {
        extra.insert("datacenter".to_owned(), (hosting >= 1.0).to_string());
    }
    extra
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and the number is not negative"
)]
fn mebibytes(number: f64) -> Bytes {
    Bytes((number.max(0.0) * 1_048_576.0) as u64)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and the number is not negative"
)]
fn count_of(number: f64) -> u32 {
    number.max(0.0).floor() as u32
}
