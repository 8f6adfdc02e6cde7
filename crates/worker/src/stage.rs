//! A stage's requests: messages in, answers out, one at a time.
//!
//! What always holds: each message is answered as `stageline_core::stage_protocol` says; a request that fails is freed
//! and leaves the others alone; positions come in order, without gaps. A long prompt is computed in parts, so that other
//! requests' steps and cancellations come in between. Nothing here reads or writes a pipe.

use std::collections::{BTreeMap, VecDeque};

use candle_core::{Device, Tensor};
use stageline_core::stage_protocol::{
    Activation, ErrorCode, Finish, FromWorker, Prompt, Ready, RequestNumber, Sampled, Sampling,
    ToWorker,
};

use crate::cache::LayerCache;
use crate::failure::Failure;
use crate::gguf::ModelFile;
use crate::hop;
use crate::llama::{Llama, Part};
use crate::sample;
use crate::settings::{DeviceName, Settings};
use crate::template::ChatTemplate;
use crate::text::{Piece, TextStream};
use crate::vocabulary::Vocabulary;

/// Positions per part of a prompt: large enough for matrix products, small enough for others' steps to come in between.
pub const PART_POSITIONS: usize = 256;

/// A worker in trouble should say so rather than eat the machine's memory; agents have far lower limits.
const REQUESTS_MAX: usize = 1024;

/// Some layers of a model, and the requests in them.
pub struct Stage {
    settings: Settings,
    llama: Llama,
    vocabulary: Option<Vocabulary>,
    template: Option<ChatTemplate>,
    /// Why there is no template, if the model's own is at fault.
    template_failure: Option<Failure>,
    context: u32,
    requests: BTreeMap<RequestNumber, Request>,
    /// Requests of which a part of the prompt is still to be computed, the next one first.
    waiting: VecDeque<RequestNumber>,
}

struct Request {
    caches: Vec<LayerCache>,
    /// Positions taken.
    position: u32,
    /// In the first stage: the prompt's tokens that are still to be computed.
    prompt: VecDeque<u32>,
    /// In the first stage: to be told in the first answer.
    prompt_tokens: Option<u32>,
    answer: Option<Answer>,
}

struct Answer {
    sampling: Sampling,
    text: TextStream,
    tokens: u32,
}

/// Hidden states on their way through the stage.
struct Passing {
    position: u32,
    prefill: bool,
    more: bool,
}

type Handled = Result<Option<FromWorker>, Failure>;

impl Stage {
    /// Loads what the settings ask for. `progress` hears how much is done, 0 to 1, and what is being loaded.
    pub fn load(settings: Settings, progress: &mut dyn FnMut(f64, &str)) -> Result<Self, Failure> {
        progress(0.0, "header");
        let device = device(settings.device)?;
        let mut file = ModelFile::open(&settings.model)?;
        let part = Part {
            layers: settings.layers,
            first: settings.is_first(),
            last: settings.is_last(),
        };
        let llama = Llama::load(&mut file, part, &device, &mut |done| {
            progress(done, "weights")
        })?;
        progress(1.0, "tokenizer");
        let needs_vocabulary = part.first || part.last;
        let vocabulary = if needs_vocabulary {
            Vocabulary::load(&file, part.first)?
        } else {
            None
        };
        if part.first && vocabulary.is_none() {
            return Err(file.failure("has no tokenizer in its header; the first stage needs one"));
        }
        let source = if part.first {
            file.text("tokenizer.chat_template")?
        } else {
            None
        };
        let parse = |source: &str| {
            let (bos, eos) = vocabulary
                .as_ref()
                .map(Vocabulary::bos_and_eos)
                .unwrap_or_default();
            ChatTemplate::parse(source.to_owned(), bos, eos)
        };
        let (template, template_failure) = match source.map(parse) {
            None => (None, None),
            Some(Ok(template)) => (Some(template), None),
            Some(Err(failure)) => (None, Some(failure)),
        };
        let context = settings
            .context
            .unwrap_or(u32::MAX)
            .min(llama.config.context);
        let (requests, waiting) = (BTreeMap::new(), VecDeque::new());
        Ok(Self {
            settings,
            llama,
            vocabulary,
            template,
            template_failure,
            context,
            requests,
            waiting,
        })
    }

    /// What the agent is told once.
    pub fn ready(&self, pid: u32) -> Ready {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ready {
            pid,
            hidden_size: number(self.llama.config.hidden),
            layers: self.settings.layers,
            vocab: number(self.llama.config.vocab),
            context: self.context,
            dtype: self.settings.dtype,
        }
    }

    /// Takes one message and gives the answer, if it has one by now.
    pub fn take(&mut self, message: ToWorker) -> Option<FromWorker> {
        let id = message.id();
        let handled = match message {
            ToWorker::Start {
                prompt, sampling, ..
            } => self.start(id, prompt, sampling),
            ToWorker::Forward {
                activation,
                sampling,
                ..
            } => self.forward(id, activation, sampling),
            ToWorker::Token {
                token, position, ..
            } => self.token(id, token, position),
            ToWorker::End { .. } => {
                self.free(id);
                Ok(None)
            }
        };
        self.answered(id, handled)
    }

    /// Whether a part of some prompt is still to be computed.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Computes the next part of the prompt that waits longest.
    pub fn advance(&mut self) -> Option<FromWorker> {
        let id = self.waiting.pop_front()?;
        let handled = self.prompt_part(id);
        self.answered(id, handled)
    }

    fn free(&mut self, id: RequestNumber) {
        self.requests.remove(&id);
        self.waiting.retain(|waiting| *waiting != id);
    }

    fn answered(&mut self, id: RequestNumber, handled: Handled) -> Option<FromWorker> {
        handled.unwrap_or_else(|Failure { code, message }| {
            self.free(id);
            Some(FromWorker::Error {
                id: Some(id),
                code,
                message,
            })
        })
    }

    fn start(&mut self, id: RequestNumber, prompt: Prompt, sampling: Sampling) -> Handled {
        if !self.settings.is_first() {
            return Err(Failure::request(format!(
                "`start` came to stage {}; prompts enter at 0",
                self.settings.stage
            )));
        }
        sampling.check().map_err(Failure::request)?;
        let tokens = self.tokens_of(&prompt)?;
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return Err(Failure::request("the prompt is empty"));
        }
        if count >= self.context {
            let message = format!(
                "the prompt has {count} tokens and the context {}, of which the answer needs at least one",
                self.context
            );
            return Err(Failure {
                code: ErrorCode::ContextOverflow,
                message,
            });
        }
        let request = self.open(id)?;
        request.prompt = tokens.into();
        request.prompt_tokens = Some(count);
        if self.settings.is_last() {
            self.begin_answer(id, Some(sampling))?;
        }
        self.waiting.push_back(id);
        Ok(None)
    }

    fn tokens_of(&self, prompt: &Prompt) -> Result<Vec<u32>, Failure> {
        let Some(vocabulary) = &self.vocabulary else {
            return Err(Failure::request("this stage has no tokenizer"));
        };
        match (prompt, &self.template, &self.template_failure) {
            (Prompt::Text(text), _, _) => vocabulary.encode(text),
            (Prompt::Messages(messages), Some(template), _) => {
                vocabulary.encode(&template.render(messages)?)
            }
            (Prompt::Messages(_), None, Some(failure)) => Err(failure.clone()),
            (Prompt::Messages(_), None, None) => Err(Failure::request(
                "the model has no chat template; send `prompt` instead of `messages`",
            )),
        }
    }

    fn open(&mut self, id: RequestNumber) -> Result<&mut Request, Failure> {
        if self.requests.contains_key(&id) {
            return Err(Failure::request(format!("request {id} was begun twice")));
        }
        if self.requests.len() >= REQUESTS_MAX {
            let message =
                format!("{REQUESTS_MAX} requests are in progress; try again when some have ended");
            return Err(Failure {
                code: ErrorCode::Busy,
                message,
            });
        }
        let caches = self.llama.caches(self.context as usize)?;
        let request = Request {
            caches,
            position: 0,
            prompt: VecDeque::new(),
            prompt_tokens: None,
            answer: None,
        };
        Ok(self.requests.entry(id).or_insert(request))
    }

    fn begin_answer(
        &mut self,
        id: RequestNumber,
        sampling: Option<Sampling>,
    ) -> Result<(), Failure> {
        let Some(sampling) = sampling else {
            return Err(Failure::request(
                "the first `forward` to the last stage has no `sampling`",
            ));
        };
        sampling.check().map_err(Failure::request)?;
        let text = TextStream::new(sampling.stop.clone());
        self.request(id)?.answer = Some(Answer {
            sampling,
            text,
            tokens: 0,
        });
        Ok(())
    }

    fn request(&mut self, id: RequestNumber) -> Result<&mut Request, Failure> {
        self.requests.get_mut(&id).ok_or_else(|| {
            let message = format!(
                "request {id} is unknown here: it has ended, or this worker is younger than it"
            );
            Failure {
                code: ErrorCode::UnknownRequest,
                message,
            }
        })
    }

    fn prompt_part(&mut self, id: RequestNumber) -> Handled {
        let request = self.request(id)?;
        let part = request.prompt.len().min(PART_POSITIONS);
        let tokens: Vec<u32> = request.prompt.drain(..part).collect();
        let (position, more) = (request.position, !request.prompt.is_empty());
        if more {
            self.waiting.push_back(id);
        }
        let hidden = self.llama.embed(&tokens)?;
        self.pass(
            id,
            hidden,
            Passing {
                position,
                prefill: true,
                more,
            },
        )
    }

    fn token(&mut self, id: RequestNumber, token: u32, position: u32) -> Handled {
        if !self.settings.is_first() {
            return Err(Failure::request(format!(
                "`token` came to stage {}; tokens enter at 0",
                self.settings.stage
            )));
        }
        let request = self.request(id)?;
        if !request.prompt.is_empty() {
            return Err(Failure::request(format!(
                "a token of request {id} came before its prompt was computed"
            )));
        }
        self.check_position(id, position, 1)?;
        if token as usize >= self.llama.config.vocab {
            let vocab = self.llama.config.vocab;
            return Err(Failure::request(format!(
                "token {token} does not exist; the model has {vocab}"
            )));
        }
        let hidden = self.llama.embed(&[token])?;
        self.pass(
            id,
            hidden,
            Passing {
                position,
                prefill: false,
                more: false,
            },
        )
    }

    fn forward(
        &mut self,
        id: RequestNumber,
        activation: Activation,
        sampling: Option<Sampling>,
    ) -> Handled {
        if self.settings.is_first() {
            return Err(Failure::request(
                "`forward` came to the first stage; it takes `start` and `token`",
            ));
        }
        activation
            .check(self.llama.config.hidden)
            .map_err(Failure::request)?;
        let Activation {
            position,
            len,
            prefill,
            more,
            dtype,
            payload,
        } = activation;
        if position == 0 && prefill {
            self.open(id)?;
            if self.settings.is_last() {
                self.begin_answer(id, sampling)?;
            }
        }
        self.check_position(id, position, len)?;
        let hidden = self.llama.hidden(hop::decode(&payload, dtype))?;
        self.pass(
            id,
            hidden,
            Passing {
                position,
                prefill,
                more,
            },
        )
    }

    fn check_position(
        &mut self,
        id: RequestNumber,
        position: u32,
        len: u32,
    ) -> Result<(), Failure> {
        let context = self.context;
        let expected = self.request(id)?.position;
        if position != expected {
            return Err(Failure::request(format!(
                "position {position} of request {id} came; {expected} is next"
            )));
        }
        if position.saturating_add(len) > context {
            let message = format!(
                "positions {position} to {} do not fit into the context of {context}",
                position + len
            );
            return Err(Failure {
                code: ErrorCode::ContextOverflow,
                message,
            });
        }
        Ok(())
    }

    /// Hidden states through the layers, and what comes out: hidden states, a token, or in the middle of a prompt less.
    fn pass(&mut self, id: RequestNumber, hidden: Tensor, passing: Passing) -> Handled {
        let Passing {
            position,
            prefill,
            more,
        } = passing;
        let len = u32::try_from(hidden.dim(0)?).unwrap_or(u32::MAX);
        let request = self
            .requests
            .get_mut(&id)
            .expect("the caller has looked it up");
        let hidden = self
            .llama
            .forward(hidden, position as usize, &mut request.caches)?;
        request.position += len;
        if self.settings.is_last() {
            return match (more, self.settings.is_first()) {
                (false, _) => self.pick(id, &hidden).map(Some),
                (true, false) => Ok(Some(FromWorker::Continue { id })),
                (true, true) => Ok(None),
            };
        }
        let numbers = hidden.flatten_all()?.to_vec1::<f32>()?;
        let dtype = self.settings.dtype;
        let payload = hop::encode(&numbers, dtype);
        let prompt_tokens = request.prompt_tokens.take();
        let activation = Activation {
            position,
            len,
            prefill,
            more,
            dtype,
            payload,
        };
        Ok(Some(FromWorker::Hidden {
            id,
            activation,
            prompt_tokens,
        }))
    }

    /// Picks the next token, in the last stage.
    fn pick(&mut self, id: RequestNumber, hidden: &Tensor) -> Result<FromWorker, Failure> {
        let scores = self.llama.scores(hidden)?;
        let request = self
            .requests
            .get_mut(&id)
            .expect("the caller has looked it up");
        let answer = request
            .answer
            .as_mut()
            .expect("the last stage begins an answer with each request");
        let token =
            sample::pick(&scores, &answer.sampling, u64::from(answer.tokens)).ok_or_else(|| {
                Failure {
                    code: ErrorCode::Internal,
                    message: "the model gave no score that is a number; its weights may be damaged"
                        .into(),
                }
            })?;
        answer.tokens += 1;
        let prompt_tokens = request.prompt_tokens.take();
        let (text, stopped) = match &self.vocabulary {
            None => (None, false),
            Some(vocabulary) if vocabulary.is_final(token) => (Some(String::new()), true),
            Some(vocabulary) => match answer.text.push(vocabulary.bytes(token)) {
                Piece::Text(text) => (Some(text), false),
                Piece::Stopped(text) => (Some(text), true),
            },
        };
        let used_up =
            answer.tokens >= answer.sampling.max_tokens || request.position >= self.context;
        let finish = if stopped {
            Some(Finish::Stop)
        } else if used_up {
            Some(Finish::Length)
        } else {
            None
        };
        let text = text.map(|text| {
            if finish.is_some() {
                text + &answer.text.finish()
            } else {
                text
            }
        });
        if finish.is_some() {
            self.free(id);
        }
        Ok(FromWorker::Token(Sampled {
            id,
            token,
            text,
            finish,
            prompt_tokens,
        }))
    }
}

fn device(name: DeviceName) -> Result<Device, Failure> {
    match name {
        DeviceName::Cpu => Ok(Device::Cpu),
        DeviceName::Cuda(_) if !candle_core::utils::cuda_is_available() => Err(Failure::stage(
            "STAGELINE_DEVICE asks for CUDA; this build of the worker computes on the processor only",
        )),
        DeviceName::Cuda(index) => Device::new_cuda(index)
            .map_err(|error| Failure::stage(format!("cannot use CUDA device {index}: {error}"))),
    }
}
