//! Answering prompts that come over `stageline/infer/1`: one stream for each request.
//!
//! What always holds: a request is size-capped before it is read; a caller whose stream breaks off has its request
//! cancelled on every stage; whether the caller may prompt is asked for each request.

use std::sync::Arc;

use futures::StreamExt as _;
use iroh::endpoint::{Connection, RecvStream, SendStream};
use serde::{Deserialize, Serialize};
use stageline_core::id::EndpointKey;
use tokio::task::JoinSet;

use super::endpoint::peer_of;
use super::hello::{MessageError, read_message, write_message};
use super::infer::{Event, Events, InferError, Request};
use super::node::Node;

/// A prompt as JSON, sampling included: what the worker's line takes, and room around it.
pub(super) const REQUEST_MAX: usize = 2 << 20;
/// One event: a token's text, escaped.
pub(super) const EVENT_MAX: usize = 1 << 20;

/// What is answered to a request, in this order: `Admitted`, events, or `Failed` at any point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    /// The request was taken.
    Admitted,
    /// As [`Event`] says.
    Event(Event),
    /// The end, and why.
    Failed(InferError),
}

/// Answers every request of a connection until it ends.
pub(super) async fn connection(
    connection: &Connection,
    allowed: impl Fn(&EndpointKey) -> Result<Arc<Node>, InferError>,
) {
    let peer = peer_of(connection);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept_bi() => match accepted {
                Ok((send, recv)) => {
                    tasks.spawn(request(allowed(&peer), send, recv));
                }
                // Dropping the tasks cancels their requests.
                Err(_) => return,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn request(node: Result<Arc<Node>, InferError>, mut send: SendStream, mut recv: RecvStream) {
    let Ok(Some(request)) = read_message::<Request>(&mut recv, REQUEST_MAX).await else {
        return;
    };
    // A caller that goes away ends this stream: nothing more is to come on it.
    let mut byte = [0];
    tokio::select! {
        sent = answer(node, request, &mut send) => {
            if sent.is_ok() {
                drop(send.finish());
                // The stream's last bytes are not lost by dropping it.
                drop(send.stopped().await);
            }
        }
        _ = recv.read(&mut byte) => {}
    }
}

async fn answer(
    node: Result<Arc<Node>, InferError>,
    request: Request,
    send: &mut SendStream,
) -> Result<(), MessageError> {
    let events: Result<Events, InferError> = node.and_then(|node| node.submit(request));
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return write_message(send, &Reply::Failed(error)).await,
    };
    write_message(send, &Reply::Admitted).await?;
    while let Some(event) = events.next().await {
        let reply = match event {
            Ok(event) => Reply::Event(event),
            Err(error) => Reply::Failed(error),
        };
        write_message(send, &reply).await?;
    }
    Ok(())
}
