//! One stage of a pipeline: its requests, its worker's work and its edges, as a state machine. Nothing here waits, reads a
//! clock or touches a socket; what is to be sent is collected and taken by whoever drives it.
//!
//! What always holds:
//!
//! * One prompt and one step are with the worker at a time, so that a worker that can do so lets a step by while it works
//!   on a long prompt; what belongs to requests that ended meanwhile is bounded too. A request has at most one piece of
//!   work in the queue, so requests take turns.
//! * A part of a prompt is acknowledged upstream when the worker has worked it through; at most two are under way between
//!   two stages. A decode step needs no such thing: a request has one. So nothing in the ring waits for room, and what
//!   waits is bounded by the limits of the roster.
//! * Ends and cancels go downstream, errors and acknowledgements upstream, tokens from the last stage to the first. A
//!   request leaves this map together with the worker's cache for it, whatever the reason; whoever asked gets one answer.
//! * A neighbour that breaks these rules loses its edge.

mod entry;
mod flow;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stageline_core::id::StageId;
use stageline_core::stage_protocol::{Activation, Dtype, RequestNumber, Sampling, ToWorker};

pub(super) use self::entry::Answers;
use self::entry::Caller;
use self::flow::Assembly;
use self::work::{Op, Work};
use super::frame::{Frame, Tag, failure};
use super::infer::{InferCode, InferError};
use super::roster::Limits;

/// Parts of one request's prompt that may be under way on one edge.
const PARTS_MAX: u32 = 2;
/// For a word from the stage that a request is stuck at.
const DEADLINE_GRACE: Duration = Duration::from_millis(300);
/// The most that one look at the clock adds to a worker's silence: looks are far apart when there was nothing to do, and
/// after this computer slept.
const SECOND: Duration = Duration::from_secs(1);
/// Requests that ended before they began here: remembered so that a late begin is dropped.
const EARLY_ENDS_MAX: usize = 1024;

/// An edge of a stage, by its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// To the next stage.
    Next,
    /// From the stage before.
    Prev,
    /// From the last stage to the first, seen by the last.
    TokensOut,
    /// From the last stage to the first, seen by the first.
    TokensIn,
}

/// What is to be done outside.
#[derive(Debug, PartialEq)]
pub(super) enum Out {
    /// Say this to the worker.
    Worker(ToWorker),
    /// Send this soon.
    Express(Side, Frame),
    /// Send this part of a prompt to the next stage.
    Chunk {
        tag: Tag,
        begin: Option<Sampling>,
        remaining_ms: u32,
        activation: Activation,
    },
    /// Take back what was not sent yet.
    Forget(Tag),
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A request that came before its edges and workers were there waits this long.
    pub early_wait: Duration,
    /// A worker that says nothing for this long while it has work is given up. Time without work does not count.
    pub hung_after: Duration,
    /// How often deadlines are looked at.
    pub tick: Duration,
    /// The longest pause between two tries to reach a neighbour.
    pub redial_max: Duration,
}

impl Default for Timing {
    /// An early request waits as long as a worker that died needs to be started again, or a peer to be found dead and
    /// redialled; a part of 512 positions may take a slow machine more than a minute.
    fn default() -> Self {
        Self {
            early_wait: Duration::from_secs(10),
            hung_after: Duration::from_secs(180),
            tick: Duration::from_millis(50),
            redial_max: Duration::from_secs(3),
        }
    }
}

/// What takes no new requests while those in flight end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drain {
    /// First stages: nothing is admitted. What was admitted goes on through the other stages, also where it has not come yet.
    Admission,
    /// All stages, for a machine that ends: what comes from the stage before is refused too.
    #[default]
    All,
}

/// What is fixed while a stage is in place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) id: StageId,
    pub(super) num_stages: u32,
    pub(super) dtype: Dtype,
    /// Random per start of this process: the epoch of requests that enter here.
    pub(super) epoch: u64,
}

impl Place {
    pub(super) fn is_entry(&self) -> bool {
        self.id.index == 0
    }

    pub(super) fn is_exit(&self) -> bool {
        self.id.index + 1 == self.num_stages
    }

    /// The edges that this stage has.
    pub(super) fn sides(&self) -> Vec<Side> {
        let (entry, exit) = (self.is_entry(), self.is_exit());
        [
            (Side::Next, !exit),
            (Side::Prev, !entry),
            (Side::TokensOut, exit && !entry),
            (Side::TokensIn, entry && !exit),
        ]
        .into_iter()
        .filter_map(|(side, there)| there.then_some(side))
        .collect()
    }

    /// The stage at the other end.
    pub(super) fn neighbour(&self, side: Side) -> StageId {
        let index = match side {
            Side::Next => self.id.index + 1,
            Side::Prev => self.id.index.saturating_sub(1),
            Side::TokensOut => 0,
            Side::TokensIn => self.num_stages - 1,
        };
        StageId {
            pipeline: self.id.pipeline.clone(),
            index,
        }
    }
}

/// A worker that takes requests.
#[derive(Clone, Copy, Debug)]
struct Worker {
    hidden_size: usize,
    context: u32,
}

/// One request at this stage.
struct Request {
    number: RequestNumber,
    sampling: Sampling,
    begun: Duration,
    deadline: Duration,
    /// Whether the worker heard of it.
    touched: bool,
    /// Whether it stands in `ready`.
    queued: bool,
    work: VecDeque<Work>,
    /// The part of the prompt that is coming in.
    assembly: Option<Assembly>,
    /// The first position that has not come in.
    expected: u32,
    /// Whether the whole prompt came in.
    prompt_in: bool,
    /// Parts that came in, even partly, and are not acknowledged.
    open_parts: u32,
    /// The first position that the worker has not worked through.
    made: u32,
    /// Parts that wait for their turn on the edge.
    outbound: VecDeque<Activation>,
    /// Parts on the edge that are not acknowledged.
    unacked: u32,
    /// Whether the next stage may have heard of it.
    begun_next: bool,
    /// At the first stage: who asked.
    caller: Option<Caller>,
}

/// One stage of a pipeline.
pub(super) struct Core {
    place: Place,
    limits: Limits,
    timing: Timing,
    now: Duration,
    requests: BTreeMap<Tag, Request>,
    numbers: BTreeMap<RequestNumber, Tag>,
    numbers_drawn: u64,
    ready: VecDeque<Tag>,
    worker: Result<Worker, String>,
    /// What the worker has of requests that go on: one prompt and one other message at most.
    outstanding: Vec<Op>,
    /// How many messages the worker may still have of requests that ended, and since when. A worker may answer them or
    /// not, so nobody waits for that.
    doubtful: (usize, Duration),
    /// How long the worker has said nothing while it had work.
    silent: Duration,
    ticked: Duration,
    /// Why an edge is down, for those that are.
    down: BTreeMap<Side, String>,
    early_ends: VecDeque<Tag>,
    /// Bytes of hidden states that wait here.
    queued_bytes: u64,
    draining: Option<Drain>,
    /// When the worker last got on with a request.
    worked: Option<Duration>,
    out: Vec<Out>,
}

impl Core {
    pub(super) fn new(place: Place, limits: Limits, timing: Timing) -> Self {
        let never = |side| (side, "it has not come up yet".to_owned());
        Self {
            down: place.sides().into_iter().map(never).collect(),
            place,
            limits,
            timing,
            now: Duration::ZERO,
            requests: BTreeMap::new(),
            numbers: BTreeMap::new(),
            numbers_drawn: 0,
            ready: VecDeque::new(),
            worker: Err("none was started".to_owned()),
            outstanding: Vec::new(),
            doubtful: (0, Duration::ZERO),
            silent: Duration::ZERO,
            ticked: Duration::ZERO,
            early_ends: VecDeque::new(),
            queued_bytes: 0,
            draining: None,
            worked: None,
            out: Vec::new(),
        }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(super) fn set_draining(&mut self, draining: Option<Drain>) {
        self.draining = draining;
    }

    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.requests.len()).unwrap_or(u32::MAX)
    }

    /// When its worker last got on with a request. One that only failed is none.
    pub(super) const fn worked(&self) -> Option<Duration> {
        self.worked
    }

    /// Whether time passing changes nothing here.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn has_worker(&self) -> bool {
        self.worker.is_ok()
    }

    /// Numbers per position; 0 while no worker said it.
    pub(super) fn hidden_size(&self) -> u32 {
        let size = self.worker.as_ref().map_or(0, |worker| worker.hidden_size);
        u32::try_from(size).unwrap_or(0)
    }

    /// The edges that are down, with the reason.
    pub(super) fn down(&self) -> &BTreeMap<Side, String> {
        &self.down
    }

    pub(super) fn attach(&mut self, now: Duration, hidden_size: u32, context: u32) {
        self.worker_gone(now, "another worker took its place");
        self.worker = Ok(Worker {
            hidden_size: hidden_size as usize,
            context,
        });
        self.silent = Duration::ZERO;
        self.doubtful = (0, now);
        self.wake_all();
    }

    pub(super) fn worker_gone(&mut self, now: Duration, why: &str) {
        self.now = now;
        self.worker = Err(why.to_owned());
        self.outstanding.clear();
        let message = format!("{}: its worker ended: {why}", self.place.id);
        self.fail_touched(&failure(InferCode::StageDown, message));
    }

    pub(super) fn edge_up(&mut self, now: Duration, side: Side) {
        self.now = now;
        self.down.remove(&side);
        self.wake_all();
    }

    pub(super) fn edge_down(&mut self, now: Duration, side: Side, why: &str) {
        self.now = now;
        self.down.insert(side, why.to_owned());
        match side {
            // Nobody is left who wants an answer from here.
            Side::Prev => {
                for tag in self.tags(|_| true) {
                    self.remove(tag);
                }
            }
            Side::Next | Side::TokensIn | Side::TokensOut => {
                let error = self.edge_failure(side, why);
                self.fail_touched(&error);
            }
        }
        self.pump();
    }

    /// Ends everything: the stage is taken away or changes its place.
    pub(super) fn fail_all(&mut self, now: Duration, why: &str) {
        self.now = now;
        let message = format!("{}: {why}", self.place.id);
        for tag in self.tags(|_| true) {
            self.fail(tag, failure(InferCode::StageDown, message.clone()));
        }
    }

    /// Looks at deadlines. Returns why the worker should be given up, if it should.
    pub(super) fn tick(&mut self, now: Duration) -> Option<String> {
        self.now = now;
        for tag in self.tags(|request| now >= self.ends_at(request)) {
            let message = self.deadline_message(tag);
            self.fail(tag, failure(InferCode::DeadlineExceeded, message));
        }
        let early_wait = self.timing.early_wait;
        for tag in self.tags(|request| !request.touched && now >= request.begun + early_wait) {
            if let Some(error) = self.requests.get(&tag).and_then(|r| self.missing(r)) {
                self.fail(tag, error);
            }
        }
        self.pump();
        if !self.outstanding.is_empty() {
            self.silent += now.saturating_sub(self.ticked).min(SECOND);
        }
        self.ticked = now;
        (self.silent >= self.timing.hung_after).then(|| {
            let seconds = self.silent.as_secs();
            format!("it had work and said nothing for {seconds} s")
        })
    }

    /// A stage that only waits for another one lets that one say first that it has no time left: its name is the one that
    /// helps.
    fn ends_at(&self, request: &Request) -> Duration {
        let with_worker = self
            .outstanding
            .iter()
            .any(|op| op.number == request.number);
        let waits_for_others = request.touched && !with_worker && request.work.is_empty();
        let grace = if waits_for_others {
            DEADLINE_GRACE
        } else {
            Duration::ZERO
        };
        request.deadline.saturating_add(grace)
    }

    fn deadline_message(&self, tag: Tag) -> String {
        let id = &self.place.id;
        let Some(request) = self.requests.get(&tag) else {
            return format!("{id}: no time left");
        };
        let working = self
            .outstanding
            .iter()
            .any(|op| op.number == request.number);
        let why = if !request.touched {
            "the request was still waiting for its turn".to_owned()
        } else if working {
            "its worker was still computing".to_owned()
        } else if self.place.is_exit() {
            "it was waiting for the stages before".to_owned()
        } else if request.unacked > 0 {
            format!(
                "it was waiting for {} to take the prompt",
                self.place.neighbour(Side::Next)
            )
        } else {
            let last = self.place.num_stages - 1;
            format!("it was waiting for stages 1 to {last}")
        };
        format!("{id}: no time left; {why}")
    }

    fn tags(&self, wanted: impl Fn(&Request) -> bool) -> Vec<Tag> {
        self.requests
            .iter()
            .filter(|(_, request)| wanted(request))
            .map(|(tag, _)| *tag)
            .collect()
    }

    fn is_up(&self, side: Side) -> bool {
        !self.down.contains_key(&side)
    }

    fn edge_failure(&self, side: Side, why: &str) -> InferError {
        let (id, other) = (&self.place.id, self.place.neighbour(side));
        failure(
            InferCode::StageDown,
            format!("{other}: its edge with {id} is down: {why}"),
        )
    }

    /// What a request that nothing was done for is waiting for, if that is not just its turn.
    fn missing(&self, request: &Request) -> Option<InferError> {
        if let Err(why) = &self.worker {
            let message = format!("{}: its worker is not running: {why}", self.place.id);
            return Some(failure(InferCode::StageDown, message));
        }
        if request.work.is_empty() {
            return None;
        }
        let needed = match (self.place.is_entry(), self.place.is_exit()) {
            (true, true) => &[][..],
            (true, false) => &[Side::Next, Side::TokensIn],
            (false, false) => &[Side::Next],
            (false, true) => &[Side::TokensOut],
        };
        let (side, why) = needed
            .iter()
            .find_map(|side| Some((*side, self.down.get(side)?)))?;
        Some(self.edge_failure(side, why))
    }

    fn fail_touched(&mut self, error: &InferError) {
        for tag in self.tags(|request| request.touched) {
            self.fail(tag, error.clone());
        }
    }

    /// Ends a request with an error: to its caller here, or to the stage before.
    fn fail(&mut self, tag: Tag, error: InferError) {
        let Some(request) = self.requests.get(&tag) else {
            return;
        };
        match &request.caller {
            Some(caller) => caller.fail(error),
            None if self.is_up(Side::Prev) => {
                self.out
                    .push(Out::Express(Side::Prev, Frame::Error { tag, error }));
            }
            None => {}
        }
        self.remove(tag);
    }

    /// Frees everything that a request holds, here and downstream.
    fn remove(&mut self, tag: Tag) {
        let Some(request) = self.requests.remove(&tag) else {
            return;
        };
        self.numbers.remove(&request.number);
        self.queued_bytes = self.queued_bytes.saturating_sub(request.held_bytes());
        let with_worker = self.outstanding.len();
        self.outstanding.retain(|op| op.number != request.number);
        if self.outstanding.len() < with_worker {
            self.doubtful = (self.doubtful.0 + 1, self.now);
        }
        if request.touched && self.worker.is_ok() {
            let id = request.number;
            self.out.push(Out::Worker(ToWorker::End { id }));
        }
        if request.begun_next {
            self.out.push(Out::Forget(tag));
            if self.is_up(Side::Next) {
                self.out.push(Out::Express(Side::Next, Frame::End { tag }));
            }
        }
    }

    fn remaining_ms(&self, request: &Request) -> u32 {
        let left = request.deadline.saturating_sub(self.now).as_millis();
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

impl Request {
    fn new(number: RequestNumber, sampling: Sampling, begun: Duration, deadline: Duration) -> Self {
        Self {
            number,
            sampling,
            begun,
            deadline,
            touched: false,
            queued: false,
            work: VecDeque::new(),
            assembly: None,
            expected: 0,
            prompt_in: false,
            open_parts: 0,
            made: 0,
            outbound: VecDeque::new(),
            unacked: 0,
            begun_next: false,
            caller: None,
        }
    }

    fn held_bytes(&self) -> u64 {
        let outbound = self.outbound.iter().map(|part| part.payload.len());
        let work = self.work.iter().map(Work::bytes);
        let assembly = self.assembly.iter().map(Assembly::bytes);
        outbound.chain(work).chain(assembly).sum::<usize>() as u64
    }
}
