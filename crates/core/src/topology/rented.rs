//! What only rented machines have: an image, and an agent that has to get there. Faults are told where they stand.

use std::collections::BTreeMap;

use super::read::Fields;
use super::value::At;
use super::{AgentSource, Cloud, Offer, Provider, ProviderKind};
use crate::id::Name;

/// What only rented machines have.
pub(super) fn check(
    root: &Fields<'_>,
    providers: &BTreeMap<Name, Provider>,
    offers: &BTreeMap<Name, Offer>,
) {
    for (name, offer) in offers {
        let kind = providers
            .get(&offer.provider)
            .map(|provider| &provider.kind);
        if let Some(ProviderKind::Cloud { cloud, .. }) = kind {
            agent_comes_from(root, name, offer, *cloud);
        }
        let given = [
            ("image", offer.image.is_some()),
            ("agent", offer.agent.is_some()),
        ];
        if !matches!(kind, Some(ProviderKind::Local { .. })) {
            continue;
        }
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            let message = format!(
                "`offer.{name}`: a machine on this computer is not rented and has no `{key}`"
            );
            root.fault(
                place(root, name, key),
                "topology/conflict",
                message,
                format!("remove `{key}`, or take a provider of another kind"),
            );
        }
    }
}

/// A rented machine's agent is in its image, or is fetched by the machine.
fn agent_comes_from(root: &Fields<'_>, name: &Name, offer: &Offer, cloud: Cloud) {
    if matches!(offer.agent, Some(AgentSource::Fetch { .. })) {
        return;
    }
    let fault = |key, code, message: String, hint| {
        root.fault(place(root, name, key), code, message, hint);
    };
    if !cloud.takes_images() {
        let hint = "add `agent = { url = \"...\", sha256 = \"...\" }`";
        if offer.agent.is_some() {
            let message = format!(
                "`offer.{name}`: machines of `{}` run no image that could have the agent",
                cloud.as_str()
            );
            return fault("agent", "topology/conflict", message, hint);
        }
        let message = format!("`offer.{name}` does not say where the agent is fetched from");
        return fault("provider", "topology/missing-key", message, hint);
    }
    if offer.image.is_none() {
        let message = format!(
            "`offer.{name}` says neither which image has the agent nor where it is fetched from"
        );
        let hint = "add `image = \"...\"`, or `agent = { url = \"...\", sha256 = \"...\" }`";
        fault("provider", "topology/missing-key", message, hint);
    }
}

/// A machine that nobody could talk to is better not rented. A simulator's can be reached.
pub(super) fn reached(root: &Fields<'_>, providers: &BTreeMap<Name, Provider>) {
    let reached = |kind: &ProviderKind| match kind {
        ProviderKind::Local { .. } => true,
        ProviderKind::Cloud { cloud, url, .. } => !cloud.needs_relay() || url.is_some(),
    };
    for (name, provider) in providers {
        if root.has("relay") || reached(&provider.kind) {
            continue;
        }
        let kind = provider.kind.as_str();
        let tables = root.table.entries.get("provider");
        let tables = tables.and_then(|tables| tables.node.value.table());
        let table = tables.and_then(|tables| tables.entries.get(name.as_str()));
        root.fault(
            table.map_or(root.at, |table| table.key_at),
            "topology/missing-key",
            format!("machines of kind `{kind}` have no UDP port and are reached by a relay only"),
            "add `[relay]` with the `url` of one that this computer and the machines can reach",
        );
    }
}

/// Where a key of an offer stands.
fn place(root: &Fields<'_>, offer: &Name, key: &str) -> At {
    let entry = root.table.entries.get("offer").and_then(|tables| {
        let offer = tables.node.value.table()?.entries.get(offer.as_str())?;
        offer.node.value.table()?.entries.get(key)
    });
    entry.map_or(root.at, |entry| entry.key_at)
}
