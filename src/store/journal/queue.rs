//! The one task that writes: it takes what has queued, makes it one entry, and answers everybody who waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use stageline_core::id::{Address, Epoch, JournalNumber, LeaseId, Nonce};
use stageline_core::journal::{Entry, FORMAT, Record, shorten};
use stageline_core::state::{FoldError, Run, State};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{Request, Shared};
use crate::store::put::Offered;
use crate::store::{AppendError, snapshot};

/// Records in one entry: bounds its size. One append is never split.
const RECORDS_MAX: usize = 2048;

/// Leases of a table that are looked at for one with the same spec and facts.
const SIBLINGS: usize = 4;

type Answer = oneshot::Sender<Result<JournalNumber, AppendError>>;

/// What becomes one entry.
#[derive(Default)]
struct Group {
    records: Vec<Record>,
    answers: Vec<Answer>,
    finish: Option<Answer>,
}

/// Runs until the run has ended, has failed for good, or nobody can append any more.
pub(super) async fn serve(shared: Arc<Shared>, mut requests: mpsc::Receiver<Request>) {
    let mut snapshot: Option<JoinHandle<()>> = None;
    while let Some(request) = requests.recv().await {
        // Those whom the last entry has woken append now, too: let them into this one.
        tokio::task::yield_now().await;
        let group = gather(&shared, request, &mut requests);
        if group.records.is_empty() && group.finish.is_none() {
            answer(group.answers, &Ok(shared.read().head));
            continue;
        }
        let result = write(&shared, group.records).await;
        answer(group.answers, &result);
        if let Some(finish) = group.finish {
            if result.is_ok() {
                settle(&shared, snapshot.take()).await;
            }
            answer(vec![finish], &result);
            return refuse(requests, &result.err().unwrap_or(AppendError::Closed)).await;
        }
        if let Err(error) = &result {
            return refuse(requests, error).await;
        }
        if snapshot.as_ref().is_none_or(JoinHandle::is_finished) {
            snapshot = snapshot_if_due(&shared);
        }
    }
}

/// Takes what has queued up to a limit, in order; an end is the last of its entry.
fn gather(shared: &Shared, first: Request, requests: &mut mpsc::Receiver<Request>) -> Group {
    let folded = shared.read();
    let mut trial = Trial::new(&folded.state, folded.head.next(), shared.epoch);
    let mut group = Group::default();
    let mut next = Some(first);
    while let Some(request) = next {
        match request {
            Request::Append(records, answer) => match trial.admit(records) {
                Ok(()) => group.answers.push(answer),
                // A bug of this one caller; the others' records are sound.
                Err(error) => drop(answer.send(Err(AppendError::Impossible(error)))),
            },
            Request::Finish(finished, answer) => {
                let at = shared.writer.clock.now();
                match trial.admit(vec![Record::End { finished, at }]) {
                    Ok(()) => group.finish = Some(answer),
                    Err(error) => drop(answer.send(Err(AppendError::Impossible(error)))),
                }
                break;
            }
        }
        if trial.entry.records.len() >= RECORDS_MAX {
            break;
        }
        next = requests.try_recv().ok();
    }
    group.records = trial.entry.records;
    group
}

/// Makes one entry durable and folds it.
async fn write(shared: &Shared, records: Vec<Record>) -> Result<JournalNumber, AppendError> {
    let (n, prev) = {
        let folded = shared.read();
        (folded.head.next(), folded.digest)
    };
    let entry = Entry {
        format: FORMAT,
        n,
        prev,
        epoch: shared.epoch,
        writer: shared.writer.id,
        nonce: Nonce(crate::ambient::random()),
        records,
    };
    let bytes = Bytes::from(entry.encode());
    let offered = Offered {
        n,
        writer: entry.writer,
        nonce: entry.nonce,
        bytes: bytes.clone(),
    };
    shared
        .store
        .put_entry(&offered, &shared.writer.clock)
        .await?;
    shared
        .write()
        .follow(&entry, &bytes)
        .map_err(AppendError::Impossible)?;
    shared.head.send_replace(n);
    Ok(n)
}

/// After the last entry: a snapshot that is under way or due, then the readable copy.
async fn settle(shared: &Arc<Shared>, running: Option<JoinHandle<()>>) {
    if let Some(running) = running {
        // It only warns.
        drop(running.await);
    }
    if let Some(due) = snapshot_if_due(shared) {
        drop(due.await);
    }
    shared.put_readable().await;
}

/// Starts a snapshot beside the appends: they go on, and none of them depends on it.
fn snapshot_if_due(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let mut folded = shared.write();
    if !snapshot::is_due(folded.journal_bytes, folded.snapshot_bytes) {
        return None;
    }
    folded.journal_bytes = 0;
    let shared = shared.clone();
    Some(tokio::spawn(async move { shared.put_snapshot().await }))
}

/// Tells everybody who still asks that this run is over.
async fn refuse(mut requests: mpsc::Receiver<Request>, error: &AppendError) {
    while let Some(request) = requests.recv().await {
        match request {
            Request::Append(_, reply) | Request::Finish(_, reply) => {
                answer(vec![reply], &Err(error.clone()));
            }
        }
    }
}

fn answer(answers: Vec<Answer>, result: &Result<JournalNumber, AppendError>) {
    for reply in answers {
        // A caller may have stopped waiting.
        drop(reply.send(result.clone()));
    }
}

/// Folds records into an excerpt of the state before they are written: only what they touch is copied.
struct Trial<'a> {
    real: &'a State,
    excerpt: State,
    copied: BTreeSet<Address>,
    /// The entry so far.
    entry: Entry,
}

impl<'a> Trial<'a> {
    fn new(real: &'a State, n: JournalNumber, epoch: Epoch) -> Self {
        let mut trial = Self {
            real,
            excerpt: State::default(),
            copied: BTreeSet::new(),
            entry: Entry {
                format: FORMAT,
                n,
                prev: stageline_core::id::Fingerprint([0; 32]),
                epoch,
                writer: stageline_core::id::WriterId([0; 16]),
                nonce: Nonce([0; 16]),
                records: Vec::new(),
            },
        };
        trial.reset();
        trial
    }

    fn reset(&mut self) {
        self.copied.clear();
        self.excerpt = State {
            genesis: self.real.genesis.clone(),
            run: self.real.run.as_ref().map(without_steps),
            ..State::default()
        };
    }

    /// Adds one caller's records to the entry if they can follow, in few words where that says the same.
    fn admit(&mut self, records: Vec<Record>) -> Result<(), FoldError> {
        if let [record @ Record::Done { .. }] = records.as_slice() {
            let brief = self.shortened(record.clone());
            if self.follow(vec![brief]).is_ok() {
                return Ok(());
            }
        }
        self.follow(records)
    }

    fn follow(&mut self, records: Vec<Record>) -> Result<(), FoldError> {
        let accepted = std::mem::replace(&mut self.entry.records, records);
        let result = self.fold();
        let records = std::mem::replace(&mut self.entry.records, accepted);
        if result.is_ok() {
            self.entry.records.extend(records);
        } else {
            // Half of them may be in the excerpt.
            self.reset();
            self.fold()
                .expect("what was accepted once is accepted again");
        }
        result
    }

    fn shortened(&self, record: Record) -> Record {
        let known = |address: &Address| {
            if self.copied.contains(address) {
                self.excerpt.resources.get(address)
            } else {
                self.real.resources.get(address)
            }
        };
        let sibling = match record.address() {
            Some(Address::Lease(id)) => {
                let first = Address::Lease(LeaseId {
                    name: id.name.clone(),
                    index: 0,
                });
                let others = self.real.resources.range(first..);
                others
                    .map(|(address, _)| address)
                    .take(SIBLINGS)
                    .find(|other| known(other).is_some_and(|known| known.spec.is_some()))
            }
            Some(_) | None => None,
        };
        shorten(record, known, sibling)
    }

    /// Folds the entry's records as they are.
    fn fold(&mut self) -> Result<(), FoldError> {
        let touched = self.entry.records.iter().flat_map(Record::addresses);
        for address in touched {
            if !self.copied.insert(address.clone()) {
                continue;
            }
            if let Some(recorded) = self.real.resources.get(address) {
                self.excerpt
                    .resources
                    .insert(address.clone(), recorded.clone());
            }
            if let Some(generation) = self.real.generations.get(address) {
                self.excerpt
                    .generations
                    .insert(address.clone(), *generation);
            }
        }
        self.excerpt.apply(&self.entry)
    }
}

/// What entries are checked against. The steps that are done grow with the plan and refuse nothing.
fn without_steps(run: &Run) -> Run {
    Run {
        epoch: run.epoch,
        command: run.command.clone(),
        plan: run.plan,
        by: run.by.clone(),
        at: run.at,
        open: run.open,
        steps_done: BTreeSet::new(),
    }
}
