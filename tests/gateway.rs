//! The gateway over real connections, in front of a pipeline that does what its prompt says.

#[path = "gateway/fake.rs"]
mod fake;
#[path = "gateway/limits.rs"]
mod limits;
#[path = "gateway/malformed.rs"]
mod malformed;
#[path = "gateway/openai.rs"]
mod openai;

use std::sync::atomic::Ordering;

use futures::StreamExt;
use serde_json::{Value, json};
use stageline::gateway::ServeLimits;
use stageline::pipeline::infer::Input;

use fake::{Answered, Served, chat_body, chat_on_the_wire, read_to_end};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
const WITH_KEY: Option<&str> = Some("sk-canary-7");

/// Takes what differs from run to run out of an object, after a look at it.
fn settled(mut object: Value, prefix: &str) -> Value {
    let id = object["id"].take();
    let id = id.as_str().expect("an id");
    assert!(
        id.starts_with(prefix) && id.len() == prefix.len() + 32,
        "{id}"
    );
    let created = object["created"].take().as_i64().expect("a time");
    assert!(created > 1_700_000_000, "{created}");
    object
}

#[tokio::test]
async fn a_chat_is_answered_whole() {
    let served = Served::new().await;
    let body = chat_body("hi", r#","temperature":0,"max_tokens":5,"stop":"\n\n""#);
    let answer = served.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        settled(answer.json(), "chatcmpl-"),
        json!({
            "id": null, "created": null, "object": "chat.completion", "model": "fake",
            "choices": [{
                "index": 0, "finish_reason": "stop", "logprobs": null,
                "message": { "role": "assistant", "content": "Grüße,\n \"you\"", "refusal": null },
            }],
            "usage": { "prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6 },
        })
    );
    let asked = served.fake.asked.lock().expect("whole").take();
    let asked = asked.expect("a request");
    assert_eq!(asked.sampling.max_tokens, 5);
    assert_eq!(asked.sampling.stop, ["\n\n"]);
    assert_eq!(asked.deadline_ms, Some(600_000));
    assert!(matches!(asked.input, Input::Messages(m) if m[0].content == "hi"));
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn a_completion_is_answered_whole() {
    let served = Served::new().await;
    let answer = served
        .post(COMPLETION, r#"{"model":"fake","prompt":"length"}"#)
        .await;
    assert_eq!(
        settled(answer.json(), "cmpl-"),
        json!({
            "id": null, "created": null, "object": "text_completion", "model": "fake",
            "choices": [{ "index": 0, "finish_reason": "length", "logprobs": null, "text": "cut sho" }],
            "usage": { "prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4 },
        })
    );
}

#[tokio::test]
async fn a_chat_is_streamed() {
    let served = Served::new().await;
    let usage = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let answer = served.post(CHAT, chat_body("hi", usage)).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let mut events = answer.events();
    assert_eq!(events.pop(), Some("[DONE]".into()));
    let ids: Vec<_> = events.iter().map(|e| e["id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let chunk = |delta: Value, finish: Value| {
        json!({
            "id": null, "created": null, "object": "chat.completion.chunk", "model": "fake", "usage": null,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
        })
    };
    let expected = [
        chunk(json!({ "role": "assistant", "content": "" }), Value::Null),
        chunk(json!({ "content": "Grüße" }), Value::Null),
        chunk(json!({ "content": ",\n \"you\"" }), Value::Null),
        chunk(json!({}), "stop".into()),
        json!({
            "id": null, "created": null, "object": "chat.completion.chunk", "model": "fake", "choices": [],
            "usage": { "prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6 },
        }),
    ];
    let events: Vec<_> = events
        .into_iter()
        .map(|e| settled(e, "chatcmpl-"))
        .collect();
    assert_eq!(events, expected);
}

#[tokio::test]
async fn a_completion_is_streamed() {
    let served = Served::new().await;
    let answer = served
        .post(
            COMPLETION,
            r#"{"model":"fake","prompt":["hi"],"stream":true}"#,
        )
        .await;
    let mut events = answer.events();
    assert_eq!(events.pop(), Some("[DONE]".into()));
    let chunk = |text: &str, finish: Value| {
        json!({
            "id": null, "created": null, "object": "text_completion", "model": "fake",
            "choices": [{ "index": 0, "text": text, "logprobs": null, "finish_reason": finish }],
        })
    };
    let expected = [
        chunk("Grüße", Value::Null),
        chunk(",\n \"you\"", Value::Null),
        chunk("", "stop".into()),
    ];
    let events: Vec<_> = events.into_iter().map(|e| settled(e, "cmpl-")).collect();
    assert_eq!(events, expected);
}

/// The pipeline draws the second token only after the first one was seen here.
#[tokio::test]
async fn tokens_are_not_held_back() {
    let served = Served::new().await;
    let request = served
        .client
        .post(served.url(CHAT))
        .header("content-type", "application/json")
        .body(chat_body("step", r#","stream":true"#));
    let mut chunks = request.send().await.expect("an answer").bytes_stream();
    let mut seen = String::new();
    for digit in ["0", "1"] {
        served.fake.steps.add_permits(1);
        while !seen.contains(&format!(r#""content":"{digit}""#)) {
            let chunk = chunks.next().await.expect("more").expect("readable");
            seen.push_str(std::str::from_utf8(&chunk).expect("whole events"));
        }
    }
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.expect("readable");
        seen.push_str(std::str::from_utf8(&chunk).expect("whole events"));
    }
    assert!(seen.ends_with("data: [DONE]\n\n"), "{seen}");
}

#[tokio::test]
async fn each_failure_has_its_status() {
    let served = Served::new().await;
    for (code, status, shown, header) in [
        ("context-overflow", 400, "context_length_exceeded", None),
        ("bad-request", 400, "bad_request", None),
        ("forbidden", 403, "forbidden", None),
        ("busy", 429, "busy", Some(("retry-after", "1"))),
        (
            "cancelled",
            499,
            "cancelled",
            Some(("x-should-retry", "false")),
        ),
        ("internal", 500, "internal_error", None),
        ("stage-down", 503, "stage_down", Some(("retry-after", "5"))),
        ("draining", 503, "draining", Some(("retry-after", "5"))),
        (
            "deadline-exceeded",
            504,
            "deadline_exceeded",
            Some(("x-should-retry", "false")),
        ),
    ] {
        // At admission, and while the prompt is taken; the caller cannot tell, not even when it wants a stream.
        for prompt in [format!("refuse {code}"), format!("fail-first {code}")] {
            for more in ["", r#","stream":true"#] {
                let answer = served.post(CHAT, chat_body(&prompt, more)).await;
                answer.assert_error(status, shown);
                assert!(answer.text.contains("stage.fake[0] says so"), "{answer:?}");
                for name in ["retry-after", "x-should-retry"] {
                    let expected = header.and_then(|(n, value)| (n == name).then_some(value));
                    assert_eq!(answer.header(name), expected, "{name} of {code}");
                }
            }
        }
    }
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn a_failure_behind_the_first_token() {
    let served = Served::new().await;
    for (prompt, status, code) in [
        ("fail-later stage-down", 503, "stage_down"),
        ("cut", 500, "internal_error"),
        ("too-much", 500, "internal_error"),
    ] {
        let whole = served.post(CHAT, chat_body(prompt, "")).await;
        whole.assert_error(status, code);

        let more = r#","stream":true,"max_tokens":1,"stream_options":{"include_usage":true}"#;
        let streamed = served.post(CHAT, chat_body(prompt, more)).await;
        assert_eq!(streamed.status, 200);
        let events = streamed.events();
        let [_role, text, error] = events.as_slice() else {
            panic!("{prompt}: {events:?}");
        };
        assert_eq!(text["choices"][0]["delta"]["content"], "a");
        assert_eq!(error["error"]["code"], code, "{error}");
    }
    for prompt in ["twice", "unstarted"] {
        let answer = served.post(CHAT, chat_body(prompt, "")).await;
        answer.assert_error(500, "internal_error");
    }
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn callers_that_go_away_cancel_their_requests() {
    let served = Served::new().await;
    for prompt in ["wait", "start-wait", "text-wait"] {
        for more in ["", r#","stream":true"#] {
            let caller = served.raw(&chat_on_the_wire(prompt, more)).await;
            served.fake.wait_for_live(1).await;
            drop(caller);
            served.fake.wait_for_live(0).await;
        }
    }
}

#[tokio::test]
async fn models_are_listed_and_shown() {
    let served = Served::new().await;
    let list = served.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, ["fake", "other"]);
    let model = served.get("/v1/models/fake").await.json();
    assert_eq!(model, list["data"][0]);
    assert_eq!(
        (&model["object"], &model["owned_by"]),
        (&json!("model"), &json!("stageline"))
    );

    for path in ["/v1/models/gpt-4", "/v1/models/%FF", "/v1/models/a%2Fb"] {
        served.get(path).await.assert_error(404, "model_not_found");
    }
    let body = r#"{"model":"gpt-4","prompt":"hi"}"#;
    let answer = served.post(COMPLETION, body).await;
    answer.assert_error(404, "model_not_found");
    assert!(answer.text.contains("serves fake, other"), "{answer:?}");
}

#[tokio::test]
async fn health_says_which_pipeline_is_not_ready() {
    let served = Served::new().await;
    let answer = served.get("/health").await;
    assert_eq!(answer.status, 200);
    let ok = json!({ "status": "ok" });
    assert_eq!(
        answer.json(),
        json!({ "status": "ok", "models": { "fake": ok, "other": ok } })
    );

    served.fake.ready.store(false, Ordering::SeqCst);
    let answer = served.get("/health").await;
    assert_eq!(answer.status, 503);
    let down = json!({ "status": "unavailable", "code": "stage-down", "message": "stage.fake[0] says so" });
    assert_eq!(
        answer.json(),
        json!({ "status": "unavailable", "models": { "fake": down, "other": ok } })
    );
    assert_eq!(served.get("/health/fake").await.status, 503);
    assert_eq!(served.get("/health/other").await.status, 200);
    served
        .get("/health/none")
        .await
        .assert_error(404, "model_not_found");
}

#[tokio::test]
async fn a_key_is_asked_for() {
    let served = Served::with(WITH_KEY, |_| {}, ServeLimits::default()).await;
    let ask = |authorization: &'static str| {
        let request = served
            .client
            .post(served.url(CHAT))
            .header("content-type", "application/json")
            .body(chat_body("hi", ""));
        let request = if authorization.is_empty() {
            request
        } else {
            request.header("authorization", authorization)
        };
        Answered::of(request)
    };
    for wrong in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-canary-8",
        "Bearer sk-canary-77",
        "Basic sk-canary-7",
        "sk-canary-7",
    ] {
        let answer = ask(wrong).await;
        answer.assert_error(401, "invalid_api_key");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        assert!(!answer.text.contains("canary"), "{answer:?}");
    }
    assert_eq!(ask("Bearer sk-canary-7").await.status, 200);
    assert_eq!(ask("bearer sk-canary-7").await.status, 200);
    served
        .get("/v1/models")
        .await
        .assert_error(401, "invalid_api_key");
    served
        .get("/nowhere")
        .await
        .assert_error(401, "invalid_api_key");
    served
        .get("/health/fake")
        .await
        .assert_error(401, "invalid_api_key");

    // A probe has no key; it learns no names.
    let probe = served.get("/health").await;
    assert_eq!(
        (probe.status, probe.json()),
        (200, json!({ "status": "ok" }))
    );
    let owner = served
        .client
        .get(served.url("/health"))
        .bearer_auth("sk-canary-7");
    assert_eq!(
        Answered::of(owner).await.json()["models"]["fake"]["status"],
        "ok"
    );
}

#[tokio::test]
async fn web_pages_of_others_are_kept_out() {
    let open = Served::new().await;
    let with_key = Served::with(WITH_KEY, |_| {}, ServeLimits::default()).await;
    for path in ["/v1/models", "/health"] {
        for (name, value, code) in [
            ("host", "rebound.example:80", "host_not_loopback"),
            ("origin", "https://evil.example", "origin_not_loopback"),
            ("origin", "null", "origin_not_loopback"),
        ] {
            let request = open.client.get(open.url(path)).header(name, value);
            Answered::of(request).await.assert_error(403, code);
            let request = with_key.client.get(with_key.url(path)).header(name, value);
            assert_eq!(
                Answered::of(request.bearer_auth("sk-canary-7"))
                    .await
                    .status,
                200
            );
        }
        let request = open.client.get(open.url(path));
        let request = request
            .header("host", "localhost:1")
            .header("origin", "http://127.0.0.1:3000");
        let answer = Answered::of(request).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    // The name may also stand in the first line, and a second Host does not hide the first.
    for head in [
        "GET http://rebound.example/v1/models HTTP/1.1\r\nHost: localhost",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example",
    ] {
        let head = format!("{head}\r\nConnection: close\r\n\r\n");
        let answer = read_to_end(open.raw(head.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }
    // A page asks first whether it may send JSON; nobody says yes.
    let preflight = open
        .client
        .request(reqwest::Method::OPTIONS, open.url(CHAT))
        .header("origin", "http://localhost:3000")
        .header("access-control-request-method", "POST");
    let answer = Answered::of(preflight).await;
    answer.assert_error(405, "method_not_allowed");
    assert_eq!(answer.header("access-control-allow-origin"), None);
}
