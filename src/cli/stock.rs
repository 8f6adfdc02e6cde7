//! What a topology names of its providers' stock, held against what they have: types of machines, volumes.
//!
//! A provider is asked only when its names are used. One that cannot be seen is told of by whoever needs it, and not here.

use std::collections::{BTreeMap, BTreeSet};

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::Name;
use stageline_core::offer::Requirement;
use stageline_core::plan::{Volumes, unknown_types};
use stageline_core::topology::{Lease, Topology};

use crate::provider::Providers;

/// Holds the names of types against what providers have, as far as they are wanted.
///
/// # Errors
/// Each name that the topology says and its provider does not have.
pub(crate) async fn types(
    topology: &Topology,
    providers: &Providers,
    wanted: impl Fn(&Name) -> bool,
) -> Result<(), Vec<Diagnostic>> {
    let said = |name: &Name| {
        let of = |offer: &Name| {
            topology
                .offers
                .get(offer)
                .is_some_and(|it| it.provider == *name)
        };
        let mut offers = topology.offers.values();
        let mut leases = topology.leases.values();
        offers.any(|offer| offer.provider == *name && offer.instance_type.is_some())
            || leases.any(|it| it.instance_type.is_some() && it.offers.iter().any(of))
            || !topology.providers[name].within.instance_types.is_empty()
    };
    let mut known: BTreeMap<Name, BTreeSet<String>> = BTreeMap::new();
    for (name, declared) in &topology.providers {
        if wanted(name)
            && said(name)
            && let Ok(provider) = providers.get(name, declared.kind.as_str())
            && let Ok(types) = provider.instance_types().await
        {
            known.insert(name.clone(), types);
        }
    }
    let unknown = unknown_types(topology, &known);
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(unknown)
    }
}

/// The volumes of every provider that a lease with mounts may be rented from; of those that cannot be seen, why.
pub(crate) async fn volumes(topology: &Topology, providers: &Providers) -> Volumes {
    let mut volumes = Volumes::new();
    let leases = topology.leases.values();
    let names = leases
        .filter(|lease| !lease.mounts.is_empty())
        .flat_map(|lease| &lease.offers)
        .filter_map(|offer| Some(&topology.offers.get(offer)?.provider));
    let names: BTreeSet<&Name> = names.collect();
    for name in names {
        let Some(declared) = topology.providers.get(name) else {
            continue;
        };
        if let Ok(provider) = providers.get(name, declared.kind.as_str()) {
            let found = provider.volumes().await;
            volumes.insert(name.clone(), found.map_err(|blind| blind.cause));
        }
    }
    volumes
}

/// What the volumes of a lease ask of a machine of this provider, as far as they are known.
pub(crate) fn asked(lease: &Lease, provider: &Name, volumes: &Volumes) -> Requirement {
    let own = volumes.get(provider).and_then(|all| all.as_ref().ok());
    let own = own.into_iter().flatten();
    let own = own.filter(|volume| lease.mounts.iter().any(|mount| volume.is(&mount.volume)));
    own.fold(Requirement::default(), |all, volume| {
        all.and(&volume.requirement)
    })
}
