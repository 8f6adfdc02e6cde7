//! Caps: of a topology, and of what is held on one account by all topologies that share it.

use serde::{Deserialize, Serialize};

use super::convert;
use super::read::Fields;
use crate::unit::MicroDollars;

/// The keys.
pub(super) const KEYS: [&str; 2] = ["max_leases", "max_total_per_hour"];

/// Caps of a `[provider.X]`, over every machine of the account that carries our mark, whichever topology made it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Caps {
    /// Machines at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_leases: Option<u32>,
    /// All of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_total_per_hour: Option<MicroDollars>,
}

impl Caps {
    /// Nothing is capped.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Caps on money and machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// One machine; none is no cap. Default $10.
    pub max_price_per_hour: Option<MicroDollars>,
    /// All machines together.
    pub max_total_per_hour: Option<MicroDollars>,
    /// Machines at once.
    pub max_leases: Option<u32>,
    /// Over the topology's life, by the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spend: Option<MicroDollars>,
}

/// What a `[provider.X]` says.
pub(super) fn read(fields: &Fields<'_>) -> Caps {
    Caps {
        max_leases: fields.read("max_leases", convert::integer),
        max_total_per_hour: fields.read("max_total_per_hour", convert::money),
    }
}

/// Without a complete listing nothing can be counted.
pub(super) fn need_list(fields: &Fields<'_>, lists: bool) {
    for key in KEYS.iter().filter(|key| !lists && fields.has(key)) {
        fields.fault(
            fields.at_key(key),
            "topology/conflict",
            format!("`{key}` counts what others have on the same account, which nobody can see without the program `list`"),
            format!("add `list`, or remove `{key}`; [limits] caps this topology alone"),
        );
    }
}
