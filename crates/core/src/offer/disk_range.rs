//! The disk is part of a price: which disks a price holds for, and the prices of one offer by disk.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Quote, QuoteId};
use crate::unit::Bytes;

/// The disks that a price holds for: larger than one and no larger than another.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct DiskRange {
    /// Larger than this.
    #[serde(default)]
    pub above: Bytes,
    /// At most this; none is however large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Bytes>,
}

impl DiskRange {
    /// Whether the price holds for a machine with this disk.
    pub fn holds(&self, disk: Bytes) -> bool {
        let low = self.above == Bytes(0) || disk > self.above;
        low && self.most.is_none_or(|most| disk <= most)
    }

    /// Whether it holds for every disk.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

/// One answer of a provider by the disk that it was asked with, smallest first, made one list: an offer is there once for each of its
/// prices, each with the disks that it holds for. What was found with a larger disk alone holds for smaller ones too.
pub fn by_disk(answers: BTreeMap<Bytes, BTreeMap<QuoteId, Quote>>) -> Vec<Quote> {
    let largest = answers.keys().next_back().copied();
    let mut found: BTreeMap<QuoteId, Vec<Quote>> = BTreeMap::new();
    for (disk, quotes) in answers {
        let most = Some(disk).filter(|disk| Some(*disk) != largest);
        for (id, mut quote) in quotes {
            let known = found.entry(id).or_default();
            let before = known.last_mut();
            let above = before.as_ref().and_then(|before| before.disk.most);
            match before.filter(|before| before.price_per_hour == quote.price_per_hour) {
                Some(same) => same.disk.most = most,
                None => {
                    quote.disk = DiskRange {
                        above: above.unwrap_or_default(),
                        most,
                    };
                    known.push(quote);
                }
            }
        }
    }
    found.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offer::{Facts, Supply};
    use crate::unit::MicroDollars;

    fn answer(disk: u64, sold: &[(&str, u64)]) -> (Bytes, BTreeMap<QuoteId, Quote>) {
        let quotes = sold.iter().map(|(id, price)| {
            let quote = Quote {
                provider: "here".parse().expect("a name"),
                id: QuoteId((*id).to_owned()),
                facts: Facts::default(),
                price_per_hour: MicroDollars(*price),
                disk: DiskRange::default(),
                supply: Supply::One,
                bid: None,
            };
            (quote.id.clone(), quote)
        });
        (Bytes(disk), quotes.collect())
    }

    fn prices(answers: Vec<(Bytes, BTreeMap<QuoteId, Quote>)>) -> Vec<String> {
        let quotes = by_disk(answers.into_iter().collect());
        let told = quotes.iter().map(|quote| {
            let most = quote.disk.most.map(|most| most.0.to_string());
            let most = most.unwrap_or_default();
            format!(
                "{} {}..{most} {}",
                quote.id, quote.disk.above.0, quote.price_per_hour.0
            )
        });
        told.collect()
    }

    #[test]
    fn an_offer_has_a_price_for_each_range_of_disks() {
        let answers = vec![
            answer(20, &[("flat", 5), ("small", 1), ("sized", 2)]),
            answer(50, &[("flat", 5), ("sized", 3), ("late", 4)]),
            answer(90, &[("flat", 5), ("sized", 3), ("late", 6), ("large", 7)]),
        ];
        let said = [
            "flat 0.. 5",
            "large 0.. 7",
            "late 0..50 4",
            "late 50.. 6",
            "sized 0..20 2",
            "sized 20.. 3",
            "small 0..20 1",
        ];
        assert_eq!(prices(answers), said);
    }

    #[test]
    fn one_disk_makes_no_ranges() {
        assert_eq!(
            prices(vec![answer(20, &[("a", 5), ("b", 1)])]),
            ["a 0.. 5", "b 0.. 1"]
        );
    }

    #[test]
    fn a_range_holds_up_to_its_end() {
        let range = DiskRange {
            above: Bytes(20),
            most: Some(Bytes(50)),
        };
        let holds = [0, 20, 21, 50, 51].map(|disk| range.holds(Bytes(disk)));
        assert_eq!(holds, [false, false, true, true, false]);
        assert!(DiskRange::default().holds(Bytes(0)) && DiskRange::default().is_any());
    }
}
