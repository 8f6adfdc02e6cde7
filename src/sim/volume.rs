//! Volumes: what outlives the machines that have it.
//!
//! What always holds: a volume of an account is one folder for as long as the simulator runs, whatever machines come and go; a
//! machine has it in the folder of its agent, at the path of its mount point without the first `/`: the root of this computer is not the
//! machine's. Nothing is billed for one, and the ledger knows of none.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use super::world::World;

/// A volume of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// What the provider calls it.
    pub id: String,
    /// The folder at which it is mounted.
    pub at: String,
}

/// The volumes of an account, in the provider's own words; a simulator whose provider keeps them elsewhere has none here.
pub(super) fn all(world: &World, account: &str) -> Vec<Value> {
    let inner = world.lock();
    let rows = inner.accounts.get(&shelf(account));
    rows.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Adds one; it is given a number that no other has, whosever it is.
pub(super) fn add(world: &World, account: &str, row: impl FnOnce(u64) -> Value) -> Value {
    let mut inner = world.lock();
    let count = inner
        .accounts
        .entry("volumes".to_owned())
        .or_insert(json!(0));
    let number = count.as_u64().unwrap_or(0) + 1;
    *count = json!(number);
    let row = row(number);
    let rows = inner.accounts.entry(shelf(account)).or_insert(json!([]));
    if let Some(rows) = rows.as_array_mut() {
        rows.push(row.clone());
    }
    row
}

/// Takes one out, with what is on it.
pub(super) fn take_out(world: &World, account: &str, id: &Value) {
    let mut inner = world.lock();
    let rows = inner.accounts.get_mut(&shelf(account));
    if let Some(rows) = rows.and_then(Value::as_array_mut) {
        rows.retain(|row| row["id"] != *id);
    }
    drop(inner);
    world.wipe(account, &text(id));
}

/// An id as text, also one that is a number.
pub(super) fn text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

fn shelf(account: &str) -> String {
    format!("{account}/volumes")
}

/// Whether some machine that is there has a volume of its account.
pub(super) fn in_use(world: &World, account: &str, id: &str) -> bool {
    let now = world.clock.now();
    let inner = world.lock();
    let mut machines = inner.machines.values();
    machines.any(|machine| {
        let has = machine.mounts.iter().any(|mount| mount.id == id);
        has && machine.account == account && machine.is_there(now)
    })
}

/// Where a volume is on this computer. Names of accounts and volumes may hold anything.
fn home(root: &Path, account: &str, id: &str) -> PathBuf {
    let digest = blake3::hash(format!("{account}\n{id}").as_bytes());
    let name = digest.to_hex()[..16].to_owned();
    root.join("volumes").join(name)
}

/// Puts the volumes of a machine into the folder of its agent.
pub(super) fn mount(
    root: &Path,
    agent: &Path,
    account: &str,
    mounts: &[Attached],
) -> std::io::Result<()> {
    for mount in mounts {
        let volume = home(root, account, &mount.id);
        std::fs::create_dir_all(&volume)?;
        // Whatever was asked for, it stays below the machine.
        let parts = Path::new(&mount.at).components();
        let parts = parts.filter(|part| matches!(part, Component::Normal(_)));
        let at = agent.join(parts.collect::<PathBuf>());
        if let Some(parent) = at.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::os::unix::fs::symlink(&volume, &at)?;
    }
    Ok(())
}

/// Removes what was on it.
pub(super) fn remove(root: &Path, account: &str, id: &str) {
    std::fs::remove_dir_all(home(root, account, id)).ok();
}
