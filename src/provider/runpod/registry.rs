//! Logins for private images: RunPod keeps them in the account under a name, and a pod names one by its id.
//!
//! What always holds: one is made right before the first pod that needs it and found again by its name, which tells another
//! password from this one and nothing of either; none is removed while a pod of the listing uses it, or while one is on its way
//! to be made with it. One that is not named as ours is never touched.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use reqwest::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use stageline_core::resource::Cause;
use tokio::sync::{RwLock, RwLockReadGuard};

use super::{REQUESTS, Runpod, wire};
use crate::provider::http::{Call, Fault, fingerprint};
use crate::provider::{CreateRequest, RegistryLogin};

/// What the names of ours begin with.
const HEAD: &str = "stageline-";

/// What is known of the credentials of an account.
#[derive(Default)]
pub(super) struct Registries {
    /// Read while a pod is made with one, written while one is removed.
    turn: RwLock<()>,
    /// One after the other, so that none is made twice.
    making: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// By their ids.
#[derive(Default)]
struct Known {
    /// Made or met here, and not removed yet.
    met: BTreeSet<String>,
    /// Used by a pod of the last listing.
    used: BTreeSet<String>,
}

impl Registries {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no holder panics")
    }

    /// What a listing shows.
    pub(super) fn note(&self, pods: &[Value]) {
        let ids = pods.iter().filter_map(|pod| pod.get("registry")?.as_str());
        let mut known = self.known();
        known.used = ids.map(str::to_owned).collect();
        let used = known.used.clone();
        known.met.extend(used);
    }

    /// None is removed until this is dropped.
    pub(super) async fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.read().await
    }
}

impl Runpod {
    /// The id of the credential for this pod's image, made when there is none; nothing for an image that anybody may pull.
    pub(super) async fn let_in(&self, request: &CreateRequest) -> Result<Option<String>, Cause> {
        let Some(login) = &request.registry else {
            return Ok(None);
        };
        let _one = self.registries.making.lock().await;
        let name = name_of(request, login);
        let found = self.credential(&name, login).await;
        let id = found.map_err(|fault| {
            let message = format!(
                "the login for its image cannot be kept in the account: {}",
                fault.cause.message
            );
            let cause = Cause {
                message,
                ..fault.cause
            };
            match cause.hint {
                Some(_) => cause,
                None => cause
                    .hint("the key of the account must be allowed to make registry credentials"),
            }
        })?;
        self.registries.known().met.insert(id.clone());
        Ok(Some(id))
    }

    async fn credential(&self, name: &str, login: &RegistryLogin) -> Result<String, Fault> {
        let answer = self.api.read(Call::get("/v2/registries", REQUESTS)).await?;
        let rows = wire::rows(&answer.body, "registries")?;
        let same = rows
            .iter()
            .find(|row| row.get("name").and_then(Value::as_str) == Some(name));
        let id = |row: &Value| row.get("id").and_then(Value::as_str).map(str::to_owned);
        if let Some(id) = same.and_then(id) {
            return Ok(id);
        }
        let body = json!({
            "name": name, "username": login.username, "password": login.password.expose_secret(),
        });
        tokio::time::sleep(self.api.gate(&REQUESTS).reserve()).await;
        let call = Call::send(Method::POST, "/v2/registries", REQUESTS, body);
        let answer = self.api.once(call).await?;
        id(&answer.body).ok_or_else(|| Fault::shape("the credential was answered without an id"))
    }

    /// Removes those of ours that no listed pod uses. What does not work is tried again with the next listing.
    pub(super) async fn remove_unused(&self) {
        let unused: Vec<String> = {
            let known = self.registries.known();
            known.met.difference(&known.used).cloned().collect()
        };
        if unused.is_empty() {
            return;
        }
        let _alone = self.registries.turn.write().await;
        for id in unused {
            if self.remove(&id).await.is_ok() {
                self.registries.known().met.remove(&id);
            }
        }
    }

    async fn remove(&self, id: &str) -> Result<(), Fault> {
        let path = wire::path("/v2/registries", id);
        let row = match self.api.read(Call::get(path.clone(), REQUESTS)).await {
            Ok(answer) => answer.body,
            Err(fault) if fault.status == Some(404) => return Ok(()),
            Err(fault) => return Err(fault),
        };
        let name = row.get("name").and_then(Value::as_str);
        if !name.is_some_and(|name| name.starts_with(HEAD)) {
            return Ok(());
        }
        let call = Call {
            method: Method::DELETE,
            ..Call::get(path, REQUESTS)
        };
        self.api.release(call).await.map(|_| ())
    }
}

/// The body of a create, with the credential that its image is pulled with.
pub(super) fn with(mut body: Value, id: Option<String>) -> Value {
    if let Some(id) = id {
        body["registry"] = Value::String(id);
    }
    body
}

/// One for each topology and login.
fn name_of(request: &CreateRequest, login: &RegistryLogin) -> String {
    let lineage = request
        .request_key
        .as_str()
        .split('-')
        .nth(1)
        .unwrap_or_default();
    let whole = format!(
        "{}\n{}\n{}",
        login.server,
        login.username,
        login.password.expose_secret()
    );
    format!("{HEAD}{lineage}-{}", fingerprint(&whole))
}
