//! Volumes that machines of a lease have: the key `mounts`.
//!
//! A volume is named and never made. Whether there is such a volume, and where, is not known here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::keys::Kind;
use super::read::{Field, Fields};
use super::rented::place;
use super::{Cloud, Lease, Offer, Provider, ProviderKind, convert, selection};
use crate::diagnostic::shown;
use crate::id::Name;

/// Longest path of a mount point.
const PATH_MAX: usize = 256;

/// A volume on each machine of a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Mount {
    /// By its name or its id at the provider.
    pub volume: String,
    /// The folder at which it is.
    pub at: String,
    /// Whether it can only be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Reads the key `mounts`.
pub(super) fn read(fields: &Fields<'_>) -> Vec<Mount> {
    let Some(field) = fields.get("mounts") else {
        return Vec::new();
    };
    let Kind::Tables(def) = field.key.kind else {
        unreachable!("`mounts` is defined as a list of tables")
    };
    let items = field.list().into_iter().flatten().enumerate();
    let open = |(n, item)| Fields::inside(item, def, fields.address(&format!("mounts[{n}]")));
    let mut mounts: Vec<Mount> = Vec::new();
    for table in items.filter_map(open) {
        let Some(mount) = mount(&table) else { continue };
        let twice = mounts
            .iter()
            .find(|other| other.at == mount.at || other.volume == mount.volume);
        if let Some(other) = twice {
            let (what, key) = match other.at == mount.at {
                true => (&mount.at, "at"),
                false => (&mount.volume, "volume"),
            };
            let message = format!("`{}` stands in `mounts` twice", shown(what));
            let hint = "each volume once, and each at a folder of its own";
            table.fault(table.at_value(key), "topology/duplicate", message, hint);
        }
        mounts.push(mount);
    }
    mounts
}

fn mount(fields: &Fields<'_>) -> Option<Mount> {
    let volume = fields.read("volume", selection::name);
    let at = fields.read("at", folder);
    let read_only = fields.read("read_only", convert::boolean);
    Some(Mount {
        volume: volume?,
        at: at?,
        read_only: read_only.unwrap_or(false),
    })
}

/// A whole path of a folder, in one spelling, below the root.
fn folder(field: Field<'_>) -> Option<String> {
    let path = field.text()?;
    let part = |part: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+@".contains(&b);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    let good = path.len() <= PATH_MAX
        && path
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(part));
    if !good {
        let message = format!("`{}` is no whole path of a folder", shown(path));
        let hint = format!(
            "such as `at = {}`: it begins with `/`, has letters, digits and `._-+@`, and does not end with `/`",
            field.key.example
        );
        field.bad(message, Some(hint));
        return None;
    }
    Some(path.to_owned())
}

/// Whether each offer that a lease takes is of a provider that can mount what the lease asks for.
pub(super) fn check(
    root: &Fields<'_>,
    providers: &BTreeMap<Name, Provider>,
    offers: &BTreeMap<Name, Offer>,
    leases: &BTreeMap<Name, Lease>,
) {
    for (name, lease) in leases.iter().filter(|(_, lease)| !lease.mounts.is_empty()) {
        let taken = lease.offers.iter().filter_map(|offer| offers.get(offer));
        let mut told: Vec<&Name> = Vec::new();
        for provider in taken.map(|offer| &offer.provider) {
            let Some(Provider { kind, .. }) = providers.get(provider) else {
                continue;
            };
            if told.contains(&provider) {
                continue;
            }
            told.push(provider);
            if let Some((why, hint)) = against(kind, lease) {
                let message = format!(
                    "`lease.{name}` cannot have its `mounts` at provider `{provider}`: {why}"
                );
                let at = place(root, "lease", name, "mounts");
                root.fault(at, "topology/conflict", message, hint);
            }
        }
    }
}

/// Why a kind of provider cannot mount this, and what to do.
fn against(kind: &ProviderKind, lease: &Lease) -> Option<(String, String)> {
    let mounts = &lease.mounts;
    let cloud = match kind {
        ProviderKind::Cloud { cloud, .. } => *cloud,
        ProviderKind::Local { .. } => {
            let why = "machines on this computer have its disk";
            return Some((
                why.to_owned(),
                "name folders by their paths, without `mounts`".to_owned(),
            ));
        }
        ProviderKind::Ssh { .. } | ProviderKind::Command { .. } => {
            let why = "what machines of one's own have is mounted by whoever keeps them";
            let hint = "mount it on the hosts, or in `setup` of the lease; and remove `mounts`";
            return Some((why.to_owned(), hint.to_owned()));
        }
    };
    if let Some(mount) = mounts.iter().find(|mount| mount.read_only) {
        let why = format!(
            "`{}` is to be read only, and {} of `{}` are mounted writable: a request has no word for anything else",
            shown(&mount.volume),
            cloud.volumes(),
            cloud.as_str()
        );
        let hint = "remove `read_only`, and see to it that nothing writes there; or mount a copy";
        return Some((why, hint.to_owned()));
    }
    if mounts.len() > cloud.mounts_max() {
        let why = format!(
            "a machine of `{}` has at most {} of its {}, and these are {}",
            cloud.as_str(),
            cloud.mounts_max(),
            cloud.volumes(),
            mounts.len()
        );
        return Some((why, "keep one".to_owned()));
    }
    outside(cloud, mounts)
}

/// A mount point where the provider mounts nothing.
fn outside(cloud: Cloud, mounts: &[Mount]) -> Option<(String, String)> {
    let points = cloud.mount_points();
    let inside = |mount: &&Mount| {
        let below = |point: &&&str| {
            let rest = mount.at.strip_prefix('/')?.strip_prefix(**point)?;
            rest.strip_prefix('/')
        };
        points.iter().any(|point| below(&point).is_some())
    };
    let mount = mounts
        .iter()
        .find(|mount| !points.is_empty() && !inside(mount))?;
    let why = format!(
        "it mounts nothing at `{}`, but below /{} only",
        mount.at,
        points.join(", /")
    );
    let name: String = mount
        .volume
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Some((why, format!("such as `at = \"/{}/{name}\"`", points[0])))
}
