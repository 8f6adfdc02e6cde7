//! Leases that ended by a limit of their own: a plan keeps them ended, with all that depends on them, until `--renew`.
//!
//! What stands on such a lease, and every pipeline and exposure that needs it, is ended as if it were not declared. What
//! only names its machine in a roster is left as it is, since its machine goes on. A machine that ends itself writes no
//! state: that it lapsed is concluded here, from limits in force and the time of its absence, and never for another reason.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Call, Draft, Drafting, Fate, Row};
use super::expand::needs;
use super::scope::{left_out, link};
use super::{Mode, Verdict};
use crate::graph::Graph;
use crate::id::{Address, LeaseId};
use crate::journal::Verb;
use crate::resource::LeaseReceipt;
use crate::state::{Edit, Lapse, Limit, Observed, Recorded, Seen, State};
use crate::unit::{Millis, Timestamp};

/// The leases whose machines ended themselves by a limit, as far as that can be told: a trusted listing does not have a
/// machine that can do so, nobody was releasing it, and by the ledger's time, `now`, a limit in force had passed since it
/// was made, or since it was seen last. Anything else that is gone is drift.
pub fn lapses(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    ends_itself: impl Fn(&LeaseReceipt) -> bool,
) -> Vec<Edit> {
    let mut lapses = Vec::new();
    for (lease, seen) in &observed.leases {
        let recorded = state.resources.get(&Address::Lease(lease.clone()));
        let held = state.lease(lease).filter(|held| ends_itself(held));
        let (Seen::Gone, Some(recorded), Some(_)) = (seen, recorded, held) else {
            continue;
        };
        let known = state.lapse(lease);
        let known = known.is_some_and(|lapse| lapse.generation == recorded.generation);
        if known || recorded.pending.is_some() || recorded.is_unresolved() {
            continue;
        }
        let (Some(limits), Some(billed)) = (recorded.limits_in_force(), recorded.billed) else {
            continue;
        };
        let passed = |since: Timestamp, limit: Millis| {
            let span = u64::try_from(now.duration_since(since).as_millis()).unwrap_or(0);
            span >= limit.0
        };
        let (limit, span) = if passed(billed.born(), limits.max_lifetime) {
            (Limit::Lifetime, limits.max_lifetime)
        } else if passed(billed.seen, limits.idle_timeout) {
            (Limit::Idle, limits.idle_timeout)
        } else {
            continue;
        };
        lapses.push(Edit::Lapse {
            lease: lease.clone(),
            limit,
            why: format!(
                "its machine is gone, and ends itself by this limit, {span}, that had passed; nobody saw how it ended"
            ),
        });
    }
    lapses
}

/// Which leases that lapsed are rented again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Renew {
    /// None.
    #[default]
    Nothing,
    /// All of them.
    All,
    /// These.
    These(Vec<Address>),
}

impl Renew {
    /// Those that are named.
    pub(super) fn named(&self) -> &Vec<Address> {
        static NONE: Vec<Address> = Vec::new();
        match self {
            Self::Nothing | Self::All => &NONE,
            Self::These(named) => named,
        }
    }

    fn has(&self, address: &Address) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::These(named) => named.contains(address),
        }
    }
}

/// Where a resource is in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is planned for.
    Within,
    /// It is kept ended.
    Ended,
    /// It needs to know a lease that is kept ended, and is left as it is.
    Waits,
    /// Nobody asked for it.
    Out,
}

/// What a plan keeps ended, and what waits for that.
#[derive(Default)]
pub(super) struct KeptEnded {
    ended: BTreeSet<Address>,
    waits: BTreeSet<Address>,
}

/// The declared leases that stay ended.
pub(super) fn kept_ended(input: &Draft<'_>) -> BTreeMap<LeaseId, Lapse> {
    let options = input.options;
    if options.mode == Mode::Destroy || options.refresh_only {
        return BTreeMap::new();
    }
    let lapsed = input.recorded.lapsed.iter();
    let kept = lapsed.filter(|(lease, lapse)| {
        let address = Address::Lease((*lease).clone());
        lapse.ends()
            && input.desired.specs.contains_key(&address)
            && !options.renew.has(&address)
            && !options.replace.contains(&address)
    });
    kept.map(|(lease, lapse)| (lease.clone(), lapse.clone()))
        .collect()
}

impl KeptEnded {
    /// All that depends on these leases, and what a reader should know of it.
    pub(super) fn find(
        input: &Draft<'_>,
        lapsed: &BTreeMap<LeaseId, Lapse>,
    ) -> (Self, Vec<String>) {
        let mut notes = unused(input);
        if lapsed.is_empty() {
            return (Self::default(), notes);
        }
        let (mut stands, mut knows) = (Graph::new(), Graph::new());
        for (address, spec) in &input.desired.specs {
            link(&mut knows, address, spec);
            stands.add(address);
            for dependency in needs(address, spec) {
                stands.needs(address, &dependency);
            }
        }
        let leases: Vec<Address> = lapsed.keys().cloned().map(Address::Lease).collect();
        let ended = stands.with_dependents(&leases);
        let mut waits = knows.with_dependents(&leases);
        waits.retain(|address| !ended.contains(address));
        let with = ended
            .iter()
            .filter(|address| !matches!(address, Address::Lease(_)));
        notes.extend(left_out("kept ended with it", with));
        notes.extend(left_out(
            "waits for a lease that is kept ended",
            waits.iter(),
        ));
        (Self { ended, waits }, notes)
    }

    pub(super) fn place(&self, address: &Address) -> Place {
        if self.ended.contains(address) {
            Place::Ended
        } else if self.waits.contains(address) {
            Place::Waits
        } else {
            Place::Within
        }
    }
}

/// What was named by `--renew` and needs no renewing.
fn unused(input: &Draft<'_>) -> Vec<String> {
    let named = input.options.renew.named().iter();
    let other = named.filter(|address| match address {
        Address::Lease(lease) => input
            .recorded
            .lapse(lease)
            .is_none_or(|lapse| !lapse.ends()),
        Address::Delivery(_)
        | Address::Bundle(_)
        | Address::Stage(_)
        | Address::Pipeline(_)
        | Address::Exposure(_) => true,
    });
    other
        .map(|address| {
            format!("{address} did not end by a limit of its own: --renew changes nothing there")
        })
        .collect()
}

impl<'a> Drafting<'a> {
    /// What is still recorded of a lease that lapsed, or of what needs it.
    pub(super) fn stays_ended(&mut self, address: &'a Address, recorded: &'a Recorded) {
        let call = match address {
            Address::Lease(lease) => {
                self.fates.insert(lease, Fate::Ends);
                let lapse = self.input.recorded.lapse(lease);
                let why = lapse.map_or_else(|| "it lapsed".to_owned(), ToString::to_string);
                Call::new(
                    Verdict::Delete,
                    format!("{why}; its release is not proven yet"),
                )
                .teardown(Verb::Release)
            }
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => Call {
                reason: "it needs a lease that ended by a limit of its own".to_owned(),
                ..self.call(address, None, Some(recorded))
            },
        };
        self.rows.push(Row {
            address: address.clone(),
            desired: None,
            recorded: Some(recorded),
            verdict: call.verdict,
            generation: recorded.generation,
            reason: call.reason,
            teardown: call.teardown,
            build: &[],
        });
    }
}
