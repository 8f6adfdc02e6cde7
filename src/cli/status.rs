//! `status`: leases, stages and exposures as they are now, and what they cost.

use std::collections::BTreeMap;

use serde::Serialize;
use stageline_core::id::{Address, LeaseId, Name};
use stageline_core::plan::{dead, taken_away};
use stageline_core::resource::{Receipt, Spec};
use stageline_core::state::{BadHost, Ledger, Observed, ObservedLease, Recorded, Seen, State};
use stageline_core::topology::OnInterrupt;
use stageline_core::unit::MicroDollars;

use super::console::Console;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, money, project, relay, session, unseen};
use crate::ambient::Clock;
use crate::machine::client::AgentClient;
use crate::machine::{AgentStatus, Target, WorkerState};
use crate::observe;
use crate::store::{Lock, LockInfo, Mode};

/// Leases, stages and exposures as they are now, and what they cost.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {}

/// What is known of everything, now.
#[derive(Serialize)]
struct Report {
    topology: String,
    at_work: Option<LockInfo>,
    resources: Vec<Line>,
    per_hour: String,
    /// What each lease cost so far, and all of them.
    spent: Ledger,
    /// What providers billed, by their own word.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    billed: Vec<money::Billed>,
    /// What hosts ask for machines that cost less.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    asked: Vec<money::Asked>,
    healthy: bool,
    /// Of some machine nobody can tell whether it is there.
    #[serde(skip)]
    blind: bool,
    /// Where machines failed: no plan takes that for a week.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    avoided: Vec<BadHost>,
}

/// One resource.
#[derive(Serialize)]
struct Line {
    address: Address,
    health: Health,
    detail: String,
    /// What to do about it, when that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// Whether a resource is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    Ok,
    Waiting,
    Broken,
    Unknown,
}

impl Status {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let clock = session::clock();
        let report = session::runtime()?.block_on(async {
            let store = place.open(Mode::Read).await?;
            let state = store.read().await?.state;
            let at_work = Lock::look(&store).await?;
            let sellers = Sellers::recorded(&state, &place, &clock);
            let providers = sellers.providers()?;
            let relays = relay::relays(None, &state, &project::folder(global));
            let missing = state
                .genesis
                .as_ref()
                .map(|genesis| session::keys_of(&store, genesis, None).err());
            let hands = session::hands_if_any(&store, &state, relays, &place)?;
            let observed = observe::look(&state, &providers, None, clock.as_ref()).await;
            let agents = match hands {
                Some(hands) => agents(&state, &observed, &hands, clock.as_ref()).await,
                None => BTreeMap::new(),
            };
            if let Some(Some(failure)) = missing
                && !state.is_empty()
            {
                return Err(failure);
            }
            let resources = lines(&state, &observed, &agents);
            let told = observe::dates(&state, &providers).await;
            let alive = |lease: &LeaseId| observed.leases.get(lease).is_some_and(is_up);
            let healthy = resources.iter().all(|line| line.health == Health::Ok);
            Ok::<_, Failure>(Report {
                topology: place.name.to_string(),
                at_work,
                resources,
                per_hour: per_hour(&state, &observed).to_string(),
                spent: money::ledger(&state, clock.as_ref(), alive, &told),
                billed: money::bills(&state, &providers, clock.as_ref()).await,
                asked: money::asked(&state, &providers, clock.as_ref()).await,
                healthy,
                blind: is_blind(&observed),
                avoided: state.bad_at(clock.now()).cloned().collect(),
            })
        })?;
        if console.json {
            console.document(&report)?;
        } else {
            console.data(&text(&report, console))?;
        }
        Ok(match (report.healthy, report.blind) {
            (_, true) => Exit::Doubt,
            (true, false) => Exit::Done,
            (false, false) => Exit::Stopped,
        })
    }
}

/// What the agents of machines that are up say of themselves.
async fn agents(
    state: &State,
    observed: &Observed,
    hands: &AgentClient,
    clock: &dyn Clock,
) -> BTreeMap<LeaseId, Result<AgentStatus, String>> {
    let asked = observed.leases.iter().filter(|(_, seen)| is_up(seen));
    let asked =
        asked.filter_map(|(lease, _)| observe::target_by(state, lease, observed.moved(lease)));
    let asked: Vec<Target> = asked.collect();
    let agents = match hands.online().await {
        Ok(()) => observe::statuses(asked, hands, clock).await,
        Err(refusal) => {
            let silent = asked.into_iter();
            silent
                .map(|target| (target.lease, Err(refusal.message.clone())))
                .collect()
        }
    };
    hands.close().await;
    agents
}

/// Of some machine nobody can tell whether it is there, and not for its being too new.
fn is_blind(observed: &Observed) -> bool {
    observed.leases.iter().any(|(lease, seen)| match seen {
        Seen::Unknown(_) => !observed.young.contains(lease),
        Seen::There(_) | Seen::Gone => false,
    })
}

/// What everything costs an hour: as recorded, and where a machine was seen, as it was seen.
fn per_hour(state: &State, observed: &Observed) -> MicroDollars {
    let mut sum = state.committed_per_hour();
    for (lease, seen) in &observed.leases {
        let Some(held) = state.lease(lease) else {
            continue;
        };
        let now = match seen {
            Seen::There(there) => there.price_per_hour,
            Seen::Gone => MicroDollars::ZERO,
            Seen::Unknown(_) => held.price_per_hour,
        };
        sum = MicroDollars(sum.0.saturating_sub(held.price_per_hour.0)).saturating_add(now);
    }
    sum
}

fn is_up(seen: &Seen<ObservedLease>) -> bool {
    match seen {
        Seen::There(there) => there.dead.is_none(),
        Seen::Gone | Seen::Unknown(_) => false,
    }
}

type Agents = BTreeMap<LeaseId, Result<AgentStatus, String>>;

fn lines(state: &State, observed: &Observed, agents: &Agents) -> Vec<Line> {
    let mut lines = Vec::new();
    for (address, recorded) in state.existing() {
        let (health, detail) =
            if let (Some(pending), false) = (&recorded.pending, address.kind() == "lease") {
                let why = pending
                    .cause
                    .as_ref()
                    .map_or("cut off", |cause| cause.message.as_str());
                (
                    Health::Broken,
                    format!("{} was not finished: {why}", pending.verb.doing()),
                )
            } else {
                match address {
                    Address::Lease(lease) => self::lease(state, observed, agents, lease),
                    Address::Delivery(lease) => delivery(agents, lease),
                    Address::Stage(stage) => match &recorded.spec {
                        Some(Spec::Stage(spec)) => self::stage(agents, &spec.on, stage),
                        Some(_) | None => (Health::Unknown, "never finished".to_owned()),
                    },
                    Address::Pipeline(_) => match &recorded.receipt {
                        Some(Receipt::Pipeline(receipt)) => (
                            Health::Ok,
                            format!("answered its check in {}", receipt.took),
                        ),
                        Some(_) | None => (Health::Waiting, "not checked yet".to_owned()),
                    },
                    Address::Exposure(name) => match (&recorded.spec, &recorded.receipt) {
                        (Some(Spec::Exposure(spec)), Some(Receipt::Exposure(receipt))) => {
                            exposure(agents, &spec.at, name, &receipt.url)
                        }
                        (_, _) => (Health::Waiting, "not up yet".to_owned()),
                    },
                    Address::Bundle(_) => (Health::Ok, String::new()),
                }
            };
        let (health, detail) = match address {
            Address::Pipeline(name) => chain(name, &lines, health, detail),
            Address::Lease(_)
            | Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Exposure(_) => (health, detail),
        };
        let silent = address
            .lease()
            .filter(|lease| matches!(agents.get(lease), Some(Err(_))));
        let (detail, hint) = match silent {
            None => (detail, after(state, observed, address)),
            Some(lease) => (
                with_age(state, detail),
                Some(format!(
                    "when {lease} stays silent, `stageline apply --replace {lease}` rents another machine"
                )),
            ),
        };
        lines.push(Line {
            address: address.clone(),
            health,
            detail,
            hint,
        });
    }
    lines
}

/// What to do about a machine that cannot be seen, and what `apply` makes of one that is dead or gone.
fn after(state: &State, observed: &Observed, address: &Address) -> Option<String> {
    let lease = address.lease().filter(|_| address.kind() == "lease")?;
    let recorded = state.resources.get(address)?;
    let there = match observed.leases.get(lease)? {
        Seen::Unknown(cause) => {
            return Some(
                cause
                    .hint
                    .clone()
                    .unwrap_or_else(|| unseen::USUAL.to_owned()),
            );
        }
        Seen::Gone => {
            let what = "`stageline plan` shows what becomes of it, `stageline apply` does that";
            return Some(what.to_owned());
        }
        Seen::There(there) => there,
    };
    there.dead.as_ref()?;
    let bidding = recorded.bidding().filter(|_| there.interrupted);
    let follows = match bidding.map(|bidding| bidding.on_interrupt) {
        None => "rents another one",
        Some(OnInterrupt::Replace) => "bids for another one",
        Some(OnInterrupt::OnDemand) => "rents the next one on demand",
        Some(OnInterrupt::End) => "keeps the lease ended, until `--renew`",
    };
    Some(format!("`stageline apply` releases it and {follows}"))
}

/// What is said of a silent machine is as old as the last run.
fn with_age(state: &State, detail: String) -> String {
    match &state.run {
        Some(run) => format!("{detail}; what is recorded of it is of {:.0}", run.at),
        None => detail,
    }
}

/// A pipeline is no better than its stages, which come before it.
fn chain(name: &Name, lines: &[Line], health: Health, detail: String) -> (Health, String) {
    let at_fault = lines.iter().find(|line| match &line.address {
        Address::Stage(stage) => stage.pipeline == *name && line.health != Health::Ok,
        Address::Lease(_)
        | Address::Delivery(_)
        | Address::Bundle(_)
        | Address::Pipeline(_)
        | Address::Exposure(_) => false,
    });
    match at_fault {
        Some(stage) if health == Health::Ok => (
            stage.health,
            format!("{detail}, and now {} is not well", stage.address),
        ),
        Some(_) | None => (health, detail),
    }
}

fn lease(state: &State, observed: &Observed, agents: &Agents, lease: &LeaseId) -> (Health, String) {
    let recorded = state.resources.get(&Address::Lease(lease.clone()));
    let doubt = recorded.map_or("unresolved, may bill", Recorded::unresolved);
    let Some(held) = state.lease(lease) else {
        return (
            Health::Unknown,
            format!("{doubt}; `stageline apply` resolves it"),
        );
    };
    let (machine, price) = (&held.machine, held.price_per_hour);
    let doubt = if recorded.is_some_and(Recorded::is_unresolved) {
        format!(", an earlier try is {doubt}")
    } else {
        String::new()
    };
    let what = format!("machine {machine}, {price}/h{doubt}");
    match observed.leases.get(lease) {
        Some(Seen::Gone) => (Health::Broken, format!("{what}: gone at the provider")),
        Some(Seen::Unknown(cause)) => (Health::Unknown, format!("{what}: {}", cause.message)),
        Some(Seen::There(there)) => match (dead(there), agents.get(lease)) {
            (Some(why), _) => {
                // What it cost while it ran says nothing any more.
                let taken = taken_away(there).map_or("", |_| "taken away: ");
                (
                    Health::Broken,
                    format!("machine {machine}{doubt}: {taken}{why}"),
                )
            }
            (None, Some(Ok(status))) => {
                let facts = &status.facts;
                let gpus = match facts.gpus.len() {
                    0 => String::new(),
                    1 => ", 1 GPU".to_owned(),
                    n => format!(", {n} GPUs"),
                };
                (
                    Health::Ok,
                    format!("{what}: {} cpus, {}{gpus}", facts.cpus, facts.memory),
                )
            }
            (None, Some(Err(why))) => (Health::Broken, format!("{what}: {why}")),
            (None, None) if held.ready.is_none() => (
                Health::Waiting,
                format!("{what}: its agent was not heard yet"),
            ),
            (None, None) => (Health::Unknown, format!("{what}: nobody asked its agent")),
        },
        None => (Health::Unknown, what),
    }
}

fn delivery(agents: &Agents, lease: &LeaseId) -> (Health, String) {
    match agents.get(lease) {
        Some(Ok(status)) => {
            let names: Vec<&str> = status.deliveries.keys().map(|name| name.as_str()).collect();
            (Health::Ok, format!("has its share of {}", names.join(", ")))
        }
        Some(Err(_)) | None => (Health::Unknown, "its agent does not answer".to_owned()),
    }
}

fn stage(
    agents: &Agents,
    lease: &LeaseId,
    stage: &stageline_core::id::StageId,
) -> (Health, String) {
    let Some(Ok(agent)) = agents.get(lease) else {
        return (
            Health::Unknown,
            format!("the agent of {lease} does not answer"),
        );
    };
    let Some(status) = agent.stages.get(stage) else {
        return (
            Health::Broken,
            format!("{lease} does not run it; `stageline apply` starts it"),
        );
    };
    match &status.worker {
        WorkerState::Ready { pid } => (
            Health::Ok,
            format!("on {lease}, process {pid}, {} requests", status.in_flight),
        ),
        WorkerState::Loading { percent, what } => (
            Health::Waiting,
            format!("on {lease}, loading {what}: {percent} %"),
        ),
        WorkerState::Restarting { why, starts } => (
            Health::Waiting,
            format!("on {lease}, being started again (start {starts}): {why}"),
        ),
        WorkerState::Failed { why } => (Health::Broken, format!("on {lease}: {why}")),
    }
}

fn exposure(
    agents: &Agents,
    lease: &LeaseId,
    name: &stageline_core::id::Name,
    url: &str,
) -> (Health, String) {
    match agents.get(lease) {
        Some(Ok(status)) => match status.exposures.get(name) {
            Some((_, url)) => (Health::Ok, url.clone()),
            None => (
                Health::Broken,
                format!("{url} is down; `stageline apply` brings it back"),
            ),
        },
        Some(Err(_)) | None => (
            Health::Unknown,
            format!("{url}: the agent of {lease} does not answer"),
        ),
    }
}

fn text(report: &Report, console: &Console) -> String {
    if report.resources.is_empty() {
        let nothing = format!("{}: nothing is deployed\n", report.topology);
        return nothing + &avoided(&report.avoided, console);
    }
    let width = report
        .resources
        .iter()
        .map(|line| line.address.to_string().len())
        .max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for line in &report.resources {
        let (mark, code) = match line.health {
            Health::Ok => ("ok", "32"),
            Health::Waiting => ("waiting", "33"),
            Health::Broken => ("BROKEN", "1;31"),
            Health::Unknown => ("unknown", "33"),
        };
        let mark = format!("{mark:7}");
        let mark = if console.color {
            format!("\u{1b}[{code}m{mark}\u{1b}[0m")
        } else {
            mark
        };
        let address = line.address.to_string();
        let spent = line
            .address
            .lease()
            .and_then(|lease| report.spent.leases.get(lease));
        let spent = match spent {
            Some(spent) if line.address.kind() == "lease" && !spent.is_zero() => {
                format!(", {spent} so far")
            }
            Some(_) | None => String::new(),
        };
        let lead = format!("{address:width$}  {mark}  ");
        let detail = format!("{}{spent}", line.detail);
        text.push_str(&console.row(&lead, width + 11, &detail));
    }
    for hint in report
        .resources
        .iter()
        .filter_map(|line| line.hint.as_ref())
    {
        text.push_str(&console.row("hint: ", 6, hint));
    }
    text.push_str(&format!("{} per hour\n", report.per_hour));
    let total = money::total(&report.spent);
    let billed = report.billed.iter().map(ToString::to_string);
    let asked = report.asked.iter().map(ToString::to_string);
    let lock = report.at_work.iter().map(ToString::to_string);
    let sentences = total.into_iter().chain(billed).chain(asked).chain(lock);
    for sentence in sentences {
        text.push_str(&console.row("", 4, &sentence));
    }
    text + &avoided(&report.avoided, console)
}

/// Where machines failed.
fn avoided(bad: &[BadHost], console: &Console) -> String {
    let lines = bad.iter().map(|bad| {
        let what = match &bad.host {
            Some(host) => format!("host {host}"),
            None => format!("offer {}", bad.quote),
        };
        let why = bad.why.lines().next().unwrap_or_default();
        let text = format!(
            "until a week after {:.0}: {what} of provider {}: {why}; `stageline plan --replace {}` sets that aside",
            bad.at, bad.provider, bad.lease
        );
        console.row("avoided ", 8, &text)
    });
    lines.collect()
}
