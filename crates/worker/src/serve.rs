//! The loop between the agent's pipe and the stage.
//!
//! What always holds: input is read by a thread of its own, so that a cancellation is seen while the stage computes; it
//! overtakes what it cancels. One message and one part of a waiting prompt take turns. When the input ends, what came
//! before is still answered, then the loop returns. When nobody reads the output any more, it returns at once.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use stageline_core::stage_protocol::{
    Decoder, ErrorCode, FromWorker, Limits, Message, ProtocolError, RequestNumber, ToWorker,
};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::stage::Stage;

/// Messages read ahead. A full queue makes the agent wait, which it allows for.
const QUEUE: usize = 64;

/// A prompt of 1 MiB can take six times as much as JSON. A longer line would end the worker, and all its requests with it;
/// so the limit is where no agent comes near it.
const LINE_BYTES: usize = 8 << 20;

/// As much as a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// Loads the stage and serves it until the input ends. Fails only before `ready`, or if the input cannot be followed.
pub fn serve(
    settings: Settings,
    input: impl Read + Send + 'static,
    output: impl Write,
    log: &mut dyn FnMut(&str),
) -> Result<(), Failure> {
    let mut output = Output {
        output,
        bytes: Vec::new(),
        gone: false,
    };
    let (sender, receiver) = sync_channel(QUEUE);
    thread::spawn(move || read(input, &sender));
    let mut stage = Stage::load(settings, &mut |done, what| {
        output.write(&FromWorker::Loading {
            done,
            what: what.to_owned(),
        });
    })?;
    output.write(&FromWorker::Ready(stage.ready(std::process::id())));
    let mut inbox = Inbox {
        receiver,
        queue: VecDeque::new(),
        ended: false,
    };
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

/// The reader's thread: bytes → messages.
fn read(mut input: impl Read, sender: &SyncSender<Result<ToWorker, ProtocolError>>) {
    let mut decoder = Decoder::<ToWorker>::new(Limits {
        line_bytes: LINE_BYTES,
        ..Limits::default()
    });
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let count = match input.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        decoder.push(&bytes[..count]);
        for message in decoder.by_ref() {
            if sender.send(message).is_err() {
                return;
            }
        }
    }
}

/// What came and was not yet handled.
struct Inbox {
    receiver: Receiver<Result<ToWorker, ProtocolError>>,
    queue: VecDeque<Next>,
    ended: bool,
}

enum Next {
    Message(ToWorker),
    Fault(ProtocolError),
    Nothing,
    End,
}

impl Inbox {
    /// The next thing to do; waits for it only if `wait`.
    fn next(&mut self, wait: bool) -> Next {
        while !self.ended {
            match self.receiver.try_recv() {
                Ok(message) => self.add(message),
                Err(TryRecvError::Empty) if wait && self.queue.is_empty() => {
                    match self.receiver.recv() {
                        Ok(message) => self.add(message),
                        Err(_) => self.ended = true,
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
        match self.queue.pop_front() {
            Some(next) => next,
            None if self.ended && wait => Next::End,
            None => Next::Nothing,
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
        let (sender, receiver) = sync_channel(8);
        let token = |id, position| {
            Ok(ToWorker::Token {
                id: RequestNumber(id),
                token: 1,
                position,
            })
        };
        for message in [
            token(1, 0),
            token(2, 0),
            token(1, 1),
            Ok(ToWorker::End {
                id: RequestNumber(1),
            }),
            token(1, 0),
        ] {
            sender.send(message).expect("room");
        }
        drop(sender);
        let mut inbox = Inbox {
            receiver,
            queue: VecDeque::new(),
            ended: false,
        };
        let mut seen = Vec::new();
        while let Next::Message(message) = inbox.next(true) {
            seen.push((message.id().0, matches!(message, ToWorker::End { .. })));
        }
        assert_eq!(seen, [(1, true), (2, false), (1, false)]);
    }
}
