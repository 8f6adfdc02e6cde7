//! What `[[moved]]` and `[[removed]]` make of a recorded state.

use std::collections::BTreeMap;

use stageline_core::plan::{self, Draft, Mode, Plan};
use stageline_core::state::{Edit, LeaseRange, Observed};
use stageline_core::topology::{Removed, Topology};

use crate::basics::{machines, options};
use crate::world::{World, local, name};

fn range(text: &str) -> LeaseRange {
    text.parse().expect("a range")
}

fn drafted(world: &World, topology: &Topology) -> Plan {
    let desired = plan::expand(topology, &BTreeMap::new()).expect("it can be expanded");
    let draft = Draft {
        desired: &desired,
        recorded: &world.state,
        observed: &Observed::default(),
        markets: &local(16),
        options: &options(Mode::Apply),
    };
    plan::draft(&draft).expect("a plan")
}

/// Two machines `gpu`, and the topology with that table under another name.
fn renamed() -> (World, Topology) {
    let before = machines(2);
    let mut world = World::new();
    let first = drafted(&world, &before);
    world.carry_out(&first);
    let mut after = before;
    let table = after.leases.remove(&name("gpu")).expect("the table");
    after.leases.insert(name("box"), table);
    (world, after)
}

#[test]
fn a_moved_table_leaves_nothing_to_do_and_without_it_all_is_made_anew() {
    let (mut world, mut after) = renamed();
    let without = drafted(&world, &after);
    assert_eq!(without.count(plan::Verdict::Create), 2);
    after.moved.insert(range("lease.gpu"), range("lease.box"));
    let edits = plan::edits(&after, &world.state).expect("nothing is in the way");
    assert_eq!(edits.len(), 2);
    world.state = world.state.after(&edits).expect("nothing is in the way");
    let plan = drafted(&world, &after);
    assert!(plan.is_empty(), "{:#?}", plan.changes);
    let again = plan::edits(&after, &world.state).expect("it is done");
    assert_eq!(again, [], "an entry that was applied does nothing");
}

#[test]
fn what_is_given_up_is_not_released() {
    let (mut world, mut after) = renamed();
    after
        .removed
        .insert(range("lease.gpu[1]"), Removed { release: false });
    let edits = plan::edits(&after, &world.state).expect("nothing is in the way");
    let Edit::Remove { lease } = &edits[0] else {
        panic!("{edits:?}");
    };
    assert_eq!(
        (lease.to_string().as_str(), edits.len()),
        ("lease.gpu[1]", 1)
    );
    world.state = world.state.after(&edits).expect("nothing is in the way");
    assert_eq!(world.state.disowned.len(), 1);
    let plan = drafted(&world, &after);
    assert_eq!(plan.count(plan::Verdict::Delete), 1, "only the other one");
}

#[test]
fn two_recorded_leases_cannot_become_one() {
    let (mut world, mut after) = renamed();
    let both = drafted(&world, &after);
    // Only what is made; the old ones stay.
    let makes = both
        .steps
        .iter()
        .position(|step| step.verb == stageline_core::journal::Verb::Release);
    world.carry_out_first(&both, makes.expect("they are ended last"));
    after.moved.insert(range("lease.gpu"), range("lease.box"));
    let faults = plan::edits(&after, &world.state).expect_err("both are there");
    assert_eq!(faults[0].code, "plan/moved");
    assert!(
        faults[0]
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("stageline release"))
    );
}
