//! The one definition of every key of the topology file.
//!
//! The reader, the JSON Schema, `explain` and the reference page all come from [`ROOT`]. A key that is not here is
//! unknown to all of them; a key that is here is read (a test sets each to a wrong type and wants an error at its place).
//! Keys that are not built yet are not here.

mod elsewhere;
mod moving;
mod placing;
mod provider;
mod renting;
mod serving;

use elsewhere::{RELAY, STATE};
use moving::{MOVED, REMOVED};
use placing::{INSTANCE_TYPE, MOUNTS};
use provider::{CLAIMS, PROVIDER};
use renting::{
    ACQUIRE_TIMEOUT, ATTEMPTS, GANG, GANG_TIMEOUT, LEASE_ENV, LEASE_SECRETS, REGISTRY, REQUOTE,
    SAME, SETUP, SPOT, SPREAD, UNGUARDED, WAIT_FOR_CAPACITY,
};
pub(super) use serving::STAGES_MAX;
use serving::{EXPOSURE, PIPELINE};

/// A table of the file: what it is for, and its keys in the order of the reference page.
#[derive(Debug)]
pub(super) struct TableDef {
    pub(super) doc: &'static str,
    pub(super) keys: &'static [Key],
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) need: Need,
    pub(super) change: Change,
    /// Sentences; the first stands alone in an editor's completion list.
    pub(super) doc: &'static str,
    /// A value as TOML.
    pub(super) example: &'static str,
}

/// Whether a key must be there, and what holds when it is not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    /// Without it the file is wrong.
    Required,
    /// The value that holds without it, as a TOML string's content.
    Default(&'static str),
    /// What holds without it, in words.
    Optional(&'static str),
}

/// What a changed value does to what is already there.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// It changes no resource by itself.
    None,
    /// It updates in place.
    Update,
    /// It replaces the resource.
    Replace,
    /// In words.
    Words(&'static str),
}

/// A value of a fixed set, and what it means.
pub(super) type Choice = (&'static str, &'static str);

/// What a value must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The version of this file's format.
    Version,
    /// A name: `^[a-z][a-z0-9-]{0,23}$`, of at least so many letters; never interpolated.
    OwnName { min: usize },
    /// The name of a table under this one.
    NameOf(&'static str),
    /// Several of them, none twice.
    NamesOf(&'static str),
    /// Any text.
    Text,
    /// Text, number or bool; or a secret by reference.
    Scalar,
    /// `true` or `false`.
    Bool,
    /// One of these.
    Choice(&'static [Choice]),
    /// A whole number.
    Integer { min: u32, max: u32 },
    /// A size, at least so many GiB.
    Size { min_gib: u64 },
    /// US dollars; whether 0 may be written, and means what the doc says.
    Money { zero: bool },
    /// A span of time, from a second to ten years.
    Duration,
    /// The same, or "never".
    Limit,
    /// A file on the operator's computer, relative to the topology file.
    File,
    /// `http://` or `https://`, without credentials.
    Url,
    /// A place for state: a folder or a bucket, without credentials.
    StateUrl,
    /// 64 hexadecimal digits.
    Sha256,
    /// A secret by reference.
    Secret,
    /// A program and its arguments.
    Argv,
    /// Several texts.
    Texts,
    /// Environment variables.
    Env,
    /// Environment variables with secret values.
    SecretEnv,
    /// `a..b`.
    Layers,
    /// A requirement, as text or table.
    Where,
    /// Address and port on the loopback.
    Listen,
    /// The address of one lease.
    LeaseAddress,
    /// Addresses of leases or of whole lease tables.
    LeaseAddresses,
    /// One lease or a table of leases, declared or not.
    LeaseRange,
    /// Variables: a scalar each, or a declaration.
    Vars(&'static TableDef),
    /// A table.
    Table(&'static TableDef),
    /// `true` or `false`, or a table.
    BoolOrTable(&'static TableDef),
    /// One of these, or a table.
    ChoiceOrTable(&'static [Choice], &'static TableDef),
    /// Tables by name.
    Named(&'static TableDef),
    /// A list of tables.
    Tables(&'static TableDef),
    /// A list of the first, or the second.
    Stages(&'static TableDef, &'static TableDef),
}

const KEY: Key = Key {
    name: "",
    kind: Kind::Text,
    need: Need::Optional(""),
    change: Change::None,
    doc: "",
    example: "",
};

/// The whole file.
pub(super) static ROOT: TableDef = TableDef {
    doc: "What should exist: machines wanted now, what runs on them, and how it can be reached.",
    keys: &[
        Key {
            name: "version",
            kind: Kind::Version,
            need: Need::Required,
            doc: "Version of the file format. There is one: 1.",
            example: "1",
            ..KEY
        },
        Key {
            name: "name",
            kind: Kind::OwnName { min: 2 },
            need: Need::Required,
            change: Change::Words(
                "a new topology; the leases of the old one are named and `state mv` is offered",
            ),
            doc: "Name of the topology; part of where its state is kept. Never interpolated.",
            example: "\"llama-pp\"",
        },
        Key {
            name: "vars",
            kind: Kind::Vars(&VAR),
            doc: "Variables, used as `${var.NAME}` in string values. Each is a scalar, which is its default and gives its \
                  type, or a declaration. `--var NAME=VALUE`, `--var-file FILE.toml` and `STAGELINE_VAR_NAME` override, in \
                  that rising order. A string that is nothing but one variable takes the variable's type. `$${` writes `${`.",
            example: "{ count = 2, token = { secret = true } }",
            ..KEY
        },
        Key {
            name: "limits",
            kind: Kind::Table(&LIMITS),
            doc: "Caps on money and machines, checked while planning and again before each launch.",
            example: "{ max_price_per_hour = 2.50 }",
            ..KEY
        },
        Key {
            name: "state",
            kind: Kind::Table(&STATE),
            need: Need::Optional("the folder `state` beside the file"),
            doc: "Where the recorded state of this topology is kept.",
            example: "{ url = \"s3://bucket/prefix\" }",
            ..KEY
        },
        Key {
            name: "relay",
            kind: Kind::Table(&RELAY),
            need: Need::Optional("the public relays of iroh; none for `local`"),
            change: Change::Update,
            doc: "One's own relay for the data plane.",
            example: "{ url = \"https://relay.example.org\" }",
        },
        Key {
            name: "provider",
            kind: Kind::Named(&PROVIDER),
            doc: "Who sells machines.",
            example: "{ here = { kind = \"local\" } }",
            ..KEY
        },
        Key {
            name: "offer",
            kind: Kind::Named(&OFFER),
            doc: "What may be rented, and on which terms.",
            example: "{ small = { provider = \"here\", where = \"memory>=4\" } }",
            ..KEY
        },
        Key {
            name: "lease",
            kind: Kind::Named(&LEASE),
            doc: "Machines wanted now. A lease may carry any key of an offer but `provider` and `claims`, and so narrow it: of two limits \
                  the smaller wins, of two requirements both must hold, and of what is one thing, such as `image`, the one of the lease.",
            example: "{ node = { offers = [\"small\"], count = 2 } }",
            ..KEY
        },
        Key {
            name: "pipeline",
            kind: Kind::Named(&PIPELINE),
            doc: "Models, each served by a chain of workers.",
            example: "{ chat = { engine = \"stub\", stages = { on = \"lease.node\", split = \"auto\" } } }",
            ..KEY
        },
        Key {
            name: "exposure",
            kind: Kind::Named(&EXPOSURE),
            doc: "How, and by whom, pipelines can be reached.",
            example: "{ api = { pipelines = [\"chat\"] } }",
            ..KEY
        },
        Key {
            name: "moved",
            kind: Kind::Tables(&MOVED),
            doc: "Leases that have another name now: their machines stay, and so does what they cost. An entry may stay in \
                  the file; it does nothing once it was applied.",
            example: "[{ from = \"lease.box\", to = \"lease.node\" }]",
            ..KEY
        },
        Key {
            name: "removed",
            kind: Kind::Tables(&REMOVED),
            doc: "Leases that are no longer declared, and what becomes of their machines. Without an entry they are ended.",
            example: "[{ from = \"lease.box\", release = false }]",
            ..KEY
        },
    ],
};

/// The types that a variable can be declared with.
pub(super) const VAR_TYPES: &[Choice] = &[
    ("string", "text"),
    ("integer", "a whole number"),
    ("number", "a number with or without decimals"),
    ("bool", "true or false"),
];

static VAR: TableDef = TableDef {
    doc: "The declaration of a variable.",
    keys: &[
        Key {
            name: "default",
            kind: Kind::Scalar,
            need: Need::Optional("the variable must be given"),
            doc: "The value when none is given: a scalar; for a secret variable a secret by reference.",
            example: "\"models/small.gguf\"",
            ..KEY
        },
        Key {
            name: "type",
            kind: Kind::Choice(VAR_TYPES),
            need: Need::Optional("the type of `default`; without one, what the place of use needs"),
            doc: "What a value must be.",
            example: "\"integer\"",
            ..KEY
        },
        Key {
            name: "required",
            kind: Kind::Bool,
            need: Need::Default("false"),
            doc: "Whether it must be given from outside; then it has no default.",
            example: "true",
            ..KEY
        },
        Key {
            name: "secret",
            kind: Kind::Bool,
            need: Need::Default("false"),
            doc: "Whether it may be used only where a secret is expected. Its value comes from the environment or a file of \
                  variables, never from the command line, which others on the computer can see.",
            example: "true",
            ..KEY
        },
    ],
};

static LIMITS: TableDef = TableDef {
    doc: "Caps on money and machines, checked while planning and again before each launch.",
    keys: &[
        Key {
            name: "max_price_per_hour",
            kind: Kind::Money { zero: true },
            need: Need::Default("10"),
            doc: "The most that one machine may cost. 0 is no cap.",
            example: "2.50",
            ..KEY
        },
        Key {
            name: "max_total_per_hour",
            kind: Kind::Money { zero: false },
            need: Need::Optional("no cap"),
            doc: "The most that all machines together may cost.",
            example: "6.00",
            ..KEY
        },
        Key {
            name: "max_leases",
            kind: Kind::Integer {
                min: 1,
                max: COUNT_MAX,
            },
            need: Need::Optional("no cap"),
            doc: "The most machines at once.",
            example: "4",
            ..KEY
        },
        Key {
            name: "max_spend",
            kind: Kind::Money { zero: false },
            need: Need::Optional("no cap"),
            doc: "The most that may be spent over the topology's life, by the ledger. Once it is reached nothing more is \
                  rented, and `stageline watch` drains and releases what runs; where no watcher runs, that runs on, and so \
                  does what is protected.",
            example: "40.00",
            ..KEY
        },
    ],
};

/// Most machines of one lease table, and of all of them: ten times the largest topology that is measured.
pub(super) const COUNT_MAX: u32 = 100_000;

const WHERE: Key = Key {
    name: "where",
    kind: Kind::Where,
    need: Need::Optional("any machine"),
    change: Change::Words("replaces a lease whose machine no longer fits; nothing else"),
    doc: "Which machines: terms joined by commas that the facts of a machine must all meet, or the same as a table. \
          See the section on requirements.",
    example: "\"gpu=rtx_4090|rtx_3090, vram>=24, region=EU\"",
};

const MAX_PRICE: Key = Key {
    name: "max_price_per_hour",
    kind: Kind::Money { zero: false },
    need: Need::Optional("`limits.max_price_per_hour`"),
    change: Change::None,
    doc: "The most that one machine may cost, all in.",
    example: "0.60",
};

const IMAGE: Key = Key {
    name: "image",
    kind: Kind::Text,
    need: Need::Optional("the provider's plain image"),
    change: Change::Replace,
    doc: "The image that a rented machine runs; at `lambda` a family of its own images, such as `lambda-stack-24-04`. `local` \
          has none.",
    example: "\"ghcr.io/example/stageline:1\"",
};

const AGENT: Key = Key {
    name: "agent",
    kind: Kind::ChoiceOrTable(AGENT_WAYS, &AGENT_FETCH),
    need: Need::Default("auto"),
    change: Change::Replace,
    doc: "How stageline's agent gets onto a rented machine. `local` needs none; at `ssh` it is always pushed, and at `lambda` fetched or \
          pushed. Plans say which way it is. A machine that it is pushed to does not end itself before it is there.",
    example: "\"image\"",
};

/// The ways that need nothing further.
pub(super) const AGENT_WAYS: &[Choice] = &[
    (
        "auto",
        "in the image, where an offer of `vastai` or `runpod` names one; by `command` as its program tells: pushed where that is an SSH \
         address and no agent's; else pushed over SSH",
    ),
    ("image", "it is in the image, as `stageline` on its PATH"),
    (
        "ssh",
        "stageline logs in over SSH, puts it there and starts it",
    ),
];

static AGENT_FETCH: TableDef = TableDef {
    doc: "The machine fetches the agent when it starts.",
    keys: &[
        Key {
            name: "url",
            kind: Kind::Url,
            need: Need::Required,
            change: Change::Replace,
            doc: "Where the machine fetches it from: the program, or a tar archive that has it as `stageline`, with the native workers beside \
                  it. `apply` reads it once before it rents anything.",
            example: "\"https://example.org/x86_64-unknown-linux-gnu.tar\"",
        },
        Key {
            name: "sha256",
            kind: Kind::Sha256,
            need: Need::Required,
            change: Change::Replace,
            doc: "Its digest: nothing else is run.",
            example: "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"",
        },
    ],
};

const IDLE_TIMEOUT: Key = Key {
    name: "idle_timeout",
    kind: Kind::Limit,
    need: Need::Default("20m"),
    change: Change::Update,
    doc: "A machine without work for this long is ended. Requests and tunnels in progress, open shells, deliveries and \
          the time right after it became ready are work; status, logs and probes are not. `never` on a lease that costs money needs \
          `limits.max_spend`.",
    example: "\"20m\"",
};

const MAX_LIFETIME: Key = Key {
    name: "max_lifetime",
    kind: Kind::Limit,
    need: Need::Default("12h"),
    change: Change::Update,
    doc: "A machine this old is ended. `never` on a lease that costs money needs `limits.max_spend`.",
    example: "\"12h\"",
};

/// The key of an offer in a lease, where the offer's value holds without it.
const fn narrowing(key: Key) -> Key {
    Key {
        need: Need::Optional("what the offer says"),
        ..key
    }
}

static OFFER: TableDef = TableDef {
    doc: "What may be rented, and on which terms.",
    keys: &[
        Key {
            name: "provider",
            kind: Kind::NameOf("provider"),
            need: Need::Required,
            change: Change::Words("replaces its leases"),
            doc: "The provider that sells it.",
            example: "\"here\"",
        },
        WHERE,
        INSTANCE_TYPE,
        CLAIMS,
        MAX_PRICE,
        SPOT,
        IMAGE,
        REGISTRY,
        AGENT,
        IDLE_TIMEOUT,
        MAX_LIFETIME,
        ACQUIRE_TIMEOUT,
        ATTEMPTS,
        REQUOTE,
    ],
};

static LEASE: TableDef = TableDef {
    doc: "Machines wanted now. It may carry any key of an offer but `provider` and `claims`, and so narrow it.",
    keys: &[
        Key {
            name: "offers",
            kind: Kind::NamesOf("offer"),
            need: Need::Required,
            doc: "The offers that may be taken; the cheapest machine that fits comes first.",
            example: "[\"small\"]",
            ..KEY
        },
        Key {
            name: "count",
            kind: Kind::Integer {
                min: 1,
                max: COUNT_MAX,
            },
            need: Need::Default("1"),
            change: Change::Words("adds machines, or removes the highest"),
            doc: "How many machines: `lease.NAME[0]` up to `lease.NAME[count - 1]`.",
            example: "2",
        },
        Key {
            name: "disk",
            kind: Kind::Size { min_gib: 1 },
            need: Need::Optional("20, or what its models need"),
            change: Change::Replace,
            doc: "Disk to ask for, where it is rented with the machine; part of its price. A wish, not a filter: `where` has \
                  `disk>=N` for that. Left out, it is what the parts of models take that its stages read, and 10 GiB more, or \
                  20 GiB where that is less; a machine that is there is replaced for it only when its models have grown beyond \
                  its disk.",
            example: "60",
        },
        Key {
            name: "protect",
            kind: Kind::Bool,
            need: Need::Default("false"),
            change: Change::Update,
            doc: "Whether no command may end its machines: `destroy` leaves them out, a plan that would replace or end one \
                  is refused, and a watcher ends none, neither by its limits nor by `max_spend`. So what costs money and does not \
                  end itself needs `unguarded = true`. Machines that end themselves keep `idle_timeout` and `max_lifetime` also \
                  while they are protected. It holds as long as the state says so: set `false` and apply to lift it.",
            example: "true",
        },
        UNGUARDED,
        narrowing(WHERE),
        narrowing(MAX_PRICE),
        narrowing(INSTANCE_TYPE),
        narrowing(SPOT),
        narrowing(IMAGE),
        narrowing(REGISTRY),
        narrowing(AGENT),
        narrowing(IDLE_TIMEOUT),
        narrowing(MAX_LIFETIME),
        narrowing(ACQUIRE_TIMEOUT),
        narrowing(ATTEMPTS),
        narrowing(REQUOTE),
        WAIT_FOR_CAPACITY,
        GANG,
        GANG_TIMEOUT,
        SAME,
        SPREAD,
        MOUNTS,
        LEASE_ENV,
        LEASE_SECRETS,
        SETUP,
    ],
};

impl TableDef {
    /// The key of this name.
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        let keys: &'static [Key] = self.keys;
        keys.iter().find(|key| key.name == name)
    }
}
