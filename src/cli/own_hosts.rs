//! The hosts of a provider of one's own: those that the topology names, and those that recorded machines are on.
//!
//! What the topology says of a host's key counts more than what the state recorded. A host that only the state knows is not taken again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stageline_core::id::Name;
use stageline_core::resource::Account;
use stageline_core::topology::{ProviderKind, SshHost, Topology};
use stageline_core::unit::MicroDollars;

use super::sellers::Sellers;
use crate::ambient;
use crate::provider::ssh::{OwnHost, SshSettings, recorded_host};
use crate::ssh::{Builds, HostKey, Means, Place};

/// The variable that names a folder with builds of this program for other machines.
const AGENTS: &str = "STAGELINE_AGENTS";

/// What a provider of one's own hosts is made from.
pub(crate) fn settings(
    sellers: &Sellers<'_>,
    name: &Name,
    declared: &[SshHost],
    account: Option<Account>,
) -> SshSettings {
    let folder = sellers.place.local.parent().unwrap_or(sellers.folder);
    let socket = socket();
    let user = user();
    let known = |place: &Place| {
        let host = place.host();
        let told = sellers.place.host_keys.get(&host);
        let key = told.or_else(|| sellers.state.host_keys.get(&host));
        key.and_then(|key| HostKey::parse(key))
    };
    let mut hosts: Vec<OwnHost> = Vec::new();
    let mut ssh_keys: Vec<PathBuf> = Vec::new();
    for host in declared {
        let place = Place {
            user: host.user.clone().unwrap_or_else(|| user.clone()),
            address: host.address.clone(),
            port: host.port,
        };
        if let Some(key) = &host.key
            && !ssh_keys.contains(key)
        {
            ssh_keys.push(key.clone());
        }
        hosts.push(OwnHost {
            keys: host.key.iter().map(|key| folder.join(key)).collect(),
            agent: socket.clone(),
            known: known(&place),
            price_per_hour: host.price_per_hour,
            tags: host.tags.clone(),
            declared: true,
            place,
        });
    }
    for key in account.into_iter().flat_map(|account| account.ssh_keys) {
        if !ssh_keys.contains(&key) {
            ssh_keys.push(key);
        }
    }
    for (place, price_per_hour) in recorded(sellers, name) {
        if hosts.iter().all(|host| host.place != place) {
            hosts.push(OwnHost {
                keys: ssh_keys.iter().map(|key| folder.join(key)).collect(),
                agent: socket.clone(),
                known: known(&place),
                price_per_hour,
                tags: Vec::new(),
                declared: false,
                place,
            });
        }
    }
    let relay = sellers
        .topology
        .and_then(|topology| topology.relay.as_ref());
    SshSettings {
        name: name.clone(),
        hosts,
        offers: sellers.claims(name),
        ssh_keys,
        means: means(sellers),
        relay: relay.map(|relay| relay.url.clone()),
        who: ambient::who(),
        clock: sellers.clock.clone(),
    }
}

/// The keys of hosts that a topology names.
pub(crate) fn host_keys(topology: &Topology) -> BTreeMap<String, String> {
    let hosts = topology
        .providers
        .values()
        .flat_map(|provider| match &provider.kind {
            ProviderKind::Ssh { hosts } => hosts.as_slice(),
            ProviderKind::Local { .. }
            | ProviderKind::Cloud { .. }
            | ProviderKind::Command { .. } => &[],
        });
    let named = hosts.filter_map(|host| {
        let place = Place {
            user: String::new(),
            address: host.address.clone(),
            port: host.port,
        };
        Some((place.host(), host.host_key.clone()?))
    });
    named.collect()
}

/// Hosts that machines of this provider are on, those included that were taken out of the state, or that open tries were for.
fn recorded(sellers: &Sellers<'_>, name: &Name) -> BTreeMap<Place, MicroDollars> {
    let mut found = BTreeMap::new();
    let mut add = |text: &str, price| {
        if let Some(place) = recorded_host(text) {
            found.insert(place, price);
        }
    };
    let state = sellers.state;
    for (machine, one) in &state.disowned {
        if one.provider == *name && one.provider_kind == "ssh" {
            add(machine.as_str(), one.price_per_hour);
        }
    }
    for (address, recorded) in state.existing() {
        for open in recorded.attempts.values() {
            let launch = &open.launch;
            if launch.provider == *name && launch.provider_kind == "ssh" {
                add(&launch.quote.0, launch.price_per_hour);
            }
        }
        let held = address.lease().and_then(|lease| state.lease(lease));
        if let Some(held) =
            held.filter(|held| held.provider == *name && held.provider_kind == "ssh")
        {
            add(held.machine.as_str(), held.price_per_hour);
        }
    }
    found
}

/// What we have to log in with, and to push.
pub(crate) fn means(sellers: &Sellers<'_>) -> Means {
    Means {
        user: user(),
        agent: socket(),
        host_keys: Arc::new(sellers.state.host_keys.clone()),
        builds: Arc::new(builds()),
    }
}

/// Whoever runs this.
fn user() -> String {
    let user = ambient::variable("USER").or_else(|| ambient::variable("LOGNAME"));
    user.filter(|user| !user.is_empty())
        .unwrap_or_else(|| "root".to_owned())
}

/// The socket of the SSH agent.
fn socket() -> Option<PathBuf> {
    let socket = ambient::variable("SSH_AUTH_SOCK");
    socket
        .filter(|socket| !socket.is_empty())
        .map(PathBuf::from)
}

/// Programs that can be pushed: this one, and those of a folder.
pub(crate) fn builds() -> Builds {
    let own = std::env::current_exe().ok();
    let beside = own
        .as_deref()
        .and_then(Path::parent)
        .map(|folder| folder.join("agents"));
    let named = ambient::variable(AGENTS).map(PathBuf::from);
    Builds::new(own, named.into_iter().chain(beside).collect())
}
