//! Logins for private images: RunPod keeps them in the account under a name, and a pod names one by its id.
//!
//! What always holds: each try of a pod has one of its own, named by the request key, which is on record before it is made; it is made
//! right before the create, and removed when that is refused and after the pod is gone. As long as one is there without its pod, it is
//! listed as a machine that is over and costs nothing, so that whatever sees to machines sees to it: doubts, releases, orphans. It
//! refuses to touch one that is not named so. The provider does not remove one that a pod uses.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use stageline_core::id::{MachineId, RequestKey};
use stageline_core::resource::{Cause, Outcome};

use super::{LOGIN_MAX, LOGIN_REMOVED_MAX, REQUESTS, Runpod, wire};
use crate::ambient::crash_point;
use crate::provider::http::{Call, Fault, too_many};
use crate::provider::leftover::{CREDENTIAL, Kept};
use crate::provider::{CreateRequest, Machine, Released};

/// Where the API has them.
const PATH: &str = "/v2/registries";

/// How old what is known of them may be for a listing: one that somebody makes meanwhile is a try whose outcome is open, and that is
/// watched for longer.
const AGE: Duration = Duration::from_secs(20);

/// Those of ours in an answer.
fn ours(body: &Value) -> Result<Vec<Kept>, Fault> {
    let rows = wire::rows(body, "registries")?;
    let one = |row: &Value| {
        let text = |field: &str| row.get(field).and_then(Value::as_str);
        Some(Kept {
            id: text("id").filter(|id| !id.is_empty())?.to_owned(),
            of: text("name")?.parse().ok()?,
        })
    };
    Ok(rows.iter().filter_map(one).collect())
}

impl Runpod {
    /// The credentials of the account that are named as ours. A key that may not see them has made none.
    async fn credentials(&self, age: Duration) -> Result<Arc<Vec<Kept>>, Fault> {
        let fetch = async || match self.api.read(Call::get(PATH, REQUESTS)).await {
            Ok(answer) => Ok(Arc::new(ours(&answer.body)?)),
            Err(fault) if fault.status == Some(403) => Ok(Arc::default()),
            Err(fault) => Err(fault),
        };
        self.credentials.get(self.api.scaled(age), fetch).await
    }

    /// The id of a credential for this pod's image, made now; nothing for an image that anybody may pull.
    pub(super) async fn let_in(
        &self,
        request: &CreateRequest,
    ) -> Result<Option<String>, Outcome<Machine>> {
        let Some(login) = &request.registry else {
            return Ok(None);
        };
        let body = json!({
            "name": request.request_key.as_str(),
            "username": login.username,
            "password": login.password.expose_secret(),
        });
        let limit = self.api.above(LOGIN_MAX);
        let turn = self.api.gate(&REQUESTS).reserve_within(limit / 2);
        let turn = turn.ok_or_else(|| Outcome::Refused(too_many()))?;
        tokio::time::sleep(turn).await;
        crash_point("a credential, not yet made");
        let call = Call {
            timeout: limit - turn,
            ..Call::send(Method::POST, PATH, REQUESTS, body)
        };
        let answer = self.api.once(call).await;
        self.credentials.forget().await;
        crash_point("a credential, just made");
        let fault = match answer {
            Ok(answer) => {
                let id = answer.body.get("id").and_then(Value::as_str);
                match id {
                    Some(id) => return Ok(Some(id.to_owned())),
                    None => Fault::shape("the credential was answered without an id"),
                }
            }
            Err(fault) => fault,
        };
        let message = format!(
            "the login for its image cannot be kept in the account: {}",
            fault.cause.message
        );
        let cause = Cause {
            message,
            ..fault.cause
        };
        let cause = match cause.hint {
            Some(_) => cause,
            None => {
                cause.hint("the key of the account must be allowed to make registry credentials")
            }
        };
        Err(Fault { cause, ..fault }.outcome())
    }

    /// How a create ended of which nothing came: its credential goes, too.
    pub(super) async fn withdrawn(
        &self,
        of: &RequestKey,
        id: Option<&String>,
        cause: Cause,
    ) -> Outcome<Machine> {
        let Some(id) = id else {
            return Outcome::Refused(cause);
        };
        let limit = self.api.above(LOGIN_REMOVED_MAX);
        let removed = match tokio::time::timeout(limit, self.remove(id)).await {
            Ok(removed) => removed.map(|_| ()),
            Err(_) => Err(Fault::late("its removal", limit).cause),
        };
        CREDENTIAL.withdrawn(of.as_str(), cause, removed)
    }

    /// Those of ours whose pods are not among these.
    pub(super) async fn left_over(&self, pods: &[Machine]) -> Result<Vec<Machine>, Fault> {
        let there = pods.iter().filter_map(|pod| pod.request_key.as_ref());
        Ok(CREDENTIAL.alone(&self.credentials(AGE).await?, there))
    }

    /// One of them, by its id among machines; none when it is gone, or no credential's.
    pub(super) async fn left(&self, id: &MachineId) -> Result<Option<Machine>, Fault> {
        if CREDENTIAL.id_of(id).is_none() {
            return Ok(None);
        }
        Ok(CREDENTIAL.find(&self.credentials(AGE).await?, id))
    }

    /// Removes one of them; none is no credential.
    pub(super) async fn release_credential(
        &self,
        id: &MachineId,
    ) -> Option<Result<Released, Cause>> {
        Some(self.remove(CREDENTIAL.id_of(id)?).await)
    }

    /// It is read again: one that is not named as ours is never touched.
    async fn remove(&self, id: &str) -> Result<Released, Cause> {
        let path = wire::path(PATH, id);
        let row = match self.api.read(Call::get(path.clone(), REQUESTS)).await {
            Ok(answer) => answer.body,
            Err(fault) if fault.status == Some(404) => {
                self.credentials.forget().await;
                return Ok(Released::Unknown);
            }
            Err(fault) => return Err(fault.cause),
        };
        let name = row.get("name").and_then(Value::as_str);
        if name.is_none_or(|name| name.parse::<RequestKey>().is_err()) {
            return Ok(Released::Unknown);
        }
        crash_point("a credential, not yet removed");
        let call = Call {
            method: Method::DELETE,
            ..Call::get(path, REQUESTS)
        };
        let answer = self.api.release(call).await;
        self.credentials.forget().await;
        crash_point("a credential, just removed");
        match answer {
            Ok(_) => Ok(Released::Accepted),
            Err(fault) => Err(fault.cause),
        }
    }
}

/// The body of a create, with the credential that its image is pulled with.
pub(super) fn with(mut body: Value, id: Option<&String>) -> Value {
    if let Some(id) = id {
        body["registry"] = Value::String(id.clone());
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_by_a_whole_request_key_is_ours() {
        let key = "sl-0102030405060708-aabbccdd-g1a2";
        let body = json!({ "registries": [
            { "id": "a", "name": key, "username": "u" },
            { "id": "b", "name": "laptop" },
            { "id": "c", "name": format!("{key}-copy") },
            { "id": "", "name": key },
        ]});
        let found = ours(&body).expect("it is a list");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id.as_str(), found[0].of.as_str()), ("a", key));
    }
}
