//! How a call can end, and why it did not yield what it should.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which kind of failure it was: decides whether another offer helps, and who must act.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// The provider has none left; the next offer may.
    Capacity,
    /// Somebody else took that offer.
    OfferGone,
    /// An account limit: ask the provider to raise it.
    Quota,
    /// No credit.
    Money,
    /// The key does not work, or it is another account's.
    Auth,
    /// The request can never work as written.
    Config,
    /// Too many requests.
    Rate,
    /// Anything else.
    Unknown,
}

impl FailureClass {
    /// Whether the next offer on the shortlist may still work.
    pub const fn moves_on(self) -> bool {
        matches!(self, Self::Capacity | Self::OfferGone)
    }
}

/// Why a call did not yield what it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Cause {
    /// Which kind.
    pub class: FailureClass,
    /// What happened, in one sentence; no secret.
    pub message: String,
    /// What to do now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What it is if everything is refused with the same words, where a provider says two things alike. Never recorded.
    #[serde(skip)]
    pub if_all: Option<FailureClass>,
}

impl Cause {
    /// A cause without a hint yet.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            hint: None,
            if_all: None,
        }
    }

    /// It is this, if everything is refused with the same words.
    #[must_use]
    pub fn if_all(mut self, class: FailureClass) -> Self {
        self.if_all = Some(class);
        self
    }

    /// Adds what to do now.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// How one call ended. A time-out is in doubt, never refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome<T> {
    /// It was made.
    Done(T),
    /// It was not made, for certain.
    Refused(Cause),
    /// It may have been made.
    InDoubt(Cause),
}
