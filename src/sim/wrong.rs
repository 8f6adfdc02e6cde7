//! What is found on a machine where something else was sold.

use stageline_core::offer::Facts;
use stageline_core::unit::Bytes;

/// A driver that is older than any that is sold.
const OLD_DRIVER: &str = "390.25";

/// Each text is one of [`super::fault::WRONG`].
pub(super) fn found(what: Option<&str>, sold: &Facts) -> Facts {
    let half = |size: Bytes| Bytes(size.0 / 2);
    let mut found = sold.clone();
    match what {
        Some("fewer") => found = fewer(sold),
        Some("mixed") => found = mixed(sold),
        Some("driver") => found.driver = Some(OLD_DRIVER.to_owned()),
        Some("vram") => found
            .gpus
            .iter_mut()
            .for_each(|gpu| gpu.vram = half(gpu.vram)),
        Some("memory") => found.memory = half(sold.memory),
        Some("disk") => found.disk = half(sold.disk),
        Some("arch") if sold.arch == "aarch64" => found.arch = "x86_64".to_owned(),
        Some("arch") => found.arch = "aarch64".to_owned(),
        Some(_) | None => found = other(sold),
    }
    found
}

/// One of its GPUs is another one.
fn mixed(facts: &Facts) -> Facts {
    let mut mixed = facts.clone();
    if let Some(gpu) = mixed.gpus.last_mut() {
        gpu.clone_from(&other(facts).gpus[0]);
    }
    mixed
}

/// Another machine than was sold.
pub(super) fn other(facts: &Facts) -> Facts {
    let mut other = facts.clone();
    for gpu in &mut other.gpus {
        gpu.model = "GTX 1060".to_owned();
        gpu.vram = Bytes::gib(6);
    }
    other.cpus = 1;
    other
}

fn fewer(facts: &Facts) -> Facts {
    let mut fewer = facts.clone();
    fewer.gpus.pop();
    fewer.memory = Bytes(fewer.memory.0 / 4);
    fewer
}
