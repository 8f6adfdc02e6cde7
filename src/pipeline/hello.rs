//! The first message of every connection, its answer, and who may join which edge.
//!
//! What always holds: nothing of a peer is believed before its hello was checked against a roster that the operator
//! signed; the roster in a hello is looked at before the peer is, so that a machine that took another's place is not turned
//! away by those who have not heard of it; only a hello in return makes an edge.

use iroh::endpoint::{RecvStream, SendStream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stageline_core::id::{EndpointKey, JournalNumber, Lineage, Name};
use stageline_core::stage_protocol::Dtype;

use super::frame::printable;
use super::roster::{Roster, SignedRoster};
use super::stage::Side;

/// Of a hello and of its answer.
pub(super) const HELLO_MAX: usize = 16 << 10;
/// The protocol of edges, as a hello names it.
pub(super) const PROTOCOL: &str = "stageline/1";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EdgeKind {
    /// Hidden states, from a stage to the next.
    Activations,
    /// Tokens, from the last stage to the first.
    Tokens,
    /// Prompts, to the first stage.
    Prompts,
}

impl EdgeKind {
    /// The edge as the stage sees it that it leads to.
    pub(super) fn incoming(self) -> Option<Side> {
        match self {
            Self::Activations => Some(Side::Prev),
            Self::Tokens => Some(Side::TokensIn),
            Self::Prompts => None,
        }
    }

    /// The edge as the stage sees it that it leads from.
    pub(super) fn outgoing(self) -> Option<Side> {
        match self {
            Self::Activations => Some(Side::Next),
            Self::Tokens => Some(Side::TokensOut),
            Self::Prompts => None,
        }
    }
}

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: String,
    pub(super) lineage: Lineage,
    pub(super) pipeline: Name,
    pub(super) edge: EdgeKind,
    /// Whose edge it is, on the sender's side; 0 for prompts.
    pub(super) stage: u32,
    /// Random per start of the sender.
    pub(super) epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dtype: Option<Dtype>,
    /// 0 while no worker said it.
    #[serde(default)]
    pub(super) hidden_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) roster: Option<SignedRoster>,
}

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hello", rename_all = "lowercase")]
pub(super) enum Answer {
    /// The edge is up.
    Welcome { epoch: u64, revision: JournalNumber },
    /// A newer roster is here: take it and come again.
    Stale { roster: SignedRoster },
    /// Not you (`forbidden`), or not so.
    Refused { forbidden: bool, why: String },
}

impl Answer {
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self::Refused {
            forbidden: false,
            why: why.into(),
        }
    }
}

/// Why no message came or went.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct MessageError(pub(super) String);

/// Sends one message: its length, then JSON.
pub(super) async fn write_message<T: Serialize>(
    send: &mut SendStream,
    message: &T,
) -> Result<(), MessageError> {
    let json = serde_json::to_vec(message).expect("our messages are plain data");
    let length = u32::try_from(json.len()).expect("our messages are below 4 GiB");
    let bytes = [&length.to_be_bytes(), json.as_slice()].concat();
    let lost = |error| MessageError(super::endpoint::chain(&error));
    send.write_all(&bytes).await.map_err(lost)
}

/// Waits for one message of at most `bytes_max`. None when the other side ended the stream before it.
pub(super) async fn read_message<T: DeserializeOwned>(
    recv: &mut RecvStream,
    bytes_max: usize,
) -> Result<Option<T>, MessageError> {
    use iroh::endpoint::ReadExactError;
    let mut length = [0; 4];
    match recv.read_exact(&mut length).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(MessageError(super::endpoint::chain(&error))),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > bytes_max {
        return Err(MessageError(format!(
            "a message of {length} bytes was announced; at most {bytes_max} are taken"
        )));
    }
    let mut json = vec![0; length];
    recv.read_exact(&mut json)
        .await
        .map_err(|error| MessageError(super::endpoint::chain(&error)))?;
    let unreadable = |error: serde_json::Error| {
        MessageError(printable(&format!("not our message: {error}"), 300))
    };
    serde_json::from_slice(&json).map(Some).map_err(unreadable)
}

/// Which stage here an edge leads to; or why this peer may not have it.
pub(super) fn authorize(
    roster: &Roster,
    ours: &EndpointKey,
    peer: &EndpointKey,
    hello: &Hello,
) -> Result<u32, String> {
    let count = roster.num_stages();
    let from = roster.stage_id(hello.stage);
    let to = match hello.edge {
        EdgeKind::Prompts => {
            if !roster.may_prompt(peer) {
                return Err(format!(
                    "{peer} may not prompt pipeline.{}: roster {} does not name it",
                    roster.pipeline, roster.revision
                ));
            }
            return runs_here(roster, ours, 0);
        }
        EdgeKind::Activations if hello.stage + 1 < count => hello.stage + 1,
        EdgeKind::Tokens if count > 1 && hello.stage == count - 1 => 0,
        EdgeKind::Activations | EdgeKind::Tokens => {
            return Err(format!("{from} has no such edge in {count} stages"));
        }
    };
    let named = roster.stage(hello.stage).map(|stage| stage.endpoint);
    if named != Some(*peer) {
        return Err(format!(
            "{peer} is not {from}: roster {} names another machine",
            roster.revision
        ));
    }
    if hello.dtype != Some(roster.dtype) {
        return Err(format!(
            "{from} sends another dtype than {:?}",
            roster.dtype
        ));
    }
    runs_here(roster, ours, to)
}

fn runs_here(roster: &Roster, ours: &EndpointKey, index: u32) -> Result<u32, String> {
    let here = roster.stage(index).map(|stage| stage.endpoint) == Some(*ours);
    here.then_some(index).ok_or_else(|| {
        format!(
            "{} does not run here: roster {} names another machine",
            roster.stage_id(index),
            roster.revision
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stageline_core::resource::Contact;
    use stageline_core::unit::Millis;

    use super::super::keys::Secret;
    use super::super::roster::{Limits, RosterStage};
    use super::*;

    fn key(n: u8) -> EndpointKey {
        Secret::new([n; 32]).endpoint()
    }

    /// Stages 0 and 2 on machine 1, stage 1 on machine 2.
    fn roster() -> Roster {
        let stage = |n: u8| RosterStage {
            endpoint: key(n),
            contact: Contact::default(),
            layers: None,
        };
        Roster {
            lineage: Lineage([1; 16]),
            pipeline: "llama".parse().expect("a name"),
            revision: JournalNumber(3),
            operator: Secret::new([9; 32]).operator(),
            stages: vec![stage(1), stage(2), stage(1)],
            prompters: BTreeSet::from([key(5)]),
            limits: Limits {
                max_in_flight: 4,
                request_timeout: Millis::seconds(5),
                queue_bytes: Limits::QUEUE_BYTES_DEFAULT,
                kv_tokens: None,
            },
            dtype: Dtype::Bf16,
        }
    }

    fn hello(edge: EdgeKind, stage: u32) -> Hello {
        Hello {
            protocol: PROTOCOL.to_owned(),
            lineage: Lineage([1; 16]),
            pipeline: "llama".parse().expect("a name"),
            edge,
            stage,
            epoch: 1,
            dtype: Some(Dtype::Bf16),
            hidden_size: 0,
            roster: None,
        }
    }

    #[test]
    fn each_edge_takes_its_own_neighbour_and_nobody_else() {
        use EdgeKind::{Activations, Prompts, Tokens};
        let roster = roster();
        let allowed = |ours: u8, peer: u8, edge, stage| {
            authorize(&roster, &key(ours), &key(peer), &hello(edge, stage))
        };
        assert_eq!(allowed(2, 1, Activations, 0), Ok(1));
        assert_eq!(allowed(1, 2, Activations, 1), Ok(2));
        assert_eq!(allowed(1, 1, Tokens, 2), Ok(0));
        assert_eq!(allowed(1, 9, Prompts, 0), Ok(0));
        assert_eq!(allowed(1, 5, Prompts, 0), Ok(0));
        for (ours, peer, edge, stage) in [
            (2, 3, Activations, 0),
            (2, 2, Activations, 0),
            (1, 1, Activations, 0),
            (1, 1, Activations, 2),
            (1, 2, Tokens, 1),
            (1, 2, Tokens, 2),
            (1, 1, Activations, u32::MAX - 1),
            (1, 2, Prompts, 0),
            (2, 9, Prompts, 0),
        ] {
            let result = allowed(ours, peer, edge, stage);
            assert!(
                result.is_err(),
                "{ours} {peer} {edge:?} {stage}: {result:?}"
            );
        }
    }

    #[test]
    fn another_dtype_is_refused() {
        let mut hello = hello(EdgeKind::Activations, 0);
        hello.dtype = Some(Dtype::F32);
        let error = authorize(&roster(), &key(2), &key(1), &hello).expect_err("f32");
        assert!(error.contains("dtype"), "{error}");
    }
}
