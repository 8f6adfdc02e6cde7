//! Who is let in: hellos, rosters, prompts, and what hostile peers get.

use iroh::endpoint::{Connection, RecvStream, SendStream};

use super::super::hello::{Answer, EdgeKind, Hello, PROTOCOL, read_message, write_message};
use super::super::remote::RemoteInfer;
use super::*;

/// An endpoint without a data plane.
async fn stranger(secret: &Secret) -> iroh::Endpoint {
    endpoint::bind(secret, EndpointOptions::default())
        .await
        .expect("a free port")
}

async fn connect(from: &iroh::Endpoint, to: &Agent, alpn: &[u8]) -> Connection {
    let contact = endpoint::contact(&to.fabric.endpoint());
    let addr = endpoint::address(to.key, &contact).expect("a key");
    soon(from.connect(addr, alpn)).await.expect("it listens")
}

/// Two stages; the first one's key is in the hands of whoever owns that machine, and no agent of ours.
async fn owned_by_another() -> (Ring, iroh::Endpoint) {
    let mut ring = Ring::new(2).await;
    let key = Secret::new([50; 32]);
    let raw = stranger(&key).await;
    ring.roster.stages[0].endpoint = key.endpoint();
    ring.roster.stages[0].contact = endpoint::contact(&raw);
    known_to(&ring, 1);
    (ring, raw)
}

/// One agent has the roster as it is now.
fn known_to(ring: &Ring, agent: usize) {
    let taken = ring.agents[agent].fabric.set_roster(ring.signed());
    taken.expect("newer");
}

/// The way to the entry of a ring, from an endpoint.
fn way(ring: &Ring, from: &iroh::Endpoint) -> RemoteInfer {
    let entry = &ring.roster.stages[0];
    let contact = entry.contact.clone();
    RemoteInfer::new(from.clone(), LINEAGE, name("p"), entry.endpoint, contact)
}

fn hello(roster: &SignedRoster, epoch: u64) -> Hello {
    Hello {
        protocol: PROTOCOL.to_owned(),
        lineage: LINEAGE,
        pipeline: name("p"),
        edge: EdgeKind::Activations,
        stage: 0,
        epoch,
        dtype: Some(Dtype::F32),
        hidden_size: 0,
        roster: Some(roster.clone()),
    }
}

async fn say(connection: &Connection, hello: &Hello) -> (Answer, SendStream, RecvStream) {
    let (mut send, mut recv) = connection.open_bi().await.expect("open");
    write_message(&mut send, hello).await.expect("open");
    let answer = soon(read_message(&mut recv, 16 << 10)).await;
    (answer.expect("readable").expect("an answer"), send, recv)
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Refused { why, .. } => why,
        other @ (Answer::Welcome { .. } | Answer::Stale { .. }) => {
            panic!("refused, not {other:?}")
        }
    }
}

async fn close_reason(connection: &Connection) -> String {
    soon(connection.closed()).await.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_stage_before_gets_an_edge() {
    let ring = Ring::new(2).await;
    known_to(&ring, 1);
    let signed = ring.signed();
    let thief = stranger(&Secret::new([99; 32])).await;

    let connection = connect(&thief, &ring.agents[1], STAGE_ALPN).await;
    let (answer, ..) = say(&connection, &hello(&signed, 1)).await;
    assert!(why(answer).contains("is not stage.p[0]"));

    for (change, expected) in [
        (
            Box::new(|hello: &mut Hello| hello.lineage = Lineage([8; 16]))
                as Box<dyn Fn(&mut Hello)>,
            "another topology",
        ),
        (
            Box::new(|hello| hello.protocol = "stageline/9".into()),
            "speaks",
        ),
        (
            Box::new(|hello| hello.pipeline = name("q")),
            "another pipeline's",
        ),
        (
            Box::new(|hello| hello.edge = EdgeKind::Prompts),
            "another protocol",
        ),
        (Box::new(|hello| hello.stage = 1), "no such edge"),
    ] {
        let connection = connect(&thief, &ring.agents[1], STAGE_ALPN).await;
        let mut hello = hello(&signed, 1);
        change(&mut hello);
        let (answer, ..) = say(&connection, &hello).await;
        let why = why(answer);
        assert!(why.contains(expected), "{why}");
    }

    let mut forged = ring.roster.clone();
    forged.operator = Secret::new([99; 32]).operator();
    forged.revision = JournalNumber(50);
    forged.stages[0].endpoint = Secret::new([99; 32]).endpoint();
    let forged = forged.sign(&Secret::new([99; 32])).expect("its own");
    let connection = connect(&thief, &ring.agents[1], STAGE_ALPN).await;
    let (answer, ..) = say(&connection, &hello(&forged, 1)).await;
    assert!(why(answer).contains("signature"));
    thief.close().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_roster_is_answered_with_the_newer_one() {
    let mut ring = Ring::new(2).await;
    known_to(&ring, 0);
    let old = ring.signed();
    ring.roster.revision = JournalNumber(4);
    ring.roster.limits.max_in_flight = 3;
    known_to(&ring, 1);
    eventually("both have the newer one", async || {
        let roster = ring.agents[0].fabric.roster(&name("p"));
        roster.is_some_and(|(_, roster)| roster.revision == JournalNumber(4))
    })
    .await;
    ring.edges_up().await;
    assert!(ring.agents[0].fabric.set_roster(old.clone()).is_err());

    let before = Secret::new([1; 32]);
    let raw = stranger(&before).await;
    let connection = connect(&raw, &ring.agents[1], STAGE_ALPN).await;
    let (answer, ..) = say(&connection, &hello(&old, 1)).await;
    let newer = ring.signed();
    assert_eq!(answer, Answer::Stale { roster: newer });
    raw.close().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_after_the_hello_costs_the_edge_and_nothing_else() {
    let (ring, raw) = owned_by_another().await;
    ring.attach_stub(1, &[]);
    let signed = ring.signed();
    for (garbage, expected) in [
        (vec![0xff; 64], "was announced"),
        (b"\0\0\0\x28GET / HTTP/1.1\r\n\r\n".to_vec(), "kind"),
        (vec![0; 4096], "0 bytes was announced"),
    ] {
        let connection = connect(&raw, &ring.agents[1], STAGE_ALPN).await;
        let (answer, mut send, _recv) = say(&connection, &hello(&signed, 7)).await;
        assert!(matches!(answer, Answer::Welcome { .. }), "{answer:?}");
        send.write_all(&garbage).await.expect("open");
        let reason = close_reason(&connection).await;
        assert!(reason.contains(expected), "{reason}");
    }
    // A hello that is too large, or none at all.
    let connection = connect(&raw, &ring.agents[1], STAGE_ALPN).await;
    let (mut send, _recv) = connection.open_bi().await.expect("open");
    send.write_all(&[0, 0, 0x40, 1]).await.expect("open");
    let reason = close_reason(&connection).await;
    assert!(reason.contains("at most 16384"), "{reason}");
    let status = ring.fabric(1).status(&stage_id(1)).expect("still here");
    assert_eq!((status.worker, status.in_flight), (true, 0));
    raw.close().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_connections_wait_for_their_hello() {
    let ring = Ring::new(1).await;
    ring.set_rosters();
    let raw = stranger(&Secret::new([60; 32])).await;
    let mut waiting = Vec::new();
    for _ in 0..17 {
        waiting.push(connect(&raw, &ring.agents[0], STAGE_ALPN).await);
    }
    let closed = async || {
        waiting
            .iter()
            .filter_map(|connection| connection.close_reason())
            .any(|reason| reason.to_string().contains("too many connections"))
    };
    eventually("one too many is turned away", closed).await;
    raw.close().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_machines_with_one_key_are_noticed() {
    let (ring, raw) = owned_by_another().await;
    let signed = ring.signed();
    for epoch in 1..=4 {
        let connection = connect(&raw, &ring.agents[1], STAGE_ALPN).await;
        let (answer, ..) = say(&connection, &hello(&signed, epoch)).await;
        assert!(
            matches!(answer, Answer::Welcome { .. }),
            "{epoch}: {answer:?}"
        );
    }
    let connection = connect(&raw, &ring.agents[1], STAGE_ALPN).await;
    let (answer, ..) = say(&connection, &hello(&signed, 5)).await;
    let why = why(answer);
    assert!(why.contains("two machines hold the key"), "{why}");
    raw.close().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_are_taken_from_those_the_roster_names() {
    let mut ring = Ring::new(2).await;
    let gateway = Agent::start(&Secret::new([70; 32]), Timing::default()).await;
    ring.roster.prompters.insert(gateway.key);
    ring.set_rosters();
    let log = Log::default();
    ring.attach_stub(0, &[]);
    let last = Spy::attach(&ring, 1, &log, 6);
    let entry = ring.roster.stages[0].clone();

    let by_operator = stranger(&operator()).await;
    let here = ask(&*ring.infer(), "one", 3).await.expect("an answer");
    let there = ask(&way(&ring, &by_operator), "one", 3)
        .await
        .expect("an answer");
    assert_eq!(here, there);
    last.let_through();
    let by_gateway = gateway
        .fabric
        .infer_at(&name("p"), entry.endpoint, &entry.contact);
    assert_eq!(ask(&*by_gateway, "one", 3).await.expect("an answer"), here);

    let thief = stranger(&Secret::new([99; 32])).await;
    let error = ask(&way(&ring, &thief), "one", 3)
        .await
        .expect_err("a stranger");
    assert_eq!(error.code, InferCode::Forbidden);
    let error = ask(&*ring.fabric(1).infer(&name("p")), "one", 3).await;
    assert_eq!(error.expect_err("not named").code, InferCode::Forbidden);

    // A refusal of the request itself comes with its own code.
    let error = ask(&*by_gateway, "one", 0).await.expect_err("no tokens");
    assert_eq!(error.code, InferCode::BadRequest);

    thief.close().await;
    by_operator.close().await;
    gateway.stop().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_caller_that_goes_away_cancels_everywhere() {
    let ring = Ring::new(2).await;
    ring.set_rosters();
    let log = Log::default();
    let first = Spy::attach(&ring, 0, &log, 100);
    let last = Spy::attach(&ring, 1, &log, 1);
    let endpoint = stranger(&operator()).await;
    let infer = way(&ring, &endpoint);
    let mut events = soon(infer.infer(prompt("one", 40)))
        .await
        .expect("admitted");
    soon(events.next()).await.expect("goes on").expect("well");
    eventually("the last stage computes again", async || {
        last.count(1, "forward") == 2
    })
    .await;
    drop(events);
    ring.nothing_in_flight().await;
    eventually("the first worker was told", async || {
        first.count(0, "end") == 1
    })
    .await;

    // The whole process of a caller goes away.
    let events = soon(infer.infer(prompt("two", 40)))
        .await
        .expect("admitted");
    eventually("it is in flight", async || ring.fabric(0).is_busy()).await;
    endpoint.close().await;
    let error = whole(events).await.expect_err("its endpoint is closed");
    assert_eq!(error.code, InferCode::StageDown);
    ring.nothing_in_flight().await;
    ring.stop().await;
}
