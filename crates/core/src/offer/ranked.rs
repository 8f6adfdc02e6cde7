//! Which offers can be taken, the cheapest first: what is shown to whoever asks.

use super::{Models, Quote, Requirement, Selection, Supply};
use crate::id::Name;
use crate::unit::MicroDollars;

/// What one provider sells, and what its table leaves of that.
pub type Sold<'q> = (&'q Selection, &'q [Quote]);

/// What fits, the cheapest first, and what is sold out after all that can be had. Of one price in the order of providers, of the
/// regions that their tables list, and of names.
pub fn ranked<'q>(
    wanted: &Requirement,
    sold: impl IntoIterator<Item = Sold<'q>>,
) -> Vec<&'q Quote> {
    let mut models = Models::default();
    let mut found: Vec<(usize, &Quote)> = Vec::new();
    for (within, quotes) in sold {
        let mut ranks = within.ranks();
        let fitting = quotes.iter().filter_map(|quote| {
            let rank = ranks.takes(&quote.facts)?;
            wanted
                .fits(&quote.facts, &mut models)
                .then_some((rank, quote))
        });
        found.extend(fitting);
    }
    found.sort_by(|(m, a), (n, b)| key(*m, a).cmp(&key(*n, b)));
    found.into_iter().map(|(_, quote)| quote).collect()
}

fn key(region: usize, quote: &Quote) -> (bool, MicroDollars, &Name, usize, &str) {
    let sold_out = quote.supply == Supply::Many(0);
    let (price, provider) = (quote.price_per_hour, &quote.provider);
    (sold_out, price, provider, region, &quote.id.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offer::{DiskRange, Facts, QuoteId};

    fn quote(id: &str, region: &str, price: u64, supply: Supply) -> Quote {
        Quote {
            provider: "here".parse().expect("a name"),
            id: QuoteId(id.to_owned()),
            facts: Facts {
                region: Some(region.to_owned()),
                cpus: 8,
                ..Facts::default()
            },
            price_per_hour: MicroDollars(price),
            disk: DiskRange::default(),
            supply,
            bid: None,
        }
    }

    #[test]
    fn what_fits_comes_by_price_and_what_is_sold_out_last() {
        let within = Selection {
            regions: vec!["us-2".to_owned(), "EU".to_owned()],
            ..Selection::default()
        };
        let quotes = [
            quote("none-left", "us-2", 1, Supply::Many(0)),
            quote("dear", "us-2", 9, Supply::One),
            quote("second", "EU-RO-1", 5, Supply::One),
            quote("first", "us-2", 5, Supply::Many(3)),
            quote("elsewhere", "us-1", 2, Supply::One),
        ];
        let wanted: Requirement = "cpus>=8".parse().expect("a term");
        let ids = |wanted: &Requirement| -> Vec<String> {
            let found = ranked(wanted, [(&within, &quotes[..])]);
            found.into_iter().map(|quote| quote.id.0.clone()).collect()
        };
        assert_eq!(ids(&wanted), ["first", "second", "dear", "none-left"]);
        assert!(ids(&"cpus>=9".parse().expect("a term")).is_empty());
        // Places and models that are known already are read as they were.
        let europe: Requirement = "region=EU".parse().expect("a term");
        assert_eq!(ids(&europe), ["second"]);
    }
}
