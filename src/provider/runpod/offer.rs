//! What can be had: a type of GPU, how many of it, in which cloud and where, as quotes. Pure.
//!
//! The catalogue has no memory, processors or driver of a host. What a requirement asks of the first two is asked of the provider
//! with the create; otherwise a quote claims a little less than any host has, which is measured on the machine. CUDA versions are claimed
//! as told, the lowest that the pod may get. Stock is a word and not a number: a hint, never a reservation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use stageline_core::id::Name;
use stageline_core::offer::{
    DiskRange, Facts, Gpu, INSTANCE_TYPE, POOL, Quote, QuoteId, Requirement, Supply, Volume,
};
use stageline_core::unit::{Bytes, MicroDollars};

use super::wire::rows;
use crate::provider::http::{Fault, flag, money, number, text};

/// More GPUs than a pod has.
const GPUS_MAX: u32 = 64;

/// Micro-dollars for a GB of container disk and a month.
const DISK_MONTH: u64 = 100_000;

/// Hours of a month, as disk is priced by.
const MONTH: u64 = 720;

/// Processors for each GPU that every host has.
const CPUS: u32 = 2;

/// Memory for each GPU: every host has as much as the GPU has, up to this.
const MEMORY_GIB_MAX: u64 = 192;

/// Whose hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloud {
    Secure,
    Community,
}

impl Cloud {
    pub(super) const ALL: [Self; 2] = [Self::Secure, Self::Community];

    /// As the API writes it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Secure => "SECURE",
            Self::Community => "COMMUNITY",
        }
    }

    /// The same as a field of the catalogue.
    const fn field(self) -> &'static str {
        match self {
            Self::Secure => "secure",
            Self::Community => "community",
        }
    }
}

/// What is asked of a pod beside its type of GPU and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asks {
    pub(super) cloud: Cloud,
    pub(super) count: u32,
    /// Any of these; any at all when there are none.
    pub(super) cuda: Vec<String>,
    /// GB of memory for each GPU, where more is asked for than every host has.
    pub(super) memory: u64,
    /// Processors for each GPU, likewise.
    pub(super) cpus: u32,
}

impl Asks {
    /// What a requirement asks of a pod with this type of GPU.
    pub(super) fn of(requirement: &Requirement, row: &Value, cloud: Cloud, count: u32) -> Self {
        let hints = requirement.hints();
        // Hints are lowered to what a machine of the size that is asked for may show.
        let memory = (hints.memory.0 / 92 * 100).div_ceil(1 << 30);
        let memory = memory.div_ceil(u64::from(count));
        let cpus = hints.cpus.div_ceil(count);
        let known = vram_gib(row).min(MEMORY_GIB_MAX);
        Self {
            cloud,
            count,
            cuda: cuda_asked(requirement, row),
            memory: if memory > known { memory } else { 0 },
            cpus: if cpus > CPUS { cpus } else { 0 },
        }
    }
}

/// The versions that a requirement takes, when it has a word on them and any fits.
fn cuda_asked(requirement: &Requirement, row: &Value) -> Vec<String> {
    let fits = |cuda: Option<String>| {
        let facts = Facts {
            cuda,
            ..Facts::default()
        };
        let misfits = requirement.misfits(&facts);
        !misfits.iter().any(|misfit| misfit.term.starts_with("cuda"))
    };
    if fits(None) {
        return Vec::new();
    }
    let mut versions = cuda_versions(row, true);
    versions.retain(|version| fits(Some(version.clone())));
    versions
}

/// CUDA versions of the hosts with this type of GPU, the lowest first.
fn cuda_versions(row: &Value, only_free: bool) -> Vec<String> {
    let rows = row.get("cudaVersions").and_then(Value::as_array);
    let rows = rows.into_iter().flatten();
    let wanted = rows.filter(|row| !only_free || flag(row, "available") == Some(true));
    let mut versions: Vec<String> = wanted.filter_map(|row| text(row, "version")).collect();
    versions.retain(|version| version.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    let numbers = |version: &String| -> Vec<u32> {
        version
            .split('.')
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    versions.sort_by_key(numbers);
    versions.dedup();
    versions
}

/// One thing that can be had. Its text is the name of the quote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) gpu: String,
    pub(super) datacenter: Option<String>,
    pub(super) asks: Asks,
}

/// Where the scheduler chooses.
const ANYWHERE: &str = "anywhere";

impl Choice {
    /// `2x NVIDIA L4/SECURE/EU-RO-1/cuda=12.4+12.8/memory=64/cpus=8`, the last three where they are asked for. None for a name that
    /// would not come out as it went in.
    pub(super) fn name(&self) -> Option<String> {
        let asks = &self.asks;
        let place = self.datacenter.as_deref().unwrap_or(ANYWHERE);
        let cloud = asks.cloud.as_str();
        let mut name = format!("{}x {}/{cloud}/{place}", asks.count, self.gpu);
        if !asks.cuda.is_empty() {
            write!(name, "/cuda={}", asks.cuda.join("+")).expect("text takes text");
        }
        for (what, least) in [("memory", asks.memory), ("cpus", u64::from(asks.cpus))] {
            if least > 0 {
                write!(name, "/{what}={least}").expect("text takes text");
            }
        }
        (Self::parse(&name).as_ref() == Some(self)).then_some(name)
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let (count, gpu) = parts.next()?.split_once("x ")?;
        let cloud = parts.next()?;
        let cloud = Cloud::ALL.into_iter().find(|one| one.as_str() == cloud)?;
        let place = parts.next()?;
        let mut asks = Asks {
            cloud,
            count: count.parse().ok().filter(|n| (1..=GPUS_MAX).contains(n))?,
            cuda: Vec::new(),
            memory: 0,
            cpus: 0,
        };
        for part in parts {
            match part.split_once('=')? {
                ("cuda", versions) => asks.cuda = versions.split('+').map(str::to_owned).collect(),
                ("memory", least) => asks.memory = least.parse().ok()?,
                ("cpus", least) => asks.cpus = least.parse().ok()?,
                (_, _) => return None,
            }
        }
        Some(Self {
            gpu: gpu.to_owned(),
            datacenter: (place != ANYWHERE).then(|| place.to_owned()),
            asks,
        })
    }
}

/// What a row of the catalogue offers, a quote for each place; none when it cannot be rented so, or makes no sense.
pub(super) fn quotes(provider: &Name, row: &Value, asks: &Asks, disk: u64) -> Vec<Quote> {
    let (Some(gpu), Some(price)) = (text(row, "id"), price(row, asks, disk)) else {
        return Vec::new();
    };
    let field = asks.cloud.field();
    let most = row.get("maxCount").and_then(|most| number(most, field));
    let enough = most.is_none_or(|most| most >= f64::from(asks.count));
    if flag(row, field) == Some(false) || !enough || asks.count > GPUS_MAX {
        return Vec::new();
    }
    let quote = |(datacenter, stock): (Option<String>, String)| {
        let facts = facts(row, asks, datacenter.clone(), &stock, disk);
        let choice = Choice {
            gpu: gpu.clone(),
            datacenter,
            asks: asks.clone(),
        };
        Some(Quote {
            provider: provider.clone(),
            id: QuoteId(choice.name()?),
            facts,
            price_per_hour: price,
            disk: DiskRange::default(),
            supply: supply(&stock),
            bid: None,
        })
    };
    places(row).into_iter().filter_map(quote).collect()
}

/// Where a row of the catalogue can be had, each with the word on its stock; without a data center where the scheduler chooses.
pub(super) fn places(row: &Value) -> Vec<(Option<String>, String)> {
    let stock = |row: &Value| text(row, "availability").unwrap_or_default();
    let places = row.get("dataCenters").and_then(Value::as_array);
    let places = places.into_iter().flatten();
    let mut places: Vec<(Option<String>, String)> = places
        .filter_map(|place| Some((Some(text(place, "id")?), stock(place))))
        .collect();
    if places.is_empty() {
        places.push((None, stock(row)));
    }
    places
}

/// A word on the stock as a number that can be counted on.
pub(super) fn supply(stock: &str) -> Supply {
    Supply::Many(match stock {
        "NONE" => 0,
        "MEDIUM" => 4,
        "HIGH" => 16,
        _ => 1,
    })
}

/// All in: GPUs and container disk.
fn price(row: &Value, asks: &Asks, disk: u64) -> Option<MicroDollars> {
    let one = money(number(row.get("price")?, asks.cloud.field())?)?;
    let gpus = one.0.checked_mul(u64::from(asks.count))?;
    Some(MicroDollars(gpus.checked_add(disk_per_hour(disk).0)?))
}

/// What so much container disk costs for an hour.
pub(super) fn disk_per_hour(gigabytes: u64) -> MicroDollars {
    MicroDollars(gigabytes.saturating_mul(DISK_MONTH).div_ceil(MONTH))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and the number is not negative"
)]
fn vram_gib(row: &Value) -> u64 {
    number(row, "memory").map_or(0, |memory| memory.clamp(0.0, 65_536.0) as u64)
}

/// What a quote claims.
fn facts(row: &Value, asks: &Asks, datacenter: Option<String>, stock: &str, disk: u64) -> Facts {
    let vram = vram_gib(row);
    let gpu = Gpu {
        model: text(row, "id").unwrap_or_default(),
        vram: Bytes::gib(vram),
    };
    let memory = asks.memory.max(vram.min(MEMORY_GIB_MAX)) * u64::from(asks.count);
    let cuda = asks.cuda.first().cloned();
    let cuda = cuda.or_else(|| cuda_versions(row, false).into_iter().next());
    let mut extra = BTreeMap::from([("cloud".to_owned(), asks.cloud.field().to_owned())]);
    if !stock.is_empty() {
        extra.insert("availability".to_owned(), stock.to_lowercase());
    }
    extra.extend(text(row, "id").map(|id| (INSTANCE_TYPE.to_owned(), id)));
    extra.extend(pool(row).map(|(_, pool)| (POOL.to_owned(), pool)));
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: asks.cpus.max(CPUS) * asks.count,
        memory: Bytes::gib(memory),
        disk: Bytes::gib(disk),
        gpus: vec![gpu; usize::try_from(asks.count).unwrap_or(0)],
        cuda,
        region: datacenter.clone(),
        datacenter,
        extra,
        ..Facts::default()
    }
}

/// Network volumes: each is in one data center.
pub(super) fn volumes(body: &Value) -> Result<Vec<Volume>, Fault> {
    let volume = |row: &Value| {
        let name = text(row, "name").unwrap_or_default();
        Volume::in_region(text(row, "id")?, name, text(row, "dataCenter")?)
    };
    let rows = rows(body, "networkVolumes")?;
    let all: Option<Vec<Volume>> = rows.iter().map(volume).collect();
    all.ok_or_else(|| Fault::shape("a network volume has no `id` or no data center"))
}

/// A type of GPU and the pool that it is in, where it is in one.
pub(super) fn pool(row: &Value) -> Option<(String, String)> {
    Some((text(row, "id")?, text(row, "pool")?))
}

/// What a pod's own record says it is.
pub(super) fn pod_facts(pod: &Value) -> Facts {
    let gpu = pod.get("gpu").cloned().unwrap_or_default();
    let whole = |value: &Value, field: &str| number(value, field).filter(|n| *n >= 0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float saturates, and the number is not negative"
    )]
    let small = |number: f64| number.min(65_536.0) as u32;
    let count = whole(&gpu, "count").map(|count| small(count).min(GPUS_MAX));
    let model = text(&gpu, "id");
    let flavor = pod.get("cpu").and_then(|cpu| text(cpu, "id"));
    let kind = model.clone().or(flavor);
    let kind = kind.map(|id| (INSTANCE_TYPE.to_owned(), id));
    // How many there are is not guessed: what is claimed of a pod is held against it.
    let gpus = model.zip(count).map(|(model, count)| {
        let one = Gpu {
            model,
            vram: Bytes(0),
        };
        vec![one; usize::try_from(count).unwrap_or(0)]
    });
    let compute = [&gpu, pod.get("cpu").unwrap_or(&Value::Null)];
    let of = |field: &str| {
        compute
            .iter()
            .find_map(|part| whole(part, field))
            .map_or(0, small)
    };
    let datacenter = text(pod, "dataCenterId");
    let cloud = text(pod, "cloud").map(|cloud| ("cloud".to_owned(), cloud.to_lowercase()));
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: of("vcpuCount"),
        memory: Bytes::gib(of("memory").into()),
        disk: Bytes::gib(whole(pod, "disk").map_or(0, small).into()),
        gpus: gpus.unwrap_or_default(),
        cuda: text(pod, "cudaVersion"),
        region: datacenter.clone(),
        datacenter,
        extra: cloud.into_iter().chain(kind).collect(),
        ..Facts::default()
    }
}
