//! What is bounded: time, requests at once, and what makes sense to ask.

use super::*;

#[test]
fn a_deadline_frees_the_worker_and_says_what_was_waited_for() {
    let mut core = ready(0, 2);
    let mut request = prompt("a", 8);
    request.deadline_ms = Some(500);
    let (_, mut answers) = core.submit(SECOND, request, 0).expect("free");
    let (_, mut other) = submit(&mut core, "b");
    core.take_out();
    core.tick(SECOND + Duration::from_millis(499));
    assert_eq!(told(&mut answers), []);
    core.tick(SECOND + Duration::from_millis(500));
    let error = error_of(&mut answers);
    assert_eq!(error.code, InferCode::DeadlineExceeded);
    assert!(
        error.message.contains("its worker was still computing"),
        "{error}"
    );
    let out = core.take_out();
    assert!(
        out.contains(&Out::Worker(ToWorker::End {
            id: RequestNumber(1)
        })),
        "{out:?}"
    );
    // The roster's limit is the latest for all.
    core.tick(SECOND * 62);
    assert_eq!(error_of(&mut other).code, InferCode::DeadlineExceeded);
}

#[test]
fn a_stage_that_waits_lets_the_one_that_is_stuck_speak_first() {
    let mut core = ready(0, 2);
    let mut request = prompt("a", 8);
    request.deadline_ms = Some(500);
    let (_, mut answers) = core.submit(SECOND, request, 0).expect("free");
    say(&mut core, hidden(1, 0, 1, false));
    core.tick(SECOND + Duration::from_millis(700));
    assert!(matches!(
        told(&mut answers)[..],
        [Ok(Event::Started { .. })]
    ));
    core.tick(SECOND + Duration::from_millis(800));
    let error = error_of(&mut answers);
    assert_eq!(error.code, InferCode::DeadlineExceeded);
    assert!(error.message.contains("waiting for stage.p[1]"), "{error}");
}

#[test]
fn a_worker_that_is_silent_over_its_work_is_given_up() {
    let timing = Timing {
        hung_after: SECOND * 3,
        ..Timing::default()
    };
    let place = ready(0, 1).place().clone();
    let mut core = Core::new(place, limits(), timing);
    core.attach(SECOND, HIDDEN_SIZE, 8192);
    let tick = |core: &mut Core, second: u32| core.tick(SECOND * second);
    let (tag, _answers) = submit(&mut core, "a");
    assert_eq!(tick(&mut core, 2), None);
    assert_eq!(tick(&mut core, 3), None);
    core.cancel(SECOND * 3, tag);
    for second in 4..20 {
        assert_eq!(tick(&mut core, second), None, "it has no work");
    }
    let (_, _answers) = core.submit(SECOND * 20, prompt("a", 8), 0).expect("free");
    let why = tick(&mut core, 21).expect("three seconds of silence over two requests");
    assert!(why.contains("3 s"), "{why}");
    let loading = FromWorker::Loading {
        done: 0.5,
        what: "still here".into(),
    };
    core.on_worker(SECOND * 21, loading);
    assert_eq!(tick(&mut core, 22), None, "it said something");
}

#[test]
fn limits_are_answered_with_busy() {
    let mut core = ready(0, 2);
    let _answers: Vec<_> = (0..4).map(|_| submit(&mut core, "a")).collect();
    let error = core.submit(SECOND, prompt("a", 8), 0).expect_err("full");
    assert_eq!(error.code, InferCode::Busy);
    assert!(error.message.contains("4 requests in flight"), "{error}");

    let mut core = ready(1, 2);
    for id in 1..=8 {
        let out = give(&mut core, Side::Prev, begin(Tag { epoch: 1, id }));
        assert_eq!(errors(&out), []);
    }
    let out = give(&mut core, Side::Prev, begin(Tag { epoch: 1, id: 9 }));
    assert_eq!(errors(&out)[0].1.code, InferCode::Busy);

    let mut core = ready(0, 2);
    core.set_limits(Limits {
        kv_tokens: Some(20),
        ..limits()
    });
    let (_, mut first) = submit(&mut core, "a");
    let (_, mut second) = submit(&mut core, "b");
    say(&mut core, hidden(1, 0, 5, false));
    say(&mut core, hidden(2, 0, 5, false));
    assert!(matches!(told(&mut first)[..], [Ok(Event::Started { .. })]));
    let error = error_of(&mut second);
    assert_eq!(error.code, InferCode::Busy);
    assert!(error.message.contains("13 positions; 20"), "{error}");

    let mut core = ready(0, 2);
    core.set_limits(Limits {
        queue_bytes: Size(1000),
        ..limits()
    });
    let (_, mut answers) = submit(&mut core, "a");
    say(&mut core, hidden(1, 0, 5, true));
    assert_eq!(error_of(&mut answers).code, InferCode::Busy);
}

#[test]
fn draining_lets_requests_end_and_takes_no_new_ones() {
    let mut core = ready(0, 2);
    let (_, mut answers) = submit(&mut core, "a");
    core.set_draining(Some(Drain::Admission));
    let error = core
        .submit(SECOND, prompt("b", 8), 0)
        .expect_err("draining");
    assert_eq!(error.code, InferCode::Draining);
    assert_eq!(told(&mut answers), []);

    // What the first stage admitted before goes on through the others.
    let mut core = ready(1, 2);
    core.set_draining(Some(Drain::Admission));
    let out = give(&mut core, Side::Prev, begin(TAG));
    assert_eq!((errors(&out).len(), core.in_flight()), (0, 1));

    let mut core = ready(1, 2);
    core.set_draining(Some(Drain::All));
    let out = give(&mut core, Side::Prev, begin(TAG));
    assert_eq!(errors(&out)[0].1.code, InferCode::Draining);
    assert_eq!(core.in_flight(), 0);
}

#[test]
fn requests_that_make_no_sense_are_refused_at_once() {
    let mut core = ready(0, 1);
    let mut refuse = |request: InferRequest, why: &str| {
        let error = core.submit(SECOND, request, 0).expect_err(why);
        assert_eq!(error.code, InferCode::BadRequest);
        assert!(error.message.contains(why), "{error}");
    };
    refuse(prompt("a", 0), "max_tokens is 0");
    refuse(prompt(&"a".repeat(1 << 20), 1), "at most 983040");
    let mut empty = prompt("a", 1);
    empty.input = Input::Messages(vec![]);
    refuse(empty, "no message");
    let mut hot = prompt("a", 1);
    hot.sampling.temperature = f64::NAN;
    refuse(hot, "temperature");
}
