//! The worker protocol `stage/1`: what an agent and the worker it keeps say to each other, as values and as bytes.
//!
//! A worker is a child process. It reads [`ToWorker`] messages on stdin and writes [`FromWorker`] messages on stdout; its
//! stderr is the log. A message is one line of JSON; if the line says `"bytes": n`, exactly n raw bytes follow it. When
//! stdin ends, the worker exits with status 0. What it needs to know beforehand is in its environment ([`environment`]).
//!
//! What always holds:
//!
//! * Each `forward` and each `token` message gets exactly one answer: `hidden` from a stage that is not the last, `token`
//!   from the last one, or an error. A last stage answers a part of a prompt that is not its final part (`"more": true`)
//!   with `continue`. `end` gets no answer and may come at any time, also for a request that is unknown.
//! * `start` goes to the first stage only. It answers with one or more `hidden` messages (the prompt in parts, positions
//!   rising, `"more": true` on all but the final one), or, when it is also the last stage, with one `token`.
//! * The agent drives each step: the token out of the last stage goes back into the first one as a `token` message whose
//!   position is the number of positions already taken (the prompt's length for the first token).
//! * A `token` answer with `"done": true` is the request's last one and says why in `finish`. Its `text` ends before the
//!   stop string, if there was one, and carries everything that was held back. The agent still sends `end`.
//! * An error answer ends its request (an error without `id` belongs to no request); the worker lives on. Only
//!   `"status": "failed"` announces that the worker is about to exit, with status 1.
//!
//! What this module refuses to do: read or write anything. [`Decoder`] is fed with bytes, trusts none of them, and holds
//! at most one line or one payload beyond what it was given.

mod decode;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::topology::{Dtype, Layers};
pub use decode::{Decoder, Limits, Message, ProtocolError, excerpt};

/// The version of the protocol, as a worker names it in `ready`.
pub const PROTOCOL: &str = "stage/1";

/// The names of the variables by which a worker learns what it is to run.
pub mod environment {
    /// Which stage this is, counted from 0.
    pub const STAGE: &str = "STAGE";
    /// How many stages the pipeline has.
    pub const NUM_STAGES: &str = "NUM_STAGES";
    /// The layers to run, `a..b`, b excluded.
    pub const LAYERS: &str = "STAGELINE_LAYERS";
    /// The path of the model file.
    pub const MODEL: &str = "STAGELINE_MODEL";
    /// The number format of hidden states between stages: `bf16` or `f32`.
    pub const DTYPE: &str = "STAGELINE_DTYPE";
    /// Where to compute: `cpu` or `cuda:N`.
    pub const DEVICE: &str = "STAGELINE_DEVICE";
    /// The most positions a request may take; optional, the model's own limit else.
    pub const CONTEXT: &str = "STAGELINE_CONTEXT";
    /// How many threads to compute with; optional, all cores else.
    pub const THREADS: &str = "STAGELINE_THREADS";
}

/// A request, as one agent and its worker number it. The pair (entry epoch, request id) of an edge never reaches a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestNumber(pub u64);

impl fmt::Display for RequestNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Dtype {
    /// Bytes per number; a hidden state is written little-endian.
    pub fn size(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The name in the protocol and in the topology.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// The number format of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Bf16, Self::F32]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

/// How the last stage picks tokens, and when it stops.
///
/// A field that a message leaves out takes its default, so that a hand-written `start` may be short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// At most so many tokens are produced.
    pub max_tokens: u32,
    /// 0 takes the likeliest token each time; higher is more varied.
    pub temperature: f64,
    /// Only the likeliest tokens that together reach this probability are candidates.
    pub top_p: f64,
    /// Makes a run at a temperature above 0 repeatable.
    pub seed: u64,
    /// Texts at which the answer ends; they are not part of it.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: Self::MAX_TOKENS_DEFAULT,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            stop: Vec::new(),
        }
    }
}

/// What a caller may leave open about sampling; [`SamplingOptions::resolve`] fills it in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// See [`Sampling::max_tokens`].
    pub max_tokens: Option<u32>,
    /// See [`Sampling::temperature`].
    pub temperature: Option<f64>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f64>,
    /// See [`Sampling::seed`].
    pub seed: Option<u64>,
    /// See [`Sampling::stop`].
    pub stop: Vec<String>,
}

impl SamplingOptions {
    /// Fills in the defaults and checks the result. The seed drawn by the caller is used where none was asked for.
    pub fn resolve(self, drawn_seed: u64) -> Result<Sampling, String> {
        let defaults = Sampling::default();
        let sampling = Sampling {
            max_tokens: self.max_tokens.unwrap_or(defaults.max_tokens),
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            seed: self.seed.unwrap_or(drawn_seed),
            stop: self.stop,
        };
        sampling.check()?;
        Ok(sampling)
    }
}

impl Sampling {
    /// Enough for a short answer; a caller who wants more says so.
    pub const MAX_TOKENS_DEFAULT: u32 = 256;
    /// As many stop strings as other servers take at least.
    pub const STOP_MAX: usize = 16;
    /// A stop string is looked for after every token, so it stays short.
    pub const STOP_BYTES_MAX: usize = 256;

    /// Says what is wrong with these values, in words for the caller.
    pub fn check(&self) -> Result<(), String> {
        if self.max_tokens == 0 {
            return Err("max_tokens is 0; ask for at least 1".into());
        }
        if !(0.0..=10.0).contains(&self.temperature) {
            return Err(format!(
                "temperature is {}; it must be from 0 to 10",
                self.temperature
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(format!(
                "top_p is {}; it must be above 0 and at most 1",
                self.top_p
            ));
        }
        if self.stop.len() > Self::STOP_MAX {
            return Err(format!(
                "{} stop strings; at most {} are taken",
                self.stop.len(),
                Self::STOP_MAX
            ));
        }
        match self
            .stop
            .iter()
            .find(|stop| stop.is_empty() || stop.len() > Self::STOP_BYTES_MAX)
        {
            Some(stop) => Err(format!(
                "a stop string has {} bytes; it must have 1 to {}",
                stop.len(),
                Self::STOP_BYTES_MAX
            )),
            None => Ok(()),
        }
    }
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`; the model's chat template decides what else it takes.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// Says how long the content is, never what it is: prompts belong to their callers and not into logs.
impl fmt::Debug for ChatMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ChatMessage({}, {} bytes)",
            self.role,
            self.content.len()
        )
    }
}

/// What a request begins with.
#[derive(Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text as it is, without a chat template.
    Text(String),
    /// A conversation; the first stage lays it out by the model's chat template.
    Messages(Vec<ChatMessage>),
}

/// Says how long the prompt is, never what it is.
impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Messages(messages) => f.debug_tuple("Messages").field(messages).finish(),
        }
    }
}

/// The hidden states of consecutive positions of one request.
#[derive(Clone, PartialEq, Eq)]
pub struct Activation {
    /// The first position, counted from 0 at the begin of the prompt.
    pub position: u32,
    /// How many positions.
    pub len: u32,
    /// Whether these positions are of the prompt.
    pub prefill: bool,
    /// Whether another part of the prompt follows. The last stage samples only after the final part.
    pub more: bool,
    /// How the numbers are written.
    pub dtype: Dtype,
    /// `len` × hidden size numbers, position by position.
    pub payload: Vec<u8>,
}

impl Activation {
    /// Checks that the payload is as long as its own fields and the model's hidden size say.
    pub fn check(&self, hidden_size: usize) -> Result<(), String> {
        let expected = (self.len as usize)
            .saturating_mul(hidden_size)
            .saturating_mul(self.dtype.size());
        if self.len == 0 {
            return Err("a hidden state of no positions".into());
        }
        if self.payload.len() != expected {
            return Err(format!(
                "{} bytes of hidden state; {} positions of {hidden_size} {} numbers are {expected} bytes",
                self.payload.len(),
                self.len,
                self.dtype.name()
            ));
        }
        Ok(())
    }
}

/// Says how many bytes the payload has instead of printing them.
impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activation")
            .field("position", &self.position)
            .field("len", &self.len)
            .field("prefill", &self.prefill)
            .field("more", &self.more)
            .field("dtype", &self.dtype)
            .field("bytes", &self.payload.len())
            .finish()
    }
}

/// What an agent says to its worker.
#[derive(Clone, Debug, PartialEq)]
pub enum ToWorker {
    /// Begins a request; to the first stage only.
    Start {
        /// The request.
        id: RequestNumber,
        /// What it begins with.
        prompt: Prompt,
        /// How tokens are picked.
        sampling: Sampling,
    },
    /// Hidden states from the stage before; never to the first stage.
    Forward {
        /// The request.
        id: RequestNumber,
        /// The hidden states.
        activation: Activation,
        /// How tokens are picked; in a request's first forward, for the last stage.
        sampling: Option<Sampling>,
    },
    /// The token that the last stage picked; to the first stage only.
    Token {
        /// The request.
        id: RequestNumber,
        /// The token.
        token: u32,
        /// The position that the token takes.
        position: u32,
    },
    /// The request is over or was cancelled: free what it holds. Never answered.
    End {
        /// The request.
        id: RequestNumber,
    },
}

impl ToWorker {
    /// The request that the message is about.
    pub fn id(&self) -> RequestNumber {
        match self {
            Self::Start { id, .. }
            | Self::Forward { id, .. }
            | Self::Token { id, .. }
            | Self::End { id } => *id,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model said so, or a stop string appeared.
    Stop,
    /// `max_tokens` or the context's end was reached.
    Length,
}

impl Finish {
    /// The word in the protocol, the same as in OpenAI's API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What went wrong in a worker, for programs; the message beside it is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The prompt does not fit into the context.
    ContextOverflow,
    /// The caller asked for something that cannot be.
    BadRequest,
    /// No such request: it ended, or its KV cache went with an earlier worker.
    UnknownRequest,
    /// As many requests as the worker takes are in progress.
    Busy,
    /// The model file is missing, cut, of another format or of an architecture that this worker does not know.
    BadModel,
    /// The layers do not exist in this model, or the environment is not a stage's.
    BadStage,
    /// This build of the worker needs a processor that this machine does not have.
    UnsupportedCpu,
    /// A fault in the worker itself.
    Internal,
    /// A code of someone else's worker.
    Other(String),
}

impl ErrorCode {
    /// The word in the protocol.
    pub fn name(&self) -> &str {
        match self {
            Self::ContextOverflow => "context-overflow",
            Self::BadRequest => "bad-request",
            Self::UnknownRequest => "unknown-request",
            Self::Busy => "busy",
            Self::BadModel => "bad-model",
            Self::BadStage => "bad-stage",
            Self::UnsupportedCpu => "unsupported-cpu",
            Self::Internal => "internal",
            Self::Other(name) => name,
        }
    }

    /// The code of that name.
    pub fn from_name(name: &str) -> Self {
        let known = [
            Self::ContextOverflow,
            Self::BadRequest,
            Self::UnknownRequest,
            Self::Busy,
            Self::BadModel,
            Self::BadStage,
            Self::UnsupportedCpu,
            Self::Internal,
        ];
        known
            .into_iter()
            .find(|code| code.name() == name)
            .unwrap_or_else(|| Self::Other(excerpt(name.as_bytes(), 64)))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a worker says once, when it can take requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The worker's process number.
    pub pid: u32,
    /// Numbers per position of a hidden state.
    pub hidden_size: u32,
    /// The layers [a, b) that it runs.
    pub layers: Layers,
    /// How many tokens the model knows.
    pub vocab: u32,
    /// The most positions a request may take.
    pub context: u32,
    /// How it writes hidden states.
    pub dtype: Dtype,
}

/// One token out of the last stage.
#[derive(Clone, PartialEq, Eq)]
pub struct Sampled {
    /// The request.
    pub id: RequestNumber,
    /// The token.
    pub token: u32,
    /// What the caller may see by now: whole characters, nothing that may yet turn out to be a stop string. `None` where the
    /// worker has no tokenizer.
    pub text: Option<String>,
    /// Why the answer ends here, if it does.
    pub finish: Option<Finish>,
    /// How many tokens the prompt had; in the first token of a pipeline of one stage.
    pub prompt_tokens: Option<u32>,
}

/// Says how long the text is, never what it is.
impl fmt::Debug for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampled")
            .field("id", &self.id)
            .field("token", &self.token)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("finish", &self.finish)
            .field("prompt_tokens", &self.prompt_tokens)
            .finish()
    }
}

/// What a worker says to its agent.
#[derive(Clone, Debug, PartialEq)]
pub enum FromWorker {
    /// It is loading; also the sign of life while it does.
    Loading {
        /// The part that is done, 0 to 1.
        done: f64,
        /// What is being loaded.
        what: String,
    },
    /// It can take requests.
    Ready(Ready),
    /// It cannot run and exits with status 1.
    Failed {
        /// What went wrong.
        code: ErrorCode,
        /// The same for people: what, where, and what to do.
        message: String,
    },
    /// Hidden states for the next stage.
    Hidden {
        /// The request.
        id: RequestNumber,
        /// The hidden states.
        activation: Activation,
        /// How many tokens the prompt has; in the first answer to `start`.
        prompt_tokens: Option<u32>,
    },
    /// The last stage has taken a part of a prompt that is not its final one.
    Continue {
        /// The request.
        id: RequestNumber,
    },
    /// The last stage has picked a token.
    Token(Sampled),
    /// A message could not be carried out; the worker lives on.
    Error {
        /// The request, if the message told.
        id: Option<RequestNumber>,
        /// What went wrong.
        code: ErrorCode,
        /// The same for people.
        message: String,
    },
}
