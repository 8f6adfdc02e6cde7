//! Each rule by itself.

use super::*;

mod limits;

const TAG: Tag = Tag { epoch: 5, id: 1 };

fn begin(tag: Tag) -> Frame {
    Frame::Begin {
        tag,
        remaining_ms: 10_000,
        sampling: Sampling::default(),
    }
}

/// A whole part in one fragment.
fn part(tag: Tag, position: u32, len: u32, more: bool) -> Frame {
    let activation = activation(position, len, more);
    Frame::Fragment {
        tag,
        remaining_ms: 10_000,
        span: Span {
            position,
            len,
            dtype: Dtype::F32,
        },
        more,
        total: u32::try_from(activation.payload.len()).expect("small"),
        offset: 0,
        payload: activation.payload.into(),
    }
}

fn step(tag: Tag, position: u32) -> Frame {
    Frame::Step {
        tag,
        remaining_ms: 10_000,
        span: Span {
            position,
            len: 1,
            dtype: Dtype::F32,
        },
        payload: Bytes::from(vec![1; HIDDEN_SIZE as usize * 4]),
    }
}

fn give(core: &mut Core, side: Side, frame: Frame) -> Vec<Out> {
    core.on_frame(SECOND, side, frame).expect("as it should be");
    core.take_out()
}

fn say(core: &mut Core, message: FromWorker) -> Vec<Out> {
    core.on_worker(SECOND, message);
    core.take_out()
}

fn submit(core: &mut Core, text: &str) -> (Tag, Answers) {
    core.submit(SECOND, prompt(text, 8), 0).expect("free")
}

fn forwards(out: &[Out]) -> usize {
    let is_forward = |out: &&Out| matches!(out, Out::Worker(ToWorker::Forward { .. }));
    out.iter().filter(is_forward).count()
}

fn errors(out: &[Out]) -> Vec<(Side, InferError)> {
    out.iter()
        .filter_map(|out| match out {
            Out::Express(side, Frame::Error { error, .. }) => Some((*side, error.clone())),
            Out::Worker(_) | Out::Express(..) | Out::Chunk { .. } | Out::Forget(_) => None,
        })
        .collect()
}

#[test]
fn one_prompt_and_one_step_are_with_the_worker_and_requests_take_turns() {
    let mut core = ready(0, 1);
    let first_token = |core: &mut Core, id: u64| {
        let mut first = sampled(id, u32::try_from(id).expect("small"));
        first.prompt_tokens = Some(1);
        say(core, FromWorker::Token(first))
    };
    let start = |id: u64| move |out: &Out| matches!(out, Out::Worker(ToWorker::Start { id: RequestNumber(n), .. }) if *n == id);
    let token = |id: u64, position: u32| {
        Out::Worker(ToWorker::Token {
            id: RequestNumber(id),
            token: u32::try_from(id).expect("small"),
            position,
        })
    };
    let (_, _a) = submit(&mut core, "a");
    let (_, _b) = submit(&mut core, "b");
    let (_, _c) = submit(&mut core, "c");
    let out = core.take_out();
    assert!(out.len() == 1 && start(1)(&out[0]), "{out:?}");
    // The second prompt and the first one's next step; the third prompt waits for the second.
    let out = first_token(&mut core, 1);
    assert!(
        out.len() == 2 && start(2)(&out[0]) && out[1] == token(1, 1),
        "{out:?}"
    );
    let out = first_token(&mut core, 2);
    assert!(out.len() == 1 && start(3)(&out[0]), "{out:?}");
    let out = say(&mut core, FromWorker::Token(sampled(1, 1)));
    assert_eq!(out, [token(2, 1)], "the second's step came first");
}

#[test]
fn callers_that_go_away_at_once_do_not_bury_the_worker() {
    let mut core = ready(0, 1);
    let mut starts = 0;
    let started = |out: &&Out| matches!(out, Out::Worker(ToWorker::Start { .. }));
    for _ in 0..10 {
        let (tag, answers) = submit(&mut core, "a");
        drop(answers);
        core.cancel(SECOND, tag);
        starts += core.take_out().iter().filter(started).count();
    }
    assert_eq!(starts, 5);
    // Whether the worker answers such messages is not known: a little later it gets the next one.
    let (_, _answers) = submit(&mut core, "a");
    core.tick(SECOND + Duration::from_millis(249));
    assert_eq!(core.take_out(), []);
    core.tick(SECOND + Duration::from_millis(250));
    assert_eq!(core.take_out().iter().filter(started).count(), 1);
}

#[test]
fn two_parts_are_under_way_and_the_third_waits_for_an_acknowledgement() {
    let mut core = ready(1, 3);
    give(&mut core, Side::Prev, begin(TAG));
    assert_eq!(
        forwards(&give(&mut core, Side::Prev, part(TAG, 0, 2, true))),
        1
    );
    let out = say(&mut core, hidden(1, 0, 2, false));
    assert!(
        matches!(out[0], Out::Express(Side::Prev, Frame::Ack { .. })),
        "{out:?}"
    );
    let Out::Chunk {
        begin, activation, ..
    } = &out[1]
    else {
        panic!("the part goes on: {out:?}");
    };
    assert!(
        begin.is_some() && activation.more,
        "what the stage before said counts"
    );
    give(&mut core, Side::Prev, part(TAG, 2, 2, true));
    say(&mut core, hidden(1, 2, 2, true));
    // The next stage has acknowledged neither: the worker gets nothing more of this request.
    assert_eq!(
        forwards(&give(&mut core, Side::Prev, part(TAG, 4, 2, true))),
        0
    );
    assert_eq!(
        forwards(&give(&mut core, Side::Prev, part(TAG, 6, 2, false))),
        0
    );
    let error = core
        .on_frame(SECOND, Side::Prev, part(TAG, 8, 2, false))
        .expect_err("a third part without an acknowledgement");
    assert!(error.contains("ahead of its turn"), "{error}");
    let out = give(&mut core, Side::Next, Frame::Ack { tag: TAG });
    assert_eq!(forwards(&out), 1, "{out:?}");
}

#[test]
fn an_end_that_overtakes_the_begin_is_remembered() {
    let mut core = ready(1, 2);
    give(&mut core, Side::Prev, Frame::End { tag: TAG });
    give(&mut core, Side::Prev, begin(TAG));
    assert_eq!(core.in_flight(), 0);
    assert_eq!(give(&mut core, Side::Prev, part(TAG, 0, 1, false)), []);
    let other = Tag { epoch: 5, id: 2 };
    give(&mut core, Side::Prev, begin(other));
    assert_eq!(core.in_flight(), 1);
    give(&mut core, Side::Prev, Frame::End { tag: other });
    give(&mut core, Side::Prev, Frame::End { tag: other });
    assert_eq!(core.in_flight(), 0);
}

#[test]
fn what_breaks_the_protocol_costs_the_edge() {
    let cases: Vec<(&str, Vec<Frame>, Side, Frame)> = vec![
        ("begins twice", vec![begin(TAG)], Side::Prev, begin(TAG)),
        ("does not belong", vec![], Side::Next, begin(TAG)),
        (
            "does not belong",
            vec![],
            Side::Prev,
            Frame::Ack { tag: TAG },
        ),
        (
            "does not belong",
            vec![],
            Side::TokensOut,
            Frame::End { tag: TAG },
        ),
        (
            "impossible step",
            vec![begin(TAG)],
            Side::Prev,
            step(TAG, 0),
        ),
        (
            "impossible step",
            vec![begin(TAG), part(TAG, 0, 1, false)],
            Side::Prev,
            step(TAG, 2),
        ),
        (
            "impossible part",
            vec![begin(TAG)],
            Side::Prev,
            part(TAG, 1, 1, false),
        ),
        (
            "impossible part",
            vec![begin(TAG), part(TAG, 0, 1, false)],
            Side::Prev,
            part(TAG, 1, 1, false),
        ),
        (
            "acknowledges what was not sent",
            vec![begin(TAG)],
            Side::Next,
            Frame::Ack { tag: TAG },
        ),
    ];
    for (why, before, side, frame) in cases {
        let mut core = ready(1, 3);
        for frame in before {
            give(&mut core, Side::Prev, frame);
        }
        let error = core.on_frame(SECOND, side, frame.clone());
        let error = error.expect_err(&format!("{frame:?} on {side:?}"));
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn fragments_must_fit_together() {
    let piece = |total: u32, offset: u32, bytes: usize, len: u32| Frame::Fragment {
        tag: TAG,
        remaining_ms: 1,
        span: Span {
            position: 0,
            len,
            dtype: Dtype::F32,
        },
        more: false,
        total,
        offset,
        payload: Bytes::from(vec![0; bytes]),
    };
    let whole = HIDDEN_SIZE * 4;
    for (why, frames) in [
        ("middle of a part", vec![piece(whole, 8, 8, 1)]),
        ("announces", vec![piece(whole + 4, 0, 8, 1)]),
        ("announces", vec![piece(whole, 0, 8, 2)]),
        (
            "do not fit",
            vec![piece(whole, 0, 8, 1), piece(whole, 12, 8, 1)],
        ),
        (
            "do not fit",
            vec![piece(whole, 0, 8, 1), piece(whole, 8, whole as usize, 1)],
        ),
        (
            "ahead of its turn",
            vec![piece(whole, 0, 8, 1), piece(whole, 0, 8, 1)],
        ),
    ] {
        let mut core = ready(1, 2);
        give(&mut core, Side::Prev, begin(TAG));
        let result = frames
            .into_iter()
            .try_for_each(|frame| core.on_frame(SECOND, Side::Prev, frame));
        let error = result.expect_err(why);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_worker_that_breaks_the_protocol_fails_its_request_only() {
    let token = || FromWorker::Token(sampled(1, 1));
    let cases: Vec<(u32, FromWorker, &str)> = vec![
        (0, token(), "no token is due"),
        (
            0,
            FromWorker::Continue {
                id: RequestNumber(1),
            },
            "`continue`",
        ),
        (0, hidden(1, 3, 1, false), "position 0"),
        (
            0,
            FromWorker::Hidden {
                id: RequestNumber(1),
                activation: Activation {
                    payload: vec![0; 3],
                    ..activation(0, 1, false)
                },
                prompt_tokens: None,
            },
            "3 bytes",
        ),
        (
            0,
            FromWorker::Hidden {
                id: RequestNumber(1),
                activation: Activation {
                    dtype: Dtype::Bf16,
                    payload: vec![0; HIDDEN_SIZE as usize * 2],
                    ..activation(0, 1, false)
                },
                prompt_tokens: None,
            },
            "f32",
        ),
    ];
    for (stage, message, why) in cases {
        let mut core = ready(stage, 2);
        let (_, mut answers) = submit(&mut core, "a");
        let (_, mut other) = submit(&mut core, "b");
        core.take_out();
        let out = say(&mut core, message);
        let error = error_of(&mut answers);
        assert_eq!(error.code, InferCode::Internal);
        let why = if why == "no token is due" {
            "none is due"
        } else {
            why
        };
        assert!(error.message.contains(why), "{error}");
        let next = |out: &Out| {
            matches!(
                out,
                Out::Worker(ToWorker::Start {
                    id: RequestNumber(2),
                    ..
                })
            )
        };
        assert!(out.iter().any(next), "{out:?}");
        assert_eq!(told(&mut other), []);
    }
    // An answer that nothing was asked for.
    let mut core = ready(0, 2);
    let (_, mut answers) = submit(&mut core, "a");
    say(&mut core, hidden(1, 0, 1, false));
    say(&mut core, hidden(1, 1, 1, false));
    assert!(error_of(&mut answers).message.contains("nothing was asked"));
    // Answers about strangers are nobody's.
    say(&mut core, hidden(99, 0, 1, false));
}

#[test]
fn a_lost_edge_fails_what_went_over_it_and_names_the_stage() {
    let mut core = ready(0, 3);
    let (_, mut answers) = submit(&mut core, "a");
    let (_, mut waiting) = submit(&mut core, "b");
    core.edge_down(SECOND, Side::Next, "timed out");
    let error = error_of(&mut answers);
    assert_eq!(error.code, InferCode::StageDown);
    assert_eq!(
        error.message,
        "stage.p[1]: its edge with stage.p[0] is down: timed out"
    );
    assert_eq!(told(&mut waiting), [], "it was not begun, so it waits");
    core.take_out();
    core.edge_up(SECOND, Side::Next);
    let out = core.take_out();
    assert_eq!(out.len(), 1, "and goes on: {out:?}");
    core.edge_down(SECOND, Side::TokensIn, "gone");
    let error = error_of(&mut waiting);
    assert!(error.message.starts_with("stage.p[2]: its edge"), "{error}");
}

#[test]
fn a_stage_in_the_middle_frees_and_passes_on_what_its_neighbours_lose() {
    let begun = || {
        let mut core = ready(1, 3);
        give(&mut core, Side::Prev, begin(TAG));
        give(&mut core, Side::Prev, part(TAG, 0, 1, false));
        say(&mut core, hidden(1, 0, 1, false));
        core
    };
    let end = |out: &[Out]| {
        let worker = |out: &Out| matches!(out, Out::Worker(ToWorker::End { .. }));
        let next = |out: &Out| matches!(out, Out::Express(Side::Next, Frame::End { .. }));
        (out.iter().any(worker), out.iter().any(next))
    };
    let mut core = begun();
    core.edge_down(SECOND, Side::Prev, "gone");
    assert_eq!(end(&core.take_out()), (true, true));
    assert_eq!(core.in_flight(), 0);

    let mut core = begun();
    core.edge_down(SECOND, Side::Next, "gone");
    let out = core.take_out();
    assert_eq!(end(&out), (true, false));
    let (side, error) = errors(&out).remove(0);
    assert_eq!((side, error.code), (Side::Prev, InferCode::StageDown));
    assert!(error.message.starts_with("stage.p[2]"), "{error}");

    let mut core = begun();
    let sent = failure(InferCode::Busy, "stage.p[2]: busy");
    let frame = Frame::Error {
        tag: TAG,
        error: sent.clone(),
    };
    let out = give(&mut core, Side::Next, frame);
    assert_eq!(errors(&out), [(Side::Prev, sent)]);
    assert!(end(&out).0);

    let mut core = begun();
    core.worker_gone(SECOND, "exit status 1");
    let out = core.take_out();
    assert_eq!(end(&out), (false, true), "{out:?}");
    let message = &errors(&out)[0].1.message;
    assert_eq!(message, "stage.p[1]: its worker ended: exit status 1");
}

#[test]
fn an_early_request_waits_and_then_fails_with_what_is_missing() {
    let mut core = core(0, 2, limits());
    let (_, mut answers) = submit(&mut core, "a");
    assert_eq!(core.take_out(), []);
    core.tick(SECOND * 10);
    assert_eq!(told(&mut answers), []);
    core.tick(SECOND * 11);
    let error = error_of(&mut answers);
    assert_eq!(
        error.message,
        "stage.p[0]: its worker is not running: none was started"
    );

    let (_, mut answers) = core.submit(SECOND * 20, prompt("a", 8), 0).expect("free");
    core.attach(SECOND * 20, HIDDEN_SIZE, 100);
    core.tick(SECOND * 31);
    let error = error_of(&mut answers);
    assert!(
        error
            .message
            .contains("stage.p[1]: its edge with stage.p[0] is down: it has not come up"),
        "{error}"
    );

    let (_, mut answers) = core.submit(SECOND * 40, prompt("a", 8), 0).expect("free");
    core.edge_up(SECOND * 41, Side::Next);
    assert_eq!(core.take_out(), []);
    core.edge_up(SECOND * 42, Side::TokensIn);
    assert_eq!(core.take_out().len(), 1);
    core.tick(SECOND * 60);
    assert_eq!(told(&mut answers), []);
}
