//! Connections: how many, how slow they may be, and how they end.
//!
//! axum's own `serve` waits for ever for a head, for a reader and for the last connection. Here each of these has a limit, so
//! that clients that stall cannot keep others out, nor a gateway up.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long to wait after the system would not give us a connection (no file descriptors left, most of the time).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How much a listener puts up with.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections at once. More wait in the system's queue.
    pub connections_max: usize,
    /// How long a head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long a client may leave an answer unread.
    pub stall_timeout: Duration,
    /// How long requests may take to finish after the shutdown; what remains then is cut off, and so cancelled.
    pub drain_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            // A connection costs a few tens of kilobytes; pipelines take far fewer requests at once.
            connections_max: 512,
            // Longer than the pools of common clients keep an idle connection (5 s in Python's).
            head_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown`, then lets requests finish for a while. Dropping the future cuts every connection.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    serve_within(listener, router, ServeLimits::default(), shutdown).await;
}

/// [`serve`] with limits of one's own.
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    shutdown: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (stream, slot) = accept(&listener, &slots) => {
                let connection = Connection { stream, slot, limits, stop: stop.clone() };
                connections.spawn(connection.run(router.clone()));
            }
        }
    }
    // From here on the system refuses new connections, instead of letting them wait for nobody.
    drop(listener);
    stop.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain_timeout, drained)
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "gateway: requests did not finish in time and are cut off"
        );
        connections.shutdown().await;
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, slot),
            Err(error) => {
                tracing::warn!(%error, "gateway: cannot take a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// Held until the connection ends.
    slot: OwnedSemaphorePermit,
    limits: ServeLimits,
    stop: CancellationToken,
}

impl Connection {
    async fn run(self, router: Router) {
        let Self {
            stream,
            slot: _slot,
            limits,
            stop,
        } = self;
        // Tokens are small and each is wanted at once. Without it an answer only gets slower.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "gateway: tokens may be held back by the system");
        }
        let io = TokioIo::new(Impatient::new(stream, limits.stall_timeout));
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.head_timeout)
                .max_header_size(HEAD_BYTES_MAX)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(io, TowerToHyperService::new(router))
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "gateway: a connection broke off");
        }
    }
}

/// A stream whose peer must read what is written to it.
struct Impatient {
    stream: TcpStream,
    patience: Duration,
    /// Running while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            waiting: None,
        }
    }

    /// Passes on how a write went, or fails it when it has waited too long.
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        waiting
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
