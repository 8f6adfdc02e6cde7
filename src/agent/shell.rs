//! Shells and connections that the operator has open on this machine.
//!
//! What always holds: while one is open the machine is at work; its environment is that of a setup, without secrets, and never the
//! agent's own; when the operator's stream ends, whatever was in front of the shell ends too, and so it does with the agent. What a
//! shell left running in the background when it ended by itself goes on, as with SSH, until the machine ends. It refuses more than
//! [`OPEN_MAX`] at once, so that they leave room for the requests that keep a machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use iroh::endpoint::{RecvStream, SendStream};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::folder::MACHINE_DIR;
use super::launch::{Launch, Site, WORKER};
use super::spawn::{Spawner, not_started};
use super::terminal::{END_OF_INPUT, Far, Terminal};
use super::work::{GoingOn, Work};
use crate::ambient;
use crate::machine::control::{NO_PORT, Refusal};
use crate::machine::shell::{FromShell, PIECE_MAX, ShellOrder, ToShell};

/// Shells and connections at once.
const OPEN_MAX: usize = 256;

/// How long a port may take to answer.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// From the signal that its terminal is gone to the one that ends it in any case.
const GRACE: Duration = Duration::from_secs(1);

/// How long the last output of a program that ended is waited for: what it left running may hold the pipes.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Pieces that wait for whoever reads them.
const PIECES: usize = 4;

/// The shell of whoever has none.
const SHELL: &str = "/bin/sh";

/// What the operator may open here.
pub(super) struct Shells {
    site: Site,
    spawner: Spawner,
    work: Arc<Work>,
    room: Arc<Semaphore>,
    open: TaskTracker,
    stop: CancellationToken,
}

/// Room for one, for as long as it is open.
pub(super) struct Open {
    work: GoingOn,
    _room: OwnedSemaphorePermit,
    _open: tokio_util::task::task_tracker::TaskTrackerToken,
}

impl Open {
    /// It was used until now.
    pub(super) fn closed(self) {
        self.work.succeeded();
    }
}

impl Shells {
    pub(super) fn new(site: Site, spawner: Spawner, work: Arc<Work>) -> Self {
        Self {
            site,
            spawner,
            work,
            room: Arc::new(Semaphore::new(OPEN_MAX)),
            open: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Takes room.
    ///
    /// # Errors
    /// [`Refusal`] when there is none.
    pub(super) fn room(&self) -> Result<Open, Refusal> {
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_| {
            let message = format!(
                "{OPEN_MAX} shells and connections are open on this machine, the most that it takes"
            );
            Refusal::new("busy", message).hint("close some")
        })?;
        Ok(Open {
            work: self.work.begin(),
            _room: room,
            _open: self.open.token(),
        })
    }

    /// Ends every shell, and waits until they have ended.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.open.close();
        tokio::time::timeout(2 * GRACE, self.open.wait()).await.ok();
    }

    /// Starts a shell.
    ///
    /// # Errors
    /// [`Refusal`] that says why it does not start.
    pub(super) async fn start(&self, order: &ShellOrder) -> Result<Shell, Refusal> {
        let home = Home::own(&self.site);
        let failed = |why: String| Refusal::new("shell", why);
        let terminal = match &order.terminal {
            Some(terminal) => Some(Terminal::open(terminal.size).map_err(|error| {
                failed(format!("this machine has no terminal to give: {error}"))
            })?),
            None => None,
        };
        let launch = self.launch(order, &home);
        let command = self.spawner.shell(&launch, terminal.is_some());
        let mut command = command.ok_or_else(|| {
            failed("an agent on this system opens no terminal".to_owned())
                .hint("use it without one: `stageline ssh ADDR -- COMMAND </dev/null`")
        })?;
        command
            .env_clear()
            .envs(&launch.env)
            .current_dir(&home.folder)
            .kill_on_drop(true);
        match &terminal {
            Some((_, far)) => {
                let on_it = far_streams(&mut command, far);
                on_it.map_err(|error| failed(error.to_string()))?;
            }
            None => {
                command
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .process_group(0);
            }
        }
        let spawned = self.spawner.spawn(command).await;
        let child =
            spawned.map_err(|error| failed(not_started(&launch.program, &home.folder, &error)))?;
        let shell = Shell::of(child, terminal.map(|(near, _)| near), self.stop.clone());
        shell.ok_or_else(|| failed("it ended before it began".to_owned()))
    }

    /// The shell of the agent's user, in an environment like that of a setup.
    fn launch(&self, order: &ShellOrder, home: &Home) -> Launch {
        let mut env = self.site.env.clone();
        env.remove(&OsString::from(WORKER));
        let mut set = |name: &str, value: OsString| env.insert(name.into(), value);
        set("HOME", home.folder.clone().into());
        for name in ["USER", "LOGNAME"] {
            if let Some(user) = &home.user {
                set(name, user.into());
            }
        }
        for (name, value) in &order.env {
            set(name, value.into());
        }
        if let Some(terminal) = &order.terminal {
            set("TERM", (&terminal.term).into());
        }
        set("SHELL", home.shell.clone().into());
        set(MACHINE_DIR, self.site.folder.clone().into());
        let line = order.command.iter().cloned();
        Launch {
            program: home.shell.clone(),
            args: line.flat_map(|line| ["-c".to_owned(), line]).collect(),
            env,
        }
    }
}

fn far_streams(command: &mut tokio::process::Command, far: &Far) -> std::io::Result<()> {
    command
        .stdin(far.stream()?)
        .stdout(far.stream()?)
        .stderr(far.stream()?);
    Ok(())
}

/// Connects to a port of this machine's loopback.
///
/// # Errors
/// [`Refusal`] that says why there is no connection.
pub(super) async fn connect(port: u16) -> Result<TcpStream, Refusal> {
    if port == 0 {
        return Err(Refusal::new(NO_PORT, "nothing has port 0"));
    }
    let mut last = None;
    for host in ["127.0.0.1", "::1"] {
        let connected = tokio::time::timeout(CONNECT_MAX, TcpStream::connect((host, port))).await;
        match connected {
            Ok(Ok(stream)) => return Ok(stream),
            // What the first one said counts: the second one may be missing.
            Ok(Err(error)) => last = last.or(Some(error.to_string())),
            Err(_) => {
                let seconds = CONNECT_MAX.as_secs();
                last = last.or(Some(format!("no answer within {seconds} s")));
            }
        }
    }
    let why = last.unwrap_or_default().to_lowercase();
    let why = why.split(" (os error").next().unwrap_or_default();
    let message = format!("nothing listens on port {port} of the machine ({why})");
    Err(Refusal::new("port-closed", message))
}

/// The agent's user, as this system knows it.
struct Home {
    user: Option<String>,
    folder: PathBuf,
    shell: PathBuf,
}

impl Home {
    fn own(site: &Site) -> Self {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let own = rustix::process::getuid().as_raw().to_string();
        let line = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.len() == 7 && fields[2] == own);
        let field = |at: usize| line.as_ref().map(|fields| fields[at].to_owned());
        let told = site.env.get(&OsString::from("HOME")).map(PathBuf::from);
        let folder = told.or_else(|| field(5).map(PathBuf::from));
        let shell = ambient::variable("SHELL").or_else(|| field(6));
        // Who is not to log in runs an agent all the same.
        let shuts_out = |shell: &Path| {
            let name = shell.file_name().unwrap_or_default();
            name == "nologin" || name == "false"
        };
        let shell = shell.map(PathBuf::from);
        let shell = shell.filter(|shell| shell.is_file() && !shuts_out(shell));
        Self {
            user: field(0),
            folder: folder
                .filter(|folder| folder.is_dir())
                .unwrap_or_else(|| site.folder.clone()),
            shell: shell.unwrap_or_else(|| SHELL.into()),
        }
    }
}

/// A shell that runs.
pub(super) struct Shell {
    child: Child,
    /// Of the shell itself.
    group: Pid,
    /// Where it has one.
    terminal: Option<Terminal>,
    stop: CancellationToken,
}

/// What ended a shell.
enum Over {
    /// It ended itself.
    Ended(Option<ExitStatus>),
    /// Nobody listens any more.
    Alone,
}

type Input = Box<dyn AsyncWrite + Send + Unpin>;
type Output = Box<dyn AsyncRead + Send + Unpin>;

impl Shell {
    fn of(child: Child, terminal: Option<Terminal>, stop: CancellationToken) -> Option<Self> {
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        Some(Self {
            group: number.and_then(Pid::from_raw)?,
            child,
            terminal,
            stop,
        })
    }

    /// Carries what is typed and what it prints until it has ended, or whoever opened it is gone.
    pub(super) async fn carry(mut self, send: &mut SendStream, recv: &mut RecvStream) {
        match self.talk(send, recv).await {
            Over::Ended(status) => {
                let ended = FromShell::Ended(code(status));
                // Nobody may be there to be told.
                ended.write(send).await.ok();
            }
            Over::Alone => self.end().await,
        }
    }

    async fn talk(&mut self, send: &mut SendStream, recv: &mut RecvStream) -> Over {
        let (say, mut said) = mpsc::channel(PIECES);
        let ended = CancellationToken::new();
        let (input, outputs) = self.streams();
        let readers: Vec<_> = outputs
            .into_iter()
            .map(|(of, output)| {
                let read = read(output, of, say.clone(), ended.clone());
                tokio_util::task::AbortOnDropHandle::new(tokio::spawn(read))
            })
            .collect();
        drop(say);
        // A program that reads nothing holds up what is typed: that whoever types is gone is seen here as well.
        let gone = send.stopped();
        let typed = type_in(recv, input, self.terminal.clone());
        tokio::pin!(gone, typed);
        let stop = self.stop.clone();
        let mut status = None;
        let mut silent = false;
        let over = loop {
            if silent && let Some(status) = status {
                break Over::Ended(status);
            }
            tokio::select! {
                piece = said.recv(), if !silent => {
                    let Some(piece): Option<FromShell> = piece else {
                        silent = true;
                        continue;
                    };
                    tokio::select! {
                        wrote = piece.write(send) => if wrote.is_err() { break Over::Alone },
                        () = stop.cancelled() => break Over::Alone,
                    }
                }
                waited = self.child.wait(), if status.is_none() => {
                    status = Some(waited.ok());
                    ended.cancel();
                }
                () = &mut typed => break Over::Alone,
                _ = &mut gone => break Over::Alone,
                () = stop.cancelled() => break Over::Alone,
            }
        };
        drop(readers);
        over
    }

    /// Its input, and its outputs with what each is.
    fn streams(&mut self) -> (Option<Input>, Vec<(Of, Output)>) {
        if let Some(terminal) = &self.terminal {
            let input = terminal.input().ok();
            let input = input.map(|input| Box::new(input) as Input);
            let output = terminal.output().ok();
            let output = output.map(|output| (FromShell::Output as Of, Box::new(output) as Output));
            return (input, output.into_iter().collect());
        }
        let input = self
            .child
            .stdin
            .take()
            .map(|stdin| Box::new(stdin) as Input);
        let mut outputs: Vec<(Of, Output)> = Vec::new();
        if let Some(stdout) = self.child.stdout.take() {
            outputs.push((FromShell::Output, Box::new(stdout)));
        }
        if let Some(stderr) = self.child.stderr.take() {
            outputs.push((FromShell::Error, Box::new(stderr)));
        }
        (input, outputs)
    }

    /// Ends it and what is in front of its terminal: they may say goodbye, for a moment.
    async fn end(mut self) {
        let front = self.terminal.as_ref().and_then(Terminal::front);
        let groups = [Some(self.group), front.filter(|front| *front != self.group)];
        let signal = |signal| {
            for group in groups.into_iter().flatten() {
                // A group that is gone already is what we want.
                rustix::process::kill_process_group(group, signal).ok();
            }
        };
        signal(Signal::HUP);
        // One that stands still would not hear it.
        signal(Signal::CONT);
        drop(self.terminal.take());
        tokio::time::timeout(GRACE, self.child.wait()).await.ok();
        signal(Signal::KILL);
        self.child.kill().await.ok();
    }
}

/// Makes a piece of what was read.
type Of = fn(Vec<u8>) -> FromShell;

/// Reads an output to its end; once the program has ended, for as long as something still comes.
async fn read(mut output: Output, of: Of, say: mpsc::Sender<FromShell>, ended: CancellationToken) {
    let mut buffer = vec![0; PIECE_MAX];
    loop {
        let quiet = async {
            ended.cancelled().await;
            tokio::time::sleep(DRAIN_MAX).await;
        };
        let read = tokio::select! {
            read = output.read(&mut buffer) => read.unwrap_or(0),
            () = quiet => 0,
        };
        if read == 0 || say.send(of(buffer[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

/// Passes on what is typed until the stream of whoever types ends.
async fn type_in(recv: &mut RecvStream, mut input: Option<Input>, terminal: Option<Terminal>) {
    while let Ok(Some(piece)) = ToShell::read(recv).await {
        match piece {
            ToShell::Input(bytes) => {
                let is_end = bytes.is_empty();
                let bytes = match (is_end, &terminal) {
                    (true, Some(_)) => vec![END_OF_INPUT],
                    (true, None) | (false, _) => bytes,
                };
                let Some(to) = &mut input else { continue };
                // One that does not read any more is going, or does not want to.
                let took = to.write_all(&bytes).await.is_ok() && to.flush().await.is_ok();
                if !took || (is_end && terminal.is_none()) {
                    input = None;
                }
            }
            ToShell::Size(size) => {
                if let Some(terminal) = &terminal {
                    // The next size may fit.
                    terminal.resize(size).ok();
                }
            }
        }
    }
}

/// As shells count.
fn code(status: Option<ExitStatus>) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.and_then(|status| {
        let signal = status.signal().map(|signal| 128 + signal);
        status.code().or(signal)
    });
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}
