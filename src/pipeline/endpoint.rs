//! One endpoint per process: its key, its sockets, its relay, and how fast it notices that a peer is gone.
//!
//! What always holds: one endpoint serves every protocol of its process, since a relay serves one client per key; windows
//! of streams keep their defaults, since larger ones kill connections; without a relay nothing leaves this computer's
//! loopback, unless a bind address says so. What it refuses: public relays by default.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use iroh::endpoint::{IdleTimeout, QuicTransportConfig, presets};
use iroh::tls::CaTlsConfig;
use iroh::{Endpoint, EndpointAddr, EndpointId, RelayConfig, RelayMap, RelayMode, RelayUrl};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use stageline_core::id::EndpointKey;
use stageline_core::resource::Contact;

use super::frame::printable;
use super::keys::Secret;

/// Hidden states from a stage to the next one, and tokens back to the first.
pub const STAGE_ALPN: &[u8] = b"stageline/stage/1";
/// Prompts.
pub const INFER_ALPN: &[u8] = b"stageline/infer/1";

/// How often a quiet connection is kept alive. A peer is gone after [`IDLE_MAX`].
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// 8 s of silence and a peer is dead: several lost keep-alives, but not 30 s as by default.
pub const IDLE_MAX: Duration = Duration::from_secs(8);
/// A path is given up after this, so that a lost direct path stalls about 3 s and not 15.
const PATH_IDLE_MAX: Duration = Duration::from_secs(3);
/// How long `bind` waits for a relay to take us.
const ONLINE_MAX: Duration = Duration::from_secs(10);

/// A relay of one's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelaySettings {
    /// `https://relay.example:3340`.
    pub url: String,
    /// Trusted besides the usual roots: certificates in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
}

/// A relay, and what it asks for.
#[derive(Clone, Debug, Default)]
pub struct RelayAccess {
    /// Which one.
    pub settings: RelaySettings,
    /// Asked for by the relay.
    pub token: Option<SecretString>,
}

impl PartialEq for RelayAccess {
    fn eq(&self, other: &Self) -> bool {
        let token = |access: &Self| {
            let token = access.token.as_ref();
            token.map(|token| blake3::hash(token.expose_secret().as_bytes()))
        };
        // Digests are compared in constant time.
        self.settings == other.settings && token(self) == token(other)
    }
}

/// What an endpoint is made from.
#[derive(Default)]
pub struct EndpointOptions {
    /// Where to listen; none is a free port of 127.0.0.1 without a relay, and of every interface with one.
    pub bind: Option<SocketAddr>,
    /// None is no relay at all. One of several is kept a connection to, all of them can be sent through.
    pub relays: Vec<RelayAccess>,
    /// Goes on without a relay that is not there just now, and tries it again and again. One that refuses is an error.
    pub patient: bool,
    /// What is accepted; a router sets its own.
    pub alpns: Vec<Vec<u8>>,
}

/// Why there is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The settings of the relay make no sense.
    #[error("relay {url}: {why}")]
    Relay {
        /// As written.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The socket could not be had.
    #[error("cannot listen on {address}: {why}")]
    Bind {
        /// Which one.
        address: String,
        /// What the system said.
        why: String,
    },
    /// The relay answered and does not take us.
    #[error("the relay {url} does not let this endpoint in: {why}")]
    Denied {
        /// Which one.
        url: String,
        /// What it said.
        why: String,
    },
    /// The relay does not answer, or not as a relay that is trusted.
    #[error("the relay {url} cannot be used: {why}")]
    Away {
        /// Which one.
        url: String,
        /// The last thing that was seen.
        why: String,
    },
}

/// Makes the endpoint of this process. With a relay, waits until the relay took it.
pub async fn bind(secret: &Secret, options: EndpointOptions) -> Result<Endpoint, EndpointError> {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = match (options.bind, options.relays.is_empty()) {
        (Some(address), _) => Some(address),
        (None, true) => Some(loopback),
        (None, false) => None,
    };
    let mut builder = Endpoint::builder(presets::Minimal)
        .secret_key(secret.to_iroh())
        .alpns(options.alpns)
        .transport_config(transport())
        .relay_mode(RelayMode::Disabled);
    if let Some(address) = address {
        let refused = |why: String| EndpointError::Bind {
            address: address.to_string(),
            why,
        };
        builder = builder
            .clear_ip_transports()
            .bind_addr(address)
            .map_err(|error| refused(error.to_string()))?;
    }
    if !options.relays.is_empty() {
        let (map, ca) = relay_map(&options.relays)?;
        builder = builder.relay_mode(RelayMode::Custom(map));
        builder = builder.ca_tls_config(ca);
    }
    let endpoint = builder.bind().await.map_err(|error| EndpointError::Bind {
        address: address.map_or_else(|| "a free port".to_owned(), |address| address.to_string()),
        why: chain(&error),
    })?;
    if let Some(relay) = options.relays.first() {
        match online(&endpoint, &relay.settings.url).await {
            Ok(()) => {}
            Err(error @ EndpointError::Away { .. }) if options.patient => {
                tracing::warn!(%error, "goes on without its relay for now");
            }
            Err(error) => {
                endpoint.close().await;
                return Err(error);
            }
        }
    }
    Ok(endpoint)
}

/// How others can reach this endpoint.
pub fn contact(endpoint: &Endpoint) -> Contact {
    let addr = endpoint.addr();
    let mut direct: Vec<SocketAddr> = addr.ip_addrs().copied().collect();
    let unspecified = |address: &SocketAddr| address.ip().is_unspecified();
    direct.extend(
        endpoint
            .bound_sockets()
            .into_iter()
            .filter(|address| !unspecified(address)),
    );
    if direct.is_empty() {
        // Without any network there is the loopback; whoever knows the host's address needs the port.
        let ports = endpoint
            .bound_sockets()
            .into_iter()
            .map(|address| address.port());
        direct.extend(ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
    }
    direct.sort();
    direct.dedup();
    Contact {
        direct,
        relay: addr.relay_urls().next().map(ToString::to_string),
    }
}

/// Where iroh finds a peer. A relay URL that makes no sense is left out, since the direct addresses may still work.
pub fn address(key: EndpointKey, contact: &Contact) -> Result<EndpointAddr, String> {
    let id = EndpointId::from_bytes(&key.0)
        .map_err(|_| format!("{key} is not the public key of an endpoint"))?;
    let mut addr = EndpointAddr::new(id);
    for direct in &contact.direct {
        addr = addr.with_ip_addr(*direct);
    }
    if let Some(url) = contact.relay.as_ref().and_then(|url| url.parse().ok()) {
        addr = addr.with_relay_url(url);
    }
    Ok(addr)
}

/// The public key of the other end.
pub fn peer_of(connection: &iroh::endpoint::Connection) -> EndpointKey {
    EndpointKey(*connection.remote_id().as_bytes())
}

/// An error with everything that it was caused by, since the outermost one often says little.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

fn transport() -> QuicTransportConfig {
    let idle = IdleTimeout::try_from(IDLE_MAX).expect("8 s fit into a QUIC integer");
    QuicTransportConfig::builder()
        .keep_alive_interval(KEEP_ALIVE)
        .max_idle_timeout(Some(idle))
        .default_path_keep_alive_interval(KEEP_ALIVE)
        .default_path_max_idle_timeout(PATH_IDLE_MAX)
        .build()
}

fn relay_map(relays: &[RelayAccess]) -> Result<(RelayMap, CaTlsConfig), EndpointError> {
    let map = RelayMap::empty();
    let mut roots: Vec<CertificateDer<'static>> = Vec::new();
    for RelayAccess { settings, token } in relays {
        let wrong = |why: String| EndpointError::Relay {
            url: settings.url.clone(),
            why,
        };
        let url: RelayUrl = settings
            .url
            .parse()
            .map_err(|error| wrong(format!("not a URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            let why = "a relay is reached by https, or by http for a test";
            return Err(wrong(why.to_owned()));
        }
        let mut config = RelayConfig::from(url.clone());
        if let Some(token) = token {
            config = config.with_auth_token(token.expose_secret());
        }
        map.insert(url, Arc::new(config));
        if let Some(pem) = &settings.ca_pem {
            let before = roots.len();
            for root in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.push(root.map_err(|error| wrong(format!("`ca` is not PEM: {error}")))?);
            }
            if roots.len() == before {
                return Err(wrong("`ca` holds no certificate".to_owned()));
            }
        }
    }
    Ok((map, CaTlsConfig::embedded().with_extra_roots(roots)))
}

/// Waits until a relay took this endpoint. One that refuses is asked again for ever by iroh, so the refusal is looked for.
async fn online(endpoint: &Endpoint, url: &str) -> Result<(), EndpointError> {
    use iroh::Watcher as _;
    let mut watcher = endpoint.home_relay_status();
    let settled = async {
        let mut status = watcher.get();
        loop {
            if status.iter().any(iroh::endpoint::RelayStatus::is_connected) {
                return Ok(());
            }
            let denied = status.iter().find_map(|one| one.auth_denied_reason());
            if let Some(why) = denied {
                return Err(EndpointError::Denied {
                    url: url.to_owned(),
                    why: denial(why),
                });
            }
            match watcher.updated().await {
                Ok(next) => status = next,
                // The endpoint is being closed.
                Err(_) => std::future::pending().await,
            }
        }
    };
    if let Ok(settled) = tokio::time::timeout(ONLINE_MAX, settled).await {
        return settled;
    }
    let status = endpoint.home_relay_status().get();
    let last = status.iter().find_map(|one| one.last_error());
    let why = last.map_or_else(
        || format!("no answer within {} s", ONLINE_MAX.as_secs()),
        |error| chain(error),
    );
    Err(EndpointError::Away {
        url: url.to_owned(),
        why,
    })
}

/// What a relay said when it refused: its own words, of which nothing is trusted.
fn denial(why: &str) -> String {
    match printable(why, 200) {
        said if said.trim().is_empty() => "it gives no reason".to_owned(),
        said => said,
    }
}

/// Whether an address is only good on this computer.
pub fn is_loopback(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_listens_on_loopback_under_its_own_key() {
        let secret = Secret::new([5; 32]);
        let endpoint = bind(&secret, EndpointOptions::default())
            .await
            .expect("a free port");
        let contact = contact(&endpoint);
        assert_eq!(contact.relay, None);
        assert!(!contact.direct.is_empty());
        assert!(contact.direct.iter().all(is_loopback), "{contact:?}");
        assert_eq!(endpoint.id().as_bytes(), &secret.endpoint().0);
        endpoint.close().await;
    }

    #[test]
    fn a_token_is_compared_and_never_shown() {
        let access = |token: &str| RelayAccess {
            settings: RelaySettings::default(),
            token: Some(token.to_owned().into()),
        };
        assert_eq!(access("canary"), access("canary"));
        assert_ne!(access("canary"), access("another"));
        assert!(!format!("{:?}", access("canary")).contains("canary"));
    }

    #[test]
    fn relay_settings_that_make_no_sense_are_named() {
        let why = |url: &str, ca: Option<&str>| {
            let settings = RelaySettings {
                url: url.to_owned(),
                ca_pem: ca.map(ToOwned::to_owned),
            };
            let access = RelayAccess {
                settings,
                token: None,
            };
            relay_map(&[access])
                .map(|(map, _)| map.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(why("https://relay.example:3340", None), Ok(1));
        assert!(
            why("relay", None)
                .expect_err("no URL")
                .contains("not a URL")
        );
        assert!(
            why("ftp://relay.example", None)
                .expect_err("no http")
                .contains("https")
        );
        assert!(
            why("https://relay.example", Some("nothing"))
                .expect_err("no certificate")
                .contains("no certificate")
        );
    }
}
