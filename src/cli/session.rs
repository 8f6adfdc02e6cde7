//! What a command needs besides the topology: providers, identity, our hands on machines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use stageline_core::id::Name;
use stageline_core::state::{Genesis, State};
use stageline_core::unit::MicroDollars;

use super::Failure;
use super::keys::IdentityKeys;
use super::project::Place;
use super::relay::Relays;
use crate::ambient::{self, SharedClock, SystemClock};
use crate::machine::client::{AgentClient, ClientOptions};
use crate::pipeline::endpoint::RelayAccess;
use crate::provider::local::LocalSettings;
use crate::store::{Identity, Store};

/// The variable that brings an identity to a CI job.
const IDENTITY: &str = "STAGELINE_IDENTITY";

/// How long an agent on this computer may take to end by itself.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The clock of this computer.
pub(crate) fn clock() -> SharedClock {
    Arc::new(SystemClock)
}

/// A runtime for commands that read and plan: they wait for files and answers, and compute in one place. Threads that
/// nobody needs would be a good part of what such a command costs.
pub(super) fn reading() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// A runtime for commands that talk to many at once.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// A provider on this computer.
pub(super) fn local(
    name: Name,
    state_folder: &Path,
    slots: Option<u32>,
    price_per_hour: MicroDollars,
) -> Result<LocalSettings, Failure> {
    let program = std::env::current_exe()?;
    Ok(LocalSettings {
        name,
        root: state_folder.join("machines"),
        program: vec![program.into_os_string()],
        environment: ambient::agent_environment(),
        slots,
        price_per_hour,
        stop_grace: STOP_GRACE,
    })
}

/// The identity from the environment, if it is there.
pub(crate) fn identity_variable() -> Option<SecretString> {
    ambient::variable(IDENTITY).map(SecretString::from)
}

/// The keys of a state that has been begun.
pub(crate) fn keys_of(
    store: &Store,
    genesis: &Genesis,
    relay: Option<RelayAccess>,
) -> Result<IdentityKeys, Failure> {
    let lineage = genesis.lineage;
    let identity = Identity::of(store, genesis, identity_variable().as_ref())?;
    Ok(IdentityKeys {
        identity,
        lineage,
        relay,
    })
}

/// Our hands on machines, by this identity and these relays.
pub(crate) fn hands(keys: &IdentityKeys, relays: Relays, place: &Place) -> Arc<AgentClient> {
    let cache = place.folder().join("models");
    let mut options = ClientOptions::new(keys.operator(), keys.lineage, cache);
    options.told = relays.told;
    options.relays = relays.all;
    Arc::new(AgentClient::new(options))
}

/// Hands for a command that only looks: none when the identity is not here or nothing runs.
pub(crate) fn hands_if_any(
    store: &Store,
    state: &State,
    relays: Result<Relays, Failure>,
    place: &Place,
) -> Result<Option<Arc<AgentClient>>, Failure> {
    let Some(genesis) = &state.genesis else {
        return Ok(None);
    };
    let leases = state.existing().filter_map(|(address, _)| address.lease());
    let ready = leases
        .filter_map(|lease| state.lease(lease))
        .any(|held| held.ready.is_some());
    match keys_of(store, genesis, None) {
        Ok(keys) if ready => Ok(Some(hands(&keys, relays?, place))),
        Ok(_) | Err(_) => Ok(None),
    }
}
