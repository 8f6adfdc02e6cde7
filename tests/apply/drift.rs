//! What changed behind our back is shown by the next plan, and by one that only refreshes: machines with fewer GPUs, under
//! another name, twice under one name, at another price, ended by hand; and machines that only look like ours, which are
//! shown and never touched.

use std::collections::BTreeSet;
use std::time::Duration;

use stageline::core::id::{MachineId, RequestKey};
use stageline::core::journal::Verb as StepVerb;
use stageline::core::offer::{Facts, Gpu};
use stageline::core::plan::{Plan, Verdict};
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::provider::sim::{AccountSpec, Shape, Verb};

use super::world::{PRICE, TWO, World, facts, here, shape};

const HOUR: Duration = Duration::from_secs(3600);

fn gpus(count: usize) -> Vec<Gpu> {
    let one = Gpu {
        model: "RTX 4090".to_owned(),
        vram: Bytes::gib(24),
    };
    vec![one; count]
}

/// Two machines of two GPUs each.
fn with_gpus() -> World {
    World::with(AccountSpec::new(vec![Shape {
        facts: Facts {
            gpus: gpus(2),
            ..facts()
        },
        ..shape("a", PRICE)
    }]))
}

fn asking(gpus: u32) -> String {
    let line = format!("provider = \"here\"\nwhere = \"gpus>={gpus}\"\n");
    TWO.replace("provider = \"here\"\n", &line)
}

/// What a plan says of the machines of a world, the one that only refreshes and the usual one.
fn plans(world: &World, text: &str) -> [Plan; 2] {
    world.refresh_only.set(true);
    let refresh = world.next_plan(text);
    world.refresh_only.set(false);
    [refresh, world.next_plan(text)]
}

fn drift(plan: &Plan) -> String {
    let lines = plan.drift.iter();
    let lines: Vec<String> = lines
        .map(|drift| format!("{} {}", drift.address, drift.what))
        .collect();
    lines.join("\n")
}

fn replaced(plan: &Plan) -> usize {
    let changes = plan.changes.iter();
    changes
        .filter(|change| change.verdict == Verdict::Replace && change.address.kind() == "lease")
        .count()
}

#[test]
fn a_machine_that_lost_a_gpu_is_shown_and_replaced_where_it_no_longer_fits() {
    for (wanted, replaces) in [(1, 0), (2, 1)] {
        let world = with_gpus();
        let text = asking(wanted);
        world.apply(&text);
        let id = world.ours()[0].id.clone();
        world.sim.alter(&id, |machine, _| {
            machine.claimed.gpus = gpus(1);
            machine.measured.gpus = gpus(1);
        });
        for plan in plans(&world, &text) {
            let drift = drift(&plan);
            assert!(
                drift.contains("has 1 x RTX 4090 now, 2 x RTX 4090 when it became ready"),
                "{drift}"
            );
        }
        let [refresh, plan] = plans(&world, &text);
        assert!(
            refresh.is_empty(),
            "only what is seen to be gone is recorded"
        );
        assert_eq!(replaced(&plan), replaces, "{:#?}", plan.changes);
        let report = world.apply(&text);
        assert!(report.summary.finished(), "{:#?}", report.summary);
        let stays = world.ours().iter().any(|machine| machine.id == id);
        assert_eq!(stays, replaces == 0);
        world.check_gone(&world.destroy());
        world.check_ledger();
    }
}

#[test]
fn what_its_agent_finds_counts_more_than_what_the_provider_says() {
    let world = with_gpus();
    let text = asking(2);
    world.apply(&text);
    let id = world.ours()[0].id.clone();
    world
        .sim
        .alter(&id, |machine, _| machine.claimed.gpus = gpus(1));
    let [_, plan] = plans(&world, &text);
    assert!(plan.is_empty(), "{:#?}", plan.changes);
    assert_eq!(drift(&plan), "");
}

#[test]
fn a_machine_that_somebody_renamed_is_shown_kept_and_ended() {
    let world = World::new();
    world.apply(TWO);
    let renamed = world.ours()[1].clone();
    world.sim.rename(&renamed.id, "web-1");
    for plan in plans(&world, TWO) {
        assert!(plan.is_empty(), "{:#?}", plan.changes);
        let drift = drift(&plan);
        assert!(drift.contains("was renamed at its provider"), "{drift}");
        assert!(drift.contains(&renamed.label), "{drift}");
        assert_eq!(plan.drift.len(), 1);
    }
    world.apply(TWO);
    assert_eq!(world.ours().len(), 2);
    assert_eq!(world.sim.count(Verb::Create), 2);
    let report = world.destroy();
    assert!(report.summary.finished(), "{:#?}", report.summary);
    assert_eq!(world.ours(), [], "also the one that was renamed");
    world.check_ledger();
}

#[test]
fn a_second_machine_of_the_same_name_is_shown_and_no_apply_touches_it() {
    let world = World::new();
    world.apply(TWO);
    let first = world.ours()[0].clone();
    let twin = world.sim.plant(&here(), &first.label, MicroDollars(7));
    for plan in plans(&world, TWO) {
        assert!(plan.is_empty(), "{:#?}", plan.changes);
        let drift = drift(&plan);
        assert!(
            drift.contains(&format!("machine {twin} carries its name too")),
            "{drift}"
        );
    }
    world.apply(TWO);
    let up: BTreeSet<MachineId> = world.sim.alive().into_iter().map(|m| m.id).collect();
    assert!(up.contains(&twin) && up.contains(&first.id));
    // It carries our very key, so that whoever ends the lease ends it, too.
    let report = world.destroy();
    assert!(report.summary.finished(), "{:#?}", report.summary);
    assert_eq!(world.sim.alive(), []);
}

#[test]
fn machines_that_only_look_like_ours_are_shown_and_never_touched() {
    let world = World::new();
    world.apply(TWO);
    let label = world.ours()[0].label.clone();
    let names = [
        // Another topology's.
        "sl-0123456789abcdef-01234567-g1a1".to_owned(),
        // Nearly ours.
        label.to_uppercase(),
        format!("{label}-copy"),
        label[..label.len() - 2].to_owned(),
        label.replace("sl-", "sl_"),
    ];
    let strangers = ["sl-", "sl-20261130-trainer", "web-1", ""];
    let all = names
        .iter()
        .map(String::as_str)
        .chain(strangers.iter().copied());
    let planted: Vec<MachineId> = all
        .map(|name| world.sim.plant(&here(), name, MicroDollars(7)))
        .collect();
    for plan in plans(&world, TWO) {
        assert!(plan.is_empty(), "{:#?}", plan.changes);
        assert_eq!(drift(&plan), "");
        let notes = plan.notes.join("\n");
        assert!(
            notes.contains("left alone") && notes.contains(&names[0]),
            "{notes}"
        );
        assert!(notes.contains("never touched"), "{notes}");
        for (id, name) in planted.iter().zip(&names).skip(1) {
            let told = format!("{id} (\"{name}\", $0.000007/h)");
            assert!(notes.contains(&told), "no {told} in {notes}");
        }
        for stranger in &planted[names.len()..] {
            let told = notes.contains(&format!("{stranger} "));
            assert!(!told, "{stranger} in {notes}");
        }
    }
    world.clock.advance(HOUR);
    world.apply(TWO);
    world.check_gone(&world.destroy());
    let left: BTreeSet<MachineId> = world.sim.alive().into_iter().map(|m| m.id).collect();
    assert_eq!(left, planted.iter().cloned().collect());
    let asked = world.sim.calls();
    let mut released = asked.iter().filter(|call| call.verb == Verb::Release);
    assert!(released.all(|call| !planted.contains(&call.subject.parse().expect("an id"))));
}

/// A machine with this state's mark, made for an address that nobody knows.
#[test]
fn a_machine_with_our_mark_and_no_lease_is_shown_with_what_to_type() {
    let world = World::new();
    world.apply(TWO);
    let genesis = world.state().genesis.expect("begun");
    let address = "lease.lost[3]".parse().expect("an address");
    let made = (
        stageline::core::id::Generation(1),
        stageline::core::id::Attempt(1),
    );
    let key = RequestKey::derive(&genesis.lineage, &address, made.0, made.1);
    let lost = world.sim.plant(&here(), key.as_str(), MicroDollars(7));
    for plan in plans(&world, TWO) {
        let notes = plan.notes.join("\n");
        assert!(notes.contains(lost.as_str()), "{notes}");
        assert!(notes.contains("stageline orphans"), "{notes}");
        assert!(plan.is_empty());
    }
    world.check_gone(&world.destroy());
    assert_eq!(world.sim.alive().len(), 1, "it is left alone");
}

#[test]
fn a_price_that_moved_is_recorded_by_a_refresh_and_nothing_else_is_done() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(HOUR);
    for machine in world.ours() {
        let dearer = |machine: &mut stageline::provider::sim::SimMachine, now| {
            machine.prices.push((now, PRICE.times(3)));
        };
        world.sim.alter(&machine.id, dearer);
    }
    let calls = world.sim.calls().len();
    world.refresh_only.set(true);
    let report = world.apply(TWO);
    assert_eq!(report.plan.drift.len(), 2, "{}", drift(&report.plan));
    assert!(
        report
            .plan
            .steps
            .iter()
            .all(|step| step.verb == StepVerb::Record)
    );
    assert_eq!(report.plan.steps.len(), 2);
    assert!(world.next_plan(TWO).is_empty(), "it is recorded");
    world.refresh_only.set(false);
    let asked = world.sim.calls().split_off(calls);
    assert!(
        asked
            .iter()
            .all(|call| !matches!(call.verb, Verb::Create | Verb::Release))
    );
    world.clock.advance(HOUR);
    world.check_gone(&world.destroy());
    world.check_ledger();
}

#[test]
fn a_machine_that_was_ended_by_hand_leaves_the_state_by_a_refresh_and_is_not_replaced() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(HOUR);
    let gone = world.ours()[0].id.clone();
    world.sim.vanish(&gone);
    world.refresh_only.set(true);
    let report = world.apply(TWO);
    assert!(report.summary.finished(), "{:#?}", report.summary);
    assert!(
        drift(&report.plan).contains("is gone"),
        "{}",
        drift(&report.plan)
    );
    assert_eq!(world.sim.count(Verb::Create), 2, "nothing is rented");
    let state = world.state();
    assert_eq!(super::world::receipts(&state).len(), 1);
    world.refresh_only.set(false);
    world.check_ledger();
    world.check_settled(TWO, &world.apply(TWO));
    assert_eq!(world.sim.count(Verb::Create), 3);
    world.check_gone(&world.destroy());
    world.check_ledger();
}
