//! The round trip of a decode step between two agents on loopback, against a bare iroh stream in the same run.
//!
//! A step of 4 KiB goes from stage 0 to stage 1, and its token comes back; workers answer at once, so what is measured is
//! everything between two workers' messages. The bare stream carries 4 KiB there and back on one long-lived stream. Runs
//! alternate, so that a busy computer disturbs both alike.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use iroh::endpoint::{RecvStream, SendStream};
use iroh::protocol::{AcceptError, ProtocolHandler, Router};
use stageline::ambient::SystemClock;
use stageline::core::id::{JournalNumber, Lineage, StageId};
use stageline::core::stage_protocol::{
    Activation, Dtype, FromWorker, RequestNumber, Sampled, ToWorker,
};
use stageline::core::unit::Millis;
use stageline::pipeline::endpoint::{self, EndpointOptions, INFER_ALPN, STAGE_ALPN};
use stageline::pipeline::infer::{Input, Request, Sampling};
use stageline::pipeline::keys::Secret;
use stageline::pipeline::link::{WorkerEnd, WorkerLink};
use stageline::pipeline::roster::{KeepNothing, Limits, Roster, RosterStage};
use stageline::pipeline::{Fabric, FabricConfig};
use tokio::sync::mpsc;

const ECHO_ALPN: &[u8] = b"stageline/bench/1";
const FRAME: usize = 4096;
/// 4 KiB of f32.
const HIDDEN_SIZE: u32 = 1024;
const ROUNDS: usize = 8;
const STEPS: u32 = 500;

#[derive(Debug)]
struct Echo;

impl ProtocolHandler for Echo {
    async fn accept(&self, connection: iroh::endpoint::Connection) -> Result<(), AcceptError> {
        let (mut send, mut recv) = connection.accept_bi().await?;
        let mut frame = vec![0; FRAME];
        while recv.read_exact(&mut frame).await.is_ok() {
            send.write_all(&frame)
                .await
                .map_err(AcceptError::from_err)?;
        }
        Ok(())
    }
}

struct Agent {
    fabric: Fabric,
    router: Router,
    secret: Secret,
}

impl Agent {
    async fn start(n: u8, operator: &Secret) -> Self {
        let secret = Secret::new([n; 32]);
        let endpoint = endpoint::bind(&secret, EndpointOptions::default())
            .await
            .expect("a free port");
        let config = FabricConfig {
            operator: operator.operator(),
            lineage: Lineage([7; 16]),
            clock: Arc::new(SystemClock),
            keep: Arc::new(KeepNothing),
        };
        let fabric = Fabric::new(endpoint.clone(), config);
        let router = Router::builder(endpoint)
            .accept(STAGE_ALPN, fabric.stage_protocol())
            .accept(INFER_ALPN, fabric.infer_protocol())
            .accept(ECHO_ALPN, Echo)
            .spawn();
        Self {
            fabric,
            router,
            secret,
        }
    }

    fn roster_stage(&self) -> RosterStage {
        RosterStage {
            endpoint: self.secret.endpoint(),
            contact: endpoint::contact(&self.fabric.endpoint()),
            layers: None,
        }
    }
}

fn hidden(id: RequestNumber, position: u32, prefill: bool) -> FromWorker {
    FromWorker::Hidden {
        id,
        activation: Activation {
            position,
            len: 1,
            prefill,
            more: false,
            dtype: Dtype::F32,
            payload: vec![7; FRAME],
        },
        prompt_tokens: prefill.then_some(1),
    }
}

/// Stage 0's worker: notes the time from each hidden state that it gives to the token that comes back.
async fn first(end: WorkerEnd, trips: mpsc::UnboundedSender<Duration>) {
    let WorkerEnd {
        mut from_stage,
        to_stage,
        ended: _ended,
    } = end;
    let mut sent = Instant::now();
    while let Some(message) = from_stage.recv().await {
        let answer = match message {
            ToWorker::Start { id, .. } => hidden(id, 0, true),
            ToWorker::Token { id, position, .. } => {
                trips.send(sent.elapsed()).expect("it is read");
                hidden(id, position, false)
            }
            ToWorker::Forward { .. } | ToWorker::End { .. } => continue,
        };
        sent = Instant::now();
        to_stage.send(answer).await.expect("its stage is there");
    }
}

/// Stage 1's worker: a token at once.
async fn last(end: WorkerEnd) {
    let WorkerEnd {
        mut from_stage,
        to_stage,
        ended: _ended,
    } = end;
    while let Some(message) = from_stage.recv().await {
        if let ToWorker::Forward { id, .. } = message {
            let token = FromWorker::Token(Sampled {
                id,
                token: 1,
                text: Some(" a".to_owned()),
                finish: None,
                prompt_tokens: None,
            });
            to_stage.send(token).await.expect("its stage is there");
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// A pipeline of two stages over two agents, and the times of its steps.
struct Bench {
    agents: [Agent; 2],
    roster: Roster,
    trips: mpsc::UnboundedReceiver<Duration>,
}

impl Bench {
    async fn start() -> Self {
        let operator = Secret::new([200; 32]);
        let agents = [
            Agent::start(1, &operator).await,
            Agent::start(2, &operator).await,
        ];
        let roster = Roster {
            lineage: Lineage([7; 16]),
            pipeline: "bench".parse().expect("a name"),
            revision: JournalNumber(1),
            operator: operator.operator(),
            stages: agents.iter().map(Agent::roster_stage).collect(),
            prompters: BTreeSet::new(),
            limits: Limits {
                max_in_flight: 1,
                request_timeout: Millis::minutes(5),
                queue_bytes: Limits::QUEUE_BYTES_DEFAULT,
                kv_tokens: None,
            },
            dtype: Dtype::F32,
        };
        let signed = roster.sign(&operator).expect("a good roster");
        let (noted, trips) = mpsc::unbounded_channel();
        for (index, agent) in (0..).zip(&agents) {
            agent.fabric.set_roster(signed.clone()).expect("newer");
            let (link, end) = WorkerLink::pair(HIDDEN_SIZE, 1 << 20);
            let stage = StageId {
                pipeline: roster.pipeline.clone(),
                index,
            };
            let attached = agent.fabric.attach(&stage, link);
            attached.expect("the roster says so");
            if index == 0 {
                tokio::spawn(first(end, noted.clone()));
            } else {
                tokio::spawn(last(end));
            }
        }
        Self {
            agents,
            roster,
            trips,
        }
    }

    /// A long-lived stream that echoes.
    async fn stream(&self) -> (SendStream, RecvStream) {
        let there = &self.roster.stages[1];
        let addr = endpoint::address(there.endpoint, &there.contact).expect("a key");
        let endpoint = self.agents[0].fabric.endpoint();
        let connection = endpoint.connect(addr, ECHO_ALPN).await;
        let connection = connection.expect("it listens");
        connection.open_bi().await.expect("open")
    }

    /// The times of one request's steps; the first one is a prompt's and is left out.
    async fn round(&mut self) -> Vec<Duration> {
        let request = Request {
            input: Input::Prompt("go".to_owned()),
            sampling: Sampling {
                max_tokens: STEPS,
                temperature: 0.0,
                top_p: 1.0,
                seed: Some(0),
                stop: vec![],
            },
            deadline_ms: None,
        };
        let infer = self.agents[0].fabric.infer(&self.roster.pipeline);
        let mut events = infer.infer(request).await.expect("admitted");
        while let Some(event) = events.next().await {
            event.expect("it goes on");
        }
        let trips = std::iter::from_fn(|| self.trips.try_recv().ok());
        trips.skip(1).collect()
    }
}

async fn run() {
    let mut bench = Bench::start().await;
    let (mut send, mut recv) = bench.stream().await;
    let (mut ring, mut stream) = (Vec::new(), Vec::new());
    let mut frame = vec![7; FRAME];
    for round in 0..ROUNDS {
        let mut echoes = Vec::new();
        for _ in 0..STEPS {
            let sent = Instant::now();
            send.write_all(&frame).await.expect("open");
            recv.read_exact(&mut frame).await.expect("an echo");
            echoes.push(sent.elapsed());
        }
        let steps = bench.round().await;
        // The first round warms both up.
        if round > 0 {
            stream.extend(echoes);
            ring.extend(steps);
        }
    }
    ring.sort_unstable();
    stream.sort_unstable();
    let micros = |sorted: &[Duration], percent| percentile(sorted, percent).as_secs_f64() * 1e6;
    println!("round trip of a 4 KiB decode step, agent to agent on loopback, workers excluded");
    println!("                      p50 µs    p90 µs    samples");
    for (what, sorted) in [("stage to stage", &ring), ("bare iroh stream", &stream)] {
        let (half, most) = (micros(sorted, 50), micros(sorted, 90));
        println!("{what:<20} {half:>8.1}  {most:>8.1}  {:>9}", sorted.len());
    }
    let ratio = micros(&ring, 50) / micros(&stream, 50);
    println!("ratio of p50: {ratio:.2} (must be at most 1.30)");
    for agent in bench.agents {
        agent.fabric.shutdown().await;
        agent.router.shutdown().await.expect("its task ends");
    }
}

fn main() {
    // `cargo test` runs benchmarks too, to see that they build; there is nothing to measure in such a build.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(run());
}
