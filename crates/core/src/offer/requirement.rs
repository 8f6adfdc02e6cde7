//! The `where` of an offer: terms that the facts of a machine must all meet.
//!
//! A term never holds by a fact that is not known: wishes do not count. Text and table read to the same value, which has
//! one canonical text. Sizes are compared as they are sold (see [`matching`]); versions by their numbers.

mod hints;
mod matching;
mod parse;
pub mod region;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use hints::Hints;

use super::{Facts, Gpu};
use crate::unit::Bytes;
pub use matching::Models;
pub(super) use matching::same_model;
use region::Place;

/// Terms that must all hold; none means any machine. Written as text or as a table, recorded as canonical text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    terms: BTreeSet<Term>,
}

/// A term that a machine does not meet: what was asked and what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Misfit {
    /// The term as written, canonical.
    pub term: String,
    /// The machine's value for it.
    pub found: String,
}

/// How far an offer is that misses these terms: another GPU, or none, is farther than anything else that is missing.
pub fn distance<'t>(missed: impl IntoIterator<Item = &'t str>) -> usize {
    const OTHER_GPU: usize = 4;
    let far = |term: &str| {
        if term.starts_with("gpu") {
            OTHER_GPU
        } else {
            1
        }
    };
    missed.into_iter().map(far).sum()
}

/// Why a requirement cannot be read, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequirementError {
    /// One sentence.
    pub message: String,
    /// Byte offsets into the text.
    pub span: std::ops::Range<usize>,
    /// What to try.
    pub hint: Option<String>,
}

impl Requirement {
    /// Reads terms joined by commas; every fault is found.
    pub fn parse(text: &str) -> Result<Self, Vec<RequirementError>> {
        parse::requirement(text)
    }

    /// The terms that these facts do not meet; empty when the machine fits.
    pub fn misfits(&self, facts: &Facts) -> Vec<Misfit> {
        self.terms
            .iter()
            .filter_map(|term| matching::misfit(term, facts))
            .collect()
    }

    /// The terms on model and number of GPUs that these do not meet. What is not told is not held against them: none are told, or
    /// one without its model.
    pub fn gpu_misfits(&self, gpus: &[Gpu]) -> Vec<Misfit> {
        let facts = Facts {
            gpus: gpus.to_vec(),
            ..Facts::default()
        };
        let named = gpus.iter().all(|gpu| !gpu.model.is_empty());
        let asks = |term: &&Term| {
            !gpus.is_empty() && (term.field == Field::Gpus || (named && term.field == Field::Gpu))
        };
        let terms = self.terms.iter().filter(asks);
        terms
            .filter_map(|term| matching::misfit(term, &facts))
            .collect()
    }

    /// Whether the machine fits. `models` remembers how GPU models are written: one for all the machines of a market.
    pub fn fits(&self, facts: &Facts, models: &mut Models) -> bool {
        self.terms
            .iter()
            .all(|term| matching::holds(term, facts, models))
    }

    /// Both must hold.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            terms: self.terms.union(&other.terms).cloned().collect(),
        }
    }

    /// That a field which only the provider has is this, whatever the case; none for a text that no term can have.
    pub fn only(field: &str, is: &str) -> Option<Self> {
        let plain = !is.contains([',', '|', '*', '?']);
        let term = format!("provider.{field}={is}");
        term.parse().ok().filter(|_| plain)
    }

    /// What it says of machines that may be taken away: that it takes no others, or none of them.
    pub fn says_spot(&self) -> Option<bool> {
        let mut terms = self.terms.iter();
        let term = terms.find(|term| term.field == Field::Spot)?;
        Some(term.values.contains(&Value::Flag(true)))
    }

    /// Whether any machine will do.
    pub fn is_any(&self) -> bool {
        self.terms.is_empty()
    }
}

impl fmt::Display for Requirement {
    /// Canonical: terms in the order of the reference page, each once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{term}")?;
        }
        Ok(())
    }
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        Self::parse(text).map_err(|mut errors| errors.swap_remove(0))
    }
}

impl Serialize for Requirement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Requirement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for Requirement {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Requirement".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// What a term speaks of, in the order of canonical text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Gpu,
    Gpus,
    Vram,
    Cpus,
    Memory,
    Disk,
    Arch,
    Os,
    Region,
    Cuda,
    Driver,
    Tools,
    Spot,
    /// A field that only its provider has.
    Provider(String),
}

/// The fields, what each compares, and an example: for messages, the schema and the reference page.
pub const FIELDS: [(&str, &str, &str); 14] = [
    (
        "gpu",
        "model of every GPU; a glob, case and separators ignored, `any` for any; implies at least one",
        "gpu=rtx_4090|h100*",
    ),
    ("gpus", "number of GPUs", "gpus>=2"),
    (
        "vram",
        "GiB of each GPU, as sold: a 24 GB card that shows 22.5 GiB counts as 24",
        "vram>=24",
    ),
    ("cpus", "logical processors", "cpus>=8"),
    (
        "memory",
        "GiB of main memory, as sold: a 32 GB machine that shows 31.1 GiB counts as 32",
        "memory>=32",
    ),
    ("disk", "GiB of free disk", "disk>=60"),
    ("arch", "`x86_64` or `aarch64`", "arch=x86_64"),
    ("os", "`linux`, `macos`", "os=linux"),
    (
        "region",
        "a provider's code, a country (ISO code or name), or a continent (AF, AN, AS, EU, NA, OC, SA)",
        "region=EU|US",
    ),
    (
        "cuda",
        "highest CUDA version that the driver takes, compared number by number; `=` compares as many numbers as are given",
        "cuda>=12.4",
    ),
    (
        "driver",
        "version of the GPU driver, compared the same way",
        "driver>=550",
    ),
    (
        "tools",
        "programs that are present; `+` asks for all of them",
        "tools=git+curl",
    ),
    ("spot", "whether it may be taken away", "!spot"),
    (
        "provider.FIELD",
        "a field that only this provider has",
        "provider.reliability>=0.98",
    ),
];

impl Field {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "gpu" => Self::Gpu,
            "gpus" => Self::Gpus,
            "vram" => Self::Vram,
            "cpus" => Self::Cpus,
            "memory" => Self::Memory,
            "disk" => Self::Disk,
            "arch" => Self::Arch,
            "os" => Self::Os,
            "region" => Self::Region,
            "cuda" => Self::Cuda,
            "driver" => Self::Driver,
            "tools" => Self::Tools,
            "spot" => Self::Spot,
            // Every marketplace has it, under this name.
            "reliability" => Self::Provider("reliability".to_owned()),
            _ => {
                let field = text.strip_prefix("provider.")?;
                let plain = field
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_');
                if field.is_empty() || field.len() > 64 || !plain {
                    return None;
                }
                Self::Provider(field.to_owned())
            }
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "gpu",
            Self::Gpus => "gpus",
            Self::Vram => "vram",
            Self::Cpus => "cpus",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Arch => "arch",
            Self::Os => "os",
            Self::Region => "region",
            Self::Cuda => "cuda",
            Self::Driver => "driver",
            Self::Tools => "tools",
            Self::Spot => "spot",
            Self::Provider(field) => return write!(f, "provider.{field}"),
        })
    }
}

/// How a fact is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Op {
    Eq,
    Ne,
    Ge,
    Le,
    Gt,
    Lt,
}

impl Op {
    const ALL: [(&'static str, Self); 6] = [
        // Two letters first: a prefix must not win.
        ("!=", Self::Ne),
        (">=", Self::Ge),
        ("<=", Self::Le),
        ("=", Self::Eq),
        (">", Self::Gt),
        ("<", Self::Lt),
    ];

    const fn negated(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Ge => Self::Lt,
            Self::Lt => Self::Ge,
            Self::Le => Self::Gt,
            Self::Gt => Self::Le,
        }
    }

    const fn holds(self, fact: std::cmp::Ordering) -> bool {
        match self {
            Self::Eq => fact.is_eq(),
            Self::Ne => fact.is_ne(),
            Self::Ge => fact.is_ge(),
            Self::Le => fact.is_le(),
            Self::Gt => fact.is_gt(),
            Self::Lt => fact.is_lt(),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::Ne => "!=",
            Self::Ge => ">=",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Lt => "<",
        })
    }
}

/// A value that a fact is compared with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    /// Any GPU at all.
    Any,
    /// Lower case, `*` and `?` as wildcards; a GPU's without separators.
    Glob(String),
    Count(u32),
    Size(Bytes),
    Version(Vec<u32>),
    Place(Place),
    /// All of these.
    Tools(BTreeSet<String>),
    Flag(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Glob(glob) => f.write_str(glob),
            Self::Count(count) => write!(f, "{count}"),
            Self::Size(Bytes(bytes)) if bytes.is_multiple_of(1 << 30) => {
                write!(f, "{}", bytes >> 30)
            }
            Self::Size(Bytes(bytes)) if bytes.is_multiple_of(1 << 20) => {
                write!(f, "{}MiB", bytes >> 20)
            }
            Self::Size(Bytes(bytes)) => write!(f, "{}KiB", bytes >> 10),
            Self::Version(numbers) => {
                let text: Vec<String> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&text.join("."))
            }
            Self::Place(place) => write!(f, "{place}"),
            Self::Tools(tools) => {
                let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
                f.write_str(&tools.join("+"))
            }
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// One term. The values are alternatives: more than one only with `=` (any of them) and `!=` (none of them).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Term {
    field: Field,
    op: Op,
    values: BTreeSet<Value>,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field == Field::Spot {
            return f.write_str(if self.values.contains(&Value::Flag(true)) {
                "spot"
            } else {
                "!spot"
            });
        }
        let values: Vec<String> = self.values.iter().map(Value::to_string).collect();
        write!(f, "{}{}{}", self.field, self.op, values.join("|"))
    }
}

#[cfg(test)]
mod tests;
