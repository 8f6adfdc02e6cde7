//! A volume on a machine, as its provider has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume that was found at a provider, and where it is to be on a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Mounted {
    /// What the provider calls it.
    pub id: String,
    /// Its name there; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The folder at which it is.
    pub at: String,
}
