//! One process's part in every pipeline it knows: rosters, stages, edges, and the way to prompt.

use std::sync::Arc;
use std::time::Duration;

use iroh::Endpoint;
use iroh::endpoint::Connection;
use iroh::protocol::{AcceptError, ProtocolHandler};
use stageline_core::id::{EndpointKey, Lineage, Name, OperatorId, StageId};
use stageline_core::resource::Contact;

use super::infer::{Events, Infer, InferCode, InferError, Request};
use super::link::WorkerLink;
use super::roster::{KeepRosters, Roster, RosterError, SignedRoster};
use crate::ambient::SharedClock;

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
    endpoint: Endpoint,
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
    /// The edges that are up, by the neighbour's stage.
    pub edges: Vec<u32>,
    /// The edges that are not, with the reason.
    pub down: Vec<(u32, String)>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Whether a worker is attached.
    pub worker: bool,
}

/// A stage with its worker. Dropping it changes nothing; [`Fabric::detach`] takes the worker away.
#[derive(Clone)]
pub struct StageHandle {}

impl StageHandle {
    /// Returns, with the reason, when the worker took work and gave no answer for so long that it should be killed.
    /// Never returns otherwise.
    pub async fn hung(&self) -> String {
        std::future::pending().await
    }
}

impl Fabric {
    /// A fabric without any pipeline. Its two protocols go into the endpoint's router.
    pub fn new(endpoint: Endpoint, _config: FabricConfig) -> Self {
        Self { endpoint }
    }

    /// Verifies a roster, keeps it, and acts on it: stages that are here get their edges, edges it no longer names are
    /// closed.
    ///
    /// # Errors
    /// [`RosterError`] when it is not believed, older than ours, or could not be kept.
    pub fn set_roster(&self, _signed: SignedRoster) -> Result<RosterChange, RosterError> {
        Ok(RosterChange::Same)
    }

    /// The roster of a pipeline, as signed and as read.
    pub fn roster(&self, _pipeline: &Name) -> Option<(SignedRoster, Roster)> {
        None
    }

    /// Forgets a pipeline: its edges are closed and its requests fail.
    pub fn forget(&self, _pipeline: &Name) {}

    /// Gives a stage its worker, in place of an earlier one. The roster must say that the stage runs here.
    ///
    /// # Errors
    /// One sentence, when no roster says so.
    pub fn attach(&self, stage: &StageId, _link: WorkerLink) -> Result<StageHandle, String> {
        Err(format!("{stage}: no roster"))
    }

    /// Takes a stage's worker away; its requests fail with this reason.
    pub fn detach(&self, _stage: &StageId, _why: &str) {}

    /// What answers prompts of a pipeline: the entry, here or wherever the roster says at the time of each request.
    pub fn infer(&self, pipeline: &Name) -> Arc<dyn Infer> {
        Arc::new(Nobody(pipeline.clone()))
    }

    /// The same for a pipeline that no roster here names, by its entry's agent.
    pub fn infer_at(
        &self,
        pipeline: &Name,
        _entry: EndpointKey,
        _contact: &Contact,
    ) -> Arc<dyn Infer> {
        Arc::new(Nobody(pipeline.clone()))
    }

    /// A stage as this process sees it; none when no roster says that it runs here.
    pub fn status(&self, _stage: &StageId) -> Option<StageState> {
        None
    }

    /// Whether any request is in flight: what counts as work.
    pub fn is_busy(&self) -> bool {
        false
    }

    /// Takes no new request from now on, and returns whether those in flight ended before `timeout`.
    pub async fn drain(&self, _timeout: Duration) -> bool {
        true
    }

    /// Takes requests again.
    pub fn undrain(&self) {}

    /// Closes every edge; requests in flight fail. The endpoint stays open.
    pub async fn shutdown(&self) {}

    /// What accepts edges, for the router.
    pub fn stage_protocol(&self) -> StageProtocol {
        StageProtocol {}
    }

    /// What accepts prompts, for the router.
    pub fn infer_protocol(&self) -> InferProtocol {
        InferProtocol {}
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Accepts edges.
#[derive(Debug)]
pub struct StageProtocol {}

/// Accepts prompts.
#[derive(Debug)]
pub struct InferProtocol {}

impl ProtocolHandler for StageProtocol {
    async fn accept(&self, _: Connection) -> Result<(), AcceptError> {
        Ok(())
    }
}

impl ProtocolHandler for InferProtocol {
    async fn accept(&self, _: Connection) -> Result<(), AcceptError> {
        Ok(())
    }
}

struct Nobody(Name);

#[async_trait::async_trait]
impl Infer for Nobody {
    async fn infer(&self, _request: Request) -> Result<Events, InferError> {
        Err(InferError {
            code: InferCode::StageDown,
            message: format!("pipeline.{}: no roster here", self.0),
        })
    }
}
