//! When a machine was billed, by its provider's own clock.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{MachineId, RequestKey};
use crate::unit::{MicroDollars, Timestamp};

/// From when to when a machine was billed, both by its provider's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Dates {
    /// Since when.
    #[schemars(with = "String")]
    pub from: Timestamp,
    /// Until when, as far as the provider has told.
    #[schemars(with = "String")]
    pub to: Timestamp,
    /// It is over: nothing is billed after that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// What a provider says of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which.
    pub machine: MachineId,
    /// Its name, when it is one of our keys.
    pub key: Option<RequestKey>,
    /// What it costs, or cost when it ended.
    pub price_per_hour: MicroDollars,
    /// From when to when.
    pub dates: Dates,
}
