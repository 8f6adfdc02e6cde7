//! Machines that were bid for and taken away again: what a plan makes of that, by what `spot.on_interrupt` said.
//!
//! A machine that stands still bills its disk, so it is released in each case. That a lease ends for it, or is rented on demand
//! from then on, is recorded before anything is drafted from it; that another one is bid for needs no record. Only machines that
//! were ready count: one that never was is a try that failed.

use super::expand::Desired;
use crate::id::Address;
use crate::resource::Spec;
use crate::state::{Edit, Limit, Observed, ObservedLease, Seen, State};
use crate::topology::OnInterrupt;
use crate::unit::MicroDollars;

/// What is to be recorded of machines that were taken away, as far as that was seen.
pub fn interruptions(state: &State, observed: &Observed) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (lease, seen) in &observed.leases {
        let Some(recorded) = state.resources.get(&Address::Lease(lease.clone())) else {
            continue;
        };
        let Seen::There(seen) = seen else { continue };
        let known = state.lapse(lease).map(|lapse| lapse.generation) == Some(recorded.generation);
        if known || recorded.pending.is_some() || recorded.is_unresolved() {
            continue;
        }
        let ready = state.lease(lease).is_some_and(|held| held.ready.is_some());
        let follows = recorded.bidding().filter(|_| ready);
        match follows.map(|bidding| bidding.on_interrupt) {
            Some(OnInterrupt::OnDemand | OnInterrupt::End) => {}
            Some(OnInterrupt::Replace) | None => continue,
        }
        if let Some(why) = taken_away(seen) {
            edits.push(Edit::Lapse {
                lease: lease.clone(),
                limit: Limit::Interrupt,
                why,
            });
        }
    }
    edits
}

/// What is said of a machine that was taken away; none when it was not.
pub fn taken_away(seen: &ObservedLease) -> Option<String> {
    dead(seen).filter(|_| seen.interrupted)
}

/// What is said of a machine that is broken for good, with what it costs still; none when it is not.
pub fn dead(seen: &ObservedLease) -> Option<String> {
    let why = seen.dead.as_ref()?;
    Some(match seen.price_per_hour {
        MicroDollars::ZERO => why.clone(),
        price => format!("{why}; it costs {price}/h until it is released"),
    })
}

impl Desired {
    /// Leases whose machine was taken away are rented on demand where their terms say so, but for those that are replaced by
    /// hand: these are bid for again.
    pub fn fall_back(&mut self, state: &State, replaced: &[Address]) {
        for (address, spec) in &mut self.specs {
            let (Address::Lease(lease), Spec::Lease(spec)) = (address.clone(), spec) else {
                continue;
            };
            if replaced.contains(address) || state.lapse(&lease).is_none() {
                continue;
            }
            let since = |bidding| state.on_demand_since(&lease, bidding);
            if spec
                .terms
                .iter()
                .any(|terms| terms.spot.and_then(since).is_some())
            {
                for terms in &mut spec.to_mut().terms {
                    terms.on_demand_since = terms.spot.and_then(since);
                }
            }
        }
    }
}
