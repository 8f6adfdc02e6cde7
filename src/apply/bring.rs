//! An agent that has to be brought to its machine: by whoever sells it, over a connection whose other end is on record.
//!
//! The key of a host is written down before anything secret is sent there, and so outlives this run: another one is refused from
//! then on.

use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId, MachineId, Name, RequestKey};
use stageline_core::journal::Record;
use stageline_core::resource::{Cause, EngineSpec, FailureClass, LeaseReceipt, Spec};
use stageline_core::topology::{AgentSource, AgentWay};
use stageline_core::unit::Millis;

use super::boot::{Failure, Glance};
use super::step::{Act, Run, Stop};
use crate::provider::{AGENT_PHASE, Boot, Bring, Brought, Phase, Provider, SSH_PHASE};
use crate::ssh::{OwnKey, UPLOAD_MAX, UPLOADS};

/// Between two looks at a worker that is on its way.
const POLL: Duration = Duration::from_millis(200);

/// How long a machine whose agent answers is waited for when it does not let us in.
const UNHEARD_MAX: Millis = Millis::seconds(60);

impl Run<'_> {
    /// What is to be said of a machine whose agent, or the worker that this one lacks, is not there yet; none when it was brought.
    pub(super) async fn bring(
        &self,
        provider: &dyn Provider,
        (lease, held): (&LeaseId, &LeaseReceipt),
        lacks_worker: bool,
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
            lacks_worker,
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

    /// Sends a native worker to a machine whose agent was pushed and said that it has none; false where the agent got there otherwise.
    pub(super) async fn bring_worker(
        &self,
        act: Act<'_>,
        lease: &LeaseId,
    ) -> Result<Result<bool, Cause>, Stop> {
        let Some(held) = self.state(|state| state.lease(lease).cloned()) else {
            return Ok(Ok(false));
        };
        let provider = match self.provider_of(&held) {
            Ok(provider) => provider,
            Err(cause) => return Ok(Err(cause)),
        };
        let way = self.agent_way(provider, lease, (&held.offer, &held.machine));
        if !matches!(way, Some(AgentWay::Ssh | AgentWay::SshOnce)) {
            return Ok(Ok(false));
        }
        let start = self.effects.clock.boottime();
        let mut told = Millis(0);
        // Since when nobody is let in.
        let mut shut = None;
        loop {
            let phase = match self.bring(provider, (lease, &held), true).await? {
                Some(Glance::Pending(phase)) => phase,
                Some(Glance::Failed(failure)) => return Ok(Err(failure.cause)),
                Some(Glance::Ready(_) | Glance::Unlisted | Glance::Blind(_)) | None => {
                    return Ok(Ok(true));
                }
            };
            let waited = self.since(start);
            shut = shut_since(shut, &phase, waited);
            if phase.name == SSH_PHASE && is_unheard(shut, waited) {
                let message = format!("{lease}: no worker could be sent there: {phase}");
                return Ok(Err(Cause::new(FailureClass::Unknown, message)
                    .hint("see that its SSH server answers, and run apply again")));
            }
            if waited >= told {
                told = Millis(waited.0 + 1000);
                let (address, verb) = (act.step.address.clone(), act.step.verb);
                let what = phase.to_string();
                self.emit(Event::Waiting {
                    address,
                    verb,
                    what,
                    waited,
                });
            }
            self.pause(POLL).await?;
        }
    }

    fn provider_of(&self, held: &LeaseReceipt) -> Result<&dyn Provider, Cause> {
        let providers = &self.effects.providers;
        let provider = providers.get(&held.provider, &held.provider_kind);
        provider.map(|provider| provider.as_ref())
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

    /// How the agent gets there, by the offer that was taken. A plan that leaves the lease as it is does not say it.
    fn agent_of(&self, lease: &LeaseId, offer: &Name) -> Option<AgentSource> {
        let address = Address::Lease(lease.clone());
        let of = |spec: &Spec| {
            let Spec::Lease(spec) = spec else {
                return None;
            };
            let mut terms = spec.terms.iter();
            terms.find(|terms| terms.offer == *offer)?.agent.clone()
        };
        match self.spec(&address) {
            Ok(spec) => of(spec),
            Err(_) => self.state(|state| of(state.resources.get(&address)?.spec.as_ref()?)),
        }
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

/// Since when nobody is let in: an upload that goes on shows that somebody was.
fn shut_since(before: Option<Millis>, phase: &Phase, waited: Millis) -> Option<Millis> {
    match phase.name.as_str() {
        SSH_PHASE => before.or(Some(waited)),
        _ if is_upload(phase) => None,
        _ => before,
    }
}

/// Whether that is for too long, or uploads broke off for as long as one may take.
fn is_unheard(shut: Option<Millis>, waited: Millis) -> bool {
    let long = shut.is_some_and(|shut| waited.0.saturating_sub(shut.0) >= UNHEARD_MAX.0);
    long || waited.duration() >= UPLOAD_MAX
}

/// Whether what goes there goes over this computer's line: to another machine it would take as long.
pub(super) fn is_upload(phase: &Phase) -> bool {
    UPLOADS.contains(&phase.name.as_str())
}

/// What to do where that takes too long.
pub(super) const SLOW_LINE: &str = "it is sent over this computer's line, and to another machine it would take as long: give it longer by \
     `acquire_timeout`, run apply where the line is faster, or let machines fetch it by `agent = { url, sha256 }`; the machine is being \
     released, and no other one is tried";

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_after_a_long_upload_is_tried_again_for_a_while() {
        let seconds = Millis::seconds;
        let mut shut = None;
        let mut sees = |phase: &str, at: u64| {
            shut = shut_since(shut, &Phase::new(phase), seconds(at));
            phase == SSH_PHASE && is_unheard(shut, seconds(at))
        };
        assert!(!sees(SSH_PHASE, 0));
        assert!(!sees(SSH_PHASE, 59));
        assert!(!sees(UPLOADS[1], 59));
        // Ten minutes on, the connection breaks off.
        assert!(!sees(SSH_PHASE, 600));
        assert!(!sees("its worker is on its way", 630));
        assert!(!sees(SSH_PHASE, 631));
        assert!(sees(SSH_PHASE, 660));
        // One that breaks off again and again ends, too.
        assert!(!sees(UPLOADS[1], 1790));
        assert!(sees(SSH_PHASE, 1800));
    }

    #[test]
    fn an_upload_that_takes_too_long_is_told_with_what_helps() {
        let phase = Phase::new(UPLOADS[0]).at(40);
        assert!(is_upload(&phase) && why_not_heard(&phase).is_none());
        assert!(!is_upload(&Phase::new(SSH_PHASE)));
    }
}
