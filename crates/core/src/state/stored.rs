//! The stored form of a state: what many resources have in common is written once, and read once.
//!
//! A thousand equal leases differ in their address, their machine and its key. Lease specs, measured facts, and what was
//! bought are in tables, and resources name their places. Exactly the same state comes back. The plain form, in which
//! stageline wrote snapshots before and which `state pull` shows, is read by the same reader.

mod read;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    BadHost, Billed, Charge, Consumed, Dated, Disowned, EndedLease, Genesis, Lapse, LedgerClock,
    OpenAttempt, Pending, Recorded, Run, Spent, State, Tried,
};
use crate::id::{
    Address, Attempt, EndpointKey, Generation, LeaseId, MachineId, Name, PlanId, RequestKey,
};
use crate::offer::{Facts, Place, QuoteId};
use crate::resource::{Account, Contact, LeaseReceipt, LeaseSpec, Receipt, Spec};
use crate::shared::Table;
use crate::unit::{MicroDollars, Timestamp};

/// What a state is written as.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    genesis: &'a Option<Genesis>,
    run: &'a Option<Run>,
    #[serde(flatten)]
    world: World<'a>,
    consumed: &'a BTreeMap<PlanId, Consumed>,
    ended: &'a [EndedLease],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    spent: &'a BTreeMap<LeaseId, Spent>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    charged: &'a BTreeMap<MachineId, Charge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten: &'a Option<Timestamp>,
    clock: &'a LedgerClock,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    disowned: &'a BTreeMap<MachineId, Disowned>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    host_keys: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: &'a Option<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    bad: &'a [BadHost],
}

/// What plans bind to.
#[derive(Serialize)]
pub(super) struct World<'a> {
    specs: Vec<&'a LeaseSpec>,
    facts: Vec<&'a Facts>,
    bought: Vec<Bought<'a>>,
    resources: Pairs<'a, WrittenResource<'a>>,
    /// Where it is not the resource's own; none where there is a resource and no number.
    generations: Pairs<'a, Option<Generation>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lapsed: &'a BTreeMap<LeaseId, Lapse>,
}

/// Written as a map, in this order.
struct Pairs<'a, T>(Vec<(&'a Address, T)>);

impl<T: Serialize> Serialize for Pairs<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(address, value)| (address, value)))
    }
}

/// From whom, and for how much.
#[derive(Clone, Copy, PartialEq, Serialize)]
struct Bought<'a> {
    provider: &'a Name,
    provider_kind: &'a str,
    offer: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<&'a Account>,
    quote: &'a QuoteId,
    price_per_hour: MicroDollars,
}

#[derive(Serialize)]
struct WrittenResource<'a> {
    generation: Generation,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<SpecPlace<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<WrittenReceipt<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: &'a Option<Box<Pending>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attempts: &'a BTreeMap<Attempt, OpenAttempt>,
    /// Where it is not the try that made the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt: Option<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tried_since: &'a Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    billed: Option<WrittenBilled>,
    #[serde(skip_serializing_if = "Option::is_none")]
    made_for: &'a Option<LeaseId>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tried: &'a BTreeMap<Attempt, Tried>,
}

/// A spec: the place of a lease's, or the whole of any other.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum SpecPlace<'a> {
    Lease(u32),
    Whole(&'a Spec),
}

impl<'a> SpecPlace<'a> {
    pub(crate) fn of(spec: &'a Spec, specs: &mut Table<'a, LeaseSpec>) -> Self {
        match spec {
            Spec::Lease(spec) => Self::Lease(specs.place(spec)),
            Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_) => {
                Self::Whole(spec)
            }
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenReceipt<'a> {
    Lease { lease: WrittenLease<'a> },
    Whole(&'a Receipt),
}

#[derive(Serialize)]
struct WrittenLease<'a> {
    bought: u32,
    machine: &'a MachineId,
    /// Stands for the request key.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<Attempt>,
    /// Where it is another than lineage, address, generation and attempt make.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_key: Option<&'a RequestKey>,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Place::is_unknown")]
    place: &'a Place,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<WrittenReady<'a>>,
}

/// An account. What is left out is as it is for a machine that costs what it always did: billed for certain since it was
/// made, perhaps since it was asked for, and seen last when it was made.
#[derive(Serialize)]
struct WrittenBilled {
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Spent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maybe_since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<Timestamp>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    booting: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dated: Option<Dated>,
}

impl WrittenBilled {
    fn of(billed: &Billed, recorded: &Recorded) -> Self {
        let usual = usual_account(recorded.receipt.as_ref(), recorded.tried_since);
        let Some(usual) = usual else {
            return Self {
                before: Some(billed.before),
                since: Some(billed.since),
                maybe_since: Some(billed.maybe_since),
                made: billed.made,
                seen: Some(billed.seen),
                booting: billed.booting,
                dated: billed.dated,
            };
        };
        Self {
            before: Some(billed.before).filter(|before| *before != usual.before),
            since: Some(billed.since).filter(|since| *since != usual.since),
            maybe_since: Some(billed.maybe_since).filter(|since| *since != usual.maybe_since),
            made: billed.made,
            seen: Some(billed.seen).filter(|seen| *seen != usual.seen),
            booting: billed.booting,
            dated: billed.dated,
        }
    }
}

/// The account that most machines have. A machine that becomes ready is seen then, which the account tells apart.
fn usual_account(receipt: Option<&Receipt>, tried_since: Option<Timestamp>) -> Option<Billed> {
    let Receipt::Lease(lease) = receipt? else {
        return None;
    };
    let maybe_since = tried_since.unwrap_or(lease.created_at);
    Some(Billed {
        before: Spent {
            since: Some(maybe_since),
            ..Spent::default()
        },
        since: lease.created_at,
        maybe_since,
        made: None,
        seen: lease.created_at,
        booting: false,
        dated: None,
    })
}

#[derive(Serialize)]
struct WrittenReady<'a> {
    facts: u32,
    endpoint: EndpointKey,
    #[serde(skip_serializing_if = "nowhere")]
    contact: &'a Contact,
}

fn nowhere(contact: &&Contact) -> bool {
    contact.is_unknown()
}

impl State {
    pub(super) fn written(&self) -> Written<'_> {
        // Whole, so that a new field is not forgotten here.
        let Self {
            genesis,
            run,
            resources: _,
            generations: _,
            consumed,
            ended,
            spent,
            charged,
            forgotten,
            clock,
            disowned,
            host_keys,
            closed,
            bad,
            lapsed: _,
        } = self;
        Written {
            genesis,
            run,
            world: self.world(),
            consumed,
            ended,
            spent,
            charged,
            forgotten,
            clock,
            disowned,
            host_keys,
            closed,
            bad,
        }
    }

    pub(super) fn world(&self) -> World<'_> {
        let mut specs = Table::new();
        let mut facts = Table::new();
        let mut sold = Sold::default();
        let mut resources = Vec::with_capacity(self.resources.len());
        for (address, recorded) in &self.resources {
            let Recorded {
                generation,
                spec,
                receipt,
                pending,
                attempts,
                last_attempt,
                tried_since,
                billed,
                made_for,
                tried,
            } = recorded;
            let made_by = self.made_by(address, recorded);
            let receipt = receipt.as_ref().map(|receipt| match receipt {
                Receipt::Lease(lease) => {
                    let (terms, rest) = split(lease, made_by, &mut facts);
                    WrittenReceipt::Lease {
                        lease: WrittenLease {
                            bought: sold.place(terms),
                            ..rest
                        },
                    }
                }
                Receipt::Delivery(_)
                | Receipt::Stage(_)
                | Receipt::Pipeline(_)
                | Receipt::Exposure(_) => WrittenReceipt::Whole(receipt),
            });
            let written = WrittenResource {
                generation: *generation,
                spec: spec.as_ref().map(|spec| SpecPlace::of(spec, &mut specs)),
                receipt,
                pending,
                attempts,
                last_attempt: Some(*last_attempt).filter(|last| made_by != Some(*last)),
                tried_since,
                billed: billed.map(|billed| WrittenBilled::of(&billed, recorded)),
                made_for,
                tried,
            };
            resources.push((address, written));
        }
        World {
            specs: specs.values,
            facts: facts.values,
            bought: sold.rows,
            resources: Pairs(resources),
            generations: Pairs(self.other_generations()),
            lapsed: &self.lapsed,
        }
    }

    /// The try that made a lease's machine, where its request key is what that makes.
    fn made_by(&self, address: &Address, recorded: &Recorded) -> Option<Attempt> {
        let Receipt::Lease(lease) = recorded.receipt.as_ref()? else {
            return None;
        };
        let lineage = &self.genesis.as_ref()?.lineage;
        let (generation, attempt) = lease.request_key.try_of();
        let same = generation == recorded.generation
            && RequestKey::derive(lineage, address, generation, attempt) == lease.request_key;
        same.then_some(attempt)
    }

    fn other_generations(&self) -> Vec<(&Address, Option<Generation>)> {
        let own = |address| self.resources.get(address).map(|own| own.generation);
        let other = self
            .generations
            .iter()
            .filter(|(address, generation)| own(*address) != Some(**generation))
            .map(|(address, generation)| (address, Some(*generation)));
        let without = self
            .resources
            .keys()
            .filter(|address| !self.generations.contains_key(*address))
            .map(|address| (address, None));
        other.chain(without).collect()
    }
}

/// What was bought, each once.
#[derive(Default)]
struct Sold<'a> {
    rows: Vec<Bought<'a>>,
    places: BTreeMap<String, u32>,
    last: Option<u32>,
}

impl<'a> Sold<'a> {
    fn place(&mut self, terms: Bought<'a>) -> u32 {
        if let Some(last) = self.last
            && self.rows[last as usize] == terms
        {
            return last;
        }
        let text = serde_json::to_string(&terms).expect("plain data");
        let next = u32::try_from(self.rows.len()).expect("few");
        let place = *self.places.entry(text).or_insert(next);
        if place == next {
            self.rows.push(terms);
        }
        self.last = Some(place);
        place
    }
}

/// What was bought, and the rest of a receipt.
fn split<'a>(
    lease: &'a LeaseReceipt,
    made_by: Option<Attempt>,
    facts: &mut Table<'a, Facts>,
) -> (Bought<'a>, WrittenLease<'a>) {
    let LeaseReceipt {
        provider,
        provider_kind,
        offer,
        account,
        quote,
        machine,
        request_key,
        price_per_hour,
        created_at,
        place,
        ready,
    } = lease;
    let bought = Bought {
        provider,
        provider_kind,
        offer,
        account: account.as_ref(),
        quote,
        price_per_hour: *price_per_hour,
    };
    let ready = ready.as_ref().map(|ready| WrittenReady {
        facts: facts.place(&ready.facts),
        endpoint: ready.endpoint,
        contact: &ready.contact,
    });
    let rest = WrittenLease {
        bought: 0,
        machine,
        attempt: made_by,
        request_key: made_by.is_none().then_some(request_key),
        created_at: *created_at,
        place,
        ready,
    };
    (bought, rest)
}
