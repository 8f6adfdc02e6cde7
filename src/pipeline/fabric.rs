//! One process's part in every pipeline it knows: rosters, stages, edges, and the way to prompt.
//!
//! What always holds: which stages are here and which edges they have follows from the rosters alone; of each pipeline the
//! newest roster counts, and it was written down before it is acted on; an edge that a new roster still names is left as it
//! is, with its requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use iroh::Endpoint;
use stageline_core::id::{EndpointKey, Lineage, Name, OperatorId, StageId};
use stageline_core::resource::Contact;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::accept::{InferProtocol, StageProtocol};
use super::dial;
use super::frame::failure;
use super::hello::EdgeKind;
use super::infer::{Events, Infer, InferCode, InferError, Request};
use super::link::WorkerLink;
use super::node::{Node, StageHandle};
use super::remote::{Dialler, RemoteInfer};
use super::roster::{KeepRosters, Roster, RosterError, SignedRoster};
use super::stage::{Drain, Place, Timing};
use crate::ambient::{SharedClock, random};

/// Connections whose hello was not looked at yet.
pub(super) const UNAUTHORIZED_MAX: usize = 16;
/// Starts of one peer within a minute; more, and two machines hold its key.
const STARTS_MAX: usize = 3;
/// What "within a minute" means.
const STARTS_WINDOW: Duration = Duration::from_secs(60);

/// What a fabric needs besides its endpoint.
#[derive(Clone)]
pub struct FabricConfig {
    /// Whose rosters are believed.
    pub operator: OperatorId,
    /// Of which life of the topology.
    pub lineage: Lineage,
    /// Deadlines and windows.
    pub clock: SharedClock,
    /// Where rosters are kept.
    pub keep: Arc<dyn KeepRosters>,
}

/// One process's part in every pipeline it knows. Cheap to clone.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

/// What a new roster changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RosterChange {
    /// It replaced an older one, or is the first.
    Taken,
    /// It was here already.
    Same,
}

/// A stage as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageState {
    /// The edges that are up, by the neighbour's stage. With two stages, the one edge to and the one from the other stage
    /// are both in here.
    pub edges: Vec<u32>,
    /// The edges that are not, with the reason.
    pub down: Vec<(u32, String)>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Whether a worker is attached.
    pub worker: bool,
}

pub(super) struct Shared {
    /// Changes when the agent moves to another relay.
    endpoint: RwLock<Endpoint>,
    pub(super) key: EndpointKey,
    pub(super) config: FabricConfig,
    pub(super) timing: Timing,
    /// Random per start of this process.
    pub(super) epoch: u64,
    pub(super) unauthorized: Semaphore,
    pub(super) stop: CancellationToken,
    draining: Mutex<Option<Drain>>,
    known: Mutex<BTreeMap<Name, Known>>,
    /// Told when a roster was taken.
    pub(super) taken: Notify,
    starts: Mutex<BTreeMap<Slot, Starts>>,
}

/// One pipeline.
struct Known {
    signed: SignedRoster,
    roster: Roster,
    nodes: BTreeMap<u32, Arc<Node>>,
    /// Who keeps an edge, by its kind and the stage that it leads from; with the machine that it leads to.
    keepers: BTreeMap<(EdgeKind, u32), (EndpointKey, CancellationToken)>,
}

/// An edge by its far end.
type Slot = (Name, EdgeKind, u32, EndpointKey);

/// How often the process at the far end was started anew.
#[derive(Default)]
struct Starts {
    epoch: Option<u64>,
    at: VecDeque<Duration>,
}

impl Fabric {
    /// A fabric without any pipeline. Its two protocols go into the endpoint's router.
    pub fn new(endpoint: Endpoint, config: FabricConfig) -> Self {
        Self::with_timing(endpoint, config, Timing::default())
    }

    /// The same with other spans of time.
    pub fn with_timing(endpoint: Endpoint, config: FabricConfig, timing: Timing) -> Self {
        let key = EndpointKey(*endpoint.id().as_bytes());
        Self {
            shared: Arc::new(Shared {
                endpoint: RwLock::new(endpoint),
                key,
                config,
                timing,
                epoch: u64::from_le_bytes(random()),
                unauthorized: Semaphore::new(UNAUTHORIZED_MAX),
                stop: CancellationToken::new(),
                draining: Mutex::default(),
                known: Mutex::default(),
                taken: Notify::new(),
                starts: Mutex::default(),
            }),
        }
    }

    /// What accepts edges, for the router under [`STAGE_ALPN`](super::endpoint::STAGE_ALPN).
    pub fn stage_protocol(&self) -> StageProtocol {
        StageProtocol::new(Arc::clone(&self.shared))
    }

    /// What accepts prompts, for the router under [`INFER_ALPN`](super::endpoint::INFER_ALPN).
    pub fn infer_protocol(&self) -> InferProtocol {
        InferProtocol::new(Arc::clone(&self.shared))
    }

    /// Verifies a roster, keeps it, and acts on it: stages that are here get their edges, edges it no longer names are
    /// closed.
    ///
    /// # Errors
    /// [`RosterError`] when it is not believed, older than ours, or could not be kept.
    pub fn set_roster(&self, signed: SignedRoster) -> Result<RosterChange, RosterError> {
        self.shared.set_roster(signed)
    }

    /// The roster of a pipeline, as signed and as read.
    pub fn roster(&self, pipeline: &Name) -> Option<(SignedRoster, Roster)> {
        self.shared.roster(pipeline)
    }

    /// Whether the roster that is here says the same as this one, whatever the revisions are.
    pub fn knows(&self, pipeline: &Name, signed: &SignedRoster) -> bool {
        let config = &self.shared.config;
        let theirs = signed.verify(&config.operator, &config.lineage);
        let ours = self.shared.roster(pipeline);
        matches!((ours, theirs), (Some((_, ours)), Ok(theirs)) if ours.says_the_same(&theirs))
    }

    /// Forgets a pipeline: its edges are closed and its requests fail.
    pub fn forget(&self, pipeline: &Name) {
        if let Some(known) = self.shared.known().remove(pipeline) {
            known.close("the pipeline was taken away");
        }
    }

    /// Gives a stage its worker, in place of an earlier one. The roster must say that the stage runs here.
    ///
    /// # Errors
    /// One sentence, when no roster says so or the worker said nonsense.
    pub fn attach(&self, stage: &StageId, link: WorkerLink) -> Result<StageHandle, String> {
        if link.hidden_size == 0 || link.context == 0 {
            return Err(format!(
                "{stage}: its worker says hidden size {} and context {}; both must be above 0",
                link.hidden_size, link.context
            ));
        }
        let node = self.shared.node(stage).ok_or_else(|| {
            format!("{stage}: no roster says that it runs on this machine; deliver it first")
        })?;
        Ok(node.attach(link))
    }

    /// Takes a stage's worker away; its requests fail with this reason.
    pub fn detach(&self, stage: &StageId, why: &str) {
        if let Some(node) = self.shared.node(stage) {
            node.detach(None, why);
        }
    }

    /// What answers prompts of a pipeline: the entry, here or wherever the roster says at the time of each request.
    pub fn infer(&self, pipeline: &Name) -> Arc<dyn Infer> {
        Arc::new(Prompts {
            shared: Arc::clone(&self.shared),
            pipeline: pipeline.clone(),
            remote: tokio::sync::Mutex::default(),
        })
    }

    /// The same for a pipeline that no roster here names, by its entry's agent.
    pub fn infer_at(
        &self,
        pipeline: &Name,
        entry: EndpointKey,
        contact: &Contact,
    ) -> Arc<dyn Infer> {
        if entry == self.shared.key {
            return self.infer(pipeline);
        }
        let shared = &self.shared;
        Arc::new(RemoteInfer::from(
            Dialler::Fabric(Arc::clone(shared)),
            shared.config.lineage,
            pipeline.clone(),
            entry,
            contact.clone(),
        ))
    }

    /// A stage as this process sees it; none when no roster says that it runs here.
    pub fn status(&self, stage: &StageId) -> Option<StageState> {
        Some(self.shared.node(stage)?.state())
    }

    /// Whether any request is in flight: what counts as work.
    pub fn is_busy(&self) -> bool {
        self.shared.nodes().iter().any(|node| node.in_flight() > 0)
    }

    /// When a worker here last got on with a request, by the boot-time clock. Requests that only failed do not count.
    pub fn worked(&self) -> Option<Duration> {
        let nodes = self.shared.nodes();
        nodes.iter().filter_map(|node| node.worked()).max()
    }

    /// Takes no new request from now on, and returns whether those in flight ended before `timeout`: at its first stages,
    /// or at all.
    pub async fn drain(&self, what: Drain, timeout: Duration) -> bool {
        self.set_draining(Some(what));
        let mut nodes = self.shared.nodes();
        nodes.retain(|node| what == Drain::All || node.place().id.index == 0);
        let all = async {
            for node in &nodes {
                node.idle().await;
            }
        };
        tokio::select! {
            () = all => true,
            () = self.shared.config.clock.sleep(timeout) => false,
        }
    }

    /// Takes requests again.
    pub fn undrain(&self) {
        self.set_draining(None);
    }

    fn set_draining(&self, draining: Option<Drain>) {
        *self.shared.draining.lock().expect("no holder panics") = draining;
        for node in self.shared.nodes() {
            node.set_draining(draining);
        }
    }

    /// Closes every edge; requests in flight fail. The endpoint stays open.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        let known = std::mem::take(&mut *self.shared.known());
        for known in known.values() {
            known.close("its agent is shutting down");
        }
        // Those who carry prompts answer their callers before the endpoint goes.
        tokio::task::yield_now().await;
    }

    /// The endpoint.
    pub fn endpoint(&self) -> Endpoint {
        self.shared.endpoint()
    }

    /// From now on everybody is dialled from this one, which has the same key. Edges of the old one end with it and are
    /// made again.
    pub fn set_endpoint(&self, endpoint: Endpoint) {
        *self.shared.endpoint.write().expect("no holder panics") = endpoint;
    }
}

impl Known {
    fn close(&self, why: &str) {
        for (_, stop) in self.keepers.values() {
            stop.cancel();
        }
        for node in self.nodes.values() {
            node.close(why);
        }
    }
}

impl Shared {
    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint.read().expect("no holder panics").clone()
    }

    pub(super) fn roster(&self, pipeline: &Name) -> Option<(SignedRoster, Roster)> {
        let known = self.known();
        let known = known.get(pipeline)?;
        Some((known.signed.clone(), known.roster.clone()))
    }

    pub(super) fn node(&self, stage: &StageId) -> Option<Arc<Node>> {
        let known = self.known();
        known.get(&stage.pipeline)?.nodes.get(&stage.index).cloned()
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        let known = self.known();
        known
            .values()
            .flat_map(|known| known.nodes.values().cloned())
            .collect()
    }

    pub(super) fn set_roster(
        self: &Arc<Self>,
        signed: SignedRoster,
    ) -> Result<RosterChange, RosterError> {
        let roster = signed.verify(&self.config.operator, &self.config.lineage)?;
        let name = roster.pipeline.clone();
        let mut known = self.known();
        if let Some(ours) = known.get(&name) {
            let (theirs, here) = (roster.revision, ours.roster.revision);
            if theirs < here {
                return Err(RosterError::Stale {
                    pipeline: name,
                    theirs,
                    ours: here,
                });
            }
            if theirs == here {
                return if ours.roster == roster {
                    Ok(RosterChange::Same)
                } else {
                    Err(RosterError::Conflict {
                        pipeline: name,
                        revision: here,
                    })
                };
            }
        }
        self.config
            .keep
            .keep(&name, &signed)
            .map_err(|why| RosterError::Keep {
                pipeline: name.clone(),
                why,
            })?;
        let old = known.remove(&name);
        let moved = old
            .as_ref()
            .map_or_else(Vec::new, |old| roster.moved(&old.roster));
        let mut new = match old {
            Some(old) => Known {
                signed,
                roster,
                ..old
            },
            None => Known {
                signed,
                roster,
                nodes: BTreeMap::new(),
                keepers: BTreeMap::new(),
            },
        };
        self.settle_nodes(&mut new);
        self.settle_keepers(&mut new);
        known.insert(name, new);
        for node in known.values().flat_map(|known| known.nodes.values()) {
            moved.iter().for_each(|peer| node.peer_moved(*peer));
        }
        self.taken.notify_waiters();
        Ok(RosterChange::Taken)
    }

    /// Makes the stages that are here those of the roster.
    fn settle_nodes(&self, known: &mut Known) {
        let roster = &known.roster;
        let num_stages = roster.num_stages();
        known.nodes.retain(|index, node| {
            let place = node.place();
            let here = roster.stage(*index).map(|stage| stage.endpoint) == Some(self.key);
            let same = place.num_stages == num_stages && place.dtype == roster.dtype;
            if !(here && same) {
                node.close("a new roster changed its place");
            }
            here && same
        });
        for index in 0..num_stages {
            if roster.stage(index).map(|stage| stage.endpoint) != Some(self.key) {
                continue;
            }
            let node = known.nodes.entry(index).or_insert_with(|| {
                let place = Place {
                    id: roster.stage_id(index),
                    num_stages,
                    dtype: roster.dtype,
                    epoch: u64::from_le_bytes(random()),
                };
                let clock = Arc::clone(&self.config.clock);
                Node::new(place, roster.limits, self.timing, clock)
            });
            node.set_limits(roster.limits);
            node.set_draining(*self.draining.lock().expect("no holder panics"));
            for side in node.place().sides() {
                let other = node.place().neighbour(side).index;
                if let Some(stage) = roster.stage(other) {
                    node.expect_peer(side, stage.endpoint);
                }
            }
        }
    }

    /// Keeps an edge from each stage that is here to where the roster says, and no other.
    fn settle_keepers(self: &Arc<Self>, known: &mut Known) {
        let mut wanted = BTreeMap::new();
        for (index, node) in &known.nodes {
            for kind in [EdgeKind::Activations, EdgeKind::Tokens] {
                let side = kind.outgoing().filter(|s| node.place().sides().contains(s));
                if let Some(side) = side {
                    let to = node.place().neighbour(side).index;
                    if let Some(stage) = known.roster.stage(to) {
                        wanted.insert((kind, *index), (stage.endpoint, Arc::clone(node)));
                    }
                }
            }
        }
        known.keepers.retain(|key, (peer, stop)| {
            let same = !stop.is_cancelled()
                && wanted
                    .get(key)
                    .is_some_and(|(endpoint, _)| endpoint == peer);
            if !same {
                stop.cancel();
            }
            same
        });
        for ((kind, index), (peer, node)) in wanted {
            known.keepers.entry((kind, index)).or_insert_with(|| {
                let stop = node.stopping(&self.stop);
                let keeper = dial::Keeper {
                    shared: Arc::downgrade(self),
                    node,
                    kind,
                    stop: stop.clone(),
                };
                tokio::spawn(keeper.run());
                (peer, stop)
            });
        }
    }

    /// Notes a start of the process at the far end of an edge. Says whether it is another than before, or that there
    /// were so many that two machines must hold one key.
    pub(super) fn note_start(&self, slot: Slot, epoch: u64) -> Result<bool, String> {
        let now = self.config.clock.boottime();
        let peer = slot.3;
        let mut starts = self
            .starts
            .lock()
            .expect("nothing panics while it holds this lock");
        // Peers come with rosters; those that no roster names any more fall out after their window.
        starts.retain(|other, starts| {
            let recent = starts.at.back().is_some_and(|at| now < *at + STARTS_WINDOW);
            recent || *other == slot || starts.at.is_empty()
        });
        let starts = starts.entry(slot).or_default();
        while starts
            .at
            .front()
            .is_some_and(|at| now >= *at + STARTS_WINDOW)
        {
            starts.at.pop_front();
        }
        let changed = starts.epoch.is_some_and(|old| old != epoch);
        starts.epoch = Some(epoch);
        if changed && starts.at.len() <= STARTS_MAX {
            starts.at.push_back(now);
        }
        if starts.at.len() > STARTS_MAX {
            return Err(format!(
                "two machines hold the key {peer}: it was started anew more than {STARTS_MAX} times within a minute"
            ));
        }
        Ok(changed)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Name, Known>> {
        self.known
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

/// The way to a pipeline's entry as its roster says it.
struct Prompts {
    shared: Arc<Shared>,
    pipeline: Name,
    /// The last way to another machine, so that its connection is used again.
    remote: tokio::sync::Mutex<Option<(EndpointKey, Contact, Arc<RemoteInfer>)>>,
}

#[async_trait]
impl Infer for Prompts {
    /// Known of an entry stage that is here: its worker and its own edges. Elsewhere nobody is asked.
    fn ready(&self) -> Result<(), InferError> {
        let entry = StageId {
            pipeline: self.pipeline.clone(),
            index: 0,
        };
        let Some(node) = self.shared.node(&entry) else {
            return Ok(());
        };
        let state = node.state();
        if !state.worker {
            let message = format!("{entry} has no worker now");
            return Err(failure(InferCode::StageDown, message));
        }
        match state.down.first() {
            Some((stage, why)) => {
                let message = format!(
                    "pipeline.{}: no edge to stage {stage}: {why}",
                    self.pipeline
                );
                Err(failure(InferCode::StageDown, message))
            }
            None => Ok(()),
        }
    }

    async fn infer(&self, request: Request) -> Result<Events, InferError> {
        let entry = StageId {
            pipeline: self.pipeline.clone(),
            index: 0,
        };
        if let Some(node) = self.shared.node(&entry) {
            return node.submit(request);
        }
        let Some((_, roster)) = self.shared.roster(&self.pipeline) else {
            let message = format!("pipeline.{}: no roster of it is here", self.pipeline);
            return Err(failure(InferCode::StageDown, message));
        };
        let stage = roster.stage(0).expect("a roster has a stage");
        let remote = {
            let mut remote = self.remote.lock().await;
            match &*remote {
                Some((endpoint, contact, remote))
                    if *endpoint == stage.endpoint && *contact == stage.contact =>
                {
                    Arc::clone(remote)
                }
                Some(_) | None => {
                    let new = Arc::new(RemoteInfer::from(
                        Dialler::Fabric(Arc::clone(&self.shared)),
                        self.shared.config.lineage,
                        self.pipeline.clone(),
                        stage.endpoint,
                        stage.contact.clone(),
                    ));
                    *remote = Some((stage.endpoint, stage.contact.clone(), Arc::clone(&new)));
                    new
                }
            }
        };
        remote.infer(request).await
    }
}
