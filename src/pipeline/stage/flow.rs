//! What neighbours send: begins, parts of prompts, decode steps, ends; acknowledgements and errors; tokens.

use std::time::Duration;

use bytes::Bytes;
use stageline_core::stage_protocol::{Activation, Sampling};

use super::super::frame::{Frame, Span, Tag, failure};
use super::super::infer::{InferCode, InferError};
use super::work::Work;
use super::{Core, Drain, EARLY_ENDS_MAX, Out, PARTS_MAX, Request, Side};

/// A part of a prompt that is coming in.
pub(super) struct Assembly {
    span: Span,
    more: bool,
    total: usize,
    payload: Vec<u8>,
}

impl Assembly {
    pub(super) fn bytes(&self) -> usize {
        self.payload.len()
    }
}

/// A neighbour broke the protocol; its edge is closed.
pub(in super::super) type Violation = String;

impl Core {
    /// Takes a frame that came in on an edge.
    pub(in super::super) fn on_frame(
        &mut self,
        now: Duration,
        side: Side,
        frame: Frame,
    ) -> Result<(), Violation> {
        self.now = now;
        match (side, frame) {
            (_, Frame::Ping) => {}
            (
                Side::Prev,
                Frame::Begin {
                    tag,
                    remaining_ms,
                    sampling,
                },
            ) => self.begin(tag, remaining_ms, sampling)?,
            (
                Side::Prev,
                Frame::Fragment {
                    tag,
                    span,
                    more,
                    total,
                    offset,
                    payload,
                    ..
                },
            ) => self.fragment(tag, span, more, (total as usize, offset as usize), &payload)?,
            (
                Side::Prev,
                Frame::Step {
                    tag, span, payload, ..
                },
            ) => self.step(tag, span, payload)?,
            (Side::Prev, Frame::End { tag }) => self.ended(tag),
            (Side::Next, Frame::Ack { tag }) => self.acked(tag)?,
            (Side::Next, Frame::Error { tag, error }) => self.failed(tag, error),
            (
                Side::TokensIn,
                Frame::Token {
                    tag,
                    token,
                    finish,
                    text,
                },
            ) => self.token(tag, token, finish, text)?,
            (side, frame) => return Err(format!("{frame:?} does not belong on {side:?}")),
        }
        self.pump();
        Ok(())
    }

    fn begin(&mut self, tag: Tag, remaining_ms: u32, sampling: Sampling) -> Result<(), Violation> {
        if let Some(at) = self.early_ends.iter().position(|ended| *ended == tag) {
            self.early_ends.remove(at);
            return Ok(());
        }
        if self.requests.contains_key(&tag) {
            return Err(format!("request {tag} begins twice"));
        }
        // The stage before may have freed a request whose end is still on its way: twice the limit is room for that.
        let requests_max = self.limits.max_in_flight as usize * 2;
        let id = &self.place.id;
        let refusal = if self.draining == Some(Drain::All) {
            Some((InferCode::Draining, format!("{id}: it is being drained")))
        } else if self.requests.len() >= requests_max {
            let message = format!("{id}: busy: {requests_max} requests in flight");
            Some((InferCode::Busy, message))
        } else {
            sampling
                .check()
                .err()
                .map(|why| (InferCode::BadRequest, format!("{id}: {why}")))
        };
        if let Some((code, message)) = refusal {
            let error = failure(code, message);
            self.out
                .push(Out::Express(Side::Prev, Frame::Error { tag, error }));
            return Ok(());
        }
        let remaining = Duration::from_millis(u64::from(remaining_ms));
        let deadline = self.now + remaining.min(self.limits.request_timeout.duration());
        let number = self.draw_number(tag);
        let request = Request::new(number, sampling, self.now, deadline);
        self.requests.insert(tag, request);
        Ok(())
    }

    fn fragment(
        &mut self,
        tag: Tag,
        span: Span,
        more: bool,
        (total, offset): (usize, usize),
        payload: &[u8],
    ) -> Result<(), Violation> {
        let hidden_size = self.worker.as_ref().ok().map(|worker| worker.hidden_size);
        let dtype = self.place.dtype;
        // It may have been refused or have ended; its pieces were on their way.
        let Some(request) = self.requests.get_mut(&tag) else {
            return Ok(());
        };
        if offset == 0 {
            if request.assembly.is_some() || request.open_parts >= PARTS_MAX {
                return Err(format!("request {tag} sends a part ahead of its turn"));
            }
            if span.position != request.expected || request.prompt_in || span.dtype != dtype {
                return Err(format!("request {tag} sends an impossible part: {span:?}"));
            }
            let expected = |size: usize| (span.len as usize).saturating_mul(size * dtype.size());
            if hidden_size.is_some_and(|size| total != expected(size)) {
                return Err(format!(
                    "request {tag} announces {total} bytes for {span:?} of hidden size {}",
                    hidden_size.unwrap_or_default()
                ));
            }
            request.open_parts += 1;
            request.assembly = Some(Assembly {
                span,
                more,
                total,
                payload: Vec::new(),
            });
        }
        let Some(assembly) = &mut request.assembly else {
            return Err(format!("request {tag} sends the middle of a part first"));
        };
        let same = (assembly.span, assembly.more, assembly.total) == (span, more, total);
        if !same || assembly.payload.len() != offset || offset + payload.len() > total {
            return Err(format!("request {tag} sends pieces that do not fit"));
        }
        if offset == 0 {
            // Its whole size only once: it is within the frame's limit and, by now, what the model says.
            assembly.payload.reserve_exact(total.min(1 << 20));
        }
        assembly.payload.extend_from_slice(payload);
        self.queued_bytes += payload.len() as u64;
        if self.queued_bytes > self.limits.queue_bytes.0 {
            self.fail(tag, self.queue_full());
            return Ok(());
        }
        self.part_is_whole(tag);
        Ok(())
    }

    fn part_is_whole(&mut self, tag: Tag) {
        let Some(request) = self.requests.get_mut(&tag) else {
            return;
        };
        let Some(Assembly {
            span,
            more,
            payload,
            ..
        }) = request
            .assembly
            .take_if(|assembly| assembly.payload.len() == assembly.total)
        else {
            return;
        };
        request.expected = span.position.saturating_add(span.len);
        request.prompt_in = !more;
        request.work.push_back(Work::Part(Activation {
            position: span.position,
            len: span.len,
            prefill: true,
            more,
            dtype: span.dtype,
            payload,
        }));
        self.enqueue(tag);
    }

    fn step(&mut self, tag: Tag, span: Span, payload: Bytes) -> Result<(), Violation> {
        let Some(request) = self.requests.get_mut(&tag) else {
            return Ok(());
        };
        let due = request.prompt_in && request.work.is_empty() && span.len == 1;
        if !due || span.position != request.expected || span.dtype != self.place.dtype {
            return Err(format!("request {tag} sends an impossible step: {span:?}"));
        }
        request.expected = request.expected.saturating_add(1);
        self.queued_bytes += payload.len() as u64;
        request.work.push_back(Work::Step(Activation {
            position: span.position,
            len: span.len,
            prefill: false,
            more: false,
            dtype: span.dtype,
            payload: payload.into(),
        }));
        self.enqueue(tag);
        Ok(())
    }

    fn ended(&mut self, tag: Tag) {
        if self.requests.contains_key(&tag) {
            self.remove(tag);
            return;
        }
        if self.early_ends.len() >= EARLY_ENDS_MAX {
            self.early_ends.pop_front();
        }
        self.early_ends.push_back(tag);
    }

    fn acked(&mut self, tag: Tag) -> Result<(), Violation> {
        let Some(request) = self.requests.get_mut(&tag) else {
            return Ok(());
        };
        request.unacked = request
            .unacked
            .checked_sub(1)
            .ok_or_else(|| format!("request {tag} acknowledges what was not sent"))?;
        self.flush(tag);
        self.enqueue(tag);
        Ok(())
    }

    fn failed(&mut self, tag: Tag, error: InferError) {
        self.fail(tag, error);
    }

    fn token(
        &mut self,
        tag: Tag,
        token: u32,
        finish: Option<stageline_core::stage_protocol::Finish>,
        text: String,
    ) -> Result<(), Violation> {
        let Some(request) = self.requests.get(&tag) else {
            return Ok(());
        };
        if !request.caller.as_ref().is_some_and(|caller| caller.awaits) {
            return Err(format!("request {tag} gets a token that is not due"));
        }
        self.drawn(tag, token, text, finish);
        Ok(())
    }
}
