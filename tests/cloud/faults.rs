//! A whole apply with its state in a bucket behind a line that fails at one request, each in turn: the same machines, the
//! same state, and the next plan empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::proxy::{Fault, Proxy};
use super::servers::Kind;
use crate::apply::world::{Elsewhere, TWO, World, told};

const FAULTS: [Fault; 4] = [
    Fault::Answer503,
    Fault::CutAfter,
    Fault::CutMid,
    Fault::CutBefore,
];

/// A world whose state is behind the proxy.
fn world(kind: Kind, proxy: &Proxy) -> World {
    World::elsewhere(Elsewhere {
        url: kind.place(),
        around: kind.around(proxy.port),
        idle: Arc::new(proxy.idle()),
    })
}

/// Requests of a clean apply, and how many changes it made.
fn clean(kind: Kind, proxy: &Proxy) -> (usize, usize) {
    let world = world(kind, proxy);
    proxy.script(|_, _| Fault::None);
    let report = world.apply(TWO);
    let seen = proxy.seen();
    world.check_settled(TWO, &report);
    (seen, report.plan.changes.len())
}

#[test]
fn one_lost_request_or_answer_changes_nothing_in_an_apply() {
    let Some(server) = Kind::S3.server() else {
        return;
    };
    let (total, changes) = clean(Kind::S3, &Proxy::new(Kind::S3, &server));
    // Most of them are the same for any number of changes.
    eprintln!("{total} requests for {changes} changes");
    assert!(
        total <= 12 * changes,
        "{total} requests for {changes} changes"
    );
    let next = AtomicUsize::new(0);
    let cases = || {
        let proxy = Proxy::new(Kind::S3, &server);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= total {
                return;
            }
            let fault = FAULTS[at % FAULTS.len()];
            told(&format!("{fault:?} at request {at}"), || {
                let world = world(Kind::S3, &proxy);
                proxy.fail(at, fault);
                let report = world.apply(TWO);
                world.check_settled(TWO, &report);
                assert_eq!(world.sim.machines().len(), 2, "no machine too many, ever");
            });
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
