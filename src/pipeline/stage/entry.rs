//! The first stage's own part: whoever asks is admitted here, gets tokens here, and drives each step.

use std::time::Duration;

use stageline_core::stage_protocol::{
    ChatMessage, Finish as WorkerFinish, Prompt, RequestNumber, Sampling,
};
use tokio::sync::mpsc;

use super::super::frame::{Tag, failure};
use super::super::infer::{
    self, Event, Finish, InferCode, InferError, Input, Request as InferRequest,
};
use super::work::Work;
use super::{Core, Request};

/// A prompt must fit into a line of 1 MiB to the worker, sampling and escapes included.
const PROMPT_BYTES_MAX: usize = (1 << 20) - (64 << 10);

/// What comes back to whoever asked. Unbounded, and bounded all the same: a request gives at most `max_tokens` events more
/// than two, and no more than the model's context.
pub(in super::super) type Answers = mpsc::UnboundedReceiver<Result<Event, InferError>>;

/// Who asked.
pub(super) struct Caller {
    events: mpsc::UnboundedSender<Result<Event, InferError>>,
    started: bool,
    drawn: u32,
    tokens_max: u32,
    /// Positions that it may take at most; counted against the limit of the roster.
    reserved: u64,
    /// Whether a token may come now.
    pub(super) awaits: bool,
}

impl Caller {
    pub(super) fn fail(&self, error: InferError) {
        // Whoever asked may be gone; then nobody needs it.
        drop(self.events.send(Err(error)));
    }

    fn tell(&self, event: Event) {
        drop(self.events.send(Ok(event)));
    }

    fn start(&mut self, prompt_tokens: u32) {
        if !self.started {
            self.started = true;
            self.tell(Event::Started { prompt_tokens });
        }
    }
}

impl Core {
    /// Takes a request, or says why not.
    pub(in super::super) fn submit(
        &mut self,
        now: Duration,
        request: InferRequest,
        seed: u64,
    ) -> Result<(Tag, Answers), InferError> {
        self.now = now;
        let id = &self.place.id;
        if self.draining.is_some() {
            let message = format!("{id}: the pipeline is being drained");
            return Err(failure(InferCode::Draining, message));
        }
        let in_flight_max = self.limits.max_in_flight;
        if self.requests.len() >= in_flight_max as usize {
            let message = format!("{id}: busy: {in_flight_max} requests in flight");
            return Err(failure(InferCode::Busy, message));
        }
        let sampling = sampling_of(request.sampling, seed);
        sampling
            .check()
            .map_err(|why| failure(InferCode::BadRequest, format!("{id}: {why}")))?;
        check_size(&request.input)
            .map_err(|why| failure(InferCode::BadRequest, format!("{id}: {why}")))?;
        let limit = self.limits.request_timeout.duration();
        let wanted = request.deadline_ms.map_or(limit, Duration::from_millis);
        let tag = self.draw_tag();
        let number = self.draw_number(tag);
        let (events, answers) = mpsc::unbounded_channel();
        let tokens_max = sampling.max_tokens;
        let mut entered = Request::new(number, sampling, now, now + wanted.min(limit));
        entered.caller = Some(Caller {
            events,
            started: false,
            drawn: 0,
            tokens_max,
            reserved: 0,
            awaits: false,
        });
        entered
            .work
            .push_back(Work::Start(prompt_of(request.input)));
        self.requests.insert(tag, entered);
        self.enqueue(tag);
        self.pump();
        Ok((tag, answers))
    }

    /// Whoever asked is gone.
    pub(in super::super) fn cancel(&mut self, now: Duration, tag: Tag) {
        self.now = now;
        if self.requests.contains_key(&tag) {
            let message = format!("{}: cancelled by its caller", self.place.id);
            self.fail(tag, failure(InferCode::Cancelled, message));
        }
        self.pump();
    }

    /// The worker said how long the prompt is.
    pub(super) fn prompt_counted(&mut self, tag: Tag, tokens: u32) {
        let context = self.worker.as_ref().map_or(0, |worker| worker.context);
        let Some(caller) = self.caller(tag) else {
            return;
        };
        let wanted = tokens.saturating_add(caller.tokens_max).min(context);
        caller.reserved = u64::from(wanted.max(tokens));
        let reserved = caller.reserved;
        let Some(limit) = self.limits.kv_tokens else {
            return;
        };
        let callers = self.requests.values().filter_map(|r| r.caller.as_ref());
        let sum: u64 = callers.map(|caller| caller.reserved).sum();
        if sum > limit {
            let message = format!(
                "{}: busy: this request may take {reserved} positions; {limit} are there for all requests",
                self.place.id
            );
            self.fail(tag, failure(InferCode::Busy, message));
        }
    }

    /// The whole prompt went through the first stage; a token may come.
    pub(super) fn prompt_made(&mut self, tag: Tag) {
        let Some(made) = self.requests.get(&tag).map(|request| request.made) else {
            return;
        };
        if let Some(caller) = self.caller(tag) {
            caller.start(made);
            caller.awaits = true;
        }
    }

    /// A token was drawn for a request that entered here.
    pub(super) fn drawn(
        &mut self,
        tag: Tag,
        token: u32,
        text: String,
        finish: Option<WorkerFinish>,
    ) {
        let Some(caller) = self.caller(tag) else {
            return;
        };
        caller.drawn += 1;
        caller.awaits = false;
        caller.tell(Event::Text { token, text });
        let used_up = caller.drawn >= caller.tokens_max;
        let finish = match finish {
            Some(WorkerFinish::Stop) => Some(Finish::Stop),
            Some(WorkerFinish::Length) => Some(Finish::Length),
            None => used_up.then_some(Finish::Length),
        };
        if let Some(finish) = finish {
            caller.tell(Event::Done {
                finish,
                completion_tokens: caller.drawn,
            });
            return self.remove(tag);
        }
        caller.awaits = true;
        if let Some(request) = self.requests.get_mut(&tag) {
            request.work.push_back(Work::Token(token));
        }
        self.enqueue(tag);
    }

    fn caller(&mut self, tag: Tag) -> Option<&mut Caller> {
        self.requests.get_mut(&tag)?.caller.as_mut()
    }

    fn draw_tag(&self) -> Tag {
        Tag {
            epoch: self.place.epoch,
            id: self.numbers_drawn + 1,
        }
    }

    pub(super) fn draw_number(&mut self, tag: Tag) -> RequestNumber {
        self.numbers_drawn += 1;
        let number = RequestNumber(self.numbers_drawn);
        self.numbers.insert(number, tag);
        number
    }
}

fn sampling_of(sampling: infer::Sampling, seed: u64) -> Sampling {
    Sampling {
        max_tokens: sampling.max_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        seed: sampling.seed.unwrap_or(seed),
        stop: sampling.stop,
    }
}

fn prompt_of(input: Input) -> Prompt {
    match input {
        Input::Prompt(text) => Prompt::Text(text),
        Input::Messages(messages) => Prompt::Messages(
            messages
                .into_iter()
                .map(|message| ChatMessage {
                    role: message.role,
                    content: message.content,
                })
                .collect(),
        ),
    }
}

fn check_size(input: &Input) -> Result<(), String> {
    let bytes = serde_json::to_string(input).map_or(usize::MAX, |text| text.len());
    if bytes > PROMPT_BYTES_MAX {
        return Err(format!(
            "the prompt has {bytes} bytes as JSON; at most {PROMPT_BYTES_MAX} are taken"
        ));
    }
    match input {
        Input::Messages(messages) if messages.is_empty() => Err("there is no message".to_owned()),
        Input::Prompt(_) | Input::Messages(_) => Ok(()),
    }
}
