//! The way to a leased machine: by SSH where stageline logs in to it, else by its agent, which has a connection to us in any case.

use std::collections::BTreeMap;
use std::sync::Arc;

use stageline_core::id::{Address, LeaseId};
use stageline_core::resource::{Cause, LeaseReceipt, Spec};
use stageline_core::state::State;
use stageline_core::topology::Topology;

use super::project::Place;
use super::sellers::Sellers;
use super::{Failure, Global, project, relay, session};
use crate::apply::Keys as _;
use crate::machine::client::AgentClient;
use crate::machine::{Machines as _, Target};
use crate::observe;
use crate::provider::Provider;
use crate::ssh::{HostKey, Login, OwnKey};
use crate::store::{Mode, Store};

/// The way to a machine.
pub(super) enum Way {
    /// By SSH, to the host that has this key.
    Login(Box<Login>, HostKey),
    /// By its agent.
    Agent(ByAgent),
}

/// The way by a machine's agent.
pub(super) struct ByAgent {
    pub hands: Arc<AgentClient>,
    pub target: Target,
    /// `env` of the lease; its secrets stay here.
    pub env: BTreeMap<String, String>,
}

/// The way to the machine of a lease.
pub(super) async fn to(global: &Global, place: &Place, lease: &LeaseId) -> Result<Way, Failure> {
    let store = place.open(Mode::Read).await?;
    let state: State = store.read().await?.state;
    let held = state.lease(lease).ok_or_else(|| {
        Failure::user(format!("{lease} has no machine"))
            .hint("`stageline leases` shows those that have")
    })?;
    // The topology may know the host's key, or a new file of ours; without it what is recorded does.
    let project = project::Project::load(global).ok();
    let topology = project.as_ref().map(|project| &project.topology);
    let clock = session::clock();
    let folder = project::folder(global);
    let sellers = Sellers {
        topology,
        state: &state,
        place,
        folder: &folder,
        clock: &clock,
    };
    let providers = sellers.providers()?;
    let provider = providers.get(&held.provider, &held.provider_kind);
    let provider = provider.map_err(|cause| failed(lease, &cause))?;
    let login = login(&**provider, &store, &state, held, lease).await?;
    let known = login.as_ref().and_then(|login| login.known.clone());
    if let (Some(login), Some(known)) = (login, known) {
        return Ok(Way::Login(Box::new(login), known));
    }
    // Its host is not known, or there is no login: its agent is who it says it is.
    let target = observe::target(&state, lease).ok_or_else(|| not_ready(lease))?;
    let genesis = state.genesis.as_ref().ok_or_else(|| not_ready(lease))?;
    let keys = session::keys_of(&store, genesis, None)?;
    let relays = relay::relays(topology, &state, &folder)?;
    let hands = session::hands(&keys, relays, place);
    let target = match hands.status(&target).await {
        Ok(_) => target,
        // It may be somewhere else by now; its provider is asked only then.
        Err(_) => sellers.elsewhere(&target).await.unwrap_or(target),
    };
    Ok(Way::Agent(ByAgent {
        hands,
        env: env(topology, &state, lease),
        target,
    }))
}

fn not_ready(lease: &LeaseId) -> Failure {
    Failure::user(format!(
        "{lease}: its machine is not ready, and its agent not known yet"
    ))
    .hint("`stageline apply` goes on with it; `stageline status` shows how far it is")
}

/// How the machine of a lease is logged in to; none where it is not.
async fn login(
    provider: &dyn Provider,
    store: &Store,
    state: &State,
    held: &LeaseReceipt,
    lease: &LeaseId,
) -> Result<Option<Login>, Failure> {
    // A rented machine lets us in by a key of its own, which the identity yields.
    if let Some(genesis) = &state.genesis
        && let Ok(keys) = session::keys_of(store, genesis, None)
    {
        let recorded = state.resources.get(&Address::Lease(lease.clone()));
        let born = recorded.and_then(|recorded| recorded.made_for.as_ref());
        let (generation, attempt) = held.request_key.try_of();
        let boot = keys.boot(born.unwrap_or(lease), generation, attempt);
        provider.holds_key(&held.machine, OwnKey::of(&boot.agent_key));
    }
    let asked = || {
        let login = provider.login(&held.machine);
        login.map_err(|cause| failed(lease, &cause))
    };
    let login = asked()?;
    // Where an agent was pushed the key of the host is on record; nobody has to be asked about any other machine.
    if login.is_some() || !state.host_keys.contains_key(held.machine.as_str()) {
        return Ok(login);
    }
    // A cloud tells where it is.
    let seen = provider.describe(&held.machine).await;
    seen.map_err(|blind| failed(lease, &blind.cause))?;
    asked()
}

/// `env` of a lease as it is declared now; without a topology as its setup was run with.
fn env(topology: Option<&Topology>, state: &State, lease: &LeaseId) -> BTreeMap<String, String> {
    let declared = topology.and_then(|topology| topology.leases.get(&lease.name));
    if let Some(declared) = declared {
        return declared.env.clone();
    }
    let recorded = state.resources.get(&Address::Lease(lease.clone()));
    match recorded.and_then(|recorded| recorded.spec.as_ref()) {
        Some(Spec::Lease(spec)) => spec
            .setup
            .as_ref()
            .map(|setup| setup.env.clone())
            .unwrap_or_default(),
        Some(Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_)) | None => {
            BTreeMap::new()
        }
    }
}

/// What a machine's provider or its host said, as a failure.
pub(super) fn failed(lease: &LeaseId, cause: &Cause) -> Failure {
    let failure = Failure::user(format!("{lease}: {}", cause.message));
    match &cause.hint {
        Some(hint) => failure.hint(hint.clone()),
        None => failure,
    }
}
