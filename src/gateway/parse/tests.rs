//! What a request asks for is done or refused by its key, never left out.

use super::*;

fn chat(body: &str) -> Result<Call, ApiError> {
    call(Kind::Chat, body.as_bytes(), 99)
}

fn completion(body: &str) -> Result<Call, ApiError> {
    call(Kind::Completion, body.as_bytes(), 99)
}

#[test]
fn a_chat_with_everything() {
    let call = chat(
        r#"{"model":"llama","messages":[
            {"role":"developer","content":"short","name":"boss"},
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"assistant","content":"c","tool_calls":null}],
        "max_completion_tokens":7,"max_tokens":7,"temperature":0,"top_p":0.5,"seed":-1,"stop":["x","y"],
        "stream":true,"stream_options":{"include_usage":true},"n":1,"presence_penalty":0,"frequency_penalty":0.0,
        "tools":[],"tool_choice":"auto","response_format":{"type":"text"},"logprobs":false,"top_logprobs":0,"logit_bias":{},
        "user":"u","metadata":{"a":"b"},"of_tomorrow":[[{}]],"modalities":["text"],"store":true}"#,
    )
    .expect("a good request");
    let message = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
    };
    let expected = Call {
        kind: Kind::Chat,
        model: "llama".to_owned(),
        request: Request {
            input: Input::Messages(vec![
                message("system", "short"),
                message("user", "a\nb"),
                message("assistant", "c"),
            ]),
            sampling: Sampling {
                max_tokens: 7,
                temperature: 0.0,
                top_p: 0.5,
                seed: Some(u64::MAX),
                stop: vec!["x".to_owned(), "y".to_owned()],
            },
            deadline_ms: None,
        },
        stream: true,
        include_usage: true,
    };
    assert_eq!(call, expected);
}

#[test]
fn defaults_are_those_of_openai() {
    let minimal = chat(r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stop":null}"#)
        .expect("a good request");
    let Sampling {
        max_tokens,
        temperature,
        top_p,
        seed,
        stop,
    } = minimal.request.sampling;
    assert_eq!((max_tokens, temperature, top_p), (99, 1.0, 1.0));
    assert_eq!((seed, stop), (None, Vec::new()));
    assert!(!minimal.stream && !minimal.include_usage);

    for body in [
        r#"{"model":"m","prompt":"hi"}"#,
        r#"{"model":"m","prompt":["hi"]}"#,
    ] {
        let call = completion(body).expect("a good request");
        assert_eq!(call.request.input, Input::Prompt("hi".to_owned()));
        assert_eq!(call.request.sampling.max_tokens, 16);
    }
}

/// A chat whose last keys are these is refused for this key, with this code.
fn refused(tail: &str, param: &str, code: &str) {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{tail}}}"#);
    let error = chat(&body).expect_err(tail);
    assert_eq!(error.param.as_deref(), Some(param), "{tail}");
    assert_eq!(error.code, Some(code), "{tail}");
    assert_eq!(error.status.as_u16(), 400, "{tail}");
}

#[test]
fn what_cannot_be_done_is_refused_by_its_key() {
    for (tail, param) in [
        (r#""n":2"#, "n"),
        (r#""tools":[{}]"#, "tools"),
        (r#""tool_choice":"required""#, "tool_choice"),
        (r#""functions":[1]"#, "functions"),
        (
            r#""response_format":{"type":"json_object"}"#,
            "response_format",
        ),
        (r#""response_format":"json""#, "response_format"),
        (r#""logprobs":true"#, "logprobs"),
        (r#""top_logprobs":3"#, "top_logprobs"),
        (r#""presence_penalty":0.1"#, "presence_penalty"),
        (r#""frequency_penalty":"0""#, "frequency_penalty"),
        (r#""logit_bias":{"1":2}"#, "logit_bias"),
        (r#""modalities":["audio"]"#, "modalities"),
        (r#""web_search_options":{}"#, "web_search_options"),
    ] {
        refused(tail, param, "unsupported_parameter");
    }
}

#[test]
fn values_out_of_range_are_refused_by_their_key() {
    for (tail, param) in [
        (r#""temperature":2.1"#, "temperature"),
        (r#""temperature":"hot""#, "temperature"),
        (r#""top_p":-0.1"#, "top_p"),
        (r#""seed":1.5"#, "seed"),
        (r#""seed":18446744073709551616"#, "seed"),
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""max_tokens":-5"#, "max_tokens"),
        (r#""max_tokens":4294967296"#, "max_tokens"),
        (r#""max_tokens":1,"max_completion_tokens":2"#, "max_tokens"),
        (r#""stream":"yes""#, "stream"),
        (
            r#""stream_options":{"include_usage":true}"#,
            "stream_options",
        ),
        (r#""stream":true,"stream_options":7"#, "stream_options"),
        (
            r#""stream":true,"stream_options":{"include_usage":1}"#,
            "stream_options.include_usage",
        ),
        (r#""stop":["a","b","c","d","e"]"#, "stop"),
        (r#""stop":"""#, "stop"),
        (r#""stop":[1]"#, "stop"),
        (r#""stop":{}"#, "stop"),
    ] {
        refused(tail, param, "invalid_value");
    }
}

#[test]
fn refused_messages_are_named_by_their_place() {
    for (messages, param) in [
        ("[]", "messages"),
        ("null", "messages"),
        ("\"hi\"", "messages"),
        ("[7]", "messages[0]"),
        (r#"[{"content":"x"}]"#, "messages[0].role"),
        (r#"[{"role":"king","content":"x"}]"#, "messages[0].role"),
        (r#"[{"role":"tool","content":"x"}]"#, "messages[0].role"),
        (r#"[{"role":"user"}]"#, "messages[0].content"),
        (r#"[{"role":"user","content":7}]"#, "messages[0].content"),
        (
            r#"[{"role":"user","content":["x"]}]"#,
            "messages[0].content[0].type",
        ),
        (
            r#"[{"role":"user","content":"x"},{"role":"user","content":[{"type":"image_url"}]}]"#,
            "messages[1].content[0].type",
        ),
        (
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            "messages[0].content[0].text",
        ),
        (
            r#"[{"role":"assistant","content":"x","tool_calls":[{}]}]"#,
            "messages[0].tool_calls",
        ),
    ] {
        let error = chat(&format!(r#"{{"model":"m","messages":{messages}}}"#)).expect_err(messages);
        assert_eq!(error.param.as_deref(), Some(param), "{messages}");
    }
}

#[test]
fn refused_completions_are_named_by_their_key() {
    for (tail, param) in [
        ("\"x\":1", "prompt"),
        (r#""prompt":[]"#, "prompt"),
        (r#""prompt":["a","b"]"#, "prompt"),
        (r#""prompt":[1,2]"#, "prompt"),
        (r#""prompt":[[1,2]]"#, "prompt"),
        (r#""prompt":{}"#, "prompt"),
        (r#""prompt":"a","echo":true"#, "echo"),
        (r#""prompt":"a","logprobs":0"#, "logprobs"),
        (r#""prompt":"a","best_of":2"#, "best_of"),
        (r#""prompt":"a","suffix":"b""#, "suffix"),
    ] {
        let error = completion(&format!(r#"{{"model":"m",{tail}}}"#)).expect_err(tail);
        assert_eq!(error.param.as_deref(), Some(param), "{tail}");
    }
    let error = completion(r#"{"prompt":"a"}"#).expect_err("no model");
    assert_eq!(error.param.as_deref(), Some("model"));
}

#[test]
fn a_body_of_too_many_values_is_refused_before_it_is_parsed() {
    let nested = format!(
        r#"{{"model":"m","prompt":"{}","x":[{}0]}}"#,
        ",[{:".repeat(50_000),
        "0,".repeat(60_000)
    );
    assert!(
        completion(&nested).is_ok(),
        "marks within a text do not count"
    );
    let many = format!(
        r#"{{"model":"m","prompt":"a","x":[{}0]}}"#,
        "[],".repeat(60_000)
    );
    let error = completion(&many).expect_err("too many values");
    assert!(error.message.contains("65536 values"), "{}", error.message);
}

#[test]
fn an_escaped_quote_does_not_end_a_text() {
    assert_eq!(count_values(br#"{"a":"\",[\\"}"#), 3);
    assert_eq!(count_values(br#"{"a":"\\",  "b":[1,2]}"#), 7);
    assert_eq!(count_values(br#""\"#), 1);
}
