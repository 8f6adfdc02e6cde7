//! Practice providers: real wire formats over HTTP on this computer, a clock of their own, a bill, and a table of faults.
//!
//! What always holds: money is counted to the micro-dollar by the simulator's clock, also what a fault hides; a machine that
//! boots runs the real agent as a process in a temporary folder, and every one of them ends with the simulator, however that
//! ends. The generic part (machines, clock, bill, faults, boot) knows no wire format; each provider's is a thin layer
//! on it. It refuses to run anything but our own agent, and what somebody asks for who logs in by SSH: whatever else an image or a
//! start command says is not executed.

mod access;
mod admin;
mod bill;
mod boot;
mod clock;
#[cfg(feature = "ssh")]
mod door;
#[cfg(not(feature = "ssh"))]
#[path = "sim/door/without.rs"]
mod door;
pub mod fault;
mod lambda;
mod line;
mod machine;
pub mod registry;
mod runpod;
mod serve;
mod start;
mod vastai;
mod volume;
mod world;
mod wrong;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use fault::{Fault, Faults};
pub use serve::{Reply, Request};
pub use world::World;

/// Which provider is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The marketplace vast.ai.
    Vastai,
    /// Lambda Cloud.
    Lambda,
    /// Pods of RunPod.
    Runpod,
}

impl Kind {
    /// Everybody who can be played.
    pub const ALL: [Self; 3] = [Self::Vastai, Self::Lambda, Self::Runpod];

    /// The word of `kind` in the topology.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vastai => "vastai",
            Self::Lambda => "lambda",
            Self::Runpod => "runpod",
        }
    }

    /// As people call it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Vastai => "vast.ai",
            Self::Lambda => "Lambda Cloud",
            Self::Runpod => "RunPod",
        }
    }

    /// Knobs that it cannot show, and why.
    pub const fn cannot(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Vastai => vastai::CANNOT,
            Self::Lambda => lambda::CANNOT,
            Self::Runpod => runpod::CANNOT,
        }
    }

    /// What it calls the machine of this number.
    pub fn id(self, number: u64) -> String {
        match self {
            Self::Vastai => number.to_string(),
            Self::Lambda => lambda::id(number),
            Self::Runpod => runpod::id(number),
        }
    }

    /// In which variables a machine is handed its id and the key by which it can end itself; none where it is handed neither.
    fn own_variables(self) -> Vec<&'static str> {
        match self {
            Self::Vastai => vec!["CONTAINER_ID", "CONTAINER_API_KEY"],
            Self::Lambda => Vec::new(),
            Self::Runpod => vec!["RUNPOD_POD_ID", "RUNPOD_API_KEY"],
        }
    }

    /// Its answer when it does not know what went wrong.
    fn oops(self) -> Reply {
        match self {
            Self::Vastai => Reply::json(
                500,
                &serde_json::json!({ "success": false, "msg": "internal error" }),
            ),
            Self::Lambda => lambda::oops(),
            Self::Runpod => runpod::oops(),
        }
    }
}

/// What a simulator is started with.
pub struct Options {
    /// Who is played.
    pub kind: Kind,
    /// Where it listens; port 0 is a free one.
    pub listen: SocketAddr,
    /// What goes wrong.
    pub faults: Faults,
    /// How fast its clock runs.
    pub speed: u32,
    /// For everything that is drawn.
    pub seed: u64,
    /// The program that has the verb `agent`; none boots machines without an agent.
    pub program: Option<PathBuf>,
    /// Machines fetch their agent by their start command, where that does so, instead of running `program`.
    pub fetch: bool,
}

/// A simulator that runs in this process; dropping it ends it and its machines.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// What there is.
    pub world: Arc<World>,
    speed: u32,
    stop: CancellationToken,
}

impl Running {
    /// What belongs into `url` of the topology.
    pub fn url(&self) -> String {
        match self.speed {
            1 => format!("http://{}", self.address),
            speed => format!("http://{}#speed={speed}", self.address),
        }
    }

    /// Ends it and waits until its machines are gone.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.world.end().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts a simulator.
///
/// # Errors
/// When it cannot listen, or has no temporary folder.
pub async fn start(options: Options) -> std::io::Result<Running> {
    options
        .faults
        .fits(options.kind)
        .map_err(std::io::Error::other)?;
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let world = Arc::new(World::new(&options)?);
    let stop = CancellationToken::new();
    let wire: serve::Wire = match options.kind {
        Kind::Vastai => {
            vastai::stock(&world);
            vastai::answer
        }
        Kind::Lambda => {
            lambda::stock(&world);
            lambda::answer
        }
        Kind::Runpod => {
            runpod::stock(&world);
            runpod::answer
        }
    };
    let router = serve::router(Arc::clone(&world), wire);
    let lines = line::Lines {
        listener,
        world: Arc::clone(&world),
    };
    let stopped = stop.clone();
    tokio::spawn(async move {
        let served = axum::serve(lines, router);
        tokio::select! {
            _ = served => {}
            () = stopped.cancelled() => {}
        }
    });
    let (ticking, stopped) = (Arc::clone(&world), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = ticking.run() => {}
            () = stopped.cancelled() => {}
        }
    });
    Ok(Running {
        address,
        world,
        speed: options.speed,
        stop,
    })
}
