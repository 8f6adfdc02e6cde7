//! A whole apply with its state in a bucket behind a line that fails at one request, each in turn: the same machines, the
//! same state, and the next plan empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stageline::ambient::variable;

use super::proxy::{Fault, Proxy};
use super::servers::{Kind, Server};
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

/// Which requests fail in a case, each with what.
type Case = Vec<(usize, Fault)>;

/// Tells the cases over one kind of server, four at a time.
fn tell(kind: Kind, server: &Server, cases: &[Case]) {
    let next = AtomicUsize::new(0);
    let tell = || {
        let proxy = Proxy::new(kind, server);
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            told(&format!("{kind:?}: {case:?}"), || {
                let world = world(kind, &proxy);
                let script = case.clone();
                proxy.script(move |n, _| {
                    let hit = script.iter().find(|(at, _)| *at == n);
                    hit.map_or(Fault::None, |(_, fault)| *fault)
                });
                let report = world.apply(TWO);
                world.check_settled(TWO, &report);
                assert_eq!(world.sim.machines().len(), 2, "no machine too many, ever");
            });
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(tell)).collect();
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

fn fault(n: usize) -> Fault {
    FAULTS[n % FAULTS.len()]
}

/// Every `STAGELINE_TEST_EVERY`-th of them: 1 is all.
fn every(otherwise: usize) -> usize {
    let set = variable("STAGELINE_TEST_EVERY");
    set.map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn one_lost_request_or_answer_changes_nothing_in_an_apply() {
    for (kind, every) in [
        (Kind::S3, 1),
        (Kind::Azure, every(3)),
        (Kind::Gcs, every(3)),
    ] {
        let Some(server) = kind.server() else {
            continue;
        };
        let (total, changes) = clean(kind, &Proxy::new(kind, &server));
        // Most of them are the same for any number of changes.
        assert!(
            total <= 12 * changes,
            "{total} requests for {changes} changes"
        );
        let cases: Vec<Case> = (0..total)
            .step_by(every)
            .map(|at| vec![(at, fault(at / every))])
            .collect();
        eprintln!(
            "{kind:?}: {total} requests for {changes} changes, {} cases",
            cases.len()
        );
        tell(kind, &server, &cases);
    }
}

/// The line fails at one request and again at a later one: right after it, so that the repetition is hit as well, or while
/// something else is asked.
#[test]
fn two_lost_requests_or_answers_change_nothing_in_an_apply() {
    for kind in Kind::ALL {
        let Some(server) = kind.server() else {
            continue;
        };
        let (total, _) = clean(kind, &Proxy::new(kind, &server));
        let mut cases: Vec<Case> = Vec::new();
        for first in (0..total).step_by(every(9)) {
            for (n, gap) in [1, 2, 5].into_iter().enumerate() {
                cases.push(vec![
                    (first, fault(first + n)),
                    (first + gap, fault(first / 2 + n)),
                ]);
            }
        }
        tell(kind, &server, &cases);
    }
}
