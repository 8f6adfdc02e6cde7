//! Doubles for tests and benchmarks: keys of machines that nobody drew, and no secrets at all.

use secrecy::{SecretBox, SecretString};
use stageline_core::id::{
    Attempt, EndpointKey, Fingerprint, Generation, LeaseId, Lineage, OperatorId,
};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::SecretRef;

use super::{Keys, Secrets};
use crate::provider::Boot;

/// Keys that are a function of lease, generation and attempt.
#[derive(Clone, Copy, Debug)]
pub struct TestKeys(pub Lineage);

fn secret(lease: &LeaseId, generation: Generation, attempt: Attempt) -> [u8; 32] {
    Fingerprint::of(format!("{lease} {generation} {attempt}").as_bytes()).0
}

impl Keys for TestKeys {
    fn endpoint(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> EndpointKey {
        let secret = iroh::SecretKey::from_bytes(&secret(lease, generation, attempt));
        EndpointKey(*secret.public().as_bytes())
    }

    fn boot(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> Boot {
        Boot {
            agent_key: SecretBox::new(Box::new(secret(lease, generation, attempt))),
            operator: OperatorId([1; 32]),
            lineage: self.0,
            lease: lease.clone(),
            generation,
            attempt,
            relay: None,
            limits: None,
        }
    }
}

/// Whoever asks for a secret is refused.
#[derive(Clone, Copy, Debug)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn read(&self, _: &SecretRef) -> Result<SecretString, Cause> {
        Err(Cause::new(FailureClass::Config, "there are no secrets"))
    }
}
