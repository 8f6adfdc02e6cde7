//! Surgery on what is recorded: moving, taking out, adopting, going back. Pure: from a state to the records that change it.
//!
//! Nothing is made or ended by any of it. A machine is never forgotten without a word: what goes on billing is said by
//! whoever asks for the records. Only leases are named: what stands on a machine goes with it. A machine keeps its request
//! key, so it is still found under the name that it was made with.

mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::SurgeryError;

use super::{Billed, LedgerClock, Limit, Recorded, State};
use crate::id::{Address, Attempt, LeaseId, MachineId, Name, RequestKey};
use crate::journal::Record;
use crate::resource::{LeaseReceipt, LeaseSpec, Receipt, Spec};
use crate::unit::Timestamp;

/// One change of what is recorded, as a plan carries it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Edit {
    /// A lease gets another address. Its machine stays.
    Move {
        /// The old one.
        from: LeaseId,
        /// The new one.
        to: LeaseId,
    },
    /// A lease is taken out of the state. Its machine stays, and goes on billing.
    Remove {
        /// Which.
        lease: LeaseId,
    },
    /// A lease is beyond a limit of its own. What is left of it is ended by the steps of the same plan.
    Lapse {
        /// Which.
        lease: LeaseId,
        /// The limit.
        limit: Limit,
        /// What was seen.
        why: String,
    },
    /// That a lease ended by its limit does not count any more.
    Unlapse {
        /// Which.
        lease: LeaseId,
    },
}

/// `lease.NAME` or `lease.NAME[i]`: a whole table or one machine of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeaseRange {
    /// The table.
    pub name: Name,
    /// One machine; none is all of them.
    pub index: Option<u32>,
}

/// Records that change the state, and what a person should know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surgery {
    /// To be appended together; empty when there is nothing to do.
    pub records: Vec<Record>,
    /// One sentence each.
    pub notes: Vec<String>,
}

/// A machine that is adopted into a lease.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Where to.
    pub lease: LeaseId,
    /// What the lease should be.
    pub spec: LeaseSpec,
    /// What is recorded of the machine.
    pub receipt: LeaseReceipt,
    /// Its provider bills a machine from when it runs.
    pub boots_free: bool,
    /// The lease that the machine was made for, when that is another one.
    pub made_for: Option<LeaseId>,
}

impl LeaseRange {
    /// Whether a lease is in it.
    pub fn has(&self, lease: &LeaseId) -> bool {
        self.name == lease.name && self.index.is_none_or(|index| index == lease.index)
    }

    /// The same place in another range.
    fn at(&self, lease: &LeaseId) -> LeaseId {
        LeaseId {
            name: self.name.clone(),
            index: self.index.unwrap_or(lease.index),
        }
    }
}

impl fmt::Display for LeaseRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "lease.{}[{index}]", self.name),
            None => write!(f, "lease.{}", self.name),
        }
    }
}

impl FromStr for LeaseRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(Address::Lease(lease)) = text.parse() {
            return Ok(Self {
                name: lease.name,
                index: Some(lease.index),
            });
        }
        let name = text
            .strip_prefix("lease.")
            .and_then(|name| name.parse().ok());
        match name {
            Some(name) => Ok(Self { name, index: None }),
            None => Err(format!(
                "`{}` is not lease.NAME or lease.NAME[i]; what stands on a lease goes with it",
                text.escape_default()
            )),
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Move { from, to } => write!(f, "{from} becomes {to}"),
            Self::Remove { lease } => write!(f, "{lease} is taken out of the state"),
            Self::Lapse {
                lease,
                limit: Limit::Interrupt,
                why,
            } => write!(f, "{lease} was taken away: {why}"),
            Self::Lapse { lease, limit, why } => write!(f, "{lease} ends by its {limit}, {why}"),
            Self::Unlapse { lease } => {
                write!(f, "how {lease} ended before is forgotten")
            }
        }
    }
}

impl State {
    /// The leases of a range that exist or may exist.
    pub fn leases_in<'a>(&'a self, range: &'a LeaseRange) -> impl Iterator<Item = &'a LeaseId> {
        self.existing()
            .filter_map(|(address, _)| match address {
                Address::Lease(lease) => Some(lease),
                Address::Delivery(_)
                | Address::Bundle(_)
                | Address::Stage(_)
                | Address::Pipeline(_)
                | Address::Exposure(_) => None,
            })
            .filter(|lease| range.has(lease))
    }

    /// The moves that make one range of another.
    ///
    /// # Errors
    /// [`SurgeryError`] when the ranges are of different kinds. Whether each move can be done is told by
    /// [`State::edited`].
    pub fn moves(&self, from: &LeaseRange, to: &LeaseRange) -> Result<Vec<Edit>, SurgeryError> {
        if from.index.is_some() != to.index.is_some() {
            return Err(SurgeryError::Uneven {
                from: from.clone(),
                to: to.clone(),
            });
        }
        let moved = self.leases_in(from).map(|lease| Edit::Move {
            from: lease.clone(),
            to: to.at(lease),
        });
        Ok(moved.collect())
    }

    /// The records of several edits, which happen at once. What was done already is left away, so that a run that was
    /// cut off may say it again.
    ///
    /// # Errors
    /// [`SurgeryError`]: none of them is done then.
    pub fn edited(&self, edits: &[Edit], at: Timestamp) -> Result<Vec<Record>, SurgeryError> {
        let mut renames = BTreeMap::new();
        let mut removed = BTreeSet::new();
        let (mut lapses, mut lapsed) = (Vec::new(), BTreeSet::new());
        for edit in edits {
            match edit {
                Edit::Lapse { lease, .. } if !lapsed.insert(lease) => {
                    return Err(SurgeryError::Twice(lease.clone()));
                }
                Edit::Lapse { lease, limit, why } => {
                    lapses.extend(self.lapses_now(lease, *limit, why, at));
                }
                Edit::Unlapse { lease } => lapses.extend(self.unlapses_now(lease, at)),
                Edit::Move { from, to } if self.is_held(from) => {
                    renames.insert(from.clone(), to.clone());
                }
                Edit::Remove { lease } if self.is_held(lease) => {
                    let address = Address::Lease(lease.clone());
                    if self.resources[&address].is_unresolved() {
                        return Err(SurgeryError::Unresolved(lease.clone()));
                    }
                    removed.insert(lease.clone());
                }
                Edit::Move { from: lease, .. } | Edit::Remove { lease } => {
                    let done = match edit {
                        Edit::Move { to, .. } => self.is_held(to),
                        Edit::Remove { .. } | Edit::Lapse { .. } | Edit::Unlapse { .. } => true,
                    };
                    if !done {
                        return Err(SurgeryError::Missing(lease.to_string()));
                    }
                }
            }
        }
        for (from, to) in &renames {
            let frees = renames.contains_key(to) || removed.contains(to);
            let twice = renames.values().filter(|other| *other == to).count() > 1;
            if (self.is_held(to) && !frees) || twice {
                return Err(SurgeryError::Both {
                    from: from.clone(),
                    to: to.clone(),
                });
            }
        }
        let mut out = self.without(&removed, at);
        out.extend(self.renamed(&renames, &removed, at)?);
        out.extend(lapses);
        Ok(out)
    }

    /// The state after these edits: what a plan is drafted from.
    ///
    /// # Errors
    /// As for [`State::edited`].
    pub fn after(&self, edits: &[Edit]) -> Result<Self, SurgeryError> {
        let mut state = self.clone();
        let at = self.clock.time_of(Timestamp::MIN);
        for record in self.edited(edits, at)? {
            state.apply_edit(&record);
        }
        Ok(state)
    }

    /// The same; what lapses by them was seen at that time, which is shown.
    ///
    /// # Errors
    /// As for [`State::edited`].
    pub fn after_at(&self, edits: &[Edit], seen: Timestamp) -> Result<Self, SurgeryError> {
        let mut state = self.after(edits)?;
        for edit in edits {
            if let Edit::Lapse { lease, .. } = edit
                && let Some(lapse) = state.lapsed.get_mut(lease)
                && self.lapse(lease) != Some(lapse)
            {
                lapse.at = seen;
            }
        }
        Ok(state)
    }

    fn is_held(&self, lease: &LeaseId) -> bool {
        let recorded = self.resources.get(&Address::Lease(lease.clone()));
        recorded.is_some_and(Recorded::exists)
    }

    fn without(&self, removed: &BTreeSet<LeaseId>, at: Timestamp) -> Vec<Record> {
        if removed.is_empty() {
            return Vec::new();
        }
        let existing = self.existing();
        let out = existing.filter(|(address, recorded)| match (address, &recorded.spec) {
            (Address::Lease(lease) | Address::Delivery(lease), _) => removed.contains(lease),
            (Address::Stage(_), Some(Spec::Stage(spec))) => removed.contains(&spec.on),
            (Address::Exposure(_), Some(Spec::Exposure(spec))) => removed.contains(&spec.at),
            (Address::Pipeline(_), Some(Spec::Pipeline(spec))) => {
                spec.stages.iter().any(|lease| removed.contains(lease))
            }
            (
                Address::Bundle(_)
                | Address::Stage(_)
                | Address::Exposure(_)
                | Address::Pipeline(_),
                _,
            ) => false,
        });
        out.map(|(address, recorded)| Record::Edited {
            address: address.clone(),
            recorded: None,
            moved_to: None,
            why: match &recorded.receipt {
                Some(Receipt::Lease(held)) => format!(
                    "taken out of the state; machine {} may go on billing",
                    held.machine
                ),
                Some(_) | None => "taken out of the state with its machine".to_owned(),
            },
            at,
        })
        .collect()
    }

    fn renamed(
        &self,
        renames: &BTreeMap<LeaseId, LeaseId>,
        removed: &BTreeSet<LeaseId>,
        at: Timestamp,
    ) -> Result<Vec<Record>, SurgeryError> {
        let (mut out, mut into) = (Vec::new(), Vec::new());
        if renames.is_empty() {
            return Ok(out);
        }
        for (address, recorded) in self.existing() {
            let mut after = recorded.clone();
            rename(&mut after, renames);
            let to = match address {
                Address::Lease(lease) => renames.get(lease).cloned().map(Address::Lease),
                Address::Delivery(lease) => renames.get(lease).cloned().map(Address::Delivery),
                Address::Bundle(_)
                | Address::Stage(_)
                | Address::Pipeline(_)
                | Address::Exposure(_) => None,
            };
            let gone = match address {
                Address::Lease(lease) | Address::Delivery(lease) => removed.contains(lease),
                Address::Bundle(_)
                | Address::Stage(_)
                | Address::Pipeline(_)
                | Address::Exposure(_) => false,
            };
            if gone || (to.is_none() && after == *recorded) {
                continue;
            }
            let why = match &to {
                Some(to) => {
                    out.push(Record::Edited {
                        address: address.clone(),
                        recorded: None,
                        moved_to: Some(to.clone()),
                        why: format!("moved to {to}"),
                        at,
                    });
                    format!("moved from {address}")
                }
                None => "a lease that it names was moved".to_owned(),
            };
            let place = to.as_ref().unwrap_or(address);
            if to.is_some() {
                self.settle_in(&mut after, address, place)?;
            }
            into.push(Record::Edited {
                address: place.clone(),
                recorded: Some(Box::new(after)),
                moved_to: None,
                why,
                at,
            });
        }
        out.extend(into);
        Ok(out)
    }

    /// The generation at a new address: no lower than any there, so that no number is used twice.
    fn settle_in(
        &self,
        recorded: &mut Recorded,
        from: &Address,
        to: &Address,
    ) -> Result<(), SurgeryError> {
        let used = self.generations.get(to).copied().unwrap_or_default();
        if used >= recorded.generation {
            if let (Address::Lease(lease), true) = (from, recorded.is_unresolved()) {
                return Err(SurgeryError::Unresolved(lease.clone()));
            }
            recorded.generation = used.next();
        }
        if let Address::Lease(lease) = from {
            let born = recorded.made_for.take().unwrap_or_else(|| lease.clone());
            recorded.made_for = Some(born).filter(|born| Address::Lease(born.clone()) != *to);
        }
        Ok(())
    }

    /// The records that adopt a machine.
    ///
    /// # Errors
    /// [`SurgeryError`] when it is not ours, or ours already, or there is no room for it.
    pub fn import(&self, import: Imported, at: Timestamp) -> Result<Vec<Record>, SurgeryError> {
        let Imported {
            lease,
            spec,
            receipt,
            boots_free,
            made_for,
        } = import;
        let machine = receipt.machine.clone();
        let mark = self
            .genesis
            .as_ref()
            .map(|genesis| RequestKey::mark(&genesis.lineage));
        if !mark.is_some_and(|mark| receipt.request_key.as_str().starts_with(&mark)) {
            let key = receipt.request_key;
            return Err(SurgeryError::Foreign { machine, key });
        }
        if let Some(known) = self.lease_of(&machine, &receipt.provider) {
            let lease = known.clone();
            return Err(SurgeryError::Known { machine, lease });
        }
        if self.is_held(&lease) {
            return Err(SurgeryError::Taken(lease));
        }
        let (generation, attempt) = receipt.request_key.try_of();
        let address = Address::Lease(lease);
        let used = self.generations.get(&address).copied().unwrap_or_default();
        let before = self.resources.get(&address);
        let last = before.map_or(Attempt(0), |recorded| recorded.last_attempt);
        let recorded = Recorded {
            generation: generation.max(used),
            spec: Some(Spec::Lease(spec.into())),
            pending: None,
            attempts: BTreeMap::new(),
            last_attempt: last.max(attempt),
            tried_since: None,
            billed: Some(Billed {
                booting: boots_free,
                ..Billed::of(&receipt, None, &LedgerClock::default())
            }),
            made_for,
            tried: BTreeMap::new(),
            receipt: Some(Receipt::Lease(Box::new(receipt))),
        };
        Ok(vec![Record::Edited {
            address,
            recorded: Some(Box::new(recorded)),
            moved_to: None,
            why: format!("machine {machine} was imported"),
            at,
        }])
    }

    /// Which lease a machine is recorded as.
    pub fn lease_of(&self, machine: &MachineId, provider: &Name) -> Option<&LeaseId> {
        self.existing().find_map(|(address, recorded)| {
            let (Address::Lease(lease), Some(Receipt::Lease(held))) = (address, &recorded.receipt)
            else {
                return None;
            };
            (held.machine == *machine && held.provider == *provider).then_some(lease)
        })
    }

    /// Applies a record of surgery outside of any run.
    fn apply_edit(&mut self, record: &Record) {
        let n = crate::id::JournalNumber(0);
        self.apply_record(n, record)
            .expect("surgery can follow the state that it was made from");
    }
}

impl Recorded {
    /// The leases that a recorded resource is, or is on.
    pub fn machines_of<'a>(&'a self, address: &'a Address) -> Vec<&'a LeaseId> {
        match (address, &self.spec) {
            (Address::Lease(lease) | Address::Delivery(lease), _) => vec![lease],
            (Address::Stage(_), Some(Spec::Stage(spec))) => vec![&spec.on],
            (Address::Pipeline(_), Some(Spec::Pipeline(spec))) => spec.stages.iter().collect(),
            (Address::Exposure(_), Some(Spec::Exposure(spec))) => vec![&spec.at],
            (
                Address::Bundle(_)
                | Address::Stage(_)
                | Address::Pipeline(_)
                | Address::Exposure(_),
                _,
            ) => Vec::new(),
        }
    }
}

/// Puts the new names wherever a record names a lease.
fn rename(recorded: &mut Recorded, renames: &BTreeMap<LeaseId, LeaseId>) {
    let change = |lease: &mut LeaseId| {
        if let Some(to) = renames.get(lease) {
            *lease = to.clone();
        }
    };
    if let Some(on) = recorded
        .pending
        .as_mut()
        .and_then(|pending| pending.on.as_mut())
    {
        change(on);
    }
    match &mut recorded.spec {
        Some(Spec::Delivery(delivery)) => {
            for share in delivery.pipelines.values_mut() {
                share
                    .roster
                    .iter_mut()
                    .for_each(|line| change(&mut line.lease));
                share.prompt_from.iter_mut().for_each(change);
                share.prompt_from.sort();
            }
        }
        Some(Spec::Stage(stage)) => change(&mut stage.on),
        Some(Spec::Pipeline(pipeline)) => pipeline.stages.iter_mut().for_each(change),
        Some(Spec::Exposure(exposure)) => {
            exposure.pipelines.values_mut().for_each(change);
            change(&mut exposure.at);
        }
        Some(Spec::Lease(_)) | None => {}
    }
    match &mut recorded.receipt {
        Some(Receipt::Delivery(receipt)) => renamed_keys(&mut receipt.peers, renames),
        Some(Receipt::Exposure(receipt)) => renamed_keys(&mut receipt.peers, renames),
        Some(Receipt::Lease(_) | Receipt::Stage(_) | Receipt::Pipeline(_)) | None => {}
    }
}

fn renamed_keys<T>(map: &mut BTreeMap<LeaseId, T>, renames: &BTreeMap<LeaseId, LeaseId>) {
    let old = std::mem::take(map);
    map.extend(old.into_iter().map(|(lease, value)| {
        let to = renames.get(&lease).cloned();
        (to.unwrap_or(lease), value)
    }));
}

#[cfg(test)]
mod tests;
