//! Gives a machine back: ends an `acquire` that nobody waits for, runs `release`, and forgets the machine when that says it is done.
//!
//! May be repeated freely, and is: by the contract `release` succeeds when it is run twice, and for a machine that never came to be.
//! A machine whose `acquire` was not seen to end is given back again a while later, before it is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use stageline_core::id::MachineId;
use stageline_core::resource::{Cause, FailureClass};
use tokio::time::Instant;

use super::program::{self, Call, TERM_MAX};
use super::record::{Record, Stage};
use super::{CommandProvider, LATE, RELEASE_MAX, answer, class_of};
use crate::ambient::crash_point;
use crate::provider::Released;
use crate::provider::local::process::{ProcessId, Processes, signal};

/// The same machine is not given back more often than this; who asks sooner gets the last answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Between two looks at processes that are ending.
const POLL: Duration = Duration::from_millis(20);

/// When each machine's `release` was run last, and what came of it.
#[derive(Default)]
pub(super) struct Releases(Mutex<BTreeMap<MachineId, Last>>);

type Last = (Instant, Result<Released, Cause>);

impl CommandProvider {
    /// Ends one machine by what is noted of it, or by its id alone where it was noted on another computer.
    pub(super) async fn end(&self, id: &MachineId) -> Result<Released, Cause> {
        let last = {
            let releases = self.releases.0.lock().expect("no holder panics");
            releases.get(id).cloned()
        };
        if let Some((at, answer)) = last
            && at.elapsed() < AGAIN
        {
            return answer;
        }
        let answer = self.end_now(id).await;
        let mut releases = self.releases.0.lock().expect("no holder panics");
        releases.insert(id.clone(), (Instant::now(), answer.clone()));
        answer
    }

    async fn end_now(&self, id: &MachineId) -> Result<Released, Cause> {
        match self.records.read(id)? {
            Some(record) => self.give_back(&record, self.settings.timeout).await,
            None if !self.traits.sees_account => Ok(Released::Unknown),
            None => {
                let listed = self.listed(Duration::ZERO).await?.unwrap_or_default();
                let mut there = listed.into_iter().filter(|listed| !listed.over);
                let Some(listed) = there.find(|listed| listed.id == *id) else {
                    return Ok(Released::Unknown);
                };
                let name = listed.request_key.map(|key| key.to_string());
                let within = self.settings.timeout;
                self.run_release(id, name, None, within).await?;
                Ok(Released::Accepted)
            }
        }
    }

    /// Ends a machine that is noted.
    pub(super) async fn give_back(
        &self,
        record: &Record,
        within: Duration,
    ) -> Result<Released, Cause> {
        let mut record = record.clone();
        let id = record.id();
        if record.stage == Stage::Acquiring && record.cut {
            if self.is_waited_for(&record) {
                let message =
                    format!("the `acquire` of {id} still runs, and somebody waits for it");
                let hint = "wait for that command, or end it, then run this one again";
                return Err(Cause::new(FailureClass::Unknown, message).hint(hint));
            }
            end_leftovers(&record).await?;
        }
        self.end_pushed(&record).await;
        record.stage = Stage::Releasing;
        self.records.write(&record)?;
        crash_point("a release, not yet sent");
        let name = Some(record.request_key.to_string());
        let pending = self.run_release(&id, name, Some(&record), within).await?;
        crash_point("a release, just answered");
        if pending {
            // It has only begun: the machine stays noted, and is given back again.
            return Ok(Released::Accepted);
        }
        let now = self.settings.clock.now();
        let since = record.swept_at.map(|at| now.duration_since(at));
        let settled = since.and_then(|since| Duration::try_from(since).ok()) >= Some(LATE);
        if record.cut && !settled {
            record.swept_at = record.swept_at.or(Some(now));
            self.records.write(&record)?;
        } else {
            self.records.remove(&id)?;
        }
        Ok(Released::Accepted)
    }

    /// Runs `release`, and tells whether it has only begun.
    async fn run_release(
        &self,
        id: &MachineId,
        name: Option<String>,
        record: Option<&Record>,
        within: Duration,
    ) -> Result<bool, Cause> {
        let own = (
            &self.settings.programs.release,
            self.settings.folder.as_path(),
        );
        // What it was made with; where that is not there any more, what the topology says now.
        let noted = record.map(|record| (&record.programs.release, record.folder.as_path()));
        let noted = noted.filter(|(argv, folder)| program::found(argv, folder).is_ok());
        let (argv, folder): (&Vec<String>, &Path) = noted.unwrap_or(own);
        // What is said now counts more than what was said then.
        let mut env = record.map_or_else(BTreeMap::new, |record| record.handed.clone());
        env.extend(self.variables("release"));
        let state = record.map_or_else(String::new, |record| record.state.clone());
        let offer = record.map_or_else(String::new, |record| record.offer.to_string());
        let more = [
            ("ERRAND_LEASE_ID", id.to_string()),
            ("ERRAND_OFFER", offer),
            ("ERRAND_LEASE_STATE", state),
            ("STAGELINE_NAME", name.unwrap_or_default()),
        ];
        env.extend(more.map(|(name, value)| (name.to_owned(), value)));
        let running = program::start(Call {
            verb: "release",
            argv,
            folder,
            env,
            secret: BTreeMap::new(),
            stdout_max: RELEASE_MAX,
            within,
            told: None,
        })?;
        let ended = running.end().await;
        self.listing.forget().await;
        if ended.is_well() {
            return Ok(answer::is_pending(ended.last_line()));
        }
        let told = ended.told(&format!("`release` of {id} failed"), within, RELEASE_MAX);
        let said = ended.last_line().filter(|_| ended.said.is_empty());
        let said =
            said.map(|line| format!("; it said: {}", crate::provider::http::clear(line, 300)));
        let message = format!("{told}{}", said.unwrap_or_default());
        let hint = format!(
            "it may still cost money; run {} by hand with ERRAND_LEASE_ID={id} to see why, then run the same command again",
            argv.join(" ")
        );
        Err(Cause::new(class_of(&ended), message).hint(hint))
    }
}

/// Ends an `acquire` that outlived the process that waited for it, and all that it started.
async fn end_leftovers(record: &Record) -> Result<(), Cause> {
    let Some(acquire) = record.acquire.filter(|_| record.lives(record.acquire)) else {
        return Ok(());
    };
    let mut left = tree(acquire)?;
    for (how, limit) in [(Signal::TERM, TERM_MAX), (Signal::KILL, TERM_MAX)] {
        let start = Instant::now();
        for process in &left {
            signal(*process, how).ok();
        }
        while !left.is_empty() && start.elapsed() < limit {
            tokio::time::sleep(POLL).await;
            left.retain(|process| record.lives(Some(*process)));
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    let pids: Vec<String> = left.iter().map(|process| process.pid.to_string()).collect();
    let message = format!(
        "its `acquire` of before still runs: processes {}",
        pids.join(", ")
    );
    Err(Cause::new(FailureClass::Unknown, message)
        .hint("end them yourself, as their owner, then run the same command again"))
}

fn tree(first: ProcessId) -> Result<BTreeSet<ProcessId>, Cause> {
    let processes = Processes::look().map_err(|error| {
        let message = format!("cannot see the processes of this computer: {error}");
        Cause::new(FailureClass::Unknown, message)
    })?;
    Ok(processes.of_machine(Path::new("/nowhere"), &[first]))
}
