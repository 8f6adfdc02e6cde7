//! Counting what others have, and which of two gives way.

use super::*;

const ONES: &str = "sl-0101010101010101-aabbccdd-g1a1";
const TWOS: &str = "sl-0202020202020202-aabbccdd-g1a1";
const FOURS: &str = "sl-0404040404040404-aabbccdd-g1a1";

fn vast() -> Name {
    "vast".parse().expect("a name")
}

fn marked(key: &str, price: Option<u64>) -> Marked {
    Marked {
        machine: key[3..5].parse().expect("an id"),
        key: key.parse().ok(),
        price_per_hour: price.map(MicroDollars),
    }
}

fn room(most: Option<u32>, total: Option<u64>, machines: Vec<Marked>) -> Room {
    Room {
        caps: Caps {
            max_leases: most,
            max_total_per_hour: total.map(MicroDollars),
        },
        beside: Ok(Beside { machines }),
    }
}

fn why(room: &Room, own: Own) -> String {
    refused(&vast(), room, own).map_or_else(String::new, |cause| cause.message)
}

#[test]
fn what_others_have_counts_and_what_has_no_price_is_never_nothing() {
    let own = Own::default().and(MicroDollars(400_000));
    let one = vec![marked(TWOS, Some(600_000))];
    assert_eq!(why(&room(Some(2), Some(1_000_000), one.clone()), own), "");
    let many = why(&room(Some(1), None, one.clone()), own);
    assert!(
        many.contains("2 machines") && many.contains("1 of them"),
        "{many}"
    );
    assert!(
        many.contains("(02)") && many.contains("max_leases is 1"),
        "{many}"
    );
    let dear = why(&room(None, Some(999_999), one), own);
    assert!(dear.contains("$1.00 per hour, $0.60 of it"), "{dear}");
    let untold = room(None, Some(9_000_000), vec![marked(TWOS, None)]);
    assert!(why(&untold, own).contains("has no price"));
    // Only money hangs on a price.
    assert_eq!(why(&room(Some(2), None, vec![marked(TWOS, None)]), own), "");
}

#[test]
fn an_account_that_cannot_be_seen_has_no_room() {
    let blind = Room {
        beside: Err(Cause::new(FailureClass::Auth, "the key was refused")),
        ..room(Some(9), None, Vec::new())
    };
    let cause = refused(&vast(), &blind, Own::default()).expect("it is refused");
    assert_eq!(cause.class, FailureClass::Unknown);
    assert!(cause.message.contains("the key was refused"));
}

/// A state that holds one machine by this name.
fn holding(key: &str) -> State {
    let launch = crate::journal::Launch {
        attempt: crate::id::Attempt(1),
        request_key: key.parse().expect("a key"),
        provider: vast(),
        provider_kind: "vastai".to_owned(),
        account: None,
        offer: "gpu".parse().expect("a name"),
        quote: crate::offer::QuoteId("7".to_owned()),
        price_per_hour: MicroDollars(400_000),
        boots_free: false,
        reservation: MicroDollars(500_000),
        limits: None,
        place: crate::offer::Place::default(),
    };
    let open = crate::state::OpenAttempt {
        launch,
        at: crate::unit::Timestamp::UNIX_EPOCH,
        cause: None,
        counted_since: None,
        leaving: None,
        billed: None,
    };
    let recorded = Recorded {
        generation: crate::id::Generation(1),
        spec: None,
        receipt: None,
        pending: None,
        attempts: BTreeMap::from([(crate::id::Attempt(1), open)]),
        last_attempt: crate::id::Attempt(1),
        tried_since: None,
        billed: None,
        made_for: None,
        tried: BTreeMap::new(),
    };
    let mut state = State::default();
    let lease: LeaseId = "lease.node[0]".parse().expect("a lease");
    state.resources.insert(Address::Lease(lease), recorded);
    state
}

#[test]
fn of_two_that_came_at_once_the_lower_name_stays_on_both_sides() {
    let judged = |own: &str, other: &str| {
        let key = own.parse().expect("a key");
        let room = room(Some(1), None, vec![marked(other, Some(1))]);
        judge(&vast(), &room, &holding(own), &key)
    };
    assert!(matches!(judged(ONES, TWOS), Verdict::Waits(_)));
    assert!(matches!(judged(TWOS, ONES), Verdict::Goes(_)));
    // A name that was cut is nobody's to compare with: whoever sees it gives way.
    let key = ONES.parse().expect("a key");
    let cut = Marked {
        key: None,
        ..marked(TWOS, Some(1))
    };
    let cut = room(Some(1), None, vec![cut]);
    assert!(matches!(
        judge(&vast(), &cut, &holding(ONES), &key),
        Verdict::Goes(_)
    ));
    // Three want two places.
    let three = |own: &str, others: [&str; 2]| {
        let key = own.parse().expect("a key");
        let others = others.map(|other| marked(other, Some(1))).to_vec();
        judge(&vast(), &room(Some(2), None, others), &holding(own), &key)
    };
    assert!(matches!(three(ONES, [TWOS, FOURS]), Verdict::Waits(_)));
    assert!(matches!(three(TWOS, [ONES, FOURS]), Verdict::Waits(_)));
    assert!(matches!(three(FOURS, [ONES, TWOS]), Verdict::Goes(_)));
    let alone = room(Some(1), None, Vec::new());
    let key = ONES.parse().expect("a key");
    assert_eq!(judge(&vast(), &alone, &holding(ONES), &key), Verdict::Fits);
}
