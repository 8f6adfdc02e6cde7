//! A delivery: the parts of models that a machine lacks, then shares and rosters, all at once.
//!
//! What always holds: nothing acts on a delivery before its model is present; what is there already is not sent again,
//! whether an earlier delivery ended or was cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use iroh::endpoint::{Connection, RecvStream, SendStream};
use secrecy::SecretString;
use stageline_core::id::{EndpointKey, LeaseId, Name, Sha256};
use stageline_core::model::{Index, Parsed};
use stageline_core::resource::{Contact, ModelOrigin, ModelRef, PipelineShare, Shard};
use tokio::time::timeout;

use super::model::ModelFile;
use super::{AgentClient, GRACE, Lost, QUIETLY, REQUEST_MAX, answer, lost, odd, open, refused};
use crate::machine::control::{
    CHUNK_MAX, Chunk, DeliveredShare, Envelope, Refusal, Reply, Request, Secret, Span, VERSION,
};
use crate::machine::spans::Spans;
use crate::machine::{Delivery, MachineError, Target};
use crate::pipeline::keys;
use crate::pipeline::roster::{Roster, RosterHead, SignedRoster};

/// How long the other side may take no byte.
const STALL_MAX: Duration = Duration::from_secs(60);

/// A machine that is told another relay tries it first.
const RELAY_MAX: Duration = Duration::from_secs(15);

/// Where the bytes of a model come from, and which of them are needed.
struct Needed {
    model: ModelRef,
    spans: Spans,
    source: Source,
}

enum Source {
    /// We send them.
    File(Arc<ModelFile>),
    /// The machine fetches them, with what their server asks for.
    Url(String, Option<SecretString>),
}

impl AgentClient {
    pub(super) async fn deliver_all(
        &self,
        target: &Target,
        delivery: Delivery<'_>,
    ) -> Result<(), MachineError> {
        let ours = |refusal| refused(&target.lease, refusal);
        let mut models: BTreeMap<Sha256, Needed> = BTreeMap::new();
        let mut shares = BTreeMap::new();
        for (pipeline, share) in &delivery.spec.pipelines {
            let spans = match &share.shard {
                None => Spans::default(),
                Some(shard) => {
                    let token = delivery.tokens.get(pipeline);
                    self.need(shard, token, &mut models, delivery.progress)
                        .await
                        .map_err(ours)?
                }
            };
            let roster = self.roster(pipeline, share, &delivery).map_err(ours)?;
            let share = DeliveredShare {
                share: share.clone(),
                spans: spans.into(),
                roster,
            };
            shares.insert(pipeline.clone(), share);
        }
        let total = models.values().map(|needed| needed.spans.bytes()).sum();
        let mut before = 0;
        for needed in models.values() {
            let progress = |done: u64| (delivery.progress)(before + done, total);
            self.bring(target, needed, &progress).await?;
            before += needed.spans.bytes();
        }
        let relay = self.told.clone();
        let (planned, ours) = (
            delivery.spec.relay.as_ref().map(|relay| &relay.url),
            relay.as_ref().map(|relay| &relay.settings.url),
        );
        if planned != ours {
            let message = "the plan names another relay than the topology does now";
            return Err(refused(
                &target.lease,
                Refusal::new("relay", message).hint("plan again"),
            ));
        }
        let request = Request::Deliver {
            pipelines: shares,
            relay: relay.map(Into::into),
        };
        self.ask_done(target, request, RELAY_MAX, QUIETLY).await
    }

    /// Adds what a shard needs to the models of this delivery; returns its ranges.
    async fn need(
        &self,
        shard: &Shard,
        token: Option<&SecretString>,
        models: &mut BTreeMap<Sha256, Needed>,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Spans, Refusal> {
        let model = &shard.model;
        let size = model.size.0;
        let source = match &model.origin {
            ModelOrigin::Operator(path) => Source::File(self.models.open(path, model).await?),
            ModelOrigin::OperatorUrl(url) => {
                let told = |done| progress(done, size);
                let path = self
                    .models
                    .fetched(url, token, model, &self.cache, told)
                    .await?;
                Source::File(self.models.open(&path, model).await?)
            }
            ModelOrigin::MachineUrl(url) => Source::Url(url.clone(), token.cloned()),
        };
        let spans = match &source {
            Source::File(file) => ranges(file, shard).await?,
            Source::Url(..) => Spans::whole(size),
        };
        let entry = models.entry(model.sha256).or_insert_with(|| Needed {
            model: model.clone(),
            spans: Spans::default(),
            source,
        });
        for span in spans.iter() {
            entry.spans.add(span);
        }
        Ok(spans)
    }

    fn roster(
        &self,
        pipeline: &Name,
        share: &PipelineShare,
        delivery: &Delivery<'_>,
    ) -> Result<SignedRoster, Refusal> {
        let missing = |lease: &LeaseId| {
            let message = format!("{pipeline}: the roster names {lease}, whose agent is not known");
            Refusal::new("roster", message)
        };
        let peers: BTreeMap<LeaseId, (EndpointKey, Contact)> = delivery
            .peers
            .iter()
            .map(|(lease, target)| {
                let peer = self.peer(target);
                (lease.clone(), (peer.endpoint, peer.contact))
            })
            .collect();
        let prompters = share
            .prompt_from
            .iter()
            .map(|lease| {
                let peer = peers.get(lease).ok_or_else(|| missing(lease))?;
                Ok(peer.0)
            })
            .collect::<Result<_, Refusal>>()?;
        let head = RosterHead {
            lineage: self.lineage,
            pipeline: pipeline.clone(),
            revision: delivery.revision,
            operator: self.operator.operator(),
            prompters,
        };
        let roster = Roster::of_share(head, share, &peers).map_err(|lease| missing(&lease))?;
        sign(&roster, &self.operator)
    }

    /// Makes one model present as far as it is needed.
    async fn bring(
        &self,
        target: &Target,
        needed: &Needed,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), MachineError> {
        match &needed.source {
            Source::Url(url, token) => {
                let request = Request::Fetch {
                    sha256: needed.model.sha256,
                    size: needed.model.size,
                    url: url.clone(),
                    token: token.clone().map(Secret),
                };
                let told = |_: &str, done: u64, _: u64| progress(done);
                self.ask_done(target, request, REQUEST_MAX, &told).await?;
            }
            Source::File(file) => {
                let envelope = Envelope {
                    version: VERSION,
                    request: Request::Blob {
                        sha256: needed.model.sha256,
                        size: needed.model.size,
                        spans: needed.spans.clone().into(),
                    },
                };
                let attempt = |connection: Connection| {
                    let (envelope, spans) = (&envelope, &needed.spans);
                    async move { send_all(&connection, envelope, file, spans, progress).await }
                };
                self.dial.with(target, attempt).await?;
            }
        }
        progress(needed.spans.bytes());
        Ok(())
    }
}

fn sign(roster: &Roster, operator: &keys::Secret) -> Result<SignedRoster, Refusal> {
    roster
        .sign(operator)
        .map_err(|error| Refusal::new("roster", format!("{}: {error}", roster.pipeline)))
}

/// A header beyond this is no header that anyone wrote.
const HEADER_MAX: u64 = 256 << 20;

/// Read of a file at first: most headers fit.
const HEADER_FIRST: u64 = 4 << 20;

/// The bytes of a model file that a shard needs: the header and the tensors of its layers, or all of a file that is no
/// model to us, since only its worker knows what it reads.
async fn ranges(file: &Arc<ModelFile>, shard: &Shard) -> Result<Spans, Refusal> {
    let size = shard.model.size;
    let whole = Spans::whole(size.0);
    if shard.bytes >= size {
        return Ok(whole);
    }
    let mut length = HEADER_FIRST.min(size.0);
    let index = loop {
        let head = file.read(0, usize::try_from(length).unwrap_or(usize::MAX));
        match Index::parse(&head.await?) {
            Ok(Parsed::Whole(index)) => break index,
            Ok(Parsed::NeedMore(more)) if more > length && more <= size.0.min(HEADER_MAX) => {
                length = more.max(2 * length).min(size.0);
            }
            Ok(Parsed::NeedMore(_)) | Err(_) => return Ok(whole),
        }
    };
    let ranges = index.shard_ranges(shard).map_err(|error| {
        let message = format!("the model {} {error}", file.path().display());
        Refusal {
            hint: error.hint,
            ..Refusal::new(error.code, message)
        }
    })?;
    let span = |range: std::ops::Range<u64>| Span {
        start: range.start,
        end: range.end,
    };
    Ok(ranges.into_iter().map(span).collect::<Vec<_>>().into())
}

/// Sends what is missing of the needed ranges.
async fn send_all(
    connection: &Connection,
    envelope: &Envelope,
    file: &Arc<ModelFile>,
    needed: &Spans,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Lost> {
    let (mut send, mut recv) = open(connection, envelope).await?;
    let reply = answer(&mut recv, QUIETLY).await?;
    let Reply::Have { present } = reply else {
        return Err(Lost::Refused(odd(&reply)));
    };
    let present = Spans::from(present);
    let missing = needed.without(&present);
    let mut done = needed.bytes() - missing.bytes();
    progress(done);
    for span in missing.iter() {
        let mut offset = span.start;
        while offset < span.end {
            let left = usize::try_from(span.end - offset).unwrap_or(usize::MAX);
            let length = left.min(CHUNK_MAX);
            let data = file.read(offset, length).await.map_err(Lost::Refused)?;
            let chunk = Chunk { offset, data };
            if let Err(why) = send_chunk(&mut send, &chunk).await {
                return Err(said_before(&mut recv, why).await);
            }
            let sent = u64::try_from(length).unwrap_or(0);
            offset += sent;
            done += sent;
            progress(done);
        }
    }
    let end = Chunk {
        offset: 0,
        data: Vec::new(),
    };
    if let Err(why) = send_chunk(&mut send, &end).await {
        return Err(said_before(&mut recv, why).await);
    }
    match timeout(STALL_MAX, answer(&mut recv, QUIETLY)).await {
        Ok(Ok(Reply::Done)) => Ok(()),
        Ok(Ok(other)) => Err(Lost::Refused(odd(&other))),
        Ok(Err(why)) => Err(why),
        Err(_) => Err(Lost::Stream("it does not say that all is there".to_owned())),
    }
}

async fn send_chunk(send: &mut SendStream, chunk: &Chunk) -> Result<(), Lost> {
    match timeout(STALL_MAX, send.write_all(&chunk.encode())).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(lost(error)),
        Err(_) => {
            let stall = STALL_MAX.as_secs();
            Err(Lost::Stream(format!("it took no byte for {stall} s")))
        }
    }
}

/// An agent that refuses in the middle says why before it stops reading.
async fn said_before(recv: &mut RecvStream, why: Lost) -> Lost {
    match timeout(GRACE, answer(recv, QUIETLY)).await {
        Ok(Err(said @ Lost::Refused(_))) => said,
        Ok(Ok(_) | Err(Lost::Stream(_))) | Err(_) => why,
    }
}
