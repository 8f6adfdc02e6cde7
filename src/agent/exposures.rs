//! Listeners of this machine: the gateway on a loopback address, per exposure.
//!
//! What always holds: a listener answers on the address that was asked for, or the request is refused; a free port that
//! was taken once is taken again when it is still free. An agent that starts again has no listener until it is told:
//! `plan` shows that as drift. It refuses addresses beyond loopback.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use stageline_core::id::{Fingerprint, LeaseId, Name};
use stageline_core::resource::{ExposureSpec, Spec, ViaSpec};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::folder;
use super::work::{Counted, Work};
use crate::ambient::SharedClock;
use crate::gateway::{self, GatewayOptions};
use crate::machine::control::{Peer, Refusal};
use crate::pipeline::Fabric;
use crate::pipeline::infer::Infer;

/// How long answers may take to end when the agent does; those that had more time had it before.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Every listener of this agent.
pub struct Exposures {
    lease: LeaseId,
    fabric: Fabric,
    clock: SharedClock,
    /// Which addresses were taken for which exposure.
    record: PathBuf,
    work: Arc<Work>,
    open: Mutex<BTreeMap<Name, Listener>>,
    /// One change at a time.
    changes: tokio::sync::Mutex<()>,
}

struct Listener {
    spec: Fingerprint,
    /// All that it was made from, the key and the peers included.
    made_from: Fingerprint,
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exposures {
    /// No listener yet.
    pub fn new(
        lease: LeaseId,
        fabric: Fabric,
        clock: SharedClock,
        record: PathBuf,
        work: Arc<Work>,
    ) -> Self {
        Self {
            lease,
            fabric,
            clock,
            record,
            work,
            open: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
        }
    }

    /// Starts a listener, or changes it; returns its URL.
    ///
    /// # Errors
    /// [`Refusal`] that names the address when it cannot be had.
    pub async fn expose(
        &self,
        exposure: &Name,
        spec: &ExposureSpec,
        peers: &BTreeMap<Name, Peer>,
        api_key: Option<SecretString>,
    ) -> Result<String, Refusal> {
        let _one = self.changes.lock().await;
        let ViaSpec::Loopback { listen, .. } = &spec.via;
        if !listen.ip().is_loopback() {
            let message = format!("exposure.{exposure}: {listen} is not a loopback address");
            return Err(Refusal::new("bad-request", message).hint("listen on 127.0.0.1"));
        }
        let models = self.models(exposure, spec, peers)?;
        let made_from = digest(spec, peers, api_key.as_ref());
        let old = self.take(exposure);
        if let Some(old) = old {
            if old.made_from == made_from && !old.task.is_finished() {
                let url = url(old.address);
                self.put(exposure, old);
                return Ok(url);
            }
            old.end().await;
        }
        let listener = self.bind(exposure, *listen).await?;
        let address = listener
            .local_addr()
            .map_err(|error| Refusal::new("listen", format!("exposure.{exposure}: {error}")))?;
        self.remember(exposure, Some(address));
        let router = gateway::router(
            models,
            GatewayOptions::new(api_key, Arc::clone(&self.clock)),
        );
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let task = tokio::spawn(async move {
            gateway::serve(listener, router, async move { ended.cancelled().await }).await;
        });
        self.put(
            exposure,
            Listener {
                spec: fingerprint(spec),
                made_from,
                address,
                stop,
                task,
            },
        );
        tracing::info!(%exposure, %address, "listening");
        Ok(url(address))
    }

    /// What answers for each pipeline: the entry here, or that of another machine.
    fn models(
        &self,
        exposure: &Name,
        spec: &ExposureSpec,
        peers: &BTreeMap<Name, Peer>,
    ) -> Result<BTreeMap<Name, Arc<dyn Infer>>, Refusal> {
        let mut models: BTreeMap<Name, Arc<dyn Infer>> = BTreeMap::new();
        for (pipeline, lease) in &spec.pipelines {
            let model = match peers.get(pipeline) {
                // The machine that listens, by the name that it has now.
                _ if *lease == spec.at => self.fabric.infer(pipeline),
                Some(peer) => self.fabric.infer_at(pipeline, peer.endpoint, &peer.contact),
                None => {
                    let message = format!(
                        "exposure.{exposure}: the machine of {pipeline}'s entry, {lease}, was not named"
                    );
                    return Err(Refusal::new("bad-request", message));
                }
            };
            let model = Arc::new(Counted::new(model, Arc::clone(&self.work)));
            models.insert(pipeline.clone(), model);
        }
        Ok(models)
    }

    async fn bind(&self, exposure: &Name, listen: SocketAddr) -> Result<TcpListener, Refusal> {
        let before = self.remembered().get(exposure).copied();
        // A free port that was taken before is what clients know.
        if let Some(before) = before
            && listen.port() == 0
            && before.ip() == listen.ip()
            && let Ok(listener) = TcpListener::bind(before).await
        {
            return Ok(listener);
        }
        TcpListener::bind(listen).await.map_err(|error| {
            let lease = &self.lease;
            let what = if error.kind() == ErrorKind::AddrInUse {
                format!("{listen} is in use on {lease} already")
            } else {
                format!("{lease} cannot listen on {listen}: {error}")
            };
            let port = listen.port();
            Refusal::new("address", format!("exposure.{exposure}: {what}")).hint(format!(
                "choose another `listen` in [exposure.{exposure}] (port 0 takes a free one), or end what listens there: `ss -ltnp 'sport = :{port}'` names it"
            ))
        })
    }

    /// Ends a listener; unknown is done.
    pub async fn unexpose(&self, exposure: &Name) {
        let _one = self.changes.lock().await;
        if let Some(old) = self.take(exposure) {
            old.end().await;
        }
        self.remember(exposure, None);
    }

    /// Ends every listener at once; answers that are still on their way are cut off after a moment.
    pub async fn close_all(&self) {
        let _one = self.changes.lock().await;
        let all = std::mem::take(&mut *self.open.lock().expect("no holder panics"));
        let ends = all.into_values().map(|mut listener| async move {
            listener.stop.cancel();
            let ended = tokio::time::timeout(CLOSE_MAX, &mut listener.task).await;
            if ended.is_err() {
                listener.task.abort();
            }
        });
        futures::future::join_all(ends).await;
    }

    /// Every listener that is open: digest of its spec, URL.
    pub fn status(&self) -> BTreeMap<Name, (Fingerprint, String)> {
        let open = self.open.lock().expect("no holder panics");
        open.iter()
            .filter(|(_, listener)| !listener.task.is_finished())
            .map(|(name, listener)| (name.clone(), (listener.spec, url(listener.address))))
            .collect()
    }

    fn take(&self, exposure: &Name) -> Option<Listener> {
        let mut open = self.open.lock().expect("no holder panics");
        open.remove(exposure)
    }

    fn put(&self, exposure: &Name, listener: Listener) {
        let mut open = self.open.lock().expect("no holder panics");
        open.insert(exposure.clone(), listener);
    }

    fn remembered(&self) -> BTreeMap<Name, SocketAddr> {
        // Only a preference: a record that cannot be read is none.
        folder::read_json(&self.record)
            .ok()
            .flatten()
            .unwrap_or_default()
    }

    fn remember(&self, exposure: &Name, address: Option<SocketAddr>) {
        let mut all = self.remembered();
        let changed = match address {
            Some(address) => all.insert(exposure.clone(), address) != Some(address),
            None => all.remove(exposure).is_some(),
        };
        if changed && let Err(error) = folder::write_json(&self.record, &all) {
            tracing::warn!(%error, "cannot note the address of a listener");
        }
    }
}

impl Listener {
    async fn end(self) {
        self.stop.cancel();
        self.task.await.ok();
    }
}

/// The digest by which a changed exposure is told from an unchanged one.
pub fn fingerprint(spec: &ExposureSpec) -> Fingerprint {
    Spec::Exposure(Box::new(spec.clone())).fingerprint()
}

/// A digest of everything that a listener depends on; the key enters as a digest of its own.
fn digest(
    spec: &ExposureSpec,
    peers: &BTreeMap<Name, Peer>,
    api_key: Option<&SecretString>,
) -> Fingerprint {
    let key = api_key.map(|key| Fingerprint::of(key.expose_secret().as_bytes()));
    let bytes = serde_json::to_vec(&(spec, peers, key)).expect("plain data");
    Fingerprint::of(&bytes)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/v1")
}
