//! The agent's side of the control protocol: who may speak, and what each request does.
//!
//! What always holds: only the operator's key is listened to; a request that panics is answered and ends nothing else;
//! while a request is worked on its asker hears so. It refuses what it does not know by name, and never guesses.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use iroh::endpoint::{Connection, RecvStream, SendStream, VarInt};
use iroh::protocol::{AcceptError, ProtocolHandler};
use secrecy::SecretString;
use stageline_core::id::{Name, Sha256, StageId};
use stageline_core::resource::StageSpec;
use stageline_core::unit::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::Inner;
use super::{deliveries, door, output, shell};
use crate::machine::carry::carry;
use crate::machine::control::{
    Chunk, DeliveredShare, NOT_THE_OPERATOR, Refusal, Reply, Request, Secret, Span, WORKING_EVERY,
    parse_request, read_frame_bytes, write_frame,
};
use crate::machine::plain::Stripper;
use crate::machine::shell::ShellOrder;
use crate::machine::spans::Spans;
use crate::machine::{AgentStatus, LogSource, fetch};
use crate::pipeline::endpoint::RelayAccess;
use crate::pipeline::roster::RosterError;

/// Requests at once; an operator has a few.
const REQUESTS_MAX: usize = 64;

/// From the opening of a stream to its whole request.
const REQUEST_READ_MAX: Duration = Duration::from_secs(30);

/// Between two chunks of a model.
const CHUNK_READ_MAX: Duration = Duration::from_secs(60);

/// How often a followed log is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Accepts connections of the operator.
#[derive(Clone)]
pub(super) struct Control {
    pub(super) agent: Arc<Inner>,
    slots: Arc<Semaphore>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// What a request that takes long is doing, for whoever waits for it.
#[derive(Clone, Default)]
struct Progress(Arc<Mutex<(String, u64, u64)>>);

impl Progress {
    fn set(&self, what: &str, done: u64, total: u64) {
        *self.0.lock().expect("no holder panics") = (what.to_owned(), done, total);
    }

    fn reply(&self) -> Reply {
        let (what, done, total) = self.0.lock().expect("no holder panics").clone();
        Reply::Working { what, done, total }
    }
}

impl Control {
    pub(super) fn new(agent: Arc<Inner>) -> Self {
        Self {
            agent,
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }
}

impl ProtocolHandler for Control {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        if connection.remote_id().as_bytes() != &self.agent.config.operator.0 {
            tracing::warn!(remote = %connection.remote_id(), "not the operator: turned away");
            connection.close(VarInt::from_u32(NOT_THE_OPERATOR), b"not the operator");
            return Ok(());
        }
        loop {
            let (send, recv) = connection.accept_bi().await?;
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return Ok(());
            };
            let agent = Arc::clone(&self.agent);
            tokio::spawn(async move {
                let mut exchange = Exchange {
                    agent,
                    send,
                    recv,
                    slot: Some(slot),
                };
                if let Err(error) = exchange.run().await {
                    tracing::debug!(error, "a control stream broke");
                }
            });
        }
    }
}

/// One request and its answer.
struct Exchange {
    agent: Arc<Inner>,
    send: SendStream,
    recv: RecvStream,
    /// Held for as long as this is a request.
    slot: Option<OwnedSemaphorePermit>,
}

/// The stream broke: nobody is there to be told.
type Broken = String;

fn broken(error: impl fmt::Display) -> Broken {
    error.to_string()
}

impl Exchange {
    async fn run(&mut self) -> Result<(), Broken> {
        let body = tokio::time::timeout(REQUEST_READ_MAX, read_frame_bytes(&mut self.recv))
            .await
            .map_err(broken)?;
        let request = match body {
            Ok(body) => parse_request(&body),
            Err(error) => Err(Refusal::new("bad-request", error.to_string())),
        };
        match request {
            Err(refusal) => self.reply(&Reply::Refused(refusal)).await?,
            Ok(Request::Blob {
                sha256,
                size,
                spans,
            }) => {
                let work = self.agent.work.begin();
                let reply = match self.take_blob(sha256, size, spans).await? {
                    Ok(()) => {
                        work.succeeded();
                        Reply::Done
                    }
                    Err(refusal) => Reply::Refused(refusal),
                };
                self.reply(&reply).await?;
            }
            Ok(Request::Logs {
                source,
                tail,
                follow,
            }) => self.logs(&source, tail, follow).await?,
            Ok(Request::Connect { port }) => self.port(port).await?,
            Ok(Request::Shell(order)) => self.shell(&order).await?,
            Ok(request) => self.work(request).await?,
        }
        // Whatever was carried may have ended it.
        self.send.finish().ok();
        // What was not read of a refused transfer is not waited for.
        self.recv.stop(VarInt::from_u32(0)).ok();
        // Until the other side has it all; it may be gone too.
        self.send.stopped().await.ok();
        Ok(())
    }

    async fn reply(&mut self, reply: &Reply) -> Result<(), Broken> {
        write_frame(&mut self.send, reply).await.map_err(broken)
    }

    /// Answers a request, saying every now and then that it is being worked on.
    async fn work(&mut self, request: Request) -> Result<(), Broken> {
        let progress = Progress::default();
        let agent = Arc::clone(&self.agent);
        let shown = progress.clone();
        let work = AssertUnwindSafe(async move {
            let work = delivers(&request).then(|| agent.work.begin());
            let answer = agent.answer(request, &shown).await;
            if let (Some(work), true) = (work, answer.is_ok()) {
                work.succeeded();
            }
            answer
        });
        let mut work = Box::pin(work.catch_unwind());
        let mut every = tokio::time::interval_at(Instant::now() + WORKING_EVERY, WORKING_EVERY);
        let answer = loop {
            tokio::select! {
                answer = &mut work => break answer,
                _ = every.tick() => self.reply(&progress.reply()).await?,
            }
        };
        let reply = match answer {
            Ok(Ok(reply)) => reply,
            Ok(Err(refusal)) => Reply::Refused(refusal),
            Err(_) => Reply::Refused(panicked()),
        };
        self.reply(&reply).await
    }

    /// Carries a connection to a port of this machine.
    async fn port(&mut self, port: u16) -> Result<(), Broken> {
        let connected = match self.agent.shells.room() {
            Ok(open) => shell::connect(port).await.map(|stream| (open, stream)),
            Err(refusal) => Err(refusal),
        };
        let (open, stream) = match connected {
            Ok(connected) => connected,
            Err(refusal) => return self.reply(&Reply::Refused(refusal)).await,
        };
        self.reply(&Reply::Done).await?;
        self.slot = None;
        carry(stream, &mut self.send, &mut self.recv).await;
        open.closed();
        Ok(())
    }

    /// Carries a shell.
    async fn shell(&mut self, order: &ShellOrder) -> Result<(), Broken> {
        let started = match self.agent.shells.room() {
            Ok(open) => {
                let shell = self.agent.shells.start(order).await;
                shell.map(|shell| (open, shell))
            }
            Err(refusal) => Err(refusal),
        };
        let (open, shell) = match started {
            Ok(started) => started,
            Err(refusal) => return self.reply(&Reply::Refused(refusal)).await,
        };
        self.reply(&Reply::Done).await?;
        self.slot = None;
        shell.carry(&mut self.send, &mut self.recv).await;
        open.closed();
        Ok(())
    }

    /// Takes a part of a model file.
    async fn take_blob(
        &mut self,
        sha256: Sha256,
        size: Bytes,
        spans: Vec<Span>,
    ) -> Result<Result<(), Refusal>, Broken> {
        let needed = Spans::from(spans);
        let store = Arc::clone(&self.agent.blobs);
        // An earlier transfer may still be waiting for a peer that is gone: it ends within the idle time-out.
        let mut turn = Box::pin(store.turn(&sha256));
        let _turn = loop {
            tokio::select! {
                turn = &mut turn => break turn,
                () = tokio::time::sleep(WORKING_EVERY) => {
                    let what = "another transfer of the same model".to_owned();
                    self.reply(&Reply::Working { what, done: 0, total: 0 }).await?;
                }
            }
        };
        let begun = {
            let (store, needed) = (Arc::clone(&store), needed.clone());
            on_disk(move || store.begin(&sha256, size, &needed)).await
        };
        let mut transfer = match begun {
            Ok(transfer) => transfer,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let present = transfer.present().clone().into();
        self.reply(&Reply::Have { present }).await?;
        loop {
            let read = tokio::time::timeout(CHUNK_READ_MAX, Chunk::read(&mut self.recv)).await;
            let chunk = match read {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(error)) => {
                    // What came before the cut counts.
                    on_disk(move || transfer.sync()).await.ok();
                    return Ok(Err(Refusal::new("transfer", error.to_string())));
                }
                Err(_) => {
                    on_disk(move || transfer.sync()).await.ok();
                    return Err("no chunk came for a minute".to_owned());
                }
            };
            if chunk.data.is_empty() {
                return Ok(on_disk(move || transfer.finish(&needed)).await);
            }
            let wrote = on_disk(move || {
                let wrote = transfer.write(chunk.offset, &chunk.data);
                (transfer, wrote)
            });
            let (back, wrote) = wrote.await;
            transfer = back;
            if let Err(refusal) = wrote {
                return Ok(Err(refusal));
            }
        }
    }

    /// Sends the end of a log, and what follows.
    async fn logs(&mut self, source: &LogSource, tail: u64, follow: bool) -> Result<(), Broken> {
        let path = match self.agent.log_of(source) {
            Ok(path) => path,
            Err(refusal) => return self.reply(&Reply::Refused(refusal)).await,
        };
        let (bytes, mut at) = match output::tail(&path, tail) {
            Ok(found) => found,
            Err(error) => {
                let message = format!("the log cannot be read: {error}");
                let refusal = Refusal::new("disk", message);
                return self.reply(&Reply::Refused(refusal)).await;
            }
        };
        self.reply(&Reply::Done).await?;
        let mut stripper = Stripper::default();
        let plain = stripper.push(&bytes);
        self.send.write_all(&plain).await.map_err(broken)?;
        if !follow {
            return Ok(());
        }
        loop {
            tokio::select! {
                // Whoever followed has gone.
                _ = self.send.stopped() => return Ok(()),
                () = tokio::time::sleep(FOLLOW_EVERY) => {}
            }
            let (bytes, end) = output::since(&path, at).map_err(broken)?;
            at = end;
            let plain = stripper.push(&bytes);
            self.send.write_all(&plain).await.map_err(broken)?;
        }
    }
}

/// Runs something that waits for the disk where it holds up nothing else.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// What counts as a delivery: a machine that is being filled is not idle.
const fn delivers(request: &Request) -> bool {
    match request {
        Request::Fetch { .. }
        | Request::Blob { .. }
        | Request::Deliver { .. }
        | Request::Start { .. }
        | Request::Expose { .. } => true,
        Request::Status
        | Request::Logs { .. }
        | Request::Check { .. }
        | Request::Stop { .. }
        | Request::Unexpose { .. }
        | Request::Drain { .. }
        | Request::Limit { .. }
        | Request::AtWork
        | Request::SetUp(_)
        | Request::Connect { .. }
        | Request::Shell(_) => false,
    }
}

fn panicked() -> Refusal {
    Refusal::new("internal", "the agent has a fault; its log tells more")
        .hint("stageline logs LEASE shows it; please report it")
}

impl Inner {
    async fn answer(&self, request: Request, progress: &Progress) -> Result<Reply, Refusal> {
        match request {
            Request::Status => {
                self.work.asked();
                Ok(Reply::Status(Box::new(self.status().await)))
            }
            Request::Fetch {
                sha256,
                size,
                url,
                token,
            } => {
                let from = (url.as_str(), token.as_ref().map(|Secret(token)| token));
                self.fetch(sha256, size, from, progress).await
            }
            Request::Deliver { pipelines, relay } => {
                self.deliver(pipelines, relay.map(Into::into), progress)
                    .await
            }
            Request::Start {
                stage,
                spec,
                secrets,
            } => self.start(&stage, &spec, secrets, progress).await,
            Request::Stop { stage } => {
                progress.set("ending the worker", 0, 0);
                self.stages.stop(&stage).await;
                Ok(Reply::Done)
            }
            Request::Check {
                pipeline,
                prompt,
                max_tokens,
                timeout,
            } => {
                progress.set("waiting for the answer", 0, 0);
                self.check(&pipeline, prompt, max_tokens, timeout).await
            }
            Request::Expose {
                exposure,
                spec,
                peers,
                api_key,
            } => {
                let key = api_key.map(|Secret(key)| key);
                let url = self.exposures.expose(&exposure, &spec, &peers, key).await;
                url.map(|url| Reply::Url { url })
            }
            Request::Unexpose { exposure } => {
                progress.set("letting requests end", 0, 0);
                self.exposures.unexpose(&exposure).await;
                Ok(Reply::Done)
            }
            Request::Drain { timeout, what } => {
                progress.set("letting requests end", 0, 0);
                let longest = timeout.duration().min(Duration::from_secs(86_400));
                self.fabric.drain(what, longest).await;
                Ok(Reply::Done)
            }
            Request::Limit { limits } => self.keep_within(limits),
            Request::AtWork => Ok(self.at_work()),
            Request::SetUp(order) => self.setup.begin(&order).map(|()| Reply::Done),
            // These are answered where the stream is.
            Request::Blob { .. }
            | Request::Logs { .. }
            | Request::Connect { .. }
            | Request::Shell(_) => Err(panicked()),
        }
    }

    fn at_work(&self) -> Reply {
        self.work.begin().succeeded();
        Reply::Done
    }

    async fn status(&self) -> AgentStatus {
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            facts: self.facts().await,
            deliveries: self.deliveries.status(),
            stages: self.stages.status(),
            exposures: self.exposures.status(),
            idle: Some(self.idle()),
            limits: *self.limits.lock().expect("no holder panics"),
            setup: self.setup.status(),
        }
    }

    async fn fetch(
        &self,
        sha256: Sha256,
        size: Bytes,
        (url, token): (&str, Option<&SecretString>),
        progress: &Progress,
    ) -> Result<Reply, Refusal> {
        progress.set("waiting for another transfer", 0, size.0);
        let _turn = self.blobs.turn(&sha256).await;
        if self.blobs.present(&sha256).covers(&Spans::whole(size.0)) {
            return Ok(Reply::Done);
        }
        let (file, path) = self.blobs.download(&sha256, size)?;
        let told = |done| progress.set("fetching the model", done, size.0);
        if let Err(refusal) = fetch::fetch(url, token, &sha256, size, file, told).await {
            std::fs::remove_file(path).ok();
            return Err(refusal);
        }
        self.blobs.adopt(&sha256, size)?;
        Ok(Reply::Done)
    }

    async fn deliver(
        &self,
        shares: BTreeMap<Name, DeliveredShare>,
        relay: Option<RelayAccess>,
        progress: &Progress,
    ) -> Result<Reply, Refusal> {
        let told = self.folder.read_relay().ok().flatten();
        let same = relay == told.map(Into::into);
        if let (Some(relay), false) = (&relay, same) {
            progress.set("trying the relay", 0, 0);
            door::try_relay(relay).await?;
        }
        let rosters: Vec<_> = shares
            .iter()
            .map(|(name, share)| (name.clone(), share.roster.clone()))
            .collect();
        let deliveries = Arc::clone(&self.deliveries);
        let gone = on_disk(move || deliveries.replace(shares)).await?;
        for pipeline in gone {
            self.fabric.forget(&pipeline);
        }
        for (pipeline, roster) in rosters {
            match self.fabric.set_roster(roster.clone()) {
                Ok(_) => {}
                // The neighbours' deliveries are of the same plan; one of them may have told us first.
                Err(RosterError::Stale { .. }) if self.fabric.knows(&pipeline, &roster) => {}
                Err(error) => return Err(deliveries::roster_refusal(&pipeline, &error)),
            }
        }
        if !same {
            let grant = relay.clone().map(Into::into);
            self.folder
                .write_relay(grant.as_ref())
                .map_err(super::blobs::refusal)?;
        }
        // Asked for once more does no harm: the door knows where it is.
        if self.moves.send(relay).await.is_err() {
            return Err(panicked());
        }
        self.fabric.undrain();
        Ok(Reply::Done)
    }

    async fn start(
        &self,
        stage: &StageId,
        spec: &StageSpec,
        secrets: BTreeMap<String, Secret>,
        progress: &Progress,
    ) -> Result<Reply, Refusal> {
        // By which name this machine is called may change while it runs; that it is meant, its key says.
        let model = self.deliveries.model(stage, spec)?;
        let secrets: BTreeMap<String, SecretString> = secrets
            .into_iter()
            .map(|(name, Secret(value))| (name, value))
            .collect();
        self.fabric.undrain();
        let start = self.stages.start(stage, spec, model, &secrets);
        tokio::pin!(start);
        loop {
            tokio::select! {
                done = &mut start => return done.map(|()| Reply::Done),
                () = tokio::time::sleep(WORKING_EVERY / 2) => self.show_loading(stage, progress),
            }
        }
    }

    fn show_loading(&self, stage: &StageId, progress: &Progress) {
        use crate::machine::WorkerState;
        let status = self.stages.status();
        match status.get(stage).map(|status| &status.worker) {
            Some(WorkerState::Loading { percent, what }) => {
                progress.set(what, u64::from(*percent), 100);
            }
            Some(WorkerState::Restarting { .. }) => progress.set("starting again", 0, 0),
            Some(WorkerState::Ready { .. } | WorkerState::Failed { .. }) | None => {}
        }
    }

    fn log_of(&self, source: &LogSource) -> Result<PathBuf, Refusal> {
        match source {
            LogSource::Agent => Ok(self.folder.log()),
            LogSource::Stage(stage) => {
                let path = self.folder.worker_log(stage);
                let known = path.exists() || self.stages.status().contains_key(stage);
                known.then_some(path).ok_or_else(|| {
                    let lease = &self.config.lease;
                    let message = format!("{stage} never ran on {lease}: it has no log there");
                    Refusal::new("unknown-stage", message)
                })
            }
        }
    }
}
