//! What a plan tells beside its changes: machines at a provider that nothing records, and names that look like a rename.
//!
//! All of it is notes for people: nothing here makes, ends or touches anything.

use std::collections::{BTreeMap, BTreeSet};

use super::assign::Need;
use super::draft::Drafting;
use super::mounts::Unmounted;
use super::{Mode, Verdict};
use crate::id::{Address, Name};

/// Machines that nothing records of which a plan tells the names, for each provider.
const STRAYS_SHOWN: usize = 4;

/// The first few of them, and how many more there are.
fn some(mut all: Vec<String>) -> String {
    let rest = all.len().saturating_sub(STRAYS_SHOWN);
    all.truncate(STRAYS_SHOWN);
    if rest > 0 {
        all.push(format!("{rest} more"));
    }
    all.join(", ")
}

impl Drafting<'_> {
    /// Offers that no machine is rented under, since they have not the volumes of a lease that needs one.
    pub(super) fn left_out_for_volumes(&mut self, needs: &[Need<'_>]) {
        for table in needs.chunk_by(|a, b| a.lease.name == b.lease.name) {
            let first = &table[0];
            let told = first.unmounted.iter().filter_map(Unmounted::told);
            let told = told.map(|why| format!("lease.{}: {why}", first.lease.name));
            self.notes.extend(told);
        }
    }

    /// Machines that carry a mark like ours and that nothing records: shown, never touched by a plan.
    pub(super) fn marked(&mut self) {
        let mut by_kind: BTreeMap<(&Name, bool), Vec<String>> = BTreeMap::new();
        for stray in &self.input.observed.strays {
            let told = format!(
                "{} ({}, {}/h)",
                stray.machine, stray.key, stray.price_per_hour
            );
            let all = by_kind.entry((&stray.provider, stray.own)).or_default();
            all.push(told);
        }
        for ((provider, own), all) in by_kind {
            let what = if own {
                "with the mark of this state that no lease stands for: `stageline orphans` tells more, and ends them or takes them back"
            } else {
                "named like machines of a topology, of another one or by chance; left alone"
            };
            self.notes.push(format!(
                "provider `{provider}` lists machines {what}: {}",
                some(all)
            ));
        }
    }

    /// Machines that only look like ours: shown, since whoever pays may take them for ours, and never touched by anything.
    pub(super) fn look_alikes(&mut self) {
        let mut by_provider: BTreeMap<&Name, Vec<String>> = BTreeMap::new();
        for one in &self.input.observed.look_alikes {
            let told = format!(
                "{} (\"{}\", {}/h)",
                one.machine, one.name, one.price_per_hour
            );
            by_provider.entry(&one.provider).or_default().push(told);
        }
        for (provider, all) in by_provider {
            self.notes.push(format!(
                "provider `{provider}` lists machines whose names look like ours and are not: {}. They are not ours and are never \
                 touched; one that nobody needs is to be ended at the provider",
                some(all)
            ));
        }
    }

    /// A table that is gone from the file beside one that is new may be the same under another name: its machines need not
    /// be ended for that.
    pub(super) fn renamed(&mut self) {
        let options = self.input.options;
        if options.mode != Mode::Apply || options.refresh_only {
            return;
        }
        let (mut old, mut new) = (BTreeSet::new(), BTreeSet::new());
        for row in &self.rows {
            let Address::Lease(lease) = &row.address else {
                continue;
            };
            match row.verdict {
                Verdict::Delete => old.insert(&lease.name),
                Verdict::Create if row.recorded.is_none() => new.insert(&lease.name),
                Verdict::Create | Verdict::Update | Verdict::Replace | Verdict::Keep => false,
            };
        }
        old.retain(|name| !self.is_declared(name));
        new.retain(|name| !self.is_recorded(name));
        let mut notes = Vec::new();
        for from in old {
            let near = |to: &&&Name| strsim::damerau_levenshtein(from.as_str(), to.as_str());
            if let Some(to) = new.iter().min_by_key(near) {
                notes.push(format!(
                    "lease.{from} is no longer declared and lease.{to} is new; if it was renamed, `stageline state mv \
                     lease.{from} lease.{to}` or [[moved]] in the file keeps its machines"
                ));
            }
        }
        self.notes.extend(notes);
    }

    fn is_declared(&self, name: &Name) -> bool {
        let mut specs = self.input.desired.specs.keys();
        specs.any(|address| address.lease().is_some_and(|lease| lease.name == *name))
    }

    fn is_recorded(&self, name: &Name) -> bool {
        let mut existing = self.input.recorded.existing();
        existing.any(|(address, _)| address.lease().is_some_and(|lease| lease.name == *name))
    }
}
