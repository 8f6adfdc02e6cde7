//! Keys that say what became of leases: moved to another name, or no longer ours. They are no wishes but history, and may
//! stay in the file for as long as somebody may still have the old state.

use super::{Change, KEY, Key, Kind, Need, TableDef};

pub(super) static MOVED: TableDef = TableDef {
    doc: "A lease, or a table of leases, that has another name now.",
    keys: &[
        Key {
            name: "from",
            kind: Kind::LeaseRange,
            need: Need::Required,
            change: Change::None,
            doc: "The old address; no longer declared.",
            example: "\"lease.box\"",
        },
        Key {
            name: "to",
            kind: Kind::LeaseRange,
            need: Need::Required,
            change: Change::None,
            doc: "The new address. Its table is declared, or moved on by another entry.",
            example: "\"lease.node\"",
        },
    ],
};

pub(super) static REMOVED: TableDef = TableDef {
    doc: "A lease, or a table of leases, that is no longer declared.",
    keys: &[
        Key {
            name: "from",
            kind: Kind::LeaseRange,
            need: Need::Required,
            change: Change::None,
            doc: "The address; no longer declared.",
            example: "\"lease.box\"",
        },
        Key {
            name: "release",
            kind: Kind::Bool,
            need: Need::Default("true"),
            doc: "Whether its machine is ended. With `false` it is only taken out of the state: it goes on billing, and \
                  nobody looks after it. `stageline import` takes it back.",
            example: "false",
            ..KEY
        },
    ],
};
