//! What can be saved of a damaged journal: the state of its sound beginning, and whatever later records still say.
//!
//! Nothing is concluded from what is missing: records that cannot follow are skipped and said, and a lease that nothing
//! says the end of stays. What the provider lists decides afterwards.

use std::collections::BTreeMap;

use super::{Billed, LedgerClock, Recorded, State};
use crate::id::{Address, Attempt, LeaseId, RequestKey};
use crate::journal::Entry;
use crate::resource::{LeaseReceipt, Receipt};

impl State {
    /// Folds entries that do not follow each other, as far as each record makes sense. Returns what does not.
    pub fn salvage(&mut self, later: &[Entry]) -> Vec<String> {
        let mut skipped = Vec::new();
        for entry in later {
            for record in &entry.records {
                if let Err(error) = self.apply_record(entry.n, record) {
                    skipped.push(error.to_string());
                }
            }
        }
        skipped
    }

    /// The lease that a key was made for, as far as this state ever had it.
    pub fn lease_of_key(&self, key: &RequestKey) -> Option<LeaseId> {
        let lineage = self.genesis.as_ref()?.lineage;
        let known = self.generations.keys().chain(self.resources.keys());
        let mut leases = known.filter_map(Address::lease);
        let made_for = |lease: &&LeaseId| {
            let address = Address::Lease((*lease).clone());
            key.as_str()
                .starts_with(&RequestKey::prefix(&lineage, &address))
        };
        leases.find(made_for).cloned()
    }

    /// Records a machine that is listed and that nothing records: false when its lease has another one.
    pub fn take_back(&mut self, lease: LeaseId, receipt: LeaseReceipt) -> bool {
        let address = Address::Lease(lease);
        let held = self.resources.get(&address);
        let (generation, attempt) = receipt.request_key.try_of();
        if held.is_some_and(|held| held.receipt.is_some() || held.generation > generation) {
            return false;
        }
        let last = self.generations.entry(address.clone()).or_default();
        *last = (*last).max(generation);
        let open = match self.resources.remove(&address) {
            Some(held) if held.generation == generation => held.attempts,
            Some(_) | None => BTreeMap::new(),
        };
        let open: BTreeMap<Attempt, _> = open.into_iter().filter(|(n, _)| *n != attempt).collect();
        let last_attempt = open.keys().max().copied().unwrap_or_default().max(attempt);
        let recorded = Recorded {
            generation,
            spec: None,
            pending: None,
            attempts: open,
            last_attempt,
            tried_since: None,
            billed: Some(Billed::of(&receipt, None, &LedgerClock::default())),
            made_for: None,
            tried: BTreeMap::new(),
            receipt: Some(Receipt::Lease(Box::new(receipt))),
        };
        self.resources.insert(address, recorded);
        true
    }
}
