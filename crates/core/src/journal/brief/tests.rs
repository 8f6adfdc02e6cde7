//! Few words fold to the same state as many, or are not used.

use super::*;
use crate::id::{LeaseId, Lineage, Name, RequestKey};
use crate::journal::{Entry, FORMAT, Launch};
use crate::offer::QuoteId;
use crate::state::State;
use crate::unit::{Bytes, MicroDollars, Millis};

const AT: Timestamp = Timestamp::UNIX_EPOCH;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn lease(index: u32) -> Address {
    Address::Lease(LeaseId {
        name: name("box"),
        index,
    })
}

fn spec(memory: u64) -> Spec {
    Spec::Lease(
        LeaseSpec {
            terms: Vec::new(),
            memory: Bytes(memory),
            disk: Bytes::gib(20),
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
        }
        .into(),
    )
}

fn key(index: u32) -> RequestKey {
    RequestKey::derive(&Lineage([1; 16]), &lease(index), Generation(1), Attempt(1))
}

fn started(index: u32) -> Record {
    Record::Started {
        address: lease(index),
        generation: Generation(1),
        verb: Verb::Acquire,
        launch: Some(Box::new(Launch {
            attempt: Attempt(1),
            request_key: key(index),
            provider: name("here"),
            provider_kind: "sim".to_owned(),
            offer: name("any"),
            account: None,
            quote: QuoteId("q".to_owned()),
            price_per_hour: MicroDollars(7),
            boots_free: false,
            reservation: MicroDollars(9),
            limits: None,
            place: Place::default(),
        })),
        on: None,
        at: AT,
    }
}

fn receipt(index: u32, cpus: Option<u32>) -> LeaseReceipt {
    LeaseReceipt {
        provider: name("here"),
        provider_kind: "sim".to_owned(),
        offer: name("any"),
        account: None,
        quote: QuoteId("q".to_owned()),
        machine: format!("m-{index}").parse().expect("an id"),
        request_key: key(index),
        price_per_hour: MicroDollars(7),
        created_at: AT,
        place: Place::default(),
        ready: cpus.map(|cpus| LeaseReady {
            facts: Facts {
                cpus,
                ..Facts::default()
            }
            .into(),
            endpoint: EndpointKey([3; 32]),
            contact: Contact::default(),
        }),
    }
}

fn done(index: u32, verb: Verb, spec: Spec, receipt: LeaseReceipt) -> Record {
    Record::Done {
        address: lease(index),
        generation: Generation(1),
        verb,
        step: Some(StepId(4)),
        spec: Some(Box::new(spec)),
        receipt: Some(Box::new(Receipt::Lease(Box::new(receipt)))),
        at: AT,
    }
}

fn fold(state: &mut State, record: Record) {
    let entry = Entry {
        format: FORMAT,
        n: crate::id::JournalNumber(1),
        prev: crate::id::Fingerprint([0; 32]),
        epoch: crate::id::Epoch(0),
        writer: crate::id::WriterId([0; 16]),
        nonce: crate::id::Nonce([0; 16]),
        records: vec![record],
    };
    let read = Entry::decode(&entry.encode()).expect("it was written so");
    state.apply(&read).expect("it can follow");
}

/// Folds the record as it is into one state and in few words into another, which must stay equal. Returns the few words.
fn both(plain: &mut State, short: &mut State, record: Record) -> Record {
    let brief = shorten(
        record.clone(),
        |address| short.resources.get(address),
        Some(&lease(0)),
    );
    fold(plain, record);
    fold(short, brief.clone());
    assert_eq!(plain, short);
    brief
}

#[test]
fn the_second_machine_of_a_kind_is_said_in_few_words_and_folds_to_the_same() {
    let (mut plain, mut short) = (State::default(), State::default());
    for index in 0..3 {
        both(&mut plain, &mut short, started(index));
        let made = done(index, Verb::Acquire, spec(0), receipt(index, None));
        let Record::DoneBriefly(made) = both(&mut plain, &mut short, made) else {
            panic!("all but the machine is known");
        };
        assert_eq!(made.spec.is_none(), index > 0);
        assert_eq!(made.created_at, None);
        let ready = done(index, Verb::Await, spec(0), receipt(index, Some(2)));
        let Record::DoneBriefly(ready) = both(&mut plain, &mut short, ready) else {
            panic!("all but the facts is known");
        };
        assert_eq!(ready.spec_of, Some(lease(index)));
        let facts = ready.ready.expect("it is ready");
        assert_eq!(facts.facts_of, (index > 0).then(|| lease(0)));
    }
}

#[test]
fn what_differs_is_written_whole() {
    let (mut plain, mut short) = (State::default(), State::default());
    both(&mut plain, &mut short, started(0));
    let dearer = LeaseReceipt {
        price_per_hour: MicroDollars(8),
        ..receipt(0, None)
    };
    let record = done(0, Verb::Acquire, spec(0), dearer);
    let same = both(&mut plain, &mut short, record.clone());
    assert_eq!(same, record, "the try has another price");
    both(&mut plain, &mut short, started(1));
    let record = done(1, Verb::Acquire, spec(1), receipt(1, None));
    let Record::DoneBriefly(brief) = both(&mut plain, &mut short, record) else {
        panic!("the try is known");
    };
    assert!(brief.spec.is_some(), "the first has another spec");
    let record = done(1, Verb::Await, spec(1), receipt(1, Some(2)));
    let Record::DoneBriefly(brief) = both(&mut plain, &mut short, record) else {
        panic!("the machine is known");
    };
    assert!(brief.ready.expect("it is ready").facts.is_some());
}

#[test]
fn a_name_that_leads_nowhere_is_refused() {
    let (mut plain, mut short) = (State::default(), State::default());
    both(&mut plain, &mut short, started(0));
    let made = done(0, Verb::Acquire, spec(0), receipt(0, None));
    let Record::DoneBriefly(brief) = both(&mut plain, &mut short, made) else {
        panic!("the try is known");
    };
    for broken in [
        Brief {
            spec_of: Some(lease(7)),
            ..(*brief).clone()
        },
        Brief {
            attempt: Some(Attempt(2)),
            ..(*brief).clone()
        },
    ] {
        assert!(
            broken
                .whole(|address| short.resources.get(address))
                .is_err()
        );
    }
}
