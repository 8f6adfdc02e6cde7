//! What can be rented, and the search for it.

use serde_json::{Map, Value, json};
use stageline_core::offer::{Facts, Gpu};
use stageline_core::unit::{Bytes, MicroDollars};

use super::super::machine::Offer;
use super::super::serve::Reply;
use super::super::world::World;
use super::{dollars, yes};

/// Model, MiB of one, dollars for an hour of one in micro-dollars, compute capability.
const MODELS: [(&str, u64, u64, u32); 8] = [
    ("RTX 3060", 12_288, 60_000, 860),
    ("RTX 3090", 24_576, 180_000, 860),
    ("RTX 4090", 24_564, 340_000, 890),
    ("RTX 5090", 32_607, 520_000, 1200),
    ("L40S", 46_068, 760_000, 890),
    ("A100 SXM4", 81_920, 1_050_000, 800),
    ("H100 SXM", 81_559, 1_900_000, 900),
    ("B200", 183_359, 3_900_000, 1000),
];

const PLACES: [&str; 6] = [
    "Quebec, CA",
    "Germany, DE",
    "Texas, US",
    "Sweden, SE",
    "Japan, JP",
    "Czechia, CZ",
];

/// How many there are.
const COUNT: u64 = 64;

/// Fills the shelves, the same for the same seed.
pub(in crate::sim) fn stock(world: &World) {
    let mut dice = world.seed().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below.max(1)
    };
    let mut inner = world.lock();
    for index in 0..COUNT {
        let id = 7_000_000 + index * 17;
        let (model, vram, price, _) = MODELS[usize::try_from(index % 8).unwrap_or(0)];
        let count = [1, 1, 2, 4][usize::try_from(draw(4)).unwrap_or(0)];
        let gpu = Gpu {
            model: model.to_owned(),
            vram: Bytes(vram << 20),
        };
        let place = PLACES[usize::try_from(draw(6)).unwrap_or(0)];
        let facts = Facts {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            cpus: u32::try_from(8 + draw(4) * 8).unwrap_or(8),
            memory: Bytes((32 + draw(4) * 32) << 30),
            disk: Bytes((200 + draw(1800)) << 30),
            gpus: vec![gpu; usize::try_from(count).unwrap_or(1)],
            driver: Some("570.86".to_owned()),
            cuda: Some("12.8".to_owned()),
            region: Some(place.to_owned()),
            ..Facts::default()
        };
        let offer = Offer {
            id,
            facts,
            price: MicroDollars(count * (price + draw(price / 4))),
            disk_month: MicroDollars(100_000 + draw(100) * 1000),
            host: 100 + draw(20),
            ..Offer::default()
        };
        inner.offers.insert(id, offer);
    }
}

pub(super) fn names(world: &World) -> Vec<String> {
    let inner = world.lock();
    let models = inner.offers.values().flat_map(|offer| &offer.facts.gpus);
    let mut names: Vec<String> = models.map(|gpu| gpu.model.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// One search: filters, order, limit.
pub(super) fn search(world: &World, query: &Value) -> Reply {
    let empty = Map::new();
    let query = query.as_object().unwrap_or(&empty);
    let disk = query
        .get("allocated_storage")
        .and_then(loose)
        .unwrap_or(8.0);
    let bids = query.get("type").and_then(Value::as_str) == Some("bid");
    // Which ask is asked for is never mistaken.
    let by_id = query.iter().filter(|(field, _)| *field == "id");
    let by_id: Map<String, Value> = by_id.map(|(k, v)| (k.clone(), v.clone())).collect();
    let breaks = world.faults.fires("offer-breaks-filter").is_some();
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let inner = world.lock();
    let free = inner.offers.values().filter(|offer| !offer.taken);
    let mut rows: Vec<Value> = free
        .map(|offer| row(offer, disk, inner.price_factor, bids))
        .filter(|row| fits(row, if breaks { &by_id } else { query }))
        .collect();
    sort(&mut rows, query.get("order"));
    let limit = query.get("limit").and_then(loose).unwrap_or(64.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float saturates"
    )]
    rows.truncate(limit as usize);
    if drift {
        for row in &mut rows {
            row["id"] = json!(row["id"].to_string());
            row["dph_base"] = json!(row["dph_base"].to_string());
            row["cpu_cores"] = Value::Null;
            row["geolocation"] = Value::Null;
            row["a_field_of_tomorrow"] = json!({ "x": 1 });
        }
    }
    yes(&json!({ "offers": rows }))
}

/// The number of the machine that an offer is on.
pub(super) fn machine(offer: &Offer) -> u64 {
    offer.id % 1000
}

/// The row of an offer.
fn row(offer: &Offer, disk: f64, factor: f64, bids: bool) -> Value {
    let facts = &offer.facts;
    let least = dollars(offer.least_bid(factor).0);
    let base = match bids {
        true => least,
        false => dollars(offer.price_now(factor).0),
    };
    let storage = dollars(offer.disk_month.0);
    let disk_hour = disk * storage / 720.0;
    let mut row = claim(facts);
    let more = json!({
        "id": offer.id, "ask_contract_id": offer.id, "bundle_id": offer.id / 17, "machine_id": machine(offer),
        "host_id": offer.host, "dph_base": base, "dph_total": base + disk_hour, "storage_cost": storage,
        "storage_total_cost": disk_hour, "min_bid": least, "is_bid": bids, "rentable": true, "rented": false,
        "external": null, "verification": "verified", "verified": true, "hosting_type": offer.host % 2,
        "duration": 1_209_600.0, "end_date": 1_890_000_000.0, "start_date": 1_780_000_000.0, "score": 400.0 / base,
        "search": { "gpuCostPerHour": base, "diskHour": disk_hour, "totalHour": base + disk_hour,
                    "discountTotalHour": 0, "discountedTotalPerHour": base + disk_hour },
    });
    merge(&mut row, more);
    row
}

/// What an offer and an instance say of the machine.
pub(super) fn claim(facts: &Facts) -> Value {
    let gpu = facts.gpus.first();
    let model = gpu.map_or("", |gpu| gpu.model.as_str());
    let capability = MODELS.iter().find(|(name, ..)| *name == model);
    let vram = gpu.map_or(0, |gpu| gpu.vram.0 >> 20);
    json!({
        "gpu_name": model, "num_gpus": facts.gpus.len(), "gpu_ram": vram,
        "gpu_total_ram": vram * facts.gpus.len() as u64, "gpu_frac": 1.0, "gpu_arch": "nvidia",
        "compute_cap": capability.map_or(0, |row| row.3), "cuda_max_good": 12.8, "driver_version": facts.driver,
        "cpu_arch": "amd64", "cpu_cores": facts.cpus, "cpu_cores_effective": f64::from(facts.cpus),
        "cpu_ram": facts.memory.0 >> 20, "cpu_name": "Xeon", "disk_space": facts.disk.0 >> 30, "disk_bw": 3000.0,
        "disk_name": "nvme", "inet_up": 800.0, "inet_down": 900.0, "inet_up_cost": 0.002, "inet_down_cost": 0.002,
        "reliability": 0.995, "reliability2": 0.995, "geolocation": facts.region, "static_ip": true,
        "direct_port_count": 50, "public_ipaddr": "127.0.0.1", "dlperf": 90.1, "dlperf_per_dphtotal": 100.0,
        "flops_per_dphtotal": 100.0, "total_flops": 80.0, "gpu_mem_bw": 900.0, "pcie_bw": 20.0, "bw_nvlink": 0.0,
        "has_avx": 1, "pci_gen": 4.0, "mobo_name": "X", "vms_enabled": false, "gpu_display_active": false,
    })
}

pub(super) fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// A number, also in quotes, and yes and no as 1 and 0.
fn loose(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "true" | "True" => Some(1.0),
            "false" | "False" => Some(0.0),
            text => text.parse().ok(),
        },
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Null => Some(0.0),
        Value::Array(_) | Value::Object(_) => None,
    }
}

fn fits(row: &Value, query: &Map<String, Value>) -> bool {
    query.iter().all(|(field, test)| {
        let Some(tests) = test.as_object() else {
            return true;
        };
        let found = row.get(field).unwrap_or(&Value::Null);
        tests.iter().all(|(op, asked)| holds(found, op, asked))
    })
}

fn same(found: &Value, asked: &Value) -> bool {
    if let (Some(found), Some(asked)) = (found.as_str(), asked.as_str()) {
        return found
            .replace('_', " ")
            .eq_ignore_ascii_case(&asked.replace('_', " "));
    }
    match (loose(found), loose(asked)) {
        (Some(found), Some(asked)) => (found - asked).abs() < 1e-9,
        (_, _) => false,
    }
}

fn holds(found: &Value, op: &str, asked: &Value) -> bool {
    let ordered = |test: fn(f64, f64) -> bool| match (loose(found), loose(asked)) {
        (Some(found), Some(asked)) => test(found, asked),
        (_, _) => false,
    };
    let listed = || {
        asked
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| same(found, one))
    };
    match op {
        "eq" => same(found, asked),
        "neq" => !same(found, asked),
        "gt" => ordered(|a, b| a > b),
        "gte" => ordered(|a, b| a >= b),
        "lt" => ordered(|a, b| a < b),
        "lte" => ordered(|a, b| a <= b),
        "in" => listed(),
        "notin" => !listed(),
        _ => true,
    }
}

fn sort(rows: &mut [Value], order: Option<&Value>) {
    let orders: Vec<(String, bool)> = order
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|one| Some((one[0].as_str()?.to_owned(), one[1].as_str() == Some("desc"))))
        .collect();
    rows.sort_by(|a, b| {
        for (field, descending) in &orders {
            let order = loose(&a[field.as_str()]).partial_cmp(&loose(&b[field.as_str()]));
            let order = order.unwrap_or(std::cmp::Ordering::Equal);
            let order = if *descending { order.reverse() } else { order };
            if order.is_ne() {
                return order;
            }
        }
        std::cmp::Ordering::Equal
    });
}
