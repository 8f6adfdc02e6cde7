//! Volumes that leases name: where machines may be for them, and what is said when there are none.

use std::collections::BTreeMap;

use stageline_core::diagnostic::Diagnostic;
use stageline_core::offer::{Quote, Selection, Supply, Volume};
use stageline_core::plan::{Desired, Market, Markets, Mode, Volumes};
use stageline_core::resource::Spec;
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
    BTreeMap::from([(name("here"), all)])
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
    let faults = none.mount(&BTreeMap::from([(name("here"), Vec::new())]));
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
