//! Types of instances as quotes: one for each type and region. Pure.
//!
//! The provider counts nothing: a region has some of a type, or none. A type without a price or a name is no quote. A region that
//! has none of a type is told as sold out where anything at all is known to be in that region.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stageline_core::id::Name;
use stageline_core::offer::{DiskRange, Facts, Gpu, INSTANCE_TYPE, Quote, QuoteId, Supply, Volume};
use stageline_core::unit::Bytes;

use super::wire::{data, price, text, whole};
use crate::provider::http::Fault;

/// More GPUs than a machine has.
const GPUS_MAX: u64 = 64;

/// How many can be had where the provider only says that there are some.
const SOME: Supply = Supply::Many(u32::MAX);

/// A quote's own name: where, and of which type.
pub(super) fn id(region: &str, kind: &str) -> QuoteId {
    QuoteId(format!("{region}/{kind}"))
}

/// Region and type of a quote.
pub(super) fn parts(id: &QuoteId) -> Option<(&str, &str)> {
    id.0.split_once('/')
}

/// Everything that there is, also what is sold out; with this much disk. `barred` are regions where machines could not be
/// reached.
pub(super) fn quotes(
    provider: &Name,
    body: &Value,
    disk: Bytes,
    barred: &[&str],
) -> Result<Vec<Quote>, Fault> {
    let Value::Object(types) = data(body)? else {
        return Err(Fault::shape("its `data` is no table of types"));
    };
    let rows: Vec<(&Value, BTreeSet<String>)> = types
        .values()
        .map(|row| {
            let kind = row.get("instance_type").unwrap_or(&Value::Null);
            (kind, regions(row))
        })
        .collect();
    let all: BTreeSet<&String> = rows.iter().flat_map(|(_, regions)| regions).collect();
    let mut quotes = Vec::new();
    for (kind, there) in &rows {
        let (Some(name), Some(price_per_hour)) = (text(kind, "name"), price(kind)) else {
            continue;
        };
        for region in all
            .iter()
            .filter(|region| !barred.contains(&region.as_str()))
        {
            let facts = facts(kind, Some(region));
            if facts.disk < disk {
                continue;
            }
            quotes.push(Quote {
                provider: provider.clone(),
                id: id(region, &name),
                facts,
                price_per_hour,
                disk: DiskRange::default(),
                supply: match there.contains(*region) {
                    true => SOME,
                    false => Supply::Many(0),
                },
                bid: None,
            });
        }
    }
    Ok(quotes)
}

/// The names of all types.
pub(super) fn names(body: &Value) -> Result<BTreeSet<String>, Fault> {
    let Value::Object(types) = data(body)? else {
        return Err(Fault::shape("its `data` is no table of types"));
    };
    let kinds = types.values().filter_map(|row| row.get("instance_type"));
    Ok(kinds.filter_map(|kind| text(kind, "name")).collect())
}

/// File systems: each is in one region.
pub(super) fn volumes(body: &Value) -> Result<Vec<Volume>, Fault> {
    let rows = data(body)?.as_array();
    let rows = rows.ok_or_else(|| Fault::shape("its `data` is no list of file systems"))?;
    let volume = |row: &Value| {
        let name = text(row, "name").unwrap_or_default();
        Volume::in_region(text(row, "id")?, name, text(row.get("region")?, "name")?)
    };
    let all: Option<Vec<Volume>> = rows.iter().map(volume).collect();
    all.ok_or_else(|| Fault::shape("a file system has no `id` or no region"))
}

fn regions(row: &Value) -> BTreeSet<String> {
    let there = row.get("regions_with_capacity_available");
    let there = there.and_then(Value::as_array).into_iter().flatten();
    there.filter_map(|region| text(region, "name")).collect()
}

/// What a type, or an instance of it, claims to be.
pub(super) fn facts(kind: &Value, region: Option<&str>) -> Facts {
    let specs = kind.get("specs").unwrap_or(&Value::Null);
    let number = |field: &str| whole(specs, field).unwrap_or(0);
    let gib = |field: &str| Bytes(number(field) << 30);
    let name = text(kind, "name").unwrap_or_default();
    let (gpu, variant) = gpu(&text(kind, "gpu_description").unwrap_or_default());
    let count = number("gpus").min(GPUS_MAX);
    let mut extra = BTreeMap::new();
    if let Some(variant) = variant {
        extra.insert("gpu_variant".to_owned(), variant);
    }
    if !name.is_empty() {
        extra.insert(INSTANCE_TYPE.to_owned(), name.clone());
    }
    Facts {
        os: "linux".to_owned(),
        arch: arch(kind, &name),
        cpus: u32::try_from(number("vcpus")).unwrap_or(0),
        memory: gib("memory_gib"),
        disk: gib("storage_gib"),
        gpus: vec![gpu; usize::try_from(count).unwrap_or(0)],
        region: region.map(str::to_owned),
        extra,
        ..Facts::default()
    }
}

/// Older answers do not say it: then the family with Arm processors is known by its name.
fn arch(kind: &Value, name: &str) -> String {
    match text(kind, "architecture").as_deref() {
        Some("arm64" | "aarch64") => "aarch64".to_owned(),
        Some("x86_64" | "amd64") => "x86_64".to_owned(),
        None if name.contains("gh200") => "aarch64".to_owned(),
        None => "x86_64".to_owned(),
        Some(other) => other.to_owned(),
    }
}

/// `A10 (24 GB PCIe)`: model, memory of one, and the variant, which a driver may not report.
fn gpu(description: &str) -> (Gpu, Option<String>) {
    let (model, rest) = match description.split_once('(') {
        Some((model, rest)) => (model.trim(), rest.trim_end().trim_end_matches(')')),
        None => (description.trim(), ""),
    };
    let mut words = rest.split_whitespace();
    let size: u64 = words
        .next()
        .and_then(|size| size.trim_end_matches("GB").parse().ok())
        .unwrap_or(0);
    let variant: Vec<&str> = words.filter(|word| *word != "GB").collect();
    let variant = (!variant.is_empty()).then(|| variant.join(" "));
    let model = match &variant {
        Some(variant) => format!("{model} {variant}"),
        None => model.to_owned(),
    };
    let vram = Bytes(size.min(1 << 20) << 30);
    (Gpu { model, vram }, variant)
}
