//! What a machine runs once before it is ready.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::Fingerprint;
use crate::topology::SecretRef;

/// A script and what it is run with. The script alone is what the machine was made with: the rest may change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetupSpec {
    /// Its text, without a secret.
    pub script: String,
    /// Environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secret environment, by reference.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretRef>,
}

impl SetupSpec {
    /// The digest by which a machine that ran it is told from one that ran another.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.script.as_bytes())
    }
}
