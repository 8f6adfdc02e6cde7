//! Moves, removals, imports and rollbacks, as functions of a state.

use super::*;
use crate::id::{Generation, Lineage, OperatorId};
use crate::offer::QuoteId;
use crate::resource::{DeliverySpec, PipelineSpec, RosterLine, StageReceipt};
use crate::state::Genesis;
use crate::unit::{Bytes, MicroDollars, Millis};

const LINEAGE: Lineage = Lineage([7; 16]);

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

fn lease(text: &str) -> LeaseId {
    address(text).lease().expect("a lease").clone()
}

fn range(text: &str) -> LeaseRange {
    text.parse().expect("a range")
}

fn at() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn held(address: &Address, generation: u32, machine: &str) -> Recorded {
    let (generation, attempt) = (Generation(generation), Attempt(1));
    Recorded {
        generation,
        spec: None,
        receipt: Some(Receipt::Lease(Box::new(LeaseReceipt {
            provider: "here".parse().expect("a name"),
            provider_kind: "local".to_owned(),
            account: None,
            offer: "slot".parse().expect("a name"),
            quote: QuoteId("a".to_owned()),
            machine: machine.parse().expect("an id"),
            request_key: RequestKey::derive(&LINEAGE, address, generation, attempt),
            price_per_hour: MicroDollars(5),
            created_at: at(),
            place: crate::offer::Place::default(),
            ready: None,
        }))),
        pending: None,
        attempts: BTreeMap::new(),
        last_attempt: attempt,
        tried_since: None,
        billed: None,
        made_for: None,
        tried: BTreeMap::new(),
    }
}

fn on(spec: Spec, receipt: Option<Receipt>) -> Recorded {
    Recorded {
        spec: Some(spec),
        receipt: receipt.or(Some(Receipt::Stage(Box::new(StageReceipt {
            endpoint: crate::id::EndpointKey([1; 32]),
            spec: crate::id::Fingerprint([2; 32]),
        })))),
        ..held(&address("lease.x[0]"), 1, "unused")
    }
}

/// Machines of `lease.a` and a pipeline over all of them.
fn state(machines: u32) -> State {
    let mut state = State {
        genesis: Some(Genesis {
            lineage: LINEAGE,
            operator: OperatorId([1; 32]),
            topology: "test".parse().expect("a name"),
        }),
        ..State::default()
    };
    let leases: Vec<LeaseId> = (0..machines)
        .map(|i| lease(&format!("lease.a[{i}]")))
        .collect();
    for (index, lease) in leases.iter().enumerate() {
        let address = Address::Lease(lease.clone());
        let recorded = held(&address, 1, &format!("m{index}"));
        state.generations.insert(address.clone(), Generation(1));
        state.resources.insert(address, recorded);
        let share = crate::resource::PipelineShare {
            shard: None,
            roster: leases
                .iter()
                .map(|lease| RosterLine {
                    lease: lease.clone(),
                    layers: None,
                })
                .collect(),
            prompt_from: Vec::new(),
            max_in_flight: 4,
            request_timeout: Millis(1),
            dtype: crate::topology::Dtype::Bf16,
        };
        let pipelines = [("p".parse().expect("a name"), share)].into();
        state.resources.insert(
            Address::Delivery(lease.clone()),
            on(
                Spec::Delivery(Box::new(DeliverySpec {
                    pipelines,
                    relay: None,
                })),
                None,
            ),
        );
    }
    let pipeline = PipelineSpec {
        stages: leases,
        prompt: String::new(),
        max_tokens: 1,
        expect: None,
        request_timeout: Millis(1),
    };
    state.resources.insert(
        address("pipeline.p"),
        on(Spec::Pipeline(Box::new(pipeline)), None),
    );
    state
}

fn moved(state: &State, from: &str, to: &str) -> Result<State, SurgeryError> {
    let edits = state.moves(&range(from), &range(to))?;
    state.after(&edits)
}

#[test]
fn a_moved_table_takes_all_that_names_it_along_and_keeps_its_machines() {
    let before = state(2);
    let after = moved(&before, "lease.a", "lease.b").expect("nothing is in the way");
    let text = serde_json::to_string(&after.resources).expect("plain data");
    assert!(
        !text.contains("lease.a[") || text.contains("made_for"),
        "{text}"
    );
    for i in 0..2 {
        let to = address(&format!("lease.b[{i}]"));
        let recorded = &after.resources[&to];
        assert_eq!(recorded.made_for, Some(lease(&format!("lease.a[{i}]"))));
        let held = after.lease(to.lease().expect("a lease")).expect("held");
        assert_eq!(held.machine.to_string(), format!("m{i}"));
        assert!(
            after
                .resources
                .contains_key(&address(&format!("delivery.b[{i}]")))
        );
    }
    assert!(!after.is_held(&lease("lease.a[0]")));
    let back = moved(&after, "lease.b", "lease.a").expect("nothing is in the way");
    let recorded = &back.resources[&address("lease.a[0]")];
    assert_eq!(recorded.made_for, None, "it is what it was made for again");
    assert_eq!(recorded.generation, Generation(2), "no number twice");
}

#[test]
fn moves_at_once_may_form_a_chain_and_a_ring() {
    let before = state(2);
    let edit = |from: &str, to: &str| Edit::Move {
        from: lease(from),
        to: lease(to),
    };
    let chain = [
        edit("lease.a[0]", "lease.a[1]"),
        edit("lease.a[1]", "lease.z[0]"),
    ];
    let after = before.after(&chain).expect("each place is free by then");
    assert_eq!(
        after
            .lease(&lease("lease.a[1]"))
            .expect("held")
            .machine
            .as_str(),
        "m0"
    );
    assert_eq!(
        after
            .lease(&lease("lease.z[0]"))
            .expect("held")
            .machine
            .as_str(),
        "m1"
    );
    let ring = [
        edit("lease.a[0]", "lease.a[1]"),
        edit("lease.a[1]", "lease.a[0]"),
    ];
    let after = before.after(&ring).expect("they change places");
    assert_eq!(
        after
            .lease(&lease("lease.a[0]"))
            .expect("held")
            .machine
            .as_str(),
        "m1"
    );
}

#[test]
fn what_is_in_the_way_is_refused_and_what_is_done_is_not_done_twice() {
    let before = state(2);
    assert!(matches!(
        moved(&before, "lease.a[0]", "lease.a[1]"),
        Err(SurgeryError::Both { .. })
    ));
    assert!(matches!(
        moved(&before, "lease.a", "lease.b[1]"),
        Err(SurgeryError::Uneven { .. })
    ));
    let edits = before
        .moves(&range("lease.a"), &range("lease.b"))
        .expect("even");
    let after = before.after(&edits).expect("nothing is in the way");
    assert_eq!(after.edited(&edits, at()), Ok(vec![]), "again");
    let nothing = Edit::Move {
        from: lease("lease.q[0]"),
        to: lease("lease.r[0]"),
    };
    assert!(matches!(
        after.edited(&[nothing], at()),
        Err(SurgeryError::Missing(_))
    ));
}

#[test]
fn a_lease_that_is_taken_out_is_remembered_with_its_machine() {
    let before = state(2);
    let edit = Edit::Remove {
        lease: lease("lease.a[1]"),
    };
    let after = before
        .after(std::slice::from_ref(&edit))
        .expect("it is there");
    let left: Vec<String> = after.existing().map(|(a, _)| a.to_string()).collect();
    assert_eq!(
        left,
        ["lease.a[0]", "delivery.a[0]"],
        "the pipeline needs both"
    );
    assert_eq!(after.ended[0].receipt.machine.as_str(), "m1");
    assert!(after.ended[0].why.contains("may go on billing"));
}

#[test]
fn going_back_brings_back_what_was_lost_and_forgets_no_machine() {
    let then = state(2);
    let edits = [
        Edit::Move {
            from: lease("lease.a[0]"),
            to: lease("lease.b[0]"),
        },
        Edit::Remove {
            lease: lease("lease.a[1]"),
        },
    ];
    let mut now = then.after(&edits).expect("it can be done");
    let new = address("lease.new[0]");
    now.resources.insert(new.clone(), held(&new, 1, "m9"));
    let surgery = now.back_to(&then, &BTreeSet::new(), at());
    let mut back = now.clone();
    for record in &surgery.records {
        back.apply_edit(record);
    }
    let left: Vec<String> = back.existing().map(|(a, _)| a.to_string()).collect();
    assert_eq!(
        left,
        [
            "lease.a[0]",
            "lease.a[1]",
            "lease.new[0]",
            "delivery.a[0]",
            "delivery.a[1]",
            "pipeline.p"
        ]
    );
    assert!(
        surgery
            .notes
            .iter()
            .any(|note| note.contains("lease.new[0] stays"))
    );
    let gone = ["m1".parse().expect("an id")].into();
    let surgery = now.back_to(&then, &gone, at());
    let mut back = now.clone();
    for record in &surgery.records {
        back.apply_edit(record);
    }
    assert!(!back.is_held(&lease("lease.a[1]")), "its machine is gone");
    assert!(surgery.notes.iter().any(|note| note.contains("m1 is gone")));
}

#[test]
fn only_a_machine_of_this_state_that_nobody_holds_is_imported() {
    let mut state = state(1);
    let spec = LeaseSpec {
        terms: Vec::new(),
        memory: Bytes(0),
        disk: Bytes(0),
        files: None,
        idle_timeout: Millis::NEVER,
        max_lifetime: Millis::NEVER,
        acquire_timeout: None,
        protect: false,
        attempts: 5,
        wait_for_capacity: None,
        gang: false,
        gang_timeout: None,
        same: None,
        spread: None,
        setup: None,
        mounts: Vec::new(),
    };
    let receipt = |machine: &str, lineage: &Lineage| {
        let made = held(&address("lease.old[0]"), 3, machine);
        let Some(Receipt::Lease(mut receipt)) = made.receipt else {
            panic!("it has one");
        };
        receipt.request_key =
            RequestKey::derive(lineage, &address("lease.old[0]"), Generation(3), Attempt(1));
        *receipt
    };
    let import = |to: &str, receipt: LeaseReceipt| Imported {
        lease: lease(to),
        spec: spec.clone(),
        receipt,
        boots_free: false,
        made_for: Some(lease("lease.old[0]")),
    };
    let other = import("lease.b[0]", receipt("m5", &Lineage([8; 16])));
    assert!(matches!(
        state.import(other, at()),
        Err(SurgeryError::Foreign { .. })
    ));
    let known = import("lease.b[0]", receipt("m0", &LINEAGE));
    assert!(matches!(
        state.import(known, at()),
        Err(SurgeryError::Known { .. })
    ));
    let taken = import("lease.a[0]", receipt("m5", &LINEAGE));
    assert!(matches!(
        state.import(taken, at()),
        Err(SurgeryError::Taken(_))
    ));
    let good = import("lease.b[0]", receipt("m5", &LINEAGE));
    let records = state.import(good, at()).expect("it is ours and nobody's");
    state.apply_edit(&records[0]);
    let recorded = &state.resources[&address("lease.b[0]")];
    assert_eq!(recorded.generation, Generation(3));
    assert_eq!(state.next_generation(&address("lease.b[0]")), Generation(4));
}
