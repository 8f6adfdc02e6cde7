//! Calls that yielded nothing usable, and how a create ended by them.
//!
//! What always holds: whether anything may have happened is part of it, so that a create in doubt is never taken for refused.

use std::time::Duration;

use serde_json::Value;
use stageline_core::id::MachineId;
use stageline_core::resource::{Cause, FailureClass, Outcome};
use stageline_core::retry::Effect;

/// A call that yielded nothing usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why; no secret.
    pub cause: Cause,
    /// Whether anything may have happened.
    pub effect: Effect,
    /// The pause that was asked for, within bounds.
    pub retry_after: Option<Duration>,
    /// The status, when there was one.
    pub status: Option<u16>,
    /// The body, when it was JSON.
    pub body: Option<Value>,
}

impl Fault {
    /// Nothing left this computer.
    pub fn before(cause: Cause) -> Self {
        Self {
            cause,
            effect: Effect::None,
            retry_after: None,
            status: None,
            body: None,
        }
    }

    /// An answer of a shape that is not the API's.
    pub fn shape(what: &str) -> Self {
        let message = format!("the answer is not what this version knows: {what}");
        Self {
            effect: Effect::Possible,
            ..Self::before(
                Cause::new(FailureClass::Unknown, message)
                    .hint("nothing was created and nothing is taken for gone; see whether there is a newer stageline"),
            )
        }
    }

    /// An answer that nobody waits for any longer. It may have had its effect.
    pub fn late(what: &str, limit: Duration) -> Self {
        let message = format!("{what} took longer than {} s", limit.as_secs());
        Self {
            effect: Effect::Possible,
            ..Self::before(Cause::new(FailureClass::Unknown, message))
        }
    }

    /// How a create ended that was not answered with a yes.
    pub fn outcome<T>(self) -> Outcome<T> {
        match self.effect {
            Effect::None => Outcome::Refused(self.cause),
            Effect::Possible => Outcome::InDoubt(self.cause),
        }
    }
}

/// The one id that a create is answered with.
///
/// # Errors
/// [`Cause`] of a doubt, when there are none or several.
pub fn only(ids: &[MachineId]) -> Result<MachineId, Cause> {
    match ids {
        [id] => Ok(id.clone()),
        _ => {
            let count = ids.len();
            let message = format!("the create was answered with {count} ids and not with one");
            Err(Cause::new(FailureClass::Unknown, message))
        }
    }
}
