//! Which lease takes what: shortlists, scarce offers, and what is tried when a shortlist is used up.

use std::collections::BTreeMap;

use stageline_core::offer::{QuoteId, Supply};
use stageline_core::plan::{
    Avoid, Draft, EndsBy, Market, Markets, Mode, Options, SHORTLIST_MAX, draft, expand, next_offer,
};
use stageline_core::resource::{Cause, FailureClass, Spec};
use stageline_core::state::{BAD_FOR, BadHost, Observed, Tried};
use stageline_core::topology::{AgentSource, Requote};
use stageline_core::unit::{MicroDollars, Millis};

use crate::basics::{chain, desired, machines, options, plan};
use crate::world::{World, address, local, name, quote};

fn market(quotes: Vec<stageline_core::offer::Quote>) -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: false,
        unbilled: false,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
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
    // While each fails over, twice.
    assert_eq!(drafted.money.at_most_per_hour, MicroDollars(90_000));
    assert_eq!(drafted.money.overlap_per_hour, MicroDollars(45_000));
}

#[test]
fn what_is_sold_out_is_no_alternative_and_crowds_out_none() {
    let all = (1..=30).map(|n| {
        let supply = match n % 10 {
            3 => Supply::Many(u32::MAX),
            _ => Supply::Many(0),
        };
        quote("here", &format!("shape-{n:02}"), n * 10, supply)
    });
    let drafted = plan(
        &desired(&machines(2)),
        &World::new(),
        &market(all.collect()),
        &options(Mode::Apply),
    );
    for terms in drafted.leases.values() {
        let list = terms.shortlist.iter();
        let list: Vec<&str> = list.map(|choice| choice.quote.id.0.as_str()).collect();
        assert_eq!(list, ["shape-03", "shape-13", "shape-23"]);
    }
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
    let mut tried: Vec<Tried> = Vec::new();
    while let Some(choice) = next_offer(spec, &Avoid::default().and(&tried), &markets) {
        assert_eq!(choice.offer, name("box"));
        tried.push(Tried {
            provider: choice.quote.provider.clone(),
            quote: choice.quote.id.clone(),
            made: true,
        });
    }
    let tried: Vec<String> = tried.iter().map(|tried| tried.quote.to_string()).collect();
    assert_eq!(tried, ["ask-1000", "ask-2000"]);
    let none = market(vec![quote("here", "full", 1, Supply::Many(0))]);
    assert_eq!(next_offer(spec, &Avoid::default(), &none), None);
    let blind = Market {
        quotes: Err(Cause::new(FailureClass::Auth, "no key")),
        ..none[&name("here")].clone()
    };
    assert_eq!(
        next_offer(
            spec,
            &Avoid::default(),
            &BTreeMap::from([(name("here"), blind)])
        ),
        None
    );
}

#[test]
fn no_fresh_quote_is_taken_where_the_file_says_never() {
    let mut topology = machines(1);
    let offers = topology.offers.values_mut();
    offers.for_each(|offer| offer.requote = Requote::Never);
    let desired = desired(&topology);
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    assert_eq!(next_offer(spec, &Avoid::default(), &asks(&[1000])), None);
    let drafted = plan(
        &desired,
        &World::new(),
        &asks(&[1000]),
        &options(Mode::Apply),
    );
    assert!(!drafted.leases.values().any(|terms| terms.requote));
    assert_eq!(drafted.money.overlap_per_hour, MicroDollars(0));
}

fn bad(quote: &str, host: Option<&str>) -> BadHost {
    BadHost {
        provider: name("here"),
        quote: QuoteId(quote.to_owned()),
        host: host.map(str::to_owned),
        lease: "lease.gpu[0]".parse().expect("a lease"),
        why: "wrong GPU".to_owned(),
        at: crate::world::now(),
    }
}

fn firsts(world: &World, markets: &Markets, replace: bool) -> Vec<String> {
    let desired = desired(&machines(1));
    let mut options = options(Mode::Apply);
    if replace {
        options.replace = vec![address("lease.gpu[0]")];
    }
    let drafted = draft(&Draft {
        desired: &desired,
        recorded: &world.state,
        observed: &Observed::default(),
        markets,
        options: &options,
    });
    let drafted = drafted.expect("there is something left");
    let terms = drafted.leases.values().next().expect("a lease");
    let ids = terms.shortlist.iter().map(|c| c.quote.id.to_string());
    ids.collect()
}

#[test]
fn where_a_machine_failed_none_is_rented_again_for_a_week() {
    let mut world = World::new();
    let mut markets = asks(&[1000, 2000, 3000]);
    let quotes = markets.get_mut(&name("here")).expect("it sells");
    let quotes = quotes.quotes.as_mut().expect("it is seen");
    // The host of the second one sells under another number now.
    quotes[1].facts.host = Some("h-7".to_owned());
    world.state.bad = vec![bad("ask-1000", None), bad("ask-77", Some("h-7"))];
    assert_eq!(firsts(&world, &markets, false), ["ask-3000"]);
    let all = ["ask-1000", "ask-2000", "ask-3000"];
    assert_eq!(
        firsts(&world, &markets, true),
        all,
        "set aside for one plan"
    );
    let week = jiff::SignedDuration::from_millis(i64::try_from(BAD_FOR.0).expect("a week"));
    for bad in &mut world.state.bad {
        bad.at = bad.at.checked_sub(week).expect("a time");
    }
    assert_eq!(firsts(&world, &markets, false), all, "forgotten");
}

#[test]
fn a_shape_that_failed_once_is_taken_last() {
    let mut world = World::new();
    world.state.bad = vec![bad("small", None)];
    let small = quote("here", "small", 1000, Supply::Many(4));
    let big = quote("here", "big", 2000, Supply::Many(4));
    let both = market(vec![small.clone(), big]);
    assert_eq!(firsts(&world, &both, false), ["big", "small"]);
    assert_eq!(firsts(&world, &market(vec![small]), false), ["small"]);
}

#[test]
fn with_nothing_on_offer_a_plan_says_that_apply_may_wait() {
    let mut topology = machines(1);
    topology.limits.max_price_per_hour = Some(MicroDollars(2500));
    let leases = topology.leases.values_mut();
    leases.for_each(|lease| lease.wait_for_capacity = Some(Millis::minutes(30)));
    let drafted = plan(
        &desired(&topology),
        &World::new(),
        &market(vec![]),
        &options(Mode::Apply),
    );
    let terms = drafted.leases.values().next().expect("a lease");
    assert_eq!(terms.waits, Some(Millis::minutes(30)));
    assert_eq!(
        Some(terms.price_per_hour),
        terms.ceiling,
        "as dear as it may be"
    );
    assert!(
        drafted
            .notes
            .iter()
            .any(|note| note.contains("may wait 30m")),
        "{:?}",
        drafted.notes
    );
}

#[test]
fn a_model_that_nobody_looked_at_is_said() {
    let faults = expand(&chain(&[0, 30]), &BTreeMap::new()).expect_err("it has a model");
    let codes: Vec<&str> = faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, ["plan/model-unseen"]);
}

/// Its restart takes the agent with the disk, and nothing on it keeps its limits then.
#[test]
fn a_machine_that_forgets_its_pushed_agent_is_not_called_one_that_ends_itself() {
    let ends = |emptied: bool, agent: Option<AgentSource>, watched: bool| {
        let mut topology = machines(1);
        for offer in topology.offers.values_mut() {
            offer.agent = agent.clone();
        }
        let desired = desired(&topology);
        let mut markets = local(4);
        let market = markets.get_mut(&name("here")).expect("one");
        (market.free, market.self_destroy, market.restarts_empty) = (false, true, emptied);
        let mut world = World::new();
        world.carry_out(&plan(&desired, &world, &markets, &options(Mode::Apply)));
        let options = Options {
            watched,
            ..options(Mode::Apply)
        };
        let plan = plan(&desired, &world, &markets, &options);
        plan.leases.values().next().expect("one").ends
    };
    let pushed = Some(AgentSource::Ssh);
    assert_eq!(ends(true, pushed.clone(), true), EndsBy::Watcher);
    assert_eq!(ends(true, pushed.clone(), false), EndsBy::Nobody);
    assert_eq!(ends(false, pushed, false), EndsBy::Box);
    assert_eq!(ends(true, None, false), EndsBy::Box);
}
