//! What providers say of machines by their own clocks, which counts for more than when we saw them.
//!
//! Two moments by one clock that nobody here can set tell a span exactly, whichever of our computers asks and whatever its
//! clock says. A machine that was charged by what was seen of it is charged anew once its provider says when it ended. No
//! machine is charged twice: those that are over are remembered for as long as their provider may go on telling of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Recorded, State};
use super::{Billed, Ledger, Spent, over};
use crate::id::{Address, LeaseId, MachineId, RequestKey};
use crate::journal::Record;
use crate::resource::{Dates, LeaseReceipt, Receipt, Told};
use crate::unit::{MicroDollars, Timestamp};

/// How many machines that are over are remembered.
pub const CHARGED_MAX: usize = 1024;

/// What the provider of a machine told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Dated {
    /// By its clock; from when it costs the recorded rate.
    #[serde(flatten)]
    pub dates: Dates,
    /// When it said so, in ledger time.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// What was charged for a machine that is no longer recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Charge {
    /// To which lease.
    pub lease: LeaseId,
    /// How much.
    pub spent: Spent,
    /// Its last rate.
    pub rate: MicroDollars,
    /// Its account, as long as its provider has not said when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed: Option<Billed>,
    /// Until when it was billed at least, by its provider's clock.
    #[schemars(with = "String")]
    pub to: Timestamp,
}

impl Dated {
    /// What that makes at a rate.
    pub(super) fn spent(&self, rate: MicroDollars) -> Spent {
        span(rate, self.dates.from, self.dates.to)
    }
}

/// What a span costs that is known.
fn span(rate: MicroDollars, from: Timestamp, to: Timestamp) -> Spent {
    let (least, most) = over(rate, from, to);
    let since = None;
    Spent { least, most, since }
}

impl Told {
    /// The record that says so. `address` is the lease that the machine is of.
    pub fn record(&self, address: Address, at: Timestamp) -> Record {
        Record::Dated {
            address,
            machine: self.machine.clone(),
            price_per_hour: self.price_per_hour,
            dates: self.dates,
            at,
        }
    }

    /// Whether it is about the machine of a receipt. Two accounts may use the same id; they do not use the same key.
    fn is_of(&self, receipt: &LeaseReceipt) -> bool {
        let key = self.key.as_ref();
        receipt.machine == self.machine && key.is_none_or(|key| *key == receipt.request_key)
    }
}

impl Billed {
    /// An account of which nothing is known but what its provider says.
    fn told(told: &Told, at: Timestamp) -> Self {
        let mut billed = Self {
            before: Spent {
                since: Some(at),
                ..Spent::default()
            },
            since: at,
            maybe_since: at,
            made: None,
            seen: at,
            booting: false,
            dated: None,
        };
        billed.hear(told.price_per_hour, told, at);
        billed
    }

    /// Takes what the provider says. `was` is the recorded rate; the one that is told is in force from `at` on, which is ledger
    /// time. Of one that moved nobody knows when: some time after it was told last.
    fn hear(&mut self, was: MicroDollars, told: &Told, at: Timestamp) {
        let Dates { from, to, over } = told.dates;
        let is = told.rate(was);
        let (low, high) = (was.min(is), was.max(is));
        let from = match self.dated {
            Some(dated) if dated.dates.over => return,
            Some(dated) if is == was => dated.dates.from,
            Some(dated) => {
                self.before = self.before.and(dated.spent(was));
                self.moved(low, high, dated.dates.to, to);
                to
            }
            // It cost other rates before, for as long as our own clock says.
            None if self.before.most.0 > 0 => {
                self.before = self.spent(was, at);
                to
            }
            None if is == was => from,
            None => {
                self.moved(low, high, from, to);
                to
            }
        };
        if from == to {
            self.made = Some(self.born());
            (self.since, self.maybe_since) = (at, at);
        }
        if !over {
            self.seen = self.seen.max(at);
        }
        let dates = Dates { from, to, over };
        self.dated = Some(Dated { dates, at });
    }

    fn moved(&mut self, low: MicroDollars, high: MicroDollars, from: Timestamp, to: Timestamp) {
        self.before = self.before.and(Spent {
            least: over(low, from, to).0,
            most: over(high, from, to).1,
            since: None,
        });
    }
}

impl Told {
    /// What it costs. One that is over may be told at no price any more.
    fn rate(&self, was: MicroDollars) -> MicroDollars {
        match self.price_per_hour {
            MicroDollars::ZERO if self.dates.over => was,
            price => price,
        }
    }
}

impl Recorded {
    /// Takes what is told of its machine, or of one that it gave up; false when it has none like that.
    fn hear(&mut self, told: &Told, at: Timestamp) -> bool {
        let own = self.account();
        if let Some((receipt, mut billed)) = own.filter(|(receipt, _)| told.is_of(receipt)) {
            let was = receipt.price_per_hour;
            billed.hear(was, told, at);
            self.billed = Some(billed);
            if let Some(Receipt::Lease(receipt)) = &mut self.receipt {
                receipt.price_per_hour = told.rate(was);
            }
            return true;
        }
        for open in self.attempts.values_mut() {
            if let Some(receipt) = open.leaving.as_mut().filter(|held| told.is_of(held)) {
                let mut billed = open.billed.unwrap_or_else(|| Billed::plain(receipt));
                let was = receipt.price_per_hour;
                billed.hear(was, told, at);
                open.billed = Some(billed);
                receipt.price_per_hour = told.rate(was);
                return true;
            }
        }
        false
    }

    /// Whether its machine, or one that it gave up, is this one; and whether it is known to be over.
    fn knows(&self, told: &Told) -> Option<bool> {
        let is_over = |billed: Option<Billed>| {
            billed
                .and_then(|it| it.dated)
                .is_some_and(|it| it.dates.over)
        };
        if self.account().is_some_and(|(held, _)| told.is_of(held)) {
            return Some(is_over(self.billed));
        }
        let mut left = self.attempts.values();
        let left = left.find(|open| open.leaving.as_ref().is_some_and(|it| told.is_of(it)));
        left.map(|open| is_over(open.billed))
    }
}

/// Where machines belong, by their ids and by their names.
struct Homes {
    by_id: BTreeMap<MachineId, Address>,
    by_prefix: BTreeMap<String, Address>,
}

impl Homes {
    fn of(state: &State) -> Self {
        let mut homes = Self {
            by_id: BTreeMap::new(),
            by_prefix: BTreeMap::new(),
        };
        let ended = state
            .ended
            .iter()
            .map(|it| (&it.receipt.machine, &it.lease));
        let charged = state.charged.iter().map(|(id, it)| (id, &it.lease));
        for (id, lease) in ended.chain(charged) {
            homes
                .by_id
                .insert(id.clone(), Address::Lease(lease.clone()));
        }
        for (address, recorded) in &state.resources {
            let held = recorded.account().map(|(held, _)| held);
            let left = recorded.attempts.values();
            let left = left.filter_map(|open| open.leaving.as_deref());
            for receipt in held.into_iter().chain(left) {
                homes.by_id.insert(receipt.machine.clone(), address.clone());
            }
        }
        let lineage = state.genesis.as_ref().map(|genesis| genesis.lineage);
        for address in state.generations.keys().chain(state.resources.keys()) {
            if let (Address::Lease(_), Some(lineage)) = (address, &lineage) {
                let prefix = RequestKey::prefix(lineage, address);
                homes.by_prefix.insert(prefix, address.clone());
            }
        }
        homes
    }

    fn find(&self, told: &Told) -> Option<&Address> {
        let by_name = || {
            let (before, _) = told.key.as_ref()?.as_str().rsplit_once('-')?;
            self.by_prefix.get(&format!("{before}-"))
        };
        self.by_id.get(&told.machine).or_else(by_name)
    }
}

impl State {
    /// What every lease cost until now, with what its provider tells now: whatever it tells of counts exactly. A try in doubt of
    /// which it tells a machine counts as what is told.
    pub fn ledger_told(
        &self,
        now: Timestamp,
        alive: impl Fn(&LeaseId) -> bool,
        told: &[Told],
    ) -> Ledger {
        if told.is_empty() {
            return self.ledger(now, alive);
        }
        let homes = Homes::of(self);
        let mut seen = self.clone();
        for one in told {
            let Some(address) = homes.find(one) else {
                continue;
            };
            seen.hear(address, one, now);
            seen.resolve_by(address, one);
        }
        seen.ledger(now, alive)
    }

    /// What of that the ledger does not know yet: machines that are over.
    pub fn news(&self, told: &[Told], at: Timestamp) -> Vec<Record> {
        let mut over = told.iter().filter(|told| told.dates.over).peekable();
        if over.peek().is_none() {
            return Vec::new();
        }
        let homes = Homes::of(self);
        let new = over.filter_map(|told| {
            let address = homes.find(told)?;
            let new = self.is_news(address, told);
            new.then(|| told.record(address.clone(), at))
        });
        new.collect()
    }

    fn is_news(&self, address: &Address, told: &Told) -> bool {
        if self.disowned.contains_key(&told.machine) {
            return false;
        }
        let recorded = self.resources.get(address);
        if let Some(over) = recorded.and_then(|recorded| recorded.knows(told)) {
            return !over;
        }
        match self.charged.get(&told.machine) {
            Some(charge) => charge.billed.is_some(),
            None => !self.is_forgotten(told),
        }
    }

    /// Whether a machine may have been charged and forgotten since.
    fn is_forgotten(&self, told: &Told) -> bool {
        let before = self.forgotten.is_some_and(|until| told.dates.to <= until);
        let mut ended = self.ended.iter();
        let unknown = |machine: &MachineId| *machine == told.machine;
        before || ended.any(|it| it.spent.is_none() && unknown(&it.receipt.machine))
    }

    /// Takes what a provider says of a machine of this lease.
    pub(in super::super) fn hear(&mut self, address: &Address, told: &Told, at: Timestamp) {
        let Address::Lease(lease) = address else {
            return;
        };
        if self.disowned.contains_key(&told.machine) {
            return;
        }
        let recorded = self.resources.get_mut(address);
        if recorded.is_some_and(|recorded| recorded.hear(told, at)) {
            return;
        }
        let charge = match self.charged.get(&told.machine) {
            Some(charge) => {
                let Some(mut billed) = charge.billed else {
                    return;
                };
                billed.hear(charge.rate, told, at);
                let (lease, rate) = (charge.lease.clone(), told.rate(charge.rate));
                Charge::of(lease, rate, billed, at)
            }
            None if self.is_forgotten(told) => return,
            None => {
                let billed = Billed::told(told, at);
                Charge::of(lease.clone(), told.price_per_hour, billed, at)
            }
        };
        self.recharge(&told.machine, charge);
    }

    /// A try in doubt whose machine is told of counts as that.
    fn resolve_by(&mut self, address: &Address, told: &Told) {
        let (Some(key), Some(recorded)) = (&told.key, self.resources.get_mut(address)) else {
            return;
        };
        for open in recorded.attempts.values_mut() {
            if open.leaving.is_none() && open.launch.request_key == *key {
                open.launch.reservation = MicroDollars::ZERO;
            }
        }
    }

    /// Remembers what was charged for a machine of a provider that tells dates.
    pub(in super::super) fn remember(
        &mut self,
        lease: &LeaseId,
        receipt: &LeaseReceipt,
        billed: Option<Billed>,
        now: Timestamp,
    ) {
        if let Some(billed) = billed.filter(|billed| billed.dated.is_some()) {
            let charge = Charge::of(lease.clone(), receipt.price_per_hour, billed, now);
            let before = self.charged.remove(&receipt.machine);
            let spent = before.map_or(charge.spent, |before| before.spent.and(charge.spent));
            let charge = Charge { spent, ..charge };
            self.charged.insert(receipt.machine.clone(), charge);
            self.forget_oldest();
        }
    }

    /// A machine that was told of is gone; what was charged for it goes up to now, if nothing better is known. False when
    /// it was never told of.
    pub(in super::super) fn gone_by_listing(
        &mut self,
        machine: &MachineId,
        now: Timestamp,
    ) -> bool {
        let Some(charge) = self.charged.get(machine) else {
            return false;
        };
        if let Some(billed) = charge.billed {
            let charge = Charge::of(charge.lease.clone(), charge.rate, billed, now);
            self.recharge(machine, charge);
        }
        true
    }

    /// What was charged for leases that go on under another name goes with them.
    pub(in super::super) fn charges_move(&mut self, from: &LeaseId, to: &LeaseId) {
        let own = self.charged.values_mut().filter(|it| it.lease == *from);
        own.for_each(|charge| charge.lease = to.clone());
    }

    /// Charges a machine anew.
    fn recharge(&mut self, machine: &MachineId, charge: Charge) {
        let mut ended = self.ended.iter_mut();
        let ended = ended.find(|ended| ended.receipt.machine == *machine);
        let before = self.charged.get(machine).map(|charge| charge.spent);
        let before = before.or_else(|| ended.as_ref()?.spent).unwrap_or_default();
        if let Some(ended) = ended {
            ended.spent = Some(charge.spent);
        }
        let sum = self.spent.entry(charge.lease.clone()).or_default();
        sum.least.0 = sum.least.0.saturating_sub(before.least.0);
        sum.most.0 = sum.most.0.saturating_sub(before.most.0);
        *sum = sum.and(charge.spent);
        self.charged.insert(machine.clone(), charge);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.charged.len() > CHARGED_MAX {
            let oldest = self.charged.iter().min_by_key(|(_, charge)| charge.to);
            let Some((machine, to)) = oldest.map(|(id, charge)| (id.clone(), charge.to)) else {
                return;
            };
            self.charged.remove(&machine);
            self.forgotten = self.forgotten.max(Some(to));
        }
    }
}

impl Charge {
    fn of(lease: LeaseId, rate: MicroDollars, billed: Billed, now: Timestamp) -> Self {
        let dated = billed.dated;
        let over = dated.is_some_and(|dated| dated.dates.over);
        Self {
            lease,
            spent: billed.spent(rate, now),
            rate,
            billed: Some(billed).filter(|_| !over),
            to: dated.map_or(now, |dated| dated.dates.to),
        }
    }
}

#[cfg(test)]
mod tests;
