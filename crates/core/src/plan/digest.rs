//! The digest of a plan: of all that a reviewer saw.
//!
//! What many leases have in common goes in once, and everything else names its place. Equal plans have equal digests, in
//! memory or read from a file.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Change, Choice, EndsBy, FieldChange, LeaseTerms, Plan, Verdict};
use crate::id::{Address, Fingerprint, Generation, LeaseId, Name, PlanId};
use crate::offer::Quote;
use crate::resource::{Contact, LeaseSpec};
use crate::shared::{Shared, Table};
use crate::state::stored::SpecPlace;
use crate::topology::AgentWay;
use crate::unit::{MicroDollars, Millis};

#[derive(Serialize)]
struct ChangeRow<'a>(
    &'a Address,
    Verdict,
    Generation,
    &'a str,
    &'a [FieldChange],
    Option<SpecPlace<'a>>,
);

#[derive(Serialize)]
struct LeaseRow<'a>(
    &'a LeaseId,
    (MicroDollars, Option<MicroDollars>),
    bool,
    u32,
    (u32, bool, Option<Millis>),
    EndsBy,
);

/// Shortlists by place, each once.
struct Lists<'a> {
    quotes: Table<'a, Quote>,
    lists: Vec<Vec<(&'a Name, u32)>>,
    places: BTreeMap<Vec<(&'a Name, u32)>, u32>,
    /// One look is enough where the next lease has the same one.
    last: Option<(&'a Shared<Vec<Choice>>, u32)>,
}

impl<'a> Lists<'a> {
    fn place(&mut self, list: &'a Shared<Vec<Choice>>) -> u32 {
        if let Some((last, place)) = self.last
            && last.is(list)
        {
            return place;
        }
        let row: Vec<(&Name, u32)> = list
            .iter()
            .map(|Choice { offer, quote }| (offer, self.quotes.place(quote)))
            .collect();
        let next = u32::try_from(self.lists.len()).expect("few");
        let place = *self.places.entry(row.clone()).or_insert(next);
        if place == next {
            self.lists.push(row);
        }
        self.last = Some((list, place));
        place
    }
}

impl Plan {
    /// The digest that is its id: of everything but the id. Nothing is copied for it.
    pub fn digest(&self) -> PlanId {
        let digest = if self.format > 1 {
            self.digest_of_parts()
        } else {
            self.digest_of_text()
        };
        PlanId(std::array::from_fn(|i| digest.0[i]))
    }

    fn digest_of_parts(&self) -> Fingerprint {
        let mut specs: Table<'_, LeaseSpec> = Table::new();
        let mut lists = Lists {
            quotes: Table::new(),
            lists: Vec::new(),
            places: BTreeMap::new(),
            last: None,
        };
        let changes = self.change_rows(&mut specs);
        let mut ways: Vec<(&LeaseId, AgentWay)> = Vec::new();
        let mut moves: Vec<(&LeaseId, &Contact)> = Vec::new();
        let leases: Vec<LeaseRow<'_>> = self
            .leases
            .iter()
            .map(|(id, terms)| {
                let LeaseTerms {
                    price_per_hour,
                    ceiling,
                    unresolved,
                    shortlist,
                    attempts,
                    requote,
                    waits,
                    ends,
                    agent,
                    moved,
                } = terms;
                moves.extend(moved.as_ref().map(|moved| (id, moved)));
                ways.extend(agent.map(|agent| (id, agent)));
                let list = lists.place(shortlist);
                let prices = (*price_per_hour, *ceiling);
                let tries = (*attempts, *requote, *waits);
                LeaseRow(id, prices, *unresolved, list, tries, *ends)
            })
            .collect();
        let Self {
            format,
            id: _,
            topology,
            mode,
            lineage,
            base,
            topology_digest,
            drafted_at,
            expires_at,
            observed_at,
            drift,
            changes: _,
            steps,
            edits,
            lapsed,
            leases: _,
            money,
            accounts,
            notes,
        } = self;
        let head = (format, topology, mode, lineage, base, topology_digest);
        let times = (drafted_at, expires_at, observed_at);
        let tables = (specs.values, lists.quotes.values, lists.lists);
        let body = (drift, changes, steps, edits, leases, money, notes);
        // A plan without them keeps the digest that it had before there were any.
        match (lapsed.is_empty(), ways.is_empty()) {
            _ if !moves.is_empty() => {
                Fingerprint::of_json(&((head, times, tables, body, lapsed, ways, accounts), moves))
            }
            _ if !accounts.is_empty() => {
                Fingerprint::of_json(&(head, times, tables, body, lapsed, ways, accounts))
            }
            (true, true) => Fingerprint::of_json(&(head, times, tables, body)),
            (false, true) => Fingerprint::of_json(&(head, times, tables, body, lapsed)),
            (_, false) => Fingerprint::of_json(&(head, times, tables, body, lapsed, ways)),
        }
    }

    fn change_rows<'a>(&'a self, specs: &mut Table<'a, LeaseSpec>) -> Vec<ChangeRow<'a>> {
        self.changes
            .iter()
            .map(|change| {
                // Whole, so that a new field is not forgotten here; the same below.
                let Change {
                    address,
                    verdict,
                    generation,
                    reason,
                    fields,
                    spec,
                } = change;
                let spec = spec.as_ref().map(|spec| SpecPlace::of(spec, specs));
                ChangeRow(address, *verdict, *generation, reason, fields, spec)
            })
            .collect()
    }

    /// The digest of format 1.
    fn digest_of_text(&self) -> Fingerprint {
        let head = (
            self.format,
            &self.topology,
            self.mode,
            self.lineage,
            self.base,
            self.topology_digest,
            self.drafted_at,
            self.expires_at,
            self.observed_at,
        );
        let body = (
            &self.drift,
            &self.changes,
            &self.steps,
            &self.leases,
            self.money,
            &self.notes,
        );
        // A plan without edits keeps the digest that it had before there were any.
        if self.edits.is_empty() {
            Fingerprint::of_json(&(head, body))
        } else {
            Fingerprint::of_json(&(head, body, &self.edits))
        }
    }
}
