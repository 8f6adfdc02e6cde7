//! Carries a plan out: lock, begin, run, end, and the last words.

use std::collections::BTreeMap;
use std::sync::Arc;

use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId, Lineage, Name, WriterId};
use stageline_core::plan::{Mode, Plan, Start, Verdict, is_protected, may_apply};
use stageline_core::resource::{LeaseSpec, Terms};
use stageline_core::state::State;
use stageline_core::topology::{Caps, Topology};
use stageline_core::unit::{MicroDollars, Millis};

use tokio_util::sync::CancellationToken;

use super::console::Console;
use super::exit::of_cause;
use super::keys::{self, IdentityKeys, References};
use super::project::Place;
use super::reporter::Reporter;
use super::sellers::Sellers;
use super::{Exit, Failure, fetched, money, pushed, relay, session, shell, signals, unseen};
use crate::ambient::{self, ProcessId, SharedClock, random};
use crate::apply::{self, Effects, Keys, Options, Providers, Summary};
use crate::machine::Machines;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::pipeline::endpoint::RelayAccess;
use crate::provider::{Machine, Unseen};
use crate::store::{
    Acquired, AppendError, Begin, First, HEARTBEAT, Holder, Identity, Journal, Lock, Store, Writer,
    fresh_watcher,
};

/// How long running calls may go on after the first Ctrl-C.
const GRACE: Millis = Millis(1200);

/// What is carried out, and with what.
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    /// None when everything is ended.
    pub topology: Option<&'a Topology>,
    pub digest: Option<stageline_core::id::Fingerprint>,
    pub place: &'a Place,
    /// Relative paths of secrets start here.
    pub folder: &'a std::path::Path,
    pub parallelism: usize,
    pub command: &'a str,
    /// Time has passed since it was drafted: somebody looked at it. What it relies on is looked for again.
    pub reviewed: bool,
    /// Fires when the run is to stop. Whoever brings it says the last words itself; none is Ctrl-C, with our own words.
    pub interrupt: Option<CancellationToken>,
}

/// Runs it, and says how it ended.
pub(crate) async fn run(
    job: &Job<'_>,
    store: &Store,
    clock: &SharedClock,
    console: &Console,
) -> Result<Exit, Failure> {
    let by = ambient::who();
    let clock = &ambient::steady(clock.clone());
    let writer = Writer {
        id: WriterId(random()),
        clock: clock.clone(),
    };
    let holder = Holder {
        writer: writer.id,
        process: ProcessId::this(),
        by: by.clone(),
        command: job.command.to_owned(),
    };
    if let Some(doubt) = Lock::look(store).await?.and_then(|held| held.doubt()) {
        console.line(&doubt);
    }
    let interval = ambient::heartbeat().unwrap_or(HEARTBEAT);
    let lock = match Lock::acquire(store, holder, clock, interval).await? {
        Acquired::Lock(lock) => lock,
        Acquired::Held(held) => return Err((*held).into()),
    };
    let result = locked(job, store, clock, console, by, writer).await;
    lock.release().await;
    result
}

async fn locked(
    job: &Job<'_>,
    store: &Store,
    clock: &SharedClock,
    console: &Console,
    by: String,
    writer: Writer,
) -> Result<Exit, Failure> {
    let loaded = store.read().await?;
    let start = may_apply(job.plan, &loaded.state, job.digest, clock.now())?;
    keys::at_hand(job.plan, job.folder)?;
    let relays = relay::relays(job.topology, &loaded.state, job.folder)?;
    let (keys, first) = identity(job, store, &loaded.state, relays.told.clone())?;
    let hands = hands(job, keys.as_ref(), relays).await?;
    let sellers = Sellers {
        topology: job.topology,
        state: &loaded.state,
        place: job.place,
        folder: job.folder,
        clock,
    };
    let providers = sellers.providers()?;
    guarded(job, store, &loaded.state, &providers, clock).await?;
    unseen::look(job.plan, &loaded.state, &providers).await?;
    pushed::look(job.plan, &providers)?;
    fetched::look(job.plan, &providers, console).await?;
    let bytes = serde_json::to_vec(job.plan).expect("a plan is plain data");
    store.put_plan(job.plan.id, bytes).await?;
    let begin = Begin {
        command: job.command.to_owned(),
        by,
        plan: Some(job.plan.id),
        resume: start == Start::Resume,
        expect_projection: (start == Start::Fresh).then_some(job.plan.base),
        first,
        wait_for_open: false,
    };
    let mut reporter = Reporter::new(console, clock.clone());
    let interrupt = interrupt(job, &reporter)?;
    let journal = Journal::begin(store, loaded, begin, writer).await?;
    let effects = Effects {
        providers: providers.clone(),
        machines: hands.clone().map(|hands| hands as Arc<dyn Machines>),
        keys: keys.map(|keys| Arc::new(keys) as Arc<dyn Keys>),
        secrets: Arc::new(References {
            folder: job.folder.to_owned(),
        }),
        clock: clock.clone(),
        events: reporter.sink(),
    };
    let options = options(job, interrupt);
    let done = journal.with_state(|state| state.run.as_ref().map_or(0, |run| run.steps_done.len()));
    (effects.events)(Event::RunBegan {
        plan: job.plan.id,
        resumed: start == Start::Resume,
        steps: count(job.plan.steps.len()),
        done: count(done),
    });
    let summary = apply::run(job.plan, &journal, &effects, &options).await;
    if summary.journal.is_none() {
        journal.finish(summary.finished()).await?;
    }
    (effects.events)(ended(&summary));
    reporter.finish();
    if let Some(hands) = &hands {
        AgentClient::close(hands).await;
    }
    let state = journal.with_state(Clone::clone);
    conclude(job, &summary, &state, &providers, clock, console).await
}

/// How the run is steered: by what was asked for, and by the caps of the file.
fn options(job: &Job<'_>, interrupt: CancellationToken) -> Options {
    Options {
        parallelism: job.parallelism,
        max_total_per_hour: job
            .topology
            .and_then(|topology| topology.limits.max_total_per_hour),
        max_spend: job.topology.and_then(|topology| topology.limits.max_spend),
        max_leases: job.topology.and_then(|topology| topology.limits.max_leases),
        caps: job.topology.map(caps).unwrap_or_default(),
        interrupt,
        grace: GRACE,
    }
}

/// What may be on the account of each provider.
fn caps(topology: &Topology) -> BTreeMap<Name, Caps> {
    let all = topology.providers.iter();
    all.filter(|(_, provider)| !provider.caps.is_none())
        .map(|(name, provider)| (name.clone(), provider.caps))
        .collect()
}

/// What was left to a watcher is not rented when none runs any more.
async fn guarded(
    job: &Job<'_>,
    store: &Store,
    state: &State,
    providers: &Providers,
    clock: &SharedClock,
) -> Result<(), Failure> {
    let Some(topology) = job.topology.filter(|_| job.reviewed) else {
        return Ok(());
    };
    if !job.plan.needs_a_watcher(state) || fresh_watcher(store, clock).await?.is_some() {
        return Ok(());
    }
    let seller = |name: &Name| {
        let declared = topology.providers.get(name)?;
        providers.get(name, declared.kind.as_str()).ok()
    };
    let meant = |lease: &Name, spec: &LeaseSpec| {
        let unguarded = topology
            .leases
            .get(lease)
            .is_some_and(|lease| lease.unguarded);
        let billed = |terms: &Terms| seller(&terms.provider).is_none_or(|one| one.bills());
        unguarded || !spec.rented_under().any(billed)
    };
    let ends_itself = |name: &Name| seller(name).is_some_and(|one| one.traits().self_destroy);
    let found = job.plan.without_a_watcher(state, meant, ends_itself);
    if found.is_empty() {
        Ok(())
    } else {
        Err(Failure::diagnostics(found, Vec::new()))
    }
}

/// What stops the run.
fn interrupt(job: &Job<'_>, reporter: &Reporter) -> Result<CancellationToken, Failure> {
    match &job.interrupt {
        Some(interrupt) => Ok(interrupt.clone()),
        None => signals::watch(reporter.sink()),
    }
}

/// Our hands on machines. A relay that lets nobody in is better known before a machine is rented that nobody could reach.
async fn hands(
    job: &Job<'_>,
    keys: Option<&IdentityKeys>,
    relays: relay::Relays,
) -> Result<Option<Arc<AgentClient>>, Failure> {
    let declares = relays.told.is_some() && !job.plan.is_empty();
    let hands = keys.map(|keys| session::hands(keys, relays, job.place));
    if let (Some(hands), true) = (&hands, declares) {
        hands.online().await?;
    }
    Ok(hands)
}

/// The identity, which is made together with the lineage. A run that only ends machines needs none.
fn identity(
    job: &Job<'_>,
    store: &Store,
    state: &State,
    relay: Option<RelayAccess>,
) -> Result<(Option<IdentityKeys>, Option<First>), Failure> {
    match &state.genesis {
        Some(genesis) if job.plan.mode == Mode::Destroy => {
            Ok((session::keys_of(store, genesis, relay).ok(), None))
        }
        Some(genesis) => Ok((Some(session::keys_of(store, genesis, relay)?), None)),
        None => {
            let lineage = Lineage(random());
            let identity = Identity::make(store, &lineage, session::identity_variable().as_ref())?;
            let first = First {
                lineage,
                operator: identity.operator(&lineage),
                topology: job.plan.topology.clone(),
            };
            Ok((
                Some(IdentityKeys {
                    identity,
                    lineage,
                    relay,
                }),
                Some(first),
            ))
        }
    }
}

fn ended(summary: &Summary) -> Event {
    let (in_doubt, refused): (Vec<_>, Vec<_>) =
        summary.failed.iter().partition(|failed| failed.in_doubt);
    Event::RunEnded {
        finished: summary.finished(),
        done: summary.done,
        refused: count(refused.len()),
        in_doubt: count(in_doubt.len()),
        blocked: count(summary.blocked.len()),
    }
}

/// The last words: what is up, what it costs, what to type.
async fn conclude(
    job: &Job<'_>,
    summary: &Summary,
    state: &State,
    providers: &Providers,
    clock: &SharedClock,
    console: &Console,
) -> Result<Exit, Failure> {
    shell::forget(job.place, state);
    if let Some(error) = &summary.journal {
        if let AppendError::InDoubt { .. } = error {
            up(job, state, console);
        }
        return Err(error.clone().into());
    }
    if job.interrupt.is_some() && !summary.finished() {
        let doubt = summary.failed.iter().any(|failed| failed.in_doubt);
        return Ok(if doubt { Exit::Doubt } else { Exit::Stopped });
    }
    if summary.interrupted {
        console
            .line("stopped; what was begun is written down, and the same command goes on with it");
        up(job, state, console);
        return Ok(Exit::Interrupted);
    }
    if summary.finished() && job.plan.mode == Mode::Destroy {
        return proven(job.place, job.plan, state, providers, clock, console).await;
    }
    if summary.finished() {
        reachable(state, console)?;
        let alive = |lease: &LeaseId| state.lease(lease).is_some_and(|held| held.ready.is_some());
        money::tell_of(state, clock.as_ref(), alive, console);
        return Ok(Exit::Done);
    }
    let (failed, blocked) = (summary.failed.len(), summary.blocked.len());
    console.line(&format!(
        "{} steps done, {failed} failed, {blocked} not started; run the same command again to go on",
        summary.done
    ));
    up(job, state, console);
    money::tell_of(state, clock.as_ref(), |_| false, console);
    let doubt = summary.failed.iter().any(|failed| failed.in_doubt);
    let worst = summary.failed.iter().map(|failed| of_cause(&failed.cause));
    let worst = worst
        .min_by_key(|exit| *exit as u8)
        .unwrap_or(Exit::Stopped);
    Ok(if doubt { Exit::Doubt } else { worst })
}

/// An independent listing after a plan ended all that it was to end, also when that was nothing. What carries our mark
/// and no record is ended too: it is an extra that came late.
pub(crate) async fn proven(
    place: &Place,
    plan: &Plan,
    state: &State,
    providers: &Providers,
    clock: &SharedClock,
    console: &Console,
) -> Result<Exit, Failure> {
    let look = async || {
        observe::survivors_but(state, providers)
            .await
            .map_err(|blind| {
                Failure::new(Exit::Doubt, blind.to_string()).hint(
                "nothing is proven; mend access to the account and run `stageline destroy` again",
            )
            })
    };
    costs(state, providers, clock, console).await;
    let recorded = |id: &stageline_core::id::MachineId| {
        if state.disowned.contains_key(id) {
            return true;
        }
        let leases = state.existing().filter_map(|(address, _)| address.lease());
        leases
            .filter_map(|lease| state.lease(lease))
            .any(|held| held.machine == *id)
    };
    let (mut left, mut unseen) = look().await?;
    let late = left.iter().filter(|one| !recorded(&one.machine.id));
    for survivor in late {
        console.line(&format!(
            "{} came late; it is released",
            named(&survivor.machine)
        ));
        // The listing below tells whether it worked.
        let _ = survivor.seller.release(&survivor.machine.id).await;
    }
    if !left.is_empty() {
        (left, unseen) = look().await?;
    }
    let given_up = given_up(&left, state, console);
    by_word_only(providers, console);
    let hidden = not_seen(&unseen, state, console);
    let unasked = not_asked(state, providers, console);
    if left.is_empty() && state.is_empty() {
        let verified = if unseen.is_empty() && !unasked {
            "verified"
        } else {
            "as far as they can be seen,"
        };
        console.say(&format!(
            "{}: 0 left at providers, {verified} at {:.0}; 0 items on platforms we do not control",
            place.name,
            clock.now()
        ));
        return Ok(done(hidden || unasked));
    }
    left.retain(|survivor| !recorded(&survivor.machine.id));
    for survivor in &left {
        console.line(&format!(
            "left at provider `{}` of kind `{}`: {}, {} per hour; `stageline destroy` tries again to end it",
            survivor.provider,
            survivor.kind,
            named(&survivor.machine),
            survivor.machine.price_per_hour
        ));
    }
    let recorded = what_stays(place, plan, state, console);
    let protected = protected(state, console);
    Ok(if recorded || !left.is_empty() {
        Exit::Doubt
    } else {
        done(protected || given_up || hidden || unasked)
    })
}

/// Everything that was to be ended is; something else may be there.
const fn done(remains: bool) -> Exit {
    if remains { Exit::Remains } else { Exit::Done }
}

/// A machine for people, or what is none.
fn named(machine: &Machine) -> String {
    match machine.leftover() {
        Some(what) => format!("{} ({what})", machine.id),
        None => format!("machine {}", machine.id),
    }
}

/// Says which parts of accounts could not be seen. True when a machine that was taken out of the state may be in one.
fn not_seen(unseen: &[(Name, Unseen)], state: &State, console: &Console) -> bool {
    let mut hidden = false;
    for (name, part) in unseen {
        let disowned = state.disowned.keys();
        let there: Vec<&str> = disowned
            .map(|machine| machine.as_str())
            .filter(|machine| part.concerns(machine))
            .collect();
        hidden |= !there.is_empty();
        let what = if !there.is_empty() {
            let there = there.join(", ");
            format!("what was taken out of the state may be there still: machine {there}")
        } else if observe::may_hold(state, part) {
            "what is recorded there stays recorded".to_owned()
        } else {
            "nothing recorded is there".to_owned()
        };
        console.line(&format!(
            "{} of provider `{name}` cannot be seen: {}; {what}",
            part.part, part.cause.message
        ));
    }
    hidden
}

/// Says which machines that were taken out of the state are at providers that nothing recorded is at, so that nobody asked there.
/// True when there are any.
fn not_asked(state: &State, providers: &Providers, console: &Console) -> bool {
    let unasked = |provider: &Name, kind: &str| providers.get(provider, kind).is_err();
    let mut any = false;
    for (machine, one) in &state.disowned {
        if unasked(&one.provider, &one.provider_kind) {
            any = true;
            console.line(&format!(
                "machine {machine} was taken out of the state at {:.0}, and provider `{}` was not asked for it: `stageline \
                 orphans` tells whether it is there",
                one.at, one.provider
            ));
        }
    }
    any
}

/// Says what it cost: by the ledger, and by the word of those who bill.
async fn costs(state: &State, providers: &Providers, clock: &SharedClock, console: &Console) {
    money::tell(
        &money::ledger(state, clock.as_ref(), |_| false, &[]),
        console,
    );
    for billed in money::bills(state, providers, clock.as_ref()).await {
        console.say(&billed.to_string());
    }
}

/// Says whose machines are not proven gone by a listing of their provider's own.
fn by_word_only(providers: &Providers, console: &Console) {
    for (name, provider) in providers.named() {
        if !provider.traits().sees_account {
            console.line(&format!(
                "provider `{name}` cannot list its machines: that those made from here are gone is the word of its `release`, and \
                 others cannot be seen"
            ));
        }
    }
}

/// Says which machines are left alone because they were taken out of the state. True when there are any.
fn given_up(left: &[observe::Survivor], state: &State, console: &Console) -> bool {
    let known = |survivor: &&observe::Survivor| state.disowned.contains_key(&survivor.machine.id);
    for survivor in left.iter().filter(known) {
        let (machine, disowned) = (&survivor.machine, &state.disowned[&survivor.machine.id]);
        console.line(&format!(
            "machine {} was taken out of the state at {:.0} and is left alone: {} per hour; `stageline import {} {}` takes \
             it back",
            machine.id, disowned.at, machine.price_per_hour, disowned.lease, machine.id
        ));
    }
    left.iter().any(|survivor| known(&survivor))
}

/// Says which leases were spared because they are protected. True when there are any.
fn protected(state: &State, console: &Console) -> bool {
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    let spared: Vec<&LeaseId> = leases.filter(|lease| is_protected(state, lease)).collect();
    for lease in &spared {
        if let Some(held) = state.lease(lease) {
            console.line(&format!(
                "{lease} is protected and was left out: machine {}, {} per hour, goes on; to end it, set `protect = false` in \
                 [lease.{}], apply, and destroy again; without the file, `stageline state rm {lease}` lifts that, and \
                 `stageline orphans --release {}` ends it",
                held.machine, held.price_per_hour, lease.name, held.machine
            ));
        }
    }
    !spared.is_empty()
}

/// Says what is still recorded. True when something of it was to be ended.
fn what_stays(place: &Place, plan: &Plan, state: &State, console: &Console) -> bool {
    let to_end = |address: &Address| {
        let changes = plan.changes.iter();
        let mut deleted = changes.filter(|change| change.verdict == Verdict::Delete);
        deleted.any(|change| change.address == *address)
    };
    let existing = state.existing().map(|(address, _)| address);
    let (late, rest): (Vec<&Address>, Vec<&Address>) = existing.partition(|one| to_end(one));
    let spared = |address: &&Address| {
        let on = state.resources.get(*address);
        let on = on.map_or_else(Vec::new, |recorded| recorded.machines_of(address));
        !on.is_empty() && on.iter().all(|lease| is_protected(state, lease))
    };
    let rest: Vec<&Address> = rest.into_iter().filter(|one| !spared(one)).collect();
    for address in &late {
        console.line(&format!("{address} was to be ended and is still recorded"));
    }
    if !rest.is_empty() {
        let verb = if rest.len() == 1 { "stays" } else { "stay" };
        let names: Vec<String> = rest.iter().map(ToString::to_string).collect();
        console.say(&format!(
            "{}: {} {verb}, as asked for; `stageline destroy` ends the rest",
            place.name,
            names.join(", ")
        ));
    }
    !late.is_empty()
}

/// What a client is pointed at.
fn reachable(state: &State, console: &Console) -> Result<(), Failure> {
    for (address, recorded) in state.existing() {
        if let Some(stageline_core::resource::Receipt::Exposure(receipt)) = &recorded.receipt {
            let line = format!("{address}: {}", receipt.url);
            if console.json {
                console.say(&line);
            } else {
                console.data(&format!("{line}\n"))?;
            }
        }
    }
    Ok(())
}

/// Each machine that is up or may be, what it costs, and the command that ends it.
fn up(job: &Job<'_>, state: &State, console: &Console) {
    for (address, recorded) in state.existing() {
        let Address::Lease(lease) = address else {
            continue;
        };
        let price = recorded.committed_per_hour();
        let what = match state.lease(lease) {
            Some(held) => format!("{lease} is up: machine {}, {price} per hour", held.machine),
            None if !recorded.is_unresolved() => continue,
            None if price == MicroDollars::ZERO => {
                format!("{lease} is unresolved: a machine may be there, which costs nothing")
            }
            None => {
                format!(
                    "{lease} is unresolved: a machine may be there and bill up to {price} per hour"
                )
            }
        };
        console.line(&format!("{what}; `stageline release {lease}` ends it"));
    }
    let total = state.committed_per_hour();
    if total > MicroDollars::ZERO || !state.is_empty() {
        console.line(&format!(
            "{total} per hour in all; `stageline destroy` ends everything of `{}`",
            job.place.name
        ));
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
