//! The disk is part of the price: leases with other disks, and one offer that is sold at a price for each.

use std::collections::BTreeMap;

use stageline_core::offer::{DiskRange, Quote, QuoteId, Supply};
use stageline_core::plan::{Market, Markets, Mode, Plan};
use stageline_core::topology::Topology;
use stageline_core::unit::{Bytes, MicroDollars};

use crate::basics::{desired, machines, options, plan};
use crate::world::{World, name, quote};

/// An offer: what it costs with up to 40 GiB, and with more; none where it has no more.
fn sold(id: &str, small: u64, large: Option<u64>, supply: Supply) -> Vec<Quote> {
    let end = Bytes::gib(40);
    let mut quotes = vec![quote("here", id, small, supply)];
    quotes[0].disk.most = Some(end);
    if let Some(large) = large {
        let range = DiskRange {
            above: end,
            most: None,
        };
        quotes.push(Quote {
            price_per_hour: MicroDollars(large),
            disk: range,
            ..quotes[0].clone()
        });
    }
    quotes
}

fn markets(offers: Vec<Vec<Quote>>) -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: false,
        unbilled: true,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
        quotes: Ok(offers.into_iter().flatten().collect()),
    };
    BTreeMap::from([(name("here"), market)])
}

/// `lease.big` with 100 GiB, `lease.gpu` with 20.
fn both() -> Topology {
    let mut topology = machines(1);
    let mut big = topology.leases[&name("gpu")].clone();
    big.disk = Some(Bytes::gib(100));
    topology.leases.insert(name("big"), big);
    topology
}

/// What `lease.big` and `lease.gpu` take first, with the price, and how much they may try.
fn taken(topology: &Topology, markets: &Markets) -> Vec<(String, u64, usize)> {
    let plan: Plan = plan(
        &desired(topology),
        &World::new(),
        markets,
        &options(Mode::Apply),
    );
    let first = plan.leases.values().map(|terms| {
        let QuoteId(id) = terms.shortlist[0].quote.id.clone();
        let price = terms.shortlist[0].quote.price_per_hour;
        (id, price.0, terms.shortlist.len())
    });
    first.collect()
}

fn told(id: &str, price: u64, tries: usize) -> (String, u64, usize) {
    (id.to_owned(), price, tries)
}

#[test]
fn each_lease_pays_for_its_own_disk_and_may_take_what_has_no_more() {
    let markets = markets(vec![
        sold("small", 5, None, Supply::One),
        sold("wide", 6, Some(7), Supply::One),
    ]);
    assert_eq!(
        taken(&both(), &markets),
        [told("wide", 7, 1), told("small", 5, 1)]
    );
}

/// One by one the small lease would take `wide` for 10, and leave 30 to the other one.
#[test]
fn who_takes_an_offer_is_found_over_all_its_prices() {
    let markets = markets(vec![
        sold("wide", 10, Some(14), Supply::One),
        sold("dear", 11, Some(30), Supply::One),
    ]);
    assert_eq!(
        taken(&both(), &markets),
        [told("wide", 14, 1), told("dear", 11, 1)]
    );
}

/// A shape of which one is left is one, whatever the disk.
#[test]
fn prices_by_disk_do_not_multiply_what_can_be_had() {
    let markets = markets(vec![
        sold("shape", 1, Some(2), Supply::Many(1)),
        sold("other", 3, Some(9), Supply::Many(1)),
    ]);
    assert_eq!(
        taken(&both(), &markets),
        [told("shape", 2, 2), told("other", 3, 2)]
    );
}
