//! What waits to be sent on one edge.
//!
//! What always holds: putting something in never waits, so that whoever holds a stage's lock may do it; parts of prompts
//! leave in fragments, one request after the other in turn, so that a long prompt does not hold up a short one; what
//! belongs to a request that ended leaves no more. It is bounded by those who fill it: a stage has at most one decode step,
//! one token, two parts and a few short frames under way for each request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use stageline_core::stage_protocol::{Activation, Sampling};
use tokio::sync::Notify;

use super::frame::{FRAGMENT_MAX, Frame, Span, Tag};

/// A part of a prompt on its way, with the begin of its request if it is the first.
struct Chunk {
    begin: Option<Sampling>,
    remaining_ms: u32,
    span: Span,
    more: bool,
    payload: Bytes,
    offset: usize,
}

#[derive(Default)]
struct Waiting {
    express: VecDeque<Frame>,
    /// By request, in the order of their turns.
    bulk: VecDeque<(Tag, VecDeque<Chunk>)>,
    closed: bool,
}

/// What waits to be sent on one edge.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    express: Notify,
    bulk: Notify,
}

impl Outbox {
    /// Puts in a short frame.
    pub(super) fn express(&self, frame: Frame) {
        self.lock().express.push_back(frame);
        self.express.notify_one();
    }

    /// Puts in a part of a prompt.
    pub(super) fn chunk(
        &self,
        tag: Tag,
        begin: Option<Sampling>,
        remaining_ms: u32,
        activation: Activation,
    ) {
        let span = Span {
            position: activation.position,
            len: activation.len,
            dtype: activation.dtype,
        };
        let chunk = Chunk {
            begin,
            remaining_ms,
            span,
            more: activation.more,
            payload: activation.payload.into(),
            offset: 0,
        };
        let mut waiting = self.lock();
        match waiting.bulk.iter_mut().find(|(other, _)| *other == tag) {
            Some((_, chunks)) => chunks.push_back(chunk),
            None => waiting.bulk.push_back((tag, VecDeque::from([chunk]))),
        }
        drop(waiting);
        self.bulk.notify_one();
    }

    /// Takes back all parts of a request.
    pub(super) fn forget(&self, tag: Tag) {
        self.lock().bulk.retain(|(other, _)| *other != tag);
    }

    /// Ends both sides: nothing is taken out any more.
    pub(super) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.express.clear();
        waiting.bulk.clear();
        drop(waiting);
        self.express.notify_one();
        self.bulk.notify_one();
    }

    /// Waits for short frames and takes all of them; none when the edge is closed.
    pub(super) async fn take_express(&self) -> Option<VecDeque<Frame>> {
        loop {
            {
                let mut waiting = self.lock();
                if waiting.closed {
                    return None;
                }
                if !waiting.express.is_empty() {
                    return Some(std::mem::take(&mut waiting.express));
                }
            }
            self.express.notified().await;
        }
    }

    /// Waits for a fragment (with the begin of its request before it) and takes it; none when the edge is closed.
    pub(super) async fn take_bulk(&self) -> Option<Vec<Frame>> {
        loop {
            {
                let mut waiting = self.lock();
                if waiting.closed {
                    return None;
                }
                if let Some(frames) = next_fragment(&mut waiting.bulk) {
                    return Some(frames);
                }
            }
            self.bulk.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

/// The next fragment of the request whose turn it is; that request goes to the end then.
fn next_fragment(bulk: &mut VecDeque<(Tag, VecDeque<Chunk>)>) -> Option<Vec<Frame>> {
    let (tag, mut chunks) = bulk.pop_front()?;
    let chunk = chunks.front_mut()?;
    let mut frames = Vec::with_capacity(2);
    if let Some(sampling) = chunk.begin.take() {
        frames.push(Frame::Begin {
            tag,
            remaining_ms: chunk.remaining_ms,
            sampling,
        });
    }
    let end = chunk.payload.len().min(chunk.offset + FRAGMENT_MAX);
    frames.push(Frame::Fragment {
        tag,
        remaining_ms: chunk.remaining_ms,
        span: chunk.span,
        more: chunk.more,
        total: u32::try_from(chunk.payload.len()).expect("a part is at most 64 MiB"),
        offset: u32::try_from(chunk.offset).expect("a part is at most 64 MiB"),
        payload: chunk.payload.slice(chunk.offset..end),
    });
    chunk.offset = end;
    if chunk.offset == chunk.payload.len() {
        chunks.pop_front();
    }
    if !chunks.is_empty() {
        bulk.push_back((tag, chunks));
    }
    Some(frames)
}

/// The bytes of frames, one after the other.
pub(super) fn bytes_of<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> BytesMut {
    let mut bytes = BytesMut::new();
    for frame in frames {
        frame.encode_into(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use stageline_core::stage_protocol::Dtype;

    fn part(position: u32, bytes: usize) -> Activation {
        Activation {
            position,
            len: 1,
            prefill: true,
            more: false,
            dtype: Dtype::F32,
            payload: vec![0; bytes],
        }
    }

    fn tag(id: u64) -> Tag {
        Tag { epoch: 1, id }
    }

    /// (request, position, offset) of the next fragment.
    async fn next(outbox: &Outbox) -> (u64, u32, u32) {
        let frames = outbox.take_bulk().await.expect("open");
        match frames.last() {
            Some(Frame::Fragment {
                tag, span, offset, ..
            }) => (tag.id, span.position, *offset),
            other => panic!("a fragment comes last, not {other:?}"),
        }
    }

    #[tokio::test]
    async fn requests_take_turns_and_each_keeps_its_order() {
        let outbox = Outbox::default();
        let fragment = FRAGMENT_MAX as u32;
        outbox.chunk(
            tag(1),
            Some(Sampling::default()),
            9,
            part(0, 2 * FRAGMENT_MAX + 1),
        );
        outbox.chunk(tag(1), None, 9, part(5, 10));
        outbox.chunk(tag(2), None, 9, part(0, FRAGMENT_MAX + 1));
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(next(&outbox).await);
        }
        assert_eq!(
            seen,
            [
                (1, 0, 0),
                (2, 0, 0),
                (1, 0, fragment),
                (2, 0, fragment),
                (1, 0, 2 * fragment),
                (1, 5, 0)
            ]
        );
    }

    #[tokio::test]
    async fn a_request_that_ended_leaves_nothing_and_a_closed_edge_wakes_its_writers() {
        let outbox = Outbox::default();
        outbox.chunk(tag(1), None, 9, part(0, 10));
        outbox.chunk(tag(2), None, 9, part(0, 10));
        outbox.forget(tag(1));
        assert_eq!(next(&outbox).await.0, 2);
        let (express, bulk, ()) = tokio::join!(outbox.take_express(), outbox.take_bulk(), async {
            outbox.close();
        });
        assert!(express.is_none() && bulk.is_none());
    }
}
