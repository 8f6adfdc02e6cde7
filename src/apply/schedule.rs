//! The scheduler: which step may run now, how many at once, and when to stop.
//!
//! One loop owns all running steps. A step starts when every step that it waits for is done; a failed step blocks what
//! waits for it and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use stageline_core::event::Event;
use stageline_core::id::{Address, Attempt, Generation, LeaseId};
use stageline_core::journal::Verb;
use stageline_core::plan::{Plan, StepId};
use stageline_core::state::State;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::gang::gangs;
use super::step::{Act, Made, Nudge, Run, Stop};
use super::{Effects, Failed, Options, Summary};
use crate::store::Journal;

/// Carries a plan out, as far as it goes. The journal's run has been begun for this plan; it is not ended here.
pub async fn run(plan: &Plan, journal: &Journal, effects: &Effects, options: &Options) -> Summary {
    if let Err(error) = super::named::edit(plan, journal, effects).await {
        return Summary {
            journal: Some(error),
            ..Summary::default()
        };
    }
    let (nudges, mut nudged) = unbounded_channel();
    let run = begin(plan, journal, effects, options, nudges);
    let mut board = Board::new(plan, &still_done(&run));
    let mut running = FuturesUnordered::new();
    let (mut steps, mut deadline) = (0_usize, None);
    let mut awake = std::pin::pin!(run.keep_awake());
    for (lease, generation, attempt) in run.all_leaving() {
        running.push(attend(&run, Task::Leave(lease, generation, attempt)));
    }
    loop {
        if options.interrupt.is_cancelled() && deadline.is_none() {
            board.interrupt();
            deadline = Some(effects.clock.boottime() + options.grace.duration());
        }
        while let Ok(nudge) = nudged.try_recv() {
            running.extend(task_of(nudge).map(|task| attend(&run, task)));
        }
        while !board.halted && steps - run.parked.get() < options.parallelism.max(1) {
            let Some(id) = board.ready.pop_front() else {
                break;
            };
            steps += 1;
            running.push(attend(&run, Task::Step(id)));
        }
        if running.is_empty() {
            break;
        }
        tokio::select! {
            biased;
            Some((task, result)) = running.next() => {
                if matches!(result, Err(Stop::Journal(_))) {
                    run.halt.cancel();
                }
                let blocked = match task {
                    Task::Step(id) => {
                        steps -= 1;
                        board.settle(plan, id, result)
                    }
                    Task::Leave(lease, ..) => {
                        board.left(&lease, result);
                        Vec::new()
                    }
                };
                for (address, verb, by) in blocked {
                    run.emit(Event::StepBlocked { address, verb, by });
                }
            }
            Some(nudge) = nudged.recv() => {
                running.extend(task_of(nudge).map(|task| attend(&run, task)));
            }
            never = &mut awake => match never {},
            // The top of the loop takes notice.
            () = options.interrupt.cancelled(), if deadline.is_none() => {}
            () = until(effects, deadline), if deadline.is_some() => break,
        }
    }
    drop(running);
    if !run.halt.is_cancelled()
        && let Err(error) = run.note_ends().await
    {
        board.summary.journal.get_or_insert(error);
    }
    board.summary(plan)
}

/// A run of which nothing is done yet.
fn begin<'a>(
    plan: &'a Plan,
    journal: &'a Journal,
    effects: &'a Effects,
    options: &'a Options,
    nudges: UnboundedSender<Nudge>,
) -> Run<'a> {
    Run {
        plan,
        changes: plan
            .changes
            .iter()
            .map(|change| (&change.address, change))
            .collect(),
        journal,
        effects,
        options,
        reserving: RefCell::default(),
        rooms: RefCell::default(),
        placing: RefCell::default(),
        sightings: RefCell::default(),
        same_accounts: RefCell::default(),
        halt: options.interrupt.child_token(),
        gangs: RefCell::new(gangs(plan, &effects.providers)),
        parked: Cell::new(0),
        limited: RefCell::default(),
        before: journal.with_state(last_attempts),
        nudges,
    }
}

/// What the loop owns.
enum Task {
    /// A step of the plan.
    Step(StepId),
    /// A machine that was given up, until it is proven gone.
    Leave(LeaseId, Generation, Attempt),
}

/// The last try of each lease so far.
fn last_attempts(state: &State) -> BTreeMap<Address, (Generation, Attempt)> {
    let tried = state.resources.iter();
    tried
        .filter(|(_, recorded)| recorded.last_attempt.0 > 0)
        .map(|(address, recorded)| {
            let last = (recorded.generation, recorded.last_attempt);
            (address.clone(), last)
        })
        .collect()
}

/// What a nudge asks for; a step that takes no place any more is noticed at the top of the loop.
fn task_of(nudge: Nudge) -> Option<Task> {
    match nudge {
        Nudge::Leave(lease, generation, attempt) => Some(Task::Leave(lease, generation, attempt)),
        Nudge::Parked => None,
    }
}

/// Steps of earlier runs of this plan that need not be done again. A machine that was given up since is rented again.
fn still_done(run: &Run<'_>) -> BTreeSet<StepId> {
    let mut done = run.state(|state| {
        let run = state.run.as_ref();
        run.map(|run| run.steps_done.clone()).unwrap_or_default()
    });
    done.retain(|id| {
        let Some(step) = run.plan.steps.get(id.0 as usize) else {
            return false;
        };
        match (&step.address, step.verb) {
            (Address::Lease(lease), Verb::Acquire | Verb::Await) => {
                run.held(lease, step.generation).is_some()
            }
            (_, _) => true,
        }
    });
    done
}

/// Runs one task and tells how it went.
async fn attend(run: &Run<'_>, task: Task) -> (Task, Result<(), Stop>) {
    let result = match &task {
        Task::Step(id) => attend_step(run, *id).await,
        Task::Leave(lease, generation, attempt) => run.see_off(lease, *generation, *attempt).await,
    };
    if let (Task::Leave(lease, generation, _), Err(Stop::InDoubt(cause))) = (&task, &result) {
        run.emit(Event::StepInDoubt {
            address: Address::Lease(lease.clone()),
            generation: *generation,
            verb: Verb::Release,
            cause: cause.clone(),
        });
    }
    (task, result)
}

/// Runs one step and says how long it took.
async fn attend_step(run: &Run<'_>, id: StepId) -> Result<(), Stop> {
    let act = Act {
        id,
        step: &run.plan.steps[id.0 as usize],
    };
    let start = run.effects.clock.boottime();
    let result = perform(run, act).await;
    let (address, generation, verb) =
        (act.step.address.clone(), act.step.generation, act.step.verb);
    match &result {
        Ok(()) => run.emit(Event::StepDone {
            address,
            generation,
            verb,
            took: run.since(start),
        }),
        Err(Stop::Refused(cause) | Stop::Dear(cause) | Stop::Full(cause)) => {
            let cause = cause.clone();
            run.emit(Event::StepRefused {
                address,
                generation,
                verb,
                cause,
                goes_on: false,
            });
        }
        Err(Stop::InDoubt(cause)) => {
            run.emit(Event::StepInDoubt {
                address,
                generation,
                verb,
                cause: cause.clone(),
            });
        }
        Err(Stop::Cut | Stop::Journal(_)) => {}
    }
    if let Err(
        Stop::Refused(cause) | Stop::Dear(cause) | Stop::Full(cause) | Stop::InDoubt(cause),
    ) = &result
    {
        run.break_gang(act, cause).await?;
    }
    result
}

/// One arm for each kind of step.
async fn perform(run: &Run<'_>, act: Act<'_>) -> Result<(), Stop> {
    match act.step.verb {
        Verb::Acquire => run.acquire(act).await,
        Verb::Await => run.await_ready(act).await,
        Verb::Release => run.release(act).await,
        Verb::Deliver => run.deliver(act).await,
        Verb::Start => run.start_stage(act).await,
        Verb::Stop => run.stop_stage(act).await,
        Verb::Check => run.check(act).await,
        Verb::Expose => run.expose(act).await,
        Verb::Unexpose => run.unexpose(act).await,
        Verb::Forget => run.done(act, Made::default()).await,
        Verb::Record => run.record(act).await,
    }
}

async fn until(effects: &Effects, deadline: Option<Duration>) {
    let left = deadline
        .unwrap_or_default()
        .saturating_sub(effects.clock.boottime());
    effects.clock.sleep(left).await;
}

/// What is known of every step.
struct Board {
    /// Steps that nothing stands before.
    ready: VecDeque<StepId>,
    /// How many steps each one still waits for.
    waits: Vec<u32>,
    /// Who waits for each one.
    dependents: Vec<Vec<StepId>>,
    /// The resource that blocks each step, once one does.
    blocked: Vec<Option<Address>>,
    /// Steps that ended, one way or the other.
    ended: Vec<bool>,
    /// No new step is started.
    halted: bool,
    summary: Summary,
}

impl Board {
    fn new(plan: &Plan, done: &BTreeSet<StepId>) -> Self {
        let count = plan.steps.len();
        let mut board = Self {
            ready: VecDeque::new(),
            waits: vec![0; count],
            dependents: vec![Vec::new(); count],
            blocked: vec![None; count],
            ended: vec![false; count],
            halted: false,
            summary: Summary::default(),
        };
        for (i, step) in plan.steps.iter().enumerate() {
            let id = StepId(u32::try_from(i).expect("a plan has fewer than 2^32 steps"));
            if done.contains(&id) {
                board.ended[i] = true;
                board.summary.done += 1;
                continue;
            }
            let open = step.after.iter().filter(|before| !done.contains(before));
            for before in open {
                board.waits[i] += 1;
                board.dependents[before.0 as usize].push(id);
            }
            if board.waits[i] == 0 {
                board.ready.push_back(id);
            }
        }
        board
    }

    /// Takes note of how a step ended; returns what it blocks.
    fn settle(
        &mut self,
        plan: &Plan,
        id: StepId,
        result: Result<(), Stop>,
    ) -> Vec<(Address, Verb, Address)> {
        let i = id.0 as usize;
        self.ended[i] = true;
        let step = &plan.steps[i];
        let (cause, in_doubt) = match result {
            Ok(()) => {
                self.summary.done += 1;
                self.release_dependents(i);
                return Vec::new();
            }
            Err(Stop::Cut) => {
                self.halted = true;
                self.ended[i] = false;
                return Vec::new();
            }
            Err(Stop::Journal(error)) => {
                self.halted = true;
                self.ended[i] = false;
                self.summary.journal.get_or_insert(error);
                return Vec::new();
            }
            Err(Stop::Refused(cause) | Stop::Dear(cause) | Stop::Full(cause)) => (cause, false),
            Err(Stop::InDoubt(cause)) => (cause, true),
        };
        let blocked = self.block_dependents(i, &step.address);
        let blocked = blocked.into_iter().map(|id| &plan.steps[id.0 as usize]);
        let news = blocked.map(|other| (other.address.clone(), other.verb, step.address.clone()));
        let news = news.collect();
        let (address, verb) = (step.address.clone(), step.verb);
        self.summary.failed.push(Failed {
            address,
            verb,
            cause,
            in_doubt,
        });
        news
    }

    /// Takes note of how the release of a machine that was given up ended.
    fn left(&mut self, lease: &LeaseId, result: Result<(), Stop>) {
        let (cause, in_doubt) = match result {
            Ok(()) => return,
            Err(Stop::Cut) => {
                self.halted = true;
                return;
            }
            Err(Stop::Journal(error)) => {
                self.halted = true;
                self.summary.journal.get_or_insert(error);
                return;
            }
            Err(Stop::Refused(cause) | Stop::Dear(cause) | Stop::Full(cause)) => (cause, false),
            Err(Stop::InDoubt(cause)) => (cause, true),
        };
        self.summary.failed.push(Failed {
            address: Address::Lease(lease.clone()),
            verb: Verb::Release,
            cause,
            in_doubt,
        });
    }

    fn release_dependents(&mut self, i: usize) {
        for id in std::mem::take(&mut self.dependents[i]) {
            let waits = &mut self.waits[id.0 as usize];
            *waits -= 1;
            if *waits == 0 {
                self.ready.push_back(id);
            }
        }
    }

    fn block_dependents(&mut self, i: usize, by: &Address) -> Vec<StepId> {
        let mut found = Vec::new();
        let mut next = std::mem::take(&mut self.dependents[i]);
        while let Some(id) = next.pop() {
            let i = id.0 as usize;
            if self.blocked[i].is_none() {
                self.blocked[i] = Some(by.clone());
                found.push(id);
                next.append(&mut self.dependents[i]);
            }
        }
        found
    }

    fn interrupt(&mut self) {
        self.halted = true;
        self.summary.interrupted = true;
    }

    fn summary(mut self, plan: &Plan) -> Summary {
        for (i, step) in plan.steps.iter().enumerate() {
            if !self.ended[i] {
                let by = self.blocked[i].take();
                self.summary
                    .blocked
                    .push((step.address.clone(), step.verb, by));
            }
        }
        self.summary
    }
}
