//! `same` and `spread`: which machines of a table stand where.

use std::collections::BTreeMap;

use stageline_core::offer::{Domain, Quote, Supply};
use stageline_core::plan::{
    Avoid, Draft, Market, Markets, Mode, Placement, Plan, Spot, Verdict, draft, next_offer,
};
use stageline_core::resource::Spec;
use stageline_core::state::Observed;
use stageline_core::topology::Topology;

use crate::basics::{desired, machines, options, plan};
use crate::world::{World, address, name, quote};

/// A quote of one machine: `(price, region, host)`; "" is not told.
fn at((price, region, host): (u64, &str, &str)) -> Quote {
    let told = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let id = format!("{region}-{host}-{price}");
    let mut quote = quote("here", &id, price, Supply::One);
    quote.facts.region = told(region);
    quote.facts.host = told(host);
    quote
}

fn markets(quotes: &[(u64, &str, &str)]) -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: false,
        unbilled: true,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
        quotes: Ok(quotes.iter().copied().map(at).collect()),
    };
    BTreeMap::from([(name("here"), market)])
}

fn asking(count: u32, same: Option<Domain>, spread: Option<Domain>) -> Topology {
    let mut topology = machines(count);
    for lease in topology.leases.values_mut() {
        (lease.same, lease.spread) = (same, spread);
    }
    topology
}

/// What each lease takes first, and what may follow.
fn lists(plan: &Plan) -> Vec<Vec<String>> {
    let terms = plan.leases.values();
    let ids = terms.map(|terms| terms.shortlist.iter().map(|c| c.quote.id.to_string()));
    ids.map(Iterator::collect).collect()
}

fn fresh(topology: &Topology, markets: &Markets) -> Vec<Vec<String>> {
    lists(&plan(
        &desired(topology),
        &World::new(),
        markets,
        &options(Mode::Apply),
    ))
}

#[test]
fn same_takes_the_least_total_of_one_region_and_nothing_of_another_one() {
    // The cheapest single machine is in `a`, the cheapest pair in `b`.
    let markets = markets(&[
        (1, "a", "1"),
        (9, "a", "2"),
        (3, "b", "3"),
        (4, "b", "4"),
        (5, "b", "5"),
        (0, "", "6"),
    ]);
    assert_eq!(
        fresh(&asking(2, Some(Domain::Region), None), &markets),
        [["b-3-3", "b-5-5"], ["b-4-4", "b-5-5"]]
    );
    // With nothing asked, the region does not matter.
    let free = fresh(&asking(2, None, None), &markets);
    assert_eq!([&free[0][0], &free[1][0]], ["-6-0", "a-1-1"]);
}

/// Whoever is served first may take what another one needs more, and a plan that has a machine for everybody is the better one.
#[test]
fn a_lease_without_a_wish_leaves_a_table_its_region() {
    let mut topology = asking(2, Some(Domain::Region), None);
    let mut solo = topology.leases[&name("gpu")].clone();
    (solo.count, solo.same) = (1, None);
    topology.leases.insert(name("solo"), solo);
    let mut markets = markets(&[(10, "eu", "1"), (11, "eu", "2"), (30, "us", "3")]);
    let market = markets.get_mut(&name("here")).expect("it is there");
    for quote in market.quotes.as_mut().expect("seen") {
        // As where a provider only says that there is little left.
        quote.supply = Supply::Many(1);
    }
    let firsts = fresh(&topology, &markets);
    let firsts: Vec<&str> = firsts.iter().map(|list| list[0].as_str()).collect();
    assert_eq!(firsts, ["eu-1-10", "eu-2-11", "us-3-30"]);
}

/// Two tables and a lease without a wish, each of which alone would take what another one needs: the cheapest order is found, and said
/// where something may be cheaper still.
#[test]
fn tables_that_want_the_same_region_are_placed_at_the_least_price_of_all_orders() {
    let mut topology = asking(2, Some(Domain::Region), None);
    let pair = topology.leases[&name("gpu")].clone();
    let mut three = pair.clone();
    three.count = 3;
    topology.leases.insert(name("more"), three);
    // Three fit in `a` alone; whoever is served first takes the cheapest there.
    let markets = markets(&[
        (1, "a", "1"),
        (2, "a", "2"),
        (9, "a", "3"),
        (3, "b", "4"),
        (4, "b", "5"),
    ]);
    let firsts = fresh(&topology, &markets);
    let firsts: Vec<&str> = firsts.iter().map(|list| list[0].as_str()).collect();
    assert_eq!(firsts, ["b-4-3", "b-5-4", "a-1-1", "a-2-2", "a-3-9"]);
}

/// Where no order is sure to be the best, a plan says what another choice could save.
#[test]
fn what_another_choice_could_save_is_said() {
    let mut topology = asking(2, Some(Domain::Region), None);
    let pair = topology.leases[&name("gpu")].clone();
    topology.leases.insert(name("more"), pair);
    let cents = 10_000;
    // Each alone takes `a`, and without a word on regions three of the cheapest and one of 90 would do.
    let quotes = [
        (cents, "a", "1"),
        (2 * cents, "a", "2"),
        (3 * cents, "b", "3"),
        (90 * cents, "b", "4"),
        (50 * cents, "c", "5"),
        (51 * cents, "c", "6"),
    ];
    let plan = plan(
        &desired(&topology),
        &World::new(),
        &markets(&quotes),
        &options(Mode::Apply),
    );
    let notes = plan.notes.join(" ");
    assert!(notes.contains("by at most $0.40/h"), "{notes}");
}

#[test]
fn spread_takes_each_host_once_and_what_follows_is_on_none_of_them() {
    let markets = markets(&[
        (1, "a", "1"),
        (2, "a", "1"),
        (3, "a", "2"),
        (4, "a", ""),
        (5, "a", "3"),
    ]);
    assert_eq!(
        fresh(&asking(2, None, Some(Domain::Host)), &markets),
        [["a-1-1", "a-3-5"], ["a-2-3", "a-3-5"]]
    );
}

#[test]
fn both_are_kept_at_once() {
    let markets = markets(&[(1, "a", "1"), (1, "a", "1"), (2, "b", "2"), (3, "b", "3")]);
    let topology = asking(2, Some(Domain::Region), Some(Domain::Host));
    assert_eq!(fresh(&topology, &markets), [["b-2-2"], ["b-3-3"]]);
}

#[test]
fn too_few_within_one_region_is_said_with_what_was_asked() {
    let topology = asking(2, Some(Domain::Region), None);
    let (desired, world) = (desired(&topology), World::new());
    let faults = draft(&Draft {
        desired: &desired,
        recorded: &world.state,
        observed: &Observed::default(),
        markets: &markets(&[(1, "a", "1"), (2, "b", "2")]),
        options: &options(Mode::Apply),
    })
    .expect_err("no region has two");
    assert_eq!(faults[0].code, "plan/no-offer");
    assert_eq!(
        faults[0].message,
        "lease.gpu[1]: no machine is left that fits beside the others (same = \"region\"); of the 2 that are needed, 1 can be had so"
    );
}

#[test]
fn what_would_fit_but_for_its_place_is_named_with_the_reason() {
    let nearest = |domain, quotes: &[(u64, &str, &str)]| {
        let topology = asking(1, None, Some(domain));
        let (desired, world) = (desired(&topology), World::new());
        let faults = draft(&Draft {
            desired: &desired,
            recorded: &world.state,
            observed: &Observed::default(),
            markets: &markets(quotes),
            options: &options(Mode::Apply),
        });
        faults.expect_err("nothing tells it")[0].hint.clone()
    };
    assert_eq!(
        nearest(Domain::Datacenter, &[(1, "a", "1")]).as_deref(),
        Some("nearest: a-1-1 fits, but provider `here` does not tell its datacenter")
    );
    // Nor beside a machine that is there.
    let world = rented(&[(1, "a", "1")]);
    let topology = asking(2, Some(Domain::Region), None);
    let desired = desired(&topology);
    let faults = draft(&Draft {
        desired: &desired,
        recorded: &world.state,
        observed: &Observed::default(),
        markets: &markets(&[(2, "b", "2")]),
        options: &options(Mode::Apply),
    });
    assert_eq!(
        faults.expect_err("the other is in a")[0].hint.as_deref(),
        Some("nearest: b-2-2 fits, but the others are in region a of `here` (`same`)")
    );
}

/// Two machines, one on each of these, without anything asked.
fn rented(quotes: &[(u64, &str, &str)]) -> World {
    let mut world = World::new();
    for quote in quotes.iter().copied().map(at) {
        world.measured.insert(quote.id, quote.facts);
    }
    let topology = machines(u32::try_from(quotes.len()).expect("few"));
    let first = plan(
        &desired(&topology),
        &world,
        &markets(quotes),
        &options(Mode::Apply),
    );
    world.carry_out(&first);
    world
}

#[test]
fn a_new_machine_goes_where_the_others_are_and_only_what_is_out_of_place_moves() {
    let world = rented(&[(1, "a", "1"), (2, "a", "2"), (3, "b", "3")]);
    let offered = markets(&[(1, "b", "7"), (5, "a", "8"), (6, "a", "9")]);
    let topology = asking(4, Some(Domain::Region), None);
    let next = plan(&desired(&topology), &world, &offered, &options(Mode::Apply));
    let verdicts: Vec<Verdict> = next.changes.iter().map(|change| change.verdict).collect();
    assert_eq!(
        verdicts,
        [
            Verdict::Keep,
            Verdict::Keep,
            Verdict::Replace,
            Verdict::Create
        ]
    );
    let moved = next.change(&address("lease.gpu[2]")).expect("it moves");
    assert_eq!(
        moved.reason,
        "its machine no longer fits: it is in region b of `here`, the others in a of `here` (`same`)"
    );
    let firsts: Vec<String> = lists(&next)
        .into_iter()
        .filter_map(|l| l.first().cloned())
        .collect();
    assert_eq!(firsts, ["a-8-5", "a-9-6"]);
}

#[test]
fn of_two_on_one_host_the_second_moves() {
    let world = rented(&[(1, "a", "1"), (2, "a", "1")]);
    let offered = markets(&[(1, "a", "1"), (5, "a", "2")]);
    let topology = asking(2, None, Some(Domain::Host));
    let next = plan(&desired(&topology), &world, &offered, &options(Mode::Apply));
    let moved = next.change(&address("lease.gpu[1]")).expect("it moves");
    assert_eq!(moved.verdict, Verdict::Replace);
    assert_eq!(
        moved.reason,
        "its machine no longer fits: it is on host 1, as lease.gpu[0] is (`spread`)"
    );
    let firsts: Vec<String> = lists(&next)
        .into_iter()
        .filter_map(|l| l.first().cloned())
        .collect();
    assert_eq!(firsts, ["a-2-5"]);
}

#[test]
fn a_fresh_quote_is_held_against_the_others_too() {
    let topology = asking(2, None, Some(Domain::Host));
    let desired = desired(&topology);
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    let offered = markets(&[(1, "a", "1"), (2, "a", "2")]);
    let other = Spot::of(&at((1, "a", "1")));
    let avoid = Avoid::default().beside(Placement::beside(spec, vec![other.clone()]));
    let choice = next_offer(spec, &avoid, &offered).expect("one is left");
    assert_eq!(choice.quote.id.to_string(), "a-2-2");
    let why = Placement::beside(spec, vec![other.clone()]).why_not(&other);
    assert_eq!(why.as_deref(), Some("another one is on host 1 (`spread`)"));
}
