//! What can go wrong in a worker, with a code for programs and words for people.
//!
//! What always holds: the message names the file or the setting, the numbers, and what to do. It never holds a prompt.

use stageline_core::stage_protocol::ErrorCode;

/// A failure of the worker (then it exits) or of one request (then it lives on).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Failure {
    /// The model file is at fault.
    pub fn model(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::BadModel,
            message: message.into(),
        }
    }

    /// The stage's settings are at fault.
    pub fn stage(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::BadStage,
            message: message.into(),
        }
    }

    /// The request is at fault.
    pub fn request(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::BadRequest,
            message: message.into(),
        }
    }
}

/// A computation failed: a fault of ours, or of a model that its header does not describe.
impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Self {
        Self {
            code: ErrorCode::Internal,
            message: format!("the computation failed: {error}"),
        }
    }
}
