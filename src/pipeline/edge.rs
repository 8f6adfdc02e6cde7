//! An edge at work: frames out of an outbox onto two streams, and from the streams into the stage.
//!
//! What always holds: reading and writing are separate tasks, so neither waits for the other; short frames have their own
//! stream, of higher priority; whatever comes in is a sign of life. What it refuses: peers that are silent, and peers whose
//! frames make no sense; both lose the edge, with a reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use iroh::endpoint::{Connection, PathEvent, RecvStream, SendStream, VarInt};
use tokio::task::JoinSet;

use super::endpoint::{IDLE_MAX, chain};
use super::frame::{Decoder, Frame};
use super::node::{EdgeLease, Node};
use super::outbox::{Outbox, bytes_of};
use super::stage::Side;
use crate::ambient::SharedClock;

/// A sign of life, however quiet the edge is.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Read at once; a decode step fits.
const READ_MAX: usize = 64 << 10;
/// Above a prompt's parts.
const EXPRESS_PRIORITY: i32 = 10;
/// The code of every close of ours; the reason says the rest.
const CLOSED: VarInt = VarInt::from_u32(1);

/// Who has the stream of prompts' parts: the side that opened the connection writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bulk {
    /// This side writes it.
    Write,
    /// This side reads it.
    Read,
}

/// A connection after its hello.
pub(super) struct Wire {
    pub(super) connection: Connection,
    pub(super) send: SendStream,
    pub(super) recv: RecvStream,
    pub(super) bulk: Bulk,
}

/// One end of an edge: which stage, which side of it, under which number.
#[derive(Clone)]
struct Sink {
    node: Arc<Node>,
    side: Side,
    serial: u64,
    clock: SharedClock,
    heard_ms: Arc<AtomicU64>,
}

impl Sink {
    fn heard(&self) {
        self.heard_ms
            .store(millis(self.clock.boottime()), Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        let heard = self.heard_ms.load(Ordering::Relaxed);
        Duration::from_millis(millis(self.clock.boottime()).saturating_sub(heard))
    }
}

/// Runs an edge until it ends, and returns why it did.
pub(super) async fn run(
    node: &Arc<Node>,
    side: Side,
    lease: &EdgeLease,
    wire: Wire,
    clock: &SharedClock,
) -> String {
    let Wire {
        connection,
        send,
        recv,
        bulk,
    } = wire;
    let sink = Sink {
        node: Arc::clone(node),
        side,
        serial: lease.serial,
        clock: Arc::clone(clock),
        heard_ms: Arc::default(),
    };
    sink.heard();
    drop(send.set_priority(EXPRESS_PRIORITY));
    let mut tasks = JoinSet::new();
    tasks.spawn(record_paths(connection.clone()));
    tasks.spawn(write_express(Arc::clone(&lease.outbox), send));
    tasks.spawn(read(sink.clone(), recv));
    tasks.spawn(watch(sink.clone(), Arc::clone(&lease.outbox)));
    match bulk {
        Bulk::Write => tasks.spawn(write_bulk(Arc::clone(&lease.outbox), connection.clone())),
        Bulk::Read => tasks.spawn(read_bulk(sink, connection.clone())),
    };
    let why = tokio::select! {
        ended = tasks.join_next() => match ended {
            Some(Ok(why)) => why,
            Some(Err(error)) => format!("a task of the edge failed: {error}"),
            None => "nothing of the edge was left".to_owned(),
        },
        error = connection.closed() => chain(&error),
        () = lease.stop.cancelled() => "it was closed here".to_owned(),
    };
    // A peer that closed said why; a stream that broke off because of it did not.
    let why = connection.close_reason().map_or(why, |error| chain(&error));
    node.edge_down(side, lease.serial, &why);
    connection.close(CLOSED, cut(&why).as_bytes());
    tasks.shutdown().await;
    why
}

/// The part of a reason that fits into the frame that closes a connection.
pub(super) fn cut(why: &str) -> &str {
    let mut end = why.len().min(200);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

/// Closes a connection with a reason for its other end.
pub(super) fn close(connection: &Connection, why: &str) {
    connection.close(CLOSED, cut(why).as_bytes());
}

async fn write_express(outbox: Arc<Outbox>, mut send: SendStream) -> String {
    while let Some(frames) = outbox.take_express().await {
        if let Err(error) = send.write_all(&bytes_of(&frames)).await {
            return format!("it cannot be written to: {}", chain(&error));
        }
    }
    "it was closed here".to_owned()
}

async fn write_bulk(outbox: Arc<Outbox>, connection: Connection) -> String {
    let mut stream = None;
    while let Some(frames) = outbox.take_bulk().await {
        let send = match &mut stream {
            Some(send) => send,
            None => match connection.open_uni().await {
                Ok(send) => stream.insert(send),
                Err(error) => return chain(&error),
            },
        };
        if let Err(error) = send.write_all(&bytes_of(&frames)).await {
            return format!("it cannot be written to: {}", chain(&error));
        }
    }
    "it was closed here".to_owned()
}

async fn read_bulk(sink: Sink, connection: Connection) -> String {
    match connection.accept_uni().await {
        Ok(recv) => read(sink, recv).await,
        Err(error) => chain(&error),
    }
}

async fn read(sink: Sink, mut recv: RecvStream) -> String {
    let mut decoder = Decoder::default();
    loop {
        let bytes = match recv.read_chunk(READ_MAX).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return "the other side ended it".to_owned(),
            Err(error) => return format!("it cannot be read from: {}", chain(&error)),
        };
        sink.heard();
        decoder.push(&bytes);
        loop {
            match decoder.next() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if let Err(why) = sink.node.frame(sink.side, sink.serial, frame) {
                        return format!("the other side broke the protocol: {why}");
                    }
                }
                Err(error) => return format!("the other side broke the protocol: {error}"),
            }
        }
    }
}

/// Writes down when the way to a peer changes. That is no sign of its death.
async fn record_paths(connection: Connection) -> String {
    let peer = connection.remote_id();
    let mut events = connection.path_events();
    while let Some(event) = events.next().await {
        // Other events are not about one path, and the library may add some.
        let (what, path) = if let PathEvent::Opened { remote_addr, .. } = &event {
            ("path opened", remote_addr)
        } else if let PathEvent::Selected { remote_addr, .. } = &event {
            ("path selected", remote_addr)
        } else if let PathEvent::Closed { remote_addr, .. } = &event {
            ("path closed", remote_addr)
        } else {
            continue;
        };
        tracing::info!(%peer, ?path, "{what}");
    }
    std::future::pending().await
}

/// Says that we live, and notices when the other side does not.
async fn watch(sink: Sink, outbox: Arc<Outbox>) -> String {
    loop {
        sink.clock.sleep(PING_EVERY).await;
        let silent = sink.silent_for();
        if silent > IDLE_MAX {
            return format!("nothing was heard for {} s", silent.as_secs());
        }
        outbox.express(Frame::Ping);
    }
}

/// Runs an edge between two stages of this process until it ends.
pub(super) async fn run_local(
    from: (&Arc<Node>, Side, &EdgeLease),
    to: (&Arc<Node>, Side, &EdgeLease),
) -> String {
    let mut tasks = JoinSet::new();
    let there = (Arc::clone(to.0), to.1, to.2.serial);
    let back = (Arc::clone(from.0), from.1, from.2.serial);
    tasks.spawn(carry_express(Arc::clone(&from.2.outbox), there.clone()));
    tasks.spawn(carry_bulk(Arc::clone(&from.2.outbox), there));
    tasks.spawn(carry_express(Arc::clone(&to.2.outbox), back));
    let why = tokio::select! {
        ended = tasks.join_next() => match ended {
            Some(Ok(why)) => why,
            Some(Err(error)) => format!("a task of the edge failed: {error}"),
            None => "nothing of the edge was left".to_owned(),
        },
        () = from.2.stop.cancelled() => "it was closed here".to_owned(),
        () = to.2.stop.cancelled() => "it was closed here".to_owned(),
    };
    from.0.edge_down(from.1, from.2.serial, &why);
    to.0.edge_down(to.1, to.2.serial, &why);
    tasks.shutdown().await;
    why
}

async fn carry_express(outbox: Arc<Outbox>, to: (Arc<Node>, Side, u64)) -> String {
    while let Some(frames) = outbox.take_express().await {
        for frame in frames {
            if let Err(why) = to.0.frame(to.1, to.2, frame) {
                return why;
            }
        }
    }
    "it was closed here".to_owned()
}

async fn carry_bulk(outbox: Arc<Outbox>, to: (Arc<Node>, Side, u64)) -> String {
    while let Some(frames) = outbox.take_bulk().await {
        for frame in frames {
            if let Err(why) = to.0.frame(to.1, to.2, frame) {
                return why;
            }
        }
        // Another stage's decode steps get in between.
        tokio::task::yield_now().await;
    }
    "it was closed here".to_owned()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
