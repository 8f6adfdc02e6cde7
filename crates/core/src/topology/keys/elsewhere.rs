//! Keys of what a topology uses and does not make: the place of its state, a relay.

use super::{Change, Key, Kind, Need, TableDef};

pub(super) static STATE: TableDef = TableDef {
    doc: "Where the recorded state is kept. `--state` on the command line comes before it.",
    keys: &[Key {
        name: "url",
        kind: Kind::StateUrl,
        need: Need::Default("file://./state"),
        change: Change::Words("moves nothing by itself: `state push` carries the state over"),
        doc: "A folder, relative to the file, or a bucket: `s3://`, `gs://` or `az://`, then the bucket or container, then a \
              prefix. Credentials come from the usual environment of that cloud, never from here. The store must be able to \
              create an object only where none is.",
        example: "\"s3://bucket/prefix\"",
    }],
};

pub(super) static RELAY: TableDef = TableDef {
    doc: "One's own relay for the data plane.",
    keys: &[
        Key {
            name: "url",
            kind: Kind::Url,
            need: Need::Required,
            change: Change::Update,
            doc: "Where it listens.",
            example: "\"https://relay.example.org\"",
        },
        Key {
            name: "token",
            kind: Kind::Secret,
            need: Need::Optional("the relay asks for none"),
            change: Change::Update,
            doc: "The access token. Each machine keeps it in `relay.json` of its agent's folder, for the owner only; plan and state know a salted digest of it.",
            example: "{ env = \"RELAY_TOKEN\" }",
        },
        Key {
            name: "ca",
            kind: Kind::File,
            need: Need::Optional("the usual roots"),
            change: Change::Update,
            doc: "PEM file of root certificates to trust for it besides the usual ones. Machines are given its content.",
            example: "\"relay-ca.pem\"",
        },
    ],
};
