//! The process on the machine: it obeys the operator, takes deliveries, keeps workers alive, listens for exposures.
//!
//! What always holds: one agent per folder; only the operator commands it; everything it keeps is in its folder; it ends
//! only when it is told to, never because a worker, a request or a peer did wrong. After a start it knows what was
//! delivered into its folder, and has no worker and no listener until the operator starts them again: `plan` shows that
//! as drift. What it refuses: to decide. It knows no plan and no state.
//!
//! No worker outlives it. Asked to end, it ends its workers' process groups. Killed, its workers see their stdin end,
//! which is the protocol's goodbye, and on Linux the kernel kills them ([`spawn`]). What a worker itself started and left
//! behind is ended by the next agent in the folder, which finds it by `workers/*.pid` and by the folder's name in its
//! environment ([`folder::MACHINE_DIR`]); a provider that releases the machine does the same
//! ([`process::end_leftovers`]).

mod blobs;
pub mod boot;
mod check;
mod deliveries;
mod door;
mod exposures;
pub mod facts;
pub mod folder;
mod guard;
mod launch;
mod log;
mod output;
mod own_end;
pub mod process;
mod server;
mod setup;
mod shell;
pub mod spawn;
mod stages;
mod terminal;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stageline_core::id::EndpointKey;
use stageline_core::offer::Facts;
use stageline_core::resource::{Contact, LeaseLimits};
use stageline_core::unit::Millis;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::ambient::{SharedClock, SystemClock};
use crate::pipeline::endpoint::{self, EndpointError, RelayAccess, RelaySettings};
use crate::pipeline::keys::Secret;
use crate::pipeline::{Drain, Fabric, FabricConfig};
pub use folder::{Config, Folder, FolderError};
pub use own_end::OwnEnd;
pub use stages::RestartPolicy;

/// Where an agent listens whose address nobody tells.
pub const PORT: u16 = 41641;

/// How long requests in flight may take to end when the agent is told to end.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Its folder, with `agent.key` and `agent.json`.
    pub dir: PathBuf,
    /// The program `stageline`, which becomes each worker so that it dies with the agent; none starts workers directly.
    pub runner: Option<PathBuf>,
    /// It ends when its standard input does: whoever holds the other end cannot leave it behind.
    pub until_eof: bool,
}

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// It cannot be reached.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The operating system refused something else.
    #[error("the agent cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

/// Everything that the requests work on.
struct Inner {
    config: Config,
    folder: Folder,
    fabric: Fabric,
    blobs: Arc<blobs::Blobs>,
    deliveries: Arc<deliveries::Deliveries>,
    stages: stages::Stages,
    exposures: exposures::Exposures,
    work: Arc<work::Work>,
    setup: setup::Setup,
    shells: shell::Shells,
    /// Those that it keeps by itself; none where it does not end itself.
    limits: Mutex<Option<LeaseLimits>>,
    /// To another relay.
    moves: mpsc::Sender<door::Move>,
    /// GPUs do not change while the agent runs, and asking for them is slow.
    gpus: OnceCell<facts::Gpus>,
}

impl Inner {
    /// For how long nothing counted as work.
    fn idle(&self) -> Millis {
        self.work.idle(self.fabric.is_busy(), self.fabric.worked())
    }

    async fn facts(&self) -> Facts {
        // A simulator's machine is what the simulator says.
        if let Some(facts) = self.folder.read_facts() {
            return facts;
        }
        let gpus = self.gpus.get_or_init(facts::gpus).await.clone();
        facts::measure_with(self.folder.root(), gpus)
    }
}

/// An agent that runs in this process.
pub struct Agent {
    inner: Arc<Inner>,
    door: Arc<door::Door>,
    _mover: AbortOnDropHandle<()>,
    _keeper: Option<AbortOnDropHandle<()>>,
    key: EndpointKey,
    _lock: folder::FolderLock,
}

impl Agent {
    /// Starts an agent in its folder. It listens when this returns, and its folder says where.
    ///
    /// # Errors
    /// [`AgentError`] when the folder cannot be used or no endpoint can be had.
    pub async fn start(options: &AgentOptions) -> Result<Self, AgentError> {
        Self::start_with(options, RestartPolicy::default()).await
    }

    /// [`Agent::start`] with a policy of one's own, for tests that cannot wait.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub async fn start_with(
        options: &AgentOptions,
        policy: RestartPolicy,
    ) -> Result<Self, AgentError> {
        let root = std::path::absolute(&options.dir).map_err(|source| AgentError::System {
            what: "find its folder",
            source,
        })?;
        let folder = Folder::new(root);
        let lock = folder.lock()?;
        let met = process::end_leftovers(&folder);
        if met > 0 {
            tracing::warn!(met, "ended what an earlier agent left behind");
        }
        let before = folder.read_contact().ok().flatten();
        // Nobody may be pointed at where an earlier agent was.
        folder::remove_file(&folder.contact())?;
        let config = folder.read_config()?;
        let spawner = spawn::Spawner::new(options.runner.clone());
        let spawner = spawner.map_err(|source| AgentError::System {
            what: "start a thread",
            source,
        })?;
        let key = Secret::new(folder.read_key()?);
        let relay = relay(&folder, &config)?;
        let endpoint = bind(&key, &relay, &config, before).await?;
        let contact = door::reached_at(&endpoint, &relay);
        let (moves, asked) = mpsc::channel(1);
        let inner = Inner::new(config, folder, endpoint.clone(), spawner, policy, moves)?;
        let inner = Arc::new(inner);
        let public = key.endpoint();
        let door = Arc::new(door::Door::new(key, door::open(&inner, endpoint)));
        let mover = Arc::clone(&door).serve(Arc::clone(&inner), relay, asked);
        inner.folder.write_contact(&contact)?;
        let means = own_end::Means::find(&inner.config);
        if means.is_none() {
            inner.has_no_means();
        }
        let keeper =
            means.map(|means| own_end::keep(Arc::clone(&inner), means, Arc::new(SystemClock)));
        tracing::info!(lease = %inner.config.lease, ?contact, "the agent listens");
        Ok(Self {
            inner,
            door,
            _mover: AbortOnDropHandle::new(tokio::spawn(mover)),
            _keeper: keeper.map(|keeper| AbortOnDropHandle::new(tokio::spawn(keeper))),
            key: public,
            _lock: lock,
        })
    }

    /// Its public key.
    pub fn endpoint(&self) -> EndpointKey {
        self.key
    }

    /// How to reach it.
    pub async fn contact(&self) -> Contact {
        endpoint::contact(&self.door.endpoint().await)
    }

    /// From now on only so many bytes of models can be written, as if the disk were full then. For tests.
    pub fn limit_writes(&self, bytes: u64) {
        self.inner.blobs.limit_writes(bytes);
    }

    /// Lets requests end for a short while, then ends listeners, workers and connections, in this order.
    pub async fn shutdown(self) {
        let inner = &self.inner;
        inner.setup.stop();
        inner.shells.close().await;
        inner.fabric.drain(Drain::All, DRAIN_MAX).await;
        inner.exposures.close_all().await;
        inner.stages.stop_all().await;
        inner.fabric.shutdown().await;
        self.door.close().await;
        folder::remove_file(&inner.folder.contact()).ok();
    }
}

impl Inner {
    fn new(
        config: Config,
        folder: Folder,
        endpoint: iroh::Endpoint,
        spawner: spawn::Spawner,
        policy: RestartPolicy,
        moves: mpsc::Sender<door::Move>,
    ) -> Result<Self, AgentError> {
        let clock: SharedClock = Arc::new(SystemClock);
        let blobs = Arc::new(blobs::Blobs::new(folder.blobs()));
        let deliveries = Arc::new(deliveries::Deliveries::load(
            folder.clone(),
            config.operator,
            config.lineage,
            Arc::clone(&blobs),
        )?);
        let keep: Arc<deliveries::Deliveries> = Arc::clone(&deliveries);
        let fabric = Fabric::new(
            endpoint,
            FabricConfig {
                operator: config.operator,
                lineage: config.lineage,
                clock: Arc::clone(&clock),
                keep,
            },
        );
        for (pipeline, roster) in deliveries.rosters() {
            if let Err(error) = fabric.set_roster(roster) {
                tracing::warn!(%pipeline, %error, "a roster of before is not used");
            }
        }
        let site = launch::Site::here(folder.root());
        let work = Arc::new(work::Work::new(Arc::clone(&clock)));
        Ok(Self {
            setup: setup::Setup::load(
                folder.clone(),
                site.clone(),
                spawner.clone(),
                Arc::clone(&work),
            ),
            shells: shell::Shells::new(site.clone(), spawner.clone(), Arc::clone(&work)),
            stages: stages::Stages::new(fabric.clone(), folder.clone(), site, spawner, policy),
            exposures: exposures::Exposures::new(
                config.lease.clone(),
                fabric.clone(),
                clock,
                folder.root().join("exposures.json"),
                Arc::clone(&work),
            ),
            limits: Mutex::new(config.own_end.as_ref().map(|own| own.limits)),
            config,
            folder,
            fabric,
            blobs,
            deliveries,
            work,
            moves,
            gpus: OnceCell::new(),
        })
    }
}

/// The relay that the agent was told last.
fn relay(folder: &Folder, config: &Config) -> Result<Option<RelayAccess>, FolderError> {
    if let Some(told) = folder.read_relay()? {
        return Ok(Some(told.into()));
    }
    let of_before = config
        .relay
        .clone()
        .map(|url| RelaySettings { url, ca_pem: None });
    Ok(of_before.map(|settings| RelayAccess {
        settings,
        token: None,
    }))
}

/// Listens where the folder's earlier agent did when that is still free, since its neighbours look for it there.
async fn bind(
    key: &Secret,
    relay: &Option<RelayAccess>,
    config: &Config,
    before: Option<Contact>,
) -> Result<iroh::Endpoint, EndpointError> {
    if let Some(listen) = config.listen {
        // Whoever knows it looks for it where it was.
        let before = before.filter(|_| listen.port() == 0);
        let before = before.and_then(|contact| contact.direct.first().map(SocketAddr::port));
        for port in before.into_iter().chain(config.port) {
            let wished = Some(SocketAddr::new(listen.ip(), port));
            if let Ok(endpoint) = door::listen(key, relay, wished).await {
                return Ok(endpoint);
            }
        }
        return door::listen(key, relay, Some(listen)).await;
    }
    let mut direct = before.into_iter().flat_map(|contact| contact.direct);
    if relay.is_none()
        && let Some(address) = direct.next()
        && let Ok(endpoint) = door::listen(key, relay, Some(address)).await
    {
        return Ok(endpoint);
    }
    door::listen(key, relay, None).await
}

/// Returns when standard input ends. The thread stays until then, whatever else happens.
async fn input_ends() {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
        ended.send(()).ok();
    });
    end.await.ok();
}

/// Runs an agent until it is told to end: the body of `stageline agent --dir DIR`.
///
/// # Errors
/// [`AgentError`] when it cannot run at all.
pub async fn run(options: AgentOptions) -> Result<(), AgentError> {
    let folder = Folder::new(&options.dir);
    log::install(folder.log());
    let system = |what| move |source| AgentError::System { what, source };
    // A terminal that goes away, or Ctrl-C in it, is not ours to obey.
    let _hangup = signal(SignalKind::hangup()).map_err(system("ignore SIGHUP"))?;
    let _interrupt = signal(SignalKind::interrupt()).map_err(system("ignore SIGINT"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("wait for SIGTERM"))?;
    let started = Agent::start(&options).await;
    let agent = started.inspect_err(|error| tracing::error!(%error, "the agent does not start"))?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("told to end"),
        () = input_ends(), if options.until_eof => tracing::info!("whoever started it is gone"),
    }
    agent.shutdown().await;
    tracing::info!("ended");
    Ok(())
}
