//! The loop between the agent's pipe and the stage.
//!
//! What always holds: what came in while the stage computed is looked at before it computes on, so that a cancellation
//! overtakes what it cancels. One message and one part of a waiting prompt take turns. When the input ends, what came
//! before is still answered, then the loop returns. When nobody reads the output any more, it returns at once.
//!
//! One thread does it all: handing each message to another one would cost a token as much as its hop over the network.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stageline_core::stage_protocol::{
    Decoder, ErrorCode, FromWorker, Limits, Message, ProtocolError, RequestNumber, ToWorker,
};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::stage::Stage;

/// Messages read ahead. With a full queue and a full pipe the agent waits, which it allows for.
const QUEUE: usize = 64;

/// A prompt of 1 MiB can take six times as much as JSON. A longer line would end the worker, and all its requests with it;
/// so the limit is where no agent comes near it.
const LINE_BYTES: usize = 8 << 20;

/// As much as a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// Loads the stage and serves it until the input ends. Fails only before `ready`, or if the input cannot be followed.
/// Neither side may be buffered: what lies in a buffer cannot be polled for, and nobody reads it.
pub fn serve(
    settings: Settings,
    input: impl Read + AsFd,
    output: impl Write,
    log: &mut dyn FnMut(&str),
) -> Result<(), Failure> {
    let mut output = Output {
        output,
        bytes: Vec::new(),
        gone: false,
    };
    let mut stage = Stage::load(settings, &mut |done, what| {
        output.write(&FromWorker::Loading {
            done,
            what: what.to_owned(),
        });
    })?;
    output.write(&FromWorker::Ready(stage.ready(std::process::id())));
    let mut inbox = Inbox::new(input);
    while !output.gone {
        let answer = match inbox.next(!stage.has_waiting()) {
            Next::Message(message) => stage.take(message),
            Next::Fault(error) if error.is_fatal() => {
                return Err(Failure::request(format!(
                    "the agent's messages cannot be followed: {error}"
                )));
            }
            Next::Fault(error) => {
                log(&error.to_string());
                Some(FromWorker::Error {
                    id: error.id(),
                    code: ErrorCode::BadRequest,
                    message: error.to_string(),
                })
            }
            Next::Nothing => None,
            Next::End => return Ok(()),
        };
        for answer in answer.into_iter().chain(stage.advance()) {
            if let FromWorker::Error { message, .. } = &answer {
                log(message);
            }
            output.write(&answer);
        }
    }
    Ok(())
}

/// What came and was not yet handled.
struct Inbox<R> {
    input: R,
    decoder: Decoder<ToWorker>,
    bytes: Vec<u8>,
    queue: VecDeque<Next>,
    ended: bool,
}

enum Next {
    Message(ToWorker),
    Fault(ProtocolError),
    Nothing,
    End,
}

impl<R: Read + AsFd> Inbox<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            decoder: Decoder::new(Limits {
                line_bytes: LINE_BYTES,
                ..Limits::default()
            }),
            bytes: vec![0; READ_BYTES],
            queue: VecDeque::new(),
            ended: false,
        }
    }

    /// The next thing to do; waits for it only if `wait`.
    fn next(&mut self, wait: bool) -> Next {
        while wait && self.queue.is_empty() && !self.ended {
            self.read();
        }
        self.catch_up();
        match self.queue.pop_front() {
            Some(next) => next,
            None if self.ended && wait => Next::End,
            None => Next::Nothing,
        }
    }

    /// Takes all that came, without waiting.
    fn catch_up(&mut self) {
        while self.queue.len() < QUEUE && !self.ended && self.is_ready() {
            self.read();
        }
    }

    /// Whether something came, or the end.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        // What cannot be polled is found out by reading.
        poll(&mut fds, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
    }

    /// Takes what came, or waits for it.
    fn read(&mut self) {
        match self.input.read(&mut self.bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                self.decoder.push(&self.bytes[..count]);
                while let Some(message) = self.decoder.next() {
                    self.add(message);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.ended = true,
        }
    }

    fn add(&mut self, message: Result<ToWorker, ProtocolError>) {
        match message {
            Ok(ToWorker::End { id }) => {
                let about =
                    |next: &Next| matches!(next, Next::Message(message) if message.id() == id);
                self.queue.retain(|next| !about(next));
                self.queue.push_front(end(id));
            }
            Ok(message) => self.queue.push_back(Next::Message(message)),
            Err(error) => self.queue.push_back(Next::Fault(error)),
        }
    }
}

fn end(id: RequestNumber) -> Next {
    Next::Message(ToWorker::End { id })
}

struct Output<W> {
    output: W,
    bytes: Vec<u8>,
    /// Nobody reads any more.
    gone: bool,
}

impl<W: Write> Output<W> {
    fn write(&mut self, message: &FromWorker) {
        self.bytes.clear();
        message.encode_into(&mut self.bytes);
        self.gone |= self
            .output
            .write_all(&self.bytes)
            .and_then(|()| self.output.flush())
            .is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_overtakes_what_it_cancels() {
        let (input, mut agent) = std::io::pipe().expect("a pipe");
        let token = |id, position| ToWorker::Token {
            id: RequestNumber(id),
            token: 1,
            position,
        };
        let messages = [
            token(1, 0),
            token(2, 0),
            token(1, 1),
            ToWorker::End {
                id: RequestNumber(1),
            },
            token(1, 0),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            message.encode_into(&mut bytes);
        }
        let mut inbox = Inbox::new(input);
        assert!(matches!(inbox.next(false), Next::Nothing));
        // Also when it comes in pieces.
        for piece in bytes.chunks(7) {
            agent.write_all(piece).expect("room");
            inbox.catch_up();
        }
        drop(agent);
        let mut seen = Vec::new();
        while let Next::Message(message) = inbox.next(true) {
            seen.push((message.id().0, matches!(message, ToWorker::End { .. })));
        }
        assert_eq!(seen, [(1, true), (2, false), (1, false)]);
    }
}
