//! An agent that has to be brought to its machine: by whoever sells it, over a connection whose other end is on record.
//!
//! The key of a host is written down before anything secret is sent there, and so outlives this run: another one is refused from
//! then on.

use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId, MachineId, Name, RequestKey};
use stageline_core::journal::Record;
use stageline_core::resource::{Cause, EngineSpec, FailureClass, LeaseReceipt, Spec};
use stageline_core::topology::{AgentSource, AgentWay};

use super::boot::{Failure, Glance};
use super::step::{Run, Stop};
use crate::provider::{AGENT_PHASE, Boot, Bring, Brought, Phase, Provider, SSH_PHASE};
use crate::ssh::OwnKey;

impl Run<'_> {
    /// What is to be said of a machine whose agent is not there yet; none when it was brought.
    pub(super) async fn bring(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        held: &LeaseReceipt,
    ) -> Result<Option<Glance>, Stop> {
        let (generation, attempt) = held.request_key.try_of();
        let keys = self.keys().map_err(Stop::Refused)?;
        let host_keys = self.state(|state| state.host_keys.clone());
        let limits = self.state(|state| state.limits_in_force(lease));
        let what = Bring {
            boot: Boot {
                limits: limits.filter(|_| provider.traits().self_destroy),
                ..keys.boot(&self.made_for(lease), generation, attempt)
            },
            agent: self.agent_of(lease, &held.offer),
            native: self.runs_native(lease),
            host_keys: &host_keys,
        };
        match provider.bring(&held.machine, what).await {
            Ok(Brought::There) => Ok(None),
            Ok(Brought::Pending(phase)) => Ok(Some(Glance::Pending(phase))),
            Ok(Brought::Met {
                host,
                key,
                fingerprint,
            }) => {
                let at = self.effects.clock.now();
                let record = Record::HostKey {
                    host: host.clone(),
                    key,
                    at,
                };
                self.journal.append(vec![record]).await?;
                self.emit(Event::HostMet {
                    lease: lease.clone(),
                    host: host.clone(),
                    fingerprint,
                });
                Ok(Some(Glance::Pending(Phase::new(format!(
                    "the key of {host} is on record"
                )))))
            }
            Err(mut cause) => {
                cause.message = format!("{lease}: {}", cause.message);
                Ok(Some(Glance::Failed(Failure::of_machine(cause))))
            }
        }
    }

    /// Gives whoever brought an agent to a machine the key to end it with, where the identity is at hand: a release needs none.
    pub(super) fn lets_in(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        (machine, key): (&MachineId, &RequestKey),
    ) {
        let Ok(keys) = self.keys() else { return };
        if provider.brings() {
            let (generation, attempt) = key.try_of();
            let boot = keys.boot(&self.made_for(lease), generation, attempt);
            provider.holds_key(machine, OwnKey::of(&boot.agent_key));
        }
    }

    /// How the agent gets there, by the offer that was taken.
    fn agent_of(&self, lease: &LeaseId, offer: &Name) -> Option<AgentSource> {
        let Ok(Spec::Lease(spec)) = self.spec(&Address::Lease(lease.clone())) else {
            return None;
        };
        let mut terms = spec.terms.iter();
        terms.find(|terms| terms.offer == *offer)?.agent.clone()
    }

    /// Which way that is, for people.
    pub(super) fn agent_way(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        (offer, machine): (&Name, &MachineId),
    ) -> Option<AgentWay> {
        provider.agent_way(machine, self.agent_of(lease, offer).as_ref())
    }

    /// Whether this plan runs a native worker on it.
    fn runs_native(&self, lease: &LeaseId) -> bool {
        let specs = self
            .plan
            .changes
            .iter()
            .filter_map(|change| change.spec.as_ref());
        specs.into_iter().any(|spec| match spec {
            Spec::Stage(stage) => stage.on == *lease && stage.engine == EngineSpec::Native,
            Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_) | Spec::Exposure(_) => false,
        })
    }
}

/// No other host would be let in either: it is the user's to mend, and no host's fault.
pub(super) fn not_pulled(lease: &LeaseId, held: &LeaseReceipt, why: &str) -> Failure {
    let message = format!("{lease}: machine `{}` failed: {why}", held.machine);
    Failure::for_good(Cause::new(FailureClass::Config, message).hint(format!(
        "see that `image` of offer `{}` is spelled right, and, where it is private, that `registry` there has a login that may \
         pull it; the machine is being released, and no other one is tried",
        held.offer
    )))
}

/// What may be in the way of a machine that runs and whose agent is not heard.
pub(super) fn why_not_heard(phase: &Phase) -> Option<&'static str> {
    match phase.name.as_str() {
        AGENT_PHASE => Some(
            "it runs and nothing is heard of its agent: its last lines say whether that runs; if it does, let its UDP port through to it, or use a [relay]",
        ),
        SSH_PHASE => Some(
            "it runs and does not let stageline in; nothing secret was sent to it, and it is released. Where others fail alike: may this network reach that port, and does the image run an SSH server?",
        ),
        _ => None,
    }
}
