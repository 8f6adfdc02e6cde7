//! The ledger: what each lease has cost so far, by what is recorded.
//!
//! A machine costs its rate from the moment it was made until it is proven gone. Neither moment is known exactly, so
//! every sum has two ends: the truth is not below `least` and not above `most`. Each lease has one account that goes on
//! over all of its machines. Times are *ledger times*: the wall clock of the records, corrected where the boot-time
//! clock of one computer contradicts it, and never running backwards. It guesses nothing: a machine that nobody saw end
//! is counted up to when it was last seen, and as a possibility up to when it was missed. Where the provider itself says
//! when a machine began and ended, that counts instead (`told`), and the two ends of the sum are one.

mod told;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use told::{CHARGED_MAX, Charge, Dated};

use super::{OpenAttempt, Recorded, State};
use crate::id::{Address, LeaseId};
use crate::journal::BootPoint;
use crate::resource::{LeaseReceipt, Receipt};
use crate::unit::{MicroDollars, Timestamp};
use std::collections::BTreeMap;

/// A price is for this many milliseconds.
const PRICE_SPAN: u128 = 3_600_000;

/// Sums that differ by less are told as one: a cent.
const CENT: u64 = 10_000;

/// What was spent, between two bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    /// Surely this much.
    pub least: MicroDollars,
    /// Surely not more than this.
    pub most: MicroDollars,
    /// Since when something may have been billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
}

/// The account of one machine that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Billed {
    /// What it cost at earlier rates.
    pub before: Spent,
    /// From when it surely costs the recorded rate.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// From when it may have cost that already.
    #[schemars(with = "String")]
    pub maybe_since: Timestamp,
    /// When it was made, where that is not `since` any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub made: Option<Timestamp>,
    /// When it was seen last.
    #[schemars(with = "String")]
    pub seen: Timestamp,
    /// Its provider bills it from when it runs, and it was not seen to run yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub booting: bool,
    /// What its provider says, by a clock of its own: counts instead of all that, and on from when it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dated: Option<Dated>,
}

/// What makes ledger times out of wall-clock times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerClock {
    /// The boot-time clock when the last run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<BootPoint>,
    /// The wall clock then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    began: Option<Timestamp>,
    /// How far the wall clock is ahead of ledger time, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    ahead: i64,
    /// The latest ledger time so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    last: Option<Timestamp>,
}

fn is_zero(ahead: &i64) -> bool {
    *ahead == 0
}

/// What all leases have cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ledger {
    /// By lease, ended ones too.
    pub leases: BTreeMap<LeaseId, Spent>,
    /// In sum.
    pub total: Spent,
}

impl Spent {
    /// The sum.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let since = match (self.since, other.since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            least: self.least.saturating_add(other.least),
            most: self.most.saturating_add(other.most),
            since,
        }
    }

    /// A sum that is known.
    pub const fn exactly(sum: MicroDollars) -> Self {
        Self {
            least: sum,
            most: sum,
            since: None,
        }
    }

    /// Nothing was and nothing may have been spent.
    pub const fn is_zero(&self) -> bool {
        self.most.0 == 0
    }

    /// The two bounds are a cent or more apart.
    pub const fn is_uncertain(&self) -> bool {
        self.most.0.saturating_sub(self.least.0) >= CENT
    }
}

impl std::fmt::Display for Spent {
    /// `$1.24`, or `$1.20 to $1.90` where that much is not known.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_uncertain() {
            f.pad(&format!("{} to {}", cents(self.least), cents(self.most)))
        } else {
            f.pad(&cents(self.most))
        }
    }
}

/// Whole cents; what is less than one is said to be.
fn cents(money: MicroDollars) -> String {
    match money.0 {
        0 => "$0.00".to_owned(),
        1..CENT => "less than $0.01".to_owned(),
        more => MicroDollars(more.saturating_add(CENT / 2) / CENT * CENT).to_string(),
    }
}

/// What a rate makes over a span: rounded down, and up. Nothing for a span that ends before it begins.
fn over(rate: MicroDollars, from: Timestamp, to: Timestamp) -> (MicroDollars, MicroDollars) {
    let span = to.as_millisecond().saturating_sub(from.as_millisecond());
    let span = u128::try_from(span).unwrap_or(0);
    let sum = u128::from(rate.0).saturating_mul(span);
    let money = |sum: u128| MicroDollars(u64::try_from(sum).unwrap_or(u64::MAX));
    (money(sum / PRICE_SPAN), money(sum.div_ceil(PRICE_SPAN)))
}

fn later(at: Timestamp, millis: i64) -> Timestamp {
    at.checked_add(jiff::SignedDuration::from_millis(millis))
        .unwrap_or(if millis < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
}

fn between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond().saturating_sub(from.as_millisecond())
}

impl LedgerClock {
    /// A run begins. On the same boot of the same computer the boot-time clock says how much time passed since the run
    /// before, whatever the wall clock says; else the wall clock is believed, but not backwards.
    pub(super) fn begin(&mut self, at: Timestamp, boot: Option<&BootPoint>) {
        let passed = match (&self.boot, boot, self.began) {
            (Some(before), Some(now), Some(began))
                if before.boot == now.boot && now.up >= before.up =>
            {
                let passed = i64::try_from(now.up.0 - before.up.0).unwrap_or(i64::MAX);
                Some(later(began, passed.saturating_sub(self.ahead)))
            }
            (_, _, _) => None,
        };
        let mut ledger = passed.unwrap_or_else(|| later(at, self.ahead.saturating_neg()));
        if let Some(last) = self.last {
            ledger = ledger.max(last);
        }
        self.ahead = between(ledger, at);
        self.boot = boot.cloned();
        self.began = Some(at);
        self.last = Some(ledger);
    }

    /// The ledger time of a record.
    pub(super) fn tick(&mut self, at: Timestamp) -> Timestamp {
        let time = self.time(at);
        self.last = Some(time);
        time
    }

    fn time(&self, at: Timestamp) -> Timestamp {
        let time = later(at, self.ahead.saturating_neg());
        self.last.map_or(time, |last| time.max(last))
    }

    /// The ledger time of a moment that may lie before the last record.
    pub(super) fn time_of(&self, at: Timestamp) -> Timestamp {
        later(at, self.ahead.saturating_neg())
    }
}

impl Billed {
    pub(super) fn of(
        receipt: &LeaseReceipt,
        started: Option<Timestamp>,
        clock: &LedgerClock,
    ) -> Self {
        let since = clock.time_of(receipt.created_at);
        let maybe_since = started.map_or(since, |started| started.min(since));
        Self {
            before: Spent {
                since: Some(maybe_since),
                ..Spent::default()
            },
            since,
            maybe_since,
            made: None,
            seen: since,
            booting: false,
            dated: None,
        }
    }

    /// The account of a machine of which only the receipt is known.
    fn plain(receipt: &LeaseReceipt) -> Self {
        Self::of(receipt, None, &LedgerClock::default())
    }

    /// What it cost at that rate, seen last when recorded, and at most until `now`.
    fn spent(&self, rate: MicroDollars, now: Timestamp) -> Spent {
        self.before.and(self.at_rate(rate, self.seen, now))
    }

    /// What it cost at its last rate: surely until `seen`, and at most until `now`.
    fn at_rate(&self, rate: MicroDollars, seen: Timestamp, now: Timestamp) -> Spent {
        let (sure, since, maybe_since) = match self.dated {
            None => (Spent::default(), self.since, self.maybe_since),
            Some(dated) if dated.dates.over => return dated.spent(rate),
            Some(dated) => (dated.spent(rate), dated.at, dated.at),
        };
        let least = if self.booting {
            MicroDollars::ZERO
        } else {
            over(rate, since, seen).0
        };
        sure.and(Spent {
            least,
            most: over(rate, maybe_since, now).1,
            since: None,
        })
    }

    /// When the machine was made, whatever its rate was since.
    pub fn born(&self) -> Timestamp {
        self.made.unwrap_or(self.since)
    }

    /// It was seen to run: from here on it surely costs its rate.
    pub(super) fn runs(&mut self, rate: MicroDollars, now: Timestamp) {
        if self.booting && self.dated.is_none() {
            self.rate_changed(rate, rate, now);
        }
        self.booting = false;
    }

    /// The rate was another one when it was looked at. When it changed is not known: some time after it was last seen.
    pub(super) fn rate_changed(&mut self, was: MicroDollars, is: MicroDollars, now: Timestamp) {
        let (low, high) = (was.min(is), was.max(is));
        let low = if self.booting {
            MicroDollars::ZERO
        } else {
            low
        };
        let seen = self.seen.min(now);
        let gap = Spent {
            least: over(low, seen, now).0,
            most: over(high, seen, now).1,
            since: None,
        };
        let sure = self.at_rate(was, seen, seen);
        self.before = self.before.and(sure).and(gap);
        self.made = Some(self.born());
        (self.since, self.maybe_since, self.seen) = (now, now, now);
        self.dated = None;
    }
}

impl Recorded {
    /// The account of the machine; made from the receipt where an older stageline kept none.
    pub(super) fn account(&self) -> Option<(&LeaseReceipt, Billed)> {
        let Some(Receipt::Lease(receipt)) = &self.receipt else {
            return None;
        };
        let billed = self.billed.unwrap_or_else(|| Billed::plain(receipt));
        Some((receipt, billed))
    }

    /// What its own machine cost until now.
    pub(super) fn own_spent(&self, now: Timestamp) -> Option<Spent> {
        let (receipt, billed) = self.account()?;
        Some(billed.spent(receipt.price_per_hour, now))
    }

    /// What its machine, and every try that is not proven gone, cost until now. `alive` says that the machine was seen
    /// just now.
    pub(super) fn spent(&self, now: Timestamp, alive: bool) -> Spent {
        let mut spent = Spent::default();
        if let Some((receipt, mut billed)) = self.account() {
            if alive {
                billed.seen = billed.seen.max(now);
            }
            spent = spent.and(billed.spent(receipt.price_per_hour, now));
        }
        for open in self.attempts.values() {
            spent = spent.and(open.spent(now));
        }
        spent
    }

    /// What a machine beyond the one that is kept may have cost: made by some try of this generation, at the price that it
    /// was seen at or at the highest of these tries.
    pub(super) fn extra(&self, seen: Option<MicroDollars>, now: Timestamp) -> Spent {
        let open = self.attempts.values();
        let prices = open.map(|open| open.launch.price_per_hour);
        let held = self.account().map(|(receipt, _)| receipt.price_per_hour);
        let price = prices.chain(held).chain(seen).max().unwrap_or_default();
        let since = self.tried_since.unwrap_or(now);
        Spent {
            least: MicroDollars::ZERO,
            most: over(price, since, now).1,
            since: Some(since),
        }
    }
}

impl OpenAttempt {
    /// What it may have cost until now: a machine that was given up by its account, any other try at its ceiling.
    pub(super) fn spent(&self, now: Timestamp) -> Spent {
        if let Some(receipt) = &self.leaving {
            let billed = self.billed.unwrap_or_else(|| Billed::plain(receipt));
            return billed.spent(receipt.price_per_hour, now);
        }
        let since = self.counted_since.unwrap_or(self.at);
        Spent {
            least: MicroDollars::ZERO,
            most: over(self.launch.reservation, since, now).1,
            since: Some(since),
        }
    }
}

impl State {
    /// What time it is for the ledger, by a look at both clocks.
    pub fn ledger_now(&self, at: Timestamp, boot: Option<&BootPoint>) -> Timestamp {
        let mut clock = self.clock.clone();
        clock.begin(at, boot);
        clock.time(at)
    }

    /// What every lease cost until `now`, which is a ledger time. `alive` are those whose machine was seen just now.
    pub fn ledger(&self, now: Timestamp, alive: impl Fn(&LeaseId) -> bool) -> Ledger {
        let mut leases = self.spent.clone();
        for (address, recorded) in self.existing() {
            let Address::Lease(lease) = address else {
                continue;
            };
            let spent = recorded.spent(now, alive(lease));
            if spent.since.is_some() {
                let sum = leases.entry(lease.clone()).or_default();
                *sum = sum.and(spent);
            }
        }
        let total = leases
            .values()
            .fold(Spent::default(), |sum, spent| sum.and(*spent));
        Ledger { leases, total }
    }

    /// The most that may have been spent until now, a wall-clock time of the run that is under way. Open tries count at
    /// their ceiling.
    pub fn spent_at_most(&self, at: Timestamp) -> MicroDollars {
        self.ledger(self.clock.time(at), |_| false).total.most
    }

    /// Adds to the account of a lease what is over.
    pub(super) fn charge(&mut self, lease: &LeaseId, spent: Spent) {
        if spent.since.is_some() {
            let sum = self.spent.entry(lease.clone()).or_default();
            *sum = sum.and(spent);
        }
    }
}

#[cfg(test)]
mod tests;
