//! Bytes → messages, piece by piece.
//!
//! What always holds: no more than one line ([`Limits::line_bytes`]) or one payload ([`Limits::payload_bytes`]) is waited
//! for; a line that is no message is reported once and skipped, its payload with it; after a line or payload beyond the
//! limits nothing more is decoded, since the place where the next message begins is unknown.

use std::fmt::Write as _;
use std::marker::PhantomData;

use serde_json::{Map, Value};
use thiserror::Error;

use super::RequestNumber;

/// A direction of the protocol: [`ToWorker`](super::ToWorker) or [`FromWorker`](super::FromWorker).
pub trait Message: Sized {
    /// Appends the message's line and its payload.
    fn encode_into(&self, bytes: &mut Vec<u8>);

    /// Builds the message from its line and its payload, or says what is wrong.
    fn from_parts(line: Map<String, Value>, payload: Option<Vec<u8>>) -> Result<Self, String>;

    /// The message's line and its payload.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode_into(&mut bytes);
        bytes
    }
}

/// The most that a decoder waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a line, its end excluded.
    pub line_bytes: usize,
    /// Bytes of a payload.
    pub payload_bytes: usize,
}

impl Default for Limits {
    /// 1 MiB holds a prompt of any context we know; 64 MiB holds 2048 positions of 8192 f32 numbers.
    fn default() -> Self {
        Self {
            line_bytes: 1 << 20,
            payload_bytes: 64 << 20,
        }
    }
}

/// Why bytes were not a message. What is shown of them is escaped and short.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A line is not a JSON object.
    #[error("not a stage/1 message ({reason}): `{excerpt}`")]
    NotJson {
        /// What the parser said.
        reason: String,
        /// The line's begin.
        excerpt: String,
    },
    /// A JSON object is not a message, or one with impossible values.
    #[error("not a stage/1 message: {reason}: `{excerpt}`")]
    Invalid {
        /// The request, if the line told.
        id: Option<RequestNumber>,
        /// What is wrong.
        reason: String,
        /// The line's begin.
        excerpt: String,
    },
    /// A line does not end.
    #[error("a stage/1 line is longer than {limit} bytes; it begins with `{excerpt}`")]
    LineTooLong {
        /// The limit.
        limit: usize,
        /// The line's begin.
        excerpt: String,
    },
    /// A payload was announced that is larger than allowed.
    #[error("a stage/1 payload of {bytes} bytes was announced; at most {limit} are taken")]
    PayloadTooLarge {
        /// The request, if the line told.
        id: Option<RequestNumber>,
        /// The announced size.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// The stream ended within a message.
    #[error("the stream ended within a message: {present} of {expected} bytes of its {part}")]
    Cut {
        /// `line` or `payload`.
        part: &'static str,
        /// Bytes that came.
        present: usize,
        /// What was awaited: a number, or `unknown`.
        expected: String,
    },
}

impl ProtocolError {
    /// Whether the decoder has lost its place and yields nothing more.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::NotJson { .. } | Self::Invalid { .. } => false,
            Self::LineTooLong { .. } | Self::PayloadTooLarge { .. } | Self::Cut { .. } => true,
        }
    }

    /// The request that the faulty message was about, if it told.
    pub fn id(&self) -> Option<RequestNumber> {
        match self {
            Self::Invalid { id, .. } | Self::PayloadTooLarge { id, .. } => *id,
            Self::NotJson { .. } | Self::LineTooLong { .. } | Self::Cut { .. } => None,
        }
    }
}

/// The begin of bytes that nobody should trust, on one line and safe for a terminal.
pub fn excerpt(bytes: &[u8], bytes_max: usize) -> String {
    let shown = &bytes[..bytes.len().min(bytes_max)];
    let mut text: String = String::with_capacity(shown.len() + 4);
    for byte in shown {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            other => write!(text, "\\x{other:02x}").expect("writing to a string cannot fail"),
        }
    }
    if shown.len() < bytes.len() {
        text.push('…');
    }
    text
}

/// How much of a faulty line is shown.
const EXCERPT_BYTES: usize = 120;

/// Consumed bytes are dropped from the buffer once they are this many, so that small messages cost no move each.
const COMPACT_BYTES: usize = 64 << 10;

/// Turns bytes into messages. Push what was read, then iterate until `None`; repeat.
#[derive(Debug)]
pub struct Decoder<M> {
    limits: Limits,
    buffer: Vec<u8>,
    /// Where the undecoded bytes begin.
    start: usize,
    /// How many of the undecoded bytes are known to hold no line end.
    scanned: usize,
    /// A line whose payload is awaited.
    pending: Option<Pending>,
    lost: bool,
    message: PhantomData<fn() -> M>,
}

#[derive(Debug)]
struct Pending {
    line: Map<String, Value>,
    excerpt: String,
    bytes: usize,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder that waits for at most so much.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            pending: None,
            lost: false,
            message: PhantomData,
        }
    }

    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.lost {
            return;
        }
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start >= COMPACT_BYTES {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Says whether the stream may end here. Call it at its end, after the last message was taken.
    pub fn end(&self) -> Result<(), ProtocolError> {
        let present = self.buffer.len() - self.start;
        match &self.pending {
            Some(pending) => Err(ProtocolError::Cut {
                part: "payload",
                present,
                expected: pending.bytes.to_string(),
            }),
            None if present > 0 && !self.lost => Err(ProtocolError::Cut {
                part: "line",
                present,
                expected: "unknown".into(),
            }),
            None => Ok(()),
        }
    }

    /// Nothing after this point can be trusted.
    fn lose(&mut self, error: ProtocolError) -> Option<Result<M, ProtocolError>> {
        self.lost = true;
        self.buffer = Vec::new();
        self.start = 0;
        self.pending = None;
        Some(Err(error))
    }

    /// The next line, its end excluded; `None` until it is complete.
    fn take_line(&mut self) -> Option<Result<Line, ProtocolError>> {
        loop {
            let rest = &self.buffer[self.start..];
            let found = rest[self.scanned..].iter().position(|byte| *byte == b'\n');
            let length = found.map_or(rest.len(), |at| self.scanned + at);
            if length > self.limits.line_bytes {
                let limit = self.limits.line_bytes;
                return Some(Err(ProtocolError::LineTooLong {
                    limit,
                    excerpt: excerpt(rest, EXCERPT_BYTES),
                }));
            }
            if found.is_none() {
                self.scanned = rest.len();
                return None;
            }
            let line = rest[..length].trim_ascii();
            let (parsed, excerpt) = (serde_json::from_slice(line), excerpt(line, EXCERPT_BYTES));
            let blank = line.is_empty();
            self.start += length + 1;
            self.scanned = 0;
            if !blank {
                return Some(match parsed {
                    Ok(line) => Ok((line, excerpt)),
                    Err(error) => Err(ProtocolError::NotJson {
                        reason: error.to_string(),
                        excerpt,
                    }),
                });
            }
        }
    }

    fn finish(
        line: Map<String, Value>,
        excerpt: String,
        payload: Option<Vec<u8>>,
    ) -> Result<M, ProtocolError> {
        let id = id_of(&line);
        M::from_parts(line, payload).map_err(|reason| ProtocolError::Invalid {
            id,
            reason,
            excerpt,
        })
    }
}

/// A line's fields, and its begin for an error about them.
type Line = (Map<String, Value>, String);

fn id_of(line: &Map<String, Value>) -> Option<RequestNumber> {
    line.get("id").and_then(Value::as_u64).map(RequestNumber)
}

impl<M: Message> Iterator for Decoder<M> {
    type Item = Result<M, ProtocolError>;

    /// The next message that is complete, or what was there instead of one. `None` means: push more bytes.
    fn next(&mut self) -> Option<Self::Item> {
        if self.lost {
            return None;
        }
        if self.pending.is_none() {
            let (line, excerpt) = match self.take_line()? {
                Ok(taken) => taken,
                Err(error) if error.is_fatal() => return self.lose(error),
                Err(error) => return Some(Err(error)),
            };
            let bytes = match line.get("bytes") {
                None => return Some(Self::finish(line, excerpt, None)),
                Some(value) => value.as_u64(),
            };
            let limit = self.limits.payload_bytes;
            match bytes.map(|bytes| (bytes, usize::try_from(bytes))) {
                Some((_, Ok(bytes))) if bytes <= limit => {
                    self.pending = Some(Pending {
                        line,
                        excerpt,
                        bytes,
                    })
                }
                Some((bytes, _)) => {
                    return self.lose(ProtocolError::PayloadTooLarge {
                        id: id_of(&line),
                        bytes,
                        limit,
                    });
                }
                None => {
                    let reason = "`bytes` is not a count".to_owned();
                    return Some(Err(ProtocolError::Invalid {
                        id: id_of(&line),
                        reason,
                        excerpt,
                    }));
                }
            }
        }
        let awaited = self.pending.as_ref().map_or(0, |pending| pending.bytes);
        let payload = self.buffer[self.start..].get(..awaited)?.to_vec();
        self.start += awaited;
        let Pending { line, excerpt, .. } = self.pending.take()?;
        Some(Self::finish(line, excerpt, Some(payload)))
    }
}
