//! What providers say of machines by their own clocks, written down for the ledger.
//!
//! At the end of each run the providers that tell dates are asked once: what ended meanwhile, by whatever hand, is counted to the
//! cent from then on. It is only for the books: nothing is concluded from it about what there is, and a provider that cannot be
//! seen is asked by the next run.

use std::sync::Arc;

use stageline_core::id::{Address, LeaseId};
use stageline_core::journal::Record;
use stageline_core::resource::{Cause, Told};

use super::step::{Act, Run, Stop};
use crate::provider::{Machine, Provider};
use crate::store::AppendError;

impl<'a> Run<'a> {
    /// The record of a machine's dates, where its provider tells them.
    pub(super) fn dates_of(&self, address: &Address, machine: &Machine) -> Option<Record> {
        let told = machine.told()?;
        Some(told.record(address.clone(), self.effects.clock.now()))
    }

    /// Writes down when a machine ended that is still listed: once it is released nobody may tell any more.
    pub(super) async fn note_end(&self, machine: &Machine) -> Result<(), Stop> {
        if machine.ended_at.is_none() {
            return Ok(());
        }
        let told: Vec<Told> = machine.told().into_iter().collect();
        Ok(self.note(&told).await?)
    }

    /// Writes down when machines ended, as far as their providers tell.
    pub(super) async fn note_ends(&self) -> Result<(), AppendError> {
        let mut told = Vec::new();
        for provider in self.effects.providers.all() {
            let machines = provider.dated().await.ok().flatten();
            let machines = machines.into_iter().flatten();
            told.extend(machines.filter_map(|machine| machine.told()));
        }
        self.note(&told).await
    }

    /// No machine of this lease is left. Where the provider tells what there was, tries in doubt cost what it tells of, which is
    /// written down, and nothing beside that. A cause is why it cannot be asked.
    pub(super) async fn note_tries(
        &self,
        act: Act<'a>,
        lease: &LeaseId,
        provider: &Arc<dyn Provider>,
    ) -> Result<Option<Cause>, Stop> {
        let Some(doubts) = self.doubts(lease, act.step.generation) else {
            return Ok(None);
        };
        let machines = match provider.dated().await {
            Ok(Some(machines)) => machines,
            Ok(None) => return Ok(None),
            Err(blind) => return Ok(Some(blind.cause)),
        };
        let told: Vec<Told> = machines.iter().filter_map(Machine::told).collect();
        self.note(&told).await?;
        self.close_tries(act, provider, &doubts).await?;
        Ok(None)
    }

    async fn note(&self, told: &[Told]) -> Result<(), AppendError> {
        let at = self.effects.clock.now();
        let news = self.state(|state| state.news(told, at));
        if !news.is_empty() {
            self.journal.append(news).await?;
        }
        Ok(())
    }
}
