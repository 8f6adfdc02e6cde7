//! A plan binds to what it was drafted from and is consumed once; a plan file is read as it was written or refused.

use stageline_core::id::{Fingerprint, Lineage};
use stageline_core::plan::{
    Desired, Mode, Options, Plan, PlanFileError, Refusal, Start, may_apply,
};
use stageline_core::render::json::{PlanDocument, StateDocument};
use stageline_core::unit::Timestamp;

use crate::basics::{chain, desired, options, plan};
use crate::world::{World, address, local, name, now};

fn digest() -> Fingerprint {
    Fingerprint([3; 32])
}

fn drafted(world: &World) -> Plan {
    let options = Options {
        topology_digest: Some(digest()),
        ..options(Mode::Apply)
    };
    plan(&desired(&chain(&[0, 16, 30])), world, &local(4), &options)
}

fn judged(plan: &Plan, world: &World, now: Timestamp) -> Result<Start, Refusal> {
    may_apply(plan, &world.state, Some(digest()), now)
}

#[test]
fn a_plan_is_applied_once_and_resumed_when_it_was_cut_off() {
    let mut world = World::new();
    let plan = drafted(&world);
    assert_eq!(judged(&plan, &world, now()), Ok(Start::Fresh));
    world.carry_out_first(&plan, 3);
    assert_eq!(judged(&plan, &world, now()), Ok(Start::Resume));
    let other = drafted(&world);
    let mut overtaken = world.clone();
    overtaken.carry_out_first(&other, 1);
    assert!(matches!(
        judged(&plan, &overtaken, now()),
        Err(Refusal::Overtaken { .. })
    ));
    world.carry_out(&plan);
    assert!(matches!(
        judged(&plan, &world, now()),
        Err(Refusal::Finished { .. })
    ));
}

#[test]
fn a_plan_is_refused_when_what_it_was_drafted_from_is_not_so_any_more() {
    let mut world = World::new();
    let first = drafted(&world);
    let late = first.expires_at;
    assert_eq!(
        judged(&first, &world, late),
        Err(Refusal::Expired { at: late })
    );
    let wrong = may_apply(&first, &world.state, Some(Fingerprint([4; 32])), now());
    assert_eq!(wrong, Err(Refusal::OtherTopology));
    let newer = Plan {
        format: 99,
        ..first.clone()
    };
    assert_eq!(
        judged(&newer, &world, now()),
        Err(Refusal::Newer { found: 99 })
    );
    world.carry_out(&first);

    let second = drafted(&world);
    assert_eq!(judged(&second, &world, now()), Ok(Start::Fresh));
    // A run that changes nothing makes no plan stale.
    world.begin(None);
    assert_eq!(judged(&second, &world, now()), Ok(Start::Fresh));
    let again = Options {
        replace: vec![address("lease.gpu[0]")],
        ..options(Mode::Apply)
    };
    let replaced = plan(&desired(&chain(&[0, 16, 30])), &world, &local(4), &again);
    world.carry_out(&replaced);
    assert_eq!(judged(&second, &world, now()), Err(Refusal::Stale));
    assert_eq!(judged(&first, &World::new(), now()), Ok(Start::Fresh));
    let foreign = Plan {
        lineage: Some(Lineage([1; 16])),
        ..second
    };
    assert_eq!(judged(&foreign, &world, now()), Err(Refusal::OtherLineage));
}

#[test]
fn a_destroy_needs_no_topology() {
    let mut world = World::new();
    world.carry_out(&drafted(&world));
    let nothing = Desired::nothing(name("test"));
    let end = plan(
        &nothing,
        &world,
        &Default::default(),
        &options(Mode::Destroy),
    );
    assert_eq!(may_apply(&end, &world.state, None, now()), Ok(Start::Fresh));
    assert_eq!(judged(&end, &world, now()), Ok(Start::Fresh));
}

#[test]
fn every_refusal_says_what_to_do() {
    for refusal in [
        Refusal::Stale,
        Refusal::OtherLineage,
        Refusal::OtherTopology,
    ] {
        assert!(refusal.hint().contains("plan again"), "{refusal}");
    }
}

#[test]
fn a_plan_file_reads_what_it_wrote_and_refuses_what_was_changed() {
    let plan = drafted(&World::new());
    let bytes = plan.encode();
    assert_eq!(Plan::decode(&bytes), Ok(plan.clone()));
    for cut in [0, 1, bytes.len() / 2] {
        assert!(matches!(
            Plan::decode(&bytes[..cut]),
            Err(PlanFileError::Invalid(_))
        ));
    }
    let text = String::from_utf8(bytes).expect("text");
    let dearer = text.replacen("\"at_most_per_hour\": 0", "\"at_most_per_hour\": 1", 1);
    assert_ne!(dearer, text);
    assert!(matches!(
        Plan::decode(dearer.as_bytes()),
        Err(PlanFileError::Changed(_))
    ));
    let newer = text.replacen("\"format\": 2", "\"format\": 3, \"more\": {}", 1);
    assert_eq!(
        Plan::decode(newer.as_bytes()),
        Err(PlanFileError::Newer { found: 3 })
    );
}

#[test]
fn a_plan_file_of_format_1_is_read_and_may_be_applied() {
    let world = World::new();
    let state = &world.state;
    let lineage = state.genesis.as_ref().map(|genesis| genesis.lineage);
    let mut old = drafted(&world);
    old.format = 1;
    old.base = Fingerprint::of_json(&(lineage, &state.resources, &state.generations));
    let new = old.digest();
    old.format = 2;
    assert_ne!(old.digest(), new, "the formats have different digests");
    old.format = 1;
    old.id = new;
    let read = Plan::decode(&old.encode()).expect("it is read");
    assert_eq!(judged(&read, &world, now()), Ok(Start::Fresh));
}

/// Every property that a document has is one that its schema names.
fn known(schema: &serde_json::Value, document: &serde_json::Value) {
    let properties = schema["properties"].as_object().expect("an object");
    for key in document.as_object().expect("an object").keys() {
        assert!(properties.contains_key(key), "{key}");
    }
    for key in schema["required"].as_array().expect("a list") {
        assert!(
            document.get(key.as_str().expect("a name")).is_some(),
            "{key}"
        );
    }
}

#[test]
fn json_documents_are_versioned_and_have_a_schema() {
    let mut world = World::new();
    let plan = drafted(&world);
    let document = PlanDocument::new(&plan);
    let value: serde_json::Value = serde_json::from_str(&document.text()).expect("JSON");
    assert_eq!(value["document"], "stageline-plan");
    assert_eq!(value["version"], 1);
    assert_eq!(value["summary"]["create"], 8);
    let schema = PlanDocument::schema();
    known(&schema, &value);
    known(&schema["$defs"]["Plan"], &value["plan"]);
    world.carry_out(&plan);
    let value: serde_json::Value =
        serde_json::from_str(&StateDocument::new(&world.state).text()).expect("JSON");
    known(&StateDocument::schema(), &value);
}
