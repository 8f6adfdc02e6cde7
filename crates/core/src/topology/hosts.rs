//! Providers that are machines of one's own, by SSH: where each host is, as whom, and by which keys.
//!
//! Names of hosts and users end up in commands and in the names of machines, so that what could be read as an option, a path or a
//! second host is refused here. Whether a host can be reached is nobody's business here.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::ProviderKind;
use super::convert;
use super::keys::Kind;
use super::read::{Field, Fields};
use crate::unit::MicroDollars;

/// The key that no other provider has.
pub(super) const KEYS: [&str; 1] = ["hosts"];

/// Where an SSH server listens when the file says nothing.
const PORT: u16 = 22;

/// A machine is named by its host and its request key, within the length of a machine's name.
const PLACE_MAX: usize = 80;

/// One machine of one's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SshHost {
    /// Its name or address.
    pub address: String,
    /// As whom; none is the user who runs stageline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where its SSH server listens.
    pub port: u16,
    /// The file of the key to log in with; none asks the SSH agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Its own public key; none is recorded when it is met first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// What an hour of it counts for.
    pub price_per_hour: MicroDollars,
    /// Words of one's own, for `where`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// Reads the hosts, whatever the kind.
pub(super) fn read(fields: &Fields<'_>) -> Option<Vec<SshHost>> {
    let field = fields.get("hosts")?;
    let Kind::Tables(def) = field.key.kind else {
        unreachable!("`hosts` is defined as a list of tables")
    };
    let items = field.list()?.into_iter().enumerate();
    let open = |(n, item)| Fields::inside(item, def, fields.address(&format!("hosts[{n}]")));
    let mut hosts: Vec<SshHost> = Vec::new();
    for table in items.filter_map(open) {
        let Some(host) = host(&table) else { continue };
        let place = |host: &SshHost| (host.address.clone(), host.port, host.user.clone());
        if hosts.iter().any(|other| place(other) == place(&host)) {
            let message = format!("host {} stands in the list twice", host.address);
            let hint = "a host is taken by one lease at a time; remove one of the two";
            table.fault(table.at, "topology/duplicate", message, hint);
        }
        hosts.push(host);
    }
    Some(hosts)
}

fn host(fields: &Fields<'_>) -> Option<SshHost> {
    let address = fields.read("address", address);
    let user = fields.read("user", user);
    let port = fields
        .read("port", convert::integer)
        .unwrap_or(u32::from(PORT));
    let found = SshHost {
        key: fields.read("key", convert::file),
        host_key: fields.read("host_key", host_key),
        price_per_hour: fields
            .read("price_per_hour", convert::money)
            .unwrap_or_default(),
        tags: fields.read("tags", convert::texts).unwrap_or_default(),
        address: address?,
        user,
        port: u16::try_from(port).unwrap_or(PORT),
    };
    let long = found.address.len() + found.user.as_ref().map_or(32, String::len) + ":65535@".len();
    if long > PLACE_MAX {
        let message = format!(
            "{}: the names of its user and its host are too long",
            fields.title()
        );
        let hint =
            "give its address in numbers, or a shorter name, by an entry in /etc/hosts for example";
        fields.fault(
            fields.at_value("address"),
            "topology/bad-value",
            message,
            hint,
        );
    }
    Some(found)
}

fn address(field: Field<'_>) -> Option<String> {
    let text = field.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(plain) {
        let message = format!(
            "`{}` must be the name or the address of one host",
            field.label
        );
        let hint = "such as \"gpu1.example.org\" or \"192.0.2.7\"; `user` and `port` are keys of their own";
        field.bad(message, Some(hint.to_owned()));
        return None;
    }
    Some(text.to_owned())
}

fn user(field: Field<'_>) -> Option<String> {
    let text = field.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(plain) {
        let message = format!("`{}` must be the name of a user on that host", field.label);
        field.bad(message, Some("such as \"ubuntu\"".to_owned()));
        return None;
    }
    Some(text.to_owned())
}

/// A public key as OpenSSH writes it, without its comment.
fn host_key(field: Field<'_>) -> Option<String> {
    let text = field.text()?;
    let mut words = text.split_ascii_whitespace();
    let (kind, blob) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let decoded = STANDARD.decode(blob).unwrap_or_default();
    // The blob says its own type first.
    let inside = decoded.get(4..).unwrap_or_default();
    if kind.is_empty() || !inside.starts_with(kind.as_bytes()) {
        let message = format!("`{}` must be the public key of that host", field.label);
        let hint = "such as \"ssh-ed25519 AAAA...\": the line in /etc/ssh/ssh_host_ed25519_key.pub there, or what `ssh-keyscan HOST` prints behind the name";
        field.bad(message, Some(hint.to_owned()));
        return None;
    }
    Some(format!("{kind} {blob}"))
}

/// The provider; none when its hosts are missing, which is told.
pub(super) fn kind(fields: &Fields<'_>, hosts: Option<Vec<SshHost>>) -> Option<ProviderKind> {
    let faulty = fields.has("hosts") && hosts.is_none();
    let hosts = hosts.unwrap_or_default();
    if hosts.is_empty() && !faulty {
        let message = format!("{} needs `hosts`: its kind is `ssh`", fields.title());
        let hint = "such as `hosts = [{ address = \"gpu1.example.org\", user = \"ubuntu\" }]`";
        let at = fields.at_key("hosts");
        fields.fault(at, "topology/missing-key", message, hint);
        return None;
    }
    Some(ProviderKind::Ssh { hosts })
}
