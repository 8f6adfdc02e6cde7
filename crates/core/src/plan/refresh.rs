//! `--refresh-only`: nothing is made or changed in the world; the state learns what was seen.
//!
//! A machine that a trusted listing does not have leaves the state, by the step that proves it gone; a price that moved
//! is recorded, and an address. All other differences are shown only.

use super::Verdict;
use super::draft::{Call, Drafting, Fate, lease_receipt, machine_of};
use super::lease::otherwise;
use crate::id::Address;
use crate::journal::Verb;
use crate::resource::Spec;
use crate::state::{Recorded, Seen};

impl<'a> Drafting<'a> {
    /// What becomes of a recorded resource, with the spec that it then has.
    pub(super) fn refreshed(
        &mut self,
        address: &'a Address,
        recorded: &'a Recorded,
    ) -> (Call, Option<&'a Spec>) {
        let keep = Call::new(Verdict::Keep, "as recorded");
        let Address::Lease(id) = address else {
            let on = machine_of(address, recorded);
            if on.is_some_and(|on| self.fate(on) == Fate::Ends) {
                let call = Call::new(Verdict::Delete, "gone with its machine");
                return (call.teardown(Verb::Forget), None);
            }
            return (keep, None);
        };
        let seen = self.input.observed.leases.get(id);
        let (call, fate) = match (seen, lease_receipt(recorded)) {
            (Some(Seen::Gone), Some(held)) if !self.is_blind(held) => {
                let reason = format!(
                    "its machine {} is gone; taken out of the state once the listing proves it",
                    held.machine
                );
                let call = Call::new(Verdict::Delete, reason).teardown(Verb::Release);
                (call, Fate::Ends)
            }
            (Some(Seen::There(there)), Some(held)) if recorded.spec.is_some() => {
                let moved = self.input.observed.moved(id);
                let call = match otherwise(held, there.price_per_hour, moved) {
                    Some(reason) => Call::new(Verdict::Update, reason).build(&[Verb::Record]),
                    None => keep,
                };
                (call, Fate::Stays)
            }
            (_, _) => (keep, Fate::Stays),
        };
        self.fates.insert(id, fate);
        let spec = recorded
            .spec
            .as_ref()
            .filter(|_| call.verdict == Verdict::Update);
        (call, spec)
    }
}
