//! The seam between a stage and the worker that does its work: `stage/1` messages over channels, and how an end is told.
//!
//! Whoever runs the worker (a child process, the stub) holds the other ends. A link lives as long as one start of a
//! worker; the next start brings a new one.

use std::fmt;

use stageline_core::stage_protocol::{FromWorker, ToWorker};
use tokio::sync::{mpsc, oneshot};

/// Messages that wait for a worker's stdin, or that its stdout is ahead of us.
pub const LINK_DEPTH: usize = 16;

/// One start of a worker, ready to take requests.
pub struct WorkerLink {
    /// To the worker.
    pub to: mpsc::Sender<ToWorker>,
    /// From the worker; its end is the worker's end. It is always drained.
    pub from: mpsc::Receiver<FromWorker>,
    /// Why the worker ended, for callers: exit status and the end of its log. Told before or just after `from` ends.
    pub ended: oneshot::Receiver<String>,
    /// Numbers per position of a hidden state, as the worker said.
    pub hidden_size: u32,
    /// Most positions of a request, as the worker said.
    pub context: u32,
}

/// The other ends of a [`WorkerLink`].
pub struct WorkerEnd {
    /// What the stage says.
    pub from_stage: mpsc::Receiver<ToWorker>,
    /// What the worker says.
    pub to_stage: mpsc::Sender<FromWorker>,
    /// Takes why the worker ended.
    pub ended: oneshot::Sender<String>,
}

impl WorkerLink {
    /// Both ends of a new link.
    pub fn pair(hidden_size: u32, context: u32) -> (Self, WorkerEnd) {
        let (to, from_stage) = mpsc::channel(LINK_DEPTH);
        let (to_stage, from) = mpsc::channel(LINK_DEPTH);
        let (why, ended) = oneshot::channel();
        let link = Self {
            to,
            from,
            ended,
            hidden_size,
            context,
        };
        let end = WorkerEnd {
            from_stage,
            to_stage,
            ended: why,
        };
        (link, end)
    }
}

impl fmt::Debug for WorkerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLink")
            .field("hidden_size", &self.hidden_size)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
