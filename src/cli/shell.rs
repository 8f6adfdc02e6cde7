//! `ssh` and `forward`: a shell on a leased machine, and a port of it here.
//!
//! The shell is that of the system's own `ssh`, which knows terminals; it is handed a file with the one key that the host is known by,
//! and refuses every other. Ports are carried by ourselves. Only machines that stageline logs in to have either.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use stageline_core::id::{Address, LeaseId};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::state::{Recorded, State};

use super::console::Console;
use super::project::Place;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, project, relay, session};
use crate::agent::folder;
use crate::apply::Keys as _;
use crate::machine::Machines as _;
use crate::machine::Target;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::ssh::{Host, Login, OwnKey};
use crate::store::Mode;

/// A shell on a leased machine, or one command there.
#[derive(Debug, clap::Args)]
pub(crate) struct Shell {
    /// Such as lease.gpu[0]
    lease: LeaseId,
    /// What is run there in the place of a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Make a TCP port of a leased machine reachable on this computer.
#[derive(Debug, clap::Args)]
pub(crate) struct Forward {
    /// Such as lease.gpu[0]
    lease: LeaseId,
    /// The port there; HERE:THERE for another one here, 0 for a free one
    #[arg(value_name = "PORT", value_parser = ports)]
    ports: (u16, u16),
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let (here, there) = text.split_once(':').unwrap_or((text, text));
    match (here.parse(), there.parse()) {
        (Ok(here), Ok(there)) if there != 0 => Ok((here, there)),
        (_, _) => Err(format!("`{text}` is no port, such as 8080, or 9000:8080")),
    }
}

impl Shell {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let login = session::runtime()?.block_on(way_in(global, &place, &self.lease))?;
        let known = login.known.as_ref().ok_or_else(|| {
            Failure::user(format!("{}: its host is not known yet", self.lease))
                .hint("`stageline apply` meets it and records its key")
        })?;
        // OpenSSH names a port only where it is not the usual one.
        let host = match login.place.port {
            22 => login.place.address.clone(),
            port => format!("[{}]:{port}", login.place.address),
        };
        let file = place
            .folder()
            .join("ssh")
            .join(format!("{}.known_hosts", self.lease));
        folder::make_dir(file.parent().unwrap_or(Path::new(".")))
            .and_then(|()| {
                folder::write_whole(&file, format!("{host} {}\n", known.as_str()).as_bytes())
            })
            .map_err(|error| Failure::user(error.to_string()))?;
        let file = std::path::absolute(&file).unwrap_or(file);
        let mut ssh = Command::new("ssh");
        ssh.arg("-o")
            .arg(format!("UserKnownHostsFile=\"{}\"", file.display()));
        for option in [
            "GlobalKnownHostsFile=none",
            "StrictHostKeyChecking=yes",
            "CheckHostIP=no",
            "UpdateHostKeys=no",
        ] {
            ssh.args(["-o", option]);
        }
        if let Some(own) = login.own.as_ref().and_then(|own| own.private()) {
            // It is drawn from the identity that lies beside it, and is of use on that machine only.
            let file = file.with_extension("key");
            folder::write_whole(&file, own.expose_secret().as_bytes())
                .map_err(|error| Failure::user(error.to_string()))?;
            ssh.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(&file);
        }
        for key in &login.keys {
            ssh.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(key);
        }
        ssh.arg("-p").arg(login.place.port.to_string());
        ssh.arg("-l")
            .arg(&login.place.user)
            .arg("--")
            .arg(&login.place.address);
        ssh.args(&self.command);
        console.say(&format!("{}: ssh to {}", self.lease, login.place));
        // It takes the place of this process, with its terminal and its exit status.
        let error = ssh.exec();
        Err(Failure::user(format!("cannot run `ssh`: {error}"))
            .hint("install OpenSSH's client, or log in by hand"))
    }
}

impl Forward {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        session::runtime()?.block_on(async {
            let login = way_in(global, &place, &self.lease).await?;
            let host = Arc::new(Host::new(login));
            // Better known now than when somebody connects.
            host.session()
                .await
                .map_err(|error| failed(&self.lease, &error.cause(host.place())))?;
            let (here, there) = self.ports;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, here));
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .map_err(|error| {
                    Failure::user(format!("cannot listen on {address}: {error}")).hint(format!(
                        "take another port here: `stageline forward {} 0:{there}`",
                        self.lease
                    ))
                })?;
            let address = listener.local_addr()?;
            let open = Arc::new(AtomicUsize::new(0));
            let awake = Awake::of(global, &place, &self.lease).await?;
            let telling = awake.map(|awake| tokio::spawn(awake.keep(Arc::clone(&open))));
            console.data(&format!("{address}\n"))?;
            console.say(&format!(
                "{}: its port {there} is {address} here, until Ctrl-C",
                self.lease
            ));
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = tokio::signal::ctrl_c() => break,
                };
                let Ok((stream, _)) = accepted else { continue };
                let (host, lease) = (Arc::clone(&host), self.lease.clone());
                let open = Arc::clone(&open);
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::Relaxed);
                    let carried = match host.session().await {
                        Ok(session) => session.carry(stream, there).await,
                        Err(error) => Err(error),
                    };
                    open.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = carried {
                        tracing::warn!("{lease}: {error}");
                    }
                });
            }
            telling.inspect(tokio::task::JoinHandle::abort);
            Ok(Exit::Done)
        })
    }
}

/// Tells the agent of a machine that it is in use: what goes over SSH it does not see, and by `idle_timeout` it would end.
struct Awake {
    hands: Arc<AgentClient>,
    target: Target,
    every: Duration,
}

impl Awake {
    /// The longest time between two tellings; an earlier one where the machine may be idle for a short time only.
    const EVERY: Duration = Duration::from_secs(30);

    /// None where no agent is known or may be asked from here.
    async fn of(global: &Global, place: &Place, lease: &LeaseId) -> Result<Option<Self>, Failure> {
        let store = place.open(Mode::Read).await?;
        let state = store.read().await?.state;
        let Some(target) = observe::target(&state, lease) else {
            return Ok(None);
        };
        let relays = relay::relays(None, &state, &project::folder(global));
        let recorded = state.resources.get(&Address::Lease(lease.clone()));
        let limits = recorded.and_then(Recorded::limits_in_force);
        let every = limits.map_or(Self::EVERY, |limits| limits.idle_timeout.duration() / 4);
        let hands = session::hands_if_any(&store, &state, relays, place)?;
        Ok(hands.map(|hands| Self {
            hands,
            target,
            every: every.clamp(Duration::from_secs(1), Self::EVERY),
        }))
    }

    /// As long as anything is open, and from the moment that it is.
    async fn keep(self, open: Arc<AtomicUsize>) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let mut told: Option<tokio::time::Instant> = None;
        let mut complained = false;
        loop {
            ticks.tick().await;
            let due = told.is_none_or(|told| told.elapsed() >= self.every);
            if open.load(Ordering::Relaxed) == 0 || !due {
                continue;
            }
            told = Some(tokio::time::Instant::now());
            match self.hands.at_work(&self.target).await {
                Ok(()) => complained = false,
                Err(error) if !complained => {
                    complained = true;
                    let lease = &self.target.lease;
                    tracing::warn!(
                        "{lease}: its agent cannot be told that this port is in use, and may end the machine as idle: {error}"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

/// Removes what was written for the shells of machines that are not held any more.
pub(crate) fn forget(place: &Place, state: &State) {
    let files = std::fs::read_dir(place.folder().join("ssh"));
    for file in files.into_iter().flatten().flatten() {
        let path = file.path();
        let lease = path
            .file_stem()
            .and_then(|name| name.to_str()?.parse().ok());
        if lease.is_none_or(|lease: LeaseId| state.lease(&lease).is_none()) {
            // The next run tries again.
            std::fs::remove_file(path).ok();
        }
    }
}

/// How the machine of a lease is logged in to.
async fn way_in(global: &Global, place: &Place, lease: &LeaseId) -> Result<Login, Failure> {
    let store = place.open(Mode::Read).await?;
    let state: State = store.read().await?.state;
    let held = state.lease(lease).ok_or_else(|| {
        Failure::user(format!("{lease} has no machine"))
            .hint("`stageline leases` shows those that have")
    })?;
    // The topology may know the host's key, or a new file of ours; without it what is recorded does.
    let project = project::Project::load(global).ok();
    let clock = session::clock();
    let folder = project::folder(global);
    let sellers = Sellers {
        topology: project.as_ref().map(|project| &project.topology),
        state: &state,
        place,
        folder: &folder,
        clock: &clock,
    };
    let providers = sellers.providers()?;
    let provider = providers.get(&held.provider, &held.provider_kind);
    let provider = provider.map_err(|cause| failed(lease, &cause))?;
    // A rented machine lets us in by a key of its own, which the identity yields.
    if let Some(genesis) = &state.genesis
        && let Ok(keys) = session::keys_of(&store, genesis, None)
    {
        let recorded = state.resources.get(&Address::Lease(lease.clone()));
        let born = recorded.and_then(|recorded| recorded.made_for.as_ref());
        let (generation, attempt) = held.request_key.try_of();
        let boot = keys.boot(born.unwrap_or(lease), generation, attempt);
        provider.holds_key(&held.machine, OwnKey::of(&boot.agent_key));
    }
    let asked = || {
        let login = provider.login(&held.machine);
        login.map_err(|cause| failed(lease, &cause))
    };
    let mut login = asked()?;
    if login.is_none() {
        // A cloud tells where it is.
        let seen = provider.describe(&held.machine).await;
        seen.map_err(|blind| failed(lease, &blind.cause))?;
        login = asked()?;
    }
    login.ok_or_else(|| {
        let cause = Cause::new(
            FailureClass::Config,
            format!(
                "stageline does not log in to this machine of kind `{}`",
                held.provider_kind
            ),
        );
        failed(
            lease,
            &cause.hint("log in as that provider says; `stageline logs` shows what its agent says"),
        )
    })
}

fn failed(lease: &LeaseId, cause: &Cause) -> Failure {
    let failure = Failure::user(format!("{lease}: {}", cause.message));
    match &cause.hint {
        Some(hint) => failure.hint(hint.clone()),
        None => failure,
    }
}
