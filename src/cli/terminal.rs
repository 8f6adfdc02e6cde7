//! This computer's end of a shell on a machine: its terminal, or its pipes.
//!
//! What always holds: a terminal that was changed is as before when this is over, however it ends, a panic included; bytes in pipes are
//! passed on as they are.

use std::io::{self, IsTerminal as _, Read as _};

use rustix::termios::{OptionalActions, Termios};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::Failure;
use crate::ambient;
use crate::machine::client::{FromStream, Shell, ToStream};
use crate::machine::shell::{FromShell, PIECE_MAX, Terminal, ToShell, WindowSize};

/// How a shell ended.
pub(super) enum Over {
    /// By itself, with this status.
    Ended(u8),
    /// Nobody reads what it prints any more (`| head`).
    Unread,
    /// By a signal to this process.
    Interrupted,
    /// It is not known.
    Lost(String),
}

/// The terminal that a shell is to have: this one, where all that it says goes there.
pub(super) fn wanted(is_command: bool) -> Option<Terminal> {
    let both = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !both || (is_command && !io::stderr().is_terminal()) {
        return None;
    }
    let term = ambient::variable("TERM").unwrap_or_else(|| "dumb".to_owned());
    let size = size()?;
    Some(Terminal { term, size })
}

fn size() -> Option<WindowSize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(WindowSize {
        columns: size.ws_col,
        rows: size.ws_row,
    })
}

/// A terminal that passes every key on. It is as before when this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is nobody to tell when the terminal is gone.
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.0).ok();
    }
}

/// Shows a shell until it is over.
pub(super) async fn show(shell: Shell, on_terminal: bool) -> Result<Over, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let _raw = on_terminal.then(Raw::begin).transpose()?;
    let Shell { to, from } = shell;
    Ok(tokio::select! {
        over = print(from) => over,
        () = type_in(to, on_terminal) => Over::Lost("its agent takes no more".to_owned()),
        _ = interrupt.recv() => Over::Interrupted,
        _ = terminate.recv() => Over::Interrupted,
        _ = hangup.recv() => Over::Interrupted,
    })
}

async fn print(mut from: FromStream) -> Over {
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        let wrote = match from.next().await {
            Ok(FromShell::Output(bytes)) => write(&mut out, &bytes).await,
            Ok(FromShell::Error(bytes)) => write(&mut err, &bytes).await,
            Ok(FromShell::Ended(status)) => return Over::Ended(status),
            Err(why) => return Over::Lost(why),
        };
        if wrote.is_err() {
            return Over::Unread;
        }
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// Passes on what is typed and how large the terminal is. Does not return: what it prints tells how it ended.
async fn type_in(mut to: ToStream, on_terminal: bool) {
    let mut typed = typed();
    let mut resized = signal(SignalKind::window_change()).ok();
    let mut open = true;
    loop {
        let resize = async {
            match &mut resized {
                Some(resized) if on_terminal => resized.recv().await,
                Some(_) | None => std::future::pending().await,
            }
        };
        let piece = tokio::select! {
            bytes = typed.recv(), if open => {
                open = bytes.is_some();
                Some(ToShell::Input(bytes.unwrap_or_default()))
            }
            _ = resize => size().map(ToShell::Size),
        };
        if let Some(piece) = piece
            && to.tell(&piece).await.is_err()
        {
            std::future::pending::<()>().await;
        }
    }
}

/// What comes on standard input, by a thread that nobody waits for; it ends with its end.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE_MAX];
        let mut input = io::stdin().lock();
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    if tell.blocking_send(buffer[..read].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    told
}
