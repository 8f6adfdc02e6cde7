//! Workers as child processes, and a pipeline of them without an agent in between.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use stageline_core::stage_protocol::{
    Activation, Decoder, Dtype, ErrorCode, Finish, FromWorker, Message, Prompt, ProtocolError,
    Ready, RequestNumber, Sampled, Sampling, ToWorker,
};
use stageline_worker::tiny;

/// Far more than any answer takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The built program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_stageline-worker");

/// The tiny model, written once.
pub(crate) fn model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (own, shared) = (
            folder.join(format!("tiny-{}.gguf", std::process::id())),
            folder.join("tiny.gguf"),
        );
        tiny::write(&own).expect("the folder is writable");
        std::fs::rename(&own, &shared).expect("the same folder");
        shared
    })
}

/// The environment of one stage.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) stage: u32,
    pub(crate) stages: u32,
    pub(crate) layers: String,
    pub(crate) model: PathBuf,
    pub(crate) dtype: Dtype,
    pub(crate) context: Option<u32>,
}

impl Stage {
    /// Stage i of n equal ones of the tiny model.
    pub(crate) fn of(stage: u32, stages: u32) -> Self {
        let bound = |stage| tiny::LAYERS * stage / stages;
        let layers = format!("{}..{}", bound(stage), bound(stage + 1));
        Self {
            stage,
            stages,
            layers,
            model: model().to_owned(),
            dtype: Dtype::F32,
            context: None,
        }
    }

    pub(crate) fn start(&self) -> Worker {
        self.start_as(Command::new(PROGRAM))
    }

    pub(crate) fn start_as(&self, mut command: Command) -> Worker {
        command
            .env("STAGE", self.stage.to_string())
            .env("NUM_STAGES", self.stages.to_string())
            .env("STAGELINE_LAYERS", &self.layers)
            .env("STAGELINE_MODEL", &self.model)
            .env("STAGELINE_DTYPE", self.dtype.name())
            .env("STAGELINE_THREADS", "1");
        if let Some(context) = self.context {
            command.env("STAGELINE_CONTEXT", context.to_string());
        }
        Worker::spawn(command)
    }
}

/// A worker, and what it says.
pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Result<FromWorker, ProtocolError>>,
}

impl Worker {
    fn spawn(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take();
        let mut stdout = child.stdout.take().expect("piped");
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut decoder = Decoder::<FromWorker>::default();
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                decoder.push(&bytes[..count]);
                for message in decoder.by_ref() {
                    if sender.send(message).is_err() {
                        return;
                    }
                }
            }
        });
        Self {
            child,
            input,
            output,
        }
    }

    pub(crate) fn send(&mut self, message: &ToWorker) {
        self.send_bytes(&message.encode());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.input
            .as_mut()
            .expect("still open")
            .write_all(bytes)
            .expect("the worker reads");
    }

    /// The next message but for signs of life; `None` at the end of the output.
    pub(crate) fn next(&mut self) -> Option<FromWorker> {
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(message) => match message.expect("our worker speaks the protocol") {
                    FromWorker::Loading { .. } => {}
                    message @ (FromWorker::Ready(_)
                    | FromWorker::Failed { .. }
                    | FromWorker::Hidden { .. }
                    | FromWorker::Continue { .. }
                    | FromWorker::Token(_)
                    | FromWorker::Error { .. }) => return Some(message),
                },
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("no answer within {PATIENCE:?}"),
            }
        }
    }

    pub(crate) fn ready(&mut self) -> Ready {
        match self.next() {
            Some(FromWorker::Ready(ready)) => ready,
            other => panic!("not ready: {other:?}"),
        }
    }

    pub(crate) fn error(&mut self) -> (Option<RequestNumber>, ErrorCode, String) {
        match self.next() {
            Some(FromWorker::Error { id, code, message }) => (id, code, message),
            other => panic!("no error: {other:?}"),
        }
    }

    pub(crate) fn token(&mut self) -> Sampled {
        match self.next() {
            Some(FromWorker::Token(sampled)) => sampled,
            other => panic!("no token: {other:?}"),
        }
    }

    /// The variables that it was started with, with a colon between each two: some C libraries cut `GLIBC_TUNABLES` into its parts
    /// where it stands.
    #[cfg(target_os = "linux")]
    pub(crate) fn environment(&self) -> String {
        let path = format!("/proc/{}/environ", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        format!(":{}", text.replace('\0', ":"))
    }

    /// Ends the input.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Ends the input, and waits for the program's end.
    pub(crate) fn close(mut self) -> ExitStatus {
        self.close_input();
        while self.next().is_some() {}
        self.child.wait().expect("a child of ours")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) pieces: Vec<String>,
    pub(crate) finish: Finish,
    pub(crate) prompt_tokens: u32,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        self.pieces.concat()
    }
}

/// A pipeline: what comes out of one worker goes into the next.
pub(crate) struct Chain {
    pub(crate) workers: Vec<Worker>,
}

/// A request on its way through a chain.
pub(crate) struct Walk {
    id: RequestNumber,
    sampling: Option<Sampling>,
    prompt_tokens: Option<u32>,
    answer: Vec<Sampled>,
}

impl Chain {
    pub(crate) fn start(stages: impl IntoIterator<Item = Stage>) -> Self {
        Self::of(stages.into_iter().map(|stage| stage.start()).collect())
    }

    /// The tiny model in so many equal stages.
    pub(crate) fn tiny(stages: u32) -> Self {
        Self::start((0..stages).map(|stage| Stage::of(stage, stages)))
    }

    pub(crate) fn of(mut workers: Vec<Worker>) -> Self {
        for worker in &mut workers {
            worker.ready();
        }
        Self { workers }
    }

    pub(crate) fn begin(&mut self, id: u64, prompt: Prompt, sampling: &Sampling) -> Walk {
        let id = RequestNumber(id);
        self.workers[0].send(&ToWorker::Start {
            id,
            prompt,
            sampling: sampling.clone(),
        });
        Walk {
            id,
            sampling: Some(sampling.clone()),
            prompt_tokens: None,
            answer: Vec::new(),
        }
    }

    /// Carries what the first worker says next through the others, up to a token.
    pub(crate) fn step(&mut self, walk: &mut Walk) -> Sampled {
        loop {
            let mut message = self.workers[0].next().expect("an answer");
            for worker in 1..self.workers.len() {
                let FromWorker::Hidden {
                    id,
                    activation,
                    prompt_tokens,
                } = message
                else {
                    break;
                };
                assert_eq!(id, walk.id);
                walk.prompt_tokens = walk.prompt_tokens.or(prompt_tokens);
                let last = worker + 1 == self.workers.len();
                let sampling = if last { walk.sampling.take() } else { None };
                self.workers[worker].send(&ToWorker::Forward {
                    id,
                    activation,
                    sampling,
                });
                message = self.workers[worker].next().expect("an answer");
            }
            if message == (FromWorker::Continue { id: walk.id }) {
                continue;
            }
            let FromWorker::Token(sampled) = &message else {
                panic!("no token: {message:?}");
            };
            assert_eq!(sampled.id, walk.id);
            walk.prompt_tokens = walk.prompt_tokens.or(sampled.prompt_tokens);
            walk.answer.push(sampled.clone());
            return sampled.clone();
        }
    }

    /// Sends the last token back to the first stage.
    pub(crate) fn feed(&mut self, walk: &Walk) {
        let made = u32::try_from(walk.answer.len()).expect("few");
        let position = walk.prompt_tokens.expect("told") + made - 1;
        let token = walk.answer.last().expect("one").token;
        self.workers[0].send(&ToWorker::Token {
            id: walk.id,
            token,
            position,
        });
    }

    /// The next step, if the answer has not ended.
    pub(crate) fn step_if_open(&mut self, walk: &mut Walk) -> bool {
        let open = walk
            .answer
            .last()
            .is_some_and(|sampled| sampled.finish.is_none());
        if open {
            self.feed(walk);
            self.step(walk);
        }
        open
    }

    pub(crate) fn end(&mut self, walk: Walk) -> Answer {
        for worker in &mut self.workers {
            worker.send(&ToWorker::End { id: walk.id });
        }
        Answer {
            tokens: walk.answer.iter().map(|sampled| sampled.token).collect(),
            pieces: walk
                .answer
                .iter()
                .map(|sampled| sampled.text.clone().expect("a tokenizer"))
                .collect(),
            finish: walk
                .answer
                .last()
                .and_then(|sampled| sampled.finish)
                .expect("done"),
            prompt_tokens: walk.prompt_tokens.expect("told"),
        }
    }

    pub(crate) fn ask(&mut self, id: u64, prompt: Prompt, sampling: &Sampling) -> Answer {
        let mut walk = self.begin(id, prompt, sampling);
        self.step(&mut walk);
        while self.step_if_open(&mut walk) {}
        self.end(walk)
    }
}

/// Hidden states that mean nothing, of the right size.
pub(crate) fn hidden(position: u32, len: u32) -> Activation {
    let payload = vec![0x3f; (len * tiny::HIDDEN * 4) as usize];
    Activation {
        position,
        len,
        prefill: true,
        more: false,
        dtype: Dtype::F32,
        payload,
    }
}

pub(crate) fn text(prompt: &str) -> Prompt {
    Prompt::Text(prompt.to_owned())
}

pub(crate) fn greedy(max_tokens: u32) -> Sampling {
    Sampling {
        max_tokens,
        ..Sampling::default()
    }
}
