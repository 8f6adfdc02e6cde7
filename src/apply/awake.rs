//! Machines that are ready while a run goes on: they are told that they are wanted, so that none ends itself as idle while it
//! waits for another one to boot.
//!
//! What always holds: only machines that end themselves are told, a few times within their `idle_timeout`. One that does not answer is
//! passed over: its own step tells what is wrong with it.

use std::convert::Infallible;
use std::time::Duration;

use stageline_core::id::Address;
use stageline_core::plan::Verdict;
use stageline_core::resource::Spec;
use stageline_core::unit::Millis;

use super::step::Run;

/// So often within the shortest `idle_timeout`.
const TIMES: u32 = 4;

/// Longest pause between two of them.
const LONGEST: Duration = Duration::from_secs(300);

/// Shortest one.
const SHORTEST: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Goes on for as long as the run does.
    pub(super) async fn keep_awake(&self) -> Infallible {
        let (Some(every), Ok(machines)) = (self.awake_every(), self.machines()) else {
            return std::future::pending().await;
        };
        loop {
            self.effects.clock.sleep(every).await;
            let ready = self.state(|state| {
                let leases = state.existing().filter_map(|(address, _)| match address {
                    Address::Lease(lease) => Some(lease.clone()),
                    Address::Delivery(_)
                    | Address::Bundle(_)
                    | Address::Stage(_)
                    | Address::Pipeline(_)
                    | Address::Exposure(_) => None,
                });
                leases.collect::<Vec<_>>()
            });
            let targets = ready.iter().filter_map(|lease| self.target(lease).ok());
            let told = targets.map(|target| async move { machines.at_work(&target).await.ok() });
            futures::future::join_all(told).await;
        }
    }

    /// How often; none where nothing that this plan is about ends itself for being idle.
    fn awake_every(&self) -> Option<Duration> {
        let leases = self
            .plan
            .changes
            .iter()
            .filter_map(|change| match change.verdict {
                Verdict::Delete => None,
                Verdict::Create | Verdict::Update | Verdict::Replace | Verdict::Keep => {
                    match self.spec(&change.address) {
                        Ok(Spec::Lease(spec)) => Some(spec),
                        Ok(
                            Spec::Delivery(_)
                            | Spec::Stage(_)
                            | Spec::Pipeline(_)
                            | Spec::Exposure(_),
                        )
                        | Err(_) => None,
                    }
                }
            });
        let may = leases.filter(|spec| {
            let mut sellers = spec.rented_under();
            sellers.any(|terms| {
                let (name, kind) = (&terms.provider, &terms.provider_kind);
                let provider = self.effects.providers.get(name, kind);
                provider.is_ok_and(|provider| provider.traits().self_destroy)
            })
        });
        let shortest = may.map(|spec| spec.idle_timeout).min()?;
        let every = (shortest != Millis::NEVER).then(|| shortest.duration() / TIMES)?;
        Some(every.clamp(SHORTEST, LONGEST))
    }
}
