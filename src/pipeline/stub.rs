//! The worker of `engine = "stub"`: deterministic bytes and tokens, no model, in this process.
//!
//! For rehearsals and tests of everything but the model. What always holds: the answer depends on the prompt, the sampling
//! and nothing else, so a pipeline of five stages answers as one of one stage does; each stage keeps what a model would keep
//! for a request, and complains when a position is missing. What it refuses: arguments that it does not know.

use std::collections::BTreeMap;
use std::time::Duration;

use stageline_core::stage_protocol::{
    Activation, ChatMessage, Dtype, ErrorCode, Finish, FromWorker, Prompt, RequestNumber, Sampled,
    Sampling, ToWorker,
};

use super::link::{WorkerEnd, WorkerLink};

/// Numbers per position, unless `--hidden-size` says otherwise.
const HIDDEN_SIZE: u32 = 64;
/// Positions of a request, unless the context is given.
const CONTEXT: u32 = 8192;
/// Positions in one part of a prompt.
const PART: usize = 512;
/// An answer is about as long as a sentence, unless fewer tokens are asked for.
const SENTENCE_MIN: u64 = 8;
const SENTENCE_SPREAD: u64 = 16;

/// Words that make sense in almost any order.
const WORDS: [&str; 32] = [
    "the", "quiet", "river", "carries", "small", "boats", "toward", "morning", "and", "every",
    "lantern", "answers", "a", "distant", "bell", "while", "patient", "clouds", "gather", "over",
    "green", "hills", "where", "old", "stories", "travel", "slowly", "from", "stage", "to",
    "another", "light",
];
/// Ends a sentence.
const PERIOD: u32 = WORDS.len() as u32;

/// What a stub worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubOptions {
    /// Which stage it is.
    pub stage: u32,
    /// How many there are.
    pub num_stages: u32,
    /// Numbers on the hop.
    pub dtype: Dtype,
    /// Most positions of a request.
    pub context: Option<u32>,
    /// `--delay-ms=5` makes each message take that long; `--hidden-size=64` sets the numbers per position.
    pub engine_args: Vec<String>,
}

/// Starts a stub worker. It ends when the link is dropped.
///
/// # Errors
/// One sentence, for arguments that it does not know.
pub fn start(options: &StubOptions) -> Result<WorkerLink, String> {
    let (worker, delay) = StubWorker::new(options)?;
    let hidden_size = u32::try_from(worker.hidden_size).expect("read as such a number");
    let (link, end) = WorkerLink::pair(hidden_size, worker.context);
    tokio::spawn(run(worker, delay, end));
    Ok(link)
}

async fn run(mut worker: StubWorker, delay: Duration, end: WorkerEnd) {
    let WorkerEnd {
        mut from_stage,
        to_stage,
        ended,
    } = end;
    while let Some(message) = from_stage.recv().await {
        if !delay.is_zero() && !matches!(message, ToWorker::End { .. }) {
            tokio::time::sleep(delay).await;
        }
        for answer in worker.take(message) {
            if to_stage.send(answer).await.is_err() {
                return;
            }
        }
    }
    // The stage let it go; nobody asks why.
    drop(ended.send("it was stopped".to_owned()));
}

/// What a stage keeps for a request.
struct Kept {
    sampling: Sampling,
    /// Positions that it has seen.
    positions: u32,
    /// Of everything that it has seen.
    digest: blake3::Hasher,
    drawn: u32,
    /// Text that is not told yet, since a stop text may begin in it.
    held: String,
}

pub(super) struct StubWorker {
    is_first: bool,
    is_last: bool,
    dtype: Dtype,
    hidden_size: usize,
    context: u32,
    requests: BTreeMap<RequestNumber, Kept>,
}

impl StubWorker {
    pub(super) fn new(options: &StubOptions) -> Result<(Self, Duration), String> {
        let StubOptions {
            stage,
            num_stages,
            dtype,
            context,
            engine_args,
        } = options;
        let (mut delay_ms, mut hidden_size) = (0, HIDDEN_SIZE);
        for argument in engine_args {
            let wrong = || {
                format!(
                    "the stub does not know `{argument}`; it knows --delay-ms=N (at most 60000) and --hidden-size=N (1 to 65536)"
                )
            };
            let (name, value) = argument.split_once('=').ok_or_else(wrong)?;
            let value: u32 = value.parse().map_err(|_| wrong())?;
            match name {
                "--delay-ms" if value <= 60_000 => delay_ms = value,
                "--hidden-size" if (1..=65_536).contains(&value) => hidden_size = value,
                _ => return Err(wrong()),
            }
        }
        let worker = Self {
            is_first: *stage == 0,
            is_last: *stage + 1 == *num_stages,
            dtype: *dtype,
            hidden_size: hidden_size as usize,
            context: context.unwrap_or(CONTEXT),
            requests: BTreeMap::new(),
        };
        Ok((worker, Duration::from_millis(u64::from(delay_ms))))
    }

    /// What it answers to a message.
    pub(super) fn take(&mut self, message: ToWorker) -> Vec<FromWorker> {
        let id = message.id();
        let result = match message {
            ToWorker::Start {
                id,
                prompt,
                sampling,
            } => self.start(id, &prompt, sampling),
            ToWorker::Forward {
                id,
                activation,
                sampling,
            } => self.forward(id, activation, sampling),
            ToWorker::Token {
                id,
                token,
                position,
            } => self.token(id, token, position),
            ToWorker::End { id } => {
                self.requests.remove(&id);
                Ok(vec![])
            }
        };
        result.unwrap_or_else(|(code, message)| {
            self.requests.remove(&id);
            vec![FromWorker::Error {
                id: Some(id),
                code,
                message,
            }]
        })
    }

    /// How many requests it keeps something for.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.requests.len()
    }

    fn start(&mut self, id: RequestNumber, prompt: &Prompt, sampling: Sampling) -> Answers {
        let tokens = tokens_of(prompt);
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if count >= self.context {
            return Err((
                ErrorCode::ContextOverflow,
                format!(
                    "the prompt has {count} tokens; the context of {} has room for fewer",
                    self.context
                ),
            ));
        }
        self.requests.insert(id, Kept::new(sampling));
        let mut answers = Vec::new();
        let mut position = 0;
        let parts = tokens.len().div_ceil(PART);
        for (index, part) in tokens.chunks(PART).enumerate() {
            let mut activation = self.embed(position, part, true);
            activation.more = index + 1 < parts;
            position += activation.len;
            let first = (index == 0).then_some(count);
            answers.extend(self.see(id, activation, first)?);
        }
        // A pipeline of one stage answers a prompt once, with a token.
        if self.is_last {
            answers.retain(|answer| matches!(answer, FromWorker::Token(_)));
            for answer in &mut answers {
                if let FromWorker::Token(sampled) = answer {
                    sampled.prompt_tokens = Some(count);
                }
            }
        }
        Ok(answers)
    }

    fn token(&mut self, id: RequestNumber, token: u32, position: u32) -> Answers {
        let activation = self.embed(position, &[token], false);
        self.see(id, activation, None)
    }

    fn forward(
        &mut self,
        id: RequestNumber,
        activation: Activation,
        sampling: Option<Sampling>,
    ) -> Answers {
        if self.is_first {
            let message = "the first stage takes no hidden states".to_owned();
            return Err((ErrorCode::BadRequest, message));
        }
        activation
            .check(self.hidden_size)
            .map_err(|why| (ErrorCode::BadRequest, why))?;
        if activation.position == 0 {
            self.requests
                .insert(id, Kept::new(sampling.unwrap_or_default()));
        }
        self.see(id, activation, None)
    }

    /// The hidden states of tokens.
    fn embed(&self, position: u32, tokens: &[u32], prefill: bool) -> Activation {
        let bytes = self.hidden_size * self.dtype.size();
        let mut payload = Vec::with_capacity(bytes * tokens.len());
        for token in tokens {
            let pattern = token.to_le_bytes();
            payload.extend(pattern.iter().cycle().take(bytes));
        }
        Activation {
            position,
            len: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            prefill,
            more: false,
            dtype: self.dtype,
            payload,
        }
    }

    /// Goes over positions as a model would, and says what comes out.
    fn see(
        &mut self,
        id: RequestNumber,
        activation: Activation,
        prompt_tokens: Option<u32>,
    ) -> Answers {
        let (is_last, context) = (self.is_last, self.context);
        let per_position = self.hidden_size * self.dtype.size();
        let kept = self.requests.get_mut(&id).ok_or_else(|| {
            let message = format!("request {id} is unknown here");
            (ErrorCode::UnknownRequest, message)
        })?;
        if activation.position != kept.positions {
            let message = format!(
                "position {} came where {} comes",
                activation.position, kept.positions
            );
            return Err((ErrorCode::BadRequest, message));
        }
        kept.positions = kept.positions.saturating_add(activation.len);
        for state in activation.payload.chunks(per_position) {
            // Independent of the number format: a token has four bytes at the begin of each.
            kept.digest.update(&state[..state.len().min(4)]);
        }
        Ok(vec![if !is_last {
            FromWorker::Hidden {
                id,
                activation,
                prompt_tokens,
            }
        } else if activation.more {
            FromWorker::Continue { id }
        } else {
            FromWorker::Token(kept.draw(id, context))
        }])
    }
}

type Answers = Result<Vec<FromWorker>, (ErrorCode, String)>;

impl Kept {
    fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            positions: 0,
            digest: blake3::Hasher::new(),
            drawn: 0,
            held: String::new(),
        }
    }

    fn draw(&mut self, id: RequestNumber, context: u32) -> Sampled {
        let mut hasher = self.digest.clone();
        if self.sampling.temperature > 0.0 {
            hasher.update(&self.sampling.seed.to_le_bytes());
        }
        let number = first_number(&hasher);
        self.drawn += 1;
        let sentence = SENTENCE_MIN + number % SENTENCE_SPREAD;
        let token = if u64::from(self.drawn) > sentence {
            PERIOD
        } else {
            u32::try_from(number / SENTENCE_SPREAD % WORDS.len() as u64).unwrap_or(0)
        };
        self.held.push_str(&text_of(token));
        let stopped = self
            .sampling
            .stop
            .iter()
            .filter_map(|stop| self.held.find(stop))
            .min();
        let used_up = self.drawn >= self.sampling.max_tokens || self.positions + 1 >= context;
        let finish = match stopped {
            Some(_) => Some(Finish::Stop),
            None if token == PERIOD => Some(Finish::Stop),
            None => used_up.then_some(Finish::Length),
        };
        let told = match (stopped, finish) {
            (Some(at), _) => at,
            (None, Some(_)) => self.held.len(),
            (None, None) => self.held.len() - held_back(&self.held, &self.sampling.stop),
        };
        let text = self.held.drain(..told).collect();
        Sampled {
            id,
            token,
            text: Some(text),
            finish,
            prompt_tokens: None,
        }
    }
}

/// How many bytes at the end of a text may be the begin of a stop text.
fn held_back(text: &str, stops: &[String]) -> usize {
    let begins = |stop: &String| {
        (1..stop.len())
            .rev()
            .find(|len| stop.is_char_boundary(*len) && text.ends_with(&stop[..*len]))
    };
    stops.iter().filter_map(begins).max().unwrap_or(0)
}

fn first_number(hasher: &blake3::Hasher) -> u64 {
    let digest = hasher.finalize();
    let bytes = digest.as_bytes().first_chunk::<8>();
    u64::from_le_bytes(*bytes.expect("a digest has 32 bytes"))
}

fn text_of(token: u32) -> String {
    match WORDS.get(token as usize) {
        Some(word) => format!(" {word}"),
        None => ".".to_owned(),
    }
}

/// One token for each word, and at least one.
fn tokens_of(prompt: &Prompt) -> Vec<u32> {
    let words = |text: &str| -> Vec<u32> {
        text.split_whitespace()
            .map(|word| {
                let digest = blake3::hash(word.as_bytes());
                let bytes = digest.as_bytes().first_chunk::<4>();
                u32::from_le_bytes(*bytes.expect("a digest has 32 bytes"))
            })
            .collect()
    };
    let of_message = |message: &ChatMessage| {
        let mut tokens = words(&message.role);
        tokens.extend(words(&message.content));
        tokens
    };
    let mut tokens = match prompt {
        Prompt::Text(text) => words(text),
        Prompt::Messages(messages) => messages.iter().flat_map(of_message).collect(),
    };
    if tokens.is_empty() {
        tokens.push(0);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(stage: u32, num_stages: u32) -> StubOptions {
        StubOptions {
            stage,
            num_stages,
            dtype: Dtype::F32,
            context: None,
            engine_args: vec![],
        }
    }

    fn workers(num_stages: u32) -> Vec<StubWorker> {
        (0..num_stages)
            .map(|stage| {
                StubWorker::new(&options(stage, num_stages))
                    .expect("no arguments")
                    .0
            })
            .collect()
    }

    /// Runs a prompt through a chain by hand and returns the text and why it ended.
    fn answer(num_stages: u32, prompt: &str, sampling: &Sampling) -> (String, Finish) {
        let id = RequestNumber(1);
        let mut workers = workers(num_stages);
        let mut messages = vec![ToWorker::Start {
            id,
            prompt: Prompt::Text(prompt.to_owned()),
            sampling: sampling.clone(),
        }];
        let (mut text, mut position) =
            (String::new(), tokens_of(&Prompt::Text(prompt.into())).len());
        loop {
            for worker in &mut workers {
                messages = messages
                    .into_iter()
                    .flat_map(|message| worker.take(message))
                    .filter_map(|answer| match answer {
                        FromWorker::Hidden { id, activation, .. } => Some(ToWorker::Forward {
                            id,
                            activation,
                            sampling: Some(sampling.clone()),
                        }),
                        FromWorker::Continue { .. } => None,
                        FromWorker::Token(sampled) => {
                            text.push_str(&sampled.text.unwrap_or_default());
                            if let Some(finish) = sampled.finish {
                                text.push(if finish == Finish::Stop { 'S' } else { 'L' });
                            }
                            Some(ToWorker::Token {
                                id,
                                token: sampled.token,
                                position: u32::try_from(position).expect("short"),
                            })
                        }
                        other @ (FromWorker::Loading { .. }
                        | FromWorker::Ready(_)
                        | FromWorker::Failed { .. }
                        | FromWorker::Error { .. }) => panic!("{other:?} was not expected"),
                    })
                    .collect();
            }
            position += 1;
            match text.chars().last() {
                Some('S') => return (text[..text.len() - 1].to_owned(), Finish::Stop),
                Some('L') => return (text[..text.len() - 1].to_owned(), Finish::Length),
                _ => {}
            }
        }
    }

    #[test]
    fn the_answer_is_the_same_over_any_number_of_stages() {
        let long = "word ".repeat(1200);
        for prompt in ["Tell me of the river", long.as_str()] {
            let one = answer(1, prompt, &Sampling::default());
            assert!(
                one.0.ends_with('.') && one.0.split(' ').count() > 4,
                "{one:?}"
            );
            for num_stages in [2, 3, 5] {
                assert_eq!(answer(num_stages, prompt, &Sampling::default()), one);
            }
        }
        let other = answer(2, "Tell me of the hills", &Sampling::default());
        assert_ne!(
            other,
            answer(2, "Tell me of the river", &Sampling::default())
        );
    }

    #[test]
    fn it_honours_length_stop_and_seed() {
        let whole = answer(1, "Tell me", &Sampling::default()).0;
        let short = Sampling {
            max_tokens: 3,
            ..Sampling::default()
        };
        let (text, finish) = answer(1, "Tell me", &short);
        assert_eq!(finish, Finish::Length);
        assert!(
            whole.starts_with(&text) && text.split(' ').count() == 4,
            "{text}"
        );

        let third = whole.split(' ').nth(3).expect("long enough");
        let stop = Sampling {
            stop: vec![format!("{third} ")],
            ..Sampling::default()
        };
        let (text, finish) = answer(2, "Tell me", &stop);
        assert_eq!(finish, Finish::Stop);
        assert_eq!(text, whole[..whole.find(&stop.stop[0]).expect("in it")]);

        let warm = |seed| Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::default()
        };
        assert_eq!(answer(1, "a", &warm(1)), answer(1, "a", &warm(1)));
        assert_ne!(answer(1, "a", &warm(1)), answer(1, "a", &warm(2)));
    }

    #[test]
    fn faults_are_told() {
        let mut worker = workers(1).remove(0);
        let id = RequestNumber(4);
        worker.context = 3;
        let answers = worker.take(ToWorker::Start {
            id,
            prompt: Prompt::Text("one two three".into()),
            sampling: Sampling::default(),
        });
        assert!(matches!(
            &answers[..],
            [FromWorker::Error {
                code: ErrorCode::ContextOverflow,
                ..
            }]
        ));
        let answers = worker.take(ToWorker::Token {
            id,
            token: 1,
            position: 7,
        });
        assert!(matches!(
            &answers[..],
            [FromWorker::Error {
                code: ErrorCode::UnknownRequest,
                ..
            }]
        ));
        for argument in ["--delay-ms", "--delay-ms=x", "--speed=3", "--hidden-size=0"] {
            let mut options = options(0, 1);
            options.engine_args = vec![argument.to_owned()];
            let error = StubWorker::new(&options).err().expect(argument);
            assert!(error.contains(argument), "{error}");
        }
    }
}
