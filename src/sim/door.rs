//! How one gets in to a machine by SSH: a server of its own, with the keys that the provider put there.
//!
//! What always holds: only keys that the machine was made with, or handed since, let anybody in, and as the provider's own user only;
//! what is asked for is run in the machine's home, and ends with the machine. It refuses passwords.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{PrivateKey, decode_secret_key};
use russh::server::{
    Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey, run_stream,
};
use russh::{Channel, ChannelId, ChannelMsg, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::access::Access;
use crate::ambient::{agent_environment, random};
use crate::ssh::HostKey;

/// How much of an output is sent at once.
const PIECE: usize = 32 << 10;

/// The SSH server of a machine; dropping it ends it, and what it runs.
pub(super) struct Door {
    /// Where it listens.
    pub address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

/// What every connection needs.
struct House {
    access: Access,
    home: PathBuf,
    opened: Instant,
}

impl Door {
    /// Opens it, with this home for whoever logs in.
    pub(super) fn open(listen: SocketAddr, access: Access, home: &Path) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let told = access.host_key.as_deref();
        let told = told.and_then(|text| decode_secret_key(text, None).ok());
        let [own, other] = [told.unwrap_or_else(drawn), drawn()].map(config);
        let house = Arc::new(House {
            access,
            home: home.to_owned(),
            opened: Instant::now(),
        });
        let server = tokio::spawn(serve(listener, house, (own, other)));
        Ok(Self {
            address,
            _server: AbortOnDropHandle::new(server),
        })
    }
}

/// A key that nobody was told.
fn drawn() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&random()))
}

fn config(key: PrivateKey) -> Arc<Config> {
    Arc::new(Config {
        keys: vec![key],
        auth_rejection_time: Duration::from_millis(50),
        auth_rejection_time_initial: Some(Duration::ZERO),
        nodelay: true,
        ..Config::default()
    })
}

async fn serve(listener: TcpListener, house: Arc<House>, (own, other): (Arc<Config>, Arc<Config>)) {
    // With this function, all of them end.
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = stream else { continue };
        let since = house.opened.elapsed();
        if since < house.access.refuses_for {
            continue;
        }
        let stale = since < house.access.shows_other_for;
        let config = Arc::clone(if stale { &other } else { &own });
        let guest = Guest {
            house: Arc::clone(&house),
        };
        connections.spawn(async move {
            if let Ok(session) = run_stream(config, stream, guest).await {
                session.await.ok();
            }
        });
    }
}

/// Whoever connects.
struct Guest {
    house: Arc<House>,
}

impl Handler for Guest {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        let access = &self.house.access;
        let shown = key.public_key.to_openssh()?;
        let shown = HostKey::parse(&shown);
        let takes = self.house.opened.elapsed() >= access.denies_for;
        let known = shown.is_some_and(|shown| access.lets_in(&shown));
        Ok(if takes && known && user == access.user {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        let house = Arc::clone(&self.house);
        tokio::spawn(run(channel, house));
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(channel)
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        let port = u16::try_from(port).unwrap_or(0);
        let Ok(mut near) = TcpStream::connect((host, port)).await else {
            // Dropped, it is refused.
            return Ok(());
        };
        reply.accept().await;
        tokio::spawn(async move {
            let mut far = channel.into_stream();
            tokio::io::copy_bidirectional(&mut near, &mut far)
                .await
                .ok();
        });
        Ok(())
    }
}

/// Runs the one command of a channel.
async fn run(mut channel: Channel<Msg>, house: Arc<House>) {
    let command = loop {
        match channel.wait().await {
            Some(ChannelMsg::Exec { command, .. }) => break command,
            Some(_) => {}
            None => return,
        }
    };
    let command = String::from_utf8_lossy(&command).into_owned();
    let child = tokio::process::Command::new("sh")
        .args(["-c", &command])
        .env_clear()
        .envs(agent_environment())
        .envs(&house.access.env)
        .env("HOME", &house.home)
        .current_dir(&house.home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let Ok(mut child) = child else { return };
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
        return;
    };
    let (mut from, to) = channel.split();
    let feed = async {
        while let Some(message) = from.wait().await {
            if let ChannelMsg::Data { data } = &message
                && stdin.write_all(data).await.is_err()
            {
                break;
            }
            if matches!(message, ChannelMsg::Eof) {
                break;
            }
        }
        drop(stdin);
        // Until whoever asked is gone.
        while from.wait().await.is_some() {}
    };
    let tell = async {
        tokio::join!(send(stdout, &to, None), send(stderr, &to, Some(1)));
        let ended = child.wait().await.ok();
        let status = ended.and_then(|ended| ended.code());
        let status = status.and_then(|code| u32::try_from(code).ok());
        to.exit_status(status.unwrap_or(255)).await.ok();
        to.eof().await.ok();
        to.close().await.ok();
    };
    tokio::select! {
        () = tell => {}
        () = feed => {}
    }
}

async fn send(mut pipe: impl AsyncRead + Unpin, to: &ChannelWriteHalf<Msg>, kind: Option<u32>) {
    let mut piece = vec![0; PIECE];
    while let Ok(size @ 1..) = pipe.read(&mut piece).await {
        let bytes = Bytes::copy_from_slice(&piece[..size]);
        let sent = match kind {
            None => to.data_bytes(bytes).await,
            Some(kind) => to.extended_data_bytes(kind, bytes).await,
        };
        if sent.is_err() {
            return;
        }
    }
}
