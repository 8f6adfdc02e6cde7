//! Hosts and offers that a machine failed on, so that no later plan of this topology takes them again.
//!
//! A note is forgotten after a week, when a machine of the same host, or taken later by the same offer, becomes ready, and when there are too many; for one
//! plan, `--replace` of the lease that it was made for sets it aside. It is about one topology and never leaves its state.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Recorded, State};
use crate::id::{Address, LeaseId, Name};
use crate::offer::{Quote, QuoteId, Supply};
use crate::unit::{Millis, Timestamp};

/// How long a note holds: hosts are mended, and offers are handed to other hosts.
pub const BAD_FOR: Millis = Millis(7 * 24 * 3_600_000);

/// Most notes that are kept.
pub const BAD_MAX: usize = 256;

/// A machine failed there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BadHost {
    /// The `[provider.NAME]`.
    pub provider: Name,
    /// The quote that was taken.
    pub quote: QuoteId,
    /// The computer, where the provider tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// For which lease.
    pub lease: LeaseId,
    /// What was wrong.
    pub why: String,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

impl BadHost {
    /// Whether it still counts.
    pub fn holds(&self, now: Timestamp) -> bool {
        let span = SignedDuration::from_millis(i64::try_from(BAD_FOR.0).unwrap_or(i64::MAX));
        self.at.checked_add(span).is_ok_and(|until| now < until)
    }

    /// Whether this quote would lead there: to the same computer, or to the same offer where nobody knows the computer.
    pub fn meets(&self, quote: &Quote) -> bool {
        self.provider == quote.provider
            && match (&self.host, &quote.facts.host) {
                (Some(noted), Some(host)) => noted == host,
                (_, _) => self.quote == quote.id,
            }
    }

    /// Whether it certainly would: then the quote is not taken. A shape that many can take may lead to any computer: it is
    /// taken when there is nothing else.
    pub fn bars(&self, quote: &Quote) -> bool {
        let certain = quote.supply == Supply::One || quote.facts.host.is_some();
        certain && self.meets(quote)
    }
}

impl State {
    /// What counts now.
    pub fn bad_at(&self, now: Timestamp) -> impl Iterator<Item = &BadHost> {
        self.bad.iter().filter(move |bad| bad.holds(now))
    }

    pub(super) fn note(&mut self, bad: BadHost) {
        let same = |other: &BadHost| {
            other.provider == bad.provider && other.quote == bad.quote && other.host == bad.host
        };
        self.bad.retain(|other| !same(other) && other.holds(bad.at));
        self.bad.push(bad);
        let surplus = self.bad.len().saturating_sub(BAD_MAX);
        self.bad.drain(..surplus);
    }

    /// A machine that became ready takes back what was noted of its host.
    pub(super) fn proved_good(&mut self, lease: &Address) {
        if self.bad.is_empty() {
            return;
        }
        let account = self.resources.get(lease).and_then(Recorded::account);
        let Some((receipt, _)) = account.filter(|(receipt, _)| receipt.ready.is_some()) else {
            return;
        };
        self.bad.retain(|bad| {
            bad.provider != receipt.provider
                || match (&bad.host, &receipt.place.host) {
                    (Some(noted), Some(host)) => noted != host,
                    // The same offer taken again, not another machine of that shape that was there already.
                    (_, _) => bad.quote != receipt.quote || receipt.created_at <= bad.at,
                }
        });
    }
}
