//! The power goes off at each moment of a session, between the parts of a put as well, and what was not synced is lost
//! or half lost. What was acknowledged is there, and the next run goes on. A disk that does not sync is found out.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;

use super::super::testing::{Disk, Loss, Syncs};
use super::crash::{completes, in_order, session};
use super::*;

const LOSSES: [Loss; 4] = [Loss::Everything, Loss::Halves, Loss::Dice(1), Loss::Dice(2)];

/// Lets the power go off at the `n`-th moment, from 1; returns who tells that it did.
fn off_at(disk: &Disk, n: u64) -> watch::Receiver<bool> {
    let (off, told) = watch::channel(false);
    let passed = AtomicU64::new(0);
    disk.set_power(Some(Arc::new(move || {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 < n {
            return ControlFlow::Continue(());
        }
        off.send_replace(true);
        ControlFlow::Break(())
    })));
    told
}

/// A session on a disk whose power goes off; none when it ended before, else the leases that are found afterwards, if
/// the state can be read.
async fn cut(disk: &Disk, at: u64, loss: Loss, process_id: u8) -> Option<Result<Vec<u32>, String>> {
    let objects: Arc<dyn ObjectStore> = Arc::new(disk.clone());
    let mut off = off_at(disk, at);
    let acknowledged = Arc::new(std::sync::Mutex::new(Vec::new()));
    let died = tokio::select! {
        biased;
        _ = off.wait_for(|off| *off) => true,
        () = async {
            if let Ok(store) = Store::on(objects.clone(), "test", Mode::Write).await {
                let told = acknowledged.clone();
                let tell = |lease| told.lock().expect("no panic").push(lease);
                session(&store, process(process_id), tell).await;
            }
        } => false,
    };
    if !died {
        disk.set_power(None);
        return None;
    }
    disk.power_cut(loss).await;
    let reader = Store::on(objects, "test", Mode::Read)
        .await
        .expect("opened");
    let loaded = match reader.read().await {
        Ok(loaded) => loaded,
        Err(error) => return Some(Err(error.to_string())),
    };
    let recovered = leases(&loaded.state);
    for lease in acknowledged.lock().expect("no panic").iter() {
        if !recovered.contains(lease) {
            return Some(Err(format!("{lease} was acknowledged and is lost")));
        }
    }
    if !in_order(&recovered) {
        return Some(Err(format!("out of order: {recovered:?}")));
    }
    Some(Ok(recovered))
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged() {
    for loss in LOSSES {
        for at in 1.. {
            let disk = Disk::new(Syncs::All);
            let Some(found) = cut(&disk, at, loss, 1).await else {
                assert!(at > 100, "a session of {at} moments is too short");
                break;
            };
            found.unwrap_or_else(|why| panic!("{loss:?} at {at}: {why}"));
            let objects: Arc<dyn ObjectStore> = Arc::new(disk);
            completes(&objects).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_during_the_resumed_run_loses_nothing_either() {
    for loss in LOSSES {
        for (first, second) in (1..).step_by(11).zip((1..70).step_by(9).cycle()) {
            let disk = Disk::new(Syncs::All);
            let Some(found) = cut(&disk, first, loss, 1).await else {
                break;
            };
            found.unwrap_or_else(|why| panic!("{loss:?} at {first}: {why}"));
            if let Some(found) = cut(&disk, second, loss, 2).await {
                found.unwrap_or_else(|why| panic!("{loss:?} at {first}, then {second}: {why}"));
            }
            let objects: Arc<dyn ObjectStore> = Arc::new(disk);
            completes(&objects).await;
        }
    }
}

/// The folder's sync fails once, and the power goes off at the next moment after that: the entry was there to be read, and
/// is lost. It was not acknowledged.
#[tokio::test(start_paused = true)]
async fn an_entry_whose_folder_could_not_be_synced_is_in_doubt_and_not_written() {
    let mut lost = 0;
    for at in 1.. {
        let disk = Disk::new(Syncs::All);
        let objects: Arc<dyn ObjectStore> = Arc::new(disk.clone());
        let (syncs, failed) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
        let (off, mut told) = watch::channel(false);
        let fails = failed.clone();
        disk.set_sync(Some(Arc::new(move || {
            if syncs.fetch_add(1, Ordering::SeqCst) + 1 == at {
                fails.store(true, Ordering::SeqCst);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })));
        let after = failed.clone();
        disk.set_power(Some(Arc::new(move || {
            if !after.load(Ordering::SeqCst) {
                return ControlFlow::Continue(());
            }
            off.send_replace(true);
            ControlFlow::Break(())
        })));
        let acknowledged = Arc::new(std::sync::Mutex::new(Vec::new()));
        tokio::select! {
            biased;
            _ = told.wait_for(|off| *off) => {}
            () = async {
                if let Ok(store) = Store::on_disk(objects.clone(), Mode::Write).await {
                    let told = acknowledged.clone();
                    let tell = |lease| told.lock().expect("no panic").push(lease);
                    session(&store, process(1), tell).await;
                }
            } => {}
        }
        if !failed.load(Ordering::SeqCst) {
            break;
        }
        disk.power_cut(Loss::Everything).await;
        let reader = Store::on_disk(objects.clone(), Mode::Read)
            .await
            .expect("opened");
        let loaded = reader.read().await.expect("what is lost is the last");
        let recovered = leases(&loaded.state);
        for lease in acknowledged.lock().expect("no panic").iter() {
            assert!(recovered.contains(lease), "sync {at}: {lease} is lost");
        }
        lost += 1;
        completes(&objects).await;
    }
    assert!(lost > 20, "only {lost} syncs failed");
}

/// Without either sync something that was acknowledged is lost: the tests above can fail.
#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_sync_is_found_out() {
    for syncs in [Syncs::NoBytes, Syncs::NoNames] {
        let mut lost = 0;
        for at in (1..).step_by(10) {
            let disk = Disk::new(syncs);
            match cut(&disk, at, Loss::Everything, 1).await {
                None => break,
                Some(Ok(_)) => {}
                Some(Err(_)) => lost += 1,
            }
        }
        assert!(lost > 5, "{syncs:?}: {lost} losses were seen");
    }
}
