//! What a request may do, and what happens to one that may not.

use std::process::Command;

use stageline_core::stage_protocol::{
    ErrorCode, Finish, FromWorker, RequestNumber, Sampling, ToWorker,
};
use stageline_worker::gguf::ModelFile;
use stageline_worker::vocabulary::Vocabulary;

use crate::chain::{Chain, PROGRAM, Stage, greedy, hidden, model, text};

const ID: RequestNumber = RequestNumber(1);

#[test]
fn interleaved_requests_do_not_disturb_each_other() {
    let prompts = ["the hand", "in the end, and then", "Hello"];
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| Chain::tiny(2).ask(9, text(prompt), &greedy(12)))
        .collect();
    let mut chain = Chain::tiny(2);
    let mut walks = Vec::new();
    for (id, prompt) in (1..).zip(prompts) {
        let mut walk = chain.begin(id, text(prompt), &greedy(12));
        chain.step(&mut walk);
        walks.push(walk);
    }
    for _ in 1..12 {
        for walk in &mut walks {
            chain.feed(walk);
            chain.step(walk);
        }
    }
    let together: Vec<_> = walks.into_iter().map(|walk| chain.end(walk)).collect();
    assert_eq!(together, alone);
}

#[test]
fn a_cancelled_request_is_gone_and_others_go_on() {
    let mut chain = Chain::tiny(1);
    let mut other = chain.begin(2, text("and"), &greedy(4));
    chain.step(&mut other);
    let mut walk = chain.begin(1, text("the"), &greedy(100));
    chain.step(&mut walk);
    let worker = &mut chain.workers[0];
    worker.send(&ToWorker::End { id: ID });
    worker.send(&ToWorker::End { id: ID });
    worker.send(&ToWorker::Token {
        id: ID,
        token: 1,
        position: 1,
    });
    let (id, code, message) = worker.error();
    assert_eq!((id, code), (Some(ID), ErrorCode::UnknownRequest));
    assert_eq!(
        message,
        "request 1 is unknown here: it has ended, or this worker is younger than it"
    );
    while chain.step_if_open(&mut other) {}
    assert_eq!(
        chain.end(other).tokens,
        Chain::tiny(1).ask(1, text("and"), &greedy(4)).tokens
    );
}

#[test]
fn a_prompt_can_be_cancelled_before_it_is_computed() {
    let mut chain = Chain::tiny(1);
    let long = text(&"the sand in the hand ".repeat(20));
    let worker = &mut chain.workers[0];
    let start = ToWorker::Start {
        id: ID,
        prompt: long,
        sampling: greedy(4),
    };
    let both = [start, ToWorker::End { id: ID }];
    let bytes: Vec<u8> = both
        .iter()
        .flat_map(stageline_core::stage_protocol::Message::encode)
        .collect();
    worker.send_bytes(&bytes);
    let answer = chain.ask(2, text("the"), &greedy(4));
    assert_eq!(answer.finish, Finish::Length);
}

#[test]
fn a_prompt_must_fit_into_the_context() {
    let mut worker = Stage {
        context: Some(20),
        ..Stage::of(0, 1)
    }
    .start();
    assert_eq!(worker.ready().context, 20);
    worker.send(&ToWorker::Start {
        id: ID,
        prompt: text(&"x".repeat(20)),
        sampling: greedy(4),
    });
    let (id, code, message) = worker.error();
    assert_eq!((id, code), (Some(ID), ErrorCode::ContextOverflow));
    assert_eq!(
        message,
        "the prompt has 20 tokens and the context 20, of which the answer needs at least one"
    );

    let mut chain = Chain {
        workers: vec![worker],
    };
    let answer = chain.ask(1, text(&"x".repeat(17)), &greedy(100));
    assert_eq!(
        (answer.tokens.len(), answer.finish),
        (4, Finish::Length),
        "positions 17, 18, 19 and no more"
    );
    assert!(chain.workers.remove(0).close().success());
}

#[test]
fn the_longest_prompt_is_refused_without_harm() {
    let mut worker = Stage::of(0, 1).start();
    worker.ready();
    let prompt = text(&"\u{1}".repeat(1 << 20));
    worker.send(&ToWorker::Start {
        id: ID,
        prompt,
        sampling: greedy(1),
    });
    assert_eq!(worker.error().1, ErrorCode::ContextOverflow);
    worker.send(&ToWorker::Start {
        id: ID,
        prompt: text("x"),
        sampling: greedy(1),
    });
    worker.token();
}

#[test]
fn stop_strings_end_the_answer_and_are_not_shown() {
    let mut chain = Chain::tiny(2);
    let whole = chain.ask(1, text("the"), &greedy(40)).text();
    let at = 9 + whole[9..].find(&whole[12..15]).expect("it is there");
    let stop = whole[12..15].to_owned();
    let first = whole.find(&stop).expect("it is there");
    assert!(first <= at);
    let answer = chain.ask(
        2,
        text("the"),
        &Sampling {
            stop: vec!["never".into(), stop.clone()],
            ..greedy(40)
        },
    );
    assert_eq!(
        (answer.text().as_str(), answer.finish),
        (&whole[..first], Finish::Stop)
    );
    assert!(answer.tokens.len() < 40);
}

#[test]
fn pieces_are_whole_characters() {
    let file = ModelFile::open(model()).expect("the tiny model");
    let vocabulary = Vocabulary::load(&file, false)
        .expect("loads")
        .expect("has one");
    let hot = Sampling {
        temperature: 10.0,
        seed: 3,
        ..greedy(400)
    };
    let answer = Chain::tiny(1).ask(1, text("the"), &hot);
    let bytes: Vec<u8> = answer
        .tokens
        .iter()
        .flat_map(|token| vocabulary.bytes(*token))
        .copied()
        .collect();
    assert!(
        std::str::from_utf8(&bytes).is_err(),
        "or the test shows nothing"
    );
    assert_eq!(answer.text(), String::from_utf8_lossy(&bytes));
    assert!(
        answer.pieces.iter().any(String::is_empty),
        "something was held back"
    );
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let mut worker = Stage::of(0, 1).start();
    worker.ready();
    let mut refused = |message: ToWorker| {
        worker.send(&message);
        let (id, code, message) = worker.error();
        assert_eq!((id, code), (Some(ID), ErrorCode::BadRequest));
        message
    };
    let start = |sampling| ToWorker::Start {
        id: ID,
        prompt: text("x"),
        sampling,
    };
    assert_eq!(
        refused(ToWorker::Start {
            id: ID,
            prompt: text(""),
            sampling: greedy(1)
        }),
        "the prompt is empty"
    );
    assert_eq!(
        refused(start(greedy(0))),
        "max_tokens is 0; ask for at least 1"
    );
    assert_eq!(
        refused(ToWorker::Forward {
            id: ID,
            activation: hidden(0, 1),
            sampling: None
        }),
        "`forward` came to the first stage; it takes `start` and `token`"
    );
    worker.send(&start(greedy(9)));
    worker.token();
    let mut refused_after_start = |token, position| {
        worker.send(&ToWorker::Token {
            id: ID,
            token,
            position,
        });
        let message = worker.error().2;
        worker.send(&start(greedy(9)));
        worker.token();
        message
    };
    assert_eq!(
        refused_after_start(1, 7),
        "position 7 of request 1 came; 1 is next"
    );
    assert_eq!(
        refused_after_start(9999, 1),
        "token 9999 does not exist; the model has 271"
    );
    worker.send(&start(greedy(9)));
    assert_eq!(worker.error().2, "request 1 was begun twice");
    assert!(worker.close().success());
}

#[test]
fn a_later_stage_checks_what_it_is_sent() {
    let mut worker = Stage::of(1, 2).start();
    worker.ready();
    let mut refused = |activation, sampling| {
        worker.send(&ToWorker::Forward {
            id: ID,
            activation,
            sampling,
        });
        let (_, code, message) = worker.error();
        (code, message)
    };
    let (code, _) = refused(hidden(5, 1), Some(greedy(1)));
    assert_eq!(code, ErrorCode::UnknownRequest);
    let (code, message) = refused(hidden(0, 1), None);
    assert_eq!(code, ErrorCode::BadRequest);
    assert_eq!(
        message,
        "the first `forward` to the last stage has no `sampling`"
    );
    let mut short = hidden(0, 2);
    short.payload.pop();
    let (_, message) = refused(short, Some(greedy(1)));
    assert_eq!(
        message,
        "511 bytes of hidden state; 2 positions of 64 f32 numbers are 512 bytes"
    );
    let (code, message) = refused(hidden(0, 513), Some(greedy(1)));
    assert_eq!(code, ErrorCode::ContextOverflow);
    assert_eq!(
        message,
        "positions 0 to 513 do not fit into the context of 512"
    );
    worker.send(&ToWorker::Start {
        id: ID,
        prompt: text("x"),
        sampling: greedy(1),
    });
    assert_eq!(
        worker.error().2,
        "`start` came to stage 1; prompts enter at 0"
    );
    worker.send(&ToWorker::Forward {
        id: ID,
        activation: hidden(0, 3),
        sampling: Some(greedy(1)),
    });
    assert!(
        matches!(worker.next(), Some(FromWorker::Token(_))),
        "and lives on"
    );
}

#[test]
fn garbage_is_answered_and_survived() {
    let mut worker = Stage::of(0, 1).start();
    worker.ready();
    worker.send_bytes(b"hello\n");
    let (id, code, message) = worker.error();
    assert_eq!((id, code), (None, ErrorCode::BadRequest));
    assert!(message.ends_with("`hello`"), "{message}");
    worker.send_bytes(b"{\"id\":4,\"op\":\"dance\",\"bytes\":3}\n\n\n\n");
    assert_eq!(worker.error().0, Some(RequestNumber(4)));
    worker.send(&ToWorker::Start {
        id: ID,
        prompt: text("x"),
        sampling: greedy(1),
    });
    assert_eq!(worker.token().finish, Some(Finish::Length));
    worker.send_bytes(b"{\"id\":4,\"op\":\"forward\",\"bytes\":99999999999}\n");
    match worker.next() {
        Some(FromWorker::Failed { message, .. }) => {
            assert!(message.contains("99999999999 bytes"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(worker.close().code(), Some(1));
}

#[test]
fn what_came_before_the_end_is_still_answered() {
    let mut worker = Stage::of(0, 1).start();
    worker.send(&ToWorker::Start {
        id: ID,
        prompt: text("x"),
        sampling: greedy(1),
    });
    worker.close_input();
    worker.ready();
    assert_eq!(worker.token().prompt_tokens, Some(1));
    assert_eq!(worker.next(), None);
    assert!(worker.close().success());
}

/// Threads and huge pages are asked for in the environment, and what somebody else wants there stays.
#[cfg(target_os = "linux")]
#[test]
fn it_starts_with_its_threads_and_huge_pages() {
    for (set, found) in [
        (None, "glibc.malloc.hugetlb=1"),
        (
            Some("glibc.malloc.arena_max=2"),
            "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1",
        ),
        (Some("glibc.malloc.hugetlb=0"), "glibc.malloc.hugetlb=0"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.env_remove("GLIBC_TUNABLES");
        if let Some(set) = set {
            command.env("GLIBC_TUNABLES", set);
        }
        let mut worker = Stage::of(0, 1).start_as(command);
        worker.ready();
        let environment = worker.environment();
        for pair in [
            format!(":GLIBC_TUNABLES={found}:"),
            ":RAYON_NUM_THREADS=1:".to_owned(),
        ] {
            assert!(environment.contains(&pair), "no {pair}");
        }
        let twice = environment.matches("glibc.malloc.hugetlb").count();
        assert_eq!(twice, 1, "{set:?}");
        assert!(worker.close().success());
    }
}
