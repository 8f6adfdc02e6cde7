//! A real relay on loopback: its own certificate authority, access by token, and a record of who came with which.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use iroh_relay::server::{
    Access, AccessControl, CertConfig, ClientRequest, RelayConfig, Server, ServerConfig, TlsConfig,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A relay that runs until it is dropped.
pub(crate) struct Relay {
    server: Server,
    /// Where it is.
    pub url: String,
    /// The certificate of its authority.
    pub ca_pem: String,
    door: Arc<Door>,
}

/// Who may come in.
#[derive(Debug, Default)]
struct Door {
    tokens: Mutex<BTreeSet<String>>,
    /// Tokens of those who came in, by the key of each, in order.
    came: Mutex<Vec<([u8; 32], String)>>,
}

impl AccessControl for Door {
    async fn on_connect(&self, request: &ClientRequest) -> Access {
        let token = request.auth_token().unwrap_or_default();
        if !self.tokens.lock().expect("no panic").contains(&token) {
            let reason = Some("no such token".to_owned());
            return Access::Deny { reason };
        }
        let key = *request.endpoint_id().as_bytes();
        self.came.lock().expect("no panic").push((key, token));
        Access::Allow
    }
}

impl Relay {
    /// A relay that lets these tokens in.
    pub(crate) async fn start(tokens: &[&str]) -> Self {
        let (ca_pem, server_config) = certificate();
        let door = Arc::new(Door::default());
        let mut relay = RelayConfig::new((Ipv4Addr::LOCALHOST, 0));
        relay.tls = Some(TlsConfig::new(
            (Ipv4Addr::LOCALHOST, 0),
            CertConfig::Manual { server_config },
        ));
        relay.access = door.clone();
        let mut config = ServerConfig::default();
        config.relay = Some(relay);
        let server = Server::spawn(config).await.expect("a free port");
        let address = server.https_addr().expect("it serves TLS");
        let relay = Self {
            server,
            url: format!("https://{address}"),
            ca_pem,
            door,
        };
        relay.lets_in(tokens);
        relay
    }

    /// From now on these tokens are let in and no other; who is in stays.
    pub(crate) fn lets_in(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        *self.door.tokens.lock().expect("no panic") = tokens;
    }

    /// The token that the holder of this key came with last.
    pub(crate) fn token_of(&self, key: &[u8; 32]) -> Option<String> {
        let came = self.door.came.lock().expect("no panic");
        let last = came.iter().rev().find(|(one, _)| one == key);
        last.map(|(_, token)| token.clone())
    }

    /// How many came in so far.
    pub(crate) fn guests(&self) -> usize {
        self.door.came.lock().expect("no panic").len()
    }

    /// Packets that it carried from one to another.
    pub(crate) fn carried(&self) -> u64 {
        self.server.metrics().server.send_packets_sent.get()
    }

    /// Ends it.
    pub(crate) async fn stop(self) {
        self.server.shutdown().await.ok();
    }
}

/// An authority of one's own, and a server that it vouches for.
fn certificate() -> (String, rustls::ServerConfig) {
    let mut ca = CertificateParams::new(Vec::new()).expect("no names");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca_pem = ca.self_signed(&ca_key).expect("signed").pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec![Ipv4Addr::LOCALHOST.to_string()];
    let leaf = CertificateParams::new(names).expect("an address");
    let leaf = leaf.signed_by(&key, &issuer).expect("signed");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .expect("they belong together");
    (ca_pem, config)
}
