//! The keys of what serves: pipelines with their models and stages, and exposures.

use super::{Change, Choice, KEY, Key, Kind, Need, TableDef};

/// The engines that exist.
const ENGINES: &[Choice] = &[
    (
        "native",
        "`stageline-worker`: llama architecture models in GGUF files",
    ),
    (
        "command",
        "any program that speaks `stage/1`, named by `command`",
    ),
    (
        "stub",
        "deterministic bytes and tokens, no model: rehearsal and tests",
    ),
];

/// The number formats of a hop.
const DTYPES: &[Choice] = &[
    ("bf16", "16 bits: half the bytes"),
    (
        "f32",
        "32 bits: a split run equals an unsplit one, token for token",
    ),
];

/// Most stages of one pipeline: more than any model has layers to share out.
pub(in crate::topology) const STAGES_MAX: usize = 1024;

pub(super) static PIPELINE: TableDef = TableDef {
    doc: "A model served by a chain of workers.",
    keys: &[
        Key {
            name: "model",
            kind: Kind::Table(&MODEL),
            need: Need::Optional("required by the engine `native`; the others can do without"),
            change: Change::Words("updates its stages"),
            doc: "Which model.",
            example: "{ path = \"models/small.gguf\" }",
        },
        Key {
            name: "engine",
            kind: Kind::Choice(ENGINES),
            need: Need::Default("native"),
            change: Change::Update,
            doc: "What the workers are.",
            example: "\"native\"",
        },
        Key {
            name: "command",
            kind: Kind::Argv,
            need: Need::Optional("required by the engine `command`, refused by the others"),
            change: Change::Update,
            doc: "Program and arguments of a worker, for the engine `command`.",
            example: "[\"python3\", \"worker.py\"]",
        },
        Key {
            name: "engine_args",
            kind: Kind::Texts,
            need: Need::Optional("none"),
            change: Change::Update,
            doc: "More arguments to every worker.",
            example: "[\"--threads\", \"1\"]",
        },
        ENV,
        Key {
            name: "secrets",
            kind: Kind::SecretEnv,
            need: Need::Optional("none"),
            change: Change::Update,
            doc: "Secret environment variables of every worker, each by reference.",
            example: "{ HF_TOKEN = { env = \"HF_TOKEN\" } }",
        },
        Key {
            name: "stages",
            kind: Kind::Stages(&STAGE, &AUTO),
            need: Need::Required,
            change: Change::Words("updates those that changed"),
            doc: "Where the layers go: a list with one table for each stage, the entry first, or `{ on, split = \"auto\" }`. \
                  Another file may change a single stage as `[pipeline.NAME.stage.1]`.",
            example: "[{ on = \"lease.node[0]\", layers = \"0..8\" }, { on = \"lease.node[1]\", layers = \"8..16\" }]",
        },
        Key {
            name: "dtype",
            kind: Kind::Choice(DTYPES),
            need: Need::Default("bf16"),
            change: Change::Update,
            doc: "Numbers on the hop between stages.",
            example: "\"f32\"",
        },
        Key {
            name: "context",
            kind: Kind::Integer {
                min: 16,
                max: 16_777_216,
            },
            need: Need::Optional("the model's"),
            change: Change::Update,
            doc: "Longest prompt and answer together, in tokens.",
            example: "4096",
        },
        Key {
            name: "max_in_flight",
            kind: Kind::Integer { min: 1, max: 1024 },
            need: Need::Optional("four for each stage"),
            change: Change::Update,
            doc: "The most requests at once; one more is answered \"busy\".",
            example: "8",
        },
        Key {
            name: "ready_timeout",
            kind: Kind::Duration,
            need: Need::Default("10m"),
            doc: "The longest wait from the start of the workers until the check is answered.",
            example: "\"10m\"",
            ..KEY
        },
        Key {
            name: "request_timeout",
            kind: Kind::Duration,
            need: Need::Default("5m"),
            doc: "The longest that one request may take.",
            example: "\"5m\"",
            ..KEY
        },
        Key {
            name: "check",
            kind: Kind::Table(&CHECK),
            need: Need::Optional("a prompt answered with one token"),
            doc: "What the pipeline must answer to be ready.",
            example: "{ prompt = \"Hello\", max_tokens = 8 }",
            ..KEY
        },
    ],
};

const ENV: Key = Key {
    name: "env",
    kind: Kind::Env,
    need: Need::Optional("none"),
    change: Change::Update,
    doc: "Environment variables of the workers. Values are strings; a secret goes into `secrets`.",
    example: "{ RAYON_NUM_THREADS = \"1\" }",
};

/// Who can fetch a model.
const FETCHERS: &[Choice] = &[
    ("machine", "the leased machine"),
    (
        "operator",
        "the operator's computer, which then delivers it",
    ),
];

static MODEL: TableDef = TableDef {
    doc: "Which model: one of `path`, `url` and `hf`.",
    keys: &[
        Key {
            name: "path",
            kind: Kind::File,
            need: Need::Optional("`url` or `hf` is given"),
            change: Change::Words("updates the stages"),
            doc: "A GGUF file on the operator's computer, relative to the topology file.",
            example: "\"models/small.gguf\"",
        },
        Key {
            name: "url",
            kind: Kind::Url,
            need: Need::Optional("`path` or `hf` is given"),
            change: Change::Words("updates the stages"),
            doc: "A GGUF file on a server; `sha256` is required then.",
            example: "\"https://models.example.org/small.gguf\"",
        },
        Key {
            name: "hf",
            kind: Kind::Text,
            need: Need::Optional("`path` or `url` is given"),
            change: Change::Words("updates the stages"),
            doc: "A GGUF file on the Hugging Face hub, OWNER/REPOSITORY[@REVISION]/FILE, of the revision `main` where none is \
                  said; `sha256` is required then. For what is not public `token` is an access token of the hub.",
            example: "\"HuggingFaceTB/SmolLM2-135M-Instruct-GGUF/smollm2-135m-instruct-q8_0.gguf\"",
        },
        Key {
            name: "sha256",
            kind: Kind::Sha256,
            need: Need::Optional("not checked; required with `url` and `hf`"),
            change: Change::Words("updates the stages"),
            doc: "The SHA-256 digest of the file, 64 hexadecimal digits.",
            example: "\"b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53\"",
        },
        Key {
            name: "token",
            kind: Kind::Secret,
            need: Need::Optional("none"),
            doc: "The access token for `url` or `hf`, sent as a bearer token by https or on this computer, and to no other host that the server sends on to.",
            example: "{ env = \"MODEL_TOKEN\" }",
            ..KEY
        },
        Key {
            name: "fetch",
            kind: Kind::Choice(FETCHERS),
            need: Need::Default("machine"),
            doc: "Who fetches a `url` or `hf`.",
            example: "\"operator\"",
            ..KEY
        },
    ],
};

static STAGE: TableDef = TableDef {
    doc: "One link of the chain.",
    keys: &[
        Key {
            name: "on",
            kind: Kind::LeaseAddress,
            need: Need::Required,
            change: Change::Update,
            doc: "The machine that it runs on. Several stages, also of several pipelines, may share one.",
            example: "\"lease.node[0]\"",
        },
        Key {
            name: "layers",
            kind: Kind::Layers,
            need: Need::Optional(
                "required by the engine `native`; else all stages have layers, or none has",
            ),
            change: Change::Update,
            doc: "The layers `a..b` of the model: from a on, up to but without b. The first stage begins at 0, and each goes \
                  on where the one before ends.",
            example: "\"0..8\"",
        },
        Key {
            name: "gpus",
            kind: Kind::Integer { min: 0, max: 64 },
            need: Need::Default("0"),
            change: Change::Update,
            doc: "How many GPUs of the machine it takes. 0 leaves it to the worker.",
            example: "1",
        },
        Key {
            doc: "Environment variables of this worker, over those of the pipeline.",
            ..ENV
        },
    ],
};

static AUTO: TableDef = TableDef {
    doc: "One stage on each of these machines, in order; the planner finds the cuts.",
    keys: &[
        Key {
            name: "on",
            kind: Kind::LeaseAddresses,
            need: Need::Required,
            change: Change::Update,
            doc: "A lease table, one lease, or a list of them. An address given twice gets two stages.",
            example: "\"lease.node\"",
        },
        Key {
            name: "split",
            kind: Kind::Choice(&[("auto", "balance work, bytes and memory")]),
            need: Need::Required,
            change: Change::Update,
            doc: "How the layers are shared out.",
            example: "\"auto\"",
        },
        Key {
            doc: "Environment variables of every stage, over those of the pipeline.",
            ..ENV
        },
    ],
};

static CHECK: TableDef = TableDef {
    doc: "What the pipeline must answer to be ready.",
    keys: &[
        Key {
            name: "prompt",
            kind: Kind::Text,
            need: Need::Default("Hello"),
            doc: "The prompt.",
            example: "\"Hello\"",
            ..KEY
        },
        Key {
            name: "max_tokens",
            kind: Kind::Integer { min: 1, max: 4096 },
            need: Need::Default("1"),
            doc: "Tokens to ask for.",
            example: "8",
            ..KEY
        },
        Key {
            name: "expect",
            kind: Kind::Text,
            need: Need::Optional("any answer will do"),
            doc: "Text that the answer must contain.",
            example: "\"Paris\"",
            ..KEY
        },
    ],
};

/// The protocols of an exposure.
const PROTOCOLS: &[Choice] = &[("openai", "OpenAI-compatible HTTP at the entry stage")];

/// The ways of an exposure.
const WAYS: &[Choice] = &[(
    "loopback",
    "a listener on the loopback of the machine with the entry stage",
)];

pub(super) static EXPOSURE: TableDef = TableDef {
    doc: "How, and by whom, pipelines can be reached.",
    keys: &[
        Key {
            name: "pipelines",
            kind: Kind::NamesOf("pipeline"),
            need: Need::Required,
            change: Change::Update,
            doc: "The pipelines behind it; a request tells them apart by its `model`.",
            example: "[\"chat\"]",
        },
        Key {
            name: "serve",
            kind: Kind::Choice(PROTOCOLS),
            need: Need::Default("openai"),
            change: Change::Replace,
            doc: "Which protocol.",
            example: "\"openai\"",
        },
        Key {
            name: "via",
            kind: Kind::Choice(WAYS),
            need: Need::Default("loopback"),
            change: Change::Replace,
            doc: "By which way.",
            example: "\"loopback\"",
        },
        Key {
            name: "listen",
            kind: Kind::Listen,
            need: Need::Default("127.0.0.1:0"),
            change: Change::Update,
            doc: "Address and port on the loopback. Port 0 takes a free one, which is kept from then on.",
            example: "\"127.0.0.1:8080\"",
        },
        Key {
            name: "api_key",
            kind: Kind::Secret,
            need: Need::Optional("none is asked for"),
            change: Change::Update,
            doc: "The key that every request must carry.",
            example: "{ env = \"CHAT_API_KEY\" }",
        },
    ],
};
