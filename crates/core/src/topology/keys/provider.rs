//! Keys of providers, and what offers of one's own programs claim.
//!
//! Definitions alone, as all of [`super`].

use super::placing::{INSTANCE_TYPES, REGIONS};
use super::{COUNT_MAX, Change, Choice, KEY, Key, Kind, Need, TableDef};

/// The adapters that exist.
const PROVIDER_KINDS: &[Choice] = &[
    (
        "local",
        "process trees on this computer; no account, no network",
    ),
    ("vastai", "machines of the marketplace vast.ai"),
    ("lambda", "machines of Lambda Cloud"),
    (
        "runpod",
        "pods of RunPod, by its API v2; they need a `[relay]`",
    ),
    (
        "ssh",
        "machines of your own, each claimed, used and given back over SSH",
    ),
    (
        "command",
        "machines that programs of your own get and give back",
    ),
];

pub(super) static PROVIDER: TableDef = TableDef {
    doc: "Who sells machines.",
    keys: &[
        Key {
            name: "kind",
            kind: Kind::Choice(PROVIDER_KINDS),
            need: Need::Required,
            change: Change::Words("replaces its leases"),
            doc: "Which adapter.",
            example: "\"local\"",
        },
        Key {
            name: "slots",
            kind: Kind::Integer {
                min: 1,
                max: 100_000,
            },
            need: Need::Optional("the number of cores"),
            doc: "`local`: the most machines at once.",
            example: "2",
            ..KEY
        },
        Key {
            name: "price_per_hour",
            kind: Kind::Money { zero: true },
            need: Need::Default("0"),
            doc: "`local`: what a machine is said to cost, for rehearsals. 0 is free.",
            example: "0.10",
            ..KEY
        },
        Key {
            name: "api_key",
            kind: Kind::Secret,
            need: Need::Optional(
                "the provider's own environment variable: `VAST_API_KEY`, `LAMBDA_API_KEY`, `RUNPOD_API_KEY`",
            ),
            doc: "Clouds: the key of the account. Recorded by reference and fingerprint only, so that machines can be \
                  ended when this table is gone.",
            example: "{ env = \"VAST_API_KEY\" }",
            ..KEY
        },
        Key {
            name: "url",
            kind: Kind::Url,
            need: Need::Optional("the provider's own"),
            doc: "Clouds: where the API is. A simulator (`stageline sim`) prints what to write here; `#speed=N` at its end says \
                  that its clock runs N times as fast, and is taken on the loopback only.",
            example: "\"http://127.0.0.1:8700\"",
            ..KEY
        },
        Key {
            name: "ssh_key",
            kind: Kind::Text,
            need: Need::Optional("the only one that the account has"),
            doc: "`lambda`: the SSH key of the account, by its name there, whose owner can log in to machines. Where the agent is \
                  fetched a machine is made with it; where it is pushed, a machine is made with a key of its own, and this one is let in \
                  beside it, if it is named.",
            example: "\"laptop\"",
            ..KEY
        },
        REGIONS,
        INSTANCE_TYPES,
        Key {
            name: "max_leases",
            kind: Kind::Integer {
                min: 1,
                max: COUNT_MAX,
            },
            need: Need::Optional("no cap"),
            doc: "Clouds, and `command` with `list`: the most machines at once on its account that carry our mark, over all topologies that \
                  share it. Counted from the provider's own listing, while planning and again before and after each launch: of topologies that \
                  launch in the same moment, the machine with the higher name gives way.",
            example: "4",
            ..KEY
        },
        Key {
            name: "max_total_per_hour",
            kind: Kind::Money { zero: false },
            need: Need::Optional("no cap"),
            doc: "Clouds, and `command` with `list`: the most that all these machines together may cost. While one of another topology has \
                  no price that could be counted, nothing is rented.",
            example: "6.00",
            ..KEY
        },
        Key {
            name: "hosts",
            kind: Kind::Tables(&HOST),
            need: Need::Optional("required by `ssh`"),
            doc: "`ssh`: the machines. Each is taken by one lease at a time: who has it is written on the host itself, so that others see \
                  it too.",
            example: "[{ address = \"gpu1.example.org\", user = \"ubuntu\" }]",
            ..KEY
        },
        Key {
            name: "acquire",
            kind: Kind::Argv,
            need: Need::Optional("required by `command`"),
            doc: "`command`: the program that gets a machine, with its arguments. A path starts at the topology's folder. The page on \
                  providers of your own has the contract.",
            example: "[\"./pool.sh\", \"acquire\"]",
            ..KEY
        },
        Key {
            name: "release",
            kind: Kind::Argv,
            need: Need::Optional("required by `command`"),
            doc: "`command`: the program that gives a machine back; run until it succeeds, and twice does no harm.",
            example: "[\"./pool.sh\", \"release\"]",
            ..KEY
        },
        Key {
            name: "list",
            kind: Kind::Argv,
            need: Need::Optional("what was got from here is all that is known"),
            doc: "`command`: the program that prints every machine that there is. Without it nobody can see machines that no record \
                  here has, and a machine counts as gone when `release` says so.",
            example: "[\"./pool.sh\", \"list\"]",
            ..KEY
        },
        Key {
            name: "facts",
            kind: Kind::Argv,
            need: Need::Optional("what `claims` says"),
            doc: "`command`: the program that prints what a machine of an offer is, in the words of `claims`, as JSON.",
            example: "[\"./pool.sh\", \"facts\"]",
            ..KEY
        },
        Key {
            name: "price",
            kind: Kind::Argv,
            need: Need::Optional("`claims.price_per_hour`"),
            doc: "`command`: the program that prints what a machine of an offer costs per hour now, in dollars.",
            example: "[\"./pool.sh\", \"price\"]",
            ..KEY
        },
        Key {
            name: "timeout",
            kind: Kind::Duration,
            need: Need::Optional("2m"),
            doc: "`command`: how long each program may take before it is ended. `acquire` ends when the machine exists, not when it is \
                  ready.",
            example: "\"5m\"",
            ..KEY
        },
    ],
};

static HOST: TableDef = TableDef {
    doc: "A machine of your own, which an SSH server lets you in to.",
    keys: &[
        Key {
            name: "address",
            need: Need::Required,
            doc: "Its name or address.",
            example: "\"gpu1.example.org\"",
            ..KEY
        },
        Key {
            name: "user",
            need: Need::Optional("the user who runs stageline"),
            doc: "As whom stageline logs in. All who share a host log in as the same user, since a claim is in that user's home.",
            example: "\"ubuntu\"",
            ..KEY
        },
        Key {
            name: "port",
            kind: Kind::Integer {
                min: 1,
                max: 65_535,
            },
            need: Need::Default("22"),
            doc: "Where its SSH server listens.",
            example: "2222",
            ..KEY
        },
        Key {
            name: "key",
            kind: Kind::File,
            need: Need::Optional("the SSH agent is asked (`SSH_AUTH_SOCK`)"),
            doc: "The file of the private key to log in with, relative to the topology file. One that others can read is refused; one with a \
                  passphrase belongs into an SSH agent.",
            example: "\"keys/id_ed25519\"",
            ..KEY
        },
        Key {
            name: "host_key",
            need: Need::Optional("recorded when the host is met first"),
            doc: "The host's own public key. Another one is refused. Written here it counts more than what is recorded: that is how a host \
                  that was set up anew is let in again.",
            example: "\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKq0\"",
            ..KEY
        },
        Key {
            name: "price_per_hour",
            kind: Kind::Money { zero: true },
            need: Need::Default("0"),
            doc: "What an hour of it counts for in plans and in the ledger; nobody bills it. 0 is free: then nobody has to see to its end.",
            example: "0.10",
            ..KEY
        },
        Key {
            name: "tags",
            kind: Kind::Texts,
            need: Need::Optional("none"),
            doc: "Words of your own, for `where`: `provider.tags=*fast*`.",
            example: "[\"fast\"]",
            ..KEY
        },
    ],
};

/// The claims of an offer of one's own programs.
pub(super) const CLAIMS: Key = Key {
    name: "claims",
    kind: Kind::Table(&CLAIMED),
    need: Need::Optional("required by offers of `command`"),
    doc: "`command` and `ssh`: what its machines are said to be, since nobody else can tell before one is there. `where` matches it, and what the \
          machine is found to be is held against it. What is not said is matched by nothing; at `ssh` \
          it is what is found on the host, and a claim is for what cannot be measured, such as `region`.",
    example: "{ cpus = 8, memory = 32, price_per_hour = 0.40 }",
    ..KEY
};

static CLAIMED: TableDef = TableDef {
    doc: "What the machines of an offer are said to be.",
    keys: &[
        claim("os", Kind::Text, "Operating system.", "\"linux\""),
        claim("arch", Kind::Text, "Processor architecture.", "\"x86_64\""),
        claim("cpus", COUNT, "Logical processors.", "8"),
        claim("memory", SIZE, "Main memory.", "32"),
        claim("disk", SIZE, "Disk.", "100"),
        claim(
            "gpu",
            Kind::Text,
            "Model of its GPUs, as `nvidia-smi` prints it.",
            "\"NVIDIA GeForce RTX 4090\"",
        ),
        Key {
            need: Need::Optional("1 where `gpu` is given, else 0"),
            ..claim("gpus", GPUS, "How many GPUs.", "2")
        },
        claim("vram", SIZE, "Memory of each GPU.", "24"),
        claim(
            "region",
            Kind::Text,
            "Where it is, as `where` names regions.",
            "\"EU\"",
        ),
        claim(
            "tools",
            Kind::Texts,
            "Programs that are present.",
            "[\"docker\"]",
        ),
        Key {
            need: Need::Optional("required without the program `price`"),
            ..claim(
                "price_per_hour",
                Kind::Money { zero: true },
                "What a machine costs, all in. 0 is free: then nobody has to see to its end.",
                "0.40",
            )
        },
    ],
};

const COUNT: Kind = Kind::Integer {
    min: 1,
    max: 100_000,
};

const GPUS: Kind = Kind::Integer { min: 1, max: 64 };

const SIZE: Kind = Kind::Size { min_gib: 1 };

const fn claim(name: &'static str, kind: Kind, doc: &'static str, example: &'static str) -> Key {
    Key {
        name,
        kind,
        need: Need::Optional("nothing is claimed"),
        change: Change::None,
        doc,
        example,
    }
}
