//! Which lease takes what: shortlists, scarce offers, and what is tried when a shortlist is used up.

use std::collections::BTreeMap;

use stageline_core::offer::{QuoteId, Supply};
use stageline_core::plan::{Market, Markets, Mode, SHORTLIST_MAX, expand, next_offer};
use stageline_core::resource::{Cause, FailureClass, Spec};
use stageline_core::unit::MicroDollars;

use crate::basics::{chain, desired, machines, options, plan};
use crate::world::{World, address, name, quote};

fn market(quotes: Vec<stageline_core::offer::Quote>) -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: false,
        quotes: Ok(quotes),
    };
    BTreeMap::from([(name("here"), market)])
}

fn asks(prices: &[u64]) -> Markets {
    let quotes = prices
        .iter()
        .map(|price| quote("here", &format!("ask-{price}"), *price, Supply::One));
    market(quotes.collect())
}

#[test]
fn an_ask_is_on_one_lease_only_as_its_own_and_lists_are_short() {
    let prices: Vec<u64> = (1..=20).map(|n| n * 1000).collect();
    let mut topology = machines(3);
    topology.limits.max_price_per_hour = Some(MicroDollars(15_000));
    let drafted = plan(
        &desired(&topology),
        &World::new(),
        &asks(&prices),
        &options(Mode::Apply),
    );
    let firsts: Vec<String> = drafted
        .leases
        .values()
        .map(|terms| terms.shortlist[0].quote.id.to_string())
        .collect();
    assert_eq!(firsts, ["ask-1000", "ask-2000", "ask-3000"]);
    for terms in drafted.leases.values() {
        assert_eq!(terms.shortlist.len(), SHORTLIST_MAX);
        let others: Vec<&QuoteId> = terms.shortlist[1..].iter().map(|c| &c.quote.id).collect();
        assert!(
            others.iter().all(|id| !firsts.contains(&id.0)),
            "{others:?}"
        );
    }
    assert_eq!(drafted.money.after_per_hour, MicroDollars(6000));
    assert_eq!(drafted.money.at_most_per_hour, MicroDollars(45_000));
}

#[test]
fn a_fresh_quote_is_taken_within_the_ceiling_and_never_twice() {
    let mut topology = machines(1);
    topology.limits.max_price_per_hour = Some(MicroDollars(2500));
    let desired = desired(&topology);
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    let markets = asks(&[1000, 2000, 3000]);
    let mut tried = Vec::new();
    while let Some(choice) = next_offer(spec, &tried, &markets) {
        assert_eq!(choice.offer, name("box"));
        tried.push(choice.quote.id.clone());
    }
    let tried: Vec<String> = tried.iter().map(ToString::to_string).collect();
    assert_eq!(tried, ["ask-1000", "ask-2000"]);
    let none = market(vec![quote("here", "full", 1, Supply::Many(0))]);
    assert_eq!(next_offer(spec, &[], &none), None);
    let blind = Market {
        quotes: Err(Cause::new(FailureClass::Auth, "no key")),
        ..none[&name("here")].clone()
    };
    assert_eq!(
        next_offer(spec, &[], &BTreeMap::from([(name("here"), blind)])),
        None
    );
}

#[test]
fn a_model_that_nobody_looked_at_is_said() {
    let faults = expand(&chain(&[0, 30]), &BTreeMap::new()).expect_err("it has a model");
    let codes: Vec<&str> = faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, ["plan/model-unseen"]);
}
