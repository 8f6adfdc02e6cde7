//! A stage in place: its state machine behind one lock, with its edges, its worker and its clock.
//!
//! What always holds: nobody waits while holding the lock, and what the state machine wants sent is put into outboxes before
//! the lock is released, so the order of frames is the order of decisions. An edge or worker that was replaced can say
//! nothing more: each has a number, and only the newest is heard.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use stageline_core::id::EndpointKey;
use stageline_core::stage_protocol::{FromWorker, ToWorker};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::fabric::StageState;
use super::frame::{Frame, Tag, printable};
use super::infer::{Event, Events, InferError, Request};
use super::link::WorkerLink;
use super::outbox::Outbox;
use super::roster::Limits;
use super::stage::{Answers, Core, Drain, Out, Place, Side, Timing};
use crate::ambient::{SharedClock, random};

/// How long a worker's end waits for its reason.
const REASON_MAX: Duration = Duration::from_secs(2);
/// Of a worker's last words.
const REASON_BYTES_MAX: usize = 4096;

/// One end of an edge that is up.
struct End {
    serial: u64,
    peer: EndpointKey,
    outbox: Arc<Outbox>,
    stop: CancellationToken,
}

struct Inner {
    core: Core,
    ends: BTreeMap<Side, End>,
    serial: u64,
    /// The worker's number, and the way to it.
    worker: Option<(u64, WayToWorker)>,
}

/// Straight into the worker's channel while there is room, and by a queue when there is not: nobody waits here.
struct WayToWorker {
    to: mpsc::Sender<ToWorker>,
    queue: mpsc::UnboundedSender<ToWorker>,
    queued: Arc<AtomicUsize>,
}

impl WayToWorker {
    fn say(&self, message: ToWorker) {
        let message = if self.queued.load(Ordering::Acquire) == 0 {
            match self.to.try_send(message) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(message)) => message,
                // A worker that ended is noticed by the end of what it says.
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        } else {
            message
        };
        self.queued.fetch_add(1, Ordering::AcqRel);
        drop(self.queue.send(message));
    }
}

/// A stage in place.
pub(super) struct Node {
    inner: Mutex<Inner>,
    clock: SharedClock,
    timing: Timing,
    busy: Notify,
    idle: Notify,
    hung: watch::Sender<Option<(u64, String)>>,
    stop: CancellationToken,
}

/// An edge that came up: its number, what waits for it, and what ends it.
pub(super) struct EdgeLease {
    pub(super) serial: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) stop: CancellationToken,
}

/// A stage with its worker. Dropping it changes nothing; [`Fabric::detach`](super::Fabric::detach) takes the worker away.
#[derive(Clone)]
pub struct StageHandle {
    hung: watch::Receiver<Option<(u64, String)>>,
    serial: u64,
}

impl StageHandle {
    /// Returns, with the reason, when the worker took work and gave no answer for so long that it should be killed.
    /// Never returns otherwise.
    pub async fn hung(&self) -> String {
        let (serial, mut hung) = (self.serial, self.hung.clone());
        let mine = |hung: &Option<(u64, String)>| hung.as_ref().is_some_and(|(n, _)| *n == serial);
        let told = hung.wait_for(mine).await;
        let told = told.map(|hung| hung.as_ref().map(|(_, why)| why.clone()));
        match told {
            Ok(why) => why.unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Node {
    pub(super) fn new(
        place: Place,
        limits: Limits,
        timing: Timing,
        clock: SharedClock,
    ) -> Arc<Self> {
        let node = Arc::new(Self {
            inner: Mutex::new(Inner {
                core: Core::new(place, limits, timing),
                ends: BTreeMap::new(),
                serial: 0,
                worker: None,
            }),
            clock,
            timing,
            busy: Notify::new(),
            idle: Notify::new(),
            hung: watch::Sender::new(None),
            stop: CancellationToken::new(),
        });
        tokio::spawn(tick(Arc::downgrade(&node), node.stop.clone()));
        node
    }

    /// Ends everything here: requests fail, edges close, the worker is let go.
    pub(super) fn close(&self, why: &str) {
        self.with(|core, now| core.fail_all(now, why));
        self.stop.cancel();
        let mut inner = self.lock();
        inner.worker = None;
        for (_, end) in std::mem::take(&mut inner.ends) {
            end.stop.cancel();
        }
    }

    /// Ends when this stage does, or when `other` is cancelled by hand.
    pub(super) fn stopping(&self, other: &CancellationToken) -> CancellationToken {
        let token = self.stop.child_token();
        let (mine, other) = (token.clone(), other.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = other.cancelled() => mine.cancel(),
                () = mine.cancelled() => {}
            }
        });
        token
    }

    pub(super) fn place(&self) -> Place {
        self.lock().core.place().clone()
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        self.with(|core, _| core.set_limits(limits));
    }

    pub(super) fn set_draining(&self, draining: Option<Drain>) {
        self.with(|core, _| core.set_draining(draining));
    }

    pub(super) fn hidden_size(&self) -> u32 {
        self.lock().core.hidden_size()
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.lock().core.in_flight()
    }

    pub(super) fn worked(&self) -> Option<Duration> {
        self.lock().core.worked()
    }

    /// Returns when no request is in flight.
    pub(super) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(super) fn state(&self) -> StageState {
        let inner = self.lock();
        let place = inner.core.place();
        let down = inner.core.down();
        let index = |side: &Side| place.neighbour(*side).index;
        let mut edges: Vec<u32> = place
            .sides()
            .iter()
            .filter(|side| !down.contains_key(side))
            .map(index)
            .collect();
        edges.sort_unstable();
        StageState {
            edges,
            down: down
                .iter()
                .map(|(side, why)| (index(side), why.clone()))
                .collect(),
            in_flight: inner.core.in_flight(),
            worker: inner.core.has_worker(),
        }
    }

    /// Gives the stage a worker, in place of an earlier one.
    pub(super) fn attach(self: &Arc<Self>, link: WorkerLink) -> StageHandle {
        let (queue, queued_messages) = mpsc::unbounded_channel();
        let way = WayToWorker {
            to: link.to.clone(),
            queue,
            queued: Arc::default(),
        };
        let queued = Arc::clone(&way.queued);
        let (hidden_size, context) = (link.hidden_size, link.context);
        let serial = {
            let mut inner = self.lock();
            inner.serial += 1;
            let serial = inner.serial;
            // The earlier one, if there is one, is told the ends of its requests over its own queue.
            let now = self.clock.boottime();
            inner.core.worker_gone(now, "another worker took its place");
            self.route(&mut inner);
            inner.worker = Some((serial, way));
            inner.core.attach(now, hidden_size, context);
            self.route(&mut inner);
            serial
        };
        let WorkerLink {
            to, from, ended, ..
        } = link;
        tokio::spawn(feed(queued_messages, queued, to));
        tokio::spawn(listen(Arc::clone(self), serial, from, ended));
        StageHandle {
            hung: self.hung.subscribe(),
            serial,
        }
    }

    /// Takes the worker away, if it is still that one; any when no number is given.
    pub(super) fn detach(&self, serial: Option<u64>, why: &str) {
        let mut inner = self.lock();
        let Some((current, _)) = &inner.worker else {
            return;
        };
        if serial.is_some_and(|serial| serial != *current) {
            return;
        }
        inner.core.worker_gone(self.clock.boottime(), why);
        self.route(&mut inner);
        inner.worker = None;
    }

    /// An edge came up, in place of an earlier one, whose requests fail with `why`.
    pub(super) fn edge_up(&self, side: Side, peer: EndpointKey, why: &str) -> EdgeLease {
        let mut inner = self.lock();
        let now = self.clock.boottime();
        if let Some(end) = inner.ends.remove(&side) {
            inner.core.edge_down(now, side, why);
            end.outbox.close();
            end.stop.cancel();
        }
        inner.serial += 1;
        let serial = inner.serial;
        let (outbox, stop) = (Arc::new(Outbox::default()), self.stop.child_token());
        let end = End {
            serial,
            peer,
            outbox: Arc::clone(&outbox),
            stop: stop.clone(),
        };
        inner.ends.insert(side, end);
        inner.core.edge_up(now, side);
        self.route(&mut inner);
        EdgeLease {
            serial,
            outbox,
            stop,
        }
    }

    /// An edge ended, if it is still that one.
    pub(super) fn edge_down(&self, side: Side, serial: u64, why: &str) {
        let mut inner = self.lock();
        if inner
            .ends
            .get(&side)
            .is_some_and(|end| end.serial == serial)
        {
            self.end(&mut inner, side, why);
        }
    }

    /// Says why an edge is not up, for messages.
    pub(super) fn edge_unreachable(&self, side: Side, why: &str) {
        let mut inner = self.lock();
        if !inner.ends.contains_key(&side) {
            self.end(&mut inner, side, why);
        }
    }

    /// Closes an edge whose other end the roster does not name any more.
    pub(super) fn expect_peer(&self, side: Side, peer: EndpointKey) {
        let mut inner = self.lock();
        if inner.ends.get(&side).is_some_and(|end| end.peer != peer) {
            self.end(&mut inner, side, "the roster names another machine");
        }
    }

    /// Closes every edge with a machine that is somewhere else now. As long as one of them is open, new connections go where it was:
    /// iroh sends what is for a peer by one path.
    pub(super) fn peer_moved(&self, peer: EndpointKey) {
        let mut inner = self.lock();
        let ends = inner.ends.iter().filter(|(_, end)| end.peer == peer);
        let sides: Vec<Side> = ends.map(|(side, _)| *side).collect();
        for side in sides {
            self.end(&mut inner, side, "its machine is reached elsewhere now");
        }
    }

    fn end(&self, inner: &mut Inner, side: Side, why: &str) {
        let end = inner.ends.remove(&side);
        inner.core.edge_down(self.clock.boottime(), side, why);
        self.route(inner);
        if let Some(end) = end {
            end.outbox.close();
            end.stop.cancel();
        }
    }

    /// A frame came in. An error means that the edge must be closed.
    pub(super) fn frame(&self, side: Side, serial: u64, frame: Frame) -> Result<(), String> {
        let mut inner = self.lock();
        if inner.ends.get(&side).is_none_or(|end| end.serial != serial) {
            return Err("another edge took its place".to_owned());
        }
        let result = inner.core.on_frame(self.clock.boottime(), side, frame);
        self.route(&mut inner);
        result
    }

    /// A prompt, at the first stage.
    pub(super) fn submit(self: &Arc<Self>, request: Request) -> Result<Events, InferError> {
        let seed = u64::from_le_bytes(random());
        let (tag, answers) = self.with(|core, now| core.submit(now, request, seed))?;
        let asked = Asked {
            node: Arc::clone(self),
            tag,
            answers,
        };
        Ok(asked.boxed())
    }

    fn hear(&self, serial: u64, message: FromWorker) {
        let mut inner = self.lock();
        if inner.worker.as_ref().is_some_and(|(n, _)| *n == serial) {
            inner.core.on_worker(self.clock.boottime(), message);
            self.route(&mut inner);
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Core, Duration) -> R) -> R {
        let mut inner = self.lock();
        let result = act(&mut inner.core, self.clock.boottime());
        self.route(&mut inner);
        result
    }

    fn route(&self, inner: &mut Inner) {
        for out in inner.core.take_out() {
            match out {
                Out::Worker(message) => {
                    if let Some((_, worker)) = &inner.worker {
                        worker.say(message);
                    }
                }
                Out::Express(side, frame) => {
                    if let Some(end) = inner.ends.get(&side) {
                        end.outbox.express(frame);
                    }
                }
                Out::Chunk {
                    tag,
                    begin,
                    remaining_ms,
                    activation,
                } => {
                    if let Some(end) = inner.ends.get(&Side::Next) {
                        end.outbox.chunk(tag, begin, remaining_ms, activation);
                    }
                }
                Out::Forget(tag) => {
                    if let Some(end) = inner.ends.get(&Side::Next) {
                        end.outbox.forget(tag);
                    }
                }
            }
        }
        if !inner.core.is_idle() {
            self.busy.notify_one();
        }
        if inner.core.in_flight() == 0 {
            self.idle.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

/// Looks at deadlines while there is something to look at.
async fn tick(node: Weak<Node>, stop: CancellationToken) {
    loop {
        let Some(strong) = node.upgrade() else {
            return;
        };
        let busy = !strong.lock().core.is_idle();
        let clock = Arc::clone(&strong.clock);
        if busy {
            let span = strong.timing.tick;
            drop(strong);
            tokio::select! {
                () = clock.sleep(span) => {}
                () = stop.cancelled() => return,
            }
            if let Some(node) = node.upgrade() {
                let hung = node.with(|core, now| core.tick(now));
                let serial = node.lock().worker.as_ref().map(|(serial, _)| *serial);
                if let (Some(why), Some(serial)) = (hung, serial) {
                    node.hung.send_replace(Some((serial, why)));
                }
            }
        } else {
            tokio::select! {
                () = strong.busy.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

async fn feed(
    mut queue: mpsc::UnboundedReceiver<ToWorker>,
    queued: Arc<AtomicUsize>,
    to: mpsc::Sender<ToWorker>,
) {
    while let Some(message) = queue.recv().await {
        if to.send(message).await.is_err() {
            return;
        }
        // Only now may the next one go straight: it must not overtake this one.
        queued.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn listen(
    node: Arc<Node>,
    serial: u64,
    mut from: mpsc::Receiver<FromWorker>,
    ended: tokio::sync::oneshot::Receiver<String>,
) {
    let mut last_words = None;
    while let Some(message) = from.recv().await {
        if let FromWorker::Failed { message, .. } = &message {
            last_words = Some(printable(message, REASON_BYTES_MAX));
        }
        node.hear(serial, message);
    }
    let told = tokio::time::timeout(REASON_MAX, ended).await;
    let why = match told {
        Ok(Ok(why)) => printable(&why, REASON_BYTES_MAX),
        Ok(Err(_)) | Err(_) => last_words.unwrap_or_else(|| "it gave no reason".to_owned()),
    };
    node.detach(Some(serial), &why);
}

/// What comes back to a caller in this process. Dropping it cancels the request.
struct Asked {
    node: Arc<Node>,
    tag: Tag,
    answers: Answers,
}

impl Stream for Asked {
    type Item = Result<Event, InferError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.answers.poll_recv(context)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let tag = self.tag;
        self.node.with(|core, now| core.cancel(now, tag));
    }
}
