//! From a topology and a state to a drafted plan: what `plan` and `apply` have in common.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Address, Name};
use stageline_core::plan::{
    self, Desired, Draft, EndsBy, Market, Mode, ModelFacts, Plan, Renew, Selector,
};
use stageline_core::resource::LeaseReceipt;
use stageline_core::state::{Edit, Observed, State, SurgeryError};
use stageline_core::topology::Limits;

use super::markets::{Asking, Disks, usable};
use super::project::{Place, Project};
use super::sellers::Sellers;
use super::unseen::Unseen;
use super::{Failure, model, relay, session, stock};
use crate::ambient::SharedClock;
use crate::apply::Providers;
use crate::machine::Machines;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::store::{BeatInfo, Loaded, Mode as Access, Store, fresh_watcher};

/// What narrows a plan.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Narrow {
    /// Only this resource and what it needs, or all of a table such as lease.NAME; may be repeated
    #[arg(long, value_name = "ADDR")]
    target: Vec<Selector>,
    /// Not this resource or table, nor what needs it; may be repeated
    #[arg(long, value_name = "ADDR")]
    exclude: Vec<Selector>,
    /// Make this resource, or all of a table, anew; may be repeated
    #[arg(long, value_name = "ADDR")]
    replace: Vec<Selector>,
    /// Rent a lease, or all of a table, again that ended by a limit of its own; all of them without ADDR. May be repeated
    #[arg(long, value_name = "ADDR", num_args = 0..=1, conflicts_with = "refresh_only")]
    renew: Option<Vec<Selector>>,
    /// Do not look at the world first; what is recorded is taken as it is
    #[arg(long)]
    no_refresh: bool,
    /// Change nothing in the world: only record what is seen to be gone, or to cost something else
    #[arg(long, conflicts_with_all = ["no_refresh", "replace"])]
    refresh_only: bool,
}

impl Narrow {
    /// This resource alone.
    pub fn only(address: Address) -> Self {
        Self::these(vec![address])
    }

    /// These resources alone.
    pub fn these(target: Vec<Address>) -> Self {
        Self {
            target: target.into_iter().map(Selector::One).collect(),
            ..Self::default()
        }
    }

    /// Everything is meant.
    fn is_whole(&self) -> bool {
        self.target.is_empty() && self.exclude.is_empty() && !self.refresh_only
    }
}

/// The addresses of targets, excludes and replacements, and what is renewed.
#[derive(Default)]
struct Chosen {
    targets: Vec<Address>,
    excludes: Vec<Address>,
    replace: Vec<Address>,
    renew: Renew,
}

impl Narrow {
    /// What its selectors mean here.
    fn chosen(&self, desired: &Desired, state: &State) -> Result<Chosen, Vec<Diagnostic>> {
        let mut faults = Vec::new();
        let mut select = |flag, selectors: &[Selector]| {
            let found = plan::select(flag, selectors, desired, state);
            found.unwrap_or_else(|more| {
                faults.extend(more);
                Vec::new()
            })
        };
        let chosen = Chosen {
            targets: select("--target", &self.target),
            excludes: select("--exclude", &self.exclude),
            replace: select("--replace", &self.replace),
            renew: match &self.renew {
                None => Renew::Nothing,
                Some(named) if named.is_empty() => Renew::All,
                Some(named) => Renew::These(
                    named
                        .iter()
                        .flat_map(|one| {
                            renewed(one, select("--renew", slice::from_ref(one)), state)
                        })
                        .collect(),
                ),
            },
        };
        if faults.is_empty() {
            Ok(chosen)
        } else {
            Err(faults)
        }
    }
}

/// Of a table, those that lapsed are meant.
fn renewed(selector: &Selector, mut found: Vec<Address>, state: &State) -> Vec<Address> {
    let lapsed = |address: &Address| match address {
        Address::Lease(lease) => state.lapse(lease).is_some(),
        Address::Delivery(_)
        | Address::Bundle(_)
        | Address::Stage(_)
        | Address::Pipeline(_)
        | Address::Exposure(_) => false,
    };
    if matches!(selector, Selector::Table { .. }) && found.iter().any(lapsed) {
        found.retain(lapsed);
    }
    found
}

/// A plan and what it was drafted from.
pub(crate) struct Drafted {
    pub plan: Plan,
    pub loaded: Loaded,
    /// What could not be seen of what the plan is about.
    pub unseen: Unseen,
}

/// Drafts the plan of a topology.
pub(crate) async fn apply(
    project: &Project,
    store: &Store,
    narrow: &Narrow,
    clock: &SharedClock,
) -> Result<Drafted, Failure> {
    let fail = |faults: Vec<Diagnostic>| Failure::diagnostics(faults, project.files.clone());
    let models = model::look(&project.topology, &project.folder)
        .await
        .map_err(fail)?;
    let loaded = store.read().await?;
    let edits = plan::edits(&project.topology, &loaded.state).map_err(fail)?;
    let state = match edits.as_slice() {
        [] => Cow::Borrowed(&loaded.state),
        edits => Cow::Owned(loaded.state.after(edits).map_err(surgery)?),
    };
    let providers = sellers(project, &state, clock).providers()?;
    let (mut desired, markets) = sold(project, &models, &state, &providers).await?;
    let relays = relay::looked_at(&mut desired, &project.topology, &state, &project.folder)?;
    let observed = if narrow.no_refresh {
        Observed::default()
    } else {
        let hands = session::hands_if_any(store, &state, relays, &project.place)?;
        look(&state, &providers, hands, clock).await?
    };
    let mut ended = ended_by_themselves(&state, &observed, &providers, clock);
    ended.extend(taken_away(&state, &observed, narrow));
    let (state, edits) = if ended.is_empty() {
        (state, edits)
    } else {
        let edits: Vec<Edit> = edits.into_iter().chain(ended).collect();
        let after = loaded.state.after_at(&edits, clock.now());
        let after = after.map_err(surgery)?;
        (Cow::Owned(after), edits)
    };
    let watcher = fresh_watcher(store, clock).await?;
    let chosen = narrow.chosen(&desired, &state).map_err(fail)?;
    desired.fall_back(&state, &chosen.replace);
    let mut options = options(project, narrow, chosen, watcher.is_some(), clock);
    options.rooms = observe::room::rooms(&project.topology, &state, &providers).await;
    let draft = Draft {
        desired: &desired,
        recorded: &state,
        observed: &observed,
        markets: &markets,
        options: &options,
    };
    let mut plan = plan::draft(&draft).map_err(fail)?;
    let mut notes = elsewhere(&project.place).await;
    notes.extend(awake(watcher, &plan, &project.place));
    // Hashing all of it again is not for nothing.
    if !notes.is_empty() || !edits.is_empty() {
        plan.notes.extend(notes);
        plan.base = loaded.state.projection();
        plan.edits = edits;
        plan.id = plan.digest();
    }
    let unseen = Unseen::of(&plan, &state, &observed, &markets);
    drop(state);
    Ok(Drafted {
        plan,
        loaded,
        unseen,
    })
}

/// What is wanted, and what can be had for it now.
async fn sold(
    project: &Project,
    models: &BTreeMap<Name, ModelFacts>,
    state: &State,
    providers: &Providers,
) -> Result<(Desired, BTreeMap<Name, Market>), Failure> {
    let fail = |faults: Vec<Diagnostic>| Failure::diagnostics(faults, project.files.clone());
    let topology = &project.topology;
    let volumes = stock::volumes(topology, providers).await;
    let asking = Asking {
        topology,
        providers,
        volumes: &volumes,
    };
    let mut disks = Disks::of(topology, models);
    let mut markets = asking.markets(&disks).await;
    usable(&markets)?;
    let asked = |name: &Name| markets.contains_key(name);
    let types = stock::types(topology, providers, asked).await;
    types.map_err(fail)?;
    let memory = plan::memory_known(topology, state, &markets);
    let mut desired = plan::expand_within(topology, models, &memory).map_err(fail)?;
    // Now that memory is known, machines may turn out to keep more of a model: that has no price yet.
    if disks.raise(&desired) {
        markets = asking.markets(&disks).await;
        usable(&markets)?;
    }
    desired.mount(&volumes).map_err(fail)?;
    Ok((desired, markets))
}

/// Who sells, and who sold what is recorded.
fn sellers<'a>(project: &'a Project, state: &'a State, clock: &'a SharedClock) -> Sellers<'a> {
    Sellers {
        topology: Some(&project.topology),
        state,
        place: &project.place,
        folder: &project.folder,
        clock,
    }
}

fn options(
    project: &Project,
    narrow: &Narrow,
    chosen: Chosen,
    watched: bool,
    clock: &SharedClock,
) -> plan::Options {
    plan::Options {
        mode: Mode::Apply,
        now: clock.now(),
        targets: chosen.targets,
        excludes: chosen.excludes,
        replace: chosen.replace,
        limits: project.topology.limits.clone(),
        topology_digest: Some(project.digest),
        refresh_only: narrow.refresh_only,
        watched,
        renew: chosen.renew,
        boot: clock.boot_point(),
        rooms: BTreeMap::new(),
    }
}

/// What there is, agents included where there are hands for them.
async fn look(
    state: &State,
    providers: &Providers,
    hands: Option<Arc<AgentClient>>,
    clock: &SharedClock,
) -> Result<Observed, Failure> {
    if let Some(hands) = &hands {
        // A relay takes a moment, which is not the agents' to answer for.
        hands.online().await?;
    }
    let machines = hands.as_deref().map(|hands| hands as &dyn Machines);
    let observed = observe::look(state, providers, machines, clock.as_ref()).await;
    if let Some(hands) = hands {
        hands.close().await;
    }
    Ok(observed)
}

/// Machines that ended themselves wrote no state: that they did is concluded from what is seen.
fn ended_by_themselves(
    state: &State,
    observed: &Observed,
    providers: &Providers,
    clock: &SharedClock,
) -> Vec<Edit> {
    let ends_itself = |held: &LeaseReceipt| {
        let provider = providers.get(&held.provider, &held.provider_kind);
        provider.is_ok_and(|provider| provider.traits().self_destroy)
    };
    let now = state.ledger_now(clock.now(), clock.boot_point().as_ref());
    plan::lapses(state, observed, now, ends_itself)
}

/// Machines that were taken away, where that ends a lease or makes the next one one on demand.
fn taken_away(state: &State, observed: &Observed, narrow: &Narrow) -> Vec<Edit> {
    match narrow.refresh_only {
        true => Vec::new(),
        false => plan::interruptions(state, observed),
    }
}

/// A watcher guards while its computer is awake, and nobody else can where the state is on that computer's disk.
fn awake(watcher: Option<BeatInfo>, plan: &Plan, place: &Place) -> Option<String> {
    let watcher = watcher.filter(BeatInfo::is_here)?;
    let relied_on = |terms: &plan::LeaseTerms| terms.ends == EndsBy::Watcher;
    let said = place.url.root().is_some() && plan.leases.values().any(relied_on);
    said.then(|| {
        format!(
            "the watcher is process {} of this computer, and the state is on its disk: it guards while this computer is awake",
            watcher.process.pid
        )
    })
}

/// Drafts the plan that ends everything: it needs neither topology nor identity.
pub(crate) async fn destroy(
    place: &Place,
    store: &Store,
    narrow: &Narrow,
    clock: &SharedClock,
) -> Result<Drafted, Failure> {
    let loaded = store.read().await?;
    // What ends everything ends what was remembered of leases, too.
    let edits = if narrow.is_whole() {
        forgotten(&loaded.state)
    } else {
        Vec::new()
    };
    let sellers = Sellers::recorded(&loaded.state, place, clock);
    let providers = sellers.providers()?;
    let observed = if narrow.no_refresh {
        Observed::default()
    } else {
        observe::look(&loaded.state, &providers, None, clock.as_ref()).await
    };
    ending(place, loaded, narrow, edits, &observed, clock)
}

fn forgotten(state: &State) -> Vec<Edit> {
    let lapsed = state.lapsed.keys().cloned();
    lapsed.map(|lease| Edit::Unlapse { lease }).collect()
}

/// Drafts a plan that ends things, and changes this in the state before.
pub(crate) fn ending(
    place: &Place,
    loaded: Loaded,
    narrow: &Narrow,
    edits: Vec<Edit>,
    observed: &Observed,
    clock: &SharedClock,
) -> Result<Drafted, Failure> {
    let name = loaded
        .state
        .genesis
        .as_ref()
        .map_or(&place.name, |genesis| &genesis.topology);
    let desired = Desired::nothing(name.clone());
    let fail = |faults| Failure::diagnostics(faults, Vec::new());
    let chosen = narrow.chosen(&desired, &loaded.state).map_err(fail)?;
    let options = plan::Options {
        mode: Mode::Destroy,
        now: clock.now(),
        targets: chosen.targets,
        excludes: chosen.excludes,
        replace: Vec::new(),
        limits: Limits {
            max_price_per_hour: None,
            max_total_per_hour: None,
            max_leases: None,
            max_spend: None,
        },
        topology_digest: None,
        refresh_only: narrow.refresh_only,
        watched: false,
        renew: Renew::Nothing,
        boot: clock.boot_point(),
        rooms: BTreeMap::new(),
    };
    let draft = Draft {
        desired: &desired,
        recorded: &loaded.state,
        observed,
        markets: &BTreeMap::new(),
        options: &options,
    };
    let mut plan = plan::draft(&draft).map_err(fail)?;
    if !edits.is_empty() {
        plan.edits = edits;
        plan.id = plan.digest();
    }
    let unseen = Unseen::of(&plan, &loaded.state, observed, &BTreeMap::new());
    Ok(Drafted {
        plan,
        loaded,
        unseen,
    })
}

/// Why recorded state cannot be changed as asked for.
pub(crate) fn surgery(error: SurgeryError) -> Failure {
    let hint = error.hint();
    Failure::user(error.to_string()).hint(hint)
}

/// A topology that was renamed leaves its machines under the old name: they are named, with what to type.
async fn elsewhere(place: &Place) -> Vec<String> {
    let mut notes = Vec::new();
    // A look aside: what is wrong with another state, or with looking for one, is not this one's business.
    for other in super::project::beside(place).await.unwrap_or_default() {
        let name = other.name.clone();
        if other.workspace.is_some() || name == place.name {
            continue;
        }
        let Ok(store) = other.open(Access::Read).await else {
            continue;
        };
        let Ok(loaded) = store.read().await else {
            continue;
        };
        let leases: Vec<String> = loaded
            .state
            .existing()
            .filter(|(address, _)| address.kind() == "lease")
            .map(|(address, _)| address.to_string())
            .collect();
        if !leases.is_empty() {
            notes.push(format!(
                "the state of `{name}` beside this one still has {}; if `{new}` was renamed from it, \
                 `stageline state mv {name} {new}` takes them over; else `stageline destroy --name {name}` ends them",
                leases.join(", "),
                new = place.name
            ));
        }
    }
    notes
}
