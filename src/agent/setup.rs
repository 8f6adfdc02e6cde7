//! What a machine runs once before it is ready: its setup.
//!
//! What always holds: it runs once in the life of an agent's folder, however often it is asked for, and whoever asks; that
//! it began is on disk before it does. One that failed, or that was cut off, stays failed: what it left half done is no
//! machine to build on. What it prints is in the agent's log, without the secrets that it was given. What it refuses: to
//! run another one, and to judge whether a failure matters.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use secrecy::ExposeSecret as _;
use stageline_core::id::Fingerprint;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use super::folder::{self, Folder, FolderError, MACHINE_DIR};
use super::launch::{Launch, Site, WORKER};
use super::output::Scrubber;
use super::process::{WorkerMark, in_words, started};
use super::spawn::{Spawner, not_started};
use super::work::Work;
use crate::machine::control::{Refusal, Secret, SetupOrder};
use crate::machine::{SetupState, SetupStatus, plain};

/// What runs a script that names nobody itself. It stops at the first command that fails.
const SHELL: [&str; 2] = ["/bin/sh", "-e"];

/// Makes one stream of both, so that lines are logged in the order in which they were printed.
const AS_ONE: [&str; 3] = ["/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"];

/// How many of the last lines are told when it fails, and how much of each.
const LINES_TOLD: usize = 60;
const LINE_TOLD_MAX: usize = 200;

/// A line that is longer is logged in pieces.
const LINE_MAX: usize = 4096;

/// How long its last output is waited for: what it left running may hold the pipes.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// The longest time-out that a timer can count.
const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 86_400);

/// The setup of this machine, should it have one.
pub(super) struct Setup {
    folder: Folder,
    site: Site,
    spawner: Spawner,
    work: Arc<Work>,
    known: Arc<Mutex<Option<SetupStatus>>>,
    stop: CancellationToken,
}

impl Setup {
    /// As the folder knows it.
    pub(super) fn load(folder: Folder, site: Site, spawner: Spawner, work: Arc<Work>) -> Self {
        let noted = folder::read_json::<SetupStatus>(&folder.setup());
        let known = noted.unwrap_or_else(|error| {
            // Something was begun, and nobody knows what: no digest is this one.
            Some(failed(Fingerprint([0; 32]), error.to_string()))
        });
        let known = known.map(|known| match known.state {
            SetupState::Running => {
                let why = "it was cut off when the agent ended".to_owned();
                failed(known.script, why)
            }
            SetupState::Done | SetupState::Failed { .. } => known,
        });
        Self {
            folder,
            site,
            spawner,
            work,
            known: Arc::new(Mutex::new(known)),
            stop: CancellationToken::new(),
        }
    }

    /// How far it is.
    pub(super) fn status(&self) -> Option<SetupStatus> {
        self.known.lock().expect("no holder panics").clone()
    }

    /// Ends it with the agent.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Begins it, unless it was begun.
    ///
    /// # Errors
    /// [`Refusal`] when this machine ran another one, or when that it began cannot be written down.
    pub(super) fn begin(&self, order: &SetupOrder) -> Result<(), Refusal> {
        let script = Fingerprint::of(order.script.as_bytes());
        let mut known = self.known.lock().expect("no holder panics");
        match &*known {
            Some(known) if known.script == script => return Ok(()),
            Some(_) => {
                let message = "this machine ran another setup before, and runs one only";
                return Err(Refusal::new("setup-other", message));
            }
            None => {}
        }
        let running = SetupStatus {
            script,
            state: SetupState::Running,
        };
        let launch = self
            .prepare(order, &running)
            .map_err(super::blobs::refusal)?;
        *known = Some(running);
        let keeper = Keeper {
            folder: self.folder.clone(),
            spawner: self.spawner.clone(),
            known: Arc::clone(&self.known),
            stop: self.stop.clone(),
            script,
        };
        let scrubber = Scrubber::new(order.secrets.values().map(|Secret(value)| value));
        let longest = order.timeout.duration().min(TIMEOUT_MAX);
        let going_on = self.work.begin();
        tokio::spawn(async move {
            if keeper.keep(&launch, &scrubber, longest).await {
                going_on.succeeded();
            }
        });
        Ok(())
    }

    /// Writes down the script, and that it begins.
    fn prepare(&self, order: &SetupOrder, running: &SetupStatus) -> Result<Launch, FolderError> {
        folder::make_dir(&self.folder.workers())?;
        let path = self.folder.setup_script();
        folder::write_whole(&path, order.script.as_bytes())?;
        folder::write_json(&self.folder.setup(), running)?;
        let mut env = self.site.env.clone();
        env.remove(&OsString::from(WORKER));
        for (name, value) in &order.env {
            env.insert(name.into(), value.into());
        }
        for (name, Secret(value)) in &order.secrets {
            env.insert(name.into(), value.expose_secret().into());
        }
        env.insert(MACHINE_DIR.into(), self.folder.root().into());
        let [shell, flag, line] = AS_ONE;
        let mut args = vec![flag.to_owned(), line.to_owned()];
        args.extend(interpreter(&order.script, &path));
        Ok(Launch {
            program: PathBuf::from(shell),
            args,
            env,
        })
    }
}

/// What runs a script: what it names itself, read from its text so that the disk may forbid programs.
fn interpreter(script: &str, path: &Path) -> Vec<String> {
    let named = script.strip_prefix("#!");
    let named = named
        .and_then(|rest| rest.lines().next())
        .unwrap_or_default();
    let mut words: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        words.extend(SHELL.map(str::to_owned));
    }
    words.push(path.display().to_string());
    words
}

fn failed(script: Fingerprint, why: String) -> SetupStatus {
    SetupStatus {
        script,
        state: SetupState::Failed {
            why,
            lines: Vec::new(),
        },
    }
}

/// Keeps the one run of it.
struct Keeper {
    folder: Folder,
    spawner: Spawner,
    known: Arc<Mutex<Option<SetupStatus>>>,
    stop: CancellationToken,
    script: Fingerprint,
}

/// The last lines that were printed.
type Last = Arc<Mutex<VecDeque<String>>>;

impl Keeper {
    /// Runs it to its end, and says how that was; true is well.
    async fn keep(self, launch: &Launch, scrubber: &Scrubber, longest: Duration) -> bool {
        let last = Last::default();
        tracing::info!("the setup of this machine begins");
        let ended = self.run(launch, scrubber, longest, &last).await;
        let state = match ended {
            Ok(()) => SetupState::Done,
            Err(why) => {
                let lines = last.lock().expect("no holder panics");
                SetupState::Failed {
                    why,
                    lines: lines.iter().cloned().collect(),
                }
            }
        };
        let well = state == SetupState::Done;
        match &state {
            SetupState::Failed { why, .. } => tracing::error!("the setup failed: {why}"),
            SetupState::Running | SetupState::Done => tracing::info!("the setup ended well"),
        }
        let status = SetupStatus {
            script: self.script,
            state,
        };
        if let Err(error) = folder::write_json(&self.folder.setup(), &status) {
            tracing::warn!(%error, "how the setup ended cannot be noted");
        }
        folder::remove_file(&self.folder.setup_pid()).ok();
        *self.known.lock().expect("no holder panics") = Some(status);
        well
    }

    async fn run(
        &self,
        launch: &Launch,
        scrubber: &Scrubber,
        longest: Duration,
        last: &Last,
    ) -> Result<(), String> {
        let (mut child, group) = self.start(launch).await?;
        let out = child.stdout.take().map(|out| said(out, scrubber, last));
        let err = child.stderr.take().map(|err| said(err, scrubber, last));
        let ended = tokio::select! {
            ended = tokio::time::timeout(longest, child.wait()) => ended,
            () = self.stop.cancelled() => {
                end(group);
                return Err("it was cut off when the agent ended".to_owned());
            }
        };
        let Ok(ended) = ended else {
            end(group);
            child.wait().await.ok();
            return Err(format!("it was not done within {} s", longest.as_secs()));
        };
        for reader in [out, err].into_iter().flatten() {
            // What it left running may go on to print: that is logged, and not waited for.
            tokio::time::timeout(DRAIN_MAX, reader).await.ok();
        }
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(in_words(Some(status))),
            Err(error) => Err(format!("it could not be waited for: {error}")),
        }
    }

    async fn start(&self, launch: &Launch) -> Result<(Child, Pid), String> {
        let root = self.folder.root();
        let mut command = self.spawner.command(launch);
        command
            .env_clear()
            .envs(&launch.env)
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let spawned = self.spawner.spawn(command).await;
        let child = spawned.map_err(|error| not_started(&launch.program, root, &error))?;
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        let group = number.and_then(Pid::from_raw);
        let group = group.ok_or_else(|| "it ended before it began".to_owned())?;
        let mark = WorkerMark {
            pid: group.as_raw_pid(),
            started: started(group.as_raw_pid()),
        };
        if let Err(error) = folder::write_json(&self.folder.setup_pid(), &mark) {
            // Not fatal: the number only helps those who come after a killed agent.
            tracing::warn!(%error, "cannot note the process of the setup");
        }
        Ok((child, group))
    }
}

fn end(group: Pid) {
    // A group that is gone already is what we want.
    rustix::process::kill_process_group(group, Signal::KILL).ok();
}

/// Logs what comes out of a stream, line by line, to its end.
fn said(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    scrubber: &Scrubber,
    last: &Last,
) -> tokio::task::JoinHandle<()> {
    let (mut scrubber, last) = (scrubber.clone(), Arc::clone(last));
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 << 10];
        let mut line = Vec::new();
        loop {
            let (safe, ended) = match from.read(&mut buffer).await {
                Ok(0) | Err(_) => (scrubber.finish(), true),
                Ok(read) => (scrubber.push(&buffer[..read]), false),
            };
            for byte in safe {
                if byte != b'\n' && byte != b'\r' {
                    line.push(byte);
                }
                if byte == b'\n' || byte == b'\r' || line.len() >= LINE_MAX {
                    log(&std::mem::take(&mut line), &last);
                }
            }
            if ended {
                log(&line, &last);
                return;
            }
        }
    })
}

fn log(line: &[u8], last: &Last) {
    let text = plain::message(&String::from_utf8_lossy(line), LINE_MAX);
    if text.trim().is_empty() {
        return;
    }
    tracing::info!("setup: {text}");
    let mut last = last.lock().expect("no holder panics");
    if last.len() == LINES_TOLD {
        last.pop_front();
    }
    last.push_back(text.chars().take(LINE_TOLD_MAX).collect());
}
