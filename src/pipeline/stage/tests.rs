//! Stages without sockets or clocks: a ring whose deliveries come in any order, and each rule by itself.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use stageline_core::id::StageId;
use stageline_core::stage_protocol::{
    Activation, Dtype, ErrorCode, FromWorker, RequestNumber, Sampled, Sampling, ToWorker,
};
use stageline_core::unit::{Bytes as Size, Millis};

use super::super::frame::{Frame, Span, Tag, failure};
use super::super::infer::{
    self, Event, Finish, InferCode, InferError, Input, Request as InferRequest,
};
use super::super::outbox::Outbox;
use super::super::roster::Limits;
use super::super::stub::{StubOptions, StubWorker};
use super::{Answers, Core, Drain, Out, Place, Side, Timing};

mod ring;
mod rules;

const HIDDEN_SIZE: u32 = 64;
const SECOND: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits {
        max_in_flight: 4,
        request_timeout: Millis::seconds(60),
        queue_bytes: Size::mib(64),
        kv_tokens: None,
    }
}

fn core(index: u32, num_stages: u32, limits: Limits) -> Core {
    let place = Place {
        id: StageId {
            pipeline: "p".parse().expect("a name"),
            index,
        },
        num_stages,
        dtype: Dtype::F32,
        epoch: 77,
    };
    Core::new(place, limits, Timing::default())
}

/// A stage with its worker and all its edges.
fn ready(index: u32, num_stages: u32) -> Core {
    let mut core = core(index, num_stages, limits());
    core.attach(SECOND, HIDDEN_SIZE, 8192);
    for side in core.place().sides() {
        core.edge_up(SECOND, side);
    }
    core.take_out();
    core
}

fn prompt(text: &str, max_tokens: u32) -> InferRequest {
    InferRequest {
        input: Input::Prompt(text.to_owned()),
        sampling: infer::Sampling {
            max_tokens,
            temperature: 0.0,
            top_p: 1.0,
            seed: None,
            stop: vec![],
        },
        deadline_ms: None,
    }
}

fn hidden(id: u64, position: u32, len: u32, more: bool) -> FromWorker {
    FromWorker::Hidden {
        id: RequestNumber(id),
        activation: activation(position, len, more),
        prompt_tokens: (position == 0).then_some(len),
    }
}

fn activation(position: u32, len: u32, more: bool) -> Activation {
    Activation {
        position,
        len,
        prefill: true,
        more,
        dtype: Dtype::F32,
        payload: vec![1; (len * HIDDEN_SIZE) as usize * 4],
    }
}

fn sampled(id: u64, token: u32) -> Sampled {
    Sampled {
        id: RequestNumber(id),
        token,
        text: Some(format!(" {token}")),
        finish: None,
        prompt_tokens: None,
    }
}

/// What came back by now.
fn told(answers: &mut Answers) -> Vec<Result<Event, InferError>> {
    std::iter::from_fn(|| answers.try_recv().ok()).collect()
}

/// The error that it ended with.
#[track_caller]
fn error_of(answers: &mut Answers) -> InferError {
    match told(answers).pop() {
        Some(Err(error)) => error,
        other => panic!("an error comes last, not {other:?}"),
    }
}
