//! The disk that is asked for where the file says none: room for what a machine's stages read, and for what comes with it.

use std::collections::BTreeMap;

use super::draft::measured;
use crate::id::{Name, Sha256};
use crate::resource::{DISK, LeaseReceipt, LeaseSpec, PipelineShare, Spec};
use crate::unit::Bytes;

/// Room beside the models: for the image, where it counts, the agent, logs, and what a setup installs.
const BESIDE: Bytes = Bytes::gib(10);

/// What the model files of a machine take: an agent keeps the parts that its stages read, of each model once.
pub(super) fn files(shares: &BTreeMap<Name, PipelineShare>) -> Bytes {
    let mut models: BTreeMap<Sha256, (u64, u64)> = BTreeMap::new();
    for shard in shares.values().filter_map(|share| share.shard.as_ref()) {
        let (parts, whole) = models.entry(shard.model.sha256).or_default();
        *parts = parts.saturating_add(shard.bytes.0);
        *whole = shard.model.size.0;
    }
    let taken = models.values().map(|(parts, whole)| *parts.min(whole));
    Bytes(taken.fold(0, u64::saturating_add))
}

/// The disk for so much, in whole GiB.
pub(super) fn disk_for(files: Bytes) -> Bytes {
    let gib = Bytes::gib(1).0;
    let all = files.0.saturating_add(BESIDE.0).div_ceil(gib);
    DISK.max(Bytes(all.saturating_mul(gib)))
}

/// Why a machine that was made with another disk must be another one. Where models alone say how large it is, only when they
/// have grown and do not fit any more: a machine that was made before they were asked for is not given up for them, and neither is
/// one whose models went away.
pub(super) fn other_disk(
    spec: &LeaseSpec,
    before: &LeaseSpec,
    receipt: &LeaseReceipt,
) -> Option<String> {
    let (was, is) = (before.disk, spec.disk);
    let Some(files) = spec.files else {
        // Models that are not served any more leave room behind, and a disk that nobody chose.
        let left_over = before.files.is_some() && is < was;
        return (was != is && !left_over)
            .then(|| format!("its disk was made with the machine: {was} then, {is} now"));
    };
    let grown = was < is && before.files.is_some_and(|before| before < files);
    let fits = measured(receipt).is_none_or(|facts| facts.disk >= is);
    (grown && !fits)
        .then(|| format!("its models take {files} now, and its disk was made with {was}"))
}

/// The spec of a lease with the disk that its machine was made with: nothing but another machine has another one, so that what is
/// recorded of one that is kept goes on to say how it was made.
pub fn as_made(desired: &Spec, recorded: Option<&Spec>) -> Spec {
    let (Spec::Lease(spec), Some(Spec::Lease(before))) = (desired, recorded) else {
        return desired.clone();
    };
    let mut spec = spec.clone();
    if (spec.disk, spec.files) != (before.disk, before.files) {
        let spec = spec.to_mut();
        (spec.disk, spec.files) = (before.disk, before.files);
    }
    Spec::Lease(spec)
}

/// What is to be said of a machine that is kept and has less disk than its models take alone.
pub(super) fn too_small(spec: &LeaseSpec, receipt: &LeaseReceipt) -> Option<String> {
    let (files, has) = (spec.files?, measured(receipt)?.disk);
    (has < files).then(|| {
        format!(
            "its models take {files}, and its machine has {has} of disk: where they are not there already they do not fit, and \
             `disk = {}` in its table, or `--replace`, makes another one",
            spec.disk.0.div_ceil(Bytes::gib(1).0)
        )
    })
}
