//! A prompt to a pipeline whose entry is here, and its whole answer.
//!
//! It refuses to wait beyond the deadline that it was given.

use std::time::Duration;

use futures::StreamExt as _;
use stageline_core::id::Name;
use stageline_core::unit::Millis;
use tokio::time::Instant;

use super::Inner;
use crate::machine::Answer;
use crate::machine::control::{Refusal, Reply};
use crate::pipeline::infer::{self, Event, InferCode, InferError, Input, Sampling};

/// How long a pipeline may take to say that its deadline has passed.
const CHECK_GRACE: Duration = Duration::from_secs(3);

impl Inner {
    pub(super) async fn check(
        &self,
        pipeline: &Name,
        prompt: String,
        max_tokens: u32,
        timeout: Millis,
    ) -> Result<Reply, Refusal> {
        let began = Instant::now();
        let request = infer::Request {
            input: Input::Prompt(prompt),
            sampling: Sampling {
                max_tokens,
                temperature: 0.0,
                top_p: 1.0,
                seed: Some(0),
                stop: Vec::new(),
            },
            deadline_ms: Some(timeout.0),
        };
        // The pipeline keeps the deadline itself, and knows which stage was waited for.
        let longest = timeout.duration().min(Duration::from_secs(86_400)) + CHECK_GRACE;
        let answer = tokio::time::timeout(longest, whole_answer(self, pipeline, request));
        let text = match answer.await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Err(infer_refusal(pipeline, &error)),
            Err(_) => {
                let message = format!("pipeline.{pipeline} did not answer within {timeout}");
                return Err(Refusal::new("deadline-exceeded", message));
            }
        };
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Reply::Answer(Answer {
            text,
            took: Millis(took),
        }))
    }
}

async fn whole_answer(
    agent: &Inner,
    pipeline: &Name,
    request: infer::Request,
) -> Result<String, InferError> {
    let mut events = agent.fabric.infer(pipeline).infer(request).await?;
    let mut whole = String::new();
    while let Some(event) = events.next().await {
        match event? {
            Event::Started { .. } => {}
            Event::Text { text, .. } => whole.push_str(&text),
            Event::Done { .. } => return Ok(whole),
        }
    }
    Err(InferError {
        code: InferCode::Internal,
        message: format!("pipeline.{pipeline}: the answer ended without an end"),
    })
}

fn infer_refusal(pipeline: &Name, error: &InferError) -> Refusal {
    let code = match error.code {
        InferCode::ContextOverflow => "context-overflow",
        InferCode::BadRequest => "bad-request",
        InferCode::Busy => "busy",
        InferCode::DeadlineExceeded => "deadline-exceeded",
        InferCode::StageDown => "stage-down",
        InferCode::Cancelled => "cancelled",
        InferCode::Draining => "draining",
        InferCode::Forbidden => "forbidden",
        InferCode::Internal => "internal",
    };
    let message = if error.message.contains(pipeline.as_str()) {
        error.message.clone()
    } else {
        format!("pipeline.{pipeline}: {}", error.message)
    };
    Refusal::new(code, crate::machine::plain::message(&message, 4000))
}
