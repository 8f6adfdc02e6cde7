//! One start of a worker: a child in its own process group, its three streams, and its end.
//!
//! What always holds: stdout is always drained, and nothing that comes out of it is trusted; when the worker ends,
//! whatever is left of its process group is killed and the child is reaped; its process number is on disk for as long as
//! it may live, so that the next agent in this folder, or whoever releases the machine, can end what an agent that was
//! killed left behind. It decides nothing: whether to start again is the supervisor's business.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use stageline_core::stage_protocol::{
    Decoder, ErrorCode, FromWorker, Message as _, Ready, ToWorker,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::folder;
use super::launch::Launch;
use super::output::{LogFile, Scrubber};
use super::spawn::{NOT_STARTED, Spawner, not_started};
use crate::pipeline::link::LINK_DEPTH;

/// How long a worker may take to end after its stdin ended and it was asked to.
const TERM_MAX: Duration = Duration::from_secs(3);

/// How long the last output of a dead worker is waited for: a grandchild may hold the pipes.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// What a worker tells besides its answers.
#[derive(Debug)]
pub enum Notice {
    /// It loads: percent, what.
    Loading(u8, String),
    /// It can take requests from now on.
    Ready(Ready),
    /// It says that it cannot run.
    Failed(ErrorCode, String),
    /// It broke the protocol; what it says from now on is not read.
    Broken(String),
    /// Its stdout ended.
    Closed,
}

/// A worker that runs.
pub struct Process {
    /// The child itself.
    pub(super) child: Child,
    group: Pid,
    pid_file: PathBuf,
    /// What it tells about itself.
    pub notices: mpsc::Receiver<Notice>,
    /// To its stdin.
    pub to: Option<mpsc::Sender<ToWorker>>,
    /// Its answers, from `ready` on.
    pub from: Option<mpsc::Receiver<FromWorker>>,
    readers: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
}

/// Which process was a worker: enough to tell it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMark {
    /// Its process number, which is its group's too.
    pub pid: i32,
    /// When it started, in the kernel's own count; none where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
}

impl Process {
    /// Starts a program. `log` takes its stderr, `pid_file` its number.
    ///
    /// # Errors
    /// One sentence, without any value of its environment.
    pub(super) async fn start(
        spawner: &Spawner,
        launch: &Launch,
        scrubber: Scrubber,
        log: LogFile,
        pid_file: PathBuf,
        dir: &Path,
    ) -> Result<Self, String> {
        let mut command = spawner.command(launch);
        command
            .env_clear()
            .envs(&launch.env)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let spawned = spawner.spawn(command).await;
        let mut child = spawned.map_err(|error| not_started(&launch.program, dir, &error))?;
        let gone = || "the worker ended before it began".to_owned();
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        let group = number.and_then(Pid::from_raw).ok_or_else(gone)?;
        let mark = WorkerMark {
            pid: group.as_raw_pid(),
            started: started(group.as_raw_pid()),
        };
        if let Err(error) = folder::write_json(&pid_file, &mark) {
            // Not fatal: the number only helps those who come after a killed agent.
            tracing::warn!(%error, "cannot note the worker's process number");
        }
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        let (to, to_worker) = mpsc::channel(LINK_DEPTH);
        let (to_stage, from) = mpsc::channel(LINK_DEPTH);
        let (notice, notices) = mpsc::channel(LINK_DEPTH);
        let reader = read(stdout, notice, to_stage, scrubber.clone());
        Ok(Self {
            child,
            group,
            pid_file,
            notices,
            to: Some(to),
            from: Some(from),
            readers: vec![
                tokio::spawn(reader),
                tokio::spawn(keep(stderr, scrubber, log)),
            ],
            writer: tokio::spawn(write(stdin, to_worker)),
        })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.group.as_raw_pid().unsigned_abs()
    }

    /// Ends it, politely at first, and everything in its group. Returns how it ended.
    pub async fn end(mut self) -> Option<ExitStatus> {
        // Its stdin ends, which is the protocol's own way to say goodbye.
        self.writer.abort();
        drop(self.to.take());
        signal(self.group, Signal::TERM);
        let mut status = tokio::time::timeout(TERM_MAX, self.child.wait()).await;
        signal(self.group, Signal::KILL);
        if status.is_err() {
            status = Ok(self.child.wait().await);
        }
        for mut reader in self.readers.drain(..) {
            if tokio::time::timeout(DRAIN_MAX, &mut reader).await.is_err() {
                reader.abort();
            }
        }
        folder::remove_file(&self.pid_file).ok();
        status.ok().and_then(Result::ok)
    }
}

/// What ended the watch over a worker.
pub(super) enum Gone {
    /// The process ended.
    Exited,
    /// It did wrong: code, why.
    Bad(&'static str, String),
    /// It never became the worker's program.
    NotStarted(String),
    /// It cannot run, and starting it again does not help.
    Cannot(String),
}

pub(super) fn gone(notice: Option<Notice>) -> Gone {
    match notice {
        // Its stdout ended: either it is ending, or it will never answer again.
        None | Some(Notice::Closed) => Gone::Exited,
        Some(Notice::Failed(code, message)) if code.name() == NOT_STARTED => {
            Gone::NotStarted(message)
        }
        Some(Notice::Failed(code, message)) => Gone::Cannot(format!("{message} ({code})")),
        Some(Notice::Broken(why)) => Gone::Bad("worker-protocol", format!("it printed {why}")),
        Some(Notice::Loading(..) | Notice::Ready(_)) => Gone::Bad(
            "worker-protocol",
            "it printed a status after it was ready".to_owned(),
        ),
    }
}

/// How a process ended, in words.
pub fn in_words(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        None => "it could not be waited for".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it exited with status {code}"),
            (None, Some(9)) => "it was killed by signal 9, as when memory runs out".to_owned(),
            (None, Some(signal)) => format!("it was killed by signal {signal}"),
            (None, None) => "it ended".to_owned(),
        },
    }
}

fn signal(group: Pid, signal: Signal) {
    // A group that is gone already is what we want.
    rustix::process::kill_process_group(group, signal).ok();
}

async fn write(mut stdin: ChildStdin, mut from_stage: mpsc::Receiver<ToWorker>) {
    let mut bytes = Vec::new();
    while let Some(message) = from_stage.recv().await {
        bytes.clear();
        message.encode_into(&mut bytes);
        if stdin.write_all(&bytes).await.is_err() {
            // The worker is going; its end is told elsewhere.
            return;
        }
        // A prefill may have made it large.
        if bytes.capacity() > 1 << 20 {
            bytes = Vec::new();
        }
    }
}

/// Reads a worker's stdout to its end, whatever it holds.
async fn read(
    mut stdout: ChildStdout,
    notices: mpsc::Sender<Notice>,
    to_stage: mpsc::Sender<FromWorker>,
    scrubber: Scrubber,
) {
    let mut decoder = Decoder::<FromWorker>::default();
    let mut buffer = vec![0; 64 << 10];
    let mut listener = Listener {
        notices,
        to_stage,
        scrubber,
        ready: false,
    };
    let mut listening = true;
    loop {
        let read = match stdout.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        if !listening {
            continue;
        }
        decoder.push(&buffer[..read]);
        for message in decoder.by_ref() {
            listening &= listener.take(message).await;
            if !listening {
                break;
            }
        }
    }
    if listening && let Err(error) = decoder.end() {
        listener.broken(error.to_string()).await;
    }
    listener.notices.send(Notice::Closed).await.ok();
}

struct Listener {
    notices: mpsc::Sender<Notice>,
    to_stage: mpsc::Sender<FromWorker>,
    scrubber: Scrubber,
    ready: bool,
}

impl Listener {
    /// Passes one message on; false when nothing more is listened to.
    async fn take(
        &mut self,
        message: Result<FromWorker, stageline_core::stage_protocol::ProtocolError>,
    ) -> bool {
        let message = match message {
            Ok(message) => message,
            Err(error) => match (error.id(), error.is_fatal(), self.ready) {
                // The request is known: it fails, the worker lives on.
                (Some(id), false, true) => FromWorker::Error {
                    id: Some(id),
                    code: ErrorCode::Internal,
                    message: error.to_string(),
                },
                _ => return self.broken(error.to_string()).await,
            },
        };
        match message {
            FromWorker::Loading { done, what } => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "clamped to 0..=100 before"
                )]
                let percent = (done.clamp(0.0, 1.0) * 100.0) as u8;
                let what = crate::machine::plain::message(&what, 100);
                // A worker that tells more than anyone wants to hear is not waited for.
                self.notices.try_send(Notice::Loading(percent, what)).ok();
                true
            }
            FromWorker::Ready(ready) if !self.ready => {
                self.ready = true;
                self.notices.send(Notice::Ready(ready)).await.ok();
                true
            }
            FromWorker::Ready(_) => self.broken("it said `ready` twice".to_owned()).await,
            FromWorker::Failed { code, message } => {
                let message = self.scrubber.text(&message);
                let message = crate::machine::plain::message(&message, 2000);
                self.notices.send(Notice::Failed(code, message)).await.ok();
                false
            }
            FromWorker::Error { id, code, message } => {
                let message = self.scrubber.text(&message);
                let error = FromWorker::Error { id, code, message };
                self.pass(error).await
            }
            FromWorker::Hidden { .. } | FromWorker::Continue { .. } | FromWorker::Token(_) => {
                self.pass(message).await
            }
        }
    }

    /// Hands an answer to the stage.
    async fn pass(&mut self, message: FromWorker) -> bool {
        if !self.ready {
            let what = "it answered before it said `ready`".to_owned();
            return self.broken(what).await;
        }
        // When nobody listens any more the worker is on its way out; its stdout is drained on.
        self.to_stage.send(message).await.is_ok()
    }

    async fn broken(&mut self, why: String) -> bool {
        let why = self.scrubber.text(&why);
        self.notices.send(Notice::Broken(why)).await.ok();
        false
    }
}

/// Keeps a worker's stderr.
async fn keep(mut stderr: ChildStderr, mut scrubber: Scrubber, mut log: LogFile) {
    let mut buffer = vec![0; 16 << 10];
    let mut complained = false;
    loop {
        let (safe, last) = match stderr.read(&mut buffer).await {
            Ok(0) | Err(_) => (scrubber.finish(), true),
            Ok(read) => (scrubber.push(&buffer[..read]), false),
        };
        // Small appends to the page cache. A full disk loses lines of a log and nothing else: the pipe is drained on.
        if let Err(error) = log.append(&safe)
            && !complained
        {
            complained = true;
            tracing::warn!(%error, "cannot keep a worker's log");
        }
        if last {
            return;
        }
    }
}

/// When a process started, in the kernel's own count.
pub fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; start time is the 20th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Ends what an agent that was killed left behind in its folder: workers by their numbers, and on Linux every process
/// that carries the folder in its environment. To be called by whoever holds the folder's lock. Returns how many it met.
pub fn end_leftovers(folder: &folder::Folder) -> usize {
    let mut met = 0;
    for entry in std::fs::read_dir(folder.workers())
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "pid") {
            continue;
        }
        let mark: Option<WorkerMark> = folder::read_json(&path).ok().flatten();
        // Same number and same start: the same process. Its group goes with it.
        if let Some(mark) = mark
            && mark.started.is_some()
            && started(mark.pid) == mark.started
            && let Some(group) = Pid::from_raw(mark.pid)
        {
            signal(group, Signal::KILL);
            met += 1;
        }
        folder::remove_file(&path).ok();
    }
    for pid in carriers(folder.root()) {
        if let Some(pid) = Pid::from_raw(pid) {
            rustix::process::kill_process(pid, Signal::KILL).ok();
            met += 1;
        }
    }
    met
}

/// Stops everything of an agent where it is, as a computer that is cut off seems to; or has it go on.
pub fn freeze(folder: &folder::Folder, stands: bool) {
    let signal = if stands { Signal::STOP } else { Signal::CONT };
    for pid in carriers(folder.root())
        .into_iter()
        .filter_map(Pid::from_raw)
    {
        rustix::process::kill_process(pid, signal).ok();
    }
}

/// Every process but this one and its parent that has this folder as its machine's in its environment.
fn carriers(dir: &Path) -> Vec<i32> {
    let marker = format!("{}={}", folder::MACHINE_DIR, dir.display());
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own && *pid != parent)
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|byte| *byte == 0).any(|v| v == marker.as_bytes()))
        })
        .collect()
}
