//! What a topology names of its providers' stock, held against what they have: types of machines.
//!
//! A provider is asked only when its names are used. One that cannot be seen is told of by whoever needs it, and not here.

use std::collections::{BTreeMap, BTreeSet};

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::Name;
use stageline_core::plan::unknown_types;
use stageline_core::topology::Topology;

use crate::provider::Providers;

/// Each name of a type that the topology says and its provider does not have. Only of these providers, where they are given.
pub(crate) async fn types(
    topology: &Topology,
    providers: &Providers,
    wanted: impl Fn(&Name) -> bool,
) -> Vec<Diagnostic> {
    let said = |name: &Name| {
        let mut offers = topology.offers.values();
        let own = offers.any(|offer| offer.provider == *name && offer.instance_type.is_some());
        own || !topology.providers[name].within.instance_types.is_empty()
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
    unknown_types(topology, &known)
}
