//! The setup of a machine whose agent answers and whose facts fit: begun, and waited for, before the machine is ready.
//!
//! What it is told goes over the agent's connection and nowhere else, so that secrets are in no request to a provider. A
//! setup that failed is what the file says to run, and no fault of the machine: no other one is paid for to see it fail again.

use std::time::Duration;

use stageline_core::id::LeaseId;
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt, LeaseSpec, SetupSpec};
use stageline_core::unit::Millis;

use super::boot::{Failure, Glance};
use super::step::{Run, Stop};
use crate::machine::{MachineError, SetupState, SetupStatus, Target};
use crate::provider::Phase;

/// The phase of a machine that runs its setup.
const SETUP_PHASE: &str = "running its setup";

/// How long that may take, where the lease says no `acquire_timeout`.
const SETUP_TIMEOUT: Millis = Millis::minutes(30);

/// The agent keeps the time-out itself, and tells more of it; it is given a moment to do so.
const GRACE: Duration = Duration::from_secs(60);

/// How much longer a machine may take to be ready for its setup, where the lease does not say how long.
pub(super) fn longer(spec: &LeaseSpec) -> Duration {
    match &spec.setup {
        Some(_) => SETUP_TIMEOUT.duration() + GRACE,
        None => Duration::ZERO,
    }
}

/// How long a machine may stay in this phase, when it is the one of its setup.
pub(super) fn within(phase: &Phase, spec: &LeaseSpec) -> Option<Duration> {
    let usual = || SETUP_TIMEOUT.duration() + GRACE;
    let within = spec.acquire_timeout.map(Millis::duration);
    is_setup(phase).then(|| within.unwrap_or_else(usual))
}

/// Whether a machine is held up by its setup.
pub(super) fn is_setup(phase: &Phase) -> bool {
    phase.name == SETUP_PHASE
}

impl Run<'_> {
    /// What is to be said of a machine whose setup is not done; none when it is, or when it has none.
    pub(super) async fn set_up(
        &self,
        lease: &LeaseId,
        spec: &LeaseSpec,
        held: &LeaseReceipt,
        target: &Target,
        known: Option<SetupStatus>,
    ) -> Result<Option<Glance>, Stop> {
        let Some(setup) = &spec.setup else {
            return Ok(None);
        };
        let known = known.filter(|known| known.script == setup.fingerprint());
        let failed = |why: &str, lines| Some(Glance::Failed(failure(lease, held, why, lines)));
        match known.map(|known| known.state) {
            Some(SetupState::Done) => Ok(None),
            Some(SetupState::Failed { why, lines }) => Ok(failed(&why, lines)),
            Some(SetupState::Running) => Ok(Some(Glance::Pending(Phase::new(SETUP_PHASE)))),
            None => match self.begin_setup(spec, setup, target).await? {
                Ok(()) | Err(MachineError::Unreachable { .. }) => {
                    Ok(Some(Glance::Pending(Phase::new(SETUP_PHASE))))
                }
                Err(MachineError::Refused { message, .. }) => Ok(failed(&message, Vec::new())),
            },
        }
    }

    async fn begin_setup(
        &self,
        spec: &LeaseSpec,
        setup: &SetupSpec,
        target: &Target,
    ) -> Result<Result<(), MachineError>, Stop> {
        let machines = self.machines().map_err(Stop::Refused)?;
        let secrets = self.secrets(&setup.secrets).map_err(Stop::Refused)?;
        let timeout = spec.acquire_timeout.unwrap_or(SETUP_TIMEOUT);
        Ok(machines.set_up(target, setup, secrets, timeout).await)
    }
}

fn failure(lease: &LeaseId, held: &LeaseReceipt, why: &str, lines: Vec<String>) -> Failure {
    let machine = &held.machine;
    let message = format!("{lease}: the setup of machine `{machine}` failed: {why}");
    let cause = Cause::new(FailureClass::Config, message).hint(format!(
        "mend `setup` of [lease.{}] by its last lines; the machine is being released, so that it costs nothing",
        lease.name
    ));
    Failure {
        lines,
        ..Failure::for_good(cause)
    }
}
