//! The worker's side of a stage: whose turn it is, and what its answers mean.

use std::time::Duration;

use stageline_core::stage_protocol::{
    Activation, ErrorCode, FromWorker, Prompt, RequestNumber, Sampled, ToWorker,
};

use super::super::frame::{CHUNK_MAX, FRAGMENT_MAX, Frame, Span, Tag, failure, printable};
use super::super::infer::{InferCode, InferError};
use super::{Core, Out, PARTS_MAX, Request, Side};

/// Messages of requests that ended, which the worker may still have; beyond them the next one waits a little.
const DOUBTFUL_MAX: usize = 4;
/// How long it waits then.
const DOUBTFUL_WAIT: Duration = Duration::from_millis(250);
/// A decode step is one position; larger hidden states than this no model has.
const STEP_MAX: usize = 1 << 20;
/// Of an error of a worker.
const MESSAGE_MAX: usize = 2048;

/// A piece of work for the worker.
pub(super) enum Work {
    /// A prompt.
    Start(Prompt),
    /// A part of a prompt.
    Part(Activation),
    /// A decode step.
    Step(Activation),
    /// The token that was drawn.
    Token(u32),
}

impl Work {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Start(_) | Self::Token(_) => 0,
            Self::Part(activation) | Self::Step(activation) => activation.payload.len(),
        }
    }
}

/// What the worker was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Start,
    Part { more: bool },
    Step,
    Token,
}

/// A message with the worker.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) number: RequestNumber,
    doing: Doing,
}

impl Core {
    /// Lets every request try again: an edge or a worker came.
    pub(super) fn wake_all(&mut self) {
        for tag in self.tags(|_| true) {
            self.enqueue(tag);
        }
        self.pump();
    }

    /// Puts a request into the queue if it has work and does not stand there.
    pub(super) fn enqueue(&mut self, tag: Tag) {
        if let Some(request) = self.requests.get_mut(&tag)
            && !request.queued
            && !request.work.is_empty()
        {
            request.queued = true;
            self.ready.push_back(tag);
        }
    }

    /// Gives the worker what it has room for.
    pub(super) fn pump(&mut self) {
        while self.worker.is_ok() && self.is_patient() {
            let Some(at) = self.ready.iter().position(|tag| self.has_room(*tag)) else {
                return;
            };
            let tag = self.ready.remove(at);
            let request = tag.and_then(|tag| Some((tag, self.requests.get_mut(&tag)?)));
            if let Some((tag, request)) = request {
                request.queued = false;
                self.dispatch(tag);
            }
        }
    }

    /// A caller that asks and goes away again and again does not bury the worker.
    fn is_patient(&self) -> bool {
        let (count, since) = self.doubtful;
        count <= DOUBTFUL_MAX || self.now >= since + DOUBTFUL_WAIT
    }

    /// Whether the worker may have what this request wants. A request that ended has room, to be taken out of the queue.
    fn has_room(&self, tag: Tag) -> bool {
        let work = self.requests.get(&tag).and_then(|r| r.work.front());
        let Some(work) = work else {
            return true;
        };
        let is_start = matches!(work, Work::Start(_));
        let same = |op: &Op| (op.doing == Doing::Start) == is_start;
        !self.outstanding.iter().any(same)
    }

    /// A request whose edge is down or full is left alone; it is put into the queue again when that changes.
    fn dispatch(&mut self, tag: Tag) {
        let Some(request) = self.requests.get(&tag) else {
            return;
        };
        if self.is_full(request) || (!request.touched && self.missing(request).is_some()) {
            return;
        }
        let hidden_size = self.worker.as_ref().map_or(0, |worker| worker.hidden_size);
        let is_exit = self.place.is_exit();
        let Some(request) = self.requests.get_mut(&tag) else {
            return;
        };
        let Some(work) = request.work.pop_front() else {
            return;
        };
        self.queued_bytes = self.queued_bytes.saturating_sub(work.bytes() as u64);
        let (id, first) = (request.number, !request.touched);
        let (doing, message) = match work {
            Work::Start(prompt) => {
                let sampling = request.sampling.clone();
                let message = ToWorker::Start {
                    id,
                    prompt,
                    sampling,
                };
                (Doing::Start, message)
            }
            Work::Token(token) => {
                let position = request.made;
                let message = ToWorker::Token {
                    id,
                    token,
                    position,
                };
                (Doing::Token, message)
            }
            Work::Part(activation) | Work::Step(activation) => {
                if let Err(why) = activation.check(hidden_size) {
                    let id = &self.place.id;
                    let message = format!("{id}: the stage before sent {why}");
                    self.fail(tag, failure(InferCode::Internal, message));
                    return;
                }
                let more = activation.more;
                let doing = if activation.prefill {
                    Doing::Part { more }
                } else {
                    Doing::Step
                };
                let sampling = (first && is_exit).then(|| request.sampling.clone());
                let message = ToWorker::Forward {
                    id,
                    activation,
                    sampling,
                };
                (doing, message)
            }
        };
        request.touched = true;
        self.outstanding.push(Op { number: id, doing });
        self.out.push(Out::Worker(message));
    }

    /// Whether what the worker would make of this has no place on the edge yet.
    fn is_full(&self, request: &Request) -> bool {
        let under_way = request.unacked as usize + request.outbound.len();
        matches!(request.work.front(), Some(Work::Part(_)))
            && !self.place.is_exit()
            && under_way >= PARTS_MAX as usize
    }

    /// Takes what the worker says.
    pub(in super::super) fn on_worker(&mut self, now: Duration, message: FromWorker) {
        (self.now, self.silent) = (now, Duration::ZERO);
        match message {
            FromWorker::Hidden {
                id,
                activation,
                prompt_tokens,
            } => {
                if let Some((tag, doing)) = self.settle(id, activation.more) {
                    self.worked = Some(now);
                    self.hidden(tag, doing, activation, prompt_tokens);
                }
            }
            FromWorker::Continue { id } => {
                if let Some((tag, doing)) = self.settle(id, false) {
                    self.worked = Some(now);
                    self.continued(tag, doing);
                }
            }
            FromWorker::Token(sampled) => {
                if let Some((tag, doing)) = self.settle(sampled.id, false) {
                    self.worked = Some(now);
                    self.sampled(tag, doing, sampled);
                }
            }
            FromWorker::Error {
                id: Some(id),
                code,
                message,
            } => {
                if let Some((tag, _)) = self.settle(id, false) {
                    self.fail(tag, self.worker_error(&code, &message));
                }
            }
            FromWorker::Error { id: None, .. }
            | FromWorker::Loading { .. }
            | FromWorker::Ready(_)
            | FromWorker::Failed { .. } => {}
        }
        self.pump();
    }

    /// Finds the message that an answer belongs to. Answers about requests that ended are nobody's.
    fn settle(&mut self, id: RequestNumber, more: bool) -> Option<(Tag, Doing)> {
        let tag = *self.numbers.get(&id)?;
        let Some(at) = self.outstanding.iter().position(|op| op.number == id) else {
            self.broken(tag, "an answer that nothing was asked for");
            return None;
        };
        let doing = self.outstanding[at].doing;
        if !(doing == Doing::Start && more) {
            self.outstanding.remove(at);
        }
        // It gets on with what it was told later, so it is done with what it was told before.
        self.doubtful.0 = 0;
        Some((tag, doing))
    }

    fn hidden(
        &mut self,
        tag: Tag,
        doing: Doing,
        mut activation: Activation,
        prompt_tokens: Option<u32>,
    ) {
        if self.place.is_exit() {
            return self.broken(tag, "hidden states, though it is the last stage");
        }
        let hidden_size = self.worker.as_ref().map_or(0, |worker| worker.hidden_size);
        if let Err(why) = activation.check(hidden_size) {
            return self.broken(tag, &why);
        }
        let Some(request) = self.requests.get_mut(&tag) else {
            return;
        };
        let step = matches!(doing, Doing::Step | Doing::Token);
        let bytes_max = if step { STEP_MAX } else { CHUNK_MAX };
        let fits = activation.payload.len() <= bytes_max && (!step || activation.len == 1);
        if activation.dtype != self.place.dtype || activation.position != request.made || !fits {
            let why = format!(
                "{activation:?}, where position {} of dtype {} comes",
                request.made,
                self.place.dtype.name()
            );
            return self.broken(tag, &why);
        }
        request.made = request.made.saturating_add(activation.len);
        match doing {
            Doing::Part { more } => {
                activation.more = more;
                self.acknowledge(tag);
            }
            Doing::Start => {
                if let Some(tokens) = prompt_tokens {
                    self.prompt_counted(tag, tokens);
                }
                if !activation.more {
                    self.prompt_made(tag);
                }
            }
            Doing::Step | Doing::Token => {}
        }
        self.forward(tag, step, activation);
    }

    /// Sends hidden states to the next stage.
    fn forward(&mut self, tag: Tag, step: bool, mut activation: Activation) {
        if let Some(why) = self.down.get(&Side::Next) {
            return self.fail(tag, self.edge_failure(Side::Next, why));
        }
        let Some(request) = self.requests.get_mut(&tag) else {
            return;
        };
        activation.prefill = !step;
        if !step {
            self.queued_bytes += activation.payload.len() as u64;
            request.outbound.push_back(activation);
            if self.queued_bytes > self.limits.queue_bytes.0 {
                return self.fail(tag, self.queue_full());
            }
            self.flush(tag);
            return self.enqueue(tag);
        }
        let span = Span {
            position: activation.position,
            len: activation.len,
            dtype: activation.dtype,
        };
        let request = &self.requests[&tag];
        let frame = Frame::Step {
            tag,
            remaining_ms: self.remaining_ms(request),
            span,
            payload: activation.payload.into(),
        };
        self.out.push(Out::Express(Side::Next, frame));
        self.enqueue(tag);
    }

    /// Puts parts of a prompt on the edge while there is room.
    pub(super) fn flush(&mut self, tag: Tag) {
        let Some(request) = self.requests.get_mut(&tag) else {
            return;
        };
        let remaining = request.deadline.saturating_sub(self.now).as_millis();
        let remaining_ms = u32::try_from(remaining).unwrap_or(u32::MAX);
        while request.unacked < PARTS_MAX
            && let Some(activation) = request.outbound.pop_front()
        {
            self.queued_bytes = self
                .queued_bytes
                .saturating_sub(activation.payload.len() as u64);
            request.unacked += 1;
            let begin = (!request.begun_next).then(|| request.sampling.clone());
            request.begun_next = true;
            self.out.push(Out::Chunk {
                tag,
                begin,
                remaining_ms,
                activation,
            });
        }
    }

    fn continued(&mut self, tag: Tag, doing: Doing) {
        if !self.place.is_exit() || doing != (Doing::Part { more: true }) {
            return self.broken(tag, "`continue`, though the prompt does not go on");
        }
        self.acknowledge(tag);
        self.enqueue(tag);
    }

    fn sampled(&mut self, tag: Tag, doing: Doing, sampled: Sampled) {
        let more = doing == (Doing::Part { more: true });
        if !self.place.is_exit() || more {
            return self.broken(tag, "a token, though none is due");
        }
        if matches!(doing, Doing::Part { .. }) {
            self.acknowledge(tag);
        }
        let text = sampled.text.unwrap_or_default();
        if text.len() > FRAGMENT_MAX {
            return self.broken(tag, "a token of more than 64 KiB of text");
        }
        if self.place.is_entry() {
            if doing == Doing::Start {
                let Some(tokens) = sampled.prompt_tokens else {
                    return self.broken(tag, "its first token without `prompt_tokens`");
                };
                self.prompt_counted(tag, tokens);
                if let Some(request) = self.requests.get_mut(&tag) {
                    request.made = tokens;
                }
                self.prompt_made(tag);
            } else if let Some(request) = self.requests.get_mut(&tag) {
                request.made = request.made.saturating_add(1);
            }
            return self.drawn(tag, sampled.token, text, sampled.finish);
        }
        if let Some(why) = self.down.get(&Side::TokensOut) {
            return self.fail(tag, self.edge_failure(Side::TokensOut, why));
        }
        let frame = Frame::Token {
            tag,
            token: sampled.token,
            finish: sampled.finish,
            text,
        };
        self.out.push(Out::Express(Side::TokensOut, frame));
        if sampled.finish.is_some() {
            self.remove(tag);
        }
    }

    /// Tells the stage before that one part of the prompt was worked through.
    fn acknowledge(&mut self, tag: Tag) {
        if let Some(request) = self.requests.get_mut(&tag) {
            request.open_parts = request.open_parts.saturating_sub(1);
            self.out.push(Out::Express(Side::Prev, Frame::Ack { tag }));
        }
    }

    pub(super) fn queue_full(&self) -> InferError {
        let (id, bytes) = (&self.place.id, self.limits.queue_bytes);
        let message = format!("{id}: busy: more than {bytes} of hidden states wait");
        failure(InferCode::Busy, message)
    }

    fn worker_error(&self, code: &ErrorCode, message: &str) -> InferError {
        let kind = match code {
            ErrorCode::ContextOverflow => InferCode::ContextOverflow,
            ErrorCode::BadRequest => InferCode::BadRequest,
            ErrorCode::Busy => InferCode::Busy,
            ErrorCode::UnknownRequest
            | ErrorCode::BadModel
            | ErrorCode::BadStage
            | ErrorCode::UnsupportedCpu
            | ErrorCode::Internal
            | ErrorCode::Other(_) => InferCode::Internal,
        };
        let message = printable(message, MESSAGE_MAX);
        failure(kind, format!("{}: {message}", self.place.id))
    }

    /// The worker broke the protocol: its request fails, the others go on.
    fn broken(&mut self, tag: Tag, what: &str) {
        let message = format!("{}: its worker gave {what}", self.place.id);
        self.fail(tag, failure(InferCode::Internal, message));
    }
}
