//! Changes of what is recorded, outside of any plan: each is a run of its own with a begin, so that it fences every other
//! writer and can be seen in the history. It is said what changes and what goes on billing; then somebody is asked.

use stageline_core::id::WriterId;
use stageline_core::state::{State, Surgery};
use stageline_core::unit::Timestamp;

use super::console::Console;
use super::project::Place;
use super::{Exit, Failure, session};
use crate::ambient::{self, ProcessId, SharedClock, random};
use crate::store::{Acquired, Begin, HEARTBEAT, Holder, Journal, Lock, Mode, Store, Writer};

/// One operation on a state.
pub(crate) struct Operation<'a> {
    /// Of which topology.
    pub place: &'a Place,
    /// What it is called in the history.
    pub command: &'a str,
    /// What is asked before it is done.
    pub question: &'a str,
    /// Nobody is asked.
    pub auto_approve: bool,
}

/// Makes the records for a state; says why it cannot.
pub(crate) trait Plan: Fn(&State, Timestamp) -> Result<Surgery, Failure> {}
impl<T: Fn(&State, Timestamp) -> Result<Surgery, Failure>> Plan for T {}

impl Operation<'_> {
    /// Shows, asks, and does it.
    pub async fn run(&self, plan: impl Plan, console: &Console) -> Result<Exit, Failure> {
        let clock = ambient::steady(session::clock());
        let reader = self.place.open(Mode::Read).await?;
        let state = reader.read().await?.state;
        let surgery = plan(&state, clock.now())?;
        for note in &surgery.notes {
            console.line(note);
        }
        if surgery.records.is_empty() {
            console.say("nothing is to be changed");
            return Ok(Exit::Done);
        }
        if !self.auto_approve && !console.confirm(self.question)? {
            console.say("nothing was changed");
            return Ok(Exit::User);
        }
        let store = self.place.open(Mode::Write).await?;
        let (lock, writer) = self.lock(&store, &clock).await?;
        let done = self.write(&store, &state, plan, writer, &clock).await;
        lock.release().await;
        done?;
        console.say(&format!(
            "done; `stageline state history` shows it, `stageline plan` what it means for {}",
            self.place.name
        ));
        Ok(Exit::Done)
    }

    /// Nobody else may be at work.
    pub async fn lock(
        &self,
        store: &Store,
        clock: &SharedClock,
    ) -> Result<(Lock, Writer), Failure> {
        let writer = Writer {
            id: WriterId(random()),
            clock: clock.clone(),
        };
        let holder = Holder {
            writer: writer.id,
            process: ProcessId::this(),
            by: ambient::who(),
            command: self.command.to_owned(),
        };
        let interval = ambient::heartbeat().unwrap_or(HEARTBEAT);
        match Lock::acquire(store, holder, clock, interval).await? {
            Acquired::Lock(lock) => Ok((*lock, writer)),
            Acquired::Held(held) => Err((*held).into()),
        }
    }

    async fn write(
        &self,
        store: &Store,
        shown: &State,
        plan: impl Plan,
        writer: Writer,
        clock: &SharedClock,
    ) -> Result<(), Failure> {
        let loaded = store.read().await?;
        let begin = self.begin(shown);
        let journal = Journal::begin(store, loaded, begin, writer).await?;
        let surgery = journal.with_state(|state| plan(state, clock.now()))?;
        journal.append(surgery.records).await?;
        journal.finish(true).await?;
        Ok(())
    }

    /// A run that changes exactly what was shown.
    pub fn begin(&self, shown: &State) -> Begin {
        Begin {
            command: self.command.to_owned(),
            by: ambient::who(),
            plan: None,
            resume: false,
            expect_projection: Some(shown.projection()),
            first: None,
            wait_for_open: false,
        }
    }
}
