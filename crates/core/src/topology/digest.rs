//! The digest of a topology: what it says, whatever the files look like.

use serde::Serialize;

use super::Topology;
use crate::id::Fingerprint;

/// Changes whenever the meaning of the serialised fields does, so that digests of two formats never meet.
const FORMAT: &[u8] = b"stageline topology 1\n";

/// Equal for two topologies that say the same: independent of the split into files, comments, the order of keys, the
/// way a requirement is written, and of whether a value came from a variable.
pub fn digest(topology: &Topology) -> Fingerprint {
    let mut bytes = FORMAT.to_vec();
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    topology
        .serialize(&mut serializer)
        .expect("a topology has text keys and UTF-8 paths only, and a vector takes any bytes");
    Fingerprint::of(&bytes)
}
