//! What was claimed of a machine against what was measured on it, side by side.
//!
//! A claim that nobody made is not held against a machine, nor is what kernels, drivers and file systems keep for
//! themselves. Nothing here knows what was asked for: that is the requirement's.

use std::fmt::Write as _;

use super::requirement::same_model;
use super::{Facts, Gpu};
use crate::unit::Bytes;

/// A machine with less than this of what was claimed is another machine.
const ENOUGH_PERCENT: u64 = 90;

/// Of a disk, file systems and images take more.
const DISK_ENOUGH_PERCENT: u64 = 75;

/// What is less or other than was claimed, in a few words each; empty when the claim holds.
pub fn broken_claims(claimed: &Facts, measured: &Facts) -> Vec<String> {
    let mut broken = Vec::new();
    if !claimed.arch.is_empty() && claimed.arch != measured.arch {
        broken.push(format!(
            "arch {} instead of {}",
            measured.arch, claimed.arch
        ));
    }
    gpus(&claimed.gpus, &measured.gpus, &mut broken);
    if let (Some(claim), Some(found)) = (&claimed.driver, &measured.driver)
        && older(found, claim)
    {
        broken.push(format!("driver {found} instead of {claim}"));
    }
    less(
        "memory",
        claimed.memory,
        measured.memory,
        ENOUGH_PERCENT,
        &mut broken,
    );
    less(
        "disk",
        claimed.disk,
        measured.disk,
        DISK_ENOUGH_PERCENT,
        &mut broken,
    );
    broken
}

fn gpus(claimed: &[Gpu], measured: &[Gpu], broken: &mut Vec<String>) {
    if measured.len() < claimed.len() {
        let (found, claim) = (count(measured), count(claimed));
        broken.push(format!("{found} instead of {claim}"));
        return;
    }
    for (place, (claim, found)) in claimed.iter().zip(measured).enumerate() {
        if !claim.model.is_empty() && !same_model(&claim.model, &found.model) {
            let (found, claim) = (&found.model, &claim.model);
            broken.push(format!("GPU {place} is {found} instead of {claim}"));
        }
        let what = format!("VRAM of GPU {place}");
        less(&what, claim.vram, found.vram, ENOUGH_PERCENT, broken);
    }
}

fn less(what: &str, claim: Bytes, found: Bytes, enough: u64, broken: &mut Vec<String>) {
    let least = u128::from(claim.0) * u128::from(enough);
    if u128::from(found.0) * 100 < least {
        broken.push(format!("{what} {found} instead of {claim}"));
    }
}

/// By the first number alone: patch levels differ between images.
fn older(found: &str, claim: &str) -> bool {
    let major = |text: &str| text.split('.').next()?.parse::<u32>().ok();
    match (major(found), major(claim)) {
        (Some(found), Some(claim)) => found < claim,
        (_, _) => false,
    }
}

/// How many GPUs of which model, in few words.
pub fn count(gpus: &[Gpu]) -> String {
    match gpus.first() {
        None => "no GPU".to_owned(),
        Some(first) if gpus.iter().all(|gpu| gpu.model == first.model) => {
            format!("{} x {}", gpus.len(), first.model)
        }
        Some(_) => {
            let models: Vec<&str> = gpus.iter().map(|gpu| gpu.model.as_str()).collect();
            models.join(" + ")
        }
    }
}

/// Claim and measurement as a small table, a line for each fact.
pub fn side_by_side(claimed: &Facts, measured: &Facts) -> String {
    let vram = |facts: &Facts| {
        let each: Vec<String> = facts.gpus.iter().map(|gpu| gpu.vram.to_string()).collect();
        each.join(", ")
    };
    let some = |text: &Option<String>| text.clone().unwrap_or_default();
    let size = |bytes: Bytes| {
        if bytes.0 == 0 {
            String::new()
        } else {
            bytes.to_string()
        }
    };
    let rows = [
        ("gpu", count(&claimed.gpus), count(&measured.gpus)),
        ("vram", vram(claimed), vram(measured)),
        ("driver", some(&claimed.driver), some(&measured.driver)),
        ("memory", size(claimed.memory), size(measured.memory)),
        ("disk", size(claimed.disk), size(measured.disk)),
        ("arch", claimed.arch.clone(), measured.arch.clone()),
    ];
    let shown: Vec<_> = rows
        .iter()
        .filter(|(_, claim, found)| !claim.is_empty() || !found.is_empty())
        .collect();
    let wide = shown.iter().map(|(_, claim, _)| claim.chars().count());
    let wide = wide.max().unwrap_or(0).max("claimed".len());
    let mut text = format!("{:8}{:wide$}  measured", "", "claimed");
    for (what, claim, found) in shown {
        let claim = if claim.is_empty() { "-" } else { claim };
        let found = if found.is_empty() { "-" } else { found };
        write!(text, "\n{what:8}{claim:wide$}  {found}").expect("text takes text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Facts {
        let gpu = Gpu {
            model: "RTX 4090".to_owned(),
            vram: Bytes::gib(24),
        };
        Facts {
            arch: "x86_64".to_owned(),
            memory: Bytes::gib(64),
            disk: Bytes::gib(100),
            gpus: vec![gpu.clone(), gpu],
            driver: Some("550.54".to_owned()),
            ..Facts::default()
        }
    }

    #[test]
    fn what_drivers_and_kernels_keep_back_breaks_no_claim() {
        let mut measured = machine();
        for gpu in &mut measured.gpus {
            gpu.model = "NVIDIA GeForce RTX 4090".to_owned();
            gpu.vram = Bytes::mib(24_564);
        }
        measured.memory = Bytes::gib(62);
        measured.disk = Bytes::gib(91);
        measured.driver = Some("550.12".to_owned());
        assert_eq!(broken_claims(&machine(), &measured), Vec::<String>::new());
        assert_eq!(
            broken_claims(&Facts::default(), &measured),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_kind_of_broken_claim_is_told() {
        type Case = (fn(&mut Facts), &'static str);
        let cases: [Case; 7] = [
            (
                |facts| facts.arch = "aarch64".to_owned(),
                "arch aarch64 instead of x86_64",
            ),
            (
                |facts| drop(facts.gpus.pop()),
                "1 x RTX 4090 instead of 2 x RTX 4090",
            ),
            (
                |facts| facts.gpus[1].model = "RTX 3090".to_owned(),
                "GPU 1 is RTX 3090 instead of RTX 4090",
            ),
            (
                |facts| facts.gpus[0].vram = Bytes::gib(12),
                "VRAM of GPU 0 12 GiB instead of 24 GiB",
            ),
            (
                |facts| facts.driver = Some("470.1".to_owned()),
                "driver 470.1 instead of 550.54",
            ),
            (
                |facts| facts.memory = Bytes::gib(32),
                "memory 32 GiB instead of 64 GiB",
            ),
            (
                |facts| facts.disk = Bytes::gib(20),
                "disk 20 GiB instead of 100 GiB",
            ),
        ];
        for (change, told) in cases {
            let mut measured = machine();
            change(&mut measured);
            assert_eq!(broken_claims(&machine(), &measured), [told]);
        }
    }

    #[test]
    fn claim_and_measurement_stand_side_by_side() {
        let mut measured = machine();
        measured.gpus.pop();
        measured.driver = None;
        assert_eq!(
            side_by_side(&machine(), &measured),
            "        claimed         measured\n\
             gpu     2 x RTX 4090    1 x RTX 4090\n\
             vram    24 GiB, 24 GiB  24 GiB\n\
             driver  550.54          -\n\
             memory  64 GiB          64 GiB\n\
             disk    100 GiB         100 GiB\n\
             arch    x86_64          x86_64"
        );
    }
}
