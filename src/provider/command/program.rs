//! One run of a program of the user's own: its group, its output within limits, and its end.
//!
//! What always holds: the program is the first of a process group of its own; a group that takes too long, prints too much or is
//! not waited for any more is asked to end and then killed; both streams are drained, so that it never blocks on them; what it was
//! handed in confidence is taken out of whatever it printed. It refuses to put anything secret into arguments.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use stageline_core::resource::{Cause, FailureClass};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::ambient;

/// How long a group that was asked to end may take before it is killed.
pub(super) const TERM_MAX: Duration = Duration::from_secs(2);

/// How long the last output of a program that ended is waited for: what it left running may hold the pipes.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How long a group that nobody waits for any more may take: the command that left it is about to end.
const CUT_MAX: Duration = Duration::from_millis(100);

/// Lines of stderr that are kept, the longest of them, and how much of one is looked at.
const LINES: usize = 100;
const LINE_MAX: usize = 300;
const LINE_READ: usize = 8 << 10;

/// The longest piece that is kept secret.
const SECRET_MAX: usize = 256;

/// Variables of this process that are nobody else's business.
const WITHHELD: [&str; 1] = ["STAGELINE_IDENTITY"];

/// What is run.
pub(super) struct Call<'a> {
    /// What it is for: `acquire`.
    pub verb: &'static str,
    /// Program and arguments.
    pub argv: &'a [String],
    /// It runs here, and a path starts here.
    pub folder: &'a Path,
    /// Beside what this process has.
    pub env: BTreeMap<String, String>,
    /// The same, and taken out of what it prints.
    pub secret: BTreeMap<String, String>,
    /// The most that it may print.
    pub stdout_max: usize,
    /// How long it may take.
    pub within: Duration,
    /// Who hears what it says beside its output, at once: as many lines as are kept.
    pub told: Option<UnboundedSender<String>>,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub how: How,
    /// What it printed, up to the limit.
    pub stdout: String,
    /// The last lines of what it said beside that.
    pub said: Vec<String>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By itself.
    Exited(ExitStatus),
    /// It took too long and was ended.
    TooLong,
    /// It printed too much and was ended.
    TooMuch,
}

impl Ended {
    /// Whether it ended well.
    pub fn is_well(&self) -> bool {
        matches!(self.how, How::Exited(status) if status.success())
    }

    /// Its exit status, where it has one.
    pub fn code(&self) -> Option<i32> {
        match self.how {
            How::Exited(status) => status.code(),
            How::TooLong | How::TooMuch => None,
        }
    }

    /// The last line that it printed and that says something.
    pub fn last_line(&self) -> Option<&str> {
        let lines = self.stdout.lines().rev();
        lines.map(str::trim).find(|line| !line.is_empty())
    }

    /// How it ended in words, with its last words.
    pub fn told(&self, call: &str, within: Duration, stdout_max: usize) -> String {
        let how = match self.how {
            How::Exited(status) => crate::agent::process::in_words(Some(status)),
            How::TooLong => format!("it did not end within {} s and was ended", within.as_secs()),
            How::TooMuch => format!("it printed more than {stdout_max} bytes and was ended"),
        };
        let last = self.said.last().map(|line| format!("; it said: {line}"));
        format!("{call}: {how}{}", last.unwrap_or_default())
    }
}

/// A process group. It ends when this is dropped before it was waited for.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // Gone is done.
            rustix::process::kill_process_group(group, signal).ok();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.0 else { return };
        self.signal(Signal::TERM);
        let asked = std::time::Instant::now();
        while asked.elapsed() < CUT_MAX && rustix::process::test_kill_process_group(group).is_ok() {
            rustix::thread::sched_yield();
        }
        self.signal(Signal::KILL);
    }
}

/// A program that runs.
pub(super) struct Running {
    // Goes first, so that the first of the group is asked like the others.
    group: Group,
    child: Child,
    stdout: JoinHandle<(Vec<u8>, bool)>,
    stderr: JoinHandle<Vec<String>>,
    flooded: tokio::sync::oneshot::Receiver<()>,
    within: Duration,
}

/// Starts a program.
///
/// # Errors
/// [`Cause`] when it cannot be started: then it did nothing.
pub(super) fn start(call: Call<'_>) -> Result<Running, Cause> {
    let program = found(call.argv, call.folder).map_err(|why| not_started(&call, &why))?;
    let mut command = tokio::process::Command::new(&program);
    for name in WITHHELD {
        command.env_remove(name);
    }
    let child = command
        .args(call.argv.iter().skip(1))
        .current_dir(call.folder)
        .envs(&call.env)
        .envs(&call.secret)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| not_started(&call, &in_words(&error, &program)))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let group = Group(pid.and_then(Pid::from_raw));
    let (flood, flooded) = tokio::sync::oneshot::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let hidden: Vec<String> = call.secret.into_values().collect();
    Ok(Running {
        child,
        group,
        stdout: tokio::spawn(take(stdout, call.stdout_max, flood)),
        stderr: tokio::spawn(lines(stderr, hidden, call.told)),
        flooded,
        within: call.within,
    })
}

impl Running {
    /// Its process number.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it ends, or ends it.
    pub async fn end(mut self) -> Ended {
        let how = tokio::select! {
            status = self.child.wait() => status.ok().map(How::Exited),
            Ok(()) = &mut self.flooded => Some(How::TooMuch),
            () = tokio::time::sleep(self.within) => Some(How::TooLong),
        };
        let how = match how {
            // A short program may have printed all of it before it was seen.
            Some(How::Exited(status)) => How::Exited(status),
            Some(how @ (How::TooLong | How::TooMuch)) => {
                self.group.signal(Signal::TERM);
                // Whatever is left then is killed, also where the first of the group has ended.
                tokio::time::timeout(TERM_MAX, self.child.wait()).await.ok();
                self.group.signal(Signal::KILL);
                self.child.wait().await.ok();
                how
            }
            None => How::TooLong,
        };
        // What it left running on purpose may go on.
        self.group.0 = None;
        let (stdout, flooded) = ended(self.stdout).await.unwrap_or_default();
        Ended {
            how: if flooded { How::TooMuch } else { how },
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            said: ended(self.stderr).await.unwrap_or_default(),
        }
    }
}

/// What a reader has in the end; one whose pipe is held open by what was left running is not waited for.
async fn ended<T>(mut reader: JoinHandle<T>) -> Option<T> {
    let read = tokio::time::timeout(DRAIN_MAX, &mut reader).await;
    if read.is_err() {
        reader.abort();
    }
    read.ok()?.ok()
}

/// Reads up to a limit, and on beyond it without keeping that; whether there was more.
async fn take(
    pipe: Option<impl AsyncRead + Unpin>,
    max: usize,
    flood: tokio::sync::oneshot::Sender<()>,
) -> (Vec<u8>, bool) {
    let (mut kept, mut flood) = (Vec::new(), Some(flood));
    let Some(mut pipe) = pipe else {
        return (kept, false);
    };
    let mut piece = [0; 8 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        let room = max.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&piece[..room]);
        if room < count
            && let Some(flood) = flood.take()
        {
            // Whoever waits may be gone.
            flood.send(()).ok();
        }
    }
    (kept, flood.is_none())
}

/// Reads lines that say something, and keeps the last ones.
async fn lines(
    pipe: Option<impl AsyncRead + Unpin>,
    hidden: Vec<String>,
    told: Option<UnboundedSender<String>>,
) -> Vec<String> {
    let (mut kept, mut line) = (VecDeque::new(), Vec::new());
    let mut left = LINES;
    let mut say = |text: Option<&String>| {
        if let (Some(text), Some(told), 1..) = (text, &told, left) {
            left -= 1;
            // Whoever waited may be gone.
            told.send(text.clone()).ok();
        }
    };
    let Some(mut pipe) = pipe else {
        return Vec::new();
    };
    let mut piece = [0; 8 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        for byte in &piece[..count] {
            if *byte == b'\n' {
                say(keep(&mut kept, &line, &hidden));
                line.clear();
            } else if line.len() < LINE_READ {
                line.push(*byte);
            }
        }
    }
    say(keep(&mut kept, &line, &hidden));
    kept.into()
}

/// The line as it is kept; none where it says nothing.
fn keep<'k>(kept: &'k mut VecDeque<String>, line: &[u8], hidden: &[String]) -> Option<&'k String> {
    // What was cut off may be the middle of a secret.
    let whole = if line.len() < LINE_READ {
        line
    } else {
        &line[..LINE_READ - SECRET_MAX]
    };
    let mut text = String::from_utf8_lossy(whole).into_owned();
    for secret in hidden.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), "(hidden)");
    }
    let text = crate::provider::http::clear(&text, LINE_MAX);
    if text.is_empty() {
        return None;
    }
    if kept.len() == LINES {
        kept.pop_front();
    }
    kept.push_back(text);
    kept.back()
}

/// The file of a program, when it is there and may be run.
pub(super) fn found(argv: &[String], folder: &Path) -> Result<PathBuf, String> {
    let name = argv.first().map_or("", String::as_str);
    let tried: Vec<PathBuf> = if name.contains('/') {
        vec![folder.join(name)]
    } else {
        let path = ambient::variable("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).map(|path| path.join(name));
        folders.collect()
    };
    let mut not_executable = None;
    for path in tried {
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() => {
                use std::os::unix::fs::PermissionsExt as _;
                if meta.permissions().mode() & 0o111 != 0 {
                    return Ok(std::path::absolute(&path).unwrap_or(path));
                }
                not_executable = Some(path);
            }
            Ok(_) | Err(_) => {}
        }
    }
    Err(match not_executable {
        Some(path) => format!("{0} is not executable; type `chmod +x {0}`", path.display()),
        None if name.contains('/') => format!("{} is not there", folder.join(name).display()),
        None => format!("there is no program `{name}` on the PATH"),
    })
}

fn in_words(error: &std::io::Error, program: &Path) -> String {
    let shown = program.display();
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::NotFound, _) => {
            format!("{shown} is there, and what its first line says runs it is not")
        }
        (ErrorKind::ExecutableFileBusy, _) => format!("{shown} is being written by somebody"),
        // ENOEXEC: neither a program nor a script that says what runs it.
        (_, Some(8)) => {
            format!("{shown} is no program; a script begins with a line such as #!/bin/sh")
        }
        (_, _) => format!("{shown}: {error}"),
    }
}

fn not_started(call: &Call<'_>, why: &str) -> Cause {
    let verb = call.verb;
    let message = format!("its program `{verb}` cannot be run: {why}");
    let hint = format!(
        "put that right, or name another one as `{verb}`; paths start at the folder of the topology"
    );
    Cause::new(FailureClass::Config, message).hint(hint)
}
