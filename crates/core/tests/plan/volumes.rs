//! Volumes that leases name: where machines may be for them, and what is said when there are none.

use std::collections::BTreeMap;

use stageline_core::diagnostic::Diagnostic;
use stageline_core::offer::{Quote, Selection, Supply, Volume};
use stageline_core::plan::{
    Avoid, Desired, Draft, Market, Markets, Mode, Plan, Volumes, draft, next_offer,
};
use stageline_core::resource::{Cause, FailureClass, Spec};
use stageline_core::state::Observed;
use stageline_core::topology::{Mount, Topology};

use crate::basics::{desired, machines, options, plan};
use crate::world::{World, address, name, quote};

fn at(region: &str, price: u64) -> Quote {
    let mut quote = quote("here", region, price, Supply::Many(9));
    quote.facts.region = Some(region.to_owned());
    quote
}

fn market() -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: false,
        unbilled: false,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
        quotes: Ok(vec![at("eu-1", 900), at("us-1", 1000), at("us-2", 1100)]),
    };
    BTreeMap::from([(name("here"), market)])
}

fn volume(id: &str, called: &str, region: &str) -> Volume {
    Volume {
        id: id.to_owned(),
        name: called.to_owned(),
        place: region.to_owned(),
        region: Some(region.to_owned()),
        requirement: format!("region={region}").parse().expect("a term"),
    }
}

fn volumes() -> Volumes {
    let all = vec![
        volume("v1", "data", "us-2"),
        volume("v2", "twin", "us-1"),
        volume("v3", "twin", "eu-1"),
    ];
    BTreeMap::from([(name("here"), Ok(all))])
}

fn with(wanted: &[&str]) -> Topology {
    let mut topology = machines(2);
    let lease = topology.leases.get_mut(&name("gpu")).expect("it");
    let mount = |volume: &&str| Mount {
        volume: (*volume).to_owned(),
        at: format!("/data/{volume}"),
        read_only: false,
    };
    lease.mounts = wanted.iter().map(mount).collect();
    topology
}

fn mounted(topology: &Topology) -> Result<Desired, Vec<Diagnostic>> {
    let mut desired = desired(topology);
    desired.mount(&volumes()).map(|()| desired)
}

fn faults(topology: &Topology) -> Vec<(String, String)> {
    let faults = mounted(topology).expect_err("a fault");
    let shown = |fault: &Diagnostic| {
        (
            fault.message.clone(),
            fault.hint.clone().unwrap_or_default(),
        )
    };
    faults.iter().map(shown).collect()
}

#[test]
fn a_machine_is_rented_where_its_volume_is_and_is_replaced_when_it_gets_another() {
    let topology = with(&["data"]);
    let desired = mounted(&topology).expect("it is there");
    let mut world = World::new();
    let first = plan(&desired, &world, &market(), &options(Mode::Apply));
    for terms in first.leases.values() {
        let list: Vec<&str> = terms
            .shortlist
            .iter()
            .map(|c| c.quote.id.0.as_str())
            .collect();
        assert_eq!(list, ["us-2"]);
    }
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    let mount = &spec.terms[0].mounts[0];
    assert_eq!(
        (&*mount.id, &*mount.name, &*mount.at),
        ("v1", "data", "/data/data")
    );
    let measured = at("us-2", 1100);
    world.measured.insert(measured.id, measured.facts);
    world.carry_out(&first);
    let again = plan(&desired, &world, &market(), &options(Mode::Apply));
    assert!(again.steps.is_empty(), "{:?}", again.changes);
    let other = mounted(&with(&["v2"])).expect("it is there");
    let next = plan(&other, &world, &market(), &options(Mode::Apply));
    assert_eq!(
        next.changes[0].reason,
        "its machine no longer fits: region=us-1 (it has us-2)"
    );
    // In the same place, it is another volume all the same.
    let mut moved = with(&["data"]);
    let lease = moved.leases.get_mut(&name("gpu")).expect("it");
    lease.mounts[0].at = "/data/elsewhere".to_owned();
    let moved = mounted(&moved).expect("it is there");
    let next = plan(&moved, &world, &market(), &options(Mode::Apply));
    assert_eq!(
        next.changes[0].reason,
        "volumes are mounted when a machine is made: data at /data/data then, data at /data/elsewhere now"
    );
}

#[test]
fn a_volume_that_is_not_there_or_not_the_only_one_is_told_with_those_that_are() {
    assert_eq!(
        faults(&with(&["dta", "twin"])),
        [
            (
                "lease.gpu: provider `here` has no volume `dta`".to_owned(),
                "did you mean `data`? there are `data` (us-2), `twin` (us-1), `twin` (eu-1)"
                    .to_owned()
            ),
            (
                "lease.gpu: provider `here` has 2 volumes named `twin`".to_owned(),
                "say which by its id: `v2` (us-1), `v3` (eu-1)".to_owned()
            ),
        ]
    );
    assert!(mounted(&with(&["v3"])).is_ok());
    let mut none = desired(&with(&["data"]));
    let faults = none.mount(&BTreeMap::from([(name("here"), Ok(Vec::new()))]));
    let hint = faults.expect_err("none")[0]
        .hint
        .clone()
        .expect("what to do");
    assert!(
        hint.contains("the account has none; stageline makes no volumes"),
        "{hint}"
    );
    // Nobody could look: that is said elsewhere.
    assert!(desired(&with(&["data"])).mount(&Volumes::new()).is_ok());
}

#[test]
fn a_volume_in_a_place_that_is_not_allowed_is_found_while_planning() {
    let mut topology = with(&["data"]);
    let offer = topology.offers.get_mut(&name("box")).expect("it");
    offer.requirement = "region=EU".parse().expect("a term");
    let told = faults(&topology);
    assert_eq!(told.len(), 1, "once for all machines: {told:?}");
    assert_eq!(
        told[0].0,
        "lease.gpu: volume `data` of provider `here` is in us-2, and offer `box` (region=EU) allows no machine there"
    );
    let mut topology = with(&["data"]);
    let here = topology.providers.get_mut(&name("here")).expect("it");
    here.within = Selection {
        regions: vec!["us-1".to_owned(), "EU".to_owned()],
        ..Selection::default()
    };
    assert_eq!(
        faults(&topology)[0].0,
        "lease.gpu: volume `data` of provider `here` is in us-2, and `regions` of the provider (us-1, EU) allows no machine there"
    );
}

/// A second provider of the lease, cheaper than the first one.
fn two(wanted: &[&str]) -> (Topology, Markets) {
    let mut topology = with(wanted);
    let provider = topology.providers[&name("here")].clone();
    topology.providers.insert(name("there"), provider);
    let offer = stageline_core::topology::Offer {
        provider: name("there"),
        ..topology.offers[&name("box")].clone()
    };
    topology.offers.insert(name("other"), offer);
    let lease = topology.leases.get_mut(&name("gpu")).expect("it");
    lease.offers.push(name("other"));
    let mut markets = market();
    let there = Market {
        quotes: Ok(vec![quote("there", "cheap", 100, Supply::Many(9))]),
        ..markets[&name("here")].clone()
    };
    markets.insert(name("there"), there);
    (topology, markets)
}

fn lists(plan: &Plan) -> Vec<Vec<String>> {
    let list = |terms: &stageline_core::plan::LeaseTerms| {
        let quotes = terms.shortlist.iter();
        quotes.map(|choice| choice.quote.id.0.clone()).collect()
    };
    plan.leases.values().map(list).collect()
}

#[test]
fn no_machine_is_rented_where_its_volumes_could_not_be_read() {
    let (topology, markets) = two(&["data"]);
    let mut volumes = volumes();
    let cause = Cause::new(FailureClass::Unknown, "502 Bad Gateway");
    volumes.insert(name("there"), Err(cause.clone()));
    let mut desired = desired(&topology);
    desired.mount(&volumes).expect("one offer has it");
    let drafted = plan(&desired, &World::new(), &markets, &options(Mode::Apply));
    assert_eq!(lists(&drafted), [["us-2"], ["us-2"]]);
    assert_eq!(
        drafted.notes,
        [
            "provider `there` cannot be seen (its volumes could not be read: 502 Bad Gateway); 2 leases are planned without it"
        ]
    );
    // Nor later, when what was listed is gone.
    let Spec::Lease(spec) = &desired.specs[&address("lease.gpu[0]")] else {
        panic!("a lease");
    };
    let mut left = markets.clone();
    left.remove(&name("here"));
    assert_eq!(next_offer(spec, &Avoid::default(), &left), None);
    // Nor when it is the only one; then nothing is rented at all.
    volumes.insert(name("here"), Err(cause));
    let mut desired = self::desired(&topology);
    desired.mount(&volumes).expect("nobody knows");
    let faults = draft(&Draft {
        desired: &desired,
        recorded: &World::new().state,
        observed: &Observed::default(),
        markets: &markets,
        options: &options(Mode::Apply),
    });
    let faults = faults.expect_err("nobody could look");
    assert_eq!(faults[0].code, "plan/blind");
    assert!(faults[0].message.contains("its volumes could not be read"));
}

#[test]
fn offers_without_the_volume_are_left_out_and_said() {
    let (topology, markets) = two(&["data"]);
    let mut volumes = volumes();
    volumes.insert(name("there"), Ok(Vec::new()));
    let mut desired = desired(&topology);
    desired.mount(&volumes).expect("one offer has it");
    let mut world = World::new();
    let first = plan(&desired, &world, &markets, &options(Mode::Apply));
    assert_eq!(lists(&first), [["us-2"], ["us-2"]]);
    assert_eq!(
        first.notes,
        ["lease.gpu: offer `other` is left out: provider `there` has no volume `data`"]
    );
    let measured = at("us-2", 1100);
    world.measured.insert(measured.id, measured.facts);
    world.carry_out(&first);
    // Its name is another one now: a machine that is held is not given up for that.
    volumes.insert(name("here"), Ok(vec![volume("v1", "renamed", "us-2")]));
    volumes.insert(name("there"), Ok(vec![volume("w1", "data", "eu-9")]));
    let mut desired = self::desired(&topology);
    desired.mount(&volumes).expect("one offer has it");
    let again = plan(&desired, &world, &markets, &options(Mode::Apply));
    assert!(again.steps.is_empty(), "{:?}", again.changes);
    assert!(again.notes.is_empty(), "{:?}", again.notes);
}

#[test]
fn a_table_without_volumes_is_no_class_of_one_whose_volumes_could_not_be_read() {
    let mut topology = with(&["data"]);
    let mut plain = topology.leases[&name("gpu")].clone();
    plain.mounts.clear();
    topology.leases.insert(name("plain"), plain);
    let mut desired = desired(&topology);
    desired.mount(&Volumes::new()).expect("nobody knows");
    let faults = draft(&Draft {
        desired: &desired,
        recorded: &World::new().state,
        observed: &Observed::default(),
        markets: &market(),
        options: &options(Mode::Apply),
    });
    let faults = faults.expect_err("nobody could look");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].message.starts_with("lease.gpu[0] and 1 more"));
}
