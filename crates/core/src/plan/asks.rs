//! Several quotes of one ask: it is rented on demand, or bid for on these terms or on those, and only one can have it.

use std::collections::BTreeMap;

use super::flow::Given;
use crate::id::Name;
use crate::offer::{Quote, Supply};

/// Which quotes are of the same ask. Empty where nothing is bid for: then each quote is of an ask of its own.
#[derive(Default)]
pub(super) struct Asks<'a> {
    places: BTreeMap<(&'a Name, &'a str), Vec<usize>>,
}

impl<'a> Asks<'a> {
    pub(super) fn of(quotes: &[&'a Quote]) -> Self {
        let mut asks = Self::default();
        if quotes.iter().all(|quote| quote.bid.is_none()) {
            return asks;
        }
        for (place, quote) in quotes.iter().enumerate() {
            if quote.supply == Supply::One {
                let ask = (&quote.provider, quote.id.ask());
                asks.places.entry(ask).or_default().push(place);
            }
        }
        asks
    }

    /// What is given leaves nothing of its ask.
    pub(super) fn close<'g>(
        &self,
        quotes: &[&Quote],
        given: impl IntoIterator<Item = &'g usize>,
        stock: &mut [u32],
    ) {
        for item in given {
            let quote = quotes[*item];
            let same = self.places.get(&(&quote.provider, quote.id.ask()));
            for other in same.into_iter().flatten().filter(|other| *other != item) {
                stock[*other] = 0;
            }
        }
    }

    /// What is given although its ask is given otherwise too. What is rented on demand stays, and else the cheapest bid.
    pub(super) fn twice(&self, quotes: &[&Quote], given: &Given) -> Vec<usize> {
        let given = |place: &usize| given.iter().any(|class| class.contains_key(place));
        let mut twice = Vec::new();
        for places in self.places.values().filter(|places| places.len() > 1) {
            let mut taken: Vec<usize> = places.iter().copied().filter(given).collect();
            taken.sort_by_key(|place| (quotes[*place].bid.is_some(), *place));
            twice.extend(taken.into_iter().skip(1));
        }
        twice
    }
}
