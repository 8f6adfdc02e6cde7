//! Starts workers so that none outlives its agent, whatever the worker ignores and however the agent ends.
//!
//! On Linux a worker begins as this very program (`stageline agent run-worker`), which asks the kernel to be killed when
//! its parent dies, checks that the parent is still the agent, and becomes the worker: the request survives `exec`. The
//! kernel ties it to the parent's *thread*, so every worker is started by one thread, which lives for as long as anybody
//! may start or keep a worker. What it does not reach: processes that a worker starts itself; those end with their group,
//! with the next agent in the folder, or with the machine. Elsewhere the end of stdin is all that tells a worker.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use stageline_core::stage_protocol::{ErrorCode, FromWorker, Message as _};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::launch::Launch;

/// The code by which a worker that never became one is told from a worker that failed.
pub(super) const NOT_STARTED: &str = "not-started";

type Job = Box<dyn FnOnce() + Send>;

/// The one thread that starts workers. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(super) struct Spawner {
    jobs: mpsc::Sender<Job>,
    /// Becomes the worker; none starts the worker itself.
    runner: Option<PathBuf>,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn new(runner: Option<PathBuf>) -> std::io::Result<Self> {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("workers".to_owned())
            .spawn(move || {
                for job in todo {
                    job();
                }
            })?;
        let runner = runner.filter(|_| cfg!(target_os = "linux"));
        Ok(Self { jobs, runner })
    }

    /// What is run for a launch, without its environment and streams.
    pub(super) fn command(&self, launch: &Launch) -> Command {
        let Some(runner) = &self.runner else {
            let mut command = Command::new(&launch.program);
            command.args(&launch.args);
            return command;
        };
        let mut command = Command::new(runner);
        command
            .args(["agent", "run-worker", "--agent"])
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(&launch.program)
            .args(&launch.args);
        command
    }

    /// What is run for a shell, in front of a terminal or not. None where this system has no terminal for it.
    pub(super) fn shell(&self, launch: &Launch, in_front: bool) -> Option<Command> {
        let Some(runner) = &self.runner else {
            return (!in_front).then(|| self.command(launch));
        };
        let mut command = Command::new(runner);
        command
            .args(["agent", "run-shell", "--agent"])
            .arg(std::process::id().to_string());
        if in_front {
            command.arg("--terminal");
        }
        command.arg("--").arg(&launch.program).args(&launch.args);
        Some(command)
    }

    /// Starts it from the thread.
    ///
    /// # Errors
    /// What the system said.
    pub(super) async fn spawn(&self, mut command: Command) -> std::io::Result<Child> {
        let gone = || std::io::Error::other("the agent ends");
        let runtime = tokio::runtime::Handle::current();
        let (tell, told) = oneshot::channel();
        let job = move || {
            let _inside = runtime.enter();
            // Nobody waits any more: the child is killed as it is dropped.
            tell.send(command.spawn()).ok();
        };
        self.jobs.send(Box::new(job)).map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}

/// Becomes a worker of this agent: the body of `stageline agent run-worker`. Returns only when that cannot be, with the
/// bytes that say so to the agent.
pub fn become_worker(agent: u32, program: &Path, args: &[OsString]) -> Vec<u8> {
    let error = die_with(agent).err().unwrap_or_else(|| {
        use std::os::unix::process::CommandExt as _;
        std::process::Command::new(program).args(args).exec()
    });
    let here = std::env::current_dir().unwrap_or_default();
    let message = not_started(program, &here, &error);
    let code = ErrorCode::Other(NOT_STARTED.to_owned());
    let mut bytes = Vec::new();
    FromWorker::Failed { code, message }.encode_into(&mut bytes);
    bytes
}

/// Becomes a shell of this agent, in front of the terminal that its input is, if it is to be: the body of `stageline agent run-shell`.
/// Returns only when that cannot be, with the reason.
pub fn become_shell(agent: u32, terminal: bool, program: &Path, args: &[OsString]) -> String {
    let ready = die_with(agent).and_then(|()| if terminal { in_front() } else { Ok(()) });
    let error = ready.err().unwrap_or_else(|| {
        use std::os::unix::process::CommandExt as _;
        std::process::Command::new(program).args(args).exec()
    });
    let here = std::env::current_dir().unwrap_or_default();
    not_started(program, &here, &error)
}

/// A session of its own, whose terminal is the one that standard input is.
fn in_front() -> std::io::Result<()> {
    rustix::process::setsid()?;
    Ok(rustix::process::ioctl_tiocsctty(std::io::stdin())?)
}

/// From now on the kernel kills this process when its agent ends. An agent that has ended already is found out.
#[cfg(target_os = "linux")]
fn die_with(agent: u32) -> std::io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().and_then(|pid| u32::try_from(pid.as_raw_pid()).ok());
    if parent == Some(agent) {
        return Ok(());
    }
    Err(std::io::Error::other(
        "the agent that asked for it has ended",
    ))
}

/// Only Linux has this.
#[cfg(not(target_os = "linux"))]
fn die_with(_agent: u32) -> std::io::Result<()> {
    Ok(())
}

/// Why a program was not started, in words.
pub(super) fn not_started(program: &Path, dir: &Path, error: &std::io::Error) -> String {
    let program = program.display();
    if !dir.is_dir() {
        // The system says the same then as of a program that is missing.
        format!("the machine's folder {} is gone", dir.display())
    } else if error.kind() == std::io::ErrorKind::NotFound {
        format!("the program `{program}` does not exist on this machine")
    } else {
        format!("the program `{program}` cannot be started: {error}")
    }
}
