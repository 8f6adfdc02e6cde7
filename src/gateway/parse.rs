//! Bodies of requests → what a pipeline is asked.
//!
//! What a key asks for is either done, or refused by the key's name; it is never quietly left out. Keys that cannot change the
//! answer (`user`, `metadata`) and keys that OpenAI does not define are let pass, as other servers do.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::pipeline::infer::{Input, Message, Request, Sampling};

/// Most values in one body, nested ones included. A value takes many times its bytes once parsed.
const VALUES_MAX: usize = 65_536;
/// As at OpenAI.
const STOPS_MAX: usize = 4;
/// Longest stop text, in bytes: the last stage looks for it behind every token.
const STOP_BYTES_MAX: usize = 1024;
/// What OpenAI draws for `/v1/completions` when the caller does not say.
const COMPLETION_TOKENS: u32 = 16;

/// Which of the two interfaces was called; it is answered in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// A request that makes sense.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) request: Request,
    pub(super) stream: bool,
    /// Whether the stream ends with the counts.
    pub(super) include_usage: bool,
}

/// Reads a body. `max_tokens` is what a chat gets that does not say.
pub(super) fn call(kind: Kind, body: &[u8], max_tokens: u32) -> Result<Call, ApiError> {
    let fields = Fields(object(body)?);
    let model = fields.text("model")?.ok_or_else(|| {
        ApiError::param(
            "model",
            "`model` is missing: name a pipeline of this gateway",
        )
    })?;
    fields.refuse_unsupported(COMMON)?;
    let (input, max_tokens) = match kind {
        Kind::Chat => {
            fields.refuse_unsupported(CHAT)?;
            (messages(&fields)?, chat_tokens(&fields, max_tokens)?)
        }
        Kind::Completion => {
            fields.refuse_unsupported(COMPLETION)?;
            let max_tokens = fields.tokens("max_tokens")?.unwrap_or(COMPLETION_TOKENS);
            (prompt(&fields)?, max_tokens)
        }
    };
    let sampling = Sampling {
        max_tokens,
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        seed: fields.seed()?,
        stop: stop(&fields)?,
    };
    let stream = fields.flag("stream")?;
    Ok(Call {
        kind,
        model: model.to_owned(),
        request: Request {
            input,
            sampling,
            deadline_ms: None,
        },
        stream,
        include_usage: include_usage(&fields, stream)?,
    })
}

/// Parses the body, after a look at how much it would take.
fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if count_values(body) > VALUES_MAX {
        return Err(ApiError::invalid(
            "invalid_json",
            format!("the body has more than {VALUES_MAX} values"),
        ));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::invalid(
            "invalid_json",
            format!("the body is {}, not an object", kind_of(&other)),
        )),
        Err(e) => Err(ApiError::invalid(
            "invalid_json",
            format!("the body is not valid JSON: {e}"),
        )),
    }
}

/// An upper bound on the values in a JSON text: one for each mark outside of strings that begins or separates them. A text
/// that is no JSON may be counted wrongly, but only behind the place where the parser stops.
fn count_values(body: &[u8]) -> usize {
    let mut count = 1;
    let mut in_text = false;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                bytes.next();
            }
            b'{' | b'[' | b',' | b':' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// A key that asks for something this gateway does not do, unless its value is neutral.
type Unsupported = (&'static str, fn(&Value) -> bool, &'static str);

const COMMON: &[Unsupported] = &[
    (
        "n",
        is_one,
        "one answer per request: leave `n` out, or send 1",
    ),
    ("presence_penalty", is_zero, "penalties are not applied"),
    ("frequency_penalty", is_zero, "penalties are not applied"),
    ("logit_bias", is_empty, "token biases are not applied"),
];

const COMPLETION: &[Unsupported] = &[
    ("logprobs", is_false, "log probabilities are not computed"),
    ("echo", is_false, "the prompt is not repeated in the answer"),
    ("best_of", is_one, "one answer is drawn per request"),
    ("suffix", is_empty, "text is not inserted before a suffix"),
];

const TOOLS: &str = "tools are not called: ask in the text of a message";

const CHAT: &[Unsupported] = &[
    ("logprobs", is_false, "log probabilities are not computed"),
    (
        "top_logprobs",
        is_zero,
        "log probabilities are not computed",
    ),
    ("tools", is_empty, TOOLS),
    ("functions", is_empty, TOOLS),
    ("tool_choice", is_no_choice, TOOLS),
    ("function_call", is_no_choice, TOOLS),
    (
        "response_format",
        is_text_format,
        "answers are not forced into a format: only {\"type\": \"text\"}",
    ),
    ("modalities", is_text_only, "only text is answered"),
    ("audio", is_empty, "only text is answered"),
    ("prediction", is_empty, "predicted outputs are not used"),
    ("web_search_options", is_false, "the web is not searched"),
];

fn is_one(value: &Value) -> bool {
    value.as_u64() == Some(1)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_no_choice(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}

fn is_text_format(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some("text")
}

fn is_text_only(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|items| items.iter().all(|item| item == "text"))
}

/// The keys of a body. A key with `null` counts as left out, as at OpenAI.
struct Fields(Map<String, Value>);

impl Fields {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn refuse_unsupported(&self, keys: &[Unsupported]) -> Result<(), ApiError> {
        for (name, is_neutral, why) in keys {
            if self.get(name).is_some_and(|value| !is_neutral(value)) {
                return Err(ApiError::unsupported(
                    *name,
                    format!("this value of `{name}` is not supported: {why}"),
                ));
            }
        }
        Ok(())
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    fn flag(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self
            .typed(name, "a boolean", Value::as_bool)?
            .unwrap_or(false))
    }

    fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let number = self.typed(name, "a number", Value::as_f64)?;
        if number.is_some_and(|number| !range.contains(&number)) {
            let (low, high) = range.into_inner();
            return Err(ApiError::param(
                name,
                format!("`{name}` is out of range: it is from {low} to {high}"),
            ));
        }
        Ok(number)
    }

    fn tokens(&self, name: &str) -> Result<Option<u32>, ApiError> {
        self.typed(name, "a whole number from 1 to 4294967295", |value| {
            let number = u32::try_from(value.as_u64()?).ok()?;
            (number > 0).then_some(number)
        })
    }

    /// Any whole number of 64 bits; a negative one stands for its bits.
    fn seed(&self) -> Result<Option<u64>, ApiError> {
        self.typed("seed", "a whole number of 64 bits", |value| {
            value
                .as_u64()
                .or_else(|| value.as_i64().map(i64::cast_unsigned))
        })
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name)
            .map(|value| read(value).ok_or_else(|| wrong_type(name, wanted, value)))
            .transpose()
    }
}

fn wrong_type(param: &str, wanted: &str, value: &Value) -> ApiError {
    let found = match value.as_number() {
        Some(number) => number.to_string(),
        None => kind_of(value).to_owned(),
    };
    ApiError::param(param, format!("`{param}` is {found}, and must be {wanted}"))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn chat_tokens(fields: &Fields, default: u32) -> Result<u32, ApiError> {
    let new = fields.tokens("max_completion_tokens")?;
    let old = fields.tokens("max_tokens")?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(ApiError::param(
            "max_tokens",
            "`max_tokens` is the old name of `max_completion_tokens`: they cannot differ",
        )),
        (Some(tokens), _) | (None, Some(tokens)) => Ok(tokens),
        (None, None) => Ok(default),
    }
}

fn include_usage(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.get("stream_options") else {
        return Ok(false);
    };
    let Value::Object(options) = options else {
        return Err(wrong_type("stream_options", "an object", options));
    };
    if !stream {
        return Err(ApiError::param(
            "stream_options",
            "`stream_options` is only for requests with `stream: true`",
        ));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(other) => Err(wrong_type(
            "stream_options.include_usage",
            "a boolean",
            other,
        )),
    }
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| ApiError::param("stop", "`stop` is a list with other than strings"))?,
        Some(other) => return Err(wrong_type("stop", "a string or a list of strings", other)),
    };
    if texts.len() > STOPS_MAX {
        return Err(ApiError::param(
            "stop",
            format!("`stop` has {} texts: {STOPS_MAX} are the most", texts.len()),
        ));
    }
    if texts
        .iter()
        .any(|t| t.is_empty() || t.len() > STOP_BYTES_MAX)
    {
        return Err(ApiError::param(
            "stop",
            format!("each text of `stop` has 1 to {STOP_BYTES_MAX} bytes"),
        ));
    }
    Ok(texts)
}

fn prompt(fields: &Fields) -> Result<Input, ApiError> {
    let many = || {
        ApiError::param(
            "prompt",
            "`prompt` is a list: one prompt per request, so a string or a list of one string",
        )
    };
    match fields.get("prompt") {
        None => Err(ApiError::param("prompt", "`prompt` is missing")),
        Some(Value::String(text)) => Ok(Input::Prompt(text.clone())),
        Some(Value::Array(items)) => match items.as_slice() {
            [Value::String(text)] => Ok(Input::Prompt(text.clone())),
            [Value::Number(_) | Value::Array(_), ..] => Err(ApiError::unsupported(
                "prompt",
                "`prompt` is a list of tokens: send the text, the pipeline has its own tokenizer",
            )),
            _ => Err(many()),
        },
        Some(other) => Err(wrong_type("prompt", "a string", other)),
    }
}

fn messages(fields: &Fields) -> Result<Input, ApiError> {
    match fields.get("messages") {
        None => Err(ApiError::param("messages", "`messages` is missing")),
        Some(Value::Array(items)) if items.is_empty() => Err(ApiError::param(
            "messages",
            "`messages` is empty: there must be at least one",
        )),
        Some(Value::Array(items)) => {
            let messages: Result<_, _> = items.iter().enumerate().map(message).collect();
            Ok(Input::Messages(messages?))
        }
        Some(other) => Err(wrong_type("messages", "a list", other)),
    }
}

fn message((index, value): (usize, &Value)) -> Result<Message, ApiError> {
    let at = format!("messages[{index}]");
    let Value::Object(map) = value else {
        return Err(wrong_type(&at, "an object", value));
    };
    for key in ["tool_calls", "function_call"] {
        if map.get(key).is_some_and(|v| !v.is_null() && !is_empty(v)) {
            return Err(ApiError::unsupported(format!("{at}.{key}"), TOOLS));
        }
    }
    let role = match map.get("role").and_then(Value::as_str) {
        // The templates of open models know the older name.
        Some("developer" | "system") => "system",
        Some(role @ ("user" | "assistant")) => role,
        Some("tool" | "function") => {
            return Err(ApiError::unsupported(format!("{at}.role"), TOOLS));
        }
        _ => {
            return Err(ApiError::param(
                format!("{at}.role"),
                format!("`{at}.role` must be one of: system, developer, user, assistant"),
            ));
        }
    };
    Ok(Message {
        role: role.to_owned(),
        content: content(&format!("{at}.content"), map.get("content"))?,
    })
}

fn content(at: &str, value: Option<&Value>) -> Result<String, ApiError> {
    match value {
        None | Some(Value::Null) => Err(ApiError::param(at, format!("`{at}` is missing"))),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<_>, _> = parts
                .iter()
                .enumerate()
                .map(|(index, part)| text_part(&format!("{at}[{index}]"), part))
                .collect();
            // As vLLM and llama.cpp join them.
            Ok(texts?.join("\n"))
        }
        Some(other) => Err(wrong_type(at, "a string or a list of parts", other)),
    }
}

fn text_part<'a>(at: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") => part.get("text").and_then(Value::as_str).ok_or_else(|| {
            ApiError::param(
                format!("{at}.text"),
                format!("`{at}.text` must be a string"),
            )
        }),
        Some(_) => Err(ApiError::unsupported(
            format!("{at}.type"),
            "this kind of content is not supported: only parts of type `text`",
        )),
        None => Err(ApiError::param(
            format!("{at}.type"),
            format!("`{at}` must be an object with a `type`"),
        )),
    }
}

#[cfg(test)]
mod tests;
