//! Whatever comes, the caller is told what is wrong with it: never a 5xx, never a closed connection, never a panic.

use super::fake::{Answered, Served, chat_body, read_to_end};
use super::{CHAT, COMPLETION};

/// None of these is a request on either path.
const BODIES: &[&[u8]] = &[
    b"",
    b" ",
    b"{",
    b"}",
    b"nul",
    b"null",
    b"true",
    b"7",
    b"\"text\"",
    b"[]",
    b"{}",
    b"{}{}",
    b"\0",
    b"\xff\xfe{\0}\0",
    b"\xef\xbb\xbf{}",
    b"{\"model\":\"\xff\"}",
    br#"{"model":"\ud800","prompt":"a"}"#,
    br#"{"model":"fake","prompt":"\ud800"}"#,
    br#"{"model":"fake","prompt":"a","temperature":1e999}"#,
    br#"{"model":"fake","prompt":"a","temperature":NaN}"#,
    br#"{"model":"fake","prompt":"a","seed":1e400}"#,
    br#"{"model":"fake","prompt":"a","max_tokens":99999999999999999999999}"#,
    br#"{"model":"fake","prompt":"a",}"#,
    br#"{'model':'fake'}"#,
    br#"{"model":["fake"],"prompt":"a"}"#,
    br#"{"model":{},"prompt":"a"}"#,
    br#"{"model":"","prompt":"a"}"#,
    br#"{"model":"../../etc/passwd","prompt":"a"}"#,
    br#"{"model":"fake"}"#,
    br#"{"model":"fake","prompt":null,"messages":null}"#,
    br#"{"model":"fake","prompt":7,"messages":7}"#,
    br#"{"model":"fake","prompt":{},"messages":{}}"#,
    br#"{"model":"fake","prompt":[null],"messages":[null]}"#,
    br#"{"model":"fake","prompt":[[]],"messages":[[]]}"#,
    br#"{"model":"fake","prompt":[{}],"messages":[{}]}"#,
    br#"{"model":"fake","prompt":["a",1],"messages":[{"role":1,"content":2}]}"#,
];

#[tokio::test]
async fn bodies() {
    let served = Served::new().await;
    let deep = "[".repeat(100_000);
    let deep_in_a_key = format!(r#"{{"model":"fake","x":{}"#, "[".repeat(1000));
    let wide = format!(
        r#"{{"model":"fake","prompt":"a","x":[{}0]}}"#,
        "[],".repeat(200_000)
    );
    let many_keys: String = (0..70_000).map(|n| format!(r#""k{n}":0,"#)).collect();
    let many_keys = format!(r#"{{{many_keys}"model":"fake"}}"#);
    let tokens = format!(r#"{{"model":"fake","prompt":[{}0]}}"#, "0,".repeat(3000));
    let model = format!(r#"{{"model":"{}","prompt":"a"}}"#, "é".repeat(100_000));
    let large = [deep, deep_in_a_key, wide, many_keys, tokens, model];
    let bodies: Vec<&[u8]> = large
        .iter()
        .map(String::as_bytes)
        .chain(BODIES.iter().copied())
        .collect();
    for path in [CHAT, COMPLETION] {
        for body in &bodies {
            let answer = served.post(path, body.to_vec()).await;
            let head = String::from_utf8_lossy(&body[..body.len().min(60)]);
            assert!(
                matches!(answer.status, 400 | 404),
                "{path} {head}: {answer:?}"
            );
            assert!(answer.json()["error"]["message"].is_string(), "{head}");
            assert!(
                answer.text.len() < 1000,
                "{head}: the answer repeats the question"
            );
        }
    }
    served.fake.wait_for_live(0).await;
}

/// Every good body, cut at each byte and with each byte changed.
#[tokio::test]
async fn bodies_that_were_damaged_on_the_way() {
    let served = Served::new().await;
    let good = chat_body(
        "hi",
        r#","stop":["a"],"stream":true,"stream_options":{"include_usage":false}"#,
    );
    let good = good.as_bytes();
    for at in 0..good.len() {
        let cut = served.post(CHAT, good[..at].to_vec()).await;
        cut.assert_error(400, "invalid_json");
        for change in [b'"', b'{', b'0', 0x80] {
            let mut changed = good.to_vec();
            changed[at] = change;
            let answer = served.post(CHAT, changed).await;
            assert!(
                matches!(answer.status, 200 | 400 | 404),
                "{at} {change}: {answer:?}"
            );
        }
    }
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn types_paths_and_methods() {
    let served = Served::new().await;
    for kind in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "json",
        "multipart/form-data",
    ] {
        let request = served
            .client
            .post(served.url(CHAT))
            .body(chat_body("hi", ""));
        let request = if kind.is_empty() {
            request
        } else {
            request.header("content-type", kind)
        };
        Answered::of(request)
            .await
            .assert_error(415, "unsupported_media_type");
    }
    for kind in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.api+json",
    ] {
        let request = served
            .client
            .post(served.url(CHAT))
            .header("content-type", kind);
        assert_eq!(
            Answered::of(request.body(chat_body("hi", ""))).await.status,
            200,
            "{kind}"
        );
    }
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v1/embeddings",
        "//v1/models",
        "/v1/models/",
    ] {
        served.get(path).await.assert_error(404, "unknown_url");
        served
            .post(path, "{}")
            .await
            .assert_error(404, "unknown_url");
    }
    for path in [CHAT, COMPLETION] {
        let answer = served.get(path).await;
        answer.assert_error(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some("POST"));
    }
    for path in ["/v1/models", "/v1/models/fake", "/health"] {
        let answer = served.post(path, vec![b'x'; 1 << 20]).await;
        answer.assert_error(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    }
}

/// Heads that are no HTTP are answered or cut off; the next caller is served.
#[tokio::test]
async fn heads() {
    let served = Served::new().await;
    for head in [
        b"\r\n\r\n\0\r\n\r\n".as_slice(),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
    ] {
        let stream = served.raw(head).await;
        let answer = read_to_end(stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(served.get("/health").await.status, 200);
}
