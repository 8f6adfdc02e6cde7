//! The lines of `stage/1` as they are written, and their way to and from the values of the module above.
//!
//! What always holds: unknown fields are ignored, so that a later version may add some; an unknown `op` or `status` is an
//! error. Nothing outside this module sees these shapes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Activation, ChatMessage, Dtype, ErrorCode, Finish, FromWorker, Layers, Message, Prompt, Ready,
    RequestNumber, Sampled, Sampling, ToWorker,
};

#[derive(Serialize, Deserialize)]
struct StartLine {
    id: RequestNumber,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<ChatMessage>>,
    #[serde(flatten)]
    sampling: Sampling,
}

#[derive(Serialize, Deserialize)]
struct ActivationLine {
    id: RequestNumber,
    position: u32,
    len: u32,
    #[serde(default)]
    prefill: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    dtype: Dtype,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sampling: Option<Sampling>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hidden: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
}

#[derive(Serialize, Deserialize)]
struct TokenLine {
    id: RequestNumber,
    token: u32,
    position: u32,
}

#[derive(Serialize, Deserialize)]
struct IdLine {
    id: RequestNumber,
}

#[derive(Serialize, Deserialize)]
struct SampledLine {
    id: RequestNumber,
    token: u32,
    text: Option<String>,
    #[serde(default)]
    done: bool,
    finish: Option<Finish>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct ReadyLine {
    pid: u32,
    protocol: String,
    hidden_size: u32,
    layers: [u32; 2],
    vocab: u32,
    context: u32,
    /// The topology's default, for workers that know only one.
    #[serde(default = "bf16")]
    dtype: Dtype,
}

fn bf16() -> Dtype {
    Dtype::Bf16
}

#[derive(Serialize, Deserialize)]
struct LoadingLine {
    #[serde(default)]
    done: f64,
    #[serde(default)]
    what: String,
}

#[derive(Serialize, Deserialize)]
struct FailureLine {
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Serialize, Deserialize)]
struct ErrorLine {
    #[serde(default)]
    id: Option<RequestNumber>,
    error: FailureLine,
}

impl Message for ToWorker {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Start {
                id,
                prompt,
                sampling,
            } => {
                let (prompt, messages) = match prompt {
                    Prompt::Text(text) => (Some(text.clone()), None),
                    Prompt::Messages(messages) => (None, Some(messages.clone())),
                };
                write_line(
                    bytes,
                    "op",
                    "start",
                    &StartLine {
                        id: *id,
                        prompt,
                        messages,
                        sampling: sampling.clone(),
                    },
                );
            }
            Self::Forward {
                id,
                activation,
                sampling,
            } => {
                write_activation(bytes, "forward", *id, activation, sampling.clone(), None);
            }
            Self::Token {
                id,
                token,
                position,
            } => {
                write_line(
                    bytes,
                    "op",
                    "token",
                    &TokenLine {
                        id: *id,
                        token: *token,
                        position: *position,
                    },
                );
            }
            Self::End { id } => write_line(bytes, "op", "end", &IdLine { id: *id }),
        }
    }

    fn from_parts(line: Map<String, Value>, payload: Option<Vec<u8>>) -> Result<Self, String> {
        match word(&line, "op")? {
            Some("start") => {
                let StartLine {
                    id,
                    prompt,
                    messages,
                    sampling,
                } = parse(line)?;
                let prompt = match (prompt, messages) {
                    (Some(text), None) => Prompt::Text(text),
                    (None, Some(messages)) => Prompt::Messages(messages),
                    (None, None) => {
                        return Err("`start` has neither `prompt` nor `messages`".into());
                    }
                    (Some(_), Some(_)) => {
                        return Err("`start` has both `prompt` and `messages`".into());
                    }
                };
                Ok(Self::Start {
                    id,
                    prompt,
                    sampling,
                })
            }
            Some("forward") => {
                let mut line: ActivationLine = parse(line)?;
                let (id, sampling) = (line.id, line.sampling.take());
                Ok(Self::Forward {
                    id,
                    activation: activation(line, payload)?,
                    sampling,
                })
            }
            Some("token") => {
                let TokenLine {
                    id,
                    token,
                    position,
                } = parse(line)?;
                Ok(Self::Token {
                    id,
                    token,
                    position,
                })
            }
            Some("end") => Ok(Self::End {
                id: parse::<IdLine>(line)?.id,
            }),
            Some(other) => Err(format!(
                "`{}` is not an op; it is start, forward, token or end",
                short(other)
            )),
            None => Err("there is no `op`".into()),
        }
    }
}

impl Message for FromWorker {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Loading { done, what } => {
                write_line(
                    bytes,
                    "status",
                    "loading",
                    &LoadingLine {
                        done: *done,
                        what: what.clone(),
                    },
                );
            }
            Self::Ready(ready) => write_line(bytes, "status", "ready", &ready_line(ready)),
            Self::Failed { code, message } => {
                write_line(bytes, "status", "failed", &failure(code, message))
            }
            Self::Hidden {
                id,
                activation,
                prompt_tokens,
            } => {
                write_activation(bytes, "hidden", *id, activation, None, *prompt_tokens);
            }
            Self::Continue { id } => write_line(bytes, "op", "continue", &IdLine { id: *id }),
            Self::Token(sampled) => {
                let line = SampledLine {
                    id: sampled.id,
                    token: sampled.token,
                    text: sampled.text.clone(),
                    done: sampled.finish.is_some(),
                    finish: sampled.finish,
                    prompt_tokens: sampled.prompt_tokens,
                };
                write_line(bytes, "op", "token", &line);
            }
            Self::Error { id, code, message } => {
                write_json(
                    bytes,
                    &ErrorLine {
                        id: *id,
                        error: failure(code, message),
                    },
                );
            }
        }
    }

    fn from_parts(line: Map<String, Value>, payload: Option<Vec<u8>>) -> Result<Self, String> {
        if line.contains_key("error") {
            let ErrorLine { id, error } = parse(line)?;
            return Ok(Self::Error {
                id,
                code: ErrorCode::from_name(&error.code),
                message: error.message,
            });
        }
        match (word(&line, "status")?, word(&line, "op")?) {
            (Some("loading"), None) => {
                let LoadingLine { done, what } = parse(line)?;
                Ok(Self::Loading { done, what })
            }
            (Some("ready"), None) => ready(parse(line)?).map(Self::Ready),
            (Some("failed"), None) => {
                let FailureLine { code, message } = parse(line)?;
                Ok(Self::Failed {
                    code: ErrorCode::from_name(&code),
                    message,
                })
            }
            (None, Some("hidden")) => {
                let line: ActivationLine = parse(line)?;
                let (id, prompt_tokens) = (line.id, line.prompt_tokens);
                Ok(Self::Hidden {
                    id,
                    activation: activation(line, payload)?,
                    prompt_tokens,
                })
            }
            (None, Some("continue")) => Ok(Self::Continue {
                id: parse::<IdLine>(line)?.id,
            }),
            (None, Some("token")) => sampled(parse(line)?).map(Self::Token),
            (None, None) => Err("there is no `status`, `op` or `error`".into()),
            (Some(other), _) => Err(format!(
                "`{}` is not a status; it is loading, ready or failed",
                short(other)
            )),
            (None, Some(other)) => Err(format!(
                "`{}` is not an op; it is hidden, continue or token",
                short(other)
            )),
        }
    }
}

fn ready_line(ready: &Ready) -> ReadyLine {
    let Ready {
        pid,
        hidden_size,
        layers,
        vocab,
        context,
        dtype,
    } = *ready;
    let protocol = super::PROTOCOL.to_owned();
    ReadyLine {
        pid,
        protocol,
        hidden_size,
        layers: [layers.start, layers.end],
        vocab,
        context,
        dtype,
    }
}

fn ready(line: ReadyLine) -> Result<Ready, String> {
    let ReadyLine {
        pid,
        protocol,
        hidden_size,
        layers: [start, end],
        vocab,
        context,
        dtype,
    } = line;
    if protocol != super::PROTOCOL {
        return Err(format!(
            "the worker speaks `{}`; this agent speaks {}",
            short(&protocol),
            super::PROTOCOL
        ));
    }
    if start > end {
        return Err(format!("layers {start}..{end} end before they begin"));
    }
    Ok(Ready {
        pid,
        hidden_size,
        layers: Layers { start, end },
        vocab,
        context,
        dtype,
    })
}

fn sampled(line: SampledLine) -> Result<Sampled, String> {
    let finish = match (line.done, line.finish) {
        (false, Some(_)) => return Err("`finish` without `done`".into()),
        (false, None) => None,
        (true, finish) => Some(finish.unwrap_or(Finish::Stop)),
    };
    let SampledLine {
        id,
        token,
        text,
        prompt_tokens,
        ..
    } = line;
    Ok(Sampled {
        id,
        token,
        text,
        finish,
        prompt_tokens,
    })
}

fn activation(line: ActivationLine, payload: Option<Vec<u8>>) -> Result<Activation, String> {
    let payload = match (payload, line.hidden) {
        (Some(payload), None) => payload,
        (None, Some(text)) => BASE64
            .decode(text)
            .map_err(|error| format!("`hidden` is not base64: {error}"))?,
        (None, None) => return Err("neither `bytes` nor `hidden` is there".into()),
        (Some(_), Some(_)) => return Err("both `bytes` and `hidden` are there".into()),
    };
    let ActivationLine {
        position,
        len,
        prefill,
        more,
        dtype,
        ..
    } = line;
    Ok(Activation {
        position,
        len,
        prefill,
        more,
        dtype,
        payload,
    })
}

fn failure(code: &ErrorCode, message: &str) -> FailureLine {
    FailureLine {
        code: code.name().to_owned(),
        message: message.to_owned(),
    }
}

fn write_activation(
    bytes: &mut Vec<u8>,
    op: &str,
    id: RequestNumber,
    activation: &Activation,
    sampling: Option<Sampling>,
    prompt_tokens: Option<u32>,
) {
    let Activation {
        position,
        len,
        prefill,
        more,
        dtype,
        ref payload,
    } = *activation;
    let bytes_field = Some(payload.len());
    bytes.reserve(payload.len() + 256);
    let line = ActivationLine {
        id,
        position,
        len,
        prefill,
        more,
        dtype,
        prompt_tokens,
        sampling,
        hidden: None,
        bytes: bytes_field,
    };
    write_line(bytes, "op", op, &line);
    bytes.extend_from_slice(payload);
}

/// A line with its kind in front, where people look for it.
#[derive(Serialize)]
struct Tagged<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(flatten)]
    line: &'a T,
}

fn write_line<T: Serialize>(bytes: &mut Vec<u8>, tag: &str, kind: &str, line: &T) {
    let op = (tag == "op").then_some(kind);
    let status = (tag == "status").then_some(kind);
    write_json(bytes, &Tagged { op, status, line });
}

fn write_json<T: Serialize>(bytes: &mut Vec<u8>, line: &T) {
    serde_json::to_writer(&mut *bytes, line)
        .expect("our own lines have string keys and finite shapes");
    bytes.push(b'\n');
}

fn parse<T: for<'de> Deserialize<'de>>(line: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(line)).map_err(|error| short(&error.to_string()))
}

/// The text of a field that says what kind of line it is.
fn word<'a>(line: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, String> {
    match line.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{field}` is not a text")),
    }
}

/// Someone else's text, escaped and short, for an error.
fn short(text: &str) -> String {
    super::excerpt(text.as_bytes(), 200)
}
