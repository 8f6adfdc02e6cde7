//! Verdicts to steps with edges.
//!
//! Undoing goes from what is reachable down to machines, making goes up again. The order of the list is one possible
//! order: a step has a higher number than all that it waits for. A machine that is replaced is released before its
//! successor is rented, since one address holds one machine; a machine that is only ended is released last, once the
//! workers that moved away from it have started elsewhere.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::draft::{Row, machine_of};
use super::parts::named;
use super::{Step, StepId, Verdict};
use crate::id::{Address, LeaseId, Name};
use crate::journal::Verb;
use crate::resource::Spec;

/// The steps of one row.
#[derive(Clone, Copy, Debug, Default)]
struct Ids {
    /// What undoes it.
    teardown: Option<StepId>,
    /// The last of what makes it.
    build: Option<StepId>,
}

struct Sequence<'r, 'a> {
    rows: &'r [Row<'a>],
    ids: Vec<Ids>,
    steps: Vec<Step>,
    /// Rows that are recorded on a machine, by machine.
    on: BTreeMap<&'r LeaseId, Vec<usize>>,
    /// Rows of stages, by pipeline.
    stages: BTreeMap<&'r Name, Vec<usize>>,
}

/// All steps of a plan.
pub(super) fn order(rows: &[Row<'_>]) -> Vec<Step> {
    let mut on: BTreeMap<&LeaseId, Vec<usize>> = BTreeMap::new();
    let mut stages: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        if let Some(lease) = row.recorded.and_then(|r| machine_of(&row.address, r)) {
            on.entry(lease).or_default().push(place);
        }
        if let Address::Stage(id) = &row.address {
            stages.entry(&id.pipeline).or_default().push(place);
        }
    }
    let mut sequence = Sequence {
        rows,
        ids: vec![Ids::default(); rows.len()],
        steps: Vec::with_capacity(2 * rows.len()),
        on,
        stages,
    };
    let ended =
        |row: &Row<'_>| matches!(row.address, Address::Lease(_)) && row.verdict == Verdict::Delete;
    for place in (0..rows.len()).rev() {
        if !ended(&rows[place]) {
            sequence.undo(place);
        }
    }
    for place in 0..rows.len() {
        sequence.make(place);
    }
    for (place, row) in rows.iter().enumerate() {
        if ended(row) {
            sequence.undo(place);
        }
    }
    sequence.steps
}

impl Sequence<'_, '_> {
    fn push(&mut self, place: usize, verb: Verb, old: bool, mut after: Vec<StepId>) -> StepId {
        after.sort_unstable();
        after.dedup();
        let row = &self.rows[place];
        let generation = match row.recorded {
            Some(recorded) if old => recorded.generation,
            Some(_) | None => row.generation,
        };
        let id = StepId(u32::try_from(self.steps.len()).expect("fewer steps than that"));
        self.steps.push(Step {
            address: row.address.clone(),
            generation,
            verb,
            after,
        });
        id
    }

    fn undo(&mut self, place: usize) {
        let row = &self.rows[place];
        let Some(verb) = row.teardown else { return };
        let mut after = Vec::new();
        match &row.address {
            Address::Lease(id) => {
                for other in self.on.get(id).into_iter().flatten() {
                    after.extend(self.ids[*other].teardown);
                    // A worker that moves away is running elsewhere before its old machine ends.
                    if row.verdict == Verdict::Delete {
                        after.extend(self.ids[*other].build);
                    }
                }
            }
            Address::Delivery(id) => {
                let others = self.on.get(id).into_iter().flatten();
                after.extend(
                    others
                        .filter(|other| **other != place)
                        .filter_map(|other| self.ids[*other].teardown),
                );
            }
            Address::Stage(id) => {
                after.extend(
                    self.ids_of(&Address::Pipeline(id.pipeline.clone()))
                        .teardown,
                );
            }
            Address::Pipeline(name) => {
                for (other, row) in self.rows.iter().enumerate().rev() {
                    let Address::Exposure(_) = row.address else {
                        break;
                    };
                    if serves(row, name) {
                        after.extend(self.ids[other].teardown);
                    }
                }
            }
            Address::Bundle(_) | Address::Exposure(_) => {}
        }
        let id = self.push(place, verb, true, after);
        self.ids[place].teardown = Some(id);
    }

    fn make(&mut self, place: usize) {
        let row = &self.rows[place];
        let mut after = self.before(row);
        after.extend(self.ids[place].teardown);
        for verb in row.build {
            let id = self.push(place, *verb, false, std::mem::take(&mut after));
            self.ids[place].build = Some(id);
            after.push(id);
        }
    }

    /// The steps on other resources that making this one waits for.
    fn before(&self, row: &Row<'_>) -> Vec<StepId> {
        let mut after = Vec::new();
        if row.build.is_empty() {
            return after;
        }
        match row.desired {
            None | Some(Spec::Lease(_)) => {}
            Some(Spec::Delivery(spec)) => {
                after.extend(named(spec).filter_map(|lease| self.lease(lease).build));
                // What ends on a machine that stays ends before its roster changes.
                if let Address::Delivery(id) = &row.address {
                    let here = self.on.get(id).into_iter().flatten();
                    after.extend(
                        here.filter(|other| self.rows[**other].address != row.address)
                            .filter_map(|other| self.ids[*other].teardown),
                    );
                }
            }
            Some(Spec::Stage(spec)) => {
                after.extend(self.lease(&spec.on).build);
                after.extend(self.delivery(&spec.on).build);
                if let Address::Stage(id) = &row.address {
                    for other in &self.stages[&id.pipeline] {
                        if let Some(Spec::Stage(other)) = self.rows[*other].desired {
                            after.extend(self.delivery(&other.on).build);
                        }
                    }
                }
            }
            Some(Spec::Pipeline(spec)) => {
                after.extend(
                    spec.stages
                        .iter()
                        .filter_map(|lease| self.delivery(lease).build),
                );
                if let Address::Pipeline(name) = &row.address {
                    let stages = self.stages.get(name).into_iter().flatten();
                    after.extend(stages.filter_map(|stage| self.ids[*stage].build));
                }
            }
            Some(Spec::Exposure(spec)) => {
                after.extend(self.delivery(&spec.at).build);
                for pipeline in spec.pipelines.keys() {
                    after.extend(self.ids_of(&Address::Pipeline(pipeline.clone())).build);
                }
            }
        }
        after
    }

    fn ids_of(&self, address: &Address) -> Ids {
        self.find(|other| other.cmp(address))
    }

    fn lease(&self, id: &LeaseId) -> Ids {
        self.find(|other| match other {
            Address::Lease(other) => other.cmp(id),
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => Ordering::Greater,
        })
    }

    fn delivery(&self, id: &LeaseId) -> Ids {
        self.find(|other| match other {
            Address::Lease(_) => Ordering::Less,
            Address::Delivery(other) => other.cmp(id),
            Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => Ordering::Greater,
        })
    }

    /// Rows are in the order of addresses.
    fn find(&self, compare: impl Fn(&Address) -> Ordering) -> Ids {
        let found = self.rows.binary_search_by(|row| compare(&row.address));
        found.map(|place| self.ids[place]).unwrap_or_default()
    }
}

fn serves(row: &Row<'_>, pipeline: &Name) -> bool {
    match row.recorded.and_then(|recorded| recorded.spec.as_ref()) {
        Some(Spec::Exposure(spec)) => spec.pipelines.contains_key(pipeline),
        Some(Spec::Lease(_) | Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_)) | None => {
            false
        }
    }
}
