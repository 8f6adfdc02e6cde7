//! Runs: plans are consumed once, and what an ended run leaves.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_plan_is_consumed_once_and_resumed_only_while_it_is_the_last() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let with = |n, resume| Begin {
        plan: Some(plan(n)),
        resume,
        ..run("apply")
    };
    let never = begin(&store, process(1), with(1, true)).await.err();
    assert!(
        matches!(never, Some(BeginError::NotResumable { .. })),
        "{never:?}"
    );
    let killed = begin(&store, process(1), with(1, false))
        .await
        .expect("begun");
    drop(killed);
    let again = begin(&store, process(2), with(1, false)).await.err();
    assert!(
        matches!(
            again,
            Some(BeginError::Consumed {
                finished: false,
                ..
            })
        ),
        "{again:?}"
    );
    let resumed = begin(&store, process(2), with(1, true))
        .await
        .expect("resumed");
    resumed.finish(true).await.expect("ended");
    let again = begin(&store, process(3), with(1, true)).await.err();
    assert!(
        matches!(again, Some(BeginError::Consumed { finished: true, .. })),
        "{again:?}"
    );
    drop(
        begin(&store, process(3), with(2, false))
            .await
            .expect("begun"),
    );
    drop(
        begin(&store, process(3), with(3, false))
            .await
            .expect("begun"),
    );
    let late = begin(&store, process(4), with(2, true)).await.err();
    assert!(
        matches!(late, Some(BeginError::NotResumable { .. })),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn staleness_and_consumption_are_one_act() {
    for changes in [false, true] {
        let objects = memory();
        let gate = Gate::default();
        let store = writer_on(&objects).await;
        let first = begin(&store, process(1), run("apply"))
            .await
            .expect("begun");
        first.append(vec![started(0)]).await.expect("durable");
        first.finish(true).await.expect("ended");
        let slow = faulty(
            &objects,
            once(Ask::Create, entry_path(4), Fate::Hold(gate.clone())),
        )
        .await;
        let loaded = slow.read().await.expect("whole");
        let ours = Begin {
            plan: Some(plan(9)),
            expect_projection: Some(loaded.state.projection()),
            ..run("apply")
        };
        let beginning =
            tokio::spawn(async move { Journal::begin(&slow, loaded, ours, process(2)).await });
        gate.reached().await;
        // Between its check and its put, somebody else runs.
        let other = begin(&store, process(3), run("status"))
            .await
            .expect("begun");
        if changes {
            other.append(vec![started(1)]).await.expect("durable");
        }
        other.finish(true).await.expect("ended");
        gate.open();
        let begun = beginning.await.expect("no panic");
        let consumed = store.read().await.expect("whole").state.consumed;
        if changes {
            assert!(matches!(begun, Err(BeginError::Stale)));
            assert!(consumed.is_empty(), "a stale plan was consumed");
        } else {
            assert_eq!(begun.expect("nothing that matters").epoch().0, 6);
            assert!(consumed.contains_key(&plan(9)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_first_runs_agree_on_one_lineage() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let nothing = store.read().await.expect("empty");
    let one = Journal::begin(&store, nothing.clone(), run("apply"), process(1)).await;
    let mut second = run("apply");
    second.first.as_mut().expect("given").lineage = Lineage([9; 16]);
    let two = Journal::begin(&store, nothing, second, process(2)).await;
    assert_eq!(one.expect("begun").lineage(), LINEAGE);
    assert_eq!(two.expect("begun").lineage(), LINEAGE);
}

#[tokio::test(start_paused = true)]
async fn an_ended_run_takes_nothing_more_and_leaves_a_readable_copy() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    journal.append(vec![started(0)]).await.expect("durable");
    assert_eq!(journal.finish(true).await.expect("ended").0, 3);
    let late = journal.append(vec![started(1)]).await;
    assert!(matches!(late, Err(AppendError::Closed)), "{late:?}");
    let copy = store.get(&Path::from(READABLE), 1 << 20).await;
    let copy = copy.expect("readable").expect("written");
    let text = String::from_utf8(copy.to_vec()).expect("text");
    let copy: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(copy["as_of_entry"], 3);
    assert_eq!(copy["ended_in_order"], true);
    assert_eq!(
        copy["resources"]["lease.gpu[0]"]["attempts"]["1"]["launch"]["quote"],
        "17"
    );
    let lines = text
        .lines()
        .filter(|line| line.starts_with("\"lease.gpu[0]\""));
    assert_eq!(lines.count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn appends_by_many_at_once_stay_in_each_callers_order() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let callers = (0..20).map(|caller| {
        let journal = journal.clone();
        tokio::spawn(async move {
            let mut last = JournalNumber(0);
            for attempt in 1..=10 {
                let n = journal.append(vec![try_of(caller, Attempt(attempt))]).await;
                let n = n.expect("durable");
                assert!(n > last);
                last = n;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("no panic");
    }
    let loaded = store.read().await.expect("whole");
    assert_eq!(loaded.state, journal.with_state(Clone::clone));
    for recorded in loaded.state.resources.values() {
        assert_eq!(recorded.last_attempt, Attempt(10));
    }
    assert!(
        loaded.head.0 < 100,
        "{} entries for 200 records",
        loaded.head
    );
}
