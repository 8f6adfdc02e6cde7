//! Keys on which machines may be taken, by where they are and what their provider calls them.
//!
//! Definitions alone, as all of [`super`].

use super::{Change, KEY, Key, Kind, Need, TableDef};

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

pub(super) const MOUNTS: Key = Key {
    name: "mounts",
    kind: Kind::Tables(&MOUNT),
    need: Need::Optional("none"),
    change: Change::Replace,
    doc: "Volumes that are there already, mounted on each of its machines: file systems of `lambda`, network volumes of `runpod`, \
          volumes of `vastai`. A machine is rented where its volume is and nowhere else: in its region, its data center, or on \
          its host. stageline makes no volume and deletes none: each outlives the machines, and its provider bills it \
          until you delete it.",
    example: "[{ volume = \"data\", at = \"/lambda/nfs/data\" }]",
};

static MOUNT: TableDef = TableDef {
    doc: "A volume, and where it is on the machine.",
    keys: &[
        Key {
            name: "volume",
            kind: Kind::Text,
            need: Need::Required,
            change: Change::Replace,
            doc: "By its name at the provider, or by its id; at `vastai` by its id. When an offer of another provider is taken, one \
                  of that name is looked for there.",
            example: "\"data\"",
        },
        Key {
            name: "at",
            kind: Kind::Text,
            need: Need::Required,
            change: Change::Replace,
            doc: "The folder at which it is mounted, as a whole path; at `lambda` under `/lambda/nfs`, `/home` or `/data`.",
            example: "\"/lambda/nfs/data\"",
        },
        Key {
            name: "read_only",
            kind: Kind::Bool,
            need: Need::Default("false"),
            change: Change::Replace,
            doc: "Whether its machines can only read it. No provider that there is an adapter for can do that: `true` is refused, and \
                  never mounted writable.",
            example: "false",
        },
    ],
};
