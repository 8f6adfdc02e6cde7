//! SSH keys that are registered at the account for one try of a machine each, so that its agent can be pushed there.
//!
//! What always holds: a key is named by the request key, which is on record before it is registered, and is registered right before
//! its launch; it is removed when the launch is refused and when the machine is ended. As long as one is there without its machine, it
//! is listed as a machine that is over and costs nothing, so that whatever sees to machines sees to it: doubts, releases, orphans. It
//! refuses to touch a key that is not named so.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use stageline_core::id::{MachineId, RequestKey};
use stageline_core::resource::{Cause, Outcome};
use stageline_core::topology::AgentSource;

use super::wire::{data, text};
use super::{ANY, Lambda, Seen, advised};
use crate::ambient::crash_point;
use crate::provider::doors::without_ssh;
use crate::provider::http::{Call, Fault};
use crate::provider::leftover::{Kept, SSH_KEY};
use crate::provider::{CreateRequest, Machine, Released};
use crate::ssh::OwnKey;

/// Where the API has them.
const PATH: &str = "/api/v1/ssh-keys";

/// How old the account's keys may be for a listing: one that somebody registers meanwhile is a try whose outcome is open, and that is
/// watched for longer.
const AGE: Duration = Duration::from_secs(20);

/// Longest that a key may take to be registered.
pub(super) const REGISTER_MAX: Duration = Duration::from_secs(15);

/// A key of the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountKey {
    id: String,
    pub(super) name: String,
    /// Without its comment: that may be another on read-back.
    pub(super) public: String,
}

/// The keys of an answer.
pub(super) fn keys(body: &Value) -> Result<Vec<AccountKey>, Fault> {
    let rows = data(body)?.as_array();
    let rows = rows.ok_or_else(|| Fault::shape("its `data` is no list of keys"))?;
    let key = |row: &Value| {
        Some(AccountKey {
            id: text(row, "id").unwrap_or_default(),
            name: text(row, "name")?,
            public: plain(row.get("public_key").and_then(Value::as_str).unwrap_or("")),
        })
    };
    Ok(rows.iter().filter_map(key).collect())
}

/// A public key without its comment.
fn plain(public: &str) -> String {
    let words: Vec<&str> = public.split_ascii_whitespace().take(2).collect();
    words.join(" ")
}

/// Whether the agent of this machine is pushed.
pub(super) fn is_pushed(request: &CreateRequest) -> bool {
    matches!(request.agent, None | Some(AgentSource::Ssh))
}

impl Lambda {
    /// The SSH keys of the account.
    pub(super) async fn account_keys(&self, age: Duration) -> Result<Arc<Vec<AccountKey>>, Fault> {
        let fetch = async || {
            let answer = self.read(Call::get(PATH, ANY)).await?;
            Ok(Arc::new(keys(&answer.body)?))
        };
        self.keys.get(self.api.scaled(age), fetch).await
    }

    /// Registers the key of a try. It may be sent again: its name tells whether it is there.
    pub(super) async fn register(&self, request: &CreateRequest) -> Result<(), Outcome<Machine>> {
        let own = OwnKey::of(&request.boot.agent_key).public();
        let Some(own) = own else {
            return Err(Outcome::Refused(without_ssh()));
        };
        let name = request.request_key.as_str();
        let body = json!({ "name": name, "public_key": own });
        crash_point("an SSH key, not yet registered");
        let sent = self.api.read(Call::send(Method::POST, PATH, ANY, body));
        let limit = self.api.above(REGISTER_MAX);
        let answer = tokio::time::timeout(limit, sent).await;
        self.keys.forget().await;
        crash_point("an SSH key, just registered");
        let fault = match answer {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(fault)) => advised(fault),
            Err(_) => Fault::late("that", limit),
        };
        // An earlier sending of the same may have arrived.
        let there = self.account_keys(Duration::ZERO).await;
        let same = |key: &AccountKey| key.name == name && key.public == plain(&own);
        if there.is_ok_and(|keys| keys.iter().any(same)) {
            return Ok(());
        }
        let message = format!(
            "the SSH key of its machine cannot be registered: {}",
            fault.cause.message
        );
        let cause = Cause {
            message,
            ..fault.cause
        };
        Err(Fault { cause, ..fault }.outcome())
    }

    /// How a launch ended of which nothing came: its key goes, too.
    pub(super) async fn withdrawn(
        &self,
        key: Option<&RequestKey>,
        cause: Cause,
    ) -> Outcome<Machine> {
        let Some(key) = key else {
            return Outcome::Refused(cause);
        };
        let removed = self.remove_named(key.as_str()).await;
        SSH_KEY.withdrawn(key.as_str(), cause, removed)
    }

    /// Removes the key of a machine, where it has one.
    pub(super) async fn remove_key_of(&self, id: &MachineId) -> Result<(), Cause> {
        let name = {
            let keyed = self.keyed.lock().expect("no holder panics");
            keyed.get(id).cloned()
        };
        let Some(name) = name else { return Ok(()) };
        self.remove_named(name.as_str()).await?;
        self.keyed.lock().expect("no holder panics").remove(id);
        Ok(())
    }

    async fn remove_named(&self, name: &str) -> Result<(), Cause> {
        let keys = self.account_keys(AGE).await;
        let keys = keys.map_err(|fault| fault.cause)?;
        for key in keys.iter().filter(|key| key.name == name) {
            self.remove(&key.id).await?;
        }
        Ok(())
    }

    async fn remove(&self, id: &str) -> Result<Released, Cause> {
        crash_point("an SSH key, not yet removed");
        let call = Call {
            method: Method::DELETE,
            ..Call::get(format!("{PATH}/{id}"), ANY)
        };
        let answer = self.api.release(call).await.map_err(advised);
        self.keys.forget().await;
        crash_point("an SSH key, just removed");
        match answer {
            Ok(_) => Ok(Released::Accepted),
            Err(fault) if fault.status == Some(404) => Ok(Released::Unknown),
            Err(fault) => Err(fault.cause),
        }
    }

    /// The keys of the account that are named as ours.
    async fn kept(&self) -> Result<Vec<Kept>, Fault> {
        let keys = self.account_keys(AGE).await?;
        let ours = |key: &AccountKey| {
            let of = key.name.parse().ok()?;
            let id = key.id.clone();
            (!id.is_empty()).then_some(Kept { id, of })
        };
        Ok(keys.iter().filter_map(ours).collect())
    }

    /// Those whose machines are not among these.
    pub(super) async fn left_over(&self, all: &[Seen]) -> Result<Vec<Machine>, Fault> {
        let there = all.iter().filter(|seen| !seen.over);
        let there = there.filter_map(|seen| seen.machine.request_key.as_ref());
        Ok(SSH_KEY.alone(&self.kept().await?, there))
    }

    /// One of them, by its id among machines; none when it is gone, or no key's.
    pub(super) async fn left(&self, id: &MachineId) -> Result<Option<Machine>, Fault> {
        if SSH_KEY.id_of(id).is_none() {
            return Ok(None);
        }
        Ok(SSH_KEY.find(&self.kept().await?, id))
    }

    /// Removes one of them; none is no key of ours.
    pub(super) async fn release_key(&self, id: &MachineId) -> Option<Result<Released, Cause>> {
        let own = SSH_KEY.id_of(id)?;
        // Also one that is named as ours no more is none of ours.
        match self.left(id).await {
            Ok(Some(_)) => Some(self.remove(own).await),
            Ok(None) => Some(Ok(Released::Unknown)),
            Err(fault) => Some(Err(fault.cause)),
        }
    }
}

/// Whether the id of a machine is a key's in truth.
pub(super) fn is_key(id: &MachineId) -> bool {
    SSH_KEY.id_of(id).is_some()
}
