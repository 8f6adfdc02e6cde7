//! What an account has beside pods: its SSH keys.

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::world::World;
use super::schema::{Rule, faults};
use super::{invalid, yes};

const KEYS: &[Rule] = &[("keys", |keys| {
    keys.as_array()
        .is_some_and(|keys| keys.iter().all(|key| key.as_str().is_some_and(is_key)))
})];

/// A line of `authorized_keys`.
fn is_key(line: &str) -> bool {
    let plain = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    let kinds = ["ssh-", "ecdsa-", "sk-"];
    let Some((kind, rest)) = line.split_once(' ') else {
        return false;
    };
    let body = rest.split([' ', '\t']).next().unwrap_or_default();
    let known = kinds
        .iter()
        .any(|head| kind.strip_prefix(head).is_some_and(plain));
    known && plain(body) && !line.contains(['\n', '\r'])
}

pub(super) fn keys(world: &World, account: &str) -> Reply {
    let inner = world.lock();
    let keys = inner
        .accounts
        .get(account)
        .map(|account| account["keys"].clone());
    yes(&json!({ "keys": keys.unwrap_or_else(|| json!([])) }))
}

/// The whole set is replaced.
pub(super) fn set_keys(world: &World, account: &str, body: &Value) -> Reply {
    let errors = faults(body, KEYS, &["keys"]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let kept = json!({ "keys": body["keys"] });
    world.lock().accounts.insert(account.to_owned(), kept);
    keys(world, account)
}
