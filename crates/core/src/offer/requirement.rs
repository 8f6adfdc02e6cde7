//! The `where` of an offer: terms that facts must meet.

use serde::{Deserialize, Serialize};

use super::Facts;

/// Terms that must all hold; empty means any machine. Written as text or as a table; kept as canonical text.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Requirement(String);

/// A term that a machine does not meet: what was asked and what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfit {
    /// The term as written, canonical.
    pub term: String,
    /// The machine's value for it.
    pub found: String,
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
    /// The terms that these facts do not meet; empty when the machine fits.
    pub fn misfits(&self, _facts: &Facts) -> Vec<Misfit> {
        Vec::new()
    }
}
