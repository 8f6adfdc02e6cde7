//! Prompts and what comes back: what a client of a pipeline sees, whoever carries it.
//!
//! The gateway, `ask` and the check all speak this; the entry stage and the operator's client implement [`Infer`].

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what the model's template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// What the model is asked to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// Text as it stands.
    Prompt(String),
    /// Messages, put through the model's chat template.
    Messages(Vec<Message>),
}

/// How tokens are drawn. The field names are those of `stage/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Most tokens to draw.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Smallest set of tokens with at least this probability.
    pub top_p: f64,
    /// Repeatable draws; none draws a seed at the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The answer ends before any of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// One request to a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// What to go on from.
    pub input: Input,
    /// How to draw.
    pub sampling: Sampling,
    /// Milliseconds that are left for it; the smaller of this and the pipeline's own limit counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended it, or a stop text came.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
}

/// What comes back, in this order: `Started`, any number of `Text`, `Done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The prompt was taken.
    Started {
        /// How long the prompt is.
        prompt_tokens: u32,
    },
    /// One token; its text may be empty while a character or a stop text is incomplete.
    Text {
        /// The token.
        token: u32,
        /// Whole UTF-8.
        text: String,
    },
    /// The end.
    Done {
        /// Why.
        finish: Finish,
        /// How many tokens were drawn.
        completion_tokens: u32,
    },
}

/// Why a request failed. The codes are part of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct InferError {
    /// Which kind.
    pub code: InferCode,
    /// One sentence that names the stage where it happened.
    pub message: String,
}

/// Kinds of failed requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InferCode {
    /// The prompt is longer than the context.
    ContextOverflow,
    /// The request makes no sense to the model.
    BadRequest,
    /// As many requests in flight as the roster allows.
    Busy,
    /// No time left.
    DeadlineExceeded,
    /// A stage is not there: its machine, its edge or its worker.
    StageDown,
    /// The caller went away or cancelled.
    Cancelled,
    /// The pipeline is being drained.
    Draining,
    /// This caller may not prompt this pipeline.
    Forbidden,
    /// A worker or an agent broke the protocol.
    Internal,
}

/// What comes back, as a stream that ends after `Done` or an error. Dropping it cancels the request on every stage.
pub type Events = BoxStream<'static, Result<Event, InferError>>;

/// Something that answers prompts.
#[async_trait]
pub trait Infer: Send + Sync + 'static {
    /// Takes a request. Returns when it was admitted or refused.
    ///
    /// # Errors
    /// [`InferError`] when it was not admitted.
    async fn infer(&self, request: Request) -> Result<Events, InferError>;

    /// Whether a request that came now would be taken, as far as is known without asking anyone.
    ///
    /// # Errors
    /// [`InferError`] with what it would be refused for.
    fn ready(&self) -> Result<(), InferError> {
        Ok(())
    }
}
