//! From a topology and a state to a drafted plan: what `plan` and `apply` have in common.

use std::collections::BTreeMap;

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Address, Name};
use stageline_core::plan::{self, Desired, Draft, Market, Mode, Plan};
use stageline_core::state::Observed;
use stageline_core::topology::{Limits, ProviderKind, Topology};

use super::project::{Place, Project};
use super::{Failure, model, session};
use crate::ambient::SharedClock;
use crate::apply::Providers;
use crate::machine::Machines;
use crate::observe;
use crate::store::{Loaded, Mode as Access, Store};

/// What narrows a plan.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Narrow {
    /// Only this resource and what it needs; may be repeated
    #[arg(long, value_name = "ADDR")]
    target: Vec<Address>,
    /// Not this resource, nor what needs it; may be repeated
    #[arg(long, value_name = "ADDR")]
    exclude: Vec<Address>,
    /// Make this resource anew; may be repeated
    #[arg(long, value_name = "ADDR")]
    replace: Vec<Address>,
    /// Do not look at the world first; what is recorded is taken as it is
    #[arg(long)]
    no_refresh: bool,
}

impl Narrow {
    /// This resource alone.
    pub fn only(address: Address) -> Self {
        Self {
            target: vec![address],
            ..Self::default()
        }
    }
}

/// A plan and what it was drafted from.
pub(crate) struct Drafted {
    pub plan: Plan,
    pub loaded: Loaded,
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
    let providers = session::providers(Some(&project.topology), &project.place.folder(), clock)?;
    let markets = markets(&project.topology, &providers).await;
    let memory = plan::memory_known(&project.topology, &loaded.state, &markets);
    let desired = plan::expand_within(&project.topology, &models, &memory).map_err(fail)?;
    let observed = if narrow.no_refresh {
        Observed::default()
    } else {
        let topology = Some(&project.topology);
        let hands = session::hands_if_any(
            store,
            &loaded.state,
            topology,
            &project.place,
            &project.folder,
        )?;
        let machines = hands.as_deref().map(|hands| hands as &dyn Machines);
        let observed = observe::look(&loaded.state, &providers, machines, clock.as_ref()).await;
        if let Some(hands) = hands {
            hands.close().await;
        }
        observed
    };
    let options = plan::Options {
        mode: Mode::Apply,
        now: clock.now(),
        targets: narrow.target.clone(),
        excludes: narrow.exclude.clone(),
        replace: narrow.replace.clone(),
        limits: project.topology.limits.clone(),
        topology_digest: Some(project.digest),
    };
    let draft = Draft {
        desired: &desired,
        recorded: &loaded.state,
        observed: &observed,
        markets: &markets,
        options: &options,
    };
    let mut plan = plan::draft(&draft).map_err(fail)?;
    plan.notes.extend(elsewhere(&project.place).await);
    plan.id = plan.digest();
    Ok(Drafted { plan, loaded })
}

/// Drafts the plan that ends everything: it needs neither topology nor identity.
pub(crate) async fn destroy(
    place: &Place,
    store: &Store,
    narrow: &Narrow,
    clock: &SharedClock,
) -> Result<Drafted, Failure> {
    let loaded = store.read().await?;
    let providers = session::providers(None, &place.folder(), clock)?;
    let observed = if narrow.no_refresh {
        Observed::default()
    } else {
        observe::look(&loaded.state, &providers, None, clock.as_ref()).await
    };
    let name = loaded
        .state
        .genesis
        .as_ref()
        .map_or(&place.name, |genesis| &genesis.topology);
    let options = plan::Options {
        mode: Mode::Destroy,
        now: clock.now(),
        targets: narrow.target.clone(),
        excludes: narrow.exclude.clone(),
        replace: Vec::new(),
        limits: Limits {
            max_price_per_hour: None,
            max_total_per_hour: None,
            max_leases: None,
        },
        topology_digest: None,
    };
    let draft = Draft {
        desired: &Desired::nothing(name.clone()),
        recorded: &loaded.state,
        observed: &observed,
        markets: &BTreeMap::new(),
        options: &options,
    };
    let plan = plan::draft(&draft).map_err(|faults| Failure::diagnostics(faults, Vec::new()))?;
    Ok(Drafted { plan, loaded })
}

/// What every declared provider sells now.
async fn markets(topology: &Topology, providers: &Providers) -> BTreeMap<Name, Market> {
    let mut asked = Vec::new();
    for (name, provider) in &topology.providers {
        let ProviderKind::Local { .. } = provider.kind;
        if let Ok(provider) = providers.get(name, "local") {
            asked.push((name.clone(), provider.clone()));
        }
    }
    let mut quotes = observe::quotes(&asked).await;
    let market = |(name, provider): (Name, std::sync::Arc<dyn crate::provider::Provider>)| {
        let quotes = quotes.remove(&name).unwrap_or_else(|| Ok(Vec::new()));
        let market = Market {
            kind: provider.kind().to_owned(),
            free: provider.traits().free,
            quotes: quotes.map_err(|blind| blind.cause),
        };
        (name, market)
    };
    asked.into_iter().map(market).collect()
}

/// A topology that was renamed leaves its machines under the old name: they are named, with what to type.
async fn elsewhere(place: &Place) -> Vec<String> {
    let mut notes = Vec::new();
    for name in super::project::recorded(&place.url) {
        if name == place.name {
            continue;
        }
        let other = Place {
            name: name.clone(),
            workspace: None,
            ..place.clone()
        };
        // A look aside: what is wrong with another state is not this one's business.
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
                "the state of `{name}` beside this one still has {}; if `{}` was renamed from it, end them with \
                 `stageline destroy --name {name}`",
                leases.join(", "),
                place.name
            ));
        }
    }
    notes
}
