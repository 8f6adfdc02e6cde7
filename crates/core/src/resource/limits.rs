//! How long a machine may live, and how long it may live without work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LeaseSpec;
use crate::unit::Millis;

/// The limits of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseLimits {
    /// A machine without work for this long is ended.
    pub idle_timeout: Millis,
    /// A machine this old is ended.
    pub max_lifetime: Millis,
}

impl LeaseLimits {
    /// What a lease is to have.
    pub fn of(spec: &LeaseSpec) -> Self {
        Self {
            idle_timeout: spec.idle_timeout,
            max_lifetime: spec.max_lifetime,
        }
    }
}
