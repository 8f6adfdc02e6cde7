//! Accepting edges and prompts: hello first, and few at a time until then.
//!
//! What always holds: at most 16 connections are waiting to be authorized, each for at most 5 s; whoever is turned away is
//! told why; an edge that is accepted takes the place of an earlier one of the same peer.

use std::sync::Arc;
use std::time::Duration;

use iroh::endpoint::{Connection, RecvStream, SendStream};
use iroh::protocol::{AcceptError, ProtocolHandler};
use stageline_core::id::{EndpointKey, StageId};

use super::dial::edge_replaced;
use super::edge::{self, Bulk, Wire};
use super::endpoint::peer_of;
use super::fabric::Shared;
use super::frame::failure;
use super::hello::{
    Answer, EdgeKind, HELLO_MAX, Hello, PROTOCOL, authorize, read_message, write_message,
};
use super::infer::InferCode;
use super::serve;

/// A connection that did not say hello by then is closed.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How long whoever was turned away has to read why.
const GOODBYE_WAIT: Duration = Duration::from_secs(2);

/// Accepts edges.
#[derive(Clone)]
pub struct StageProtocol {
    shared: Arc<Shared>,
}

/// Accepts prompts.
#[derive(Clone)]
pub struct InferProtocol {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for StageProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StageProtocol")
    }
}

impl std::fmt::Debug for InferProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InferProtocol")
    }
}

/// A peer that was let in, with its first stream.
struct Guest {
    hello: Hello,
    peer: EndpointKey,
    /// The stage here that it may speak to.
    to: StageId,
    /// Whether it was started anew since it was last here.
    started_anew: bool,
    send: SendStream,
    recv: RecvStream,
}

impl StageProtocol {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl InferProtocol {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl ProtocolHandler for StageProtocol {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let shared = &self.shared;
        let kinds = &[EdgeKind::Activations, EdgeKind::Tokens];
        let Some(guest) = let_in(shared, &connection, kinds).await else {
            return Ok(());
        };
        let (Some(side), Some(node)) = (guest.hello.edge.incoming(), shared.node(&guest.to)) else {
            edge::close(&connection, "the stage was taken away just now");
            return Ok(());
        };
        let lease = node.edge_up(side, guest.peer, edge_replaced(guest.started_anew));
        let wire = Wire {
            connection,
            send: guest.send,
            recv: guest.recv,
            bulk: Bulk::Read,
        };
        let why = edge::run(&node, side, &lease, wire, &shared.config.clock).await;
        tracing::info!(to = %guest.to, from = guest.hello.stage, why, "edge down");
        Ok(())
    }
}

impl ProtocolHandler for InferProtocol {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let shared = &self.shared;
        let Some(guest) = let_in(shared, &connection, &[EdgeKind::Prompts]).await else {
            return Ok(());
        };
        // Kept open: the client's end of this stream is the client's end.
        let _first = (guest.send, guest.recv);
        let serving = serve::connection(&connection, |peer| {
            // The roster may have changed since the hello: a machine that was replaced must not prompt on.
            let allowed = shared
                .roster(&guest.to.pipeline)
                .is_some_and(|(_, roster)| roster.may_prompt(peer));
            if !allowed {
                let message = format!("{}: this caller may not prompt any more", guest.to);
                return Err(failure(InferCode::Forbidden, message));
            }
            shared.node(&guest.to).ok_or_else(|| {
                let message = format!("{}: it does not run here any more", guest.to);
                failure(InferCode::StageDown, message)
            })
        });
        tokio::select! {
            () = serving => {}
            () = shared.stop.cancelled() => edge::close(&connection, "the agent is shutting down"),
        }
        Ok(())
    }
}

/// Waits for a hello and answers it. None when the peer was turned away, and told.
async fn let_in(
    shared: &Arc<Shared>,
    connection: &Connection,
    kinds: &[EdgeKind],
) -> Option<Guest> {
    let Ok(_permit) = shared.unauthorized.try_acquire() else {
        edge::close(connection, "too many connections are waiting to say hello");
        return None;
    };
    let greeting = greet(shared, connection, kinds);
    let result = tokio::select! {
        result = greeting => result,
        () = shared.config.clock.sleep(HELLO_WAIT) => Err("no hello within 5 s".to_owned()),
        () = shared.stop.cancelled() => Err("the agent is shutting down".to_owned()),
    };
    match result {
        Ok(guest) => guest,
        Err(why) => {
            edge::close(connection, &why);
            None
        }
    }
}

async fn greet(
    shared: &Arc<Shared>,
    connection: &Connection,
    kinds: &[EdgeKind],
) -> Result<Option<Guest>, String> {
    let lost = |error: &dyn std::error::Error| error.to_string();
    let (mut send, mut recv) = connection.accept_bi().await.map_err(|e| lost(&e))?;
    let hello = read_message::<Hello>(&mut recv, HELLO_MAX)
        .await
        .map_err(|e| lost(&e))?
        .ok_or("the stream ended before a hello")?;
    let peer = peer_of(connection);
    let (answer, admitted) = answer(shared, &hello, &peer, kinds);
    write_message(&mut send, &answer)
        .await
        .map_err(|e| lost(&e))?;
    if let Some((to, started_anew)) = admitted {
        return Ok(Some(Guest {
            hello,
            peer,
            to,
            started_anew,
            send,
            recv,
        }));
    }
    tracing::info!(%peer, pipeline = %hello.pipeline, ?answer, "turned away");
    drop(send.finish());
    tokio::select! {
        _ = connection.closed() => {}
        () = shared.config.clock.sleep(GOODBYE_WAIT) => {}
    }
    Ok(None)
}

/// Looks at a hello: its roster first, then whether the peer may come in, then how often it came.
fn answer(
    shared: &Arc<Shared>,
    hello: &Hello,
    peer: &EndpointKey,
    kinds: &[EdgeKind],
) -> (Answer, Option<(StageId, bool)>) {
    let refused = |why: String| (Answer::refused(why), None);
    if hello.protocol != PROTOCOL {
        return refused(format!("this agent speaks {PROTOCOL}"));
    }
    if !kinds.contains(&hello.edge) {
        return refused("this kind of edge belongs to another protocol".to_owned());
    }
    if hello.lineage != shared.config.lineage {
        return refused("this agent belongs to another topology".to_owned());
    }
    if let Some(theirs) = &hello.roster
        && let Err(error) = consider(shared, hello, theirs)
    {
        return match error {
            Some(why) => refused(why),
            None => match shared.roster(&hello.pipeline) {
                Some((roster, _)) => (Answer::Stale { roster }, None),
                None => refused("the roster was taken away just now".to_owned()),
            },
        };
    }
    let Some((_, roster)) = shared.roster(&hello.pipeline) else {
        return refused(format!("no roster of pipeline.{} is here", hello.pipeline));
    };
    let to = match authorize(&roster, &shared.key, peer, hello) {
        Ok(index) => roster.stage_id(index),
        Err(why) => {
            let forbidden = hello.edge == EdgeKind::Prompts && !roster.may_prompt(peer);
            return (Answer::Refused { forbidden, why }, None);
        }
    };
    let Some(node) = shared.node(&to) else {
        return refused(format!("{to} is not in place"));
    };
    let (theirs, ours) = (hello.hidden_size, node.hidden_size());
    if theirs != 0 && ours != 0 && theirs != ours && hello.edge != EdgeKind::Prompts {
        return refused(format!(
            "stage {} has hidden size {theirs} and {to} has {ours}: they run different models",
            hello.stage
        ));
    }
    let started_anew = if hello.edge == EdgeKind::Prompts {
        false
    } else {
        let slot = (hello.pipeline.clone(), hello.edge, hello.stage, *peer);
        match shared.note_start(slot, hello.epoch) {
            Ok(changed) => changed,
            Err(why) => return refused(why),
        }
    };
    let welcome = Answer::Welcome {
        epoch: shared.epoch,
        revision: roster.revision,
    };
    (welcome, Some((to, started_anew)))
}

/// Takes a newer roster. An error without a reason: theirs is the older one.
fn consider(
    shared: &Arc<Shared>,
    hello: &Hello,
    theirs: &super::roster::SignedRoster,
) -> Result<(), Option<String>> {
    use super::roster::RosterError;
    let ours = shared.roster(&hello.pipeline);
    if ours.as_ref().is_some_and(|(signed, _)| signed == theirs) {
        return Ok(());
    }
    let roster = theirs
        .verify(&shared.config.operator, &shared.config.lineage)
        .map_err(|error| Some(error.to_string()))?;
    if roster.pipeline != hello.pipeline {
        return Err(Some("the roster is another pipeline's".to_owned()));
    }
    match shared.set_roster(theirs.clone()) {
        Ok(_) => Ok(()),
        Err(RosterError::Stale { .. }) => Err(None),
        Err(error) => Err(Some(error.to_string())),
    }
}
