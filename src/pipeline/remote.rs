//! Prompts sent to the entry of a pipeline on another machine, over `stageline/infer/1`.
//!
//! What always holds: one connection carries all requests, each on a stream of its own; whatever goes wrong on the way is
//! an error with a code and a name; dropping a stream of events resets its stream, by which the other side cancels.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use iroh::Endpoint;
use iroh::endpoint::{Connection, RecvStream, SendStream};
use stageline_core::id::{EndpointKey, Lineage, Name};
use stageline_core::resource::Contact;
use tokio::sync::Mutex;

use super::edge;
use super::endpoint::{INFER_ALPN, address, chain};
use super::fabric::Shared;
use super::frame::{failure, printable};
use super::hello::{Answer, EdgeKind, HELLO_MAX, Hello, PROTOCOL, read_message, write_message};
use super::infer::{Event, Events, Infer, InferCode, InferError, Request};
use super::serve::{EVENT_MAX, Reply};

/// Connecting and hello.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Admission is a matter of one round trip.
const ADMISSION_MAX: Duration = Duration::from_secs(20);
/// Of an error that came from another machine.
const MESSAGE_MAX: usize = 4096;

/// The way to a pipeline's entry. Connects at the first request and again after a loss; one connection for all requests.
pub struct RemoteInfer {
    from: Dialler,
    lineage: Lineage,
    pipeline: Name,
    entry: EndpointKey,
    contact: Contact,
    connection: Mutex<Option<Arc<Open>>>,
}

/// Where it is dialled from.
pub(super) enum Dialler {
    /// One endpoint for good.
    Own(Endpoint),
    /// The one that a fabric has then.
    Fabric(Arc<Shared>),
}

impl Dialler {
    fn endpoint(&self) -> Endpoint {
        match self {
            Self::Own(endpoint) => endpoint.clone(),
            Self::Fabric(shared) => shared.endpoint(),
        }
    }
}

/// A connection after its hello. The first stream stays open as long as it does.
struct Open {
    connection: Connection,
    _first: (SendStream, RecvStream),
}

impl Drop for Open {
    fn drop(&mut self) {
        edge::close(&self.connection, "no more prompts");
    }
}

impl RemoteInfer {
    /// The way to that entry. Nothing is dialled yet.
    pub fn new(
        endpoint: Endpoint,
        lineage: Lineage,
        pipeline: Name,
        entry: EndpointKey,
        contact: Contact,
    ) -> Self {
        Self::from(Dialler::Own(endpoint), lineage, pipeline, entry, contact)
    }

    pub(super) fn from(
        from: Dialler,
        lineage: Lineage,
        pipeline: Name,
        entry: EndpointKey,
        contact: Contact,
    ) -> Self {
        Self {
            from,
            lineage,
            pipeline,
            entry,
            contact,
            connection: Mutex::new(None),
        }
    }

    async fn open(&self) -> Result<Arc<Open>, InferError> {
        let mut slot = self.connection.lock().await;
        if let Some(open) = &*slot
            && open.connection.close_reason().is_none()
        {
            return Ok(Arc::clone(open));
        }
        let connecting = tokio::time::timeout(CONNECT_MAX, self.connect());
        let open = connecting.await.map_err(|_| {
            let why = format!("no answer within {} s", CONNECT_MAX.as_secs());
            self.unreachable(&why)
        })??;
        let open = Arc::new(open);
        *slot = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn connect(&self) -> Result<Open, InferError> {
        let addr = address(self.entry, &self.contact).map_err(|why| self.unreachable(&why))?;
        let connection = self
            .from
            .endpoint()
            .connect(addr, INFER_ALPN)
            .await
            .map_err(|error| self.unreachable(&chain(&error)))?;
        let lost = |why: String| {
            let reason = connection.close_reason().map(|error| chain(&error));
            self.unreachable(&reason.unwrap_or(why))
        };
        let (mut send, mut recv) = connection
            .open_bi()
            .await
            .map_err(|error| lost(chain(&error)))?;
        let hello = Hello {
            protocol: PROTOCOL.to_owned(),
            lineage: self.lineage,
            pipeline: self.pipeline.clone(),
            edge: EdgeKind::Prompts,
            stage: 0,
            epoch: 0,
            dtype: None,
            hidden_size: 0,
            roster: None,
        };
        write_message(&mut send, &hello)
            .await
            .map_err(|error| lost(error.to_string()))?;
        let answer = read_message::<Answer>(&mut recv, HELLO_MAX)
            .await
            .map_err(|error| lost(error.to_string()))?
            .ok_or_else(|| lost("it gave no answer to our hello".to_owned()))?;
        match answer {
            Answer::Welcome { .. } => Ok(Open {
                connection,
                _first: (send, recv),
            }),
            Answer::Refused { forbidden, why } => {
                edge::close(&connection, "refused");
                let why = printable(&why, MESSAGE_MAX);
                if forbidden {
                    Err(failure(InferCode::Forbidden, why))
                } else {
                    Err(self.unreachable(&format!("it refused us: {why}")))
                }
            }
            Answer::Stale { .. } => Err(self.unreachable("it answered with a roster")),
        }
    }

    fn unreachable(&self, why: &str) -> InferError {
        let message = format!(
            "stage.{}[0]: its agent cannot be reached: {}",
            self.pipeline,
            printable(why, MESSAGE_MAX)
        );
        failure(InferCode::StageDown, message)
    }

    async fn admitted(
        &self,
        open: &Open,
        request: &Request,
    ) -> Result<(SendStream, RecvStream), InferError> {
        let lost = |why: String| {
            let reason = open.connection.close_reason().map(|error| chain(&error));
            self.unreachable(&reason.unwrap_or(why))
        };
        let (mut send, mut recv) = open
            .connection
            .open_bi()
            .await
            .map_err(|error| lost(chain(&error)))?;
        write_message(&mut send, request)
            .await
            .map_err(|error| lost(error.to_string()))?;
        match read_message::<Reply>(&mut recv, EVENT_MAX).await {
            Ok(Some(Reply::Admitted)) => Ok((send, recv)),
            Ok(Some(Reply::Failed(error))) => Err(clean(error)),
            Ok(Some(Reply::Event(_))) => Err(self.nonsense("an event before it took the request")),
            Ok(None) => Err(lost("it ended the stream".to_owned())),
            Err(error) => Err(lost(error.to_string())),
        }
    }

    fn nonsense(&self, what: &str) -> InferError {
        let message = format!("stage.{}[0]: its agent sent {what}", self.pipeline);
        failure(InferCode::Internal, message)
    }
}

#[async_trait]
impl Infer for RemoteInfer {
    async fn infer(&self, request: Request) -> Result<Events, InferError> {
        let open = self.open().await?;
        let admission = tokio::time::timeout(ADMISSION_MAX, self.admitted(&open, &request));
        let (send, recv) = admission
            .await
            .map_err(|_| self.unreachable("it did not say whether it takes the request"))??;
        let lost = self.unreachable("the connection ended within the answer");
        let answer = Answering {
            _open: open,
            send,
            recv,
            lost,
            done: false,
        };
        Ok(futures::stream::unfold(answer, Answering::next).boxed())
    }
}

/// An answer that is coming in.
struct Answering {
    _open: Arc<Open>,
    send: SendStream,
    recv: RecvStream,
    lost: InferError,
    done: bool,
}

impl Answering {
    async fn next(mut self) -> Option<(Result<Event, InferError>, Self)> {
        if self.done {
            return None;
        }
        let item = match read_message::<Reply>(&mut self.recv, EVENT_MAX).await {
            Ok(Some(Reply::Event(event))) => Ok(event),
            Ok(Some(Reply::Failed(error))) => Err(clean(error)),
            Ok(Some(Reply::Admitted) | None) | Err(_) => Err(self.lost.clone()),
        };
        self.done = !matches!(item, Ok(Event::Started { .. } | Event::Text { .. }));
        Some((item, self))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // Tells the other side at once, whether the answer is complete or not.
        drop(self.send.reset(iroh::endpoint::VarInt::from_u32(0)));
        drop(self.recv.stop(iroh::endpoint::VarInt::from_u32(0)));
    }
}

fn clean(error: InferError) -> InferError {
    failure(error.code, printable(&error.message, MESSAGE_MAX))
}
