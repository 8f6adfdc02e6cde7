//! What counts as work on this machine, and for how long nothing did.
//!
//! Work is: requests that get on, ports of the machine while something goes over them, deliveries and starts while they last and when they succeed, and the time until the
//! operator first heard of the agent, since nobody can send work before. Not work: status, logs, health probes, and
//! whatever fails. Times are of the boot-time clock, so that a machine that was suspended was idle, and nobody who sets
//! the clock changes anything.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use stageline_core::unit::Millis;

use crate::ambient::SharedClock;
use crate::pipeline::infer::{Event, Events, Infer, InferError, Request};

/// What was done, and when last.
pub struct Work {
    clock: SharedClock,
    done: Mutex<Done>,
}

struct Done {
    /// What is going on.
    going_on: u32,
    /// When something last counted.
    last: Duration,
    /// The operator has heard of this agent.
    heard: bool,
}

/// Something that counts while it goes on. Dropped, it failed, and counts no more.
pub struct GoingOn(Arc<Work>);

impl Work {
    /// Nothing was done yet.
    pub fn new(clock: SharedClock) -> Self {
        let last = clock.boottime();
        Self {
            clock,
            done: Mutex::new(Done {
                going_on: 0,
                last,
                heard: false,
            }),
        }
    }

    /// Something begins.
    pub fn begin(self: &Arc<Self>) -> GoingOn {
        let mut done = self.done();
        done.going_on = done.going_on.saturating_add(1);
        GoingOn(Arc::clone(self))
    }

    /// The operator asked how things are: from the first time on, work can come.
    pub fn asked(&self) {
        let mut done = self.done();
        if !done.heard {
            done.heard = true;
            done.last = self.clock.boottime();
        }
    }

    /// For how long nothing counted. `busy` and `worked` are of requests that this does not see.
    pub fn idle(&self, busy: bool, worked: Option<Duration>) -> Millis {
        let done = self.done();
        if busy || done.going_on > 0 {
            return Millis(0);
        }
        let last = done.last.max(worked.unwrap_or_default());
        let idle = self.clock.boottime().saturating_sub(last);
        Millis(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX))
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().expect("no holder panics")
    }
}

impl GoingOn {
    /// It did what it should: idle time begins now.
    pub fn succeeded(self) {
        self.0.done().last = self.0.clock.boottime();
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        let mut done = self.0.done();
        done.going_on = done.going_on.saturating_sub(1);
    }
}

/// Prompts that come in here and are answered here or on another machine.
pub struct Counted {
    model: Arc<dyn Infer>,
    work: Arc<Work>,
}

impl Counted {
    /// This model, counted.
    pub fn new(model: Arc<dyn Infer>, work: Arc<Work>) -> Self {
        Self { model, work }
    }
}

#[async_trait]
impl Infer for Counted {
    async fn infer(&self, request: Request) -> Result<Events, InferError> {
        let going_on = self.work.begin();
        let events = self.model.infer(request).await?;
        let mut going_on = Some(going_on);
        let counted = events.map(move |event| {
            if let Ok(Event::Done { .. }) = &event
                && let Some(going_on) = going_on.take()
            {
                going_on.succeeded();
            }
            event
        });
        Ok(counted.boxed())
    }

    fn ready(&self) -> Result<(), InferError> {
        self.model.ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient::FakeClock;
    use stageline_core::unit::Timestamp;

    fn at(seconds: u64) -> Millis {
        Millis(seconds * 1000)
    }

    #[test]
    fn what_fails_or_only_looks_does_not_count_and_what_goes_on_does() {
        let clock = FakeClock::manual(Timestamp::UNIX_EPOCH);
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        let work = Arc::new(Work::new(Arc::new(clock.clone())));
        pass(100);
        work.asked();
        assert_eq!(work.idle(false, None), at(0), "work could not come before");
        pass(10);
        work.asked();
        assert_eq!(work.idle(false, None), at(10), "a look is no work");
        let failing = work.begin();
        pass(10);
        assert_eq!(work.idle(false, None), at(0), "it goes on");
        drop(failing);
        assert_eq!(work.idle(false, None), at(20), "it failed");
        work.begin().succeeded();
        pass(5);
        assert_eq!(work.idle(false, None), at(5));
        assert_eq!(work.idle(true, None), at(0));
        let worked = clock_time(&clock) - Duration::from_secs(2);
        assert_eq!(work.idle(false, Some(worked)), at(2));
    }

    fn clock_time(clock: &FakeClock) -> Duration {
        use crate::ambient::Clock as _;
        clock.boottime()
    }
}
