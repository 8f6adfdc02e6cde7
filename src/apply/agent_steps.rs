//! Steps that talk to agents: deliver, start, stop, check, expose, unexpose.
//!
//! All of their calls may be repeated, so an agent that does not answer is asked again for a while, and what is still
//! open then is simply done by the next run.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use secrecy::SecretString;
use stageline_core::event::Event;
use stageline_core::id::{Address, Generation, LeaseId, Name, StageId};
use stageline_core::resource::{
    Cause, DeliveryReceipt, DeliverySpec, EngineSpec, ExposureReceipt, ExposureSpec, FailureClass,
    LeaseLimits, Outcome, PipelineReceipt, PipelineSpec, Receipt, Spec, StageReceipt, StageSpec,
    ViaSpec,
};
use stageline_core::topology::SecretRef;
use stageline_core::unit::Millis;

use super::Keys;
use super::step::{Act, Made, Run, Stop, broken, lease_of};
use crate::machine::{Delivery, MachineError, Target};
use crate::ssh::BUILD_ONE;

/// How long an agent that does not answer is asked again.
const UNREACHABLE_AFTER: Millis = Millis::seconds(30);

/// First pause between two tries; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(250);

/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Longest beginning of a check's answer that is recorded, in characters.
const ANSWER_MAX: usize = 200;

/// By what an agent says that it has no program for a worker.
const WORKER_MISSING: &str = "worker-missing";

/// Ends a call as refused when something that it needs is not there.
macro_rules! refuse {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(cause) => return Ok(Outcome::Refused(cause)),
        }
    };
}

impl<'a> Run<'a> {
    pub(super) async fn deliver(&self, act: Act<'a>) -> Result<(), Stop> {
        let lease = lease_of(act.step)?;
        let spec = self.delivery_spec(&act.step.address)?;
        self.protocol(act, |revision| async move {
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(lease));
            let mut peers = BTreeMap::new();
            for other in named(spec) {
                if !peers.contains_key(other) {
                    peers.insert(other.clone(), refuse!(self.target(other)));
                }
            }
            let tokens = refuse!(self.tokens(spec));
            let events = &self.effects.events;
            let progress = |done, total| {
                let (address, what) = (act.step.address.clone(), "bytes".to_owned());
                events(Event::Progress {
                    address,
                    done,
                    total,
                    what,
                });
            };
            let done = self
                .ask(|| {
                    let peers = peers.clone();
                    let delivery = Delivery {
                        spec,
                        revision,
                        peers,
                        tokens: &tokens,
                        progress: &progress,
                    };
                    machines.deliver(&target, delivery)
                })
                .await?;
            let rosters = spec
                .pipelines
                .keys()
                .map(|name| (name.clone(), revision))
                .collect();
            Ok(made(done, |()| {
                let keys = peers
                    .iter()
                    .map(|(lease, peer)| (lease.clone(), peer.endpoint));
                let receipt = DeliveryReceipt {
                    endpoint: target.endpoint,
                    rosters,
                    peers: keys.collect(),
                };
                // What was really sent is recorded, also when the plan was drafted without the token at hand.
                let mut sent = spec.clone();
                if let Some(relay) = &mut sent.relay {
                    let keys = self.effects.keys.as_deref();
                    relay.token_digest = keys.and_then(Keys::relay_token_digest);
                }
                (
                    Spec::Delivery(Box::new(sent)),
                    Receipt::Delivery(Box::new(receipt)),
                )
            }))
        })
        .await
    }

    pub(super) async fn start_stage(&self, act: Act<'a>) -> Result<(), Stop> {
        let stage = stage_of(act)?;
        let spec = self.stage_spec(&act.step.address)?;
        self.protocol(act, |_| async move {
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(&spec.on));
            let secrets = refuse!(self.secrets(&spec.secrets));
            let start = || machines.start(&target, stage, spec, secrets.clone());
            let mut done = self.answer(start).await?;
            if lacks_worker(spec, &done) && refuse!(self.bring_worker(act, &spec.on).await?) {
                done = self.answer(start).await?.map_err(none_to_send);
            }
            Ok(made(done.map_err(cause), |()| {
                let whole = Spec::Stage(Box::new(spec.clone()));
                let receipt = StageReceipt {
                    endpoint: target.endpoint,
                    spec: whole.fingerprint(),
                };
                (whole, Receipt::Stage(Box::new(receipt)))
            }))
        })
        .await
    }

    pub(super) async fn stop_stage(&self, act: Act<'a>) -> Result<(), Stop> {
        let stage = stage_of(act)?;
        let on = self.recorded_on(&act.step.address);
        self.protocol(act, |_| async move {
            // A stage that was never started has nothing to stop.
            let Some(on) = on else {
                return Ok(Outcome::Done(Made::default()));
            };
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(&on));
            let done = self.ask(|| machines.stop(&target, stage)).await?;
            Ok(gone(done))
        })
        .await
    }

    pub(super) async fn check(&self, act: Act<'a>) -> Result<(), Stop> {
        let (name, spec) = self.pipeline_spec(&act.step.address)?;
        self.protocol(act, |_| async move {
            let Some(entry) = spec.stages.first() else {
                return Ok(Outcome::Refused(broken(format!(
                    "{} has no stage",
                    act.step.address
                ))));
            };
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(entry));
            let answer = self.ask(|| machines.check(&target, name, spec)).await?;
            let answer = answer.and_then(|answer| match &spec.expect {
                Some(expect) if !answer.text.contains(expect.as_str()) => Err(Cause::new(
                    FailureClass::Config,
                    format!(
                        "the check answered {:?}, which does not contain {expect:?}",
                        head(&answer.text)
                    ),
                )
                .hint(format!(
                    "mend check.expect of [pipeline.{name}], or the model"
                ))),
                Some(_) | None => Ok(answer),
            });
            Ok(made(answer, |answer| {
                let receipt = PipelineReceipt {
                    answer: head(&answer.text),
                    took: answer.took,
                };
                (
                    Spec::Pipeline(Box::new(spec.clone())),
                    Receipt::Pipeline(Box::new(receipt)),
                )
            }))
        })
        .await
    }

    pub(super) async fn expose(&self, act: Act<'a>) -> Result<(), Stop> {
        let (name, spec) = self.exposure_spec(&act.step.address)?;
        self.protocol(act, |_| async move {
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(&spec.at));
            let ViaSpec::Loopback { api_key, .. } = &spec.via;
            let api_key = match api_key {
                Some(reference) => Some(refuse!(self.effects.secrets.read(reference))),
                None => None,
            };
            let mut peers: BTreeMap<Name, Target> = BTreeMap::new();
            for (pipeline, entry) in &spec.pipelines {
                peers.insert(pipeline.clone(), refuse!(self.target(entry)));
            }
            let url = self
                .ask(|| {
                    let (peers, api_key) = (peers.clone(), api_key.clone());
                    machines.expose(&target, name, spec, peers, api_key)
                })
                .await?;
            Ok(made(url, |url| {
                let keys = peers
                    .values()
                    .map(|peer| (peer.lease.clone(), peer.endpoint));
                let receipt = ExposureReceipt {
                    endpoint: target.endpoint,
                    url,
                    peers: keys.collect(),
                };
                (
                    Spec::Exposure(Box::new(spec.clone())),
                    Receipt::Exposure(Box::new(receipt)),
                )
            }))
        })
        .await
    }

    pub(super) async fn unexpose(&self, act: Act<'a>) -> Result<(), Stop> {
        let Address::Exposure(name) = &act.step.address else {
            return Err(Stop::Refused(broken(format!(
                "{} is no exposure",
                act.step.address
            ))));
        };
        let at = self.recorded_on(&act.step.address);
        self.protocol(act, |_| async move {
            let Some(at) = at else {
                return Ok(Outcome::Done(Made::default()));
            };
            let machines = refuse!(self.machines());
            let target = refuse!(self.target(&at));
            let done = self.ask(|| machines.unexpose(&target, name)).await?;
            Ok(gone(done))
        })
        .await
    }

    /// What a lease is now. A machine that ends itself by its limits is told others before they are recorded.
    pub(super) async fn record(&self, act: Act<'a>) -> Result<(), Stop> {
        let spec = self.spec(&act.step.address)?;
        let seen = self.as_seen(act);
        let moved = seen.as_ref().and_then(|seen| seen.ready.clone());
        let made = Made {
            spec: Some(spec.clone()),
            receipt: seen.map(|seen| Receipt::Lease(Box::new(seen))),
            dated: None,
        };
        let (Spec::Lease(wanted), Some(lease)) = (spec, act.step.address.lease()) else {
            return self.done(act, made).await;
        };
        let limits = LeaseLimits::of(wanted);
        let same = self.state(|state| state.limits_in_force(lease) == Some(limits));
        if same || !self.ends_itself(lease, act.step.generation) {
            return self.done(act, made).await;
        }
        self.protocol(act, |_| async move {
            let machines = refuse!(self.machines());
            let mut target = refuse!(self.target(lease));
            if let Some(moved) = moved {
                target.contact = target.contact.or_at(&moved.contact);
            }
            let told = self.ask(|| machines.limit(&target, limits)).await?;
            Ok(match told {
                Ok(()) => Outcome::Done(made),
                Err(cause) => Outcome::Refused(cause),
            })
        })
        .await
    }

    /// Whether its machine ends itself, by what its provider declares.
    fn ends_itself(&self, lease: &LeaseId, generation: Generation) -> bool {
        let Some(held) = self.held(lease, generation) else {
            return false;
        };
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        provider.is_ok_and(|provider| provider.traits().self_destroy)
    }

    /// Asks an agent until it answers, refuses, or is given up.
    pub(super) async fn ask<T, F>(&self, call: impl FnMut() -> F) -> Result<Result<T, Cause>, Stop>
    where
        F: Future<Output = Result<T, MachineError>>,
    {
        Ok(self.answer(call).await?.map_err(cause))
    }

    /// The same, with the code of a refusal.
    async fn answer<T, F>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<Result<T, MachineError>, Stop>
    where
        F: Future<Output = Result<T, MachineError>>,
    {
        let start = self.effects.clock.boottime();
        let mut pause = PAUSE;
        loop {
            let answer = tokio::select! {
                biased;
                () = self.halt.cancelled() => return Err(Stop::Cut),
                answer = call() => answer,
            };
            let error = match answer {
                Ok(value) => return Ok(Ok(value)),
                Err(error) => error,
            };
            match error {
                MachineError::Refused { .. } => return Ok(Err(error)),
                MachineError::Unreachable { .. } if self.since(start) >= UNREACHABLE_AFTER => {
                    return Ok(Err(error));
                }
                MachineError::Unreachable { .. } => self.pause(pause).await?,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What the servers of models ask for.
    fn tokens(&self, spec: &DeliverySpec) -> Result<BTreeMap<Name, SecretString>, Cause> {
        let asked = spec.pipelines.iter().filter_map(|(name, share)| {
            let token = share.shard.as_ref()?.model.token.as_ref()?;
            Some((name, token))
        });
        let read =
            |(name, token): (&Name, _)| Ok((name.clone(), self.effects.secrets.read(token)?));
        asked.map(read).collect()
    }

    pub(super) fn secrets(
        &self,
        wanted: &BTreeMap<String, SecretRef>,
    ) -> Result<BTreeMap<String, SecretString>, Cause> {
        let read = |(name, reference): (&String, &SecretRef)| {
            Ok((name.clone(), self.effects.secrets.read(reference)?))
        };
        wanted.iter().map(read).collect()
    }

    fn delivery_spec(&self, address: &Address) -> Result<&'a DeliverySpec, Stop> {
        match self.spec(address)? {
            Spec::Delivery(spec) => Ok(spec),
            Spec::Lease(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_) => {
                Err(mismatch(address))
            }
        }
    }

    fn stage_spec(&self, address: &Address) -> Result<&'a StageSpec, Stop> {
        match self.spec(address)? {
            Spec::Stage(spec) => Ok(spec),
            Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_) | Spec::Exposure(_) => {
                Err(mismatch(address))
            }
        }
    }

    fn pipeline_spec(&self, address: &'a Address) -> Result<(&'a Name, &'a PipelineSpec), Stop> {
        match (address, self.spec(address)?) {
            (Address::Pipeline(name), Spec::Pipeline(spec)) => Ok((name, spec)),
            (_, _) => Err(mismatch(address)),
        }
    }

    fn exposure_spec(&self, address: &'a Address) -> Result<(&'a Name, &'a ExposureSpec), Stop> {
        match (address, self.spec(address)?) {
            (Address::Exposure(name), Spec::Exposure(spec)) => Ok((name, spec)),
            (_, _) => Err(mismatch(address)),
        }
    }
}

fn mismatch(address: &Address) -> Stop {
    Stop::Refused(broken(format!(
        "the plan's spec for {address} is of another kind"
    )))
}

fn stage_of<'a>(act: Act<'a>) -> Result<&'a StageId, Stop> {
    stageline_core::resource::stage_of(&act.step.address)
        .ok_or_else(|| Stop::Refused(broken(format!("{} is no stage", act.step.address))))
}

/// Whether a native stage did not start for want of the worker's program.
fn lacks_worker(spec: &StageSpec, done: &Result<(), MachineError>) -> bool {
    let missing = matches!(done, Err(MachineError::Refused { code, .. }) if code == WORKER_MISSING);
    missing && spec.engine == EngineSpec::Native
}

/// The same where there was none to send either: what to do about it is to be done here.
fn none_to_send(mut error: MachineError) -> MachineError {
    if let MachineError::Refused { code, hint, .. } = &mut error
        && code == WORKER_MISSING
    {
        *hint = Some(format!(
            "none that runs there was found here to send; put `stageline-worker` beside `stageline` and apply again: {BUILD_ONE}"
        ));
    }
    error
}

/// An answered call with what it made; a call that was given up may be repeated, so it is refused, not in doubt.
fn made<T>(result: Result<T, Cause>, make: impl FnOnce(T) -> (Spec, Receipt)) -> Outcome<Made> {
    match result {
        Ok(value) => {
            let (spec, receipt) = make(value);
            Outcome::Done(Made {
                spec: Some(spec),
                receipt: Some(receipt),
                dated: None,
            })
        }
        Err(cause) => Outcome::Refused(cause),
    }
}

fn gone(result: Result<(), Cause>) -> Outcome<Made> {
    match result {
        Ok(()) => Outcome::Done(Made::default()),
        Err(cause) => Outcome::Refused(cause),
    }
}

/// The failure of a machine in provider-neutral words.
fn cause(error: MachineError) -> Cause {
    let message = error.to_string();
    match error {
        MachineError::Unreachable { lease, .. } => {
            Cause::new(FailureClass::Unknown, message).hint(format!(
                "see `stageline logs {lease}`; run apply again to go on, or give the machine up: \
                 `stageline apply --replace {lease}`"
            ))
        }
        MachineError::Refused { hint, .. } => Cause {
            hint,
            ..Cause::new(FailureClass::Config, message)
        },
    }
}

/// Every machine that a delivery's rosters name, those that may only send prompts included.
fn named(spec: &DeliverySpec) -> impl Iterator<Item = &LeaseId> {
    spec.pipelines.values().flat_map(|share| {
        let stages = share.roster.iter().map(|line| &line.lease);
        stages.chain(&share.prompt_from)
    })
}

fn head(text: &str) -> String {
    text.chars().take(ANSWER_MAX).collect()
}
