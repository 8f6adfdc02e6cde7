//! The heartbeat of a watcher: written only while it guards, so that no plan counts on one that could end nothing.

use super::super::{Exit, Failure};
use super::Watcher;
use crate::ambient;
use crate::store::{Beat, BeatInfo, HEARTBEAT, Watching};

impl Watcher<'_> {
    /// Begins or goes on to beat while it guards, and falls silent while it does not. A store that does not answer is asked again
    /// after the next look.
    ///
    /// # Errors
    /// Another watcher is there.
    pub(super) async fn keep_beating(&mut self, guards: bool) -> Result<(), Failure> {
        if let Some(beat) = self.beat.as_ref().filter(|beat| guards && beat.beats()) {
            return match beat.was_taken().await {
                true => Err(self.taken_for_dead()),
                false => Ok(()),
            };
        }
        if let Some(beat) = &mut self.beat {
            if !beat.silence().await {
                return Ok(());
            }
            self.beat = None;
        }
        if !guards {
            return Ok(());
        }
        let interval = ambient::heartbeat().unwrap_or(HEARTBEAT);
        match Beat::begin(&self.store, ambient::who(), &self.clock, interval).await {
            Ok(Watching::Ours(beat)) => self.beat = Some(beat),
            Ok(Watching::Another(other)) => return Err(self.one_too_many(&other)),
            Err(error) => self.troubled("beat", &error.into()),
        }
        Ok(())
    }

    pub(super) fn one_too_many(&self, other: &BeatInfo) -> Failure {
        let process = &other.process;
        let message = format!(
            "{} watches `{}` already (process {} on {}, since {:.0})",
            other.by, self.place.name, process.pid, process.host, other.since
        );
        Failure::new(Exit::Locked, message)
            .hint("one watcher is enough; end that one first to watch from here")
    }

    fn taken_for_dead(&self) -> Failure {
        let name = &self.place.name;
        let message = format!("another watcher of `{name}` took this one's place");
        Failure::new(Exit::Locked, message)
            .hint("this one was silent for too long; one watcher is enough")
    }
}
