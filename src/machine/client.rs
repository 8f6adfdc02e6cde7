//! The operator's side of the control protocol: our hands on real machines.
//!
//! What always holds: an agent that does not answer ([`MachineError::Unreachable`]) is never mistaken for one that refuses
//! ([`MachineError::Refused`]); nothing waits for ever, since an agent that works says so every two seconds and silence is
//! the end; one connection is kept per agent, and a lost one is dialled once more, since every request may be repeated.
//! What an agent says is made safe for a terminal before anybody sees it, but for what a shell prints.

mod deliver;
mod dial;
mod model;
mod opened;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use iroh::endpoint::{Connection, RecvStream, SendStream};
use secrecy::SecretString;
use stageline_core::id::{LeaseId, Lineage, Name, StageId};
use stageline_core::resource::{
    Contact, ExposureSpec, LeaseLimits, PipelineSpec, SetupSpec, StageSpec,
};
use stageline_core::unit::Millis;
use tokio::time::{Instant, timeout, timeout_at};

use super::control::{
    Envelope, Peer, Refusal, Reply, Request, Secret, SetupOrder, VERSION, WORKING_EVERY,
    read_reply, write_frame,
};
use super::plain::{self, Stripper};
use super::{AgentStatus, Answer, Delivery, LogSource, MachineError, Machines, Target};
use crate::pipeline::Drain;
use crate::pipeline::endpoint::RelayAccess;
use crate::pipeline::keys;
use crate::pipeline::remote::RemoteInfer;
pub use opened::{FromStream, Shell, ToStream, Tunnel};

/// An agent that says nothing for so long has stopped working, though its endpoint lives.
const SILENCE_MAX: Duration = Duration::from_secs(10 * WORKING_EVERY.as_secs());

/// Answering takes an agent a moment beyond what it was given for the work.
const GRACE: Duration = Duration::from_secs(15);

/// No request lasts longer, whatever was asked.
const REQUEST_MAX: Duration = Duration::from_secs(86_400);

/// The longest message of an agent that is passed on.
const MESSAGE_MAX: usize = 4000;

/// What a client is made from.
pub struct ClientOptions {
    /// The operator's key for this lineage: [`keys::operator`].
    pub operator: keys::Secret,
    /// Which life of a topology the machines belong to.
    pub lineage: Lineage,
    /// Every relay that they may be reached by; none is direct only.
    pub relays: Vec<RelayAccess>,
    /// The relay that a delivery tells them to keep to; none is direct only.
    pub told: Option<RelayAccess>,
    /// Where models are kept that the operator fetches; made when it is needed.
    pub cache: PathBuf,
    /// How long an agent is dialled before it counts as unreachable.
    pub dial_timeout: Duration,
}

impl ClientOptions {
    /// Options for machines that are reached directly.
    pub fn new(operator: keys::Secret, lineage: Lineage, cache: PathBuf) -> Self {
        Self {
            operator,
            lineage,
            relays: Vec::new(),
            told: None,
            cache,
            dial_timeout: Duration::from_secs(8),
        }
    }
}

/// Our hands on real machines. Dials when it is first needed; close it at the end.
pub struct AgentClient {
    operator: keys::Secret,
    lineage: Lineage,
    cache: PathBuf,
    dial: dial::Dial,
    told: Option<RelayAccess>,
    models: model::Models,
}

/// Why one try of a request did not come to an answer.
enum Lost {
    /// The connection or the stream broke.
    Stream(String),
    /// It was answered, and by a refusal.
    Refused(Refusal),
}

/// What an answer that is not expected is called.
fn odd(reply: &Reply) -> Refusal {
    let kind = match reply {
        Reply::Working { .. } => "working",
        Reply::Status(_) => "status",
        Reply::Have { .. } => "have",
        Reply::Done => "done",
        Reply::Url { .. } => "url",
        Reply::Answer(_) => "answer",
        Reply::Refused(_) => "refused",
    };
    let message = format!("the agent answered `{kind}`, which does not fit the request");
    Refusal::new("protocol", message).hint("use the same version of stageline on both sides")
}

impl AgentClient {
    /// A client that has not dialled anybody yet.
    pub fn new(options: ClientOptions) -> Self {
        let ClientOptions {
            operator,
            lineage,
            relays,
            told,
            cache,
            dial_timeout,
        } = options;
        Self {
            dial: dial::Dial::new(operator.clone(), relays, dial_timeout),
            told,
            operator,
            lineage,
            cache,
            models: model::Models::default(),
        }
    }

    /// The way to a pipeline, by the agent of its entry stage.
    ///
    /// # Errors
    /// [`MachineError::Unreachable`] when this computer has no endpoint.
    pub async fn infer(
        &self,
        entry: &Target,
        pipeline: &Name,
    ) -> Result<RemoteInfer, MachineError> {
        let endpoint = self.dial.endpoint(&entry.lease).await?;
        let mut contact = entry.contact.clone();
        contact.relay = self.dial.relay().or(contact.relay);
        Ok(RemoteInfer::new(
            endpoint.clone(),
            self.lineage,
            pipeline.clone(),
            entry.endpoint,
            contact,
        ))
    }

    /// Makes the endpoint of this computer now, so that a relay that does not take it is known before anything is begun.
    ///
    /// # Errors
    /// What the relay said, and what to do.
    pub async fn online(&self) -> Result<(), Refusal> {
        self.dial.bound().await.map(|_| ())
    }

    /// A machine as others are told to reach it: by the relay that all of them are told.
    fn peer(&self, target: &Target) -> Peer {
        let relay = self.told.as_ref().map(|told| told.settings.url.clone());
        Peer {
            endpoint: target.endpoint,
            contact: Contact {
                relay,
                ..target.contact.clone()
            },
        }
    }

    /// Says goodbye to every agent, which would wait for us otherwise.
    pub async fn close(&self) {
        self.dial.close().await;
    }

    /// Asks, and returns the answer. `told` hears what the agent says while it works.
    async fn ask(
        &self,
        target: &Target,
        request: Request,
        longest: Duration,
        told: &(dyn Fn(&str, u64, u64) + Sync),
    ) -> Result<Reply, MachineError> {
        let envelope = Envelope {
            version: VERSION,
            request,
        };
        let deadline = Instant::now() + longest.min(REQUEST_MAX) + GRACE;
        let attempt = |connection: Connection| {
            let envelope = &envelope;
            async move {
                let (_send, mut recv) = open(&connection, envelope).await?;
                let answer = answer(&mut recv, told);
                match timeout_at(deadline, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Lost::Stream("no answer in time".to_owned())),
                }
            }
        };
        self.dial.with(target, attempt).await
    }

    /// The same for a request that is answered by `done`.
    async fn ask_done(
        &self,
        target: &Target,
        request: Request,
        longest: Duration,
        told: &(dyn Fn(&str, u64, u64) + Sync),
    ) -> Result<(), MachineError> {
        let reply = self.ask(target, request, longest, told).await?;
        let Reply::Done = reply else {
            return Err(refused(&target.lease, odd(&reply)));
        };
        Ok(())
    }
}

/// Opens a stream with a request on it.
async fn open(
    connection: &Connection,
    envelope: &Envelope,
) -> Result<(SendStream, RecvStream), Lost> {
    let opening = async {
        let (mut send, recv) = connection.open_bi().await.map_err(lost)?;
        write_frame(&mut send, envelope).await.map_err(lost)?;
        Ok((send, recv))
    };
    match timeout(SILENCE_MAX, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(Lost::Stream("it takes no request".to_owned())),
    }
}

/// Waits for an answer for as long as the agent says that it works.
async fn answer(
    recv: &mut RecvStream,
    told: &(dyn Fn(&str, u64, u64) + Sync),
) -> Result<Reply, Lost> {
    loop {
        let reply = timeout(SILENCE_MAX, read_reply(recv)).await;
        match reply {
            Err(_) => {
                let silence = SILENCE_MAX.as_secs();
                return Err(Lost::Stream(format!("it said nothing for {silence} s")));
            }
            Ok(Err(error)) => return Err(lost(error)),
            Ok(Ok(Reply::Working { what, done, total })) => {
                told(&plain::message(&what, 200), done, total);
            }
            Ok(Ok(Reply::Refused(refusal))) => return Err(Lost::Refused(refusal)),
            Ok(Ok(
                reply @ (Reply::Status(_)
                | Reply::Have { .. }
                | Reply::Done
                | Reply::Url { .. }
                | Reply::Answer(_)),
            )) => return Ok(reply),
        }
    }
}

fn lost(error: impl std::fmt::Display) -> Lost {
    Lost::Stream(error.to_string())
}

/// A refusal as callers get it, safe for a terminal.
fn refused(lease: &LeaseId, refusal: Refusal) -> MachineError {
    let plain = |text: &str| plain::message(text, MESSAGE_MAX);
    MachineError::Refused {
        lease: lease.clone(),
        code: plain(&refusal.code),
        message: plain(&refusal.message),
        hint: refusal.hint.as_deref().map(plain),
    }
}

fn unreachable(lease: &LeaseId, why: impl Into<String>) -> MachineError {
    MachineError::Unreachable {
        lease: lease.clone(),
        why: plain::message(&why.into(), MESSAGE_MAX),
    }
}

fn on_the_wire(secrets: BTreeMap<String, SecretString>) -> BTreeMap<String, Secret> {
    let wrapped = secrets
        .into_iter()
        .map(|(name, value)| (name, Secret(value)));
    wrapped.collect()
}

const QUIETLY: &(dyn Fn(&str, u64, u64) + Sync) = &|_, _, _| {};

#[async_trait]
impl Machines for AgentClient {
    async fn at_work(&self, target: &Target) -> Result<(), MachineError> {
        self.ask_done(target, Request::AtWork, GRACE, QUIETLY).await
    }

    async fn status(&self, target: &Target) -> Result<AgentStatus, MachineError> {
        let reply = self.ask(target, Request::Status, GRACE, QUIETLY).await?;
        let Reply::Status(status) = reply else {
            return Err(refused(&target.lease, odd(&reply)));
        };
        Ok(*status)
    }

    async fn deliver(&self, target: &Target, delivery: Delivery<'_>) -> Result<(), MachineError> {
        self.deliver_all(target, delivery).await
    }

    async fn start(
        &self,
        target: &Target,
        stage: &StageId,
        spec: &StageSpec,
        secrets: BTreeMap<String, SecretString>,
    ) -> Result<(), MachineError> {
        let request = Request::Start {
            stage: stage.clone(),
            spec: Box::new(spec.clone()),
            secrets: on_the_wire(secrets),
        };
        let longest = spec.ready_timeout.duration();
        self.ask_done(target, request, longest, QUIETLY).await
    }

    async fn stop(&self, target: &Target, stage: &StageId) -> Result<(), MachineError> {
        let stage = stage.clone();
        self.ask_done(target, Request::Stop { stage }, GRACE, QUIETLY)
            .await
    }

    async fn check(
        &self,
        entry: &Target,
        pipeline: &Name,
        spec: &PipelineSpec,
    ) -> Result<Answer, MachineError> {
        let request = Request::Check {
            pipeline: pipeline.clone(),
            prompt: spec.prompt.clone(),
            max_tokens: spec.max_tokens,
            timeout: spec.request_timeout,
        };
        let longest = spec.request_timeout.duration();
        let reply = self.ask(entry, request, longest, QUIETLY).await?;
        let Reply::Answer(answer) = reply else {
            return Err(refused(&entry.lease, odd(&reply)));
        };
        Ok(answer)
    }

    async fn expose(
        &self,
        target: &Target,
        exposure: &Name,
        spec: &ExposureSpec,
        peers: BTreeMap<Name, Target>,
        api_key: Option<SecretString>,
    ) -> Result<String, MachineError> {
        let request = Request::Expose {
            exposure: exposure.clone(),
            spec: spec.clone(),
            peers: peers
                .into_iter()
                .map(|(pipeline, target)| (pipeline, self.peer(&target)))
                .collect(),
            api_key: api_key.map(Secret),
        };
        let reply = self.ask(target, request, GRACE, QUIETLY).await?;
        let Reply::Url { url } = reply else {
            return Err(refused(&target.lease, odd(&reply)));
        };
        Ok(plain::message(&url, 300))
    }

    async fn unexpose(&self, target: &Target, exposure: &Name) -> Result<(), MachineError> {
        let exposure = exposure.clone();
        self.ask_done(target, Request::Unexpose { exposure }, GRACE, QUIETLY)
            .await
    }

    async fn drain(
        &self,
        target: &Target,
        what: Drain,
        timeout: Millis,
    ) -> Result<(), MachineError> {
        let longest = timeout.duration();
        self.ask_done(target, Request::Drain { timeout, what }, longest, QUIETLY)
            .await
    }

    async fn limit(&self, target: &Target, limits: LeaseLimits) -> Result<(), MachineError> {
        self.ask_done(target, Request::Limit { limits }, GRACE, QUIETLY)
            .await
    }

    async fn set_up(
        &self,
        target: &Target,
        setup: &SetupSpec,
        secrets: BTreeMap<String, SecretString>,
        timeout: Millis,
    ) -> Result<(), MachineError> {
        let order = SetupOrder {
            script: setup.script.clone(),
            env: setup.env.clone(),
            secrets: on_the_wire(secrets),
            timeout,
        };
        let request = Request::SetUp(Box::new(order));
        self.ask_done(target, request, GRACE, QUIETLY).await
    }

    async fn logs(
        &self,
        target: &Target,
        source: LogSource,
        tail: usize,
        follow: bool,
    ) -> Result<BoxStream<'static, Result<Bytes, MachineError>>, MachineError> {
        let envelope = Envelope {
            version: VERSION,
            request: Request::Logs {
                source,
                tail: u64::try_from(tail).unwrap_or(u64::MAX),
                follow,
            },
        };
        let attempt = |connection: Connection| {
            let envelope = &envelope;
            async move {
                let (send, mut recv) = open(&connection, envelope).await?;
                let reply = answer(&mut recv, QUIETLY).await?;
                let Reply::Done = reply else {
                    return Err(Lost::Refused(odd(&reply)));
                };
                Ok((connection, send, recv))
            }
        };
        let (connection, send, recv) = self.dial.with(target, attempt).await?;
        let lease = target.lease.clone();
        let state = Some((connection, send, recv, Stripper::default()));
        let stream = futures::stream::unfold(state, move |state| {
            let lease = lease.clone();
            async move {
                let (connection, send, mut recv, mut stripper) = state?;
                let mut buffer = vec![0; 16 << 10];
                match recv.read(&mut buffer).await {
                    Ok(Some(read)) => {
                        let plain = stripper.push(&buffer[..read]);
                        let state = Some((connection, send, recv, stripper));
                        Some((Ok(Bytes::from(plain)), state))
                    }
                    Ok(None) => None,
                    Err(error) => Some((Err(unreachable(&lease, error.to_string())), None)),
                }
            }
        });
        Ok(stream.boxed())
    }
}
