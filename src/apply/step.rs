//! The step protocol, written once: intention, call, outcome.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, Generation, JournalNumber, LeaseId, Name};
use stageline_core::journal::{Launch, Record, Verb};
use stageline_core::plan::{Change, Plan, Room, Spot, Step, StepId};
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt, Outcome, Receipt, Spec};
use stageline_core::state::State;
use stageline_core::unit::{Millis, Timestamp};

use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::gang::Gang;
use super::room::Reserving;
use super::{Effects, Keys, Options};
use crate::machine::{Machines, Target};
use crate::store::{AppendError, Journal};

/// Why a step ends without being done.
#[derive(Debug)]
pub(super) enum Stop {
    /// It did nothing, for certain. What was begun is closed on record.
    Refused(Cause),
    /// Nothing was begun: what was to be rented costs more than its ceiling now. Another offer may not.
    Dear(Cause),
    /// Nothing was begun: the account of its provider has no room, by its caps, or cannot be seen. Another provider's may do.
    Full(Cause),
    /// It may have acted. Already recorded.
    InDoubt(Cause),
    /// Its waiting was cut: the user interrupted, or the journal takes no more entries.
    Cut,
    /// The journal could not be written.
    Journal(AppendError),
}

impl From<AppendError> for Stop {
    fn from(error: AppendError) -> Self {
        Self::Journal(error)
    }
}

/// What a call made.
#[derive(Default)]
pub(super) struct Made {
    /// What the resource should be from now on.
    pub spec: Option<Spec>,
    /// What was made.
    pub receipt: Option<Receipt>,
    /// What its provider says of it by its own clock.
    pub dated: Option<Record>,
}

/// Everything that the arms share.
pub(super) struct Run<'a> {
    pub plan: &'a Plan,
    pub changes: BTreeMap<&'a Address, &'a Change>,
    pub journal: &'a Journal,
    pub effects: &'a Effects,
    pub options: &'a Options,
    /// Reservations of launches that are being appended and are not in the state yet.
    pub reserving: RefCell<BTreeMap<(LeaseId, Attempt), Reserving>>,
    /// What others have on accounts with caps, as counted last.
    pub rooms: RefCell<BTreeMap<Name, Room>>,
    /// Where machines that are being rented would be.
    pub placing: RefCell<BTreeMap<LeaseId, Spot>>,
    /// When machines that are being released were there for sure, last.
    pub sightings: RefCell<BTreeMap<Address, Timestamp>>,
    /// Accounts that are the same under another name: the second one listed what was made on the first.
    pub same_accounts: RefCell<BTreeSet<(String, String)>>,
    /// Cuts every wait: fires with the interrupt, and when the journal takes no more entries.
    pub halt: CancellationToken,
    /// Machines that come up all or none.
    pub gangs: RefCell<BTreeMap<Name, Gang>>,
    /// Steps that wait for others of their gang and take no place among the running ones.
    pub parked: Cell<usize>,
    /// The last try of each lease when the run began: what counts against `attempts` comes after it.
    pub before: BTreeMap<Address, (Generation, Attempt)>,
    /// Tries that were refused because others use the account too: they count as none.
    pub limited: RefCell<BTreeMap<(Address, Generation), Vec<Attempt>>>,
    /// To the scheduler.
    pub nudges: UnboundedSender<Nudge>,
}

/// What a step tells the scheduler beside its end.
pub(super) enum Nudge {
    /// A machine was given up: it is to be ended.
    Leave(LeaseId, Generation, Attempt),
    /// A step takes no place any more.
    Parked,
}

/// One step under way.
#[derive(Clone, Copy)]
pub(super) struct Act<'a> {
    pub id: StepId,
    pub step: &'a Step,
}

impl<'a> Run<'a> {
    /// The protocol for steps whose call may be repeated: started, call, outcome.
    pub async fn protocol<F>(
        &self,
        act: Act<'a>,
        call: impl FnOnce(JournalNumber) -> F,
    ) -> Result<(), Stop>
    where
        F: Future<Output = Result<Outcome<Made>, Stop>>,
    {
        let number = self.started(act, None).await?;
        let outcome = call(number).await?;
        self.outcome(act, None, outcome).await
    }

    /// Writes the intention down. Returns when it is durable. Nothing new is intended once the run is to end, also not
    /// the next try of a step that is under way.
    pub async fn started(
        &self,
        act: Act<'a>,
        launch: Option<Launch>,
    ) -> Result<JournalNumber, Stop> {
        if self.halt.is_cancelled() {
            return Err(Stop::Cut);
        }
        let record = Record::Started {
            address: act.step.address.clone(),
            generation: act.step.generation,
            verb: act.step.verb,
            launch: launch.map(Box::new),
            on: self.on(act.step),
            at: self.effects.clock.now(),
        };
        let number = self.journal.append(vec![record]).await?;
        self.emit(Event::StepStarted {
            address: act.step.address.clone(),
            generation: act.step.generation,
            verb: act.step.verb,
        });
        Ok(number)
    }

    /// The machine that a step acts on, for what stands on one.
    fn on(&self, step: &Step) -> Option<LeaseId> {
        match step.verb {
            Verb::Start | Verb::Expose => match self.changes.get(&step.address)?.spec.as_ref()? {
                Spec::Stage(stage) => Some(stage.on.clone()),
                Spec::Exposure(exposure) => Some(exposure.at.clone()),
                Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_) => None,
            },
            Verb::Stop | Verb::Unexpose => self.recorded_on(&step.address),
            Verb::Acquire
            | Verb::Await
            | Verb::Record
            | Verb::Deliver
            | Verb::Check
            | Verb::Forget
            | Verb::Release => None,
        }
    }

    /// The machine that something recorded is on, or may be on.
    pub fn recorded_on(&self, address: &Address) -> Option<LeaseId> {
        self.state(|state| state.resources.get(address)?.on().cloned())
    }

    /// Writes the outcome down. Returns when it is durable; only then may a dependent start.
    pub async fn outcome(
        &self,
        act: Act<'a>,
        attempt: Option<Attempt>,
        outcome: Outcome<Made>,
    ) -> Result<(), Stop> {
        let (address, generation, verb) =
            (act.step.address.clone(), act.step.generation, act.step.verb);
        let at = self.effects.clock.now();
        match outcome {
            Outcome::Done(made) => {
                let spec = made.spec.map(Box::new);
                let receipt = made.receipt.map(Box::new);
                let step = Some(act.id);
                let done = Record::Done {
                    address,
                    generation,
                    verb,
                    step,
                    spec,
                    receipt,
                    at,
                };
                let mut records: Vec<Record> = self.sighting(act).into_iter().collect();
                records.push(done);
                records.extend(made.dated);
                self.journal.append(records).await?;
                Ok(())
            }
            Outcome::Refused(cause) => {
                let refused = Record::Refused {
                    address,
                    generation,
                    verb,
                    attempt,
                    cause: cause.clone(),
                    at,
                };
                self.journal.append(vec![refused]).await?;
                Err(Stop::Refused(cause))
            }
            Outcome::InDoubt(cause) => {
                let doubt = Record::InDoubt {
                    address,
                    generation,
                    verb,
                    attempt,
                    cause: cause.clone(),
                    at,
                };
                self.journal.append(vec![doubt]).await?;
                Err(Stop::InDoubt(cause))
            }
        }
    }

    /// When the machine of a release was seen for the last time: it billed until then, which the ledger cannot know
    /// otherwise.
    pub fn sighting(&self, act: Act<'a>) -> Option<Record> {
        let at = self.sightings.borrow_mut().remove(&act.step.address)?;
        Some(Record::Seen {
            address: act.step.address.clone(),
            generation: act.step.generation,
            attempt: None,
            price_per_hour: None,
            at,
        })
    }

    /// Says that a step is done without a call, because there is none to make or its work is found done.
    pub async fn done(&self, act: Act<'a>, made: Made) -> Result<(), Stop> {
        self.outcome(act, None, Outcome::Done(made)).await
    }

    /// What the plan wants the resource to be.
    pub fn spec(&self, address: &Address) -> Result<&'a Spec, Stop> {
        let change = self
            .changes
            .get(address)
            .and_then(|change| change.spec.as_ref());
        change.ok_or_else(|| Stop::Refused(broken(format!("the plan has no spec for {address}"))))
    }

    pub fn state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        self.journal.with_state(look)
    }

    pub fn nudge(&self, nudge: Nudge) {
        // A scheduler that is gone has no use for it: the state says what is to be done.
        let _ = self.nudges.send(nudge);
    }

    pub fn emit(&self, event: Event) {
        (self.effects.events)(event);
    }

    /// A pause that the first Ctrl-C cuts, and the loss of the journal.
    pub async fn pause(&self, span: Duration) -> Result<(), Stop> {
        tokio::select! {
            biased;
            () = self.halt.cancelled() => Err(Stop::Cut),
            () = self.effects.clock.sleep(span) => Ok(()),
        }
    }

    pub fn keys(&self) -> Result<&dyn Keys, Cause> {
        self.effects.keys.as_deref().ok_or_else(without_identity)
    }

    /// Our hands on leased machines.
    pub fn machines(&self) -> Result<&dyn Machines, Cause> {
        self.effects
            .machines
            .as_deref()
            .ok_or_else(without_identity)
    }

    /// How the agent of a ready machine is reached.
    pub fn target(&self, lease: &LeaseId) -> Result<Target, Cause> {
        let ready = self.state(|state| state.lease(lease).and_then(|held| held.ready.clone()));
        ready
            .map(|ready| Target {
                lease: lease.clone(),
                endpoint: ready.endpoint,
                contact: ready.contact,
            })
            .ok_or_else(|| broken(format!("{lease} is not ready")))
    }

    /// The recorded machine of this generation.
    pub fn held(&self, lease: &LeaseId, generation: Generation) -> Option<LeaseReceipt> {
        self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()))?;
            let held = state.lease(lease)?;
            (recorded.generation == generation).then(|| held.clone())
        })
    }

    /// Milliseconds of boot time since then.
    pub fn since(&self, start: Duration) -> Millis {
        let passed = self.effects.clock.boottime().saturating_sub(start);
        Millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
    }
}

fn without_identity() -> Cause {
    Cause::new(
        FailureClass::Auth,
        "this step needs the operator's identity",
    )
    .hint("bring identity.key into the state folder, or set STAGELINE_IDENTITY")
}

/// A plan or a state that contradicts itself: a fault of ours.
pub(super) fn broken(message: String) -> Cause {
    Cause::new(FailureClass::Unknown, message).hint("please report this; nothing was sent")
}

/// The lease that a step is about.
pub(super) fn lease_of(step: &Step) -> Result<&LeaseId, Stop> {
    match &step.address {
        Address::Lease(lease) | Address::Delivery(lease) => Ok(lease),
        Address::Bundle(_) | Address::Stage(_) | Address::Pipeline(_) | Address::Exposure(_) => {
            Err(Stop::Refused(broken(format!(
                "{} is no lease",
                step.address
            ))))
        }
    }
}
