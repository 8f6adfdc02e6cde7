//! What goes in comes out; what is not a message is named and does no harm.

use super::*;

fn activation() -> Activation {
    Activation {
        position: 3,
        len: 2,
        prefill: true,
        more: true,
        dtype: Dtype::F32,
        payload: (0..32).collect(),
    }
}

fn to_worker() -> Vec<ToWorker> {
    let id = RequestNumber(7);
    let stop = vec!["\n\n".to_owned(), "ü".to_owned()];
    let sampling = Sampling {
        max_tokens: 64,
        temperature: 0.7,
        top_p: 0.9,
        seed: u64::MAX,
        stop,
    };
    let messages = vec![ChatMessage {
        role: "user".into(),
        content: "a \"b\"\n".into(),
    }];
    vec![
        ToWorker::Start {
            id,
            prompt: Prompt::Text("Hello".into()),
            sampling: sampling.clone(),
        },
        ToWorker::Start {
            id,
            prompt: Prompt::Messages(messages),
            sampling: Sampling::default(),
        },
        ToWorker::Forward {
            id,
            activation: activation(),
            sampling: Some(sampling),
        },
        ToWorker::Forward {
            id,
            activation: activation(),
            sampling: None,
        },
        ToWorker::Token {
            id,
            token: 123,
            position: 12,
        },
        ToWorker::End { id },
    ]
}

fn from_worker() -> Vec<FromWorker> {
    let id = RequestNumber(1);
    let ready = Ready {
        pid: 7,
        hidden_size: 576,
        layers: Layers { start: 0, end: 15 },
        vocab: 49152,
        context: 8192,
        dtype: Dtype::F32,
    };
    let sampled = Sampled {
        id,
        token: 5,
        text: Some(" the".into()),
        finish: Some(Finish::Length),
        prompt_tokens: Some(4),
    };
    vec![
        FromWorker::Loading {
            done: 0.4,
            what: "weights".into(),
        },
        FromWorker::Ready(ready),
        FromWorker::Failed {
            code: ErrorCode::BadModel,
            message: "cut".into(),
        },
        FromWorker::Hidden {
            id,
            activation: activation(),
            prompt_tokens: Some(9),
        },
        FromWorker::Continue { id },
        FromWorker::Token(sampled.clone()),
        FromWorker::Token(Sampled {
            text: None,
            finish: None,
            prompt_tokens: None,
            ..sampled
        }),
        FromWorker::Error {
            id: Some(id),
            code: ErrorCode::ContextOverflow,
            message: "9 > 8".into(),
        },
        FromWorker::Error {
            id: None,
            code: ErrorCode::Other("odd".into()),
            message: String::new(),
        },
    ]
}

fn check_round_trip<M: Message + PartialEq + std::fmt::Debug>(messages: &[M]) {
    let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
    for step in [1, 2, 7, 64, bytes.len()] {
        let mut decoder = Decoder::<M>::default();
        let mut decoded = Vec::new();
        for piece in bytes.chunks(step) {
            decoder.push(piece);
            decoded.extend(
                decoder
                    .by_ref()
                    .map(|message| message.expect("our own encoding")),
            );
        }
        assert_eq!(decoded, messages, "in pieces of {step} bytes");
        assert_eq!(decoder.end(), Ok(()));
    }
}

#[test]
fn what_goes_in_comes_out() {
    check_round_trip(&to_worker());
    check_round_trip(&from_worker());
}

#[test]
fn lines_look_as_the_contract_writes_them() {
    let line = |message: &FromWorker| String::from_utf8_lossy(&message.encode()).into_owned();
    let messages = from_worker();
    assert_eq!(
        line(&messages[0]),
        "{\"status\":\"loading\",\"done\":0.4,\"what\":\"weights\"}\n"
    );
    assert_eq!(
        line(&messages[1]),
        "{\"status\":\"ready\",\"pid\":7,\"protocol\":\"stage/1\",\"hidden_size\":576,\"layers\":[0,15],\
         \"vocab\":49152,\"context\":8192,\"dtype\":\"f32\"}\n"
    );
    assert_eq!(
        line(&messages[5]),
        "{\"op\":\"token\",\"id\":1,\"token\":5,\"text\":\" the\",\"done\":true,\"finish\":\"length\",\"prompt_tokens\":4}\n"
    );
    assert_eq!(
        line(&messages[7]),
        "{\"id\":1,\"error\":{\"code\":\"context-overflow\",\"message\":\"9 > 8\"}}\n"
    );
}

#[test]
fn the_contract_s_own_lines_are_read() {
    let mut decoder = Decoder::<ToWorker>::default();
    decoder.push(b"{\"id\":1,\"op\":\"start\",\"prompt\":\"Hi\"}\n\n  \r\n");
    decoder.push(
        b"{\"id\":1,\"op\":\"forward\",\"position\":0,\"len\":1,\"dtype\":\"bf16\",\"hidden\":\"AAECAw==\",\"new\":[]}\n",
    );
    let messages: Vec<_> = decoder.collect();
    let [
        Ok(ToWorker::Start { sampling, .. }),
        Ok(ToWorker::Forward { activation, .. }),
    ] = messages.as_slice()
    else {
        panic!("{messages:?}");
    };
    assert_eq!(*sampling, Sampling::default());
    assert_eq!(activation.payload, [0, 1, 2, 3]);
    assert_eq!(activation.check(2), Ok(()));
    let message = activation.check(3).expect_err("the sizes differ");
    assert_eq!(
        message,
        "4 bytes of hidden state; 1 positions of 3 bf16 numbers are 6 bytes"
    );
}

fn check_error(input: &[u8], expected: &str) -> ProtocolError {
    let mut decoder = Decoder::<FromWorker>::default();
    decoder.push(input);
    let error = decoder
        .next()
        .expect("something to say")
        .expect_err("not a message");
    assert_eq!(error.to_string(), expected);
    if !error.is_fatal() {
        decoder.push(b"{\"op\":\"continue\",\"id\":3}\n");
        assert_eq!(
            decoder.next(),
            Some(Ok(FromWorker::Continue {
                id: RequestNumber(3)
            })),
            "it finds its place again"
        );
    }
    error
}

#[test]
fn garbage_is_named_and_skipped() {
    check_error(
        b"Traceback \x1b[31m(most\n",
        "not a stage/1 message (expected value at line 1 column 1): `Traceback \\x1b[31m(most`",
    );
    check_error(
        b"[1]\n",
        "not a stage/1 message (invalid type: sequence, expected a map at line 1 column 0): `[1]`",
    );
    check_error(
        b"{}\n",
        "not a stage/1 message: there is no `status`, `op` or `error`: `{}`",
    );
    let error = check_error(
        b"{\"id\":4,\"op\":\"dance\",\"bytes\":3}\n\n\n\n",
        "not a stage/1 message: `dance` is not an op; it is hidden, continue or token: `{\"id\":4,\"op\":\"dance\",\"bytes\":3}`",
    );
    assert_eq!(
        error.id(),
        Some(RequestNumber(4)),
        "and its payload was skipped with it"
    );
    check_error(
        b"{\"op\":\"continue\",\"id\":3,\"bytes\":-1}\n",
        "not a stage/1 message: `bytes` is not a count: `{\"op\":\"continue\",\"id\":3,\"bytes\":-1}`",
    );
    check_error(
        b"{\"op\":7}\n",
        "not a stage/1 message: `op` is not a text: `{\"op\":7}`",
    );
    let old = "{\"status\":\"ready\",\"pid\":1,\"protocol\":\"stage/2\",\"hidden_size\":1,\"layers\":[0,1],\"vocab\":1,\"context\":1}";
    let error = check_error(
        format!("{old}\n").as_bytes(),
        &format!(
            "not a stage/1 message: the worker speaks `stage/2`; this agent speaks stage/1: `{}`",
            old
        ),
    );
    assert!(!error.is_fatal());
}

#[test]
fn nothing_beyond_the_limits_is_waited_for() {
    let error = check_error(
        b"{\"op\":\"hidden\",\"id\":9,\"bytes\":99999999999999}\n",
        "a stage/1 payload of 99999999999999 bytes was announced; at most 67108864 are taken",
    );
    assert!(error.is_fatal());
    assert_eq!(error.id(), Some(RequestNumber(9)));

    let mut decoder = Decoder::<FromWorker>::new(Limits {
        line_bytes: 10,
        payload_bytes: 10,
    });
    decoder.push(b"0123456789");
    assert_eq!(decoder.next(), None, "its end may yet come");
    decoder.push(b"a");
    let error = decoder.next().expect("too long").expect_err("too long");
    assert_eq!(
        error.to_string(),
        "a stage/1 line is longer than 10 bytes; it begins with `0123456789a`"
    );
    decoder.push(b"\n{\"op\":\"continue\",\"id\":3}\n");
    assert_eq!(decoder.next(), None, "it has lost its place");
}

#[test]
fn a_cut_stream_is_noticed() {
    let bytes = from_worker()[3].encode();
    let cut = |length: usize| {
        let mut decoder = Decoder::<FromWorker>::default();
        decoder.push(&bytes[..length]);
        assert_eq!(decoder.next(), None);
        decoder.end().expect_err("cut").to_string()
    };
    assert_eq!(
        cut(10),
        "the stream ended within a message: 10 of unknown bytes of its line"
    );
    assert_eq!(
        cut(bytes.len() - 1),
        "the stream ended within a message: 31 of 32 bytes of its payload"
    );
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let valid: Vec<u8> = from_worker().iter().flat_map(Message::encode).collect();
    for _ in 0..2000 {
        let mut bytes = valid.clone();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        let mut decoder = Decoder::<FromWorker>::default();
        decoder.push(&bytes);
        assert!(decoder.count() <= bytes.len());
    }
}

#[test]
fn sampling_is_filled_in_and_checked() {
    let sampling = SamplingOptions {
        temperature: Some(0.5),
        ..SamplingOptions::default()
    }
    .resolve(9)
    .expect("fine");
    assert_eq!(
        sampling,
        Sampling {
            temperature: 0.5,
            seed: 9,
            ..Sampling::default()
        }
    );
    let refused = |options: SamplingOptions| options.resolve(0).expect_err("refused");
    let options = SamplingOptions::default;
    assert_eq!(
        refused(SamplingOptions {
            temperature: Some(f64::NAN),
            ..options()
        }),
        "temperature is NaN; it must be from 0 to 10"
    );
    assert_eq!(
        refused(SamplingOptions {
            top_p: Some(0.0),
            ..options()
        }),
        "top_p is 0; it must be above 0 and at most 1"
    );
    assert_eq!(
        refused(SamplingOptions {
            max_tokens: Some(0),
            ..options()
        }),
        "max_tokens is 0; ask for at least 1"
    );
    assert_eq!(
        refused(SamplingOptions {
            stop: vec![String::new()],
            ..options()
        }),
        "a stop string has 0 bytes; it must have 1 to 256"
    );
}

#[test]
fn debug_output_shows_no_prompt() {
    let shown = format!("{:?}{:?}", to_worker(), from_worker());
    for secret in ["Hello", "a \\\"b", " the"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}
