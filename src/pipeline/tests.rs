//! Rings over real endpoints on loopback, all in one process.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use iroh::protocol::Router;
use stageline_core::id::{EndpointKey, JournalNumber, Lineage, Name, StageId};
use stageline_core::stage_protocol::{Dtype, ToWorker};
use stageline_core::unit::{Bytes, Millis};
use tokio::sync::{Semaphore, oneshot};

use super::endpoint::{self, EndpointOptions, INFER_ALPN, STAGE_ALPN};
use super::infer::{Event, Events, Finish, Infer, InferCode, InferError, Input, Request, Sampling};
use super::keys::Secret;
use super::link::{WorkerEnd, WorkerLink};
use super::roster::{KeepNothing, Limits, Roster, RosterStage, SignedRoster};
use super::stub::{self, StubOptions, StubWorker};
use super::{Drain, Fabric, FabricConfig, Timing};
use crate::ambient::SystemClock;

mod basics;
mod faults;
mod gates;

const LINEAGE: Lineage = Lineage([7; 16]);
/// Nothing here takes a hundredth of this, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

fn operator() -> Secret {
    Secret::new([200; 32])
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn stage_id(index: u32) -> StageId {
    StageId {
        pipeline: name("p"),
        index,
    }
}

/// An agent's data plane.
struct Agent {
    fabric: Fabric,
    router: Router,
    key: EndpointKey,
}

impl Agent {
    async fn start(secret: &Secret, timing: Timing) -> Self {
        let endpoint = endpoint::bind(secret, EndpointOptions::default())
            .await
            .expect("a free port");
        let config = FabricConfig {
            operator: operator().operator(),
            lineage: LINEAGE,
            clock: Arc::new(SystemClock),
            keep: Arc::new(KeepNothing),
        };
        let fabric = Fabric::with_timing(endpoint.clone(), config, timing);
        let router = Router::builder(endpoint)
            .accept(STAGE_ALPN, fabric.stage_protocol())
            .accept(INFER_ALPN, fabric.infer_protocol())
            .spawn();
        Self {
            fabric,
            router,
            key: secret.endpoint(),
        }
    }

    fn roster_stage(&self) -> RosterStage {
        RosterStage {
            endpoint: self.key,
            contact: endpoint::contact(&self.fabric.endpoint()),
            layers: None,
        }
    }

    async fn stop(self) {
        self.fabric.shutdown().await;
        self.router.shutdown().await.expect("its task ends");
    }
}

/// A pipeline over agents.
struct Ring {
    agents: Vec<Agent>,
    /// Which agent runs which stage.
    places: Vec<usize>,
    roster: Roster,
}

impl Ring {
    /// One agent for each stage.
    async fn new(num_stages: usize) -> Self {
        Self::over((0..num_stages).collect(), Timing::default()).await
    }

    async fn over(places: Vec<usize>, timing: Timing) -> Self {
        let mut agents = Vec::new();
        for n in 0..=places.iter().copied().max().unwrap_or(0) {
            let secret = Secret::new([u8::try_from(n).expect("few") + 1; 32]);
            agents.push(Agent::start(&secret, timing).await);
        }
        let stages = places.iter().map(|n| agents[*n].roster_stage()).collect();
        let roster = Roster {
            lineage: LINEAGE,
            pipeline: name("p"),
            revision: JournalNumber(1),
            operator: operator().operator(),
            stages,
            prompters: BTreeSet::new(),
            limits: Limits {
                max_in_flight: 8,
                request_timeout: Millis::seconds(50),
                queue_bytes: Bytes::mib(64),
                kv_tokens: None,
            },
            dtype: Dtype::F32,
        };
        Self {
            agents,
            places,
            roster,
        }
    }

    fn signed(&self) -> SignedRoster {
        self.roster.sign(&operator()).expect("a good roster")
    }

    fn set_rosters(&self) {
        for agent in &self.agents {
            agent.fabric.set_roster(self.signed()).expect("a newer one");
        }
    }

    fn fabric(&self, stage: u32) -> &Fabric {
        &self.agents[self.places[stage as usize]].fabric
    }

    fn attach_stub(&self, stage: u32, engine_args: &[&str]) {
        let options = StubOptions {
            stage,
            num_stages: self.roster.num_stages(),
            dtype: self.roster.dtype,
            context: None,
            engine_args: engine_args.iter().map(|a| (*a).to_owned()).collect(),
        };
        let link = stub::start(&options).expect("known arguments");
        self.fabric(stage)
            .attach(&stage_id(stage), link)
            .expect("the roster says so");
    }

    fn attach_stubs(&self, engine_args: &[&str]) {
        for stage in 0..self.roster.num_stages() {
            self.attach_stub(stage, engine_args);
        }
    }

    fn infer(&self) -> Arc<dyn Infer> {
        self.fabric(0).infer(&name("p"))
    }

    async fn edges_up(&self) {
        eventually("all edges are up", async || {
            (0..self.roster.num_stages()).all(|stage| {
                let state = self.fabric(stage).status(&stage_id(stage));
                state.is_some_and(|state| state.down.is_empty())
            })
        })
        .await;
    }

    async fn nothing_in_flight(&self) {
        eventually("nothing is in flight", async || {
            self.agents.iter().all(|agent| !agent.fabric.is_busy())
        })
        .await;
    }

    async fn stop(self) {
        for agent in self.agents {
            agent.stop().await;
        }
    }
}

/// What a worker was told, in the order of all workers together: (stage, what).
type Log = Arc<Mutex<Vec<(u32, &'static str)>>>;

/// A stub whose every message is written down, and which computes only as often as it is let.
struct Spy {
    log: Log,
    gate: Arc<Semaphore>,
    kill: Option<oneshot::Sender<String>>,
}

impl Spy {
    fn attach(ring: &Ring, stage: u32, log: &Log, permits: usize) -> Self {
        let options = StubOptions {
            stage,
            num_stages: ring.roster.num_stages(),
            dtype: ring.roster.dtype,
            context: None,
            engine_args: vec![],
        };
        let (mut worker, _) = StubWorker::new(&options).expect("no arguments");
        let (link, end) = WorkerLink::pair(64, 8192);
        let gate = Arc::new(Semaphore::new(permits));
        let (kill, killed) = oneshot::channel::<String>();
        let (log_there, gate_there) = (Arc::clone(log), Arc::clone(&gate));
        let WorkerEnd {
            mut from_stage,
            to_stage,
            ended,
        } = end;
        let work = async move {
            while let Some(message) = from_stage.recv().await {
                let what = match &message {
                    ToWorker::Start { .. } => "start",
                    ToWorker::Forward { .. } => "forward",
                    ToWorker::Token { .. } => "token",
                    ToWorker::End { .. } => "end",
                };
                log_there.lock().expect("no panic").push((stage, what));
                if what != "end" {
                    gate_there.acquire().await.expect("never closed").forget();
                }
                for answer in worker.take(message) {
                    if to_stage.send(answer).await.is_err() {
                        return;
                    }
                }
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                Ok(why) = killed => drop(ended.send(why)),
            }
        });
        ring.fabric(stage)
            .attach(&stage_id(stage), link)
            .expect("the roster says so");
        Self {
            log: Arc::clone(log),
            gate,
            kill: Some(kill),
        }
    }

    fn count(&self, stage: u32, what: &str) -> usize {
        let log = self.log.lock().expect("no panic");
        log.iter().filter(|entry| **entry == (stage, what)).count()
    }

    fn let_through(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    fn kill(&mut self, why: &str) {
        let kill = self.kill.take().expect("killed once");
        kill.send(why.to_owned()).expect("it lives");
    }
}

/// Polls until something holds, and fails loudly when it never does.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, waiting).await.is_ok(),
        "it never came about that {what}"
    );
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("this takes no minute")
}

fn prompt(text: &str, max_tokens: u32) -> Request {
    Request {
        input: Input::Prompt(text.to_owned()),
        sampling: Sampling {
            max_tokens,
            temperature: 0.0,
            top_p: 1.0,
            seed: None,
            stop: vec![],
        },
        deadline_ms: None,
    }
}

/// The whole answer: text, why it ended, (tokens of the prompt, tokens drawn).
async fn whole(mut events: Events) -> Result<(String, Finish, (u32, u32)), InferError> {
    let (mut text, mut prompt, mut count) = (String::new(), None, 0);
    while let Some(event) = soon(events.next()).await {
        match event? {
            Event::Started { prompt_tokens } => {
                assert_eq!(prompt, None, "started once");
                prompt = Some(prompt_tokens);
            }
            Event::Text { text: piece, .. } => {
                text.push_str(&piece);
                count += 1;
            }
            Event::Done {
                finish,
                completion_tokens,
            } => {
                assert_eq!(completion_tokens, count);
                assert!(soon(events.next()).await.is_none(), "nothing after the end");
                return Ok((text, finish, (prompt.expect("started first"), count)));
            }
        }
    }
    panic!("an answer ends with its end or an error")
}

async fn ask(
    infer: &dyn Infer,
    text: &str,
    max_tokens: u32,
) -> Result<(String, Finish, (u32, u32)), InferError> {
    whole(soon(infer.infer(prompt(text, max_tokens))).await?).await
}
