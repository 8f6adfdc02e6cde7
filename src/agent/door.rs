//! Where the agent is reached: its endpoint with its protocols, and its move to another relay.
//!
//! What always holds: one endpoint at a time, always under the agent's own key; a relay that does not let us in is found
//! out before anything is given up for it; whatever happens on the way, the agent listens again, by the new relay or by
//! the one before. Edges end with the old endpoint and are made again, requests in flight fail and say so. Workers and
//! deliveries are not touched.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use iroh::protocol::Router;
use stageline_core::resource::Contact;
use tokio::sync::{Mutex, mpsc};

use super::guard::Guard;
use super::{Inner, server};
use crate::ambient::random;
use crate::machine::control::{self, Refusal};
use crate::pipeline::endpoint::{self, EndpointError, EndpointOptions, RelayAccess};
use crate::pipeline::keys::Secret;

/// The endpoint tells its peers goodbye; those that are gone are not waited for.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// The answer to the request that moves us goes out by the way it came.
const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// Between two tries to listen again.
const AGAIN: Duration = Duration::from_secs(2);

/// The relay that the agent is to be reached by from now on; none is direct only.
pub(super) type Move = Option<RelayAccess>;

/// The agent's endpoint.
pub(super) struct Door {
    key: Secret,
    router: Mutex<Router>,
}

impl Door {
    pub(super) fn new(key: Secret, router: Router) -> Self {
        Self {
            key,
            router: Mutex::new(router),
        }
    }

    /// Makes the moves that are asked for, until nobody can ask any more.
    pub(super) async fn serve(
        self: Arc<Self>,
        inner: Arc<Inner>,
        mut before: Move,
        mut moves: mpsc::Receiver<Move>,
    ) {
        while let Some(mut to) = moves.recv().await {
            tokio::time::sleep(ANSWER_GRACE).await;
            // The last word counts.
            while let Ok(later) = moves.try_recv() {
                to = later;
            }
            if to != before {
                self.relocate(&inner, &to, &before).await;
                before = to;
            }
        }
    }

    async fn relocate(&self, inner: &Arc<Inner>, to: &Move, before: &Move) {
        let mut router = self.router.lock().await;
        let contact = endpoint::contact(router.endpoint());
        let sockets = router.endpoint().bound_sockets();
        tokio::time::timeout(CLOSE_MAX, router.shutdown())
            .await
            .ok();
        // Direct addresses that others know stay good: the same port, and the same addresses.
        let port = sockets.into_iter().find(SocketAddr::is_ipv4);
        let is_local = contact.direct.iter().all(endpoint::is_loopback);
        let bind = port.map(|socket| {
            let ip = if is_local && to.is_none() {
                Ipv4Addr::LOCALHOST
            } else {
                Ipv4Addr::UNSPECIFIED
            };
            SocketAddr::new(IpAddr::V4(ip), socket.port())
        });
        let mut tries = [(to, bind), (to, None), (before, None)].into_iter().cycle();
        let endpoint = loop {
            let (relay, bind) = tries.next().expect("a cycle");
            match listen(&self.key, relay, bind).await {
                Ok(endpoint) => break endpoint,
                Err(error) => tracing::warn!(%error, "the agent does not listen yet"),
            }
            tokio::time::sleep(AGAIN).await;
        };
        inner.fabric.set_endpoint(endpoint.clone());
        *router = open(inner, endpoint);
        let contact = reached_at(router.endpoint(), to);
        if let Err(error) = inner.folder.write_contact(&contact) {
            tracing::warn!(%error, "cannot say where the agent listens");
        }
        tracing::info!(?contact, "the agent listens elsewhere");
    }

    pub(super) async fn endpoint(&self) -> iroh::Endpoint {
        self.router.lock().await.endpoint().clone()
    }

    pub(super) async fn close(&self) {
        let router = self.router.lock().await;
        tokio::time::timeout(CLOSE_MAX, router.shutdown())
            .await
            .ok();
    }
}

/// Everything that the agent answers to, on an endpoint.
pub(super) fn open(inner: &Arc<Inner>, endpoint: iroh::Endpoint) -> Router {
    let control = server::Control::new(Arc::clone(inner));
    Router::builder(endpoint)
        .accept(control::ALPN, Guard(control))
        .accept(endpoint::STAGE_ALPN, Guard(inner.fabric.stage_protocol()))
        .accept(endpoint::INFER_ALPN, Guard(inner.fabric.infer_protocol()))
        .spawn()
}

/// An endpoint of the agent. A relay that is away for a while does not keep it from listening.
pub(super) async fn listen(
    key: &Secret,
    relay: &Move,
    bind: Option<SocketAddr>,
) -> Result<iroh::Endpoint, EndpointError> {
    let options = EndpointOptions {
        bind,
        relays: relay.clone().into_iter().collect(),
        patient: true,
        alpns: Vec::new(),
    };
    endpoint::bind(key, options).await
}

/// How others reach it. Its relay is known before the connection to it is.
pub(super) fn reached_at(endpoint: &iroh::Endpoint, relay: &Move) -> Contact {
    let relay = relay.as_ref().map(|access| access.settings.url.clone());
    Contact {
        relay,
        ..endpoint::contact(endpoint)
    }
}

/// Whether a relay lets us in, asked under a key that is nobody's.
///
/// # Errors
/// [`Refusal`] that says what the relay said.
pub(super) async fn try_relay(relay: &RelayAccess) -> Result<(), Refusal> {
    let options = EndpointOptions {
        relays: vec![relay.clone()],
        ..EndpointOptions::default()
    };
    let endpoint = endpoint::bind(&Secret::new(random()), options).await;
    let endpoint = endpoint.map_err(|error| refusal(&error))?;
    endpoint.close().await;
    Ok(())
}

/// A relay that does not work, as the operator is told.
fn refusal(error: &EndpointError) -> Refusal {
    let message = format!("seen from this machine: {error}");
    let hint = match error {
        EndpointError::Denied { .. } => "check `token` of [relay]; nothing was changed here",
        EndpointError::Away { .. } | EndpointError::Relay { .. } | EndpointError::Bind { .. } => {
            "check `url` and `ca` of [relay], and that this machine can reach it; nothing was changed here"
        }
    };
    Refusal::new("relay", message).hint(hint)
}
