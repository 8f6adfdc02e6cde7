//! What only rented machines have: an image, an agent that has to get there, and an end. Faults are told where they stand.

use std::collections::BTreeMap;

use super::read::Fields;
use super::taken::Taken;
use super::value::At;
use super::{Claims, Cloud, Lease, Offer, Provider, ProviderKind};
use crate::id::{Name, Sha256};
use crate::unit::{MicroDollars, Millis};

/// How the agent gets onto a rented machine.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AgentSource {
    /// It is in the image, as `stageline` on the `PATH`.
    Image,
    /// The machine fetches it when it starts, and runs it when its digest fits.
    Fetch {
        /// From where.
        url: String,
        /// Its digest.
        sha256: Sha256,
    },
    /// It is pushed there over SSH and started.
    Ssh,
}

/// Which way was chosen.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AgentWay {
    /// It is in the image.
    Image,
    /// The machine fetches it.
    Fetch,
    /// It is pushed there over SSH.
    Ssh,
    /// The same where the disk of a machine is empty after a restart, and its agent gone.
    #[serde(rename = "ssh-once")]
    SshOnce,
    /// A program of the user's own starts it.
    Program,
    /// Pushed or started by the program: that is known once the program has told how the machine is reached.
    Told,
}

impl AgentWay {
    /// What an offer's `agent` leads to where the provider's usual way is this; none where no agent has to get there.
    pub fn of(source: Option<&AgentSource>, usual: Option<Self>) -> Option<Self> {
        let usual = usual?;
        Some(match source {
            None => usual,
            Some(AgentSource::Ssh) => Self::Ssh,
            Some(AgentSource::Image | AgentSource::Fetch { .. }) if usual == Self::Told => {
                Self::Program
            }
            Some(AgentSource::Image) => Self::Image,
            Some(AgentSource::Fetch { .. }) => Self::Fetch,
        })
    }
}

impl std::fmt::Display for AgentWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Image => "its agent is in the image",
            Self::Fetch => "it fetches its agent",
            Self::Ssh => "its agent is pushed over SSH",
            Self::SshOnce => {
                "its agent is pushed over SSH, and is lost with the disk when the machine restarts: `--replace` then rents another one"
            }
            Self::Program => "its agent is started by `acquire`",
            Self::Told => "its agent is pushed over SSH, unless `acquire` starts it",
        })
    }
}

/// What may be taken when the offers on the plan's shortlist are used up.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Requote {
    /// What is quoted then, under the same requirement and ceiling.
    #[default]
    WithinCeiling,
    /// Nothing.
    Never,
}

/// What only rented machines have.
pub(super) fn check(root: &Fields<'_>, taken: &[Taken<'_>]) {
    for taken in taken {
        match taken.provider.map(|provider| &provider.kind) {
            Some(ProviderKind::Cloud { cloud, .. }) => agent_comes_from(root, taken, *cloud),
            Some(ProviderKind::Ssh { .. }) => own_host(root, taken),
            Some(ProviderKind::Local { .. }) => not_rented(root, taken),
            Some(ProviderKind::Command { .. }) | None => {}
        }
    }
}

fn not_rented(root: &Fields<'_>, taken: &Taken<'_>) {
    let (image, agent) = (&taken.offer.image, &taken.offer.agent);
    for (key, given) in [("image", image.is_some()), ("agent", agent.is_some())] {
        if given {
            let message =
                format!("{taken}: a machine on this computer is not rented and has no `{key}`");
            let hint = format!("remove `{key}`, or take a provider of another kind");
            root.fault(taken.place(root, key), "topology/conflict", message, hint);
        }
    }
}

/// A machine of one's own runs no image, and its agent is always pushed.
fn own_host(root: &Fields<'_>, taken: &Taken<'_>) {
    let (image, agent) = (&taken.offer.image, &taken.offer.agent);
    let pushed = matches!(agent, None | Some(AgentSource::Ssh));
    for (key, wrong) in [("image", image.is_some()), ("agent", !pushed)] {
        if wrong {
            let message = format!(
                "{taken}: a machine of one's own runs no image, and its agent is pushed over SSH"
            );
            root.fault(
                taken.place(root, key),
                "topology/conflict",
                message,
                format!("remove `{key}`"),
            );
        }
    }
}

/// An agent that is in an image needs one.
fn agent_comes_from(root: &Fields<'_>, taken: &Taken<'_>, cloud: Cloud) {
    if taken.offer.agent != Some(AgentSource::Image) {
        return;
    }
    let fault = |code, message: String, hint| {
        root.fault(taken.place(root, "agent"), code, message, hint);
    };
    let else_pushed = "remove `agent`, so that it is pushed over SSH, or write `agent = { url = \"...\", sha256 = \"...\" }`";
    if !cloud.takes_images() {
        let message = format!(
            "{taken}: machines of `{}` run no image that could have the agent",
            cloud.as_str()
        );
        fault("topology/conflict", message, else_pushed);
    } else if taken.offer.image.is_none() {
        let message = format!("{taken} does not say which image has the agent");
        let hint = "add `image = \"...\"`; or remove `agent`, so that it is pushed over SSH";
        fault("topology/missing-key", message, hint);
    }
}

impl Offer {
    /// How the agent gets onto its machines: as it says, else in its image where machines run images of one's own, else over SSH.
    /// None is the provider's usual way.
    pub fn agent_on(&self, provider: &ProviderKind) -> Option<AgentSource> {
        let ProviderKind::Cloud { cloud, .. } = provider else {
            return self.agent.clone();
        };
        let inside = cloud.takes_images() && self.image.is_some();
        let usual = (!inside).then_some(AgentSource::Ssh);
        self.agent.clone().or(usual)
    }
}

/// A machine that nobody could talk to is better not rented. A simulator's can be reached.
pub(super) fn reached(root: &Fields<'_>, providers: &BTreeMap<Name, Provider>) {
    let reached = |kind: &ProviderKind| match kind {
        // One's own programs say how their machines are reached.
        ProviderKind::Local { .. } | ProviderKind::Ssh { .. } | ProviderKind::Command { .. } => {
            true
        }
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

/// Where a key of `[kind.NAME]` stands; the file, where it does not.
pub(super) fn place(root: &Fields<'_>, kind: &str, name: &Name, key: &str) -> At {
    found(root, kind, name, key).unwrap_or(root.at)
}

/// Where a key of `[kind.NAME]` stands, if it does.
pub(super) fn found(root: &Fields<'_>, kind: &str, name: &Name, key: &str) -> Option<At> {
    let tables = root.table.entries.get(kind)?.node.value.table()?;
    let table = tables.entries.get(name.as_str())?.node.value.table()?;
    table.entries.get(key).map(|entry| entry.key_at)
}

/// A lease that costs money ends some day: by both of its limits, or by what the topology may spend.
pub(super) fn ends(
    root: &Fields<'_>,
    max_spend: Option<MicroDollars>,
    providers: &BTreeMap<Name, Provider>,
    offers: &BTreeMap<Name, Offer>,
    leases: &BTreeMap<Name, Lease>,
) {
    if max_spend.is_some() {
        return;
    }
    for (name, lease) in leases {
        let taken: Vec<(&Name, &Offer)> = lease
            .offers
            .iter()
            .filter_map(|offer| Some((offer, offers.get(offer)?)))
            .collect();
        let costs = |offer: &Offer| {
            let provider = providers.get(&offer.provider);
            provider.is_some_and(|one| match &one.kind {
                ProviderKind::Local { .. } => false,
                ProviderKind::Ssh { hosts } => hosts
                    .iter()
                    .any(|host| host.price_per_hour != MicroDollars::ZERO),
                ProviderKind::Cloud { .. } => true,
                ProviderKind::Command { .. } => {
                    !offer.claims.as_ref().is_some_and(Claims::are_free)
                }
            })
        };
        if !taken.iter().any(|(_, offer)| costs(offer)) {
            continue;
        }
        type Limit = (
            &'static str,
            Option<Millis>,
            fn(&Offer) -> Millis,
            &'static str,
        );
        let limits: [Limit; 2] = [
            (
                "idle_timeout",
                lease.idle_timeout,
                |o| o.idle_timeout,
                "20m",
            ),
            (
                "max_lifetime",
                lease.max_lifetime,
                |o| o.max_lifetime,
                "12h",
            ),
        ];
        for (key, own, of, example) in limits {
            // The smallest holds.
            let mut all = taken.iter().map(|(_, offer)| of(offer)).chain(own);
            if !all.all(|limit| limit == Millis::NEVER) {
                continue;
            }
            let at = match (own, taken.first()) {
                (None, Some((offer, _))) => place(root, "offer", offer, key),
                (Some(_), _) | (None, None) => place(root, "lease", name, key),
            };
            let message = format!(
                "`lease.{name}` costs money: `{key} = \"never\"` is allowed only where `max_spend` bounds how much"
            );
            let hint = format!(
                "set `max_spend` in [limits], or a limit here, such as `{key} = \"{example}\"`"
            );
            root.fault(at, "topology/never-ends", message, hint);
        }
    }
}
