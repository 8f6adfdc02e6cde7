//! Keys on which machines may be taken, by where they are and what their provider calls them.
//!
//! Definitions alone, as all of [`super`].

use super::{Change, KEY, Key, Kind, Need};

pub(super) const REGIONS: Key = Key {
    name: "regions",
    kind: Kind::Texts,
    need: Need::Optional("all"),
    doc: "Where new machines may be, in order of preference: each as `where` names regions, a code of the provider, a country or a \
          continent. The price comes first; of offers of the same price the one whose region stands earlier is taken. Machines that \
          are held stay where they are. `local` has none.",
    example: "[\"us-west-1\", \"US\", \"EU\"]",
    ..KEY
};

pub(super) const INSTANCE_TYPES: Key = Key {
    name: "instance_types",
    kind: Kind::Texts,
    need: Need::Optional("all"),
    doc: "`lambda` and `runpod`: of which types new machines may be, by the provider's own names: at `lambda` such as `gpu_1x_a10`, at \
          `runpod` a type of GPU such as `NVIDIA GeForce RTX 4090`, or a pool such as `ADA_24`. Machines that are held stay.",
    example: "[\"gpu_1x_a10\", \"gpu_1x_a6000\"]",
    ..KEY
};

pub(super) const INSTANCE_TYPE: Key = Key {
    name: "instance_type",
    kind: Kind::Text,
    need: Need::Optional("any"),
    change: Change::Words("replaces a lease whose machine is of another type; nothing else"),
    doc: "`lambda` and `runpod`: of which type its machines are, by the provider's own name, as in `instance_types` of the provider. It \
          is a term beside those of `where`: `provider.instance_type=...`.",
    example: "\"gpu_1x_a10\"",
};
