//! `[[moved]]` and `[[removed]]`: what became of leases that have no table any more.
//!
//! Entries may form chains, as names change again and again; they are followed to their end here, so that what leaves this
//! module leads straight from any old name to a declared one. A ring, an old name that is still declared and an old name
//! that leads to two places are faults.

use std::collections::BTreeMap;

use super::Topology;
use super::keys::Kind;
use super::read::{Field, Fields};
use super::value::At;
use super::{Lease, Removed};
use crate::diagnostic::shown;
use crate::id::Name;
use crate::state::LeaseRange;

/// A range in the file and where it stands.
type Placed = (LeaseRange, At);

/// `lease.NAME` or `lease.NAME[i]`, declared or not.
pub(super) fn range(field: Field<'_>) -> Option<LeaseRange> {
    let text = field.text()?;
    match text.parse() {
        Ok(range) => Some(range),
        Err(_) => {
            field.fault(
                "topology/bad-address",
                format!("`{}` is no lease", shown(text)),
                Some(
                    "write lease.NAME for a whole table, or lease.NAME[i] for one machine; what stands on a lease goes \
                     with it"
                        .to_owned(),
                ),
            );
            None
        }
    }
}

/// The tables of a list.
fn tables<'a>(root: &Fields<'a>, name: &'static str) -> Vec<Fields<'a>> {
    let Some(field) = root.get(name) else {
        return Vec::new();
    };
    let Kind::Tables(def) = field.key.kind else {
        return Vec::new();
    };
    let items = field.list().unwrap_or_default();
    let open = |(n, item)| Fields::inside(item, def, format!("{name}[{n}]"));
    items.into_iter().enumerate().filter_map(open).collect()
}

/// Whether any machine of a range is declared.
fn declared(range: &LeaseRange, leases: &BTreeMap<Name, Lease>) -> bool {
    leases
        .get(&range.name)
        .is_some_and(|lease| range.index.is_none_or(|index| index < lease.count))
}

/// Reads both lists, and checks them against the leases that are declared.
pub(super) fn read(
    root: &Fields<'_>,
    leases: &BTreeMap<Name, Lease>,
) -> (
    BTreeMap<LeaseRange, LeaseRange>,
    BTreeMap<LeaseRange, Removed>,
) {
    let mut moved: BTreeMap<LeaseRange, Placed> = BTreeMap::new();
    let mut places: BTreeMap<LeaseRange, At> = BTreeMap::new();
    for fields in tables(root, "moved") {
        let (from, to) = (fields.read("from", range), fields.read("to", range));
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        let (here, there) = (fields.at_value("from"), fields.at_value("to"));
        if from.index.is_some() != to.index.is_some() {
            let message = format!("`{from}` and `{to}` are not of one kind");
            let hint = "write both as lease.NAME, or both as lease.NAME[i]";
            fields.fault(there, "topology/conflict", message, hint);
            continue;
        }
        still_declared(&fields, &from, here, leases);
        if moved.insert(from.clone(), (to, there)).is_some() {
            twice(&fields, &from, here);
        }
        places.insert(from, here);
    }
    let mut removed = BTreeMap::new();
    for fields in tables(root, "removed") {
        let from = fields.read("from", range);
        let release = fields.read("release", super::convert::boolean);
        let (Some(from), Some(release)) = (from, release) else {
            continue;
        };
        let here = fields.at_value("from");
        still_declared(&fields, &from, here, leases);
        let again = removed.insert(from.clone(), Removed { release }).is_some();
        if again || moved.contains_key(&from) {
            twice(&fields, &from, here);
        }
    }
    let straight = follow(root, &moved, &places, leases);
    (straight, removed)
}

fn still_declared(fields: &Fields<'_>, from: &LeaseRange, at: At, leases: &BTreeMap<Name, Lease>) {
    if declared(from, leases) {
        let message =
            format!("`{from}` is still declared, so it cannot have become something else");
        let hint = format!("remove this entry, or the declaration of `{from}`");
        fields.fault(at, "topology/conflict", message, hint);
    }
}

fn twice(fields: &Fields<'_>, from: &LeaseRange, at: At) {
    let message = format!("two entries say what became of `{from}`");
    fields.fault(at, "topology/duplicate", message, "keep one of them");
}

/// Every old name to the last of its new ones.
fn follow(
    root: &Fields<'_>,
    moved: &BTreeMap<LeaseRange, Placed>,
    places: &BTreeMap<LeaseRange, At>,
    leases: &BTreeMap<Name, Lease>,
) -> BTreeMap<LeaseRange, LeaseRange> {
    let mut straight = BTreeMap::new();
    for (from, (first, at)) in moved {
        let (mut to, mut at, mut steps) = (first, at, 0);
        while let Some((next, there)) = moved.get(to).filter(|_| !declared(to, leases)) {
            (to, at, steps) = (next, there, steps + 1);
            if to == from || steps > moved.len() {
                break;
            }
        }
        if to == from || steps > moved.len() {
            let here = places.get(from).copied().unwrap_or_default();
            let message = format!("`{from}` would move round in a ring");
            let hint = "remove the entry that leads back: each name leads to a newer one";
            root.fault(here, "topology/conflict", message, hint);
        } else if declared(to, leases) {
            straight.insert(from.clone(), to.clone());
        } else {
            let message = format!("`{to}` is not declared, so `{from}` cannot have become it");
            let known: Vec<String> = leases.keys().map(|name| format!("lease.{name}")).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let hint = crate::diagnostic::suggestion(&to.to_string(), &known);
            root.fault(*at, "topology/unknown-lease", message, hint);
        }
    }
    straight
}

impl Topology {
    /// What is said about a lease that is no longer declared.
    pub fn removed_as(&self, lease: &crate::id::LeaseId) -> Option<Removed> {
        let mut entries = self.removed.iter();
        let found = entries.find(|(range, _)| range.has(lease));
        found.map(|(_, removed)| *removed)
    }
}
