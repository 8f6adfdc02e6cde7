//! The simulator where topologies can name it.

use std::time::Duration;

use async_trait::async_trait;
use stageline::ambient::{Clock, FakeClock};
use stageline::core::id::MachineId;
use stageline::core::offer::{Facts, Quote, QuoteId, Requirement};
use stageline::core::resource::{Account, Cause, Outcome};
use stageline::core::unit::Bytes;
use stageline::provider::sim::SimProvider;
use stageline::provider::{Blind, BootLimits, CreateRequest, Machine, Provider, Released, Traits};

/// The simulated account under the name of a kind that topologies may name.
pub(crate) struct Sold {
    pub sim: SimProvider,
    /// Before each create.
    pub sleep: Option<(Duration, FakeClock)>,
    /// As [`Provider::shares_disk`].
    pub shares_disk: bool,
    /// How long a machine with fewer than eight GPUs may take to get ready.
    pub quick: Option<Duration>,
}

#[async_trait]
impl Provider for Sold {
    fn kind(&self) -> &'static str {
        "local"
    }

    fn traits(&self) -> &Traits {
        self.sim.traits()
    }

    fn shares_disk(&self) -> bool {
        self.shares_disk
    }

    fn boot_limits(&self, facts: Option<&Facts>) -> BootLimits {
        let usual = BootLimits::of(self.traits());
        match (self.quick, facts) {
            (Some(quick), Some(facts)) if facts.gpus.len() < 8 => BootLimits {
                acquire_timeout: quick,
                ..usual
            },
            (_, _) => usual,
        }
    }

    async fn search(&self, requirement: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind> {
        self.sim.search(requirement, disk).await
    }

    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind> {
        self.sim.quote(id, disk).await
    }

    async fn account(&self) -> Result<Option<Account>, Blind> {
        self.sim.account().await
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        if let Some((span, clock)) = &self.sleep {
            clock.sleep(*span).await;
        }
        self.sim.create(request).await
    }

    async fn find(&self, key_prefix: &str) -> Result<Vec<Machine>, Blind> {
        self.sim.find(key_prefix).await
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        self.sim.list().await
    }

    async fn dated(&self) -> Result<Option<Vec<Machine>>, Blind> {
        self.sim.dated().await
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        self.sim.describe(id).await
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        self.sim.release(id).await
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        self.sim.logs(id, tail).await
    }
}
