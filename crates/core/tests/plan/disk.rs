//! The disk that is asked for: what the file says, else what models need.

use std::collections::BTreeMap;

use stageline_core::id::Sha256;
use stageline_core::plan::{Desired, Market, Markets, Mode, ModelFacts, ModelShape, Plan, expand};
use stageline_core::resource::{DISK, Spec};
use stageline_core::topology::Topology;
use stageline_core::unit::{Bytes, Millis};

use crate::basics::{chain, model, options, plan};
use crate::world::{World, address, facts, local, name};

/// One machine with all 30 layers, each of so many GiB.
fn layers_of(gib: u64) -> ModelFacts {
    let small = model();
    let shape = small.shape.clone().expect("it has one");
    ModelFacts {
        sha256: Sha256([u8::try_from(gib).expect("few"); 32]),
        size: Bytes::gib(31 * gib),
        shape: Some(ModelShape {
            layers: vec![Bytes::gib(gib); 30],
            ..shape
        }),
        ..small
    }
}

fn with(topology: &Topology, facts: ModelFacts) -> Desired {
    let models = BTreeMap::from([(name("llama"), facts)]);
    expand(topology, &models).expect("it can be expanded")
}

/// The disk of each machine, in GiB, and whether models say it.
fn disks(desired: &Desired) -> Vec<(u64, bool)> {
    let specs = desired.specs.values();
    let leases = specs.filter_map(|spec| match spec {
        Spec::Lease(spec) => Some((spec.disk.0 / Bytes::gib(1).0, spec.files.is_some())),
        Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_) => None,
    });
    leases.collect()
}

#[test]
fn a_disk_that_nobody_declares_has_room_for_the_parts_of_the_models_on_it() {
    let two = chain(&[0, 20, 30]);
    assert_eq!(disks(&with(&two, model())), [(20, true), (20, true)]);
    // 20 layers and the embedding, 10 layers and the head, and 10 GiB beside them.
    assert_eq!(disks(&with(&two, layers_of(1))), [(31, true), (21, true)]);
    // Two pipelines share a file.
    let mut both = two.clone();
    let again = both.pipelines[&name("llama")].clone();
    both.pipelines.insert(name("other"), again);
    let models = [name("llama"), name("other")].map(|name| (name, layers_of(1)));
    let desired = expand(&both, &models.into()).expect("it can be expanded");
    assert_eq!(disks(&desired), [(41, true), (31, true)]);
    // What the file says holds.
    let mut declared = two;
    declared.leases.get_mut(&name("gpu")).expect("it").disk = Some(Bytes::gib(7));
    assert_eq!(
        disks(&with(&declared, layers_of(1))),
        [(7, false), (7, false)]
    );
}

fn drawn(plan: &Plan) -> String {
    let view = stageline_core::render::View {
        level: stageline_core::render::Level::Changes,
        width: 300,
        color: false,
    };
    stageline_core::render::plan::plan(plan, &view)
}

/// A machine that was measured with so much disk.
fn held(topology: &Topology, facts_of: ModelFacts, disk: u64) -> World {
    let mut world = World::new();
    let desired = with(topology, facts_of);
    let first = plan(&desired, &world, &markets(), &options(Mode::Apply));
    let mut measured = facts();
    measured.disk = Bytes::gib(disk);
    measured.memory = Bytes::gib(999);
    let quote = &first.leases.values().next().expect("one").shortlist[0].quote;
    world.measured.insert(quote.id.clone(), measured);
    world.carry_out(&first);
    world
}

fn markets() -> Markets {
    let mut markets = local(4);
    let market: &mut Market = markets.get_mut(&name("here")).expect("one");
    for quote in market.quotes.as_mut().expect("seen") {
        quote.facts.memory = Bytes::gib(999);
    }
    markets
}

#[test]
fn a_machine_is_replaced_for_its_disk_only_when_its_models_do_not_fit_any_more() {
    let one = chain(&[0, 30]);
    let reason = |world: &World, facts: ModelFacts| {
        let plan = plan(&with(&one, facts), world, &markets(), &options(Mode::Apply));
        let lease = plan.change(&address("lease.gpu[0]")).expect("it is there");
        (lease.reason.clone(), drawn(&plan))
    };
    let small = held(&one, layers_of(1), 41);
    let (kept, _) = reason(&small, layers_of(1));
    assert_eq!(kept, "as declared");
    let (why, drawn) = reason(&small, layers_of(2));
    assert_eq!(
        why,
        "its models take 60 GiB now, and its disk was made with 41 GiB"
    );
    assert!(
        drawn.contains("has 71 GiB of disk: its models take 60 GiB"),
        "{drawn}"
    );
    // A host of one's own, or a machine whose disk is as large as it is.
    let large = held(&one, layers_of(1), 500);
    assert_eq!(reason(&large, layers_of(2)).0, "as declared");
    // Neither is that they went away.
    let mut none = one.clone();
    none.pipelines.clear();
    none.exposures.clear();
    let desired = expand(&none, &BTreeMap::new()).expect("it can be expanded");
    let without = plan(&desired, &small, &markets(), &options(Mode::Apply));
    let lease = without.change(&address("lease.gpu[0]")).expect("it");
    assert_eq!(lease.reason, "as declared");
    // Smaller is no reason, and neither is that an older stageline asked for 20 GiB.
    assert_eq!(reason(&small, model()).0, "as declared");
    let mut old = held(&one, layers_of(1), 20);
    let lease = old.state.resources.get_mut(&address("lease.gpu[0]"));
    let Some(Spec::Lease(spec)) = &mut lease.expect("it is there").spec else {
        panic!("a lease");
    };
    let spec = spec.to_mut();
    (spec.disk, spec.files) = (DISK, None);
    assert_eq!(reason(&old, layers_of(1)).0, "as declared");
}

/// What is recorded of a machine goes on to say how it was made, whatever else is recorded of it.
#[test]
fn a_first_model_that_does_not_fit_is_told_and_the_disk_that_is_written_then_replaces_the_machine()
{
    let one = chain(&[0, 30]);
    let mut none = one.clone();
    none.pipelines.clear();
    none.exposures.clear();
    let mut world = World::new();
    let desired = expand(&none, &BTreeMap::new()).expect("it can be expanded");
    let first = plan(&desired, &world, &markets(), &options(Mode::Apply));
    let mut measured = facts();
    measured.disk = Bytes::gib(20);
    measured.memory = Bytes::gib(999);
    let quote = &first.leases.values().next().expect("one").shortlist[0].quote;
    world.measured.insert(quote.id.clone(), measured);
    world.carry_out(&first);
    // A model comes, and its limits change with it.
    let mut served = one;
    let table = served.leases.get_mut(&name("gpu")).expect("it");
    table.idle_timeout = Some(Millis::minutes(7));
    let desired = with(&served, layers_of(2));
    let second = plan(&desired, &world, &markets(), &options(Mode::Apply));
    let lease = second.change(&address("lease.gpu[0]")).expect("it");
    assert_eq!(lease.reason, "its limits changed");
    assert!(lease.fields.iter().all(|field| field.path != "disk"));
    let drawn = drawn(&second);
    assert!(
        drawn.contains(
            "lease.gpu[0]: its models take 60 GiB, and its machine has 20 GiB of disk: where they are not there already \
             they do not fit, and `disk = 71` in its table, or `--replace`, makes another one"
        ),
        "{drawn}"
    );
    world.carry_out(&second);
    served.leases.get_mut(&name("gpu")).expect("it").disk = Some(Bytes::gib(70));
    let desired = with(&served, layers_of(2));
    let third = plan(&desired, &world, &markets(), &options(Mode::Apply));
    let lease = third.change(&address("lease.gpu[0]")).expect("it");
    assert_eq!(
        lease.reason,
        "its disk was made with the machine: 20 GiB then, 70 GiB now"
    );
}
