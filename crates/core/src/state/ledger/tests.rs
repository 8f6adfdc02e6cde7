//! What the ledger counts: rates over spans, jumps of clocks, and states that an older stageline wrote.

use super::super::{Genesis, OpenAttempt};
use super::*;
use crate::id::{
    Attempt, EndpointKey, Epoch, Fingerprint, Generation, JournalNumber, Lineage, Nonce,
    OperatorId, RequestKey, WriterId,
};
use crate::journal::{Entry, FORMAT, Launch, Record, Verb};
use crate::offer::{Facts, QuoteId};
use crate::resource::{Contact, LeaseReady};
use crate::unit::Millis;

const LINEAGE: Lineage = Lineage([7; 16]);
/// 3.6 dollars an hour: a milli-dollar a second.
pub(super) const RATE: MicroDollars = MicroDollars(3_600_000);

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).expect("a time")
}

pub(super) fn lease() -> LeaseId {
    "lease.gpu[0]"
        .parse::<Address>()
        .expect("an address")
        .lease()
        .expect("a lease")
        .clone()
}

/// Folds records as one run after the other writes them.
pub(super) struct Story {
    pub(super) state: State,
    n: u64,
    /// Its provider bills from when a machine runs.
    boots_free: bool,
}

impl Story {
    pub(super) fn begun() -> Self {
        let state = State {
            genesis: Some(Genesis {
                lineage: LINEAGE,
                operator: OperatorId([1; 32]),
                topology: "test".parse().expect("a name"),
            }),
            ..State::default()
        };
        let mut story = Self {
            state,
            n: 0,
            boots_free: false,
        };
        story.begin(0, Some(("b", 0)));
        story
    }

    pub(super) fn say(&mut self, records: Vec<Record>) {
        self.n += 1;
        let begins = matches!(records[0], Record::Begin { .. });
        let epoch = if begins {
            Epoch(self.n)
        } else {
            self.state.run.as_ref().expect("a run").epoch
        };
        let entry = Entry {
            format: FORMAT,
            n: JournalNumber(self.n),
            prev: Fingerprint([0; 32]),
            epoch,
            writer: WriterId([3; 16]),
            nonce: Nonce([4; 16]),
            records,
        };
        self.state.apply(&entry).expect("it can follow");
    }

    pub(super) fn begin(&mut self, seconds: i64, boot: Option<(&str, u64)>) {
        self.say(vec![Record::Begin {
            command: "apply".to_owned(),
            plan: None,
            by: "ada".to_owned(),
            at: at(seconds),
            boot: boot.map(|(boot, up)| BootPoint {
                boot: boot.to_owned(),
                up: Millis::seconds(up),
            }),
        }]);
    }

    pub(super) fn started(&mut self, attempt: u32, seconds: i64) {
        let address = Address::Lease(lease());
        let (generation, attempt) = (Generation(1), Attempt(attempt));
        self.say(vec![Record::Started {
            address: address.clone(),
            generation,
            verb: Verb::Acquire,
            on: None,
            launch: Some(Box::new(Launch {
                attempt,
                request_key: RequestKey::derive(&LINEAGE, &address, generation, attempt),
                provider: "vast".parse().expect("a name"),
                provider_kind: "vastai".to_owned(),
                account: None,
                offer: "cheap".parse().expect("a name"),
                quote: QuoteId("17".to_owned()),
                price_per_hour: RATE,
                boots_free: self.boots_free,
                reservation: RATE.times(2),
                limits: None,
                place: crate::offer::Place::default(),
            })),
            at: at(seconds),
        }]);
    }

    pub(super) fn done(&mut self, verb: Verb, rate: Option<MicroDollars>, seconds: i64) {
        let address = Address::Lease(lease());
        let (generation, attempt) = (Generation(1), Attempt(1));
        let created_at = match self.state.lease(&lease()) {
            Some(held) => held.created_at,
            None => at(seconds),
        };
        let receipt = rate.map(|price_per_hour| {
            Box::new(Receipt::Lease(Box::new(LeaseReceipt {
                provider: "vast".parse().expect("a name"),
                provider_kind: "vastai".to_owned(),
                account: None,
                offer: "cheap".parse().expect("a name"),
                quote: QuoteId("17".to_owned()),
                machine: "m".parse().expect("an id"),
                request_key: RequestKey::derive(&LINEAGE, &address, generation, attempt),
                price_per_hour,
                created_at,
                place: crate::offer::Place::default(),
                ready: (verb == Verb::Await).then(|| LeaseReady {
                    facts: Facts::default().into(),
                    endpoint: EndpointKey([3; 32]),
                    contact: Contact::default(),
                }),
            })))
        });
        self.say(vec![Record::Done {
            address,
            generation,
            verb,
            step: None,
            spec: None,
            receipt,
            at: at(seconds),
        }]);
    }

    fn seen(&mut self, seconds: i64) {
        self.say(vec![Record::Seen {
            attempt: None,
            price_per_hour: None,
            address: Address::Lease(lease()),
            generation: Generation(1),
            at: at(seconds),
        }]);
    }

    /// Least and most in milli-dollars.
    pub(super) fn spent(&self, now: Timestamp, alive: bool) -> (u64, u64) {
        let total = self.state.ledger(now, |_| alive).total;
        (total.least.0 / 1000, total.most.0.div_ceil(1000))
    }
}

#[test]
fn a_machine_costs_its_rate_from_created_until_proven_gone() {
    let mut story = Story::begun();
    story.started(1, 10);
    story.done(Verb::Acquire, Some(RATE), 12);
    assert_eq!(story.spent(at(100), true), (88, 90), "seen just now");
    assert_eq!(story.spent(at(100), false), (0, 90), "nobody looked");
    story.seen(200);
    story.done(Verb::Release, None, 203);
    assert_eq!(story.spent(at(9999), false), (188, 193));
    let ended = &story.state.ended[0];
    assert_eq!(ended.spent.expect("an account").to_string(), "$0.19");
}

#[test]
fn a_machine_that_ended_by_itself_costs_until_it_was_seen_or_at_most_until_it_was_missed() {
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 0);
    story.done(Verb::Await, Some(RATE), 60);
    story.done(Verb::Release, None, 3600);
    assert_eq!(story.spent(at(9999), false), (60, 3600));
    assert_eq!(
        story.state.ledger(at(9999), |_| false).total.to_string(),
        "$0.06 to $3.60"
    );
}

#[test]
fn a_rate_that_moved_counts_low_and_high_since_the_machine_was_seen() {
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 0);
    story.done(Verb::Await, Some(RATE), 100);
    story.done(Verb::Record, Some(RATE.times(2)), 200);
    assert_eq!(
        story.spent(at(300), true),
        (100 + 100 + 200, 100 + 200 + 200)
    );
    // It is as old as before: a limit on its life does not begin anew.
    let recorded = story.state.resources.values().next().expect("the lease");
    assert_eq!(recorded.billed.expect("an account").born(), at(0));
    let json = serde_json::to_string(&story.state).expect("plain data");
    let read: State = serde_json::from_str(&json).expect("it reads what it writes");
    assert_eq!(read, story.state);
}

#[test]
fn a_machine_that_is_billed_from_when_it_runs_costs_its_boot_perhaps_and_the_rest_surely() {
    let mut story = Story::begun();
    story.boots_free = true;
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 2);
    story.seen(60);
    assert_eq!(story.spent(at(100), true), (0, 100), "it boots");
    let json = serde_json::to_string(&story.state).expect("plain data");
    let read: State = serde_json::from_str(&json).expect("it reads what it writes");
    assert_eq!(read, story.state);
    story.done(Verb::Record, Some(RATE.times(2)), 100);
    assert_eq!(story.spent(at(100), true), (0, 60 + 2 * 40));
    story.done(Verb::Await, Some(RATE.times(2)), 110);
    assert_eq!(story.spent(at(120), true), (20, 60 + 2 * 60));
    story.done(Verb::Release, None, 121);
    assert_eq!(story.spent(at(9999), false), (0, 60 + 2 * 61));
    let mut never = Story::begun();
    never.boots_free = true;
    never.started(1, 0);
    never.done(Verb::Acquire, Some(RATE), 0);
    never.seen(300);
    never.done(Verb::Release, None, 301);
    assert_eq!(never.spent(at(9999), false), (0, 301), "it never ran");
}

#[test]
fn an_open_try_may_cost_its_ceiling_and_a_closed_one_costs_nothing() {
    let mut story = Story::begun();
    story.started(1, 0);
    assert_eq!(story.spent(at(100), false), (0, 200));
    story.say(vec![Record::Absent {
        address: Address::Lease(lease()),
        generation: Generation(1),
        attempt: Attempt(1),
        at: at(200),
    }]);
    assert_eq!(story.spent(at(300), false), (0, 0));
}

#[test]
fn a_wall_clock_that_jumps_is_corrected_by_the_boot_time_of_the_same_boot() {
    for jump in [-7200, -30, 7200, 400_000_000] {
        let mut story = Story::begun();
        story.started(1, 0);
        story.done(Verb::Acquire, Some(RATE), 0);
        story.begin(jump + 100, Some(("b", 100)));
        story.seen(jump + 110);
        story.done(Verb::Release, None, jump + 110);
        assert_eq!(story.spent(at(0), false), (110, 110), "jump of {jump} s");
    }
}

#[test]
fn on_another_boot_the_wall_clock_is_believed_but_never_backwards() {
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 50);
    story.begin(-7200, Some(("another", 5)));
    story.seen(-7190);
    story.done(Verb::Release, None, -7190);
    assert_eq!(
        story.spent(at(0), false),
        (10, 60),
        "ten seconds after the last that is known"
    );
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 0);
    story.begin(500, None);
    assert_eq!(
        story.spent(story.state.ledger_now(at(600), None), true),
        (600, 600)
    );
}

#[test]
fn states_without_accounts_count_from_the_receipt() {
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 0);
    let recorded = story
        .state
        .resources
        .values_mut()
        .next()
        .expect("the lease");
    (recorded.billed, recorded.tried_since) = (None, None);
    assert_eq!(story.spent(at(100), true), (100, 100));
    let json = serde_json::to_string(&story.state).expect("plain data");
    let read: State = serde_json::from_str(&json).expect("it reads what it writes");
    assert_eq!(read, story.state);
    let old = OpenAttempt {
        launch: launch(),
        at: at(0),
        cause: None,
        counted_since: None,
        leaving: None,
        billed: None,
    };
    let recorded = story
        .state
        .resources
        .values_mut()
        .next()
        .expect("the lease");
    recorded.attempts.insert(Attempt(2), old);
    assert_eq!(story.spent(at(100), true), (100, 300));
}

fn launch() -> Launch {
    let address = Address::Lease(lease());
    Launch {
        attempt: Attempt(2),
        request_key: RequestKey::derive(&LINEAGE, &address, Generation(1), Attempt(2)),
        provider: "vast".parse().expect("a name"),
        provider_kind: "vastai".to_owned(),
        account: None,
        offer: "cheap".parse().expect("a name"),
        quote: QuoteId("17".to_owned()),
        price_per_hour: RATE,
        boots_free: false,
        reservation: RATE.times(2),
        limits: None,
        place: crate::offer::Place::default(),
    }
}
