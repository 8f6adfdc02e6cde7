//! Writing: rules 3 to 10, and what a run may begin on.

use std::sync::atomic::{AtomicUsize, Ordering};

use stageline_core::state::FoldError;

use super::*;
use crate::store::testing::{Gate, Verb as Ask};

mod runs;

fn entry_path(n: u64) -> String {
    numbered(JOURNAL, JournalNumber(n)).to_string()
}

/// Gives one request its fate, the first time that it is seen.
fn once(verb: Ask, path: String, fate: Fate) -> impl Fn(&Request) -> Fate + Send + Sync {
    let seen = AtomicUsize::new(0);
    move |request| {
        let hit = request.verb == verb && request.path == path;
        if hit && seen.fetch_add(1, Ordering::SeqCst) == 0 {
            fate.clone()
        } else {
            Fate::Pass
        }
    }
}

/// Waits until something holds, without sleeping as long as it does.
async fn until(what: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if what().await {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to hold");
}

async fn snapshots(store: &Store) -> Vec<u64> {
    let found = store.numbers(SNAPSHOT, JournalNumber(0)).await;
    found.expect("a listing").iter().map(|n| n.0).collect()
}

async fn entries(store: &Store) -> Vec<u64> {
    let found = store.numbers(JOURNAL, JournalNumber(0)).await;
    found.expect("a listing").iter().map(|n| n.0).collect()
}

#[tokio::test(start_paused = true)]
async fn rule_1_a_store_without_create_if_absent_is_refused() {
    let objects: Arc<dyn ObjectStore> = Arc::new(FaultyStore::clobbering(memory()));
    let error = Store::on(objects, "test", Mode::Write).await;
    assert!(matches!(error, Err(StoreError::Unfit { .. })), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn rule_3_what_queues_during_a_put_becomes_one_entry() {
    let objects = memory();
    let gate = Gate::default();
    let store = faulty(
        &objects,
        once(Ask::Create, entry_path(2), Fate::Hold(gate.clone())),
    )
    .await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let append = |index| {
        let journal = journal.clone();
        tokio::spawn(async move {
            let n = journal.append(vec![started(index)]).await.expect("durable");
            let folded = journal.with_state(|state| leases(state).contains(&index));
            assert!(folded, "acknowledged before it was folded");
            n
        })
    };
    let mut appends = vec![append(0)];
    gate.reached().await;
    appends.extend((1..10).map(append));
    until(async || journal.queue_len() >= 9).await;
    assert_eq!(entries(&store).await, [1], "a second put was in flight");
    gate.open();
    let mut numbers = Vec::new();
    for append in appends {
        numbers.push(append.await.expect("no panic").0);
    }
    assert_eq!(entries(&store).await, [1, 2, 3]);
    assert_eq!(
        numbers.iter().filter(|n| **n == 3).count(),
        9,
        "{numbers:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn rule_4_a_lost_answer_is_no_failure_and_no_second_entry() {
    for fate in [Fate::LoseAnswer, Fate::Repeat, Fate::Refuse] {
        let objects = memory();
        let store = faulty(&objects, once(Ask::Create, entry_path(2), fate.clone())).await;
        let journal = begin(&store, process(1), run("apply"))
            .await
            .expect("begun");
        for index in 0..3 {
            let n = journal.append(vec![started(index)]).await;
            assert_eq!(n.expect("durable").0, u64::from(index) + 2, "{fate:?}");
        }
        let loaded = store.read().await.expect("whole");
        assert_eq!(leases(&loaded.state), [0, 1, 2], "{fate:?}");
        assert_eq!(entries(&store).await, [1, 2, 3, 4], "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rule_4_an_entry_that_cannot_be_looked_at_is_in_doubt_and_nothing_follows() {
    let objects = memory();
    let offered = Arc::new(AtomicUsize::new(0));
    let offers = offered.clone();
    let store = faulty(&objects, move |request| {
        if request.path != entry_path(2) {
            return Fate::Pass;
        }
        match request.verb {
            Ask::Create => {
                offers.fetch_add(1, Ordering::SeqCst);
                Fate::LoseAnswer
            }
            Ask::Get => Fate::Refuse,
            Ask::Overwrite | Ask::List | Ask::Delete => Fate::Pass,
        }
    })
    .await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    for index in 0..2 {
        let error = journal.append(vec![started(index)]).await;
        assert!(
            matches!(
                error,
                Err(AppendError::InDoubt {
                    n: JournalNumber(2),
                    ..
                })
            ),
            "{error:?}"
        );
    }
    assert_eq!(journal.with_state(leases), Vec::<u32>::new());
    assert_eq!(offered.load(Ordering::SeqCst), 1, "offered again in doubt");
    // The next process sees what was true.
    let loaded = writer_on(&objects).await.read().await.expect("whole");
    assert_eq!(leases(&loaded.state), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_named_at_once_and_leaves_nothing() {
    let objects = memory();
    let store = faulty(&objects, once(Ask::Create, entry_path(2), Fate::Full)).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let error = journal
        .append(vec![started(0)])
        .await
        .expect_err("no space");
    assert!(error.to_string().contains("no space left"), "{error}");
    assert!(error.hint().contains("make room"), "{}", error.hint());
    assert_eq!(entries(&store).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn rule_4_and_6_a_foreign_begin_fences_for_good_and_is_named() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let old = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    old.append(vec![started(0)]).await.expect("durable");
    let new = begin(&store, process(2), run("destroy"))
        .await
        .expect("begun");
    assert_eq!(new.epoch().0, 3, "an epoch is the number of its begin");
    for _ in 0..2 {
        match old.append(vec![started(1)]).await {
            Err(AppendError::Fenced { n, rival }) => {
                assert_eq!(n.0, 3);
                assert_eq!(rival.expect("it can be read").command, "destroy");
            }
            other => panic!("{other:?}"),
        }
    }
    new.append(vec![started(2)]).await.expect("durable");
    let loaded = store.read().await.expect("whole");
    assert_eq!(leases(&loaded.state), [0, 2]);
}

#[tokio::test(start_paused = true)]
async fn rule_5_a_number_that_was_used_and_cleaned_away_is_not_used_again() {
    let objects = memory();
    let gate = Gate::default();
    let slow = faulty(
        &objects,
        once(Ask::Create, entry_path(2), Fate::Hold(gate.clone())),
    )
    .await;
    let old = begin(&slow, process(1), run("apply")).await.expect("begun");
    let late = tokio::spawn({
        let old = old.clone();
        async move { old.append(vec![started(0)]).await }
    });
    gate.reached().await;
    // Meanwhile another run begins, goes on, and cleans up behind itself.
    let store = writer_on(&objects).await;
    let new = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    new.append(vec![started(1)]).await.expect("durable");
    new.snapshot_now().await;
    assert_eq!(entries(&store).await, Vec::<u64>::new());
    gate.open();
    let error = late.await.expect("no panic");
    assert!(
        matches!(error, Err(AppendError::Fenced { rival: Some(_), .. })),
        "{error:?}"
    );
    // The void entry stands in the journal, and nobody takes it for one.
    assert_eq!(entries(&store).await, [2]);
    new.append(vec![started(2)]).await.expect("durable");
    let loaded = store.read().await.expect("whole");
    assert_eq!(leases(&loaded.state), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn rule_5_holds_for_the_first_entry_of_a_run_too() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let stale = store.read().await.expect("empty");
    let other = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    other.append(vec![started(1)]).await.expect("durable");
    other.snapshot_now().await;
    let ours = Journal::begin(&store, stale, run("apply"), process(1)).await;
    let ours = ours.expect("it reads again");
    assert_eq!(ours.epoch().0, 3);
    assert_eq!(ours.with_state(leases), [1]);
}

#[tokio::test(start_paused = true)]
async fn rule_7_a_run_that_yields_does_not_begin_while_another_is_open() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let apply = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let watch = || Begin {
        wait_for_open: true,
        ..run("watch")
    };
    let error = begin(&store, process(2), watch()).await.err();
    assert!(
        matches!(
            error,
            Some(BeginError::RunOpen {
                epoch: Epoch(1),
                ..
            })
        ),
        "{error:?}"
    );
    apply.append(vec![started(0)]).await.expect("not fenced");
    apply.finish(true).await.expect("ended");
    begin(&store, process(2), watch()).await.expect("begun");
}

#[tokio::test(start_paused = true)]
async fn rule_8_numbers_go_on_when_all_entries_are_cleaned_away() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    journal.append(vec![started(0)]).await.expect("durable");
    journal.snapshot_now().await;
    assert_eq!(entries(&store).await, Vec::<u64>::new());
    let next = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    assert_eq!(next.epoch().0, 3);
}

#[tokio::test(start_paused = true)]
async fn rule_9_nothing_is_cleaned_away_before_the_snapshot_was_read_again() {
    let objects = memory();
    let store = faulty(&objects, |request| {
        if request.verb == Ask::Get && request.path.starts_with(SNAPSHOT) {
            Fate::Refuse
        } else {
            Fate::Pass
        }
    })
    .await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    journal.append(vec![started(0)]).await.expect("durable");
    journal.snapshot_now().await;
    assert_eq!(snapshots(&store).await, [2]);
    assert_eq!(entries(&store).await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn rule_9_a_snapshot_of_that_number_with_other_content_saves_the_entries() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let path = numbered(SNAPSHOT, JournalNumber(1));
    objects
        .put(&path, PutPayload::from_static(b"{\"format\":1}\n"))
        .await
        .expect("put");
    journal.snapshot_now().await;
    assert_eq!(entries(&store).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn rule_9_what_is_appended_during_a_snapshot_stays() {
    let objects = memory();
    let gate = Gate::default();
    let path = numbered(SNAPSHOT, JournalNumber(2)).to_string();
    let store = faulty(&objects, once(Ask::Create, path, Fate::Hold(gate.clone()))).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    journal.append(vec![started(0)]).await.expect("durable");
    let snapshot = tokio::spawn({
        let journal = journal.clone();
        async move { journal.snapshot_now().await }
    });
    gate.reached().await;
    journal.append(vec![started(1)]).await.expect("not blocked");
    gate.open();
    snapshot.await.expect("no panic");
    assert_eq!(entries(&store).await, [3]);
    let loaded = store.read().await.expect("whole");
    assert_eq!(leases(&loaded.state), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn rule_9_the_last_32_snapshots_are_kept() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    for index in 0..40 {
        journal.append(vec![started(index)]).await.expect("durable");
        journal.snapshot_now().await;
    }
    assert_eq!(snapshots(&store).await, (10..=41).collect::<Vec<_>>());
    assert_eq!(leases(&store.read().await.expect("whole").state).len(), 40);
}

#[tokio::test(start_paused = true)]
async fn rule_10_a_long_journal_becomes_a_snapshot_during_the_run() {
    assert!(!snapshot::is_due(1 << 20, 0));
    assert!(snapshot::is_due((1 << 20) + 1, 0));
    assert!(
        !snapshot::is_due(8 << 20, 8 << 20),
        "constant cost per byte"
    );
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let mut written = 0;
    while snapshots(&store).await.is_empty() {
        let records = (written..written + 200).map(started).collect();
        journal.append(records).await.expect("durable");
        written += 200;
        assert!(written < 10_000, "no snapshot after {written} records");
    }
    assert!(written > 1000, "a snapshot already after {written} records");
    journal.finish(true).await.expect("ended");
    let loaded = store.read().await.expect("whole");
    assert_eq!(
        leases(&loaded.state).len(),
        usize::try_from(written).expect("few")
    );
    assert!(loaded.journal_bytes < 1 << 20, "{}", loaded.journal_bytes);
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_follow_are_refused_alone_and_never_written() {
    let objects = memory();
    let gate = Gate::default();
    let store = faulty(
        &objects,
        once(Ask::Create, entry_path(2), Fate::Hold(gate.clone())),
    )
    .await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let append = |records: Vec<Record>| {
        let journal = journal.clone();
        tokio::spawn(async move { journal.append(records).await })
    };
    let before = append(vec![started(0)]);
    gate.reached().await;
    let mut replaced = started(0);
    if let Record::Started { generation, .. } = &mut replaced {
        *generation = Generation(2);
    }
    let mut replaced_elsewhere = started(7);
    if let Record::Started { generation, .. } = &mut replaced_elsewhere {
        *generation = Generation(2);
    }
    let together = [
        append(vec![started(1)]),
        append(vec![started(7), replaced_elsewhere]),
        append(vec![started(2), replaced]),
        append(vec![started(3)]),
    ];
    until(async || journal.queue_len() >= 4).await;
    gate.open();
    before.await.expect("no panic").expect("durable");
    let mut answers = Vec::new();
    for one in together {
        answers.push(one.await.expect("no panic"));
    }
    for (index, sound) in [(0, true), (1, false), (2, false), (3, true)] {
        let answer = &answers[index];
        let impossible = matches!(
            answer,
            Err(AppendError::Impossible(FoldError::Impossible { .. }))
        );
        assert!(
            if sound { answer.is_ok() } else { impossible },
            "{index}: {answer:?}"
        );
    }
    let loaded = store.read().await.expect("whole");
    assert_eq!(leases(&loaded.state), [0, 1, 3]);
    assert_eq!(journal.with_state(leases), [0, 1, 3]);
}
