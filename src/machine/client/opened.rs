//! What stays open: a connection to a port of a machine, and a shell there.

use iroh::endpoint::{Connection, RecvStream, SendStream};
use tokio::net::TcpStream;

use super::{AgentClient, GRACE, Lost, QUIETLY, answer, odd, open, refused};
use crate::machine::carry::carry;
use crate::machine::control::{
    Envelope, NO_PORT, Refusal, Reply, Request, UNKNOWN_REQUEST, VERSION,
};
use crate::machine::shell::{FromShell, ShellOrder, ToShell};
use crate::machine::{MachineError, Target};

/// A connection to a port of a machine, for as long as the client is there.
pub struct Tunnel {
    streams: Streams,
}

/// A shell on a machine, for as long as the client is there. What it prints is passed on as it is, since whoever opened it wants to see just that.
pub struct Shell {
    /// What is typed.
    pub to: ToStream,
    /// What it prints.
    pub from: FromStream,
}

/// The way to a shell; it ends with this.
pub struct ToStream(SendStream);

/// The way back.
pub struct FromStream {
    recv: RecvStream,
    _connection: Connection,
}

struct Streams {
    /// Streams live no longer than their connection.
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl Tunnel {
    /// Carries a connection until both of its halves have ended.
    pub async fn carry(mut self, near: TcpStream) {
        carry(near, &mut self.streams.send, &mut self.streams.recv).await;
    }
}

impl ToStream {
    /// Tells the shell something.
    ///
    /// # Errors
    /// What became of the stream.
    pub async fn tell(&mut self, piece: &ToShell) -> std::io::Result<()> {
        piece.write(&mut self.0).await
    }
}

impl FromStream {
    /// What it says next. The last thing is how it ended.
    ///
    /// # Errors
    /// Why nothing more comes, though it did not end.
    pub async fn next(&mut self) -> Result<FromShell, String> {
        match FromShell::read(&mut self.recv).await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => Err("its agent ended it".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl AgentClient {
    /// Connects to a port of a machine.
    ///
    /// # Errors
    /// [`MachineError`] that says why there is no connection.
    pub async fn connect(&self, target: &Target, port: u16) -> Result<Tunnel, MachineError> {
        let opened = self.streams(target, Request::Connect { port }).await;
        let streams = opened.map_err(|error| if_older(error, PORTS))?;
        Ok(Tunnel { streams })
    }

    /// Whether the agent is there and knows of ports, before anybody needs one.
    ///
    /// # Errors
    /// [`MachineError`] that says what is missing.
    pub async fn knows_ports(&self, target: &Target) -> Result<(), MachineError> {
        let request = Request::Connect { port: 0 };
        match self.ask(target, request, GRACE, QUIETLY).await {
            Err(MachineError::Refused { code, .. }) if code == NO_PORT => Ok(()),
            Ok(_) => Ok(()),
            Err(error) => Err(if_older(error, PORTS)),
        }
    }

    /// Opens a shell.
    ///
    /// # Errors
    /// [`MachineError`] that says why there is none.
    pub async fn shell(&self, target: &Target, order: ShellOrder) -> Result<Shell, MachineError> {
        let opened = self.streams(target, Request::Shell(Box::new(order))).await;
        let streams = opened.map_err(|error| if_older(error, "shells"))?;
        Ok(Shell {
            to: ToStream(streams.send),
            from: FromStream {
                recv: streams.recv,
                _connection: streams.connection,
            },
        })
    }

    async fn streams(&self, target: &Target, request: Request) -> Result<Streams, MachineError> {
        let envelope = Envelope {
            version: VERSION,
            request,
        };
        let attempt = |connection: Connection| {
            let envelope = &envelope;
            async move {
                let (send, mut recv) = open(&connection, envelope).await?;
                let reply = answer(&mut recv, QUIETLY).await?;
                let Reply::Done = reply else {
                    return Err(Lost::Refused(odd(&reply)));
                };
                Ok(Streams {
                    connection,
                    send,
                    recv,
                })
            }
        };
        self.dial.with(target, attempt).await
    }
}

/// What agents of earlier versions do not know.
const PORTS: &str = "connections to its ports";

/// A request that is not known means that the agent is of an earlier version.
fn if_older(error: MachineError, what: &str) -> MachineError {
    match error {
        MachineError::Refused { lease, code, .. } if code == UNKNOWN_REQUEST => {
            let message = format!(
                "this machine's agent does not know of {what}: it was started by an older stageline"
            );
            let hint = format!(
                "`stageline apply --replace {lease}` rents a machine with an agent of this version in its place"
            );
            refused(&lease, Refusal::new(UNKNOWN_REQUEST, message).hint(hint))
        }
        error @ (MachineError::Refused { .. } | MachineError::Unreachable { .. }) => error,
    }
}
