//! Regions and types that a provider's table leaves: what is chosen of equal prices, what is left out, and what is kept.

use std::collections::{BTreeMap, BTreeSet};

use stageline_core::offer::{INSTANCE_TYPE, Quote, Requirement, Selection, Supply};
use stageline_core::plan::{Avoid, Draft, Market, Markets, Mode, draft, next_offer, unknown_types};
use stageline_core::resource::Spec;
use stageline_core::topology::Topology;

use crate::basics::{desired, machines, options, plan};
use crate::world::{World, address, name, quote};

fn at(region: &str, kind: &str, price: u64) -> Quote {
    let id = format!("{region}/{kind}");
    let mut quote = quote("here", &id, price, Supply::Many(9));
    quote.facts.region = Some(region.to_owned());
    let kind = (INSTANCE_TYPE.to_owned(), kind.to_owned());
    quote.facts.extra.extend([kind]);
    quote
}

fn market(quotes: Vec<Quote>) -> Markets {
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

fn everywhere() -> Markets {
    market(vec![
        at("asia-1", "small", 900),
        at("eu-1", "small", 1000),
        at("us-1", "small", 1000),
        at("us-2", "small", 1000),
        at("us-2", "large", 500),
    ])
}

fn only(regions: &[&str], types: &[&str]) -> Topology {
    let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    let mut topology = machines(1);
    let here = topology.providers.get_mut(&name("here")).expect("it");
    here.within = Selection {
        regions: texts(regions),
        instance_types: texts(types),
    };
    topology
}

fn shortlist(topology: &Topology, markets: &Markets) -> Vec<String> {
    let drafted = plan(
        &desired(topology),
        &World::new(),
        markets,
        &options(Mode::Apply),
    );
    let terms = drafted.leases.values().next().expect("one");
    let list = terms.shortlist.iter();
    list.map(|choice| choice.quote.id.to_string()).collect()
}

#[test]
fn the_price_comes_first_and_then_the_earlier_region() {
    let all = everywhere();
    let list = shortlist(&only(&["us-2", "EU", "us-1", "AS"], &["small"]), &all);
    assert_eq!(
        list,
        ["asia-1/small", "us-2/small", "eu-1/small", "us-1/small"]
    );
    let list = shortlist(&only(&["US", "EU"], &["SMALL"]), &all);
    assert_eq!(list, ["us-1/small", "us-2/small", "eu-1/small"]);
    let list = shortlist(&only(&["us-2"], &[]), &all);
    assert_eq!(list, ["us-2/large", "us-2/small"]);
    let list = shortlist(&only(&[], &["small"]), &all);
    assert_eq!(list[..2], ["asia-1/small", "eu-1/small"]);
}

#[test]
fn fresh_quotes_are_chosen_by_the_same_rule() {
    let desired = desired(&only(&["us-2", "EU"], &["small"]));
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    let next = next_offer(spec, &Avoid::default(), &everywhere()).expect("one");
    assert_eq!(next.quote.id.0, "us-2/small");
    let elsewhere = market(vec![at("asia-1", "small", 1), at("us-2", "large", 1)]);
    assert_eq!(next_offer(spec, &Avoid::default(), &elsewhere), None);
}

#[test]
fn what_is_left_out_is_told_when_nothing_else_is_there() {
    let desired = desired(&only(&["EU"], &["large"]));
    let faults = draft(&Draft {
        desired: &desired,
        recorded: &World::new().state,
        observed: &Default::default(),
        markets: &everywhere(),
        options: &options(Mode::Apply),
    });
    let hint = faults.expect_err("nothing fits")[0].hint.clone();
    let hint = hint.expect("it says what is near");
    assert!(
        hint.contains("misses regions = EU (it has us-2) of provider `here`"),
        "{hint}"
    );
    assert!(
        hint.contains("misses instance_types = large (it has small) of provider `here`"),
        "{hint}"
    );
}

#[test]
fn a_machine_that_is_held_is_kept_whatever_is_left_out_later_but_not_one_of_another_type() {
    let mut topology = only(&["US"], &["small"]);
    let markets = everywhere();
    let mut world = World::new();
    let measured = at("us-1", "small", 1000);
    world.measured.insert(measured.id, measured.facts);
    let first = plan(&desired(&topology), &world, &markets, &options(Mode::Apply));
    world.carry_out(&first);
    for other in [only(&["EU"], &["large"]), only(&[], &[])] {
        let next = plan(&desired(&other), &world, &markets, &options(Mode::Apply));
        assert!(next.steps.is_empty(), "{:?}", next.changes);
    }
    let offer = topology.offers.get_mut(&name("box")).expect("it");
    offer.requirement = Requirement::only(INSTANCE_TYPE, "large").expect("a name");
    topology
        .providers
        .get_mut(&name("here"))
        .expect("it")
        .within = Selection::default();
    let next = plan(&desired(&topology), &world, &markets, &options(Mode::Apply));
    let reason = &next.changes[0].reason;
    assert_eq!(
        reason,
        "its machine no longer fits: provider.instance_type=large (it has small)"
    );
}

#[test]
fn a_type_that_a_provider_does_not_have_is_told_with_those_that_it_has() {
    let mut topology = only(&[], &["smal", "large"]);
    let offer = topology.offers.get_mut(&name("box")).expect("it");
    offer.instance_type = Some("Larg".to_owned());
    let has = ["small", "large"].map(str::to_owned);
    let has = BTreeMap::from([(name("here"), BTreeSet::from(has))]);
    let told: Vec<String> = unknown_types(&topology, &has)
        .iter()
        .map(|fault| format!("{}; {}", fault.message, fault.hint.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(
        told,
        [
            "provider.here: there is no instance type `smal`; did you mean `small`?",
            "offer.box: provider `here` has no instance type `Larg`; did you mean `large`?",
        ]
    );
    assert!(unknown_types(&topology, &BTreeMap::new()).is_empty());
    let mut topology = only(&[], &[]);
    let lease = topology.leases.values_mut().next().expect("it");
    lease.instance_type = Some("Larg".to_owned());
    let faults = unknown_types(&topology, &has);
    assert_eq!(
        faults[0].message,
        "lease.gpu: no provider of its offers has an instance type `Larg`"
    );
    assert_eq!(faults[0].hint.as_deref(), Some("did you mean `large`?"));
    let has = ["gpu_1x_a10", "gpu_1x_h100_pcie", "gpu_1x_h100_sxm5"].map(str::to_owned);
    let has = BTreeMap::from([(name("here"), BTreeSet::from(has))]);
    let mut topology = only(&[], &[]);
    let offer = topology.offers.get_mut(&name("box")).expect("it");
    offer.instance_type = Some("gpu_1x_h100".to_owned());
    let faults = unknown_types(&topology, &has);
    assert_eq!(
        faults[0].hint.as_deref(),
        Some("there are `gpu_1x_h100_pcie`, `gpu_1x_h100_sxm5`")
    );
}
