//! Reading: rule 2. What is damaged is named, and never read as less than was recorded.

use super::*;
use crate::store::testing::{Gate, Verb as Ask};

/// A journal of a `begin` and three leases.
async fn journal_of_four() -> (Arc<dyn ObjectStore>, Store) {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    for index in 0..3 {
        journal.append(vec![started(index)]).await.expect("durable");
    }
    (objects, store)
}

fn entry(n: u64) -> Path {
    numbered(JOURNAL, JournalNumber(n))
}

async fn overwrite(objects: &Arc<dyn ObjectStore>, path: &Path, bytes: impl Into<Bytes>) {
    let put = objects.put(path, PutPayload::from_bytes(bytes.into()));
    put.await.expect("put");
}

async fn bytes_of(store: &Store, path: &Path) -> Bytes {
    let bytes = store.get(path, 1 << 20).await.expect("readable");
    bytes.expect("there")
}

async fn damage(store: &Store) -> (String, String) {
    match store.read().await {
        Err(StoreError::Corrupt { object, what, .. }) => (object, what),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_at_all_is_an_empty_state() {
    let loaded = writer_on(&memory()).await.read().await.expect("empty");
    assert_eq!(
        (loaded.head, loaded.state.is_empty()),
        (JournalNumber(0), true)
    );
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_damage() {
    for (missing, named) in [(1, 1), (2, 2), (3, 3)] {
        let (objects, store) = journal_of_four().await;
        objects.delete(&entry(missing)).await.expect("deleted");
        let (object, what) = damage(&store).await;
        assert_eq!(object, entry(named).to_string());
        assert!(what.contains("missing"), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_does_not_follow_is_damage() {
    let (objects, store) = journal_of_four().await;
    let text = bytes_of(&store, &entry(2)).await;
    let text = String::from_utf8(text.to_vec()).expect("text");
    overwrite(&objects, &entry(2), text.replace("\"17\"", "\"18\"")).await;
    let (object, what) = damage(&store).await;
    assert_eq!(object, entry(3).to_string());
    assert!(what.contains("digest"), "{what}");
}

#[tokio::test(start_paused = true)]
async fn torn_emptied_and_copied_entries_are_damage() {
    let (objects, store) = journal_of_four().await;
    let whole = bytes_of(&store, &entry(4)).await;
    let copy = bytes_of(&store, &entry(3)).await;
    for (bytes, says) in [
        (whole.slice(..whole.len() / 2), "cut off"),
        (Bytes::new(), "cut off after 0 bytes"),
        (Bytes::from_static(b"{}\n"), "cannot be read"),
        (copy, "a copy of entry 3"),
    ] {
        overwrite(&objects, &entry(4), bytes).await;
        let (object, what) = damage(&store).await;
        assert_eq!(object, entry(4).to_string());
        assert!(what.contains(says), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_under_another_name_is_damage() {
    let (objects, store) = journal_of_four().await;
    let copy = bytes_of(&store, &entry(4)).await;
    overwrite(&objects, &Path::from("journal/5.json"), copy).await;
    let (object, what) = damage(&store).await;
    assert_eq!(object, "journal/5.json");
    assert!(what.contains("is it a copy?"), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_giant_is_not_read_into_memory() {
    let (objects, store) = journal_of_four().await;
    let giant = vec![b' '; usize::try_from(ENTRY_MAX).expect("fits") + 1];
    overwrite(&objects, &entry(4), giant).await;
    assert!(damage(&store).await.1.contains("more than"));
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_a_closed_run_is_damage() {
    let (objects, store) = journal_of_four().await;
    let old = bytes_of(&store, &entry(4)).await;
    let old = stageline_core::journal::Entry::decode(&old).expect("an entry");
    let new = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    assert_eq!(new.epoch().0, 5);
    let late = stageline_core::journal::Entry {
        n: JournalNumber(6),
        prev: store.read().await.expect("whole").digest,
        records: vec![started(9)],
        ..old
    };
    overwrite(&objects, &entry(6), late.encode()).await;
    assert!(damage(&store).await.1.contains("run 5 has begun since"));
}

#[tokio::test(start_paused = true)]
async fn a_newer_format_is_refused_with_both_versions() {
    for folder in [JOURNAL, SNAPSHOT] {
        let (objects, store) = journal_of_four().await;
        let journal = begin(&store, process(2), run("apply"))
            .await
            .expect("begun");
        if folder == SNAPSHOT {
            journal.snapshot_now().await;
        }
        let path = numbered(folder, JournalNumber(5));
        // Unknown records and fields must not hide why.
        overwrite(&objects, &path, &b"{\"format\":7,\"n\":\"five\"}\n"[..]).await;
        let error = store.read().await.expect_err("newer");
        let text = error.to_string();
        assert!(
            matches!(error, StoreError::Newer { found: 7, .. }),
            "{text}"
        );
        assert!(
            text.contains("format 7") && text.contains("up to 2"),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_torn_or_copied_snapshot_is_damage_even_where_entries_are_left() {
    let (objects, store) = journal_of_four().await;
    let journal = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    journal.snapshot_now().await;
    let path = numbered(SNAPSHOT, JournalNumber(5));
    let whole = bytes_of(&store, &path).await;
    overwrite(&objects, &path, whole.slice(..100)).await;
    assert!(damage(&store).await.1.contains("cut off"));
    overwrite(&objects, &path, whole.clone()).await;
    store.read().await.expect("whole again");
    overwrite(&objects, &numbered(SNAPSHOT, JournalNumber(9)), whole).await;
    assert!(damage(&store).await.1.contains("a copy of snapshot 5"));
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_is_gone_is_not_nothing_deployed() {
    let (objects, store) = journal_of_four().await;
    let journal = begin(&store, process(2), run("apply"))
        .await
        .expect("begun");
    journal.finish(true).await.expect("ended");
    for n in 1..=6 {
        objects.delete(&entry(n)).await.expect("deleted");
    }
    let (object, what) = damage(&store).await;
    assert_eq!(object, JOURNAL);
    assert!(what.contains("state.json"), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_is_an_error() {
    let (objects, _) = journal_of_four().await;
    for folder in [JOURNAL, SNAPSHOT] {
        let store = faulty(&objects, move |request| {
            if request.verb == Ask::List && request.path.starts_with(folder) {
                Fate::Refuse
            } else {
                Fate::Pass
            }
        })
        .await;
        let error = store.read().await.expect_err("no listing");
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    }
}

/// A reader that is stopped at any of its requests while a writer snapshots and cleans away what it was about to read
/// begins again, and sees what is there then.
#[tokio::test(start_paused = true)]
async fn a_snapshot_during_reading_starts_it_again() {
    let mut held = 0;
    for at in 0.. {
        let (objects, store) = journal_of_four().await;
        let gate = Gate::default();
        // Four requests are the probe's.
        let fate = Fate::HoldAnswer(gate.clone());
        let slow = faulty(&objects, move |request| {
            if request.index == at + 4 {
                fate.clone()
            } else {
                Fate::Pass
            }
        })
        .await;
        let reading = tokio::spawn(async move { slow.read().await });
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let done = reading.is_finished();
        held += u32::from(!done);
        let journal = begin(&store, process(2), run("apply"))
            .await
            .expect("begun");
        journal.append(vec![started(3)]).await.expect("durable");
        journal.snapshot_now().await;
        gate.open();
        let loaded = reading.await.expect("no panic").expect("whole");
        let seen = leases(&loaded.state);
        assert!(
            seen == [0, 1, 2] || seen == [0, 1, 2, 3],
            "at request {at}: {seen:?}"
        );
        if done {
            break;
        }
    }
    assert!(held > 5, "the reader was held at {held} requests only");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_stands_still_is_given_up() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let busy = objects.clone();
    let next = std::sync::atomic::AtomicU64::new(2);
    let reader = faulty(&objects, move |request| {
        if request.verb == Ask::List && request.path == SNAPSHOT {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let path = numbered(SNAPSHOT, JournalNumber(n));
            let put = busy.put(&path, PutPayload::from_static(b"not looked at"));
            futures::executor::block_on(put).expect("memory");
        }
        Fate::Pass
    })
    .await;
    journal.snapshot_now().await;
    let error = reader.read().await.expect_err("it gives up");
    assert!(matches!(error, StoreError::Restless { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn plans_are_kept_and_a_missing_one_is_told() {
    let store = writer_on(&memory()).await;
    assert_eq!(store.get_plan(plan(1)).await.expect("told"), None);
    store.put_plan(plan(1), b"{}".to_vec()).await.expect("kept");
    store
        .put_plan(plan(1), b"{}".to_vec())
        .await
        .expect("again");
    let found = store.get_plan(plan(1)).await.expect("told");
    assert_eq!(found.as_deref(), Some(&b"{}"[..]));
}
