//! What goes wrong in a ring, and what callers see of it.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stages_are_busy_at_once() {
    let ring = Ring::new(2).await;
    ring.set_rosters();
    let log = Log::default();
    let first = Spy::attach(&ring, 0, &log, 2);
    let second = Spy::attach(&ring, 1, &log, 0);
    let infer = ring.infer();
    let one = infer.infer(prompt("one", 4)).await.expect("admitted");
    eventually("stage 1 computes for the first", async || {
        second.count(1, "forward") == 1
    })
    .await;
    let two = infer.infer(prompt("two", 4)).await.expect("admitted");
    // Stage 1 holds the first request; stage 0 begins the second all the same.
    eventually("stage 0 computes for the second", async || {
        first.count(0, "start") == 2
    })
    .await;
    assert_eq!(second.count(1, "forward"), 1);
    first.let_through();
    second.let_through();
    let (one, two) = tokio::join!(whole(one), whole(two));
    assert_eq!(one.expect("an answer").2.1, 4);
    assert_eq!(two.expect("an answer").2.1, 4);
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_answer_frees_every_stage() {
    let ring = Ring::new(3).await;
    ring.set_rosters();
    let log = Log::default();
    let spies: Vec<Spy> = (0..3)
        .map(|stage| Spy::attach(&ring, stage, &log, if stage == 2 { 2 } else { 100 }))
        .collect();
    let mut events = ring
        .infer()
        .infer(prompt("one two", 50))
        .await
        .expect("admitted");
    for _ in 0..2 {
        soon(events.next()).await.expect("goes on").expect("well");
    }
    eventually("the last stage computes", async || {
        spies[2].count(2, "forward") == 3
    })
    .await;
    drop(events);
    ring.nothing_in_flight().await;
    eventually("each worker was told the end", async || {
        (0..2).all(|stage| spies[0].count(stage, "end") == 1)
    })
    .await;
    spies[2].let_through();
    eventually("the last worker too", async || {
        spies[2].count(2, "end") == 1
    })
    .await;
    let answer = ask(&*ring.infer(), "again", 5)
        .await
        .expect("the ring goes on");
    assert_eq!(answer.2.1, 5);
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_worker_fails_its_requests_with_its_last_words_and_a_new_one_serves() {
    let ring = Ring::new(2).await;
    ring.set_rosters();
    let log = Log::default();
    ring.attach_stub(0, &[]);
    let mut doomed = Spy::attach(&ring, 1, &log, 0);
    let events = ring
        .infer()
        .infer(prompt("one", 4))
        .await
        .expect("admitted");
    eventually("it computes", async || doomed.count(1, "forward") == 1).await;
    doomed.kill("exit status 139: segmentation fault");
    let error = whole(events).await.expect_err("its worker died");
    assert_eq!(error.code, InferCode::StageDown);
    assert_eq!(
        error.message,
        "stage.p[1]: its worker ended: exit status 139: segmentation fault"
    );
    // A request that comes while the worker is started again waits for it.
    let infer = ring.infer();
    let early = tokio::spawn(async move { ask(&*infer, "two", 4).await });
    eventually("it is in flight", async || ring.fabric(0).is_busy()).await;
    ring.attach_stub(1, &[]);
    assert_eq!(
        soon(early).await.expect("no panic").expect("an answer").2.1,
        4
    );
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_agent_fails_its_requests_and_its_successor_serves() {
    let mut ring = Ring::new(2).await;
    ring.set_rosters();
    let log = Log::default();
    ring.attach_stub(0, &[]);
    let stuck = Spy::attach(&ring, 1, &log, 0);
    let events = ring
        .infer()
        .infer(prompt("one", 4))
        .await
        .expect("admitted");
    eventually("it computes", async || stuck.count(1, "forward") == 1).await;
    ring.agents.pop().expect("the second").stop().await;
    let error = whole(events).await.expect_err("its agent is gone");
    assert_eq!(error.code, InferCode::StageDown);
    assert!(error.message.contains("stage.p[1]"), "{error}");
    // Its successor has another key; the survivor is told.
    let successor = Agent::start(&Secret::new([77; 32]), Timing::default()).await;
    ring.roster.stages[1] = successor.roster_stage();
    ring.roster.revision = JournalNumber(2);
    ring.agents.push(successor);
    ring.set_rosters();
    ring.attach_stub(1, &[]);
    let answer = ask(&*ring.infer(), "two", 4).await.expect("an answer");
    assert_eq!(answer.2.1, 4);
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_back_under_its_key_is_found_again() {
    let mut ring = Ring::new(2).await;
    ring.set_rosters();
    ring.attach_stubs(&[]);
    ask(&*ring.infer(), "one", 2).await.expect("an answer");
    ring.agents.remove(0).stop().await;
    let again = Agent::start(&Secret::new([1; 32]), Timing::default()).await;
    ring.roster.stages[0] = again.roster_stage();
    ring.roster.revision = JournalNumber(2);
    // The other one is not told: it hears it from the one that came back.
    again.fabric.set_roster(ring.signed()).expect("newer");
    ring.agents.insert(0, again);
    ring.attach_stub(0, &[]);
    let answer = ask(&*ring.infer(), "two", 2).await.expect("an answer");
    assert_eq!(answer.2.1, 2);
    let (_, there) = ring.fabric(1).roster(&name("p")).expect("known");
    assert_eq!(there.revision, JournalNumber(2));
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_request_on_every_stage() {
    let ring = Ring::new(3).await;
    ring.set_rosters();
    let log = Log::default();
    ring.attach_stub(0, &[]);
    ring.attach_stub(1, &[]);
    let _stuck = Spy::attach(&ring, 2, &log, 0);
    ring.edges_up().await;
    let mut request = prompt("one", 4);
    request.deadline_ms = Some(300);
    let events = ring.infer().infer(request).await.expect("admitted");
    let error = whole(events).await.expect_err("no time left");
    assert_eq!(error.code, InferCode::DeadlineExceeded);
    assert_eq!(
        error.message,
        "stage.p[2]: no time left; its worker was still computing"
    );
    ring.nothing_in_flight().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_before_anything_is_there_fails_with_what_is_missing() {
    let timing = Timing {
        early_wait: Duration::from_millis(200),
        ..Timing::default()
    };
    let ring = Ring::over(vec![0, 1], timing).await;
    let error = ask(&*ring.infer(), "one", 1).await.expect_err("no roster");
    assert_eq!(error.message, "pipeline.p: no roster of it is here");
    // Only the first agent knows the pipeline; the second has no worker. Its edge comes up by the roster in the hello.
    ring.fabric(0).set_roster(ring.signed()).expect("newer");
    ring.attach_stub(0, &[]);
    ring.edges_up().await;
    let error = ask(&*ring.infer(), "one", 1).await.expect_err("no worker");
    assert_eq!(error.code, InferCode::StageDown);
    assert_eq!(
        error.message,
        "stage.p[1]: its worker is not running: none was started"
    );
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_prompt_does_not_hold_up_a_short_answer() {
    let ring = Ring::new(3).await;
    ring.set_rosters();
    ring.attach_stubs(&["--hidden-size=1024"]);
    let infer = ring.infer();
    let huge = infer
        .infer(prompt(&"w ".repeat(6000), 1))
        .await
        .expect("admitted");
    let mut huge = tokio::spawn(whole(huge));
    let small = ask(&*infer, "small", 6).await.expect("an answer");
    assert_eq!(small.2.1, 6);
    assert!(
        futures::poll!(&mut huge).is_pending(),
        "24 MiB of hidden states over two hops come after six short steps"
    );
    let answer = soon(huge).await.expect("no panic").expect("an answer");
    assert_eq!(answer.2, (6000, 1));
    ring.nothing_in_flight().await;
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_waits_for_what_is_in_flight() {
    let ring = Ring::new(2).await;
    ring.set_rosters();
    let log = Log::default();
    ring.attach_stub(0, &[]);
    let slow = Spy::attach(&ring, 1, &log, 0);
    let infer = ring.infer();
    let events = infer.infer(prompt("one", 3)).await.expect("admitted");
    eventually("it computes", async || slow.count(1, "forward") == 1).await;
    assert!(
        !ring
            .fabric(0)
            .drain(Drain::All, Duration::from_millis(20))
            .await
    );
    let error = ask(&*infer, "two", 3).await.expect_err("draining");
    assert_eq!(error.code, InferCode::Draining);
    slow.let_through();
    let (drained, answer) = tokio::join!(ring.fabric(0).drain(Drain::All, PATIENCE), whole(events));
    assert!(drained);
    assert_eq!(answer.expect("it was let end").2.1, 3);
    ring.fabric(0).undrain();
    ask(&*infer, "three", 3).await.expect("an answer");
    ring.stop().await;
}
