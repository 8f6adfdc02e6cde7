//! `forward`: a port of a leased machine here.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stageline_core::id::{Address, LeaseId};
use stageline_core::state::Recorded;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::console::Console;
use super::project::Place;
use super::sellers::Sellers;
use super::way::{self, ByAgent, Way, failed};
use super::{Exit, Failure, Global, project, relay, session};
use crate::machine::Machines as _;
use crate::machine::Target;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::ssh::Host;
use crate::store::Mode;

/// Connections at once by a machine's agent: fewer than one connection to it has streams. More wait.
const OPEN_MAX: usize = 64;

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

/// What carries connections to a machine.
enum Carrier {
    Ssh(Host, LeaseId),
    Agent(ByAgent, Semaphore),
}

impl Carrier {
    /// One that is known to work: better now than when somebody connects.
    async fn new(way: Way, lease: &LeaseId) -> Result<Self, Failure> {
        match way {
            Way::Login(login, _) => {
                let host = Host::new(*login);
                let met = host.session().await;
                met.map_err(|error| failed(lease, &error.cause(host.place())))?;
                Ok(Self::Ssh(host, lease.clone()))
            }
            Way::Agent(agent) => {
                agent.hands.knows_ports(&agent.target).await?;
                Ok(Self::Agent(agent, Semaphore::new(OPEN_MAX)))
            }
        }
    }

    /// Carries a connection to its end. The error is for people.
    async fn carry(&self, stream: TcpStream, port: u16) -> Result<(), String> {
        match self {
            Self::Ssh(host, lease) => {
                let said = |error| format!("{lease}: {error}");
                let session = host.session().await.map_err(said)?;
                session.carry(stream, port).await.map_err(said)
            }
            Self::Agent(agent, room) => {
                let _room = room.acquire().await.map_err(|error| error.to_string())?;
                let tunnel = agent.hands.connect(&agent.target, port).await;
                let tunnel = tunnel.map_err(|error| error.to_string())?;
                tunnel.carry(stream).await;
                Ok(())
            }
        }
    }

    /// What is said of it.
    fn words(&self) -> &'static str {
        match self {
            Self::Ssh(..) => "by SSH",
            Self::Agent(..) => "by its agent",
        }
    }

    async fn close(&self) {
        match self {
            Self::Ssh(..) => {}
            Self::Agent(agent, _) => agent.hands.close().await,
        }
    }
}

impl Forward {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let console = *console;
        session::runtime()?.block_on(async {
            let way = way::to(global, &place, &self.lease).await?;
            let carrier = Arc::new(Carrier::new(way, &self.lease).await?);
            let (here, there) = self.ports;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, here));
            let listener = TcpListener::bind(address).await.map_err(|error| {
                Failure::user(format!("cannot listen on {address}: {error}")).hint(format!(
                    "take another port here: `stageline forward {} 0:{there}`",
                    self.lease
                ))
            })?;
            let address = listener.local_addr()?;
            let open = Arc::new(AtomicUsize::new(0));
            let awake = match &*carrier {
                Carrier::Ssh(..) => Awake::of(global, &place, &self.lease).await?,
                Carrier::Agent(..) => None,
            };
            let telling = awake.map(|awake| tokio::spawn(awake.keep(Arc::clone(&open), console)));
            console.data(&format!("{address}\n"))?;
            console.say(&format!(
                "{}: its port {there} is {address} here, {}, until Ctrl-C",
                self.lease,
                carrier.words()
            ));
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = tokio::signal::ctrl_c() => break,
                };
                let Ok((stream, _)) = accepted else { continue };
                let carrier = Arc::clone(&carrier);
                let open = Arc::clone(&open);
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::Relaxed);
                    let carried = carrier.carry(stream, there).await;
                    open.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = carried {
                        console.line(&error);
                    }
                });
            }
            telling.inspect(tokio::task::JoinHandle::abort);
            carrier.close().await;
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
        let Some(mut target) = observe::target(&state, lease) else {
            return Ok(None);
        };
        let relays = relay::relays(None, &state, &project::folder(global));
        let recorded = state.resources.get(&Address::Lease(lease.clone()));
        let limits = recorded.and_then(Recorded::limits_in_force);
        let every = limits.map_or(Self::EVERY, |limits| limits.idle_timeout.duration() / 4);
        let hands = session::hands_if_any(&store, &state, relays, place)?;
        if let Some(hands) = &hands
            && hands.status(&target).await.is_err()
        {
            let clock = session::clock();
            let sellers = Sellers::recorded(&state, place, &clock);
            target = sellers.elsewhere(&target).await.unwrap_or(target);
        }
        Ok(hands.map(|hands| Self {
            hands,
            target,
            every: every.clamp(Duration::from_secs(1), Self::EVERY),
        }))
    }

    /// As long as anything is open, and from the moment that it is.
    async fn keep(self, open: Arc<AtomicUsize>, console: Console) {
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
                    console.line(&format!(
                        "{lease}: its agent cannot be told that this port is in use, and may end the machine as idle: {error}"
                    ));
                }
                Err(_) => {}
            }
        }
    }
}
