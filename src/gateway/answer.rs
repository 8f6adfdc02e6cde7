//! Events of a pipeline → an answer, whole or as chunks.
//!
//! An answer is whole only after its `Done`: a pipeline that stops without it, or sends more than was asked for, has failed, and
//! the caller is told so. Dropping an [`Answer`] cancels the request on every stage.

use futures::StreamExt;
use serde_json::{Value, json};
use stageline_core::id::Name;
use tokio::time::Instant;

use super::parse::Kind;
use crate::pipeline::infer::{Event, Events, Finish, Infer, InferCode, InferError, Request};

/// Most bytes of an answer that is not streamed: it is held in memory.
const TEXT_BYTES_MAX: usize = 8 << 20;

/// What a piece of an answer is.
pub(super) enum Piece {
    /// The next text; empty while a character is incomplete.
    Text(String),
    /// Nothing comes after.
    End(End),
}

/// How an answer ended.
#[derive(Clone, Copy)]
pub(super) struct End {
    finish: Finish,
    prompt_tokens: u32,
    completion_tokens: u32,
}

/// A request that a pipeline is working on.
pub(super) struct Answer {
    events: Events,
    pipeline: Name,
    prompt_tokens: u32,
    /// How many tokens may still come.
    tokens_left: u32,
    /// When we stop waiting, if the pipeline itself does not.
    give_up: Instant,
}

impl Answer {
    /// Returns when the prompt was taken or refused, so that a refusal can still choose the status of the response.
    pub(super) async fn begin(
        infer: &dyn Infer,
        pipeline: Name,
        request: Request,
        give_up: Instant,
    ) -> Result<Self, InferError> {
        let tokens_left = request.sampling.max_tokens;
        let begun = async {
            let mut events = infer.infer(request).await?;
            match events.next().await {
                Some(Ok(Event::Started { prompt_tokens })) => Ok((events, prompt_tokens)),
                Some(Ok(Event::Text { .. } | Event::Done { .. })) | None => Err(broken(
                    &pipeline,
                    "its answer does not begin with `started`",
                )),
                Some(Err(error)) => Err(error),
            }
        };
        let (events, prompt_tokens) = tokio::time::timeout_at(give_up, begun)
            .await
            .unwrap_or_else(|_| Err(late(&pipeline)))?;
        Ok(Self {
            events,
            pipeline,
            prompt_tokens,
            tokens_left,
            give_up,
        })
    }

    /// The next piece. Not to be called after the end or an error.
    pub(super) async fn next(&mut self) -> Result<Piece, InferError> {
        let event = tokio::time::timeout_at(self.give_up, self.events.next())
            .await
            .map_err(|_| late(&self.pipeline))?;
        match event {
            Some(Ok(Event::Text { token: _, text })) => {
                self.tokens_left = self
                    .tokens_left
                    .checked_sub(1)
                    .ok_or_else(|| broken(&self.pipeline, "it sent more than `max_tokens`"))?;
                Ok(Piece::Text(text))
            }
            Some(Ok(Event::Done {
                finish,
                completion_tokens,
            })) => Ok(Piece::End(End {
                finish,
                prompt_tokens: self.prompt_tokens,
                completion_tokens,
            })),
            Some(Ok(Event::Started { .. })) => Err(broken(&self.pipeline, "it started twice")),
            Some(Err(error)) => Err(error),
            None => Err(broken(&self.pipeline, "its answer ended without `done`")),
        }
    }

    /// All of it.
    pub(super) async fn whole(mut self) -> Result<(String, End), InferError> {
        let mut whole = String::new();
        loop {
            match self.next().await? {
                Piece::Text(text) => whole.push_str(&text),
                Piece::End(end) => return Ok((whole, end)),
            }
            if whole.len() > TEXT_BYTES_MAX {
                return Err(InferError {
                    code: InferCode::BadRequest,
                    message: format!(
                        "the answer of pipeline `{}` is longer than {TEXT_BYTES_MAX} bytes: ask with `stream: true`, or for fewer tokens",
                        self.pipeline
                    ),
                });
            }
        }
    }
}

fn broken(pipeline: &Name, what: &str) -> InferError {
    InferError {
        code: InferCode::Internal,
        message: format!("pipeline `{pipeline}` broke the protocol: {what}"),
    }
}

fn late(pipeline: &Name) -> InferError {
    InferError {
        code: InferCode::DeadlineExceeded,
        message: format!("pipeline `{pipeline}` did not answer within the request's deadline"),
    }
}

/// What all objects of one answer have in common.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: Name,
    /// Whether chunks speak of usage at all.
    pub(super) include_usage: bool,
}

impl Shape {
    /// The body of an answer that is not streamed.
    pub(super) fn whole(&self, text: &str, end: End) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": null, "finish_reason": reason(end) });
        let object = match self.kind {
            Kind::Chat => {
                choice["message"] =
                    json!({ "role": "assistant", "content": text, "refusal": null });
                "chat.completion"
            }
            Kind::Completion => {
                choice["text"] = json!(text);
                "text_completion"
            }
        };
        let mut body = self.object(object, &[choice]);
        body["usage"] = usage(end);
        body
    }

    /// The chunk before all text; only a chat has one.
    pub(super) fn first(&self) -> Option<Value> {
        match self.kind {
            Kind::Chat => Some(self.chunk(
                json!({ "delta": { "role": "assistant", "content": "" } }),
                None,
            )),
            Kind::Completion => None,
        }
    }

    /// A chunk of text.
    pub(super) fn text(&self, text: &str) -> Value {
        match self.kind {
            Kind::Chat => self.chunk(json!({ "delta": { "content": text } }), None),
            Kind::Completion => self.chunk(json!({ "text": text }), None),
        }
    }

    /// The chunk that says why the text ended.
    pub(super) fn last(&self, end: End) -> Value {
        match self.kind {
            Kind::Chat => self.chunk(json!({ "delta": {} }), Some(reason(end))),
            Kind::Completion => self.chunk(json!({ "text": "" }), Some(reason(end))),
        }
    }

    /// The chunk with the counts, if they were asked for.
    pub(super) fn counts(&self, end: End) -> Option<Value> {
        self.include_usage.then(|| {
            let mut body = self.object(self.chunk_object(), &[]);
            body["usage"] = usage(end);
            body
        })
    }

    fn chunk(&self, mut choice: Value, finish: Option<&str>) -> Value {
        choice["index"] = json!(0);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish);
        let mut body = self.object(self.chunk_object(), &[choice]);
        if self.include_usage {
            body["usage"] = Value::Null;
        }
        body
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.as_str(),
            "choices": choices,
        })
    }
}

fn reason(end: End) -> &'static str {
    match end.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn usage(end: End) -> Value {
    json!({
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": u64::from(end.prompt_tokens) + u64::from(end.completion_tokens),
    })
}
