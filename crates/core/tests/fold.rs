//! The fold of the journal: what each record does to the state, and what it never forgets.

use stageline_core::id::{
    Address, Attempt, Epoch, Fingerprint, Generation, JournalNumber, LeaseId, Lineage, Name, Nonce,
    OperatorId, PlanId, RequestKey, WriterId,
};
use stageline_core::journal::{Entry, EntryError, FORMAT, Launch, Record, Verb};
use stageline_core::offer::{Place, QuoteId};
use stageline_core::resource::{Cause, FailureClass, LeaseLimits, LeaseReceipt, Receipt};
use stageline_core::state::{
    Billed, CONSUMED_MAX, ENDED_MAX, Edit, FoldError, Lapse, Limit, State, SurgeryError,
};
use stageline_core::topology::{Bidding, OnInterrupt};
use stageline_core::unit::{MicroDollars, Millis, Timestamp};

const AT: Timestamp = Timestamp::UNIX_EPOCH;
const LINEAGE: Lineage = Lineage([1; 16]);
const PRICE: MicroDollars = MicroDollars(100_000);
const CEILING: MicroDollars = MicroDollars(250_000);

/// A journal that is folded while it is written.
struct Fold {
    state: State,
    n: JournalNumber,
    epoch: Epoch,
    entries: Vec<Entry>,
}

impl Fold {
    /// After the first record and the begin of a run.
    fn begun() -> Self {
        let mut fold = Self {
            state: State::default(),
            n: JournalNumber(0),
            epoch: Epoch(0),
            entries: Vec::new(),
        };
        fold.run(None, true);
        fold
    }

    fn run(&mut self, plan: Option<PlanId>, first: bool) {
        self.epoch = Epoch(self.n.0 + 1);
        let genesis = Record::Genesis {
            lineage: LINEAGE,
            operator: OperatorId([2; 32]),
            topology: name("demo"),
            at: AT,
        };
        let begin = Record::Begin {
            command: "apply".to_owned(),
            plan,
            by: "ada@engine".to_owned(),
            at: AT,
            boot: None,
        };
        let mut records = vec![begin];
        if first {
            records.insert(0, genesis);
        }
        self.say(records).expect("it may begin");
    }

    fn say(&mut self, records: Vec<Record>) -> Result<(), FoldError> {
        let entry = Entry {
            format: FORMAT,
            n: self.n.next(),
            prev: Fingerprint([0; 32]),
            epoch: self.epoch,
            writer: WriterId([3; 16]),
            nonce: Nonce([4; 16]),
            records,
        };
        self.state.apply(&entry)?;
        self.n = entry.n;
        self.entries.push(entry);
        Ok(())
    }

    fn check(&mut self, record: Record) -> &State {
        self.say(vec![record]).expect("it can follow");
        &self.state
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn gpu() -> Address {
    "lease.gpu[0]".parse().expect("an address")
}

fn key(generation: u32, attempt: u32) -> RequestKey {
    RequestKey::derive(&LINEAGE, &gpu(), Generation(generation), Attempt(attempt))
}

fn started(generation: u32, attempt: u32) -> Record {
    Record::Started {
        address: gpu(),
        generation: Generation(generation),
        verb: Verb::Acquire,
        launch: Some(Box::new(Launch {
            attempt: Attempt(attempt),
            request_key: key(generation, attempt),
            provider: name("vast"),
            provider_kind: "vastai".to_owned(),
            account: None,
            offer: name("cheap"),
            quote: QuoteId("17".to_owned()),
            price_per_hour: PRICE,
            boots_free: false,
            reservation: CEILING,
            limits: None,
            place: Place::default(),
        })),
        on: None,
        at: AT,
    }
}

fn done(generation: u32, verb: Verb, receipt: Option<Receipt>) -> Record {
    Record::Done {
        address: gpu(),
        generation: Generation(generation),
        verb,
        step: None,
        spec: None,
        receipt: receipt.map(Box::new),
        at: AT,
    }
}

fn acquired(generation: u32, attempt: u32) -> Record {
    let receipt = LeaseReceipt {
        provider: name("vast"),
        provider_kind: "vastai".to_owned(),
        account: None,
        offer: name("cheap"),
        quote: QuoteId("17".to_owned()),
        machine: format!("m-{generation}-{attempt}").parse().expect("an id"),
        request_key: key(generation, attempt),
        price_per_hour: PRICE,
        created_at: AT,
        place: Place::default(),
        ready: None,
    };
    let receipt = Receipt::Lease(Box::new(receipt));
    done(generation, Verb::Acquire, Some(receipt))
}

fn cause() -> Cause {
    Cause::new(FailureClass::Unknown, "no answer")
}

fn refused(attempt: Option<u32>) -> Record {
    Record::Refused {
        address: gpu(),
        generation: Generation(1),
        verb: Verb::Acquire,
        attempt: attempt.map(Attempt),
        cause: cause(),
        at: AT,
    }
}

fn in_doubt(attempt: u32) -> Record {
    Record::InDoubt {
        address: gpu(),
        generation: Generation(1),
        verb: Verb::Acquire,
        attempt: Some(Attempt(attempt)),
        cause: cause(),
        at: AT,
    }
}

fn absent(attempt: u32) -> Record {
    Record::Absent {
        address: gpu(),
        generation: Generation(1),
        attempt: Attempt(attempt),
        at: AT,
    }
}

fn vanished(generation: u32) -> Record {
    Record::Vanished {
        address: gpu(),
        generation: Generation(generation),
        why: "the listing of noon has no such machine".to_owned(),
        at: AT,
    }
}

/// The tries of the lease that may still cost money.
fn open_tries(state: &State) -> Vec<u32> {
    let recorded = state.resources.get(&gpu());
    recorded.map_or_else(Vec::new, |recorded| {
        recorded.attempts.keys().map(|attempt| attempt.0).collect()
    })
}

#[test]
fn a_try_counts_at_its_ceiling_until_it_is_closed_and_at_its_price_once_it_is_held() {
    let mut fold = Fold::begun();
    let state = fold.check(started(1, 1));
    assert_eq!(
        (state.committed_per_hour(), open_tries(state)),
        (CEILING, vec![1])
    );
    let state = fold.check(in_doubt(1));
    assert_eq!(state.committed_per_hour(), CEILING);
    assert_eq!(
        state.resources[&gpu()].attempts[&Attempt(1)].cause,
        Some(cause())
    );
    let state = fold.check(acquired(1, 1));
    assert_eq!(
        (state.committed_per_hour(), open_tries(state)),
        (PRICE, vec![])
    );
    assert!(state.resources[&gpu()].pending.is_none());
}

#[test]
fn a_receipt_closes_its_own_try_only() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(in_doubt(1));
    fold.check(started(1, 2));
    let state = fold.check(acquired(1, 2));
    assert_eq!(open_tries(state), [1], "the first may still make a machine");
    assert!(state.resources[&gpu()].is_unresolved());
    assert_eq!(state.committed_per_hour(), PRICE.saturating_add(CEILING));
    let state = fold.check(absent(1));
    assert_eq!(open_tries(state), Vec::<u32>::new());
    assert!(state.resources[&gpu()].exists());
}

#[test]
fn a_refused_try_is_closed_and_its_number_stays_used() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    let state = fold.check(refused(Some(1)));
    assert!(state.is_empty(), "nothing exists");
    assert_eq!(state.committed_per_hour(), MicroDollars::ZERO);
    assert_eq!(state.resources[&gpu()].last_attempt, Attempt(1));
    fold.check(started(1, 2));
    let state = fold.check(refused(Some(2)));
    assert_eq!(state.resources[&gpu()].last_attempt, Attempt(2));
}

#[test]
fn a_refused_step_that_is_no_try_leaves_the_resource_and_its_cause() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    fold.check(Record::Started {
        address: gpu(),
        generation: Generation(1),
        verb: Verb::Await,
        launch: None,
        on: None,
        at: AT,
    });
    let state = fold.check(refused(None));
    let recorded = &state.resources[&gpu()];
    assert!(recorded.receipt.is_some());
    let pending = recorded
        .pending
        .as_ref()
        .expect("it is not as it should be");
    assert_eq!(
        (pending.verb, &pending.cause),
        (Verb::Await, &Some(cause()))
    );
}

#[test]
fn what_is_released_or_vanished_is_remembered_as_ended() {
    for end in [done(1, Verb::Release, None), vanished(1)] {
        let mut fold = Fold::begun();
        fold.check(started(1, 1));
        fold.check(acquired(1, 1));
        let state = fold.check(end);
        assert!(state.resources.is_empty());
        assert_eq!(state.ended.len(), 1);
        assert_eq!(state.ended[0].receipt.machine.as_str(), "m-1-1");
        assert_eq!(state.next_generation(&gpu()), Generation(2), "no key twice");
    }
}

#[test]
fn a_new_generation_waits_until_the_one_before_is_gone() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    let error = fold.say(vec![started(2, 1)]).expect_err("one may exist");
    assert!(matches!(error, FoldError::Impossible { .. }), "{error}");
    assert_eq!(open_tries(&fold.state), [1]);
    fold.check(acquired(1, 1));
    fold.check(vanished(1));
    let state = fold.check(started(2, 1));
    assert_eq!(state.resources[&gpu()].generation, Generation(2));
}

#[test]
fn late_news_of_another_generation_change_nothing() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    fold.check(vanished(1));
    let before = fold.check(started(2, 1)).clone();
    for late in [
        refused(Some(1)),
        in_doubt(1),
        absent(1),
        vanished(1),
        done(1, Verb::Release, None),
    ] {
        let state = fold.check(late.clone());
        assert_eq!(*state, before, "{late:?}");
    }
}

#[test]
fn only_the_last_run_may_speak() {
    let mut fold = Fold::begun();
    let old = fold.epoch;
    fold.run(None, false);
    let new = std::mem::replace(&mut fold.epoch, old);
    let error = fold.say(vec![started(1, 1)]).expect_err("it is fenced");
    assert!(
        matches!(error, FoldError::ClosedEpoch { found, current, .. } if found == old && current == new),
        "{error}"
    );
    assert!(fold.state.resources.is_empty());
    // An entry that begins a run carries its own number.
    fold.epoch = Epoch(77);
    let begin = Record::Begin {
        command: "apply".to_owned(),
        plan: None,
        by: String::new(),
        at: AT,
        boot: None,
    };
    assert!(fold.say(vec![begin]).is_err());
}

#[test]
fn there_is_one_first_record() {
    let mut fold = Fold::begun();
    let genesis = fold.entries[0].records[0].clone();
    assert!(fold.say(vec![genesis]).is_err());
    assert_eq!(
        fold.state.genesis.as_ref().expect("the first").lineage,
        LINEAGE
    );
}

#[test]
fn a_plan_is_finished_by_the_end_of_its_own_run() {
    let plan = PlanId([7; 16]);
    let mut fold = Fold::begun();
    fold.run(Some(plan), false);
    assert!(!fold.state.consumed[&plan].finished);
    let end = |finished| Record::End { finished, at: AT };
    let state = fold.check(end(false));
    assert!(!state.consumed[&plan].finished && !state.run.as_ref().expect("it").open);
    fold.run(None, false);
    let state = fold.check(end(true));
    assert!(
        !state.consumed[&plan].finished,
        "another run's end is not its end"
    );
    fold.run(Some(plan), false);
    assert!(fold.check(end(true)).consumed[&plan].finished);
}

#[test]
fn memories_have_a_limit_and_the_oldest_go_first() {
    let mut fold = Fold::begun();
    let count = u32::try_from(ENDED_MAX + 5).expect("small");
    for generation in 1..=count {
        fold.check(started(generation, 1));
        fold.check(acquired(generation, 1));
        fold.check(vanished(generation));
    }
    assert_eq!(fold.state.ended.len(), ENDED_MAX);
    assert_eq!(fold.state.ended[0].generation, Generation(6));
    let plan = |n: u16| {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&n.to_be_bytes());
        PlanId(id)
    };
    let count = u16::try_from(CONSUMED_MAX + 5).expect("small");
    // In descending order of their ids, so that age and id differ.
    for n in (0..count).rev() {
        fold.run(Some(plan(n)), false);
    }
    assert_eq!(fold.state.consumed.len(), CONSUMED_MAX);
    assert!(fold.state.consumed.contains_key(&plan(0)));
    assert!(!fold.state.consumed.contains_key(&plan(count - 1)));
}

#[test]
fn a_plan_goes_stale_by_what_exists_and_not_by_a_run_that_changes_nothing() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    let before = fold.state.projection();
    fold.run(None, false);
    fold.check(Record::End {
        finished: true,
        at: AT,
    });
    assert_eq!(fold.state.projection(), before);
    fold.check(Record::ExtraReleased {
        price_per_hour: None,
        address: gpu(),
        machine: "m-9".parse().expect("an id"),
        at: AT,
    });
    assert_eq!(fold.state.projection(), before);
    fold.run(None, false);
    let doubtful = fold.check(started(1, 2)).projection();
    assert_ne!(doubtful, before, "a doubt is news");
    assert_eq!(
        fold.check(absent(2))
            .lease(&lease())
            .map(|lease| lease.price_per_hour),
        Some(PRICE)
    );
}

fn lease() -> LeaseId {
    "lease.gpu[0]".parse().expect("a lease")
}

/// Stored at any point and read back, the state goes on as if it had never been stored: that is what snapshots rest on.
#[test]
fn a_state_that_was_stored_at_any_point_ends_the_same() {
    let mut fold = Fold::begun();
    for record in [
        started(1, 1),
        in_doubt(1),
        started(1, 2),
        acquired(1, 2),
        absent(1),
        vanished(1),
        started(2, 1),
        acquired(2, 1),
    ] {
        fold.check(record);
    }
    fold.run(Some(PlanId([7; 16])), false);
    fold.check(Record::End {
        finished: true,
        at: AT,
    });
    let mut state = State::default();
    for entry in &fold.entries {
        let bytes = entry.encode();
        let read = Entry::decode(&bytes).expect("it was written by us");
        assert_eq!(read, *entry);
        state.apply(&read).expect("it was folded before");
        let text = serde_json::to_string(&state).expect("plain data");
        state = serde_json::from_str(&text).expect("it was stored by us");
    }
    assert_eq!(state, fold.state);
}

#[test]
fn bytes_that_are_no_entry_say_why() {
    let entry = &Fold::begun().entries[0];
    let bytes = entry.encode();
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert_eq!(
            Entry::decode(&bytes[..cut]),
            Err(EntryError::Torn { bytes: cut })
        );
    }
    let newer = Entry {
        format: FORMAT + 1,
        ..entry.clone()
    };
    assert_eq!(
        Entry::decode(&newer.encode()),
        Err(EntryError::Newer { found: FORMAT + 1 })
    );
    let strange = b"{\"format\":9,\"records\":[{\"record\":\"teleported\"}]}\n";
    assert_eq!(Entry::decode(strange), Err(EntryError::Newer { found: 9 }));
    let broken = b"{\"format\":1,\"records\":[{\"record\":\"teleported\"}]}\n";
    assert!(matches!(Entry::decode(broken), Err(EntryError::Invalid(_))));
}

#[test]
fn a_start_says_where_and_one_of_before_is_still_read() {
    let stage: Address = "stage.llama[0]".parse().expect("an address");
    let started = |on: &str| {
        let text = format!(
            r#"{{"record":"started","address":"stage.llama[0]","generation":1,"verb":"start"{on},"at":"2026-01-02T03:04:05Z"}}"#
        );
        serde_json::from_str::<Record>(&text).expect("a record")
    };
    for (on, expected) in [
        (r#","on":"lease.gpu[1]""#, Some("lease.gpu[1]")),
        ("", None),
    ] {
        let mut fold = Fold::begun();
        fold.check(started(on));
        let recorded = &fold.state.resources[&stage];
        assert_eq!(recorded.on().map(ToString::to_string).as_deref(), expected);
        assert!(recorded.exists(), "it may run");
    }
}

#[test]
fn dates_are_written_like_this_and_an_account_of_before_has_none() {
    let dated = r#"{"record":"dated","address":"lease.gpu[0]","machine":"m","price_per_hour":5,"dates":{"from":"2026-01-02T03:04:05Z","to":"2026-01-02T03:04:06Z","over":true},"at":"2026-01-02T05:00:00Z"}"#;
    let record: Record = serde_json::from_str(dated).expect("a record");
    assert_eq!(serde_json::to_string(&record).expect("plain data"), dated);
    let billed = r#"{"before":{"least":0,"most":0},"since":"2026-01-02T03:04:05Z","maybe_since":"2026-01-02T03:04:05Z","seen":"2026-01-02T03:04:06Z"}"#;
    let account: Billed = serde_json::from_str(billed).expect("an account");
    assert_eq!(account.dated, None);
    assert_eq!(serde_json::to_string(&account).expect("plain data"), billed);
}

#[test]
fn the_stored_form_and_the_plain_one_read_to_the_same_state() {
    let mut fold = Fold::begun();
    let read = |fold: &Fold| {
        let stored = serde_json::to_vec(&fold.state.stored()).expect("plain data");
        let plain = serde_json::to_vec(&fold.state).expect("plain data");
        for bytes in [&stored, &plain] {
            let read: State = serde_json::from_slice(bytes).expect("it was written so");
            assert_eq!(read, fold.state);
            assert_eq!(read.projection(), fold.state.projection());
        }
    };
    for record in [started(1, 1), acquired(1, 1), started(1, 2)] {
        fold.check(record);
        read(&fold);
    }
    // Numbers that no resource has, and a resource without one.
    let other: Address = "lease.gpu[1]".parse().expect("an address");
    fold.state.generations.insert(other, Generation(4));
    read(&fold);
    fold.state.generations.clear();
    read(&fold);
    let bytes = serde_json::to_string(&fold.state.stored()).expect("plain data");
    let broken = bytes.replace("\"bought\":0", "\"bought\":7");
    assert_ne!(bytes, broken);
    let error = serde_json::from_str::<State>(&broken).expect_err("there is one row");
    assert!(error.to_string().contains("place 7"), "{error}");
}

fn gave_up(attempt: u32) -> Record {
    let Record::Started {
        launch: Some(launch),
        ..
    } = started(1, attempt)
    else {
        panic!("a launch");
    };
    Record::GaveUp {
        address: gpu(),
        generation: Generation(1),
        launch,
        cause: cause(),
        noted: true,
        at: AT,
    }
}

#[test]
fn a_machine_that_is_given_up_counts_until_it_is_proven_gone() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    let state = fold.check(gave_up(1));
    let recorded = &state.resources[&gpu()];
    assert_eq!((&recorded.receipt, recorded.machines()), (&None, 1));
    assert_eq!(state.committed_per_hour(), CEILING);
    assert!(recorded.attempts[&Attempt(1)].leaving.is_some());
    assert_eq!(state.bad.len(), 1);
    fold.check(started(1, 2));
    let state = fold.check(acquired(1, 2));
    let sum = PRICE.saturating_add(CEILING);
    assert_eq!(state.committed_per_hour(), sum);
    assert_eq!(state.resources[&gpu()].machines(), 2);
    assert_eq!(state.ended, []);
    let state = fold.check(absent(1));
    assert_eq!(state.committed_per_hour(), PRICE);
    assert_eq!(state.ended.len(), 1, "it is in the history");
    assert!(state.resources[&gpu()].tried[&Attempt(1)].made);
}

fn lapsed(generation: u32) -> Record {
    Record::Lapsed {
        address: gpu(),
        generation: Generation(generation),
        limit: Limit::Idle,
        why: "no work for 20m".to_owned(),
        at: AT,
        spot: None,
    }
}

#[test]
fn limits_are_in_force_from_the_first_intention_on() {
    let limits = LeaseLimits {
        idle_timeout: Millis::minutes(20),
        max_lifetime: Millis::minutes(720),
    };
    let mut fold = Fold::begun();
    let mut first = started(1, 1);
    if let Record::Started {
        launch: Some(launch),
        ..
    } = &mut first
    {
        launch.limits = Some(limits);
    }
    fold.check(first);
    assert_eq!(fold.state.limits_in_force(&lease()), Some(limits));
    let bytes = fold.entries.last().expect("one").encode();
    let read = Entry::decode(&bytes).expect("it reads what it wrote");
    assert_eq!(Some(&read), fold.entries.last());
    let mut before = Fold::begun();
    before.check(started(1, 1));
    let bytes = before.entries.last().expect("one").encode();
    assert!(!String::from_utf8_lossy(&bytes).contains("limits"));
    Entry::decode(&bytes).expect("an entry of before is read");
    assert_eq!(before.state.limits_in_force(&lease()), None);
}

#[test]
fn a_lapsed_lease_stays_ended_until_a_new_machine_of_it_is_started() {
    let mut fold = Fold::begun();
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    let before = fold.state.projection();
    fold.check(lapsed(1));
    assert_ne!(fold.state.projection(), before, "a plan of before is stale");
    fold.check(done(1, Verb::Release, None));
    let ended = fold.state.ended.last().expect("it ended");
    assert_eq!(ended.why, "idle_timeout: no work for 20m");
    let lapse = fold.state.lapse(&lease()).expect("it stays ended");
    assert_eq!(
        (lapse.generation, lapse.limit),
        (Generation(1), Limit::Idle)
    );
    let stored = serde_json::to_vec(&fold.state.stored()).expect("plain data");
    let read: State = serde_json::from_slice(&stored).expect("it reads what it wrote");
    assert_eq!(read, fold.state);
    fold.check(started(2, 1));
    assert_eq!(fold.state.lapse(&lease()), None);
}

/// A try that bids, or rents on demand.
fn tries(generation: u32, quote: &str) -> Record {
    let Record::Started {
        address,
        generation,
        verb,
        launch: Some(launch),
        on,
        at,
    } = started(generation, 1)
    else {
        panic!("a try was started")
    };
    let launch = Launch {
        quote: QuoteId(quote.to_owned()),
        ..*launch
    };
    Record::Started {
        address,
        generation,
        verb,
        launch: Some(Box::new(launch)),
        on,
        at,
    }
}

#[test]
fn that_a_machine_was_taken_away_counts_until_it_is_bid_for_again() {
    let bidding = |on_interrupt| Bidding {
        bid: None,
        on_interrupt,
    };
    for (on_interrupt, counts) in [
        (OnInterrupt::OnDemand, true),
        (OnInterrupt::Replace, false),
        (OnInterrupt::End, false),
    ] {
        let mut fold = Fold::begun();
        fold.check(started(1, 1));
        fold.check(acquired(1, 1));
        let spot = bidding(on_interrupt);
        fold.check(Record::Lapsed {
            address: gpu(),
            generation: Generation(1),
            limit: Limit::Interrupt,
            why: "somebody bids more".to_owned(),
            at: AT,
            spot: Some(spot),
        });
        fold.check(done(1, Verb::Release, None));
        let stored = serde_json::to_vec(&fold.state.stored()).expect("plain data");
        let read: State = serde_json::from_slice(&stored).expect("it reads what it wrote");
        assert_eq!(read, fold.state);
        let since = |fold: &Fold| fold.state.on_demand_since(&lease(), spot);
        assert_eq!(since(&fold), counts.then_some(AT), "{spot:?}");
        assert_eq!(
            fold.state.lapse(&lease()).map(Lapse::ends),
            Some(on_interrupt == OnInterrupt::End)
        );
        // Refused, cut off or done: it is on demand all the same.
        fold.check(tries(2, "17"));
        assert_eq!(since(&fold), counts.then_some(AT), "{spot:?}");
        fold.check(done(2, Verb::Release, None));
        assert_eq!(since(&fold), counts.then_some(AT), "{spot:?}");
        fold.check(tries(3, "17#bid"));
        assert_eq!(fold.state.lapse(&lease()), None, "{spot:?}");
    }
}

#[test]
fn a_lapse_is_said_once_and_taken_back_once() {
    let mut fold = Fold::begun();
    let lapse = [Edit::Lapse {
        lease: lease(),
        limit: Limit::Lifetime,
        why: "it is 12h old".to_owned(),
    }];
    assert_eq!(
        fold.state.edited(&lapse, AT),
        Ok(vec![]),
        "nothing is there"
    );
    fold.check(started(1, 1));
    fold.check(acquired(1, 1));
    let twice = [lapse[0].clone(), lapse[0].clone()];
    let faults = fold.state.edited(&twice, AT);
    assert_eq!(faults, Err(SurgeryError::Twice(lease())), "it ends once");
    let records = fold.state.edited(&lapse, AT).expect("it can be said");
    assert_eq!(records.len(), 1);
    fold.say(records).expect("it can follow");
    assert_eq!(fold.state.edited(&lapse, AT), Ok(vec![]), "it is said");
    let back = [Edit::Unlapse { lease: lease() }];
    let records = fold.state.edited(&back, AT).expect("it can be said");
    fold.say(records).expect("it can follow");
    assert_eq!(fold.state.lapse(&lease()), None);
    assert_eq!(fold.state.edited(&back, AT), Ok(vec![]), "it is taken back");
}
