//! Leases: the machines that are wanted now, and what everything that runs on one of them has in its environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::build::{self, Scope};
use super::convert;
use super::keys::COUNT_MAX;
use super::read::{Field, Fields};
use super::{Lease, SecretRef};
use crate::id::Name;
use crate::offer::Domain;

/// Most bytes of a setup: it goes with each lease into plan and state. What is larger is fetched by it.
pub const SETUP_MAX: usize = 16 << 10;

/// What a machine runs once, before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// The script itself.
    Script(String),
    /// A file with it on the operator's computer, relative to the topology file.
    File(PathBuf),
}

/// Reads a `[lease.X]`.
pub(super) fn lease(fields: &Fields<'_>, scope: &Scope) -> Option<Lease> {
    let offers = fields.read("offers", |field| {
        convert::names_of_tables(field, &scope.declared)
    });
    let count = fields.read("count", convert::integer);
    let disk = fields.read("disk", convert::size);
    let protect = fields.read("protect", convert::boolean);
    let unguarded = fields.read("unguarded", convert::boolean);
    let wait_for_capacity = fields.read("wait_for_capacity", convert::duration);
    let gang = fields.read("gang", convert::boolean);
    let gang_timeout = fields.read("gang_timeout", convert::duration);
    let (same, spread) = nearness(fields);
    let (env, secrets) = environment(fields);
    let setup = fields.read("setup", setup);
    let mounts = super::mounts::read(fields);
    let terms = build::terms(fields);
    Some(Lease {
        offers: offers?,
        count: count.unwrap_or(1),
        disk,
        protect: protect.unwrap_or(false),
        unguarded: unguarded.unwrap_or(false),
        requirement: terms.requirement,
        max_price_per_hour: terms.max_price_per_hour,
        idle_timeout: terms.idle_timeout,
        max_lifetime: terms.max_lifetime,
        acquire_timeout: terms.acquire_timeout,
        attempts: terms.attempts,
        requote: terms.requote,
        instance_type: terms.instance_type,
        image: terms.image,
        registry: terms.registry,
        agent: terms.agent,
        spot: terms.spot,
        wait_for_capacity,
        gang,
        gang_timeout,
        same,
        spread,
        env,
        secrets,
        setup,
        mounts,
    })
}

/// What the machines of a table have in common, and what they must not.
fn nearness(fields: &Fields<'_>) -> (Option<Domain>, Option<Domain>) {
    let domain = |field: Field<'_>| {
        convert::choice(field, &[Domain::Region, Domain::Datacenter, Domain::Host])
    };
    let (same, spread) = (fields.read("same", domain), fields.read("spread", domain));
    if let (Some(same), Some(spread)) = (same, spread)
        && spread <= same
    {
        let message = format!("machines of one {same} cannot each be in another {spread}");
        fields.fault(
            fields.at_key("spread"),
            "topology/bad-value",
            message,
            "take one of the two out, or spread over something smaller: a region has datacenters, a datacenter has hosts",
        );
    }
    (same, spread)
}

/// All lease tables together have a limit too.
pub(super) fn total_count(root: &Fields<'_>, leases: &BTreeMap<Name, Lease>) {
    let total: u64 = leases.values().map(|lease| u64::from(lease.count)).sum();
    if total > u64::from(COUNT_MAX) {
        let message = format!(
            "the lease tables ask for {total} machines; a topology has at most {}",
            COUNT_MAX
        );
        root.fault(
            root.at_key("lease"),
            "topology/bad-value",
            message,
            "split it into several topologies",
        );
    }
}

/// The keys `env` and `secrets` of a table. A name stands in one of the two.
pub(super) fn environment(
    fields: &Fields<'_>,
) -> (BTreeMap<String, String>, BTreeMap<String, SecretRef>) {
    let env = fields.read("env", convert::env).unwrap_or_default();
    let secrets = fields
        .read("secrets", convert::secret_env)
        .unwrap_or_default();
    for name in secrets.keys().filter(|name| env.contains_key(*name)) {
        let message = format!(
            "{}: `{name}` stands in `env` and in `secrets`",
            fields.title()
        );
        fields.fault(
            fields.at_key("secrets"),
            "topology/duplicate",
            message,
            "keep one of the two",
        );
    }
    (env, secrets)
}

/// A script, or a file with one: one word that looks like a path is no command that anybody would set a machine up with.
fn setup(field: Field<'_>) -> Option<Setup> {
    let text = field.text()?;
    let word = text.trim();
    if word.is_empty() {
        field.bad("`setup` is empty".to_owned(), None);
        return None;
    }
    let is_path =
        !word.contains(char::is_whitespace) && (word.contains('/') || word.ends_with(".sh"));
    if is_path {
        return convert::file(field).map(Setup::File);
    }
    if let Err(why) = check_setup(text) {
        let hint = "put what is large where the machine can fetch it".to_owned();
        field.bad(format!("`setup` {why}"), Some(hint));
        return None;
    }
    Some(Setup::Script(text.to_owned()))
}

/// Whether a text can be a setup.
///
/// # Errors
/// What is wrong with it, in words that follow its name.
pub fn check_setup(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > SETUP_MAX {
        return Err(format!(
            "has {} bytes; at most {SETUP_MAX} are taken",
            text.len()
        ));
    }
    if text.contains('\0') {
        return Err("holds a NUL byte".to_owned());
    }
    Ok(())
}
