//! What travels on an edge, as values and as bytes. Pure.
//!
//! A frame is its length, a header of fixed width (kind, flags, dtype, request, position, positions, remaining
//! milliseconds, the place of a fragment), and a payload. Numbers are big-endian; hidden states are little-endian, as
//! `stage/1` has them.
//!
//! What always holds: what [`Decoder`] yields is within the limits of its kind, and nothing is allocated for a frame before
//! its announced length was found to be within them; every frame that [`encode`](Frame::encode_into) writes is read back as
//! the same value. After an error nothing more is decoded. What it refuses: kinds, flags and number formats it does not know.

mod decode;

use std::borrow::Cow;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use stageline_core::stage_protocol::{Dtype, Finish, Sampling};

pub use self::decode::Decoder;
use super::infer::{InferCode, InferError};

/// The largest piece of a prompt's hidden states in one frame, so that a decode step of another request gets in between.
pub const FRAGMENT_MAX: usize = 64 << 10;
/// The largest hidden states of a part of a prompt.
pub const CHUNK_MAX: usize = 64 << 20;
/// The largest hidden state of one decode step.
const STEP_MAX: usize = 1 << 20;
/// Sampling with all its stop strings, as JSON.
const BEGIN_MAX: usize = 16 << 10;
/// The text of one token, with all that was held back before it.
const TEXT_MAX: usize = 64 << 10;
/// An error for people.
const ERROR_MAX: usize = 16 << 10;
/// Bytes of the header, without the length before it.
const HEADER: usize = 40;
/// The largest frame of any kind, without the length before it.
const FRAME_MAX: usize = HEADER + STEP_MAX;

/// A request on the edges: drawn by the entry, unique over its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Random per start of the entry's agent.
    pub epoch: u64,
    /// Rises with each request.
    pub id: u64,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.epoch >> 32, self.id)
    }
}

/// Which positions hidden states belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first, counted from 0 at the begin of the prompt.
    pub position: u32,
    /// How many.
    pub len: u32,
    /// How the numbers are written.
    pub dtype: Dtype,
}

/// One frame.
#[derive(Clone, PartialEq)]
pub enum Frame {
    /// A request begins. Before its first fragment, on the same stream.
    Begin {
        /// Which.
        tag: Tag,
        /// What is left of its time.
        remaining_ms: u32,
        /// How the last stage draws.
        sampling: Sampling,
    },
    /// A piece of the hidden states of a part of a prompt.
    Fragment {
        /// Of which request.
        tag: Tag,
        /// What is left of its time.
        remaining_ms: u32,
        /// Of which positions, the whole part.
        span: Span,
        /// Whether another part of the prompt follows.
        more: bool,
        /// Bytes of the whole part.
        total: u32,
        /// Where in it this piece begins.
        offset: u32,
        /// The piece.
        payload: Bytes,
    },
    /// The hidden state of one decode step.
    Step {
        /// Of which request.
        tag: Tag,
        /// What is left of its time.
        remaining_ms: u32,
        /// Of which position.
        span: Span,
        /// The hidden state.
        payload: Bytes,
    },
    /// A token, from the last stage to the first.
    Token {
        /// Of which request.
        tag: Tag,
        /// The token.
        token: u32,
        /// Why the answer ends here, if it does.
        finish: Option<Finish>,
        /// Whole UTF-8.
        text: String,
    },
    /// The request is over or cancelled; downstream, may be repeated.
    End {
        /// Which.
        tag: Tag,
    },
    /// The request failed; upstream.
    Error {
        /// Which.
        tag: Tag,
        /// Why.
        error: InferError,
    },
    /// One part of a prompt was worked through; upstream. At most two parts may lack theirs.
    Ack {
        /// Of which request.
        tag: Tag,
    },
    /// A sign of life.
    Ping,
}

/// Says how long payloads and texts are, never what they are.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = self.tag();
        match self {
            Self::Begin { .. } => write!(f, "Begin({tag:?})"),
            Self::Fragment {
                span,
                more,
                total,
                offset,
                payload,
                ..
            } => write!(
                f,
                "Fragment({tag:?}, {span:?}, more {more}, {offset}+{} of {total})",
                payload.len()
            ),
            Self::Step { span, payload, .. } => {
                write!(f, "Step({tag:?}, {span:?}, {} bytes)", payload.len())
            }
            Self::Token { token, finish, .. } => {
                write!(f, "Token({tag:?}, {token}, {finish:?})")
            }
            Self::End { .. } => write!(f, "End({tag:?})"),
            Self::Error { error, .. } => write!(f, "Error({tag:?}, {:?})", error.code),
            Self::Ack { .. } => write!(f, "Ack({tag:?})"),
            Self::Ping => f.write_str("Ping"),
        }
    }
}

/// Why bytes were not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length is impossible.
    #[error("a frame of {announced} bytes was announced; {HEADER} to {limit} can be")]
    Length {
        /// What was announced.
        announced: usize,
        /// The limit of its kind.
        limit: usize,
    },
    /// A field has an impossible value.
    #[error("a frame of kind {kind} has an impossible {field}: {value}")]
    Field {
        /// The kind, as a number.
        kind: u8,
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// The payload cannot be read.
    #[error("the payload of a frame of kind {kind} cannot be read: {why}")]
    Payload {
        /// The kind, as a number.
        kind: u8,
        /// Why not.
        why: String,
    },
}

const BEGIN: u8 = 1;
const FRAGMENT: u8 = 2;
const STEP: u8 = 3;
const TOKEN: u8 = 4;
const END: u8 = 5;
const ERROR: u8 = 6;
const ACK: u8 = 7;
const PING: u8 = 8;

const PREFILL: u8 = 1;
const MORE: u8 = 2;
const DONE: u8 = 4;
const BY_LENGTH: u8 = 8;

/// The fixed fields, as they are on the wire.
#[derive(Clone, Copy, Default)]
struct Header {
    kind: u8,
    flags: u8,
    dtype: u8,
    epoch: u64,
    id: u64,
    position: u32,
    len: u32,
    remaining_ms: u32,
    total: u32,
    offset: u32,
}

/// The largest payload of a kind; none for a kind that is unknown.
fn payload_max(kind: u8) -> Option<usize> {
    Some(match kind {
        BEGIN => BEGIN_MAX,
        FRAGMENT => FRAGMENT_MAX,
        STEP => STEP_MAX,
        TOKEN => TEXT_MAX,
        ERROR => ERROR_MAX,
        END | ACK | PING => 0,
        _ => return None,
    })
}

impl Frame {
    /// The request that it is about.
    pub fn tag(&self) -> Option<Tag> {
        match self {
            Self::Begin { tag, .. }
            | Self::Fragment { tag, .. }
            | Self::Step { tag, .. }
            | Self::Token { tag, .. }
            | Self::End { tag }
            | Self::Error { tag, .. }
            | Self::Ack { tag } => Some(*tag),
            Self::Ping => None,
        }
    }

    /// Appends its bytes. Texts of people beyond their limit are cut, so that what is written can be read.
    pub fn encode_into(&self, bytes: &mut BytesMut) {
        let (mut header, payload) = self.parts();
        if let Some(tag) = self.tag() {
            (header.epoch, header.id) = (tag.epoch, tag.id);
        }
        header.write(bytes, &payload);
    }

    fn parts(&self) -> (Header, Cow<'_, [u8]>) {
        let mut header = Header::default();
        let payload = match self {
            Self::Begin {
                remaining_ms,
                sampling,
                ..
            } => {
                (header.kind, header.remaining_ms) = (BEGIN, *remaining_ms);
                json(sampling)
            }
            Self::Fragment {
                remaining_ms,
                span,
                more,
                total,
                offset,
                payload,
                ..
            } => {
                (header.kind, header.remaining_ms) = (FRAGMENT, *remaining_ms);
                header.flags = PREFILL | if *more { MORE } else { 0 };
                header.span(*span);
                (header.total, header.offset) = (*total, *offset);
                Cow::Borrowed(&payload[..])
            }
            Self::Step {
                remaining_ms,
                span,
                payload,
                ..
            } => {
                (header.kind, header.remaining_ms) = (STEP, *remaining_ms);
                header.span(*span);
                Cow::Borrowed(&payload[..])
            }
            Self::Token {
                token,
                finish,
                text,
                ..
            } => {
                (header.kind, header.len) = (TOKEN, *token);
                header.flags = match finish {
                    None => 0,
                    Some(Finish::Stop) => DONE,
                    Some(Finish::Length) => DONE | BY_LENGTH,
                };
                Cow::Borrowed(cut(text, TEXT_MAX).as_bytes())
            }
            Self::Error { error, .. } => {
                header.kind = ERROR;
                // A quarter of the limit: what a terminal would obey is replaced, so escapes at most double the rest.
                json(&InferError {
                    code: error.code,
                    message: printable(&error.message, ERROR_MAX / 4),
                })
            }
            Self::End { .. } => header.bare(END),
            Self::Ack { .. } => header.bare(ACK),
            Self::Ping => header.bare(PING),
        };
        (header, payload)
    }
}

fn json<'a>(value: &impl Serialize) -> Cow<'a, [u8]> {
    Cow::Owned(serde_json::to_vec(value).expect("what frames hold is plain data"))
}

impl Header {
    /// Of a kind without a payload.
    fn bare(&mut self, kind: u8) -> Cow<'static, [u8]> {
        self.kind = kind;
        Cow::Borrowed(&[])
    }

    fn span(&mut self, span: Span) {
        self.position = span.position;
        self.len = span.len;
        self.dtype = match span.dtype {
            Dtype::Bf16 => 1,
            Dtype::F32 => 2,
        };
    }

    fn write(&self, bytes: &mut BytesMut, payload: &[u8]) {
        let length = HEADER + payload.len();
        bytes.reserve(4 + length);
        bytes.put_u32(u32::try_from(length).expect("the limits of all kinds fit"));
        bytes.put_slice(&[self.kind, self.flags, self.dtype, 0]);
        bytes.put_u64(self.epoch);
        bytes.put_u64(self.id);
        for field in [
            self.position,
            self.len,
            self.remaining_ms,
            self.total,
            self.offset,
        ] {
            bytes.put_u32(field);
        }
        bytes.put_slice(payload);
    }

    fn read(bytes: &mut impl Buf) -> Result<Self, FrameError> {
        let (kind, flags, dtype, zero) = (
            bytes.get_u8(),
            bytes.get_u8(),
            bytes.get_u8(),
            bytes.get_u8(),
        );
        let header = Self {
            kind,
            flags,
            dtype,
            epoch: bytes.get_u64(),
            id: bytes.get_u64(),
            position: bytes.get_u32(),
            len: bytes.get_u32(),
            remaining_ms: bytes.get_u32(),
            total: bytes.get_u32(),
            offset: bytes.get_u32(),
        };
        let allowed = match kind {
            FRAGMENT => PREFILL | MORE,
            TOKEN => DONE | BY_LENGTH,
            _ => 0,
        };
        header.ensure("reserved byte", u64::from(zero), zero == 0)?;
        header.ensure("flag", u64::from(flags), flags & !allowed == 0)?;
        let whole = flags & DONE != 0 || flags & BY_LENGTH == 0;
        header.ensure("flag", u64::from(flags), whole)?;
        let prefill = kind != FRAGMENT || flags & PREFILL != 0;
        header.ensure("flag", u64::from(flags), prefill)?;
        Ok(header)
    }

    fn ensure(&self, field: &'static str, value: u64, holds: bool) -> Result<(), FrameError> {
        if holds {
            Ok(())
        } else {
            Err(FrameError::Field {
                kind: self.kind,
                field,
                value,
            })
        }
    }

    /// The positions, of which there is at least one and no number overflows.
    fn spanned(&self) -> Result<Span, FrameError> {
        let dtype = match self.dtype {
            1 => Dtype::Bf16,
            2 => Dtype::F32,
            other => {
                self.ensure("dtype", u64::from(other), false)?;
                Dtype::F32
            }
        };
        let end = self.position.checked_add(self.len);
        self.ensure("length", u64::from(self.len), self.len > 0 && end.is_some())?;
        Ok(Span {
            position: self.position,
            len: self.len,
            dtype,
        })
    }

    fn unreadable(&self, error: &dyn std::error::Error) -> FrameError {
        FrameError::Payload {
            kind: self.kind,
            why: printable(&error.to_string(), 200),
        }
    }

    fn read_json<T: DeserializeOwned>(&self, payload: &[u8]) -> Result<T, FrameError> {
        serde_json::from_slice(payload).map_err(|error| self.unreadable(&error))
    }

    fn frame(&self, payload: Bytes) -> Result<Frame, FrameError> {
        let tag = Tag {
            epoch: self.epoch,
            id: self.id,
        };
        let remaining_ms = self.remaining_ms;
        Ok(match self.kind {
            BEGIN => Frame::Begin {
                tag,
                remaining_ms,
                sampling: self.read_json(&payload)?,
            },
            FRAGMENT => {
                let (total, offset) = (self.total, self.offset);
                let fits = total as usize <= CHUNK_MAX && !payload.is_empty();
                self.ensure("total", u64::from(total), fits)?;
                let end = offset as usize + payload.len();
                self.ensure("offset", u64::from(offset), end <= total as usize)?;
                Frame::Fragment {
                    tag,
                    remaining_ms,
                    span: self.spanned()?,
                    more: self.flags & MORE != 0,
                    total,
                    offset,
                    payload,
                }
            }
            STEP => Frame::Step {
                tag,
                remaining_ms,
                span: self.spanned()?,
                payload,
            },
            TOKEN => Frame::Token {
                tag,
                token: self.len,
                finish: match (self.flags & DONE != 0, self.flags & BY_LENGTH != 0) {
                    (false, _) => None,
                    (true, false) => Some(Finish::Stop),
                    (true, true) => Some(Finish::Length),
                },
                text: String::from_utf8(payload.into()).map_err(|error| self.unreadable(&error))?,
            },
            END => Frame::End { tag },
            ERROR => {
                let error: InferError = self.read_json(&payload)?;
                Frame::Error {
                    tag,
                    error: InferError {
                        code: error.code,
                        message: printable(&error.message, ERROR_MAX),
                    },
                }
            }
            ACK => Frame::Ack { tag },
            PING => Frame::Ping,
            other => {
                return Err(FrameError::Field {
                    kind: other,
                    field: "kind",
                    value: u64::from(other),
                });
            }
        })
    }
}

/// At most so many bytes of a text, whole characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A text for people without anything that a terminal would obey, cut.
pub(super) fn printable(text: &str, bytes_max: usize) -> String {
    let safe = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    let clean: String = cut(text, bytes_max).chars().map(safe).collect();
    cut(&clean, bytes_max).to_owned()
}

/// An error of one of the codes.
pub(super) fn failure(code: InferCode, message: impl Into<String>) -> InferError {
    InferError {
        code,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests;
