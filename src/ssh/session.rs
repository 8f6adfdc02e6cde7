//! One connection: the host's key is looked at before anything else, then we are let in by a key of ours, then programs are run.
//!
//! A host that is known is asked for a key of the known type only. It refuses every other way to log in than by a key.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "enums of a library, of which few cases concern us"
)]

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use russh::client::{self, AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{
    Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate,
    decode_secret_key,
};
use russh::{Channel, ChannelMsg, Disconnect, Preferred, cipher};
use secrecy::SecretString;

use super::{HostKey, Login, OwnKey, SshError};
use crate::ambient::secret_file::{self, SecretFileError};

/// The most that a program of ours prints on a host.
const STDOUT_MAX: usize = 256 << 10;
const STDERR_MAX: usize = 8 << 10;

/// Keys of the SSH agent that are tried: servers let a client try about six.
const AGENT_KEYS_MAX: usize = 5;

/// A host that says nothing for so long is asked whether it is still there, and given up after three times.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A connection to a host that lets us in.
pub struct Session {
    handle: Handle<Guard>,
    host_key: HostKey,
    peer: IpAddr,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// What a program on the host printed.
#[derive(Debug)]
pub(super) struct Output {
    /// None when it was killed.
    pub status: Option<u32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Looks at the host's key.
struct Guard {
    known: Option<HostKey>,
    met: Arc<Mutex<Option<HostKey>>>,
}

impl client::Handler for Guard {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let text = shown.public_key().to_openssh()?;
        let Some(met) = HostKey::parse(&text) else {
            return Ok(false);
        };
        let good = self.known.as_ref().is_none_or(|known| *known == met);
        *self.met.lock().expect("no holder panics") = Some(met);
        Ok(good)
    }
}

impl Session {
    /// Connects and logs in.
    ///
    /// # Errors
    /// [`SshError`] that says whether nobody answered, another one did, or we are not let in.
    pub(super) async fn open(login: &Login) -> Result<Self, SshError> {
        let (address, port) = (login.place.address.as_str(), login.place.port);
        let away = |error: std::io::Error| SshError::Away(error.to_string());
        let dialled = tokio::net::TcpStream::connect((address, port));
        let dialled = tokio::time::timeout(super::DIAL_MAX, dialled).await;
        let stream = dialled.unwrap_or_else(|_| {
            let seconds = super::DIAL_MAX.as_secs();
            let why = format!("nobody answers within {seconds} s");
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, why))
        });
        let stream = stream.map_err(away)?;
        let peer = stream.peer_addr().map_err(away)?.ip();
        let met = Arc::new(Mutex::new(None));
        let guard = Guard {
            known: login.known.clone(),
            met: Arc::clone(&met),
        };
        let config = Arc::new(config(login.known.as_ref()));
        let connected = client::connect_stream(config, stream, guard).await;
        let met = met.lock().expect("no holder panics").clone();
        let mut handle = connected.map_err(|error| not_connected(login, met.as_ref(), &error))?;
        let Some(host_key) = met else {
            return Err(SshError::Away("it shows no key".to_owned()));
        };
        if by_own(&mut handle, login).await? {
        } else if login.keys.is_empty() {
            by_agent(&mut handle, login).await?;
        } else {
            by_files(&mut handle, login).await?;
        }
        Ok(Self {
            handle,
            host_key,
            peer: peer.to_canonical(),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// The key that the host has.
    pub fn host_key(&self) -> &HostKey {
        &self.host_key
    }

    /// The address that answers.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Carries a connection to a port of the host, and ends when one of the two does.
    ///
    /// # Errors
    /// [`SshError`] when the host does not take it, or nothing listens there.
    pub async fn carry(
        &self,
        mut stream: tokio::net::TcpStream,
        port: u16,
    ) -> Result<(), SshError> {
        let (host, own) = ("127.0.0.1", "127.0.0.1");
        let channel = self
            .handle
            .channel_open_direct_tcpip(host, port.into(), own, 0)
            .await;
        let channel = channel.map_err(|error| match error {
            russh::Error::ChannelOpenFailure(_) => SshError::Failed(format!(
                "nothing listens on its port {port}, or its SSH server forwards none"
            )),
            other => SshError::Lost(other.to_string()),
        })?;
        let mut far = channel.into_stream();
        // Either end may go as it likes.
        tokio::io::copy_bidirectional(&mut stream, &mut far)
            .await
            .ok();
        Ok(())
    }

    /// Runs a command of the host's shell, with this for its standard input.
    ///
    /// # Errors
    /// [`SshError::Lost`] when it is not known how it ended. How it ended itself is no error here.
    pub(super) async fn run(
        &self,
        command: &str,
        input: BoxStream<'_, Result<Bytes, SshError>>,
        within: Duration,
    ) -> Result<Output, SshError> {
        let lost = |error: russh::Error| SshError::Lost(error.to_string());
        let channel = self.handle.channel_open_session().await;
        let channel = channel.map_err(|error| SshError::Away(error.to_string()))?;
        channel.exec(true, command).await.map_err(lost)?;
        let ran = tokio::time::timeout(within, exchange(channel, input)).await;
        ran.unwrap_or_else(|_| {
            let seconds = within.as_secs();
            Err(SshError::Lost(format!(
                "a command did not end within {seconds} s"
            )))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Told where that is possible; the connection ends in any case.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let _guard = runtime.enter();
            let goodbye = self.handle.disconnect(Disconnect::ByApplication, "", "");
            futures::FutureExt::now_or_never(goodbye);
        }
    }
}

fn config(known: Option<&HostKey>) -> client::Config {
    let mut preferred = Preferred::DEFAULT;
    if let Some(known) = known {
        preferred.key = Cow::Owned(types(known.kind()));
    }
    // The processor has instructions for it.
    let ciphers = [
        cipher::AES_256_GCM,
        cipher::CHACHA20_POLY1305,
        cipher::AES_256_CTR,
    ];
    preferred.cipher = Cow::Owned(ciphers.to_vec());
    client::Config {
        preferred,
        keepalive_interval: Some(KEEPALIVE),
        nodelay: true,
        ..client::Config::default()
    }
}

/// The algorithms that a key of this type answers to.
fn types(kind: &str) -> Vec<Algorithm> {
    if kind == "ssh-rsa" {
        let hashes = [HashAlg::Sha512, HashAlg::Sha256];
        return hashes
            .map(|hash| Algorithm::Rsa { hash: Some(hash) })
            .to_vec();
    }
    Algorithm::new(kind).into_iter().collect()
}

/// Why there is no connection.
fn not_connected(login: &Login, met: Option<&HostKey>, error: &russh::Error) -> SshError {
    if let (Some(known), Some(met)) = (&login.known, met)
        && known != met
    {
        return SshError::Changed {
            known: known.to_string(),
            met: met.to_string(),
        };
    }
    if let (Some(known), russh::Error::NoCommonAlgo { theirs, .. }) = (&login.known, error) {
        return SshError::Changed {
            known: known.to_string(),
            met: format!("none of that type, only {}", theirs.join(", ")),
        };
    }
    SshError::Away(error.to_string())
}

/// Logs in by the key that was made for this machine; false when there is none, or the host does not take it.
async fn by_own(handle: &mut Handle<Guard>, login: &Login) -> Result<bool, SshError> {
    let Some(own) = &login.own else {
        return Ok(false);
    };
    let key = PrivateKeyWithHashAlg::new(Arc::new(private_of(own)), None);
    let answer = handle
        .authenticate_publickey(login.place.user.clone(), key)
        .await;
    match answer {
        Ok(answer) => Ok(answer.success()),
        Err(error) => Err(SshError::Away(error.to_string())),
    }
}

fn private_of(own: &OwnKey) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(own.seed()))
}

/// A key as OpenSSH keeps it in a file.
pub(super) fn private_text(key: &OwnKey) -> Option<SecretString> {
    let text = private_of(key).to_openssh(LineEnding::LF).ok()?;
    // OpenSSH reads no key whose last line has no end.
    Some(format!("{}\n", text.trim_end()).into())
}

/// The public half of a key that was made for a machine.
pub(super) fn public(own: &OwnKey) -> Option<String> {
    private_of(own).public_key().to_openssh().ok()
}

async fn by_files(handle: &mut Handle<Guard>, login: &Login) -> Result<(), SshError> {
    let mut tried = Vec::new();
    for path in &login.keys {
        let key = private(path)?;
        let hash = match key.algorithm() {
            Algorithm::Rsa { .. } => handle
                .best_supported_rsa_hash()
                .await
                .ok()
                .flatten()
                .flatten(),
            _ => None,
        };
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
        let user = login.place.user.clone();
        match handle.authenticate_publickey(user, key).await {
            Ok(AuthResult::Success) => return Ok(()),
            Ok(AuthResult::Failure { .. }) => tried.push(path.display().to_string()),
            Err(error) => return Err(SshError::Away(error.to_string())),
        }
    }
    let (user, tried) = (&login.place.user, tried.join(", "));
    Err(SshError::Denied(format!(
        "it takes no key of {tried} for user {user}"
    )))
}

/// Reads a private key. Nothing of its content is in an error.
fn private(path: &Path) -> Result<PrivateKey, SshError> {
    let shown = path.display();
    let wrong = |message: String, hint: String| SshError::Key { message, hint };
    let text = secret_file::read(path).map_err(|error| match error {
        SecretFileError::Exposed { mode } => wrong(
            format!("the key {shown} can be read by others (mode {mode:o})"),
            format!("type `chmod 600 {shown}`; if others may have read it, make a new one"),
        ),
        SecretFileError::NotAFile
        | SecretFileError::NotText
        | SecretFileError::TooLong
        | SecretFileError::Io(_) => wrong(
            format!("cannot read the key {shown}: {error}"),
            "name the file of a private key as `key` of that host".to_owned(),
        ),
    })?;
    decode_secret_key(&text, None).map_err(|error| match error {
        russh::keys::Error::KeyIsEncrypted => wrong(
            format!("the key {shown} has a passphrase"),
            format!("type `ssh-add {shown}` and leave `key` away, so that the SSH agent is asked"),
        ),
        _ => wrong(
            format!("{shown} is no private key that can be used"),
            "name the file of a private key, such as `ssh-keygen -t ed25519` makes it".to_owned(),
        ),
    })
}

async fn by_agent(handle: &mut Handle<Guard>, login: &Login) -> Result<(), SshError> {
    let missing = |message: String| {
        SshError::Key {
        message,
        hint: "name the file of a private key as `key` of that host, or start an SSH agent and type `ssh-add`".to_owned(),
    }
    };
    let socket = login.agent.as_ref();
    if socket.is_none() && login.own.is_some() {
        let user = &login.place.user;
        return Err(SshError::Denied(format!(
            "it does not take the key that its machine was asked for with, for user {user}"
        )));
    }
    let socket = socket.ok_or_else(|| {
        missing("no key is named and no SSH agent is there (SSH_AUTH_SOCK)".to_owned())
    })?;
    let mut agent = AgentClient::connect_uds(socket).await.map_err(|error| {
        missing(format!(
            "the SSH agent at {} does not answer: {error}",
            socket.display()
        ))
    })?;
    let identities = agent.request_identities().await;
    let identities = identities.map_err(|error| missing(format!("the SSH agent: {error}")))?;
    if identities.is_empty() {
        return Err(missing("the SSH agent holds no key".to_owned()));
    }
    let mut tried = 0;
    for identity in identities.into_iter().take(AGENT_KEYS_MAX) {
        let AgentIdentity::PublicKey { key, .. } = identity else {
            continue;
        };
        let hash = match key.algorithm() {
            Algorithm::Rsa { .. } => handle
                .best_supported_rsa_hash()
                .await
                .ok()
                .flatten()
                .flatten(),
            _ => None,
        };
        let user = login.place.user.clone();
        let answer = handle
            .authenticate_publickey_with(user, key, hash, &mut agent)
            .await;
        if answer.is_ok_and(|answer| answer.success()) {
            return Ok(());
        }
        tried += 1;
    }
    let user = &login.place.user;
    Err(SshError::Denied(format!(
        "it takes none of {tried} keys of the SSH agent for user {user}"
    )))
}

/// Sends all of the input and takes all of the output, each within its limit.
async fn exchange(
    channel: Channel<client::Msg>,
    mut input: BoxStream<'_, Result<Bytes, SshError>>,
) -> Result<Output, SshError> {
    let (mut from, to) = channel.split();
    let send = async {
        while let Some(piece) = input.next().await {
            // One that ended does not take the rest; how it ended says more.
            if to.data_bytes(piece?).await.is_err() {
                break;
            }
        }
        to.eof().await.ok();
        Ok::<(), SshError>(())
    };
    let take = async {
        let (mut status, mut stdout, mut stderr) = (None, Vec::new(), Vec::new());
        let mut ended = false;
        while let Some(message) = from.wait().await {
            match message {
                ChannelMsg::Data { data } => keep(&mut stdout, &data, STDOUT_MAX)?,
                ChannelMsg::ExtendedData { data, .. } => {
                    keep(&mut stderr, &data, STDERR_MAX).unwrap_or(())
                }
                ChannelMsg::ExitStatus { exit_status } => {
                    status = Some(exit_status);
                    ended = true;
                }
                ChannelMsg::ExitSignal { .. } => ended = true,
                ChannelMsg::Failure => {
                    return Err(SshError::Failed(
                        "the host runs no commands for that user".to_owned(),
                    ));
                }
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        if !ended {
            return Err(SshError::Lost("it ended before the command did".to_owned()));
        }
        let stderr = crate::machine::plain::message(&String::from_utf8_lossy(&stderr), STDERR_MAX);
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    };
    tokio::pin!(send, take);
    tokio::select! {
        taken = &mut take => taken,
        sent = &mut send => {
            sent?;
            take.await
        }
    }
}

fn keep(kept: &mut Vec<u8>, data: &[u8], max: usize) -> Result<(), SshError> {
    if kept.len() + data.len() > max {
        return Err(SshError::Failed(format!(
            "the host printed more than {max} bytes"
        )));
    }
    kept.extend_from_slice(data);
    Ok(())
}
