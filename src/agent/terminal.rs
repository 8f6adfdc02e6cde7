//! A terminal for a shell: our end of it, and the end that its programs have.
//!
//! What always holds: no thread waits for our end; when all of it is dropped, whatever the terminal is in front of hears that it hung up.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe;

use crate::machine::shell::WindowSize;

/// What ends the input of a program that reads a line from a terminal.
pub(super) const END_OF_INPUT: u8 = 4;

/// Our end of a terminal. Clones are the same end.
#[derive(Clone)]
pub(super) struct Terminal(Arc<OwnedFd>);

/// The end that programs have.
pub(super) struct Far(OwnedFd);

impl Terminal {
    /// A new one.
    ///
    /// # Errors
    /// When the system has none to give.
    pub(super) fn open(size: WindowSize) -> io::Result<(Self, Far)> {
        let near = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::io::fcntl_setfd(&near, rustix::io::FdFlags::CLOEXEC)?;
        rustix::pty::grantpt(&near)?;
        rustix::pty::unlockpt(&near)?;
        let name = rustix::pty::ptsname(&near, Vec::new())?;
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let far = rustix::fs::open(path, flags, Mode::empty())?;
        rustix::fs::fcntl_setfl(&near, OFlags::RDWR | OFlags::NONBLOCK)?;
        let terminal = Self(Arc::new(near));
        terminal.resize(size)?;
        Ok((terminal, Far(far)))
    }

    /// It has another size now; its programs are told.
    pub(super) fn resize(&self, size: WindowSize) -> io::Result<()> {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(&*self.0, size)?)
    }

    /// The process group that is in front of it.
    pub(super) fn front(&self) -> Option<Pid> {
        rustix::termios::tcgetpgrp(&*self.0).ok()
    }

    /// What is typed goes in there. It is read and written like a pipe.
    pub(super) fn input(&self) -> io::Result<pipe::Sender> {
        pipe::Sender::from_owned_fd_unchecked(self.0.try_clone()?)
    }

    /// What is shown comes out there; an error is its end, since nobody has the other end any more then.
    pub(super) fn output(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.0.try_clone()?)
    }
}

impl Far {
    /// For one of a program's streams.
    pub(super) fn stream(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }
}
