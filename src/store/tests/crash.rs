//! A session of many appends, killed before and after each of its requests. What was acknowledged is there; what is
//! there was asked for, in order; and the next run goes on.

use super::*;

/// Leases that are recorded by one caller after the other, or by three at once.
const STEPS: [&[u32]; 14] = [
    &[0],
    &[1],
    &[2, 3, 4],
    &[5],
    &[6, 7, 8],
    &[9],
    &[10, 11, 12],
    &[13],
    &[14, 15, 16],
    &[17, 18, 19],
    &[20],
    &[21, 22, 23],
    &[24, 25, 26],
    &[27],
];

/// After these steps a snapshot is made.
const SNAPSHOTS: [usize; 3] = [2, 7, 12];

/// Does what is not recorded yet and returns what was acknowledged, each told at once as well.
pub(super) async fn session(store: &Store, process: Writer, told: impl Fn(u32) + Copy) -> Vec<u32> {
    let mut acknowledged = Vec::new();
    let Ok(loaded) = store.read().await else {
        return acknowledged;
    };
    let done = leases(&loaded.state);
    let Ok(journal) = Journal::begin(store, loaded, run("apply"), process).await else {
        return acknowledged;
    };
    for (at, step) in STEPS.iter().enumerate() {
        let todo = step.iter().copied().filter(|lease| !done.contains(lease));
        let appends = todo.map(|lease| {
            let journal = journal.clone();
            async move {
                let result = journal.append(vec![started(lease)]).await;
                if result.is_ok() {
                    told(lease);
                }
                (lease, result)
            }
        });
        let mut failed = false;
        for (lease, result) in futures::future::join_all(appends).await {
            failed |= result.is_err();
            acknowledged.extend(result.is_ok().then_some(lease));
        }
        if failed {
            return acknowledged;
        }
        if SNAPSHOTS.contains(&at) {
            journal.snapshot_now().await;
        }
    }
    // Killed or not, everything that was asked for is acknowledged by now.
    drop(journal.finish(true).await);
    acknowledged
}

/// Everything before a step is there when something of it is.
pub(super) fn in_order(recovered: &[u32]) -> bool {
    let whole = |step: &&[u32]| step.iter().all(|lease| recovered.contains(lease));
    let begun = |step: &&[u32]| step.iter().any(|lease| recovered.contains(lease));
    let steps = STEPS.to_vec();
    let first_hole = steps.iter().position(|step| !whole(step));
    first_hole.is_none_or(|hole| !steps[hole + 1..].iter().any(begun))
}

/// One session that dies at a request; returns whether it got there, and checks what is left.
async fn killed(objects: &Arc<dyn ObjectStore>, at: u64, fate: Fate, process_id: u8) -> bool {
    let faulty = Arc::new(FaultyStore::new(objects.clone(), {
        let fate = fate.clone();
        move |request| {
            if request.index == at {
                fate.clone()
            } else {
                Fate::Pass
            }
        }
    }));
    let acknowledged = match Store::on(faulty.clone(), "test", Mode::Write).await {
        Ok(store) => session(&store, process(process_id), |_| ()).await,
        Err(_) => Vec::new(),
    };
    let reader = Store::on(objects.clone(), "test", Mode::Read).await;
    let loaded = reader.expect("opened").read().await;
    let recovered = leases(&loaded.expect("what a kill leaves can be read").state);
    for lease in &acknowledged {
        assert!(
            recovered.contains(lease),
            "{lease} was acknowledged and lost; killed at {at} {fate:?}; {recovered:?}"
        );
    }
    assert!(
        in_order(&recovered),
        "killed at {at} {fate:?}: {recovered:?}"
    );
    faulty.is_dead()
}

pub(super) async fn completes(objects: &Arc<dyn ObjectStore>) {
    let store = writer_on(objects).await;
    session(&store, process(99), |_| ()).await;
    let state = store.read().await.expect("whole").state;
    assert_eq!(leases(&state), (0..28).collect::<Vec<_>>());
    assert!(!state.run.expect("a run").open);
}

#[tokio::test(start_paused = true)]
async fn a_kill_at_any_request_loses_nothing_and_the_next_run_goes_on() {
    for fate in [Fate::DieBefore, Fate::DieAfter] {
        for at in 0.. {
            let objects = memory();
            let died = killed(&objects, at, fate.clone(), 1).await;
            completes(&objects).await;
            if !died {
                assert!(at > 60, "a session of {at} requests is too short");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_during_the_resumed_run_loses_nothing_either() {
    for first in (0..).step_by(9) {
        let mut first_died = true;
        for second in (0..).step_by(7) {
            let objects = memory();
            first_died = killed(&objects, first, Fate::DieAfter, 1).await;
            let died = killed(&objects, second, Fate::DieBefore, 2).await;
            completes(&objects).await;
            if !died {
                break;
            }
        }
        if !first_died {
            break;
        }
    }
}

/// Any one answer is lost, or any one request refused: the session itself copes.
#[tokio::test(start_paused = true)]
async fn one_fault_at_any_request_is_not_noticed_in_what_is_recorded() {
    for fate in [Fate::LoseAnswer, Fate::Refuse, Fate::Repeat] {
        for at in 4.. {
            let objects = memory();
            let reached = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let store = faulty(&objects, {
                let (fate, reached) = (fate.clone(), reached.clone());
                move |request| {
                    let creates = request.verb == crate::store::testing::Verb::Create;
                    let hit = request.index == at && (creates || !matches!(fate, Fate::Repeat));
                    reached.fetch_or(request.index == at, std::sync::atomic::Ordering::SeqCst);
                    if hit { fate.clone() } else { Fate::Pass }
                }
            })
            .await;
            let acknowledged = session(&store, process(1), |_| ()).await;
            if !reached.load(std::sync::atomic::Ordering::SeqCst) {
                break;
            }
            // Only the very first reading is not repeated by the session: its caller sees the error.
            if !acknowledged.is_empty() {
                assert_eq!(acknowledged.len(), 28, "fault at {at} {fate:?}");
            }
            completes(&objects).await;
        }
    }
}
