//! Connections to agents: one endpoint of ours, one connection per agent, dialled with back-off until a deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iroh::Endpoint;
use iroh::endpoint::{Connection, ConnectionError};
use stageline_core::id::{EndpointKey, LeaseId};
use stageline_core::resource::Contact;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::{Lost, refused, unreachable};
use crate::machine::control::{ALPN, NOT_THE_OPERATOR, Refusal};
use crate::machine::{MachineError, Target};
use crate::pipeline::endpoint::{self, EndpointError, EndpointOptions, RelayAccess};
use crate::pipeline::keys::Secret;

/// Between two tries at first; doubles.
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// The longest pause between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Longest that agents are told goodbye.
const CLOSE_MAX: Duration = Duration::from_millis(400);

/// Connections to agents.
pub(super) struct Dial {
    secret: Secret,
    relays: Vec<RelayAccess>,
    dial_timeout: Duration,
    endpoint: OnceCell<Endpoint>,
    slots: Mutex<BTreeMap<EndpointKey, Arc<Slot>>>,
}

/// The way to one agent. The lock is held while it is dialled, so that it is dialled once.
type Slot = tokio::sync::Mutex<Option<(Contact, Connection)>>;

impl Dial {
    pub(super) fn new(secret: Secret, relays: Vec<RelayAccess>, dial_timeout: Duration) -> Self {
        Self {
            secret,
            relays,
            dial_timeout,
            endpoint: OnceCell::new(),
            slots: Mutex::default(),
        }
    }

    pub(super) async fn close(&self) {
        if let Some(endpoint) = self.endpoint.get() {
            // An agent that is silent does not hear the goodbye, and nobody waits for it.
            let goodbye = tokio::time::timeout(CLOSE_MAX, endpoint.close());
            goodbye.await.ok();
        }
    }

    /// Tries something on a connection; once more on a fresh one when a kept one turned out to be dead.
    pub(super) async fn with<T, F>(
        &self,
        target: &Target,
        attempt: impl Fn(Connection) -> F,
    ) -> Result<T, MachineError>
    where
        F: Future<Output = Result<T, Lost>>,
    {
        let lease = &target.lease;
        loop {
            let (connection, kept) = self.connection(target).await?;
            let why = match attempt(connection.clone()).await {
                Ok(done) => return Ok(done),
                Err(Lost::Refused(refusal)) => return Err(refused(lease, refusal)),
                Err(Lost::Stream(why)) => why,
            };
            let closed = connection.close_reason();
            if closed.as_ref().is_some_and(is_stranger) {
                return Err(refused(lease, stranger()));
            }
            if closed.is_some() && kept {
                continue;
            }
            return Err(unreachable(lease, why));
        }
    }

    /// A connection that seems alive, and whether it was there before.
    async fn connection(&self, target: &Target) -> Result<(Connection, bool), MachineError> {
        let slot = {
            let mut slots = self.slots.lock().expect("no holder panics");
            Arc::clone(slots.entry(target.endpoint).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some((contact, connection)) = slot.as_ref()
            && *contact == target.contact
            && connection.close_reason().is_none()
        {
            return Ok((connection.clone(), true));
        }
        let connection = self.dial(target).await?;
        *slot = Some((target.contact.clone(), connection.clone()));
        Ok((connection, false))
    }

    /// Our endpoint.
    pub(super) async fn bound(&self) -> Result<&Endpoint, Refusal> {
        let bind = || async {
            let options = EndpointOptions {
                relays: self.relays.clone(),
                ..EndpointOptions::default()
            };
            endpoint::bind(&self.secret, options).await
        };
        let bound = self.endpoint.get_or_try_init(bind).await;
        bound.map_err(|error| no_endpoint(&error))
    }

    /// Our endpoint, for talking to this machine. A relay that refuses us is no silence of the machine's.
    pub(super) async fn endpoint(&self, lease: &LeaseId) -> Result<&Endpoint, MachineError> {
        let bound = self.bound().await;
        bound.map_err(|refusal| refused(lease, refusal))
    }

    /// The relay that machines are reached by at best.
    pub(super) fn relay(&self) -> Option<String> {
        let first = self.relays.first()?;
        Some(first.settings.url.clone())
    }

    async fn dial(&self, target: &Target) -> Result<Connection, MachineError> {
        let lease = &target.lease;
        let endpoint = self.endpoint(lease).await?;
        let mut address = endpoint::address(target.endpoint, &target.contact)
            .map_err(|why| unreachable(lease, why))?;
        // It may be on its way from one relay to another, or have been when we were cut off.
        let urls = self.relays.iter().map(|relay| relay.settings.url.parse());
        for url in urls.flatten() {
            address = address.with_relay_url(url);
        }
        if address.is_empty() {
            return Err(unreachable(lease, "it has told no address yet"));
        }
        let deadline = Instant::now() + self.dial_timeout;
        let mut pause = BACKOFF_MIN;
        let mut last = format!("no answer within {} s", self.dial_timeout.as_secs_f32());
        loop {
            match timeout_at(deadline, endpoint.connect(address.clone(), ALPN)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => return Err(unreachable(lease, last)),
            }
            if Instant::now() + pause >= deadline {
                return Err(unreachable(lease, last));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

fn is_stranger(reason: &ConnectionError) -> bool {
    match reason {
        ConnectionError::ApplicationClosed(close) => {
            u64::from(close.error_code) == u64::from(NOT_THE_OPERATOR)
        }
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => false,
    }
}

/// Why there is no endpoint here, and who must act.
fn no_endpoint(error: &EndpointError) -> Refusal {
    let message = format!("this computer has no endpoint: {error}");
    let hint = match error {
        EndpointError::Denied { .. } => "check `token` of [relay]",
        EndpointError::Relay { .. } => "mend [relay] of the topology",
        EndpointError::Away { .. } => {
            "check `url` and `ca` of [relay], and that the relay runs and can be reached from here"
        }
        EndpointError::Bind { .. } => "look at what else uses this address",
    };
    Refusal::new("relay", message).hint(hint)
}

fn stranger() -> Refusal {
    let message = "the agent obeys another operator's key, not the one of this identity";
    Refusal::new("forbidden", message)
        .hint("use the identity that the machine was leased with: STAGELINE_IDENTITY, or identity.key in the state folder")
}
