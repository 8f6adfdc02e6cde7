//! Keeps workers alive: starts them, notices when they end, starts them again within a budget.
//!
//! What always holds: the agent never ends because a worker did; a stage has one worker at a time; why the last one ended
//! is in the stage's status and reaches the requests that it had. A worker that was never ready is not started again by
//! itself: whoever asked for it is told why, at once. It refuses to decide where a stage runs or what it is.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use secrecy::SecretString;
use stageline_core::id::{Fingerprint, StageId};
use stageline_core::resource::{EngineSpec, Spec, StageSpec};
use stageline_core::stage_protocol::Ready;
use stageline_core::unit::Millis;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::folder::{self, Folder};
use super::launch::{self, Launch, Site};
use super::output::{self, LogFile, Scrubber};
use super::process::{Gone, Notice, Process, gone, in_words};
use super::spawn::Spawner;
use crate::machine::control::Refusal;
use crate::machine::{StageStatus, WorkerState};
use crate::pipeline::Fabric;
use crate::pipeline::link::WorkerLink;
use crate::pipeline::stub::{self, StubOptions};

/// A worker that said how far its loading is must go on saying so.
const LOADING_SILENCE_MAX: Duration = Duration::from_secs(120);

/// The keeper has the same deadline as whoever waits for it, and is given the time to say what it saw.
const KEEPER_GRACE: Duration = Duration::from_secs(10);

/// From the end of a worker's stdout to its own.
const EXIT_MAX: Duration = Duration::from_secs(2);

/// How much of a worker's log a message shows.
const LINES_SHOWN: usize = 5;

/// How often, and how fast, a worker that was ready once is started again.
#[derive(Clone, Copy, Debug)]
pub struct RestartPolicy {
    /// At most so many times ...
    pub restarts_max: usize,
    /// ... within this span.
    pub window: Duration,
    /// Before the first one; doubles with each one in the window.
    pub delay_min: Duration,
    /// The longest delay.
    pub delay_max: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            restarts_max: 5,
            window: Duration::from_secs(600),
            delay_min: Duration::from_millis(500),
            delay_max: Duration::from_secs(30),
        }
    }
}

/// Every stage that this agent keeps.
pub struct Stages {
    fabric: Fabric,
    folder: Folder,
    site: Site,
    spawner: Spawner,
    policy: RestartPolicy,
    entries: Mutex<BTreeMap<StageId, Entry>>,
    /// One start or stop at a time; waiting for a worker to be ready does not hold it.
    changes: tokio::sync::Mutex<()>,
}

/// One stage.
struct Entry {
    spec: Fingerprint,
    known: watch::Receiver<Known>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What is known of a worker, and the refusal for whoever waits for it.
#[derive(Clone, Debug)]
struct Known {
    worker: WorkerState,
    refusal: Option<Refusal>,
}

impl Known {
    fn loading(what: &str) -> Self {
        let what = what.to_owned();
        Self {
            worker: WorkerState::Loading { percent: 0, what },
            refusal: None,
        }
    }
}

/// How one start of a worker ended.
enum End {
    /// It was asked to.
    Stopped,
    /// By itself, or it was killed for what it did. `ready` says since when it was ready, if it was.
    Ended {
        refusal: Refusal,
        was_ready: bool,
        lasting: bool,
    },
}

impl Stages {
    /// No stage yet.
    pub(super) fn new(
        fabric: Fabric,
        folder: Folder,
        site: Site,
        spawner: Spawner,
        policy: RestartPolicy,
    ) -> Self {
        Self {
            fabric,
            folder,
            site,
            spawner,
            policy,
            entries: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
        }
    }

    /// Starts a worker, or restarts it when its spec changed, and waits until it is ready or has failed.
    ///
    /// # Errors
    /// [`Refusal`] that names the stage and says why its worker does not run.
    pub async fn start(
        &self,
        stage: &StageId,
        spec: &StageSpec,
        model: Option<PathBuf>,
        secrets: &BTreeMap<String, SecretString>,
    ) -> Result<(), Refusal> {
        let mut known = {
            let _one = self.changes.lock().await;
            match self.current(stage, spec) {
                Some(known) => known,
                None => {
                    self.end(stage, "its worker is started anew").await;
                    self.begin(stage, spec, model, secrets)?
                }
            }
        };
        let deadline = Instant::now() + bounded(spec.ready_timeout);
        let settled = known.wait_for(|known| match &known.worker {
            WorkerState::Ready { .. } | WorkerState::Failed { .. } => true,
            WorkerState::Loading { .. } | WorkerState::Restarting { .. } => false,
        });
        let settled = timeout_at(deadline + KEEPER_GRACE, settled).await;
        let settled = settled.map(|known| known.map(|known| known.refusal.clone()));
        match settled {
            Ok(Ok(refusal)) => refusal.map_or(Ok(()), Err),
            Ok(Err(_)) => Err(Refusal::new(
                "internal",
                format!("{stage}: its keeper ended unexpectedly"),
            )),
            Err(_) => Err(not_ready(stage, spec, known.borrow().worker.clone())),
        }
    }

    /// The worker of this very spec, unless it failed for good.
    fn current(&self, stage: &StageId, spec: &StageSpec) -> Option<watch::Receiver<Known>> {
        let entries = self.entries.lock().expect("no holder panics");
        let entry = entries.get(stage)?;
        let failed = matches!(entry.known.borrow().worker, WorkerState::Failed { .. });
        let same = entry.spec == fingerprint(spec) && !failed && !entry.task.is_finished();
        same.then(|| entry.known.clone())
    }

    fn begin(
        &self,
        stage: &StageId,
        spec: &StageSpec,
        model: Option<PathBuf>,
        secrets: &BTreeMap<String, SecretString>,
    ) -> Result<watch::Receiver<Known>, Refusal> {
        let launch = launch::launch(&self.site, stage, spec, model.as_deref(), secrets)?;
        folder::make_dir(&self.folder.workers()).map_err(super::blobs::refusal)?;
        let (tell, known) = watch::channel(Known::loading("starting"));
        let stop = CancellationToken::new();
        let keeper = Keeper {
            fabric: self.fabric.clone(),
            folder: self.folder.clone(),
            stage: stage.clone(),
            spec: spec.clone(),
            launch,
            spawner: self.spawner.clone(),
            secrets: secrets.values().cloned().collect(),
            policy: self.policy,
            tell,
            stop: stop.clone(),
        };
        let entry = Entry {
            spec: fingerprint(spec),
            known: known.clone(),
            stop,
            task: tokio::spawn(keeper.keep()),
        };
        let mut entries = self.entries.lock().expect("no holder panics");
        entries.insert(stage.clone(), entry);
        Ok(known)
    }

    /// Ends a worker; unknown is done.
    pub async fn stop(&self, stage: &StageId) {
        let _one = self.changes.lock().await;
        self.end(stage, "it was stopped").await;
    }

    /// Ends every worker at once.
    pub async fn stop_all(&self) {
        let _one = self.changes.lock().await;
        let stages: Vec<StageId> = {
            let entries = self.entries.lock().expect("no holder panics");
            entries.keys().cloned().collect()
        };
        let ends = stages.iter().map(|stage| self.end(stage, "its agent ends"));
        futures::future::join_all(ends).await;
    }

    async fn end(&self, stage: &StageId, why: &str) {
        let entry = {
            let mut entries = self.entries.lock().expect("no holder panics");
            entries.remove(stage)
        };
        let Some(entry) = entry else { return };
        self.fabric.detach(stage, &format!("{stage}: {why}"));
        entry.stop.cancel();
        if let Err(error) = entry.task.await {
            tracing::error!(%stage, %error, "a keeper panicked");
        }
    }

    /// Every stage as it is now.
    pub fn status(&self) -> BTreeMap<StageId, StageStatus> {
        let entries = self.entries.lock().expect("no holder panics");
        let status = |(stage, entry): (&StageId, &Entry)| {
            let worker = entry.known.borrow().worker.clone();
            // A keeper that panicked says nothing more; its last word may be wrong by now.
            let worker = match worker {
                WorkerState::Failed { .. } => worker,
                _ if entry.task.is_finished() => WorkerState::Failed {
                    why: format!("{stage}: its keeper ended unexpectedly"),
                },
                WorkerState::Loading { .. }
                | WorkerState::Ready { .. }
                | WorkerState::Restarting { .. } => worker,
            };
            let fabric = self.fabric.status(stage).unwrap_or_default();
            let status = StageStatus {
                spec: entry.spec,
                worker,
                edges: fabric.edges,
                in_flight: fabric.in_flight,
            };
            (stage.clone(), status)
        };
        entries.iter().map(status).collect()
    }
}

/// The digest by which a changed stage is told from an unchanged one.
pub fn fingerprint(spec: &StageSpec) -> Fingerprint {
    Spec::Stage(Box::new(spec.clone())).fingerprint()
}

fn not_ready(stage: &StageId, spec: &StageSpec, state: WorkerState) -> Refusal {
    let doing = match state {
        WorkerState::Loading { percent, what } => format!("it is at {percent} % of {what}"),
        WorkerState::Restarting { why, .. } | WorkerState::Failed { why } => why,
        WorkerState::Ready { .. } => "it became ready just now".to_owned(),
    };
    let timeout = spec.ready_timeout;
    let message = format!("{stage}: its worker is not ready within {timeout}: {doing}");
    Refusal::new("worker-timeout", message).hint(logs_hint(stage))
}

/// `never` is longer than the timer can count.
fn bounded(span: Millis) -> Duration {
    span.duration().min(Duration::from_secs(30 * 86_400))
}

fn logs_hint(stage: &StageId) -> String {
    format!("see its log: stageline logs {stage}")
}

/// Keeps one stage's worker.
struct Keeper {
    fabric: Fabric,
    folder: Folder,
    stage: StageId,
    spec: StageSpec,
    launch: Option<Launch>,
    spawner: Spawner,
    secrets: Vec<SecretString>,
    policy: RestartPolicy,
    tell: watch::Sender<Known>,
    stop: CancellationToken,
}

impl Keeper {
    async fn keep(self) {
        let mut restarts = VecDeque::new();
        let mut ever_ready = false;
        let mut starts = 1_u32;
        loop {
            let End::Ended {
                refusal,
                was_ready,
                lasting,
            } = self.once().await
            else {
                return;
            };
            ever_ready |= was_ready;
            tracing::warn!(stage = %self.stage, why = %refusal.message, "a worker ended");
            if lasting || !ever_ready {
                return self.fail(refusal);
            }
            let now = Instant::now();
            while restarts
                .front()
                .is_some_and(|at| now - *at > self.policy.window)
            {
                restarts.pop_front();
            }
            if restarts.len() >= self.policy.restarts_max {
                return self.fail(self.given_up(refusal));
            }
            let doublings = u32::try_from(restarts.len()).unwrap_or(u32::MAX).min(16);
            let delay = self.policy.delay_min.saturating_mul(1 << doublings);
            restarts.push_back(now);
            let why = refusal.message;
            self.tell.send_replace(Known {
                worker: WorkerState::Restarting { why, starts },
                refusal: None,
            });
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(delay.min(self.policy.delay_max)) => starts += 1,
            }
        }
    }

    fn given_up(&self, refusal: Refusal) -> Refusal {
        let Refusal { message, hint, .. } = refusal;
        let message = format!(
            "{message} (given up after {} restarts in {} s)",
            self.policy.restarts_max,
            self.policy.window.as_secs()
        );
        Refusal {
            code: "worker-failed".to_owned(),
            message,
            hint,
        }
    }

    fn fail(&self, refusal: Refusal) {
        let why = refusal.message.clone();
        self.tell.send_replace(Known {
            worker: WorkerState::Failed { why },
            refusal: Some(refusal),
        });
    }

    fn told(&self, worker: WorkerState) {
        self.tell.send_replace(Known {
            worker,
            refusal: None,
        });
    }

    /// One start of the worker, to its end.
    async fn once(&self) -> End {
        self.told(WorkerState::Loading {
            percent: 0,
            what: "starting".to_owned(),
        });
        match &self.launch {
            None => self.once_stub().await,
            Some(launch) => self.once_process(launch).await,
        }
    }

    async fn once_stub(&self) -> End {
        let options = StubOptions {
            stage: self.stage.index,
            num_stages: self.spec.num_stages,
            dtype: self.spec.dtype,
            context: self.spec.context,
            engine_args: self.spec.engine_args.clone(),
        };
        let attached = stub::start(&options).and_then(|link| self.fabric.attach(&self.stage, link));
        match attached {
            Err(why) => self.ended("worker-failed", &why, false, true),
            Ok(_handle) => {
                self.told(WorkerState::Ready {
                    pid: std::process::id(),
                });
                self.stop.cancelled().await;
                End::Stopped
            }
        }
    }

    async fn once_process(&self, launch: &Launch) -> End {
        let mut process = match self.begin(launch).await {
            Ok(process) => process,
            Err(why) => return self.ended("worker-missing", &why, false, false),
        };
        let mut told = None;
        let (mut end, was_ready) = self.watch(&mut process, &mut told).await;
        if matches!(end, Some(Gone::Exited))
            && tokio::time::timeout(EXIT_MAX, process.child.wait())
                .await
                .is_err()
        {
            let why = "it closed its stdout and lived on".to_owned();
            end = Some(Gone::Bad("worker-protocol", why));
        }
        let status = process.end().await;
        let end = match end {
            Some(Gone::Exited) => {
                let when = if was_ready {
                    ""
                } else {
                    " before it was ready"
                };
                let why = format!("{}{when}", in_words(status));
                self.ended("worker-exited", &self.with_log(&why), was_ready, false)
            }
            Some(Gone::Bad(code, why)) => self.ended(code, &self.with_log(&why), was_ready, false),
            Some(Gone::NotStarted(why)) => self.ended("worker-missing", &why, false, false),
            Some(Gone::Cannot(why)) => self.ended("worker-failed", &why, was_ready, true),
            None => End::Stopped,
        };
        if let (Some(told), End::Ended { refusal, .. }) = (told, &end) {
            told.send(refusal.message.clone()).ok();
            self.fabric.detach(&self.stage, &refusal.message);
        }
        end
    }

    async fn begin(&self, launch: &Launch) -> Result<Process, String> {
        let log = LogFile::open(self.folder.worker_log(&self.stage))
            .map_err(|error| format!("its log cannot be written: {error}"))?;
        let scrubber = Scrubber::new(&self.secrets);
        let pid_file = self.folder.worker_pid(&self.stage);
        let dir = self.folder.root();
        Process::start(&self.spawner, launch, scrubber, log, pid_file, dir).await
    }

    /// Watches a worker until it ends, does wrong, or is to stop. Returns that, and whether it was ready.
    async fn watch(
        &self,
        process: &mut Process,
        told: &mut Option<oneshot::Sender<String>>,
    ) -> (Option<Gone>, bool) {
        let deadline = Instant::now() + bounded(self.spec.ready_timeout);
        let mut silence: Option<Instant> = None;
        let ready = loop {
            let due = silence.map_or(deadline, |at| at.min(deadline));
            let notice = tokio::select! {
                () = self.stop.cancelled() => return (None, false),
                notice = process.notices.recv() => notice,
                () = tokio::time::sleep_until(due) => return (Some(self.late(due == deadline)), false),
            };
            match notice {
                Some(Notice::Loading(percent, what)) => {
                    silence = Some(Instant::now() + LOADING_SILENCE_MAX);
                    self.told(WorkerState::Loading { percent, what });
                }
                Some(Notice::Ready(ready)) => break ready,
                other => return (Some(gone(other)), false),
            }
        };
        let handle = match self.attach(process, &ready, told) {
            Ok(handle) => handle,
            Err(why) => return (Some(Gone::Cannot(why)), false),
        };
        self.told(WorkerState::Ready { pid: process.pid() });
        tracing::info!(stage = %self.stage, pid = process.pid(), "a worker is ready");
        let hung = handle.hung();
        tokio::pin!(hung);
        let gone = tokio::select! {
            () = self.stop.cancelled() => None,
            notice = process.notices.recv() => Some(gone(notice)),
            _ = process.child.wait() => Some(Gone::Exited),
            why = &mut hung => Some(Gone::Bad("worker-hung", format!("it hung and was killed: {why}"))),
        };
        (gone, true)
    }

    fn attach(
        &self,
        process: &mut Process,
        ready: &Ready,
        told: &mut Option<oneshot::Sender<String>>,
    ) -> Result<crate::pipeline::StageHandle, String> {
        let layers = self.spec.layers.filter(|layers| *layers != ready.layers);
        if let (EngineSpec::Native, Some(layers)) = (&self.spec.engine, layers) {
            return Err(format!(
                "it runs layers {}, the plan says {layers}",
                ready.layers
            ));
        }
        let (Some(to), Some(from)) = (process.to.take(), process.from.take()) else {
            return Err("it was attached before".to_owned());
        };
        let (tell, ended) = oneshot::channel();
        *told = Some(tell);
        let link = WorkerLink {
            to,
            from,
            ended,
            hidden_size: ready.hidden_size,
            context: ready.context,
        };
        self.fabric.attach(&self.stage, link)
    }

    fn late(&self, all: bool) -> Gone {
        let state = self.tell.borrow().worker.clone();
        let doing = match state {
            WorkerState::Loading { percent, what } => {
                format!("; it was at {percent} % of {what}")
            }
            WorkerState::Ready { .. }
            | WorkerState::Restarting { .. }
            | WorkerState::Failed { .. } => String::new(),
        };
        let why = if all {
            let timeout = self.spec.ready_timeout;
            format!("it was not ready within {timeout}{doing}")
        } else {
            let silence = LOADING_SILENCE_MAX.as_secs();
            format!("it said nothing for {silence} s while loading{doing}")
        };
        Gone::Bad("worker-timeout", why)
    }

    /// A reason with the end of the worker's log.
    fn with_log(&self, why: &str) -> String {
        let lines = output::last_lines(&self.folder.worker_log(&self.stage), LINES_SHOWN);
        if lines.is_empty() {
            format!("{why}; its log is empty")
        } else {
            format!("{why}; its log ends: {}", lines.replace('\n', " | "))
        }
    }

    fn ended(&self, code: &str, why: &str, was_ready: bool, lasting: bool) -> End {
        let message = format!("{}: the worker failed: {why}", self.stage);
        End::Ended {
            refusal: Refusal::new(code, message).hint(logs_hint(&self.stage)),
            was_ready,
            lasting,
        }
    }
}
