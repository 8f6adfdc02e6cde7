//! Keys of offers and leases on how a machine is got when the first offer fails.
//!
//! Definitions alone, as all of [`super`].

use super::{Change, Choice, KEY, Key, Kind, Need, TableDef};

pub(super) const ACQUIRE_TIMEOUT: Key = Key {
    name: "acquire_timeout",
    kind: Kind::Duration,
    need: Need::Optional("by provider and shape"),
    change: Change::None,
    doc: "The longest wait from create to ready. Each phase of a boot has a deadline of its own besides; what takes longer for a large image or \
          machine, or goes over a line of yours, gets as much more as this is longer than usual.",
    example: "\"10m\"",
};

pub(super) const ATTEMPTS: Key = Key {
    name: "attempts",
    kind: Kind::Integer { min: 1, max: 100 },
    need: Need::Default("5"),
    change: Change::None,
    doc: "How many offers are tried before a machine is given up: a create that is refused because the offer is gone, and a \
          machine that does not become ready, are each one. No offer is tried twice.",
    example: "3",
};

/// What may be taken when the offers on the plan's shortlist are used up.
const REQUOTES: &[Choice] = &[
    (
        "within-ceiling",
        "what is quoted then, under the same requirement and ceiling; the plan says so",
    ),
    ("never", "nothing; the step fails"),
];

pub(super) const REQUOTE: Key = Key {
    name: "requote",
    kind: Kind::Choice(REQUOTES),
    need: Need::Default("within-ceiling"),
    change: Change::None,
    doc: "What may be taken when the offers on the plan's shortlist are used up. Offers expire faster than reviews.",
    example: "\"never\"",
};

pub(super) const UNGUARDED: Key = Key {
    name: "unguarded",
    kind: Kind::Bool,
    need: Need::Default("false"),
    doc: "Whether its machines may be rented although nobody ends them while you are away: no watcher runs, or `protect` \
          keeps it off, and they do not end themselves. Without it such a plan is refused.",
    example: "true",
    ..KEY
};

pub(super) const WAIT_FOR_CAPACITY: Key = Key {
    name: "wait_for_capacity",
    kind: Kind::Duration,
    need: Need::Optional("apply does not wait"),
    doc: "How long `apply` waits and asks again when nothing that fits can be had. It needs `requote`. Meanwhile \
          nothing is rented for this machine.",
    example: "\"2h\"",
    ..KEY
};

pub(super) const GANG: Key = Key {
    name: "gang",
    kind: Kind::Bool,
    need: Need::Optional("true when its machines serve one pipeline"),
    doc: "Whether its machines come up all or none: when one cannot be had in time, those of this table that came up \
          and serve nothing yet are released.",
    example: "false",
    ..KEY
};

pub(super) const GANG_TIMEOUT: Key = Key {
    name: "gang_timeout",
    kind: Kind::Duration,
    need: Need::Optional("the longest `acquire_timeout` of its machines, fail-over included"),
    doc: "The longest from the first create until all machines of the gang are ready; where `wait_for_capacity` is given, from the \
          first machine that is up.",
    example: "\"30m\"",
    ..KEY
};

const DOMAINS: &[Choice] = &[
    ("region", "as the provider names it"),
    ("datacenter", "as the provider names it; not all tell"),
    ("host", "one computer; not all tell"),
];

/// Machines that are out of place are replaced, and no others.
const MOVES: Change = Change::Words("replaces the machines that no longer fit, and no others");

pub(super) const SAME: Key = Key {
    name: "same",
    kind: Kind::Choice(DOMAINS),
    need: Need::Optional("anywhere"),
    change: MOVES,
    doc: "What all machines of the table have in common. The least total price within one such place is taken. Of a \
          provider that does not tell it, nothing fits.",
    example: "\"region\"",
};

pub(super) const SPREAD: Key = Key {
    name: "spread",
    kind: Kind::Choice(DOMAINS),
    need: Need::Optional("anywhere"),
    change: MOVES,
    doc: "What no two machines of the table have in common, so that they do not fail together. Of a provider that does \
          not tell it, nothing fits.",
    example: "\"host\"",
};

/// They are part of each stage and not of the machine, so that a change starts workers anew and rents nothing.
const ON_ITS_STAGES: Change = Change::Words("updates the stages on its machines");

pub(super) const LEASE_ENV: Key = Key {
    name: "env",
    kind: Kind::Env,
    need: Need::Optional("none"),
    change: ON_ITS_STAGES,
    doc: "Environment variables of every worker on its machines, under those of the pipeline and of the stage, of `setup`, \
          and of shells that its agent opens. Values are strings; a secret goes into `secrets`.",
    example: "{ RAYON_NUM_THREADS = \"1\" }",
};

pub(super) const LEASE_SECRETS: Key = Key {
    name: "secrets",
    kind: Kind::SecretEnv,
    need: Need::Optional("none"),
    change: ON_ITS_STAGES,
    doc: "Secret environment variables of every worker on its machines, each by reference, under those of the pipeline and of \
          the stage, and of `setup`.",
    example: "{ HF_TOKEN = { env = \"HF_TOKEN\" } }",
};

pub(super) const SETUP: Key = Key {
    name: "setup",
    kind: Kind::Text,
    need: Need::Optional("none"),
    change: Change::Replace,
    doc: "A script that each of its machines runs once, before it is ready and anything else is put there: the script itself, \
          or, as one word with a `/` or the ending `.sh`, the path of a file with it, relative to the topology file. It is \
          run by `sh -e`, or by what it names after `#!`, as the user of the agent, in the agent's folder, with `env` and \
          `secrets` of the lease. What it prints is in the machine's log (`stageline logs lease.NAME[0]`). When it fails, or \
          takes longer than 30 minutes (than `acquire_timeout`, where that is given), the machine is released and no other \
          one is tried. Its text is in plans and in the state: no secret may stand in it. In a string, `$${X}` writes the \
          shell's `${X}`.",
    example: "\"apt-get update && apt-get install -y libgomp1\"",
};

pub(super) const REGISTRY: Key = Key {
    name: "registry",
    kind: Kind::Table(&REGISTRY_TABLE),
    need: Need::Optional("anybody may pull `image`"),
    change: Change::Replace,
    doc: "Who may pull a private `image`; for `vastai` and `runpod`. At `vastai` it goes with the request for the machine; at \
          `runpod` it is kept in the account as a credential named like the pod, `sl-...`, which is removed when no pod uses it any \
          more. Whoever has the machine's host, or the account, may see it: let it be a token that can do nothing but pull.",
    example: "{ server = \"ghcr.io\", username = \"puller\", password = { env = \"GHCR_TOKEN\" } }",
};

static REGISTRY_TABLE: TableDef = TableDef {
    doc: "A login at the registry of `image`.",
    keys: &[
        Key {
            name: "server",
            kind: Kind::Text,
            need: Need::Required,
            change: Change::Replace,
            doc: "The registry: what stands before the first `/` of `image`, or `docker.io`.",
            example: "\"ghcr.io\"",
        },
        Key {
            name: "username",
            kind: Kind::Text,
            need: Need::Required,
            change: Change::Replace,
            doc: "Who pulls.",
            example: "\"puller\"",
        },
        Key {
            name: "password",
            kind: Kind::Secret,
            need: Need::Required,
            change: Change::Replace,
            doc: "Its password or token.",
            example: "{ env = \"GHCR_TOKEN\" }",
        },
    ],
};

pub(super) const SPOT: Key = Key {
    name: "spot",
    kind: Kind::BoolOrTable(&SPOT_TABLE),
    need: Need::Default("false"),
    change: Change::Words("replaces the resource; `on_interrupt` alone updates in place"),
    doc: "Whether its machines are bid for, and may be taken away again when somebody bids more; for `vastai`, and a fault with a \
          provider that takes no bids. `true` bids the least that is taken, read again right before the request. The price of \
          such a machine is the bid and its disk. One that is taken away stands still and bills its disk until it is released: \
          by the next `apply`, by `destroy`, or by a watcher at once. A lease that says it decides for its machines; of two bids \
          the smaller one holds.",
    example: "true",
};

/// What follows when a machine is taken away.
const ON_INTERRUPT: &[Choice] = &[
    (
        "replace",
        "it is released, and another one is rented on the same terms",
    ),
    (
        "on-demand",
        "it is released, and the next one is rented on demand under the same ceiling; so it stays until `--replace`, or until \
         `spot` says something else",
    ),
    (
        "end",
        "it is released, and the lease stays ended, as by a limit of its own; `apply --renew` rents it again",
    ),
];

static SPOT_TABLE: TableDef = TableDef {
    doc: "The terms of a bid.",
    keys: &[
        Key {
            name: "bid",
            kind: Kind::Money { zero: false },
            need: Need::Optional("the least that is taken"),
            change: Change::Replace,
            doc: "What is bid: dollars per hour for the whole machine, without its disk. That is what it costs, also where less \
                  would do. Offers that take no such bid do not fit.",
            example: "0.21",
        },
        Key {
            name: "on_interrupt",
            kind: Kind::Choice(ON_INTERRUPT),
            need: Need::Default("replace"),
            change: Change::Update,
            doc: "What follows when a machine that was ready is taken away. A watcher only releases it; what is rented is `apply`'s. \
                  One that is taken away before it is ready is a try that failed, and the next offer follows.",
            example: "\"on-demand\"",
        },
    ],
};
