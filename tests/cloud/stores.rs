//! What a store promises, on a server of each cloud: the fence, the lock, snapshots, plans; and that no single lost
//! request or answer changes any of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use stageline::ambient::{Clock as _, ProcessId, SharedClock, SystemClock};
use stageline::core::id::{PlanId, WriterId};
use stageline::store::{
    Acquired, AppendError, HEARTBEAT, Holder, Journal, Lock, Mode, StateUrl, Store, StoreError,
    Surroundings, Writer,
};

use super::proxy::{Fault, Proxy};
use super::servers::{Kind, Server, asks, careless};
use crate::apply::world::{begin_of, name, told};

/// A container can only be made by a signed request, and our store makes none.
pub(super) fn make_container(server: &Server) {
    const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
    let base64 = base64::engine::general_purpose::STANDARD;
    let date = SystemClock
        .now()
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string();
    let signed = format!(
        "PUT{}x-ms-date:{date}\nx-ms-version:2021-08-06\n/devstoreaccount1/devstoreaccount1/state\nrestype:container",
        "\n".repeat(12)
    );
    let mac = hmac(&base64.decode(KEY).expect("a key"), signed.as_bytes());
    let headers = [
        format!("x-ms-date: {date}"),
        "x-ms-version: 2021-08-06".to_owned(),
        format!(
            "Authorization: SharedKey devstoreaccount1:{}",
            base64.encode(mac)
        ),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let line = "PUT /devstoreaccount1/state?restype=container HTTP/1.1";
    let made = asks(server.port, line, &headers);
    assert!(made.contains(" 201 "), "{made}");
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let padded = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(text)
        .finalize();
    Sha256::new()
        .chain_update(padded(0x5c))
        .chain_update(inner)
        .finalize()
        .to_vec()
}

fn clock() -> SharedClock {
    Arc::new(SystemClock)
}

pub(super) fn writer(n: u8) -> Writer {
    Writer {
        id: WriterId([n; 16]),
        clock: clock(),
    }
}

fn holder(n: u8) -> Holder {
    Holder {
        writer: WriterId([n; 16]),
        process: ProcessId::this(),
        by: "ada@engine".to_owned(),
        command: "apply".to_owned(),
    }
}

pub(super) async fn open(url: &StateUrl, around: &Surroundings) -> Result<Store, StoreError> {
    Store::open_in(url, &name("demo"), None, Mode::Write, around.clone()).await
}

/// A life of a store: everything that a command does with it.
async fn life(url: &StateUrl, around: &Surroundings) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let store = open(url, around).await.map_err(|e| told(&e))?;
    let lock = Lock::acquire(&store, holder(1), &clock(), HEARTBEAT).await;
    let lock = match lock.map_err(|e| told(&e))? {
        Acquired::Lock(lock) => lock,
        Acquired::Held(held) => return Err(format!("held by {held}")),
    };
    let loaded = store.read().await.map_err(|e| told(&e))?;
    assert_eq!(loaded.head.0, 0);
    let plan = PlanId([3; 16]);
    store
        .put_plan(plan, b"{}".to_vec())
        .await
        .map_err(|e| told(&e))?;
    let begun = Journal::begin(&store, loaded, begin_of("apply"), writer(1)).await;
    let journal = begun.map_err(|e| told(&e))?;
    journal.finish(true).await.map_err(|e| told(&e))?;
    lock.release().await;
    let loaded = store.read().await.map_err(|e| told(&e))?;
    assert_eq!(loaded.head.0, 2, "begin and end, each once");
    let kept = store.get_plan(plan).await.map_err(|e| told(&e))?;
    assert_eq!(kept.as_deref(), Some(&b"{}"[..]));
    let second = Lock::look(&store).await.map_err(|e| told(&e))?;
    assert_eq!(second, None, "it was given back");
    Ok(())
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

#[test]
fn each_cloud_holds_state() {
    for kind in Kind::ALL {
        let Some(server) = kind.server() else {
            continue;
        };
        let proxy = Proxy::new(kind, &server);
        let (url, around) = (kind.place(), kind.around(proxy.port));
        told(&format!("{kind:?}"), || {
            on_runtime(async {
                life(&url, &around).await.expect("nothing is in the way");
                // Two writers: the later one fences the earlier one, for good.
                let store = open(&url, &around).await.expect("sound");
                let loaded = store.read().await.expect("whole");
                let first = Journal::begin(&store, loaded.clone(), begin_of("apply"), writer(2));
                let first = first.await.expect("begun");
                let second = Journal::begin(&store, loaded, begin_of("destroy"), writer(3));
                let second = second.await.expect("begun, behind the first");
                let fenced = first.finish(true).await.expect_err("fenced");
                assert!(
                    matches!(&fenced, AppendError::Fenced { rival: Some(rival), .. } if rival.command == "destroy"),
                    "{fenced}"
                );
                // A snapshot takes the place of the entries, and what it holds is the same.
                let before = store.read().await.expect("whole");
                second.snapshot_now().await;
                let after = store.read().await.expect("whole");
                assert_eq!(after.snapshot, before.head);
                assert_eq!(after.state, before.state);
                second.finish(true).await.expect("ended");
                // The lock tells who is at work, and a lock that is held is not taken.
                let lock = Lock::acquire(&store, holder(3), &clock(), HEARTBEAT).await;
                let Acquired::Lock(lock) = lock.expect("told") else {
                    panic!("nobody has it")
                };
                let other = Lock::acquire(&store, holder(4), &clock(), HEARTBEAT).await;
                assert!(matches!(other.expect("told"), Acquired::Held(_)));
                lock.release().await;
            })
        });
    }
}

/// At each request in turn the answer or the request itself is lost.
#[test]
fn no_lost_request_or_answer_changes_anything() {
    const FAULTS: [Fault; 5] = [
        Fault::Answer503,
        Fault::CutAfter,
        Fault::CutBefore,
        Fault::CutMid,
        Fault::Answer503Thrice,
    ];
    for kind in Kind::ALL {
        let Some(server) = kind.server() else {
            continue;
        };
        let total = {
            let proxy = Proxy::new(kind, &server);
            on_runtime(life(&kind.place(), &kind.around(proxy.port))).expect("a clean life");
            proxy.seen()
        };
        assert!(total > 15, "{total}");
        // The code above the requests is the same for all: the rarer servers see two of the faults.
        let faults = if kind == Kind::S3 {
            &FAULTS[..]
        } else {
            &FAULTS[..2]
        };
        let next = AtomicUsize::new(0);
        let cases = || {
            let proxy = Proxy::new(kind, &server);
            loop {
                let case = next.fetch_add(1, Ordering::Relaxed);
                let (at, fault) = (case / faults.len(), faults[case % faults.len()]);
                if at >= total {
                    return;
                }
                proxy.fail(at, fault);
                let lived = on_runtime(life(&kind.place(), &kind.around(proxy.port)));
                assert_eq!(
                    lived,
                    Ok(()),
                    "{kind:?}, {fault:?} at {at}: {:#?}",
                    proxy.log()
                );
                assert!(proxy.seen() > at);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(cases)).collect();
            for thread in threads {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
    }
}

#[test]
fn a_server_that_creates_over_what_is_there_is_refused_by_name() {
    if let Some(server) = Kind::S3.server() {
        let proxy = Proxy::new(Kind::S3, &server);
        proxy.script(|_, _| Fault::Clobber);
        refused(
            &Kind::S3.place(),
            &Kind::S3.around(proxy.port),
            "second create",
        );
    }
    // A real one, as it comes.
    if let Some(server) = careless() {
        let host = format!("127.0.0.1:{}", server.port);
        let variables = [("STORAGE_EMULATOR_HOST".to_owned(), host)];
        let around = Surroundings::new(variables.into_iter().collect(), None);
        refused(
            &Kind::Gcs.place(),
            &around,
            "does not answer as such a store does",
        );
    }
}

fn refused(url: &StateUrl, around: &Surroundings, why: &str) {
    let error = on_runtime(open(url, around)).expect_err("it cannot hold state");
    assert!(matches!(error, StoreError::Unfit { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("{url}/demo cannot hold state")),
        "{text}"
    );
    assert!(text.contains(why), "{text}");
}
