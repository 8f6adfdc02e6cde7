//! Why what is recorded cannot be changed as somebody asks, and what to do then.

use super::LeaseRange;
use crate::id::{LeaseId, MachineId, RequestKey};

/// Why what is recorded cannot be changed like that. Nothing was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurgeryError {
    /// Nothing is recorded there.
    #[error("{0} is not recorded, so there is nothing to move or to take out")]
    Missing(String),
    /// Something is recorded there already.
    #[error("{to} is recorded too, so {from} cannot become it")]
    Both {
        /// What was to be moved.
        from: LeaseId,
        /// Where to.
        to: LeaseId,
    },
    /// A whole table goes to a whole table, and one machine to one machine.
    #[error(
        "{from} and {to} are not of one kind: one names a table of leases, the other one machine"
    )]
    Uneven {
        /// What was to be moved.
        from: LeaseRange,
        /// Where to.
        to: LeaseRange,
    },
    /// A try is in doubt and its number is used at the new address.
    #[error("{0} is unresolved and may bill: what its tries made is not known yet")]
    Unresolved(LeaseId),
    /// The machine is recorded already.
    #[error("machine {machine} is {lease} already")]
    Known {
        /// Which machine.
        machine: MachineId,
        /// Under which address.
        lease: LeaseId,
    },
    /// A lease ends once, and for one reason.
    #[error("{0} cannot end by two limits at once")]
    Twice(LeaseId),
    /// The address has a machine, or may have one.
    #[error("{0} has a machine already, or may have one")]
    Taken(LeaseId),
    /// The machine carries the mark of another state, or none.
    #[error("machine {machine} carries no mark of this state: its name is `{key}`")]
    Foreign {
        /// Which machine.
        machine: MachineId,
        /// Its name.
        key: RequestKey,
    },
}

impl SurgeryError {
    /// What to do now.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing(_) => "`stageline state list` names what is recorded".to_owned(),
            Self::Both { from, to } => format!(
                "end one of the two first: `stageline release {to}` or `stageline release {from}`"
            ),
            Self::Uneven { .. } => "write both as lease.NAME, or both as lease.NAME[i]".to_owned(),
            Self::Unresolved(_) => {
                "resolve it first: `stageline apply` with the topology as it was, or `stageline release` on it".to_owned()
            }
            Self::Known { lease, .. } => {
                format!("`stageline state mv {lease} ADDR` gives it another address")
            }
            Self::Twice(_) => "this is a bug in stageline: please report it".to_owned(),
            Self::Taken(lease) => format!(
                "choose another address, or end that one first: `stageline release {lease}`"
            ),
            Self::Foreign { .. } => {
                "no agent on it obeys this state; use the state that it was made from, \
                 or end it in the provider's console"
                    .to_owned()
            }
        }
    }
}
