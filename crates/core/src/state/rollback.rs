//! Back to what was recorded at an earlier time, without forgetting a machine that was rented since.

use std::collections::BTreeSet;

use super::{Recorded, State, Surgery};
use crate::id::{Address, LeaseId, MachineId};
use crate::journal::Record;
use crate::resource::Receipt;
use crate::unit::Timestamp;

impl State {
    /// The records that bring back what was recorded at an earlier time, as far as that forgets no machine. `gone` are
    /// machines that a complete, trusted listing does not have.
    pub fn back_to(&self, then: &Self, gone: &BTreeSet<MachineId>, at: Timestamp) -> Surgery {
        let mut surgery = Surgery::default();
        let kept = self.kept_against(then, &mut surgery.notes);
        let mut lost: BTreeSet<&LeaseId> = BTreeSet::new();
        for (address, before) in then.existing() {
            if let (Address::Lease(lease), Some(Receipt::Lease(held))) = (address, &before.receipt)
                && !kept.contains(lease)
                && self.lease_of(&held.machine, &held.provider) != Some(lease)
                && gone.contains(&held.machine)
            {
                lost.insert(lease);
                surgery.notes.push(format!(
                    "{lease} is not brought back: its machine {} is gone by the provider's listing",
                    held.machine
                ));
            }
        }
        let stays = |address: &Address, recorded: &Recorded| {
            recorded
                .machines_of(address)
                .iter()
                .any(|lease| kept.contains(*lease) || lost.contains(lease))
        };
        for (address, now) in self.existing() {
            let before = then.resources.get(address).filter(|before| before.exists());
            if before.is_none() && !stays(address, now) {
                surgery.edit(
                    address,
                    None,
                    "not there at the time that was gone back to",
                    at,
                );
            }
        }
        for (address, before) in then.existing() {
            let now = self.resources.get(address);
            let held = now.is_some_and(|now| stays(address, now) && now.exists());
            if stays(address, before) || held || now == Some(before) {
                continue;
            }
            let mut after = before.clone();
            if let Some(now) = now {
                after.last_attempt = after.last_attempt.max(now.last_attempt);
                if now.receipt == before.receipt {
                    (after.billed, after.tried_since) = (now.billed, now.tried_since);
                }
            }
            surgery.edit(
                address,
                Some(after),
                "as at the time that was gone back to",
                at,
            );
        }
        surgery
    }

    /// Leases of now whose machines the earlier time does not know, or that it knows with less certainty.
    fn kept_against(&self, then: &Self, notes: &mut Vec<String>) -> BTreeSet<LeaseId> {
        let mut kept = BTreeSet::new();
        for (address, now) in self.existing() {
            let Address::Lease(lease) = address else {
                continue;
            };
            let known = match &now.receipt {
                Some(Receipt::Lease(held)) => {
                    then.lease_of(&held.machine, &held.provider).is_some()
                }
                Some(_) | None => false,
            };
            if !known || now.is_unresolved() {
                notes.push(format!(
                    "{lease} stays as it is recorded now: its machine was rented since, or may have been, and bills"
                ));
                kept.insert(lease.clone());
            }
        }
        kept
    }
}

impl Surgery {
    fn edit(&mut self, address: &Address, recorded: Option<Recorded>, why: &str, at: Timestamp) {
        self.records.push(Record::Edited {
            address: address.clone(),
            recorded: recorded.map(Box::new),
            moved_to: None,
            why: why.to_owned(),
            at,
        });
    }
}
