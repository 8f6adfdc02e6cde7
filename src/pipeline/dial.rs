//! Keeping an edge: it is dialled by the stage that it leads from, and dialled again after each loss.
//!
//! What always holds: where to dial is read from the roster each time, so a new contact needs no new keeper; tries are
//! spaced, up to a limit; a peer's newer roster is taken before the next try.

use std::sync::{Arc, Weak};
use std::time::Duration;

use stageline_core::id::{EndpointKey, StageId};
use tokio_util::sync::CancellationToken;

use super::edge::{self, Bulk, Wire};
use super::endpoint::{STAGE_ALPN, address, chain};
use super::fabric::Shared;
use super::hello::{Answer, EdgeKind, HELLO_MAX, Hello, PROTOCOL, read_message, write_message};
use super::node::Node;
use super::roster::RosterStage;

/// A peer that is there answers well within this, also by way of a relay.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// The first pause between two tries; doubled each time.
const REDIAL_MIN: Duration = Duration::from_millis(50);
/// An edge that lived this long makes the next pause the first one again.
const STABLE: Duration = Duration::from_secs(10);

/// Keeps one edge of a stage that is here.
pub(super) struct Keeper {
    pub(super) shared: Weak<Shared>,
    pub(super) node: Arc<Node>,
    pub(super) kind: EdgeKind,
    pub(super) stop: CancellationToken,
}

/// How a try went.
enum Try {
    /// The edge was up and ended.
    Ended(Duration),
    /// A newer roster was taken: at once again.
    Again,
    /// It did not come up.
    Failed(String),
}

impl Keeper {
    /// Keeps the edge until it is stopped.
    pub(super) async fn run(self) {
        let mut pause = REDIAL_MIN;
        loop {
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let (clock, redial_max) = (Arc::clone(&shared.config.clock), shared.timing.redial_max);
            let tried = tokio::select! {
                tried = self.attempt(&shared) => tried,
                () = self.stop.cancelled() => return,
            };
            drop(shared);
            match tried {
                Try::Again => continue,
                Try::Ended(lived) if lived >= STABLE => pause = REDIAL_MIN,
                Try::Ended(_) => {}
                Try::Failed(why) => {
                    if let Some(side) = self.kind.outgoing() {
                        self.node.edge_unreachable(side, &why);
                    }
                }
            }
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            pause = (pause * 2).min(redial_max);
        }
    }

    async fn attempt(&self, shared: &Arc<Shared>) -> Try {
        let place = self.node.place();
        let Some(side) = self.kind.outgoing() else {
            return Try::Failed("prompts have no edge".to_owned());
        };
        let to = place.neighbour(side);
        let Some((_, roster)) = shared.roster(&place.id.pipeline) else {
            return Try::Failed("no roster is here".to_owned());
        };
        let Some(stage) = roster.stage(to.index) else {
            return Try::Failed(format!("the roster has no {to}"));
        };
        if stage.endpoint == shared.key {
            return self.local(shared, &to).await;
        }
        let begun = shared.config.clock.boottime();
        let dialled = tokio::select! {
            dialled = self.dial(shared, stage, &place.id) => dialled,
            () = moved(shared, &to, stage) => Err(Try::Again),
            () = shared.config.clock.sleep(DIAL_MAX) => {
                Err(Try::Failed(format!("no answer within {} s", DIAL_MAX.as_secs())))
            }
        };
        match dialled {
            Ok((wire, peer, why)) => {
                let lease = self.node.edge_up(side, peer, &why);
                let clock = &shared.config.clock;
                let why = edge::run(&self.node, side, &lease, wire, clock).await;
                tracing::info!(from = %place.id, to = %to, why, "edge down");
                Try::Ended(clock.boottime().saturating_sub(begun))
            }
            Err(other) => other,
        }
    }

    /// Both stages are in this process: no connection is needed.
    async fn local(&self, shared: &Arc<Shared>, to: &StageId) -> Try {
        let (Some(out), Some(into)) = (self.kind.outgoing(), self.kind.incoming()) else {
            return Try::Failed("prompts have no edge".to_owned());
        };
        let Some(there) = shared.node(to) else {
            return Try::Failed(format!("{to} is not in place yet"));
        };
        let begun = shared.config.clock.boottime();
        let why = "it was made anew";
        let near = self.node.edge_up(out, shared.key, why);
        let far = there.edge_up(into, shared.key, why);
        edge::run_local((&self.node, out, &near), (&there, into, &far)).await;
        Try::Ended(shared.config.clock.boottime().saturating_sub(begun))
    }

    async fn dial(
        &self,
        shared: &Arc<Shared>,
        stage: &RosterStage,
        from: &StageId,
    ) -> Result<(Wire, EndpointKey, String), Try> {
        let failed = |why: String| Try::Failed(why);
        let addr = address(stage.endpoint, &stage.contact).map_err(failed)?;
        let connection = shared
            .endpoint()
            .connect(addr, STAGE_ALPN)
            .await
            .map_err(|error| failed(chain(&error)))?;
        let lost = |connection: &iroh::endpoint::Connection, why: String| {
            let reason = connection.close_reason().map(|error| chain(&error));
            Try::Failed(reason.unwrap_or(why))
        };
        let (mut send, mut recv) = connection
            .open_bi()
            .await
            .map_err(|error| failed(chain(&error)))?;
        // The roster is read again: it may have changed while the connection was made.
        let (signed, roster) = shared
            .roster(&from.pipeline)
            .ok_or_else(|| failed("no roster is here".to_owned()))?;
        let hello = Hello {
            protocol: PROTOCOL.to_owned(),
            lineage: roster.lineage,
            pipeline: from.pipeline.clone(),
            edge: self.kind,
            stage: from.index,
            epoch: shared.epoch,
            dtype: Some(roster.dtype),
            hidden_size: self.node.hidden_size(),
            roster: Some(signed),
        };
        write_message(&mut send, &hello)
            .await
            .map_err(|error| lost(&connection, error.to_string()))?;
        let answer = read_message::<Answer>(&mut recv, HELLO_MAX)
            .await
            .map_err(|error| lost(&connection, error.to_string()))?
            .ok_or_else(|| lost(&connection, "it gave no answer to our hello".to_owned()))?;
        let why = match answer {
            Answer::Welcome { epoch, .. } => {
                let slot = (from.pipeline.clone(), self.kind, from.index, stage.endpoint);
                let changed = shared.note_start(slot, epoch).map_err(failed)?;
                edge_replaced(changed).to_owned()
            }
            Answer::Stale { roster } => {
                edge::close(&connection, "taking the newer roster");
                return Err(match shared.set_roster(roster) {
                    Ok(_) => Try::Again,
                    Err(error) => Try::Failed(error.to_string()),
                });
            }
            Answer::Refused { why, .. } => {
                edge::close(&connection, "refused");
                return Err(Try::Failed(format!("it refused us: {why}")));
            }
        };
        let wire = Wire {
            connection,
            send,
            recv,
            bulk: Bulk::Write,
        };
        Ok((wire, stage.endpoint, why))
    }
}

/// Returns once a roster says that a stage is reached elsewhere.
async fn moved(shared: &Arc<Shared>, to: &StageId, before: &RosterStage) {
    loop {
        let taken = shared.taken.notified();
        let now = shared.roster(&to.pipeline);
        let stage = now.as_ref().and_then(|(_, roster)| roster.stage(to.index));
        if stage.is_some_and(|stage| before.contact.moved(&stage.contact).is_some()) {
            return;
        }
        taken.await;
    }
}

/// Why the requests of an earlier edge fail.
pub(super) fn edge_replaced(started_anew: bool) -> &'static str {
    if started_anew {
        "its agent was started anew, so what it had computed is gone"
    } else {
        "it was made anew"
    }
}
