//! Bids: what is offered for a machine that its provider may take away again.
//!
//! A bid on an ask is a quote of its own, beside the one that rents the ask on demand. Its id says both, since ids are all that
//! is recorded of a quote: the ask's, then `#bid` for the least that is taken, or `#bid=0.21` for so much.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::QuoteId;
use crate::unit::MicroDollars;

/// Between an ask and what is bid on it.
const MARK: &str = "#bid";

/// What is offered for a machine, without its disk.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Bid {
    /// Dollars per hour for the machine.
    pub per_hour: MicroDollars,
    /// The least that is taken now.
    pub least: MicroDollars,
}

impl QuoteId {
    /// A bid on an ask: so much, or the least that is taken.
    pub fn bidding(ask: &str, bid: Option<MicroDollars>) -> Self {
        match bid {
            None => Self(format!("{ask}{MARK}")),
            Some(bid) => {
                let dollars = bid.to_string();
                Self(format!("{ask}{MARK}={}", dollars.trim_start_matches('$')))
            }
        }
    }

    /// The ask that is taken or bid on.
    pub fn ask(&self) -> &str {
        self.parts().map_or(&self.0, |(ask, _)| ask)
    }

    /// What is bid; none is no bid, and an inner none is the least that is taken.
    pub fn bid(&self) -> Option<Option<MicroDollars>> {
        self.parts().map(|(_, bid)| bid)
    }

    fn parts(&self) -> Option<(&str, Option<MicroDollars>)> {
        let (ask, rest) = self.0.rsplit_once(MARK)?;
        if rest.is_empty() {
            return Some((ask, None));
        }
        let bid = rest.strip_prefix('=')?.parse().ok()?;
        Some((ask, Some(bid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_bid_says_on_what_and_how_much() {
        for bid in [None, Some(MicroDollars(210_000))] {
            let id = QuoteId::bidding("7000017", bid);
            assert_eq!((id.ask(), id.bid()), ("7000017", Some(bid)), "{id}");
        }
        for plain in ["7000017", "1x A/b#c", "a#bidden", "a#bid=x"] {
            let id = QuoteId(plain.to_owned());
            assert_eq!((id.ask(), id.bid()), (plain, None));
        }
    }
}
