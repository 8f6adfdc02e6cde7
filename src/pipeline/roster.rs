//! The signed list by which the agents of a pipeline know each other: who runs which stage, who may prompt, which limits.
//!
//! What always holds: a [`Roster`] that came from elsewhere went through [`SignedRoster::verify`], so it is the operator's,
//! of our lineage, and within its size; of two rosters the one with the higher revision counts; the same roster has the
//! same bytes. What it refuses: rosters that say one thing in two ways, and any membership that nobody signed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use stageline_core::id::{EndpointKey, JournalNumber, LeaseId, Lineage, Name, OperatorId, StageId};
use stageline_core::resource::{Contact, PipelineShare};
use stageline_core::topology::{Dtype, Layers};
use stageline_core::unit::{Bytes, Millis};

use super::keys::Secret;

/// A roster must fit into a hello of 16 KiB, its quotes escaped.
pub const ROSTER_BYTES_MAX: usize = 12 << 10;
/// More stages than any model has layers worth cutting between.
const STAGES_MAX: usize = 128;
/// Addresses of one machine.
const DIRECT_MAX: usize = 16;
/// Prefixed to what is signed, so that no other signature of the operator passes for a roster's.
const SIGNED_AS: &[u8] = b"stageline roster v1\0";

/// One stage, where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RosterStage {
    /// The agent that runs it.
    pub endpoint: EndpointKey,
    /// How to reach that agent.
    pub contact: Contact,
    /// Its layers, for engines that have a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
}

/// What a pipeline takes at most; beyond it the answer is "busy".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests at once.
    pub max_in_flight: u32,
    /// One request, from its admission to its last token.
    pub request_timeout: Millis,
    /// Hidden states that wait for one edge or one worker, per stage.
    pub queue_bytes: Bytes,
    /// Positions that all requests together may take; none leaves it to the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<u64>,
}

impl Limits {
    /// A prompt of 8192 positions of 8192 f32 numbers, the largest that we expect, waits at the first stage.
    pub const QUEUE_BYTES_DEFAULT: Bytes = Bytes::mib(256);
}

/// Who is who in one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roster {
    /// The life of the topology that it belongs to.
    pub lineage: Lineage,
    /// The pipeline.
    pub pipeline: Name,
    /// The journal number of the step that made it.
    pub revision: JournalNumber,
    /// Who signed it, and may prompt.
    pub operator: OperatorId,
    /// Every stage in order.
    pub stages: Vec<RosterStage>,
    /// Who else may prompt: the agents that expose the pipeline.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub prompters: BTreeSet<EndpointKey>,
    /// What the pipeline takes at most.
    pub limits: Limits,
    /// Numbers on the hop.
    pub dtype: Dtype,
}

/// Why a roster was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// Nobody may believe it.
    #[error("the roster is not the operator's: its signature does not fit")]
    Signature,
    /// It belongs to another topology, or another operator.
    #[error("the roster of {pipeline} belongs to {what}")]
    Foreign {
        /// Of which pipeline.
        pipeline: Name,
        /// Whose it is.
        what: String,
    },
    /// It cannot be read, or says something impossible.
    #[error("the roster makes no sense: {0}")]
    Invalid(String),
    /// A newer one is here.
    #[error("the roster of {pipeline} has revision {theirs}; revision {ours} is here already")]
    Stale {
        /// Of which pipeline.
        pipeline: Name,
        /// The revision that was offered.
        theirs: JournalNumber,
        /// The revision that is here.
        ours: JournalNumber,
    },
    /// Two rosters claim one revision.
    #[error("two rosters of {pipeline} have revision {revision} and differ")]
    Conflict {
        /// Of which pipeline.
        pipeline: Name,
        /// The revision of both.
        revision: JournalNumber,
    },
    /// It could not be written down.
    #[error("the roster of {pipeline} could not be kept: {why}")]
    Keep {
        /// Of which pipeline.
        pipeline: Name,
        /// What the system said.
        why: String,
    },
}

impl Roster {
    /// The roster of a share of a pipeline; none of its machines may be missing in `peers`.
    ///
    /// # Errors
    /// The machine that is missing.
    pub fn of_share(
        head: RosterHead,
        share: &PipelineShare,
        peers: &BTreeMap<LeaseId, (EndpointKey, Contact)>,
    ) -> Result<Self, LeaseId> {
        let stage = |line: &stageline_core::resource::RosterLine| {
            let (endpoint, contact) = peers.get(&line.lease).ok_or_else(|| line.lease.clone())?;
            Ok(RosterStage {
                endpoint: *endpoint,
                contact: contact.clone(),
                layers: line.layers,
            })
        };
        Ok(Self {
            lineage: head.lineage,
            pipeline: head.pipeline,
            revision: head.revision,
            operator: head.operator,
            stages: share.roster.iter().map(stage).collect::<Result<_, _>>()?,
            prompters: head.prompters,
            limits: Limits {
                max_in_flight: share.max_in_flight,
                request_timeout: share.request_timeout,
                queue_bytes: Limits::QUEUE_BYTES_DEFAULT,
                kv_tokens: None,
            },
            dtype: share.dtype,
        })
    }

    /// Signs it.
    ///
    /// # Errors
    /// [`RosterError::Invalid`] when nobody would take it, and [`RosterError::Foreign`] when the key is not its operator's.
    pub fn sign(&self, operator: &Secret) -> Result<SignedRoster, RosterError> {
        if operator.operator() != self.operator {
            return Err(RosterError::Foreign {
                pipeline: self.pipeline.clone(),
                what: format!("operator {}", self.operator),
            });
        }
        let text = self.text();
        self.check(&text)?;
        let signature = operator.to_iroh().sign(&signed_bytes(&text));
        Ok(SignedRoster {
            roster: text,
            signature: Signature(signature.to_bytes()),
        })
    }

    /// Whether another one says the same under another revision: the deliveries of one plan differ in nothing else.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let same = Self {
            revision: other.revision,
            ..self.clone()
        };
        same == *other
    }

    /// The machines that are reached elsewhere than an earlier roster says.
    pub fn moved(&self, before: &Self) -> Vec<EndpointKey> {
        let moved = |now: &&RosterStage| {
            let mut before = before.stages.iter();
            before.any(|was| {
                was.endpoint == now.endpoint && was.contact.moved(&now.contact).is_some()
            })
        };
        self.stages
            .iter()
            .filter(moved)
            .map(|now| now.endpoint)
            .collect()
    }

    /// How many stages there are.
    pub fn num_stages(&self) -> u32 {
        u32::try_from(self.stages.len()).expect("checked: at most 128 stages")
    }

    /// One of its stages.
    pub fn stage(&self, index: u32) -> Option<&RosterStage> {
        self.stages.get(index as usize)
    }

    /// The name of one of its stages.
    pub fn stage_id(&self, index: u32) -> StageId {
        StageId {
            pipeline: self.pipeline.clone(),
            index,
        }
    }

    /// Whether that endpoint may send prompts.
    pub fn may_prompt(&self, endpoint: &EndpointKey) -> bool {
        endpoint.0 == self.operator.0 || self.prompters.contains(endpoint)
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("a roster is plain data")
    }

    fn check(&self, text: &str) -> Result<(), RosterError> {
        let wrong = |why: String| Err(RosterError::Invalid(why));
        if text.len() > ROSTER_BYTES_MAX {
            return wrong(format!(
                "it has {} bytes; at most {ROSTER_BYTES_MAX} are taken",
                text.len()
            ));
        }
        if self.stages.is_empty() || self.stages.len() > STAGES_MAX {
            return wrong(format!(
                "it has {} stages; 1 to {STAGES_MAX} can be",
                self.stages.len()
            ));
        }
        if self.limits.max_in_flight == 0 || self.limits.request_timeout.0 == 0 {
            return wrong("its limits let nothing through".to_owned());
        }
        let crowded = |stage: &RosterStage| stage.contact.direct.len() > DIRECT_MAX;
        match self.stages.iter().position(crowded) {
            Some(index) => wrong(format!(
                "stage {index} has more than {DIRECT_MAX} addresses"
            )),
            None => Ok(()),
        }
    }
}

/// What a roster has besides its share: of what, which, whose.
#[derive(Clone, Debug)]
pub struct RosterHead {
    /// The life of the topology.
    pub lineage: Lineage,
    /// The pipeline.
    pub pipeline: Name,
    /// The journal number of the step.
    pub revision: JournalNumber,
    /// Who signs.
    pub operator: OperatorId,
    /// Who else may prompt.
    pub prompters: BTreeSet<EndpointKey>,
}

/// A roster as it travels and is kept: the text that was signed, and the signature. Not yet believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedRoster {
    roster: String,
    signature: Signature,
}

impl SignedRoster {
    /// The roster, if it is this operator's, of this lineage, and in its one spelling.
    ///
    /// # Errors
    /// [`RosterError`] says what is wrong with it.
    pub fn verify(&self, operator: &OperatorId, lineage: &Lineage) -> Result<Roster, RosterError> {
        if self.roster.len() > ROSTER_BYTES_MAX {
            return Err(RosterError::Invalid(format!(
                "it has {} bytes; at most {ROSTER_BYTES_MAX} are taken",
                self.roster.len()
            )));
        }
        let key = iroh::PublicKey::from_bytes(&operator.0).map_err(|_| RosterError::Signature)?;
        let signature = iroh::Signature::from_bytes(&self.signature.0);
        key.verify(&signed_bytes(&self.roster), &signature)
            .map_err(|_| RosterError::Signature)?;
        let roster: Roster = serde_json::from_str(&self.roster)
            .map_err(|error| RosterError::Invalid(error.to_string()))?;
        if roster.text() != self.roster {
            return Err(RosterError::Invalid("it has a second spelling".to_owned()));
        }
        roster.check(&self.roster)?;
        let foreign = |what: String| RosterError::Foreign {
            pipeline: roster.pipeline.clone(),
            what,
        };
        if roster.operator != *operator {
            return Err(foreign(format!("operator {}", roster.operator)));
        }
        if roster.lineage != *lineage {
            return Err(foreign(format!("lineage {}", roster.lineage)));
        }
        Ok(roster)
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Signature([u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(..)")
    }
}

impl Serialize for Signature {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a signature is 128 hexadecimal digits");
        if text.len() != 128 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

fn signed_bytes(text: &str) -> Vec<u8> {
    [SIGNED_AS, text.as_bytes()].concat()
}

/// Where an agent keeps the rosters that it believes, so that it knows them after a restart.
pub trait KeepRosters: Send + Sync + 'static {
    /// Writes one down durably, in place of an older one of the same pipeline.
    ///
    /// # Errors
    /// When it could not be written; the roster is not used then.
    fn keep(&self, pipeline: &Name, roster: &SignedRoster) -> Result<(), String>;
}

/// Keeps nothing: for tests, and for an operator's own process.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepNothing;

impl KeepRosters for KeepNothing {
    fn keep(&self, _: &Name, _: &SignedRoster) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(operator: &Secret) -> Roster {
        let stage = |n: u8| RosterStage {
            endpoint: Secret::new([n; 32]).endpoint(),
            contact: Contact {
                direct: vec![([127, 0, 0, 1], 4000 + u16::from(n)).into()],
                relay: None,
            },
            layers: None,
        };
        Roster {
            lineage: Lineage([1; 16]),
            pipeline: "llama".parse().expect("a name"),
            revision: JournalNumber(7),
            operator: operator.operator(),
            stages: vec![stage(1), stage(2)],
            prompters: BTreeSet::from([Secret::new([9; 32]).endpoint()]),
            limits: Limits {
                max_in_flight: 8,
                request_timeout: Millis::seconds(60),
                queue_bytes: Limits::QUEUE_BYTES_DEFAULT,
                kv_tokens: None,
            },
            dtype: Dtype::F32,
        }
    }

    #[test]
    fn a_signed_roster_survives_the_way_and_nothing_else_does() {
        let operator = Secret::new([3; 32]);
        let roster = roster(&operator);
        let signed = roster.sign(&operator).expect("ours");
        let wire = serde_json::to_string(&signed).expect("plain data");
        let back: SignedRoster = serde_json::from_str(&wire).expect("the same");
        let verify = |signed: &SignedRoster| signed.verify(&operator.operator(), &roster.lineage);
        assert_eq!(verify(&back), Ok(roster.clone()));

        let mut changed = signed.clone();
        changed.roster = changed.roster.replace("\"revision\":7", "\"revision\":8");
        assert_ne!(changed, signed);
        assert_eq!(verify(&changed), Err(RosterError::Signature));

        let stranger = Secret::new([4; 32]);
        assert_eq!(
            signed.verify(&stranger.operator(), &roster.lineage),
            Err(RosterError::Signature)
        );
        assert!(matches!(
            signed.verify(&operator.operator(), &Lineage([2; 16])),
            Err(RosterError::Foreign { .. })
        ));
        assert!(matches!(
            roster.sign(&stranger),
            Err(RosterError::Foreign { .. })
        ));
    }

    #[test]
    fn a_roster_too_large_for_a_hello_is_refused_when_it_is_signed() {
        let operator = Secret::new([3; 32]);
        let mut roster = roster(&operator);
        roster.stages = vec![roster.stages[0].clone(); 100];
        let error = roster.sign(&operator).expect_err("too large");
        assert!(error.to_string().contains("at most 12288"), "{error}");
        roster.stages.clear();
        let error = roster.sign(&operator).expect_err("empty");
        assert!(error.to_string().contains("0 stages"), "{error}");
    }

    #[test]
    fn the_operator_and_those_named_may_prompt() {
        let operator = Secret::new([3; 32]);
        let roster = roster(&operator);
        assert!(roster.may_prompt(&operator.endpoint()));
        assert!(roster.may_prompt(&Secret::new([9; 32]).endpoint()));
        assert!(!roster.may_prompt(&roster.stages[0].endpoint));
    }
}
