//! Several quotes of one offer: it is rented on demand, or bid for on these terms or on those, with a small disk or a larger one, and
//! who takes it one way leaves less of it for every other.

use std::collections::BTreeMap;

use crate::id::Name;
use crate::offer::{Quote, Supply};

/// Which quotes are of the same offer, by their places. Empty where each is of an offer of its own.
#[derive(Default)]
pub(super) struct Asks {
    /// Of each place the first one of its offer.
    first: Vec<usize>,
    /// All places of an offer that has several, by the first.
    places: BTreeMap<usize, Vec<usize>>,
}

impl Asks {
    pub(super) fn of(quotes: &[&Quote]) -> Self {
        let mut asks = Self::default();
        if quotes
            .iter()
            .all(|quote| quote.bid.is_none() && quote.disk.is_any())
        {
            return asks;
        }
        let mut first: BTreeMap<(&Name, &str), usize> = BTreeMap::new();
        for (place, quote) in quotes.iter().enumerate() {
            let ask = match quote.supply {
                Supply::One => quote.id.ask(),
                Supply::Many(_) => &quote.id.0,
            };
            let first = *first.entry((&quote.provider, ask)).or_insert(place);
            asks.first.push(first);
            if first != place {
                let places = asks.places.entry(first);
                places.or_insert_with(|| vec![first]).push(place);
            }
        }
        asks
    }

    /// The place that stands for all of its offer.
    pub(super) fn first(&self, place: usize) -> usize {
        self.first.get(place).copied().unwrap_or(place)
    }

    /// Takes some of an offer, which leaves less of it for whoever wants it otherwise.
    pub(super) fn take(&self, place: usize, count: u32, left: &mut [u32]) {
        match self.places.get(&self.first(place)) {
            None => left[place] = left[place].saturating_sub(count),
            Some(places) => {
                for place in places {
                    left[*place] = left[*place].saturating_sub(count);
                }
            }
        }
    }
}
