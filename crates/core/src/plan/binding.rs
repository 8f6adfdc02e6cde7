//! Whether a plan may be applied to a state: it binds to what it was drafted from, and is consumed once.

use super::{FORMAT, Mode, Plan};
use crate::id::{Epoch, Fingerprint};
use crate::state::State;
use crate::unit::Timestamp;

/// How a plan may be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// For the first time.
    Fresh,
    /// It was begun and cut off; it goes on behind the steps that are done.
    Resume,
}

/// Why a plan may not be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Written by a newer stageline.
    #[error("this plan has format {found}, this stageline reads up to {FORMAT}")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// Drafted for another life of the topology.
    #[error(
        "this plan was drafted for another lineage: the state has been begun anew since, or is another one"
    )]
    OtherLineage,
    /// All of its steps are done.
    #[error("this plan was applied already, by run {epoch}")]
    Finished {
        /// By which run.
        epoch: Epoch,
    },
    /// It was begun, and another plan has been begun since.
    #[error("this plan was begun by run {epoch}, and another run has changed things since")]
    Overtaken {
        /// By which run.
        epoch: Epoch,
    },
    /// Too old.
    #[error("this plan expired at {at}")]
    Expired {
        /// When.
        at: Timestamp,
    },
    /// The topology was changed.
    #[error("the topology was changed after this plan was drafted")]
    OtherTopology,
    /// What is recorded was changed.
    #[error("what is recorded changed after this plan was drafted")]
    Stale,
}

impl Refusal {
    /// What to do now.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Newer { .. } => "use the stageline that made it, or plan again with this one",
            Self::OtherLineage => "plan again against this state",
            Self::Finished { .. } => "nothing is to be done; plan again to see what differs now",
            Self::Overtaken { .. } | Self::Expired { .. } | Self::Stale => {
                "plan again and review the difference"
            }
            Self::OtherTopology => {
                "plan again, or give the topology files that the plan was drafted from"
            }
        }
    }
}

/// Whether and how a plan may be applied. `topology_digest` is none where no topology is at hand: a destroy needs none,
/// and a saved plan is complete without one.
///
/// # Errors
/// [`Refusal`], with what to do.
pub fn may_apply(
    plan: &Plan,
    state: &State,
    topology_digest: Option<Fingerprint>,
    now: Timestamp,
) -> Result<Start, Refusal> {
    if plan.format > FORMAT {
        return Err(Refusal::Newer { found: plan.format });
    }
    let lineage = state.genesis.as_ref().map(|genesis| genesis.lineage);
    if let (Some(consumed), true) = (
        state.consumed.get(&plan.id),
        plan.lineage.is_none() || plan.lineage == lineage,
    ) {
        let last = state.run.as_ref().and_then(|run| run.plan);
        return match (consumed.finished, last == Some(plan.id)) {
            (true, _) => Err(Refusal::Finished {
                epoch: consumed.epoch,
            }),
            (false, true) => Ok(Start::Resume),
            (false, false) => Err(Refusal::Overtaken {
                epoch: consumed.epoch,
            }),
        };
    }
    if plan.lineage != lineage {
        return Err(match plan.lineage {
            Some(_) => Refusal::OtherLineage,
            // It was drafted before there was any state, and by now there is some.
            None => Refusal::Stale,
        });
    }
    if now >= plan.expires_at {
        return Err(Refusal::Expired {
            at: plan.expires_at,
        });
    }
    let other = topology_digest.is_some_and(|digest| plan.topology_digest != Some(digest));
    if other && plan.mode == Mode::Apply {
        return Err(Refusal::OtherTopology);
    }
    if !state.is_at(plan.base) {
        return Err(Refusal::Stale);
    }
    Ok(Start::Fresh)
}
