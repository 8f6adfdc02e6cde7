//! What can be had: types of GPU in two clouds, their stock by data centre, and the places.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stageline_core::offer::{Facts, Gpu};
use stageline_core::unit::{Bytes, MicroDollars};

use super::super::machine::Offer;
use super::super::serve::Reply;
use super::super::world::{Inner, World};
use super::{dollars, invalid, no, unknown, yes};

/// A type of GPU.
pub(super) struct Model {
    pub(super) id: &'static str,
    pub(super) name: &'static str,
    pool: Option<&'static str>,
    pub(super) maker: &'static str,
    pub(super) gigabytes: u64,
    /// Of its host, for each.
    memory: u64,
    cpus: u32,
    /// Micro-dollars for an hour of one: secure, and community where there are any.
    pub(super) secure: u64,
    pub(super) community: u64,
    /// The most in one pod.
    pub(super) most: (usize, usize),
}

const fn model(
    (id, name, pool): (&'static str, &'static str, Option<&'static str>),
    (gigabytes, memory, cpus): (u64, u64, u32),
    (secure, community): (u64, u64),
    most: (usize, usize),
) -> Model {
    Model {
        id,
        name,
        pool,
        maker: "NVIDIA",
        gigabytes,
        memory,
        cpus,
        secure,
        community,
        most,
    }
}

/// Made up, of about the size of real ones.
pub(super) const MODELS: [Model; 8] = [
    model(
        ("NVIDIA GeForce RTX 3090", "RTX 3090", Some("AMPERE_24")),
        (24, 25, 4),
        (430_000, 220_000),
        (8, 4),
    ),
    model(
        ("NVIDIA GeForce RTX 4090", "RTX 4090", Some("ADA_24")),
        (24, 41, 6),
        (590_000, 340_000),
        (8, 4),
    ),
    model(
        ("NVIDIA L4", "L4", Some("AMPERE_24")),
        (24, 50, 12),
        (430_000, 0),
        (7, 0),
    ),
    model(
        ("NVIDIA RTX A6000", "RTX A6000", Some("AMPERE_48")),
        (48, 50, 9),
        (490_000, 330_000),
        (8, 4),
    ),
    model(
        ("NVIDIA L40S", "L40S", Some("ADA_48_PRO")),
        (48, 94, 16),
        (860_000, 790_000),
        (8, 2),
    ),
    model(
        ("NVIDIA A100-SXM4-80GB", "A100 SXM", Some("AMPERE_80")),
        (80, 117, 16),
        (1_490_000, 0),
        (8, 0),
    ),
    model(
        ("NVIDIA H100 80GB HBM3", "H100 SXM", Some("HOPPER_141")),
        (80, 125, 20),
        (2_990_000, 2_690_000),
        (8, 8),
    ),
    Model {
        maker: "AMD",
        ..model(
            ("AMD Instinct MI300X OAM", "MI300X", None),
            (192, 283, 24),
            (1_990_000, 0),
            (8, 0),
        )
    },
];

/// Data centres: id, name, region, and the CUDA version of the hosts there.
pub(super) const PLACES: [(&str, &str, &str, &str); 7] = [
    ("CA-MTL-1", "CA Montreal 1", "NORTH_AMERICA", "12.8"),
    ("EU-CZ-1", "EU Czechia 1", "EUROPE", "12.8"),
    ("EU-RO-1", "EU Romania 1", "EUROPE", "12.4"),
    ("EU-SE-1", "EU Sweden 1", "EUROPE", "12.8"),
    ("EUR-IS-1", "Iceland 1", "EUROPE", "12.8"),
    ("US-KS-2", "US Kansas 2", "NORTH_AMERICA", "12.8"),
    ("US-TX-3", "US Texas 3", "NORTH_AMERICA", "12.4"),
];

/// The first number of an offer.
const FIRST: u64 = 9_000_000;

/// Container disk, for a GB and a month.
const DISK_MONTH: MicroDollars = MicroDollars(100_000);

/// Fills the shelves: an offer for each type, cloud and place; community hosts have none.
pub(in crate::sim) fn stock(world: &World) {
    let mut inner = world.lock();
    let mut id = FIRST;
    for model in &MODELS {
        let secure = PLACES.iter().map(|place| (true, Some(place)));
        for (secure, place) in secure.chain([(false, None)]) {
            id += 1;
            let price = if secure {
                model.secure
            } else {
                model.community
            };
            if price == 0 {
                continue;
            }
            let facts = Facts {
                os: "linux".to_owned(),
                arch: "x86_64".to_owned(),
                cpus: model.cpus,
                memory: Bytes::gib(model.memory),
                gpus: vec![Gpu {
                    model: model.id.to_owned(),
                    vram: Bytes::gib(model.gigabytes),
                }],
                driver: (model.maker == "NVIDIA").then(|| "570.86".to_owned()),
                cuda: (model.maker == "NVIDIA")
                    .then(|| place.map_or("12.8", |place| place.3).to_owned()),
                region: place.map(|place| place.0.to_owned()),
                ..Facts::default()
            };
            let offer = Offer {
                id,
                facts,
                price: MicroDollars(price),
                disk_month: DISK_MONTH,
                many: true,
                host: id,
                ..Offer::default()
            };
            inner.offers.insert(id, offer);
        }
    }
}

pub(super) fn find(id: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.id == id)
}

/// Whether it is of the secure cloud: those are in data centres.
pub(super) fn is_secure(offer: &Offer) -> bool {
    offer.facts.region.is_some()
}

/// How many GPUs of an offer are free, drawn by the seed.
pub(super) fn free(seed: u64, inner: &Inner, offer: &Offer, now: u64) -> usize {
    if offer.taken {
        return 0;
    }
    let digest = blake3::hash(format!("{seed} {}", offer.id).as_bytes());
    let all = match digest.as_bytes()[0] {
        // Some have none of some.
        ..24 => 0,
        drawn => 8 + usize::from(drawn % 40),
    };
    let taken = inner.machines.values().filter(|machine| {
        machine.offer.id == offer.id && machine.is_there(now) && machine.stopped_from.is_none()
    });
    let taken: usize = taken.map(|machine| machine.offer.facts.gpus.len()).sum();
    all.saturating_sub(taken)
}

fn level(free: usize, count: usize) -> &'static str {
    match free / count.max(1) {
        0 => "NONE",
        1..4 => "LOW",
        4..16 => "MEDIUM",
        _ => "HIGH",
    }
}

/// What one costs now.
pub(super) fn price(offer: &Offer, factor: f64) -> MicroDollars {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "prices are small and positive"
    )]
    MicroDollars((offer.price.0 as f64 * factor).round() as u64)
}

/// What a query asks for.
#[derive(Default)]
struct Asked {
    stock: bool,
    count: usize,
    community: bool,
    countries: Option<Vec<String>>,
    cuda: Vec<String>,
    least_cuda: Option<String>,
}

type Query = BTreeMap<String, String>;

fn is_country(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn list(query: &Query, name: &str) -> Option<Vec<String>> {
    let text = query.get(name)?;
    Some(text.split(',').map(str::to_owned).collect())
}

fn asked(query: &Query) -> Result<Asked, Reply> {
    let wrong = |name: &str| Err(invalid(&[format!("query.{name}: not as specified")]));
    let mut asked = Asked {
        count: 1,
        ..Asked::default()
    };
    match query.get("include").map(String::as_str) {
        None => {}
        Some("AVAILABILITY") => asked.stock = true,
        Some(_) => return wrong("include"),
    }
    if let Some(products) = list(query, "product") {
        let known = ["POD", "CLUSTER", "SERVERLESS"];
        if !products.iter().all(|one| known.contains(&one.as_str())) {
            return wrong("product");
        }
    }
    if let Some(count) = query.get("count") {
        match count.parse() {
            Ok(count) if count >= 1 => asked.count = count,
            Ok(_) | Err(_) => return wrong("count"),
        }
    }
    match query.get("cloud").map(String::as_str) {
        None | Some("SECURE") => {}
        Some("COMMUNITY") => asked.community = true,
        Some(_) => return wrong("cloud"),
    }
    scoped(query, asked)
}

/// Which hosts count.
fn scoped(query: &Query, mut asked: Asked) -> Result<Asked, Reply> {
    const SCOPED: [&str; 6] = [
        "product",
        "count",
        "cloud",
        "countryCodes",
        "cudaVersions",
        "minCudaVersion",
    ];
    let wrong = |name: &str| Err(invalid(&[format!("query.{name}: not as specified")]));
    asked.countries = list(query, "countryCodes");
    if asked
        .countries
        .iter()
        .flatten()
        .any(|code| !is_country(code))
    {
        return wrong("countryCodes");
    }
    asked.cuda = list(query, "cudaVersions").unwrap_or_default();
    let is_version = |text: &String| super::schema::version(&json!(text));
    if !asked.cuda.iter().all(is_version) {
        return wrong("cudaVersions");
    }
    asked.least_cuda = query.get("minCudaVersion").cloned();
    let whole = |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if asked
        .least_cuda
        .as_ref()
        .is_some_and(|text| !is_version(text) && !whole(text))
    {
        return wrong("minCudaVersion");
    }
    let scoped = SCOPED.iter().find(|name| query.contains_key(**name));
    match (asked.stock, scoped) {
        (true, _) if !query.contains_key("product") => {
            Err(no(400, "include=AVAILABILITY requires product"))
        }
        (false, Some(name)) => Err(no(400, &format!("{name} requires include=AVAILABILITY"))),
        (_, _) if !asked.cuda.is_empty() && asked.least_cuda.is_some() => {
            Err(no(400, "cudaVersions and minCudaVersion are exclusive"))
        }
        (_, _) => Ok(asked),
    }
}

/// Versions as numbers.
pub(super) fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split('.');
    parts.filter_map(|part| part.parse().ok()).collect()
}

impl Asked {
    /// Whether a host of this offer may count.
    fn takes(&self, offer: &Offer) -> bool {
        let cuda = offer.facts.cuda.as_deref();
        let fits = |test: &dyn Fn(&str) -> bool| cuda.is_some_and(test);
        let place = offer.facts.region.as_deref().unwrap_or("");
        let there = |code: &String| place.split('-').any(|part| part == code);
        is_secure(offer) != self.community
            && self
                .countries
                .as_ref()
                .is_none_or(|codes| codes.iter().any(there))
            && (self.cuda.is_empty() || fits(&|cuda| self.cuda.iter().any(|one| one == cuda)))
            && self
                .least_cuda
                .as_ref()
                .is_none_or(|least| fits(&|cuda| numbers(cuda) >= numbers(least)))
    }
}

pub(super) fn types(world: &World, query: &Query) -> Reply {
    let mut asked = match asked(query) {
        Ok(asked) => asked,
        Err(reply) => return reply,
    };
    if world.faults.fires("offer-breaks-filter").is_some() {
        // Rows do not tell which cloud they are of: that alone is as it was asked for.
        asked = Asked {
            stock: asked.stock,
            community: asked.community,
            count: 1,
            ..Asked::default()
        };
    }
    let drift = world.faults.fires_but("schema-drift", "status").is_some();
    let mut rows: Vec<Value> = MODELS
        .iter()
        .map(|model| row(world, model, &asked))
        .collect();
    if asked.countries.is_some() {
        rows.retain(|row| row.get("dataCenters").is_some());
    }
    if drift {
        for row in &mut rows {
            row["memory"] = json!(row["memory"].to_string());
            row["pool"] = Value::Null;
            row["maxCount"] = Value::Null;
            row["price"]["secure"] = json!(row["price"]["secure"].to_string());
            row["availability"] = json!("PLENTY");
            row["a_field_of_tomorrow"] = json!({ "x": 1 });
        }
    }
    yes(&json!({ "gpus": rows }))
}

pub(super) fn show(world: &World, id: &str, query: &Query) -> Reply {
    let asked = match asked(query) {
        Ok(asked) => asked,
        Err(reply) => return reply,
    };
    match find(id) {
        Some(model) => yes(&row(world, model, &asked)),
        None => unknown("gpu type"),
    }
}

/// The record of a type.
fn row(world: &World, model: &Model, asked: &Asked) -> Value {
    let now = world.clock.now();
    let inner = world.lock();
    let factor = inner.price_factor;
    let own = |offer: &&Offer| offer.facts.gpus[0].model == model.id;
    let per_hour = |secure: bool| {
        let mut offers = inner.offers.values().filter(own);
        let offer = offers.find(|offer| is_secure(offer) == secure);
        offer.map_or(0.0, |offer| dollars(price(offer, factor).0))
    };
    let mut row = json!({
        "id": model.id, "name": model.name, "pool": model.pool, "manufacturer": model.maker, "memory": model.gigabytes,
        "secure": model.secure > 0, "community": model.community > 0,
        "price": { "secure": per_hour(true), "community": per_hour(false) },
        "maxCount": { "secure": model.most.0, "community": model.most.1 },
    });
    if model.pool.is_some() {
        row["price"]["serverless"] = json!(dollars(model.secure * 2));
    }
    if !asked.stock {
        return row;
    }
    let offers = inner
        .offers
        .values()
        .filter(own)
        .filter(|offer| asked.takes(offer));
    let mut best = 0;
    let mut places = Vec::new();
    let mut versions: BTreeMap<Vec<u32>, (String, bool)> = BTreeMap::new();
    for offer in offers {
        let free = free(world.seed(), &inner, offer, now);
        best = best.max(free);
        if let Some(place) = &offer.facts.region {
            let name = PLACES.iter().find(|(id, ..)| id == place);
            let name = name.map_or("", |(_, name, ..)| name);
            let level = level(free, asked.count);
            places.push(json!({ "id": place, "name": name, "availability": level }));
        }
        if let Some(cuda) = &offer.facts.cuda {
            let seen = versions
                .entry(numbers(cuda))
                .or_insert((cuda.clone(), false));
            seen.1 |= free >= asked.count;
        }
    }
    row["availability"] = json!(level(best, asked.count));
    // Left out where there is nothing to tell.
    if best >= asked.count && !places.is_empty() {
        row["dataCenters"] = json!(places);
    }
    if !versions.is_empty() {
        let versions = versions.into_values();
        row["cudaVersions"] = versions
            .map(|(version, available)| json!({ "version": version, "available": available }))
            .collect();
    }
    row
}

const REGIONS: [&str; 9] = [
    "NORTH_AMERICA",
    "SOUTH_AMERICA",
    "EUROPE",
    "ASIA",
    "MIDDLE_EAST",
    "AFRICA",
    "OCEANIA",
    "ANTARCTICA",
    "UNKNOWN",
];

const COMPLIANCE: [&str; 12] = [
    "GDPR",
    "ISO_IEC_27001",
    "ISO_14001",
    "PCI_DSS",
    "HITRUST",
    "SOC_1_TYPE_2",
    "SOC_2_TYPE_2",
    "SOC_3_TYPE_2",
    "ITAR",
    "FISMA_HIGH",
    "HIPAA",
    "RENEWABLE",
];

/// The filters of places, each a list of words that there are.
const FILTERS: [(&str, &[&str]); 4] = [
    ("include", &["GPU_AVAILABILITY", "CPU_AVAILABILITY"]),
    ("regions", &REGIONS),
    ("networkVolumeTypes", &["STANDARD", "HIGH_PERFORMANCE"]),
    ("compliance", &COMPLIANCE),
];

fn words(query: &Query) -> Result<BTreeMap<&'static str, BTreeSet<String>>, Reply> {
    let mut all = BTreeMap::new();
    for (name, known) in FILTERS {
        let Some(text) = query.get(name) else {
            continue;
        };
        let words: BTreeSet<String> = text.split(',').map(str::to_owned).collect();
        if !words.iter().all(|word| known.contains(&word.as_str())) {
            return Err(invalid(&[format!("query.{name}: not as specified")]));
        }
        all.insert(name, words);
    }
    match query.get("globalNetwork").map(String::as_str) {
        None | Some("true" | "false") => Ok(all),
        Some(_) => Err(invalid(&[
            "query.globalNetwork: not as specified".to_owned()
        ])),
    }
}

pub(super) fn places(world: &World, query: &Query) -> Reply {
    let words = match words(query) {
        Ok(words) => words,
        Err(reply) => return reply,
    };
    let has = |name: &str, word: &str| words.get(name).is_none_or(|all| all.contains(word));
    let all = |name: &str, known: &[&str]| {
        let mut asked = words.get(name).into_iter().flatten();
        asked.all(|word| known.contains(&word.as_str()))
    };
    let global = query
        .get("globalNetwork")
        .is_none_or(|global| global == "true");
    let shown = PLACES.iter().filter(|place| {
        has("regions", place.2)
            && all("networkVolumeTypes", &["STANDARD"])
            && all("compliance", &["SOC_2_TYPE_2"])
            && global
    });
    let rows: Vec<Value> = shown.map(|place| center(world, place, &words)).collect();
    yes(&json!({ "dataCenters": rows }))
}

pub(super) fn place(world: &World, id: &str, query: &Query) -> Reply {
    let words = match words(query) {
        Ok(words) => words,
        Err(reply) => return reply,
    };
    match PLACES.iter().find(|place| place.0 == id) {
        Some(place) => yes(&center(world, place, &words)),
        None => unknown("data center"),
    }
}

fn center(
    world: &World,
    (id, name, region, _): &(&str, &str, &str, &str),
    words: &BTreeMap<&'static str, BTreeSet<String>>,
) -> Value {
    let mut row = json!({
        "id": id, "name": name, "region": region, "globalNetwork": true, "networkVolumeTypes": ["STANDARD"],
        "compliance": ["SOC_2_TYPE_2"],
    });
    let wants = |what: &str| words.get("include").is_some_and(|all| all.contains(what));
    if wants("GPU_AVAILABILITY") {
        let now = world.clock.now();
        let inner = world.lock();
        let here = inner
            .offers
            .values()
            .filter(|offer| offer.facts.region.as_deref() == Some(*id));
        row["gpuAvailability"] = here
            .filter_map(|offer| {
                let model = find(&offer.facts.gpus[0].model)?;
                let level = level(free(world.seed(), &inner, offer, now), 1);
                Some(json!({ "id": model.id, "name": model.name, "availability": level }))
            })
            .collect();
    }
    row
}
