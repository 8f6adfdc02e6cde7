//! Our hands on simulated machines: agents that keep what they are told in maps.
//!
//! An agent is found by its public key and answers while its machine is up in the [`World`], so a released machine
//! answers nobody. The agents are strict where the real ones are: no stage without its delivery, no roster that is older
//! than the one they have. Faults and hooks are those of the account that the machine belongs to.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each place looks for the few faults that concern it"
)]

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use secrecy::SecretString;
use stageline_core::id::{EndpointKey, Fingerprint, JournalNumber, LeaseId, Name, StageId};
use stageline_core::resource::{
    ExposureSpec, LeaseLimits, PipelineSpec, SetupSpec, Spec, StageSpec, ViaSpec,
};
use stageline_core::unit::Millis;

use super::{
    AgentStatus, Answer, Delivery, LogSource, MachineError, Machines, SetupState, SetupStatus,
    StageStatus, Target, WorkerState, share_fingerprint,
};
use crate::pipeline::Drain;
use crate::provider::sim::{Fault, SimMachine, Verb, World};

/// What a simulated agent has and does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentState {
    /// Delivered shares and the roster's revision, by pipeline.
    pub deliveries: BTreeMap<Name, (Fingerprint, JournalNumber)>,
    /// The machines that the last roster named.
    pub peers: BTreeMap<LeaseId, EndpointKey>,
    /// Workers.
    pub stages: BTreeMap<StageId, StageStatus>,
    /// Listeners.
    pub exposures: BTreeMap<Name, (Fingerprint, String)>,
    /// Takes no new requests.
    pub draining: bool,
    /// For how long nothing counted as work; none is not told.
    pub idle: Option<Millis>,
    /// The limits that it keeps: those of its boot, or the last that it was told.
    pub limits: Option<LeaseLimits>,
    /// What it ran before it was ready: all that it is asked to ends well at once.
    pub setup: Option<SetupStatus>,
}

/// Our hands on all machines of a world.
#[derive(Clone)]
pub struct SimMachines {
    world: World,
}

impl SimMachines {
    pub(crate) fn new(world: World) -> Self {
        Self { world }
    }

    /// One call to an agent: `effect` runs on its state when it answers.
    async fn ask<T>(
        &self,
        target: &Target,
        verb: Verb,
        subject: &str,
        effect: impl FnOnce(&mut SimMachine, &[Fault]) -> Result<T, MachineError> + Send,
    ) -> Result<T, MachineError>
    where
        T: Send,
    {
        let unreachable = |why: &str| MachineError::Unreachable {
            lease: target.lease.clone(),
            why: why.to_owned(),
        };
        let account = {
            let state = self.world.lock();
            let id = state.by_endpoint.get(&target.endpoint);
            let machine = id.and_then(|id| state.machines.get(id));
            machine.map(|machine| machine.account.clone())
        };
        let Some(account) = account else {
            return Err(unreachable("nobody has that key"));
        };
        let who = target.lease.to_string();
        let begun = self.world.begin(&account, who, verb, subject).await;
        let mut answer = self.perform(target, &begun.faults, effect);
        if begun.faults.contains(&Fault::CutAfterEffect) {
            answer = Err(unreachable("the connection broke"));
        }
        self.world.end(begun, answer).await
    }

    fn perform<T>(
        &self,
        target: &Target,
        faults: &[Fault],
        effect: impl FnOnce(&mut SimMachine, &[Fault]) -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        let now = self.world.clock.boottime();
        let mut state = self.world.lock();
        let id = state.by_endpoint.get(&target.endpoint).cloned();
        let machine = id.and_then(|id| state.machines.get_mut(&id));
        let machine = machine.filter(|m| m.answers(now) && !faults.contains(&Fault::Unreachable));
        let Some(machine) = machine else {
            return Err(MachineError::Unreachable {
                lease: target.lease.clone(),
                why: "no answer before the deadline".to_owned(),
            });
        };
        for fault in faults {
            if let Fault::AgentRefuses(code, message) = fault {
                return Err(refused(target, code, message));
            }
        }
        effect(machine, faults)
    }

    /// Why a pipeline does not answer, if it does not.
    fn gap(&self, pipeline: &Name, spec: &PipelineSpec) -> Option<String> {
        let now = self.world.clock.boottime();
        let state = self.world.lock();
        for (index, lease) in (0..).zip(&spec.stages) {
            let stage = StageId {
                pipeline: pipeline.clone(),
                index,
            };
            let up = state.machines.values().any(|machine| {
                let worker = machine.agent.stages.get(&stage).map(|s| &s.worker);
                machine.lease.as_ref() == Some(lease)
                    && machine.answers(now)
                    && matches!(worker, Some(WorkerState::Ready { .. }))
            });
            if !up {
                return Some(format!("{stage} is not up on {lease}"));
            }
        }
        None
    }
}

fn refused(target: &Target, code: &str, message: &str) -> MachineError {
    MachineError::Refused {
        lease: target.lease.clone(),
        code: code.to_owned(),
        message: message.to_owned(),
        hint: None,
    }
}

#[async_trait]
impl Machines for SimMachines {
    async fn at_work(&self, _: &Target) -> Result<(), MachineError> {
        Ok(())
    }

    async fn status(&self, target: &Target) -> Result<AgentStatus, MachineError> {
        self.ask(target, Verb::Status, "", |machine, _| {
            let agent = &machine.agent;
            Ok(AgentStatus {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                facts: machine.measured.clone(),
                deliveries: agent.deliveries.clone(),
                stages: agent.stages.clone(),
                exposures: agent.exposures.clone(),
                idle: agent.idle,
                limits: agent.limits,
                setup: agent.setup.clone(),
            })
        })
        .await
    }

    async fn deliver(&self, target: &Target, delivery: Delivery<'_>) -> Result<(), MachineError> {
        let mut shares = BTreeMap::new();
        for (pipeline, share) in &delivery.spec.pipelines {
            let stages = share.roster.iter().map(|line| &line.lease);
            let mut named = stages.chain(&share.prompt_from);
            if let Some(missing) = named.find(|lease| !delivery.peers.contains_key(*lease)) {
                let message = format!("the roster of {pipeline} names {missing}, who is unknown");
                return Err(refused(target, "roster-incomplete", &message));
            }
            shares.insert(
                pipeline.clone(),
                (share_fingerprint(share), delivery.revision),
            );
            let bytes = share.shard.as_ref().map_or(0, |shard| shard.bytes.0);
            (delivery.progress)(bytes, bytes);
        }
        let peers = delivery.peers.iter();
        let peers = peers.map(|(lease, peer)| (lease.clone(), peer.endpoint));
        let peers = peers.collect();
        let subject = delivery.revision.to_string();
        self.ask(target, Verb::Deliver, &subject, |machine, _| {
            let agent = &mut machine.agent;
            for (pipeline, (_, revision)) in &shares {
                let known = agent.deliveries.get(pipeline);
                if known.is_some_and(|(_, known)| known > revision) {
                    let message = format!("the roster of {pipeline} is older than the known one");
                    return Err(refused(target, "roster-old", &message));
                }
            }
            agent.deliveries = shares;
            agent.peers = peers;
            Ok(())
        })
        .await
    }

    async fn start(
        &self,
        target: &Target,
        stage: &StageId,
        spec: &StageSpec,
        _secrets: BTreeMap<String, SecretString>,
    ) -> Result<(), MachineError> {
        let digest = Spec::Stage(Box::new(spec.clone())).fingerprint();
        self.ask(
            target,
            Verb::Start,
            &stage.to_string(),
            |machine, faults| {
                let agent = &mut machine.agent;
                if !agent.deliveries.contains_key(&stage.pipeline) {
                    let message = format!("{stage}: nothing was delivered for its pipeline");
                    return Err(refused(target, "not-delivered", &message));
                }
                let failure = faults.iter().find_map(|fault| match fault {
                    Fault::WorkerFails(why) => Some(why.clone()),
                    _ => None,
                });
                let worker = match &failure {
                    Some(why) => WorkerState::Failed { why: why.clone() },
                    None => WorkerState::Ready {
                        pid: 1000 + stage.index,
                    },
                };
                let status = StageStatus {
                    spec: digest,
                    worker,
                    edges: vec![],
                    in_flight: 0,
                };
                agent.stages.insert(stage.clone(), status);
                agent.draining = false;
                failure.map_or(Ok(()), |why| Err(refused(target, "worker-failed", &why)))
            },
        )
        .await
    }

    async fn stop(&self, target: &Target, stage: &StageId) -> Result<(), MachineError> {
        self.ask(target, Verb::Stop, &stage.to_string(), |machine, _| {
            machine.agent.stages.remove(stage);
            Ok(())
        })
        .await
    }

    async fn check(
        &self,
        entry: &Target,
        pipeline: &Name,
        spec: &PipelineSpec,
    ) -> Result<Answer, MachineError> {
        let gap = self.gap(pipeline, spec);
        self.ask(entry, Verb::Check, pipeline.as_str(), |machine, faults| {
            if machine.agent.draining {
                return Err(refused(entry, "draining", "the machine is being drained"));
            }
            if let Some(gap) = gap {
                return Err(refused(entry, "stage-down", &gap));
            }
            let wrong = faults.iter().find_map(|fault| match fault {
                Fault::WrongAnswer(text) => Some(text.clone()),
                _ => None,
            });
            let text = wrong.or_else(|| spec.expect.clone());
            Ok(Answer {
                text: text.unwrap_or_else(|| format!("simulated answer to: {}", spec.prompt)),
                took: Millis(20),
            })
        })
        .await
    }

    async fn expose(
        &self,
        target: &Target,
        exposure: &Name,
        spec: &ExposureSpec,
        _peers: BTreeMap<Name, Target>,
        _api_key: Option<SecretString>,
    ) -> Result<String, MachineError> {
        let digest = Spec::Exposure(Box::new(spec.clone())).fingerprint();
        self.ask(target, Verb::Expose, exposure.as_str(), |machine, _| {
            let ViaSpec::Loopback { listen, .. } = &spec.via;
            let agent = &mut machine.agent;
            let url = match agent.exposures.get(exposure) {
                Some((known, url)) if *known == digest => url.clone(),
                Some(_) | None if listen.port() == 0 => {
                    let name = Fingerprint::of(exposure.as_str().as_bytes());
                    let port = 20_000 + u16::from(name.0[0]) * 64 + u16::from(name.0[1] % 64);
                    format!("http://{}:{port}/v1", listen.ip())
                }
                Some(_) | None => format!("http://{listen}/v1"),
            };
            agent
                .exposures
                .insert(exposure.clone(), (digest, url.clone()));
            Ok(url)
        })
        .await
    }

    async fn unexpose(&self, target: &Target, exposure: &Name) -> Result<(), MachineError> {
        self.ask(target, Verb::Unexpose, exposure.as_str(), |machine, _| {
            machine.agent.exposures.remove(exposure);
            Ok(())
        })
        .await
    }

    async fn drain(
        &self,
        target: &Target,
        _what: Drain,
        _timeout: Millis,
    ) -> Result<(), MachineError> {
        self.ask(target, Verb::Drain, "", |machine, _| {
            machine.agent.draining = true;
            Ok(())
        })
        .await
    }

    async fn limit(&self, target: &Target, limits: LeaseLimits) -> Result<(), MachineError> {
        self.ask(target, Verb::Limit, "", |machine, _| {
            machine.agent.limits = Some(limits);
            Ok(())
        })
        .await
    }

    async fn set_up(
        &self,
        target: &Target,
        setup: &SetupSpec,
        _secrets: BTreeMap<String, SecretString>,
        _timeout: Millis,
    ) -> Result<(), MachineError> {
        let script = setup.fingerprint();
        self.ask(target, Verb::SetUp, "", |machine, _| {
            machine.agent.setup.get_or_insert(SetupStatus {
                script,
                state: SetupState::Done,
            });
            Ok(())
        })
        .await
    }

    async fn logs(
        &self,
        target: &Target,
        source: LogSource,
        tail: usize,
        _follow: bool,
    ) -> Result<BoxStream<'static, Result<Bytes, MachineError>>, MachineError> {
        let subject = match &source {
            LogSource::Agent => "agent".to_owned(),
            LogSource::Stage(stage) => stage.to_string(),
        };
        let text = format!("{subject}: simulated output\n");
        let bytes = self
            .ask(target, Verb::AgentLogs, &subject, |_, _| {
                let bytes = Bytes::from(text);
                Ok(bytes.slice(bytes.len().saturating_sub(tail)..))
            })
            .await?;
        Ok(futures::stream::iter([Ok(bytes)]).boxed())
    }
}
