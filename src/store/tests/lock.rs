//! Rule 11: the lock is a courtesy, and a dead one never blocks.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::ambient::{ProcessId, SharedClock};

const INTERVAL: Duration = Duration::from_secs(5);

fn clock() -> SharedClock {
    Arc::new(SystemClock)
}

fn holder(n: u8, process: ProcessId) -> Holder {
    Holder {
        writer: WriterId([n; 16]),
        process,
        by: "ada@engine".to_owned(),
        command: "apply".to_owned(),
    }
}

/// Of a computer that we cannot look into.
fn elsewhere(n: u8) -> Holder {
    holder(
        n,
        ProcessId {
            host: "far".to_owned(),
            boot: "another".to_owned(),
            pid: 1,
            started: 1,
        },
    )
}

async fn acquire(store: &Store, holder: Holder) -> Acquired {
    Lock::acquire(store, holder, &clock(), INTERVAL)
        .await
        .expect("the store answers")
}

async fn overwrite(objects: &Arc<dyn ObjectStore>, bytes: Vec<u8>) {
    let path = Path::from(LOCK);
    let put = objects.put(&path, PutPayload::from(bytes));
    put.await.expect("put");
}

async fn get(store: &Store, holder: Holder) -> Lock {
    match acquire(store, holder).await {
        Acquired::Lock(lock) => *lock,
        Acquired::Held(info) => panic!("held: {info}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_living_process_of_this_computer_holds_it_and_is_named() {
    let store = writer_on(&memory()).await;
    let lock = get(&store, holder(1, ProcessId::this())).await;
    let before = Instant::now();
    let Acquired::Held(info) = acquire(&store, holder(2, ProcessId::this())).await else {
        panic!("taken from a living process");
    };
    assert_eq!(Instant::now(), before, "that can be told at once");
    let (text, pid) = (info.to_string(), std::process::id().to_string());
    assert!(
        text.contains("`apply` by ada@engine") && text.contains(&pid),
        "{text}"
    );
    assert!(
        info.hint().contains(&format!("kill {pid}")),
        "{}",
        info.hint()
    );
    lock.release().await;
    assert_eq!(Lock::look(&store).await.expect("told"), None);
    get(&store, holder(2, ProcessId::this())).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_of_this_computer_does_not_hold_it() {
    let store = writer_on(&memory()).await;
    let mut child = std::process::Command::new("true").spawn().expect("runs");
    let mut dead = ProcessId::this();
    dead.pid = child.id();
    child.wait().expect("ends");
    std::mem::forget(get(&store, holder(1, dead)).await);
    // A process id that is in use again is not the holder either.
    let before = Instant::now();
    std::mem::forget(
        get(
            &store,
            holder(
                2,
                ProcessId {
                    started: 1,
                    ..ProcessId::this()
                },
            ),
        )
        .await,
    );
    get(&store, holder(3, ProcessId::this())).await;
    assert_eq!(Instant::now(), before, "that can be told at once");
}

#[tokio::test(start_paused = true)]
async fn elsewhere_only_new_heartbeats_tell_the_living_from_the_dead() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let far = get(&store, elsewhere(1)).await;
    let Acquired::Held(_) = acquire(&store, elsewhere(2)).await else {
        panic!("taken from one who lives");
    };
    // The holder dies: its heart stops, its lock stays, with a time that is far ahead of ours.
    let mut info = Lock::look(&store).await.expect("told").expect("there");
    far.release().await;
    info.since = Timestamp::MAX;
    let bytes = serde_json::to_vec(&info).expect("plain data");
    overwrite(&objects, bytes).await;
    let before = Instant::now();
    get(&store, elsewhere(2)).await;
    assert_eq!(before.elapsed(), 3 * INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_no_lock_lapses_too() {
    let objects = memory();
    let store = writer_on(&objects).await;
    overwrite(&objects, b"{\"hol".to_vec()).await;
    get(&store, elsewhere(2)).await;
}

#[tokio::test(start_paused = true)]
async fn whose_lock_was_taken_does_not_take_it_back() {
    let objects = memory();
    let store = writer_on(&objects).await;
    let old = get(&store, elsewhere(1)).await;
    let mut info = Lock::look(&store).await.expect("told").expect("there");
    info.holder = elsewhere(2);
    let bytes = serde_json::to_vec(&info).expect("plain data");
    overwrite(&objects, bytes).await;
    tokio::time::sleep(3 * INTERVAL).await;
    old.release().await;
    let found = Lock::look(&store)
        .await
        .expect("told")
        .expect("still there");
    assert_eq!(found.holder, elsewhere(2));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_is_given_back() {
    let store = writer_on(&memory()).await;
    drop(get(&store, elsewhere(1)).await);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
        if Lock::look(&store).await.expect("told").is_none() {
            return;
        }
    }
    panic!("it is still there");
}
