//! Ends a machine: asks its processes to end, kills those that do not, proves that none is left, removes the folder.
//!
//! May be repeated and interrupted anywhere. The folder goes last, so a machine whose processes resist stays listed.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use stageline_core::id::RequestKey;
use stageline_core::resource::{Cause, FailureClass};

use super::folder::cause;
use super::process::{ProcessId, boot_id, signal};
use super::{Inner, LocalProvider, is_folder};
use crate::ambient::crash_point;
use crate::provider::Released;

/// How often the processes are looked at while they end.
const POLL: Duration = Duration::from_millis(20);

/// A killed process is gone within this, unless the kernel itself is stuck.
const KILL_MAX: Duration = Duration::from_secs(5);

/// A last look only: nobody waits for the outcome of single kills.
const KILL_ROUNDS: usize = 8;

impl LocalProvider {
    /// Ends a machine and everything that belongs to it.
    pub(super) async fn end(&self, key: RequestKey) -> Result<Released, Cause> {
        let (first, there) = self.survey(&key).await?;
        if first.is_empty() && !there {
            return Ok(Released::Unknown);
        }
        let grace = self.inner.settings.stop_grace;
        let left = self.press(&key, first, Signal::TERM, grace).await?;
        crash_point("a release, its processes asked to end");
        let left = self.press(&key, left, Signal::KILL, KILL_MAX).await?;
        if !left.is_empty() {
            let pids: Vec<String> = left.iter().map(|id| id.pid.to_string()).collect();
            let message = format!("{key}: processes {} do not end", pids.join(", "));
            let cause = Cause::new(FailureClass::Unknown, message);
            return Err(cause.hint("end them yourself, as their owner, then try again"));
        }
        crash_point("a release, its processes gone");
        let removed = self.blocking(move |inner| inner.root.remove(&key)).await;
        removed
            .map(|()| Released::Accepted)
            .map_err(|error| cause(&error))
    }

    /// Signals every process of the machine, those that appear meanwhile too; returns who is left when the time is up.
    async fn press(
        &self,
        key: &RequestKey,
        mut left: BTreeSet<ProcessId>,
        how: Signal,
        limit: Duration,
    ) -> Result<BTreeSet<ProcessId>, Cause> {
        let clock = &self.inner.clock;
        let deadline = clock.boottime() + limit;
        let mut told = BTreeSet::new();
        while !left.is_empty() {
            for id in left.difference(&told) {
                if let Err(error) = signal(*id, how) {
                    let message = format!("{key}: cannot end process {}: {error}", id.pid);
                    return Err(Cause::new(FailureClass::Config, message)
                        .hint("end it yourself, as its owner, then try again"));
                }
            }
            told.extend(left);
            if clock.boottime() >= deadline {
                break;
            }
            clock.sleep(POLL).await;
            (left, _) = self.survey(key).await?;
        }
        let (left, _) = self.survey(key).await?;
        Ok(left)
    }

    /// The processes of a machine, and whether its folder is there.
    async fn survey(&self, key: &RequestKey) -> Result<(BTreeSet<ProcessId>, bool), Cause> {
        let key = key.clone();
        self.blocking(move |inner| inner.survey(&key)).await
    }
}

impl Inner {
    fn survey(&self, key: &RequestKey) -> Result<(BTreeSet<ProcessId>, bool), Cause> {
        let path = self.root.machine(key);
        let there = is_folder(&path).map_err(|error| cause(&error))?;
        let named = self.root.named(key, &boot_id());
        let processes = self.look()?;
        Ok((processes.of_machine(&path, &named), there))
    }

    /// Kills what a create started and could not write down.
    pub(super) fn kill_all(&self, key: &RequestKey) {
        for _ in 0..KILL_ROUNDS {
            let left = self.survey(key).map(|(left, _)| left).unwrap_or_default();
            if left.is_empty() {
                return;
            }
            for id in left {
                if let Err(error) = signal(id, Signal::KILL) {
                    tracing::debug!(pid = id.pid, %error, "not killed");
                }
            }
            rustix::thread::sched_yield();
        }
    }
}
