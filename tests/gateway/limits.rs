//! What clients send or leave undone, and how a gateway ends.

use std::time::Duration;

use stageline::gateway::ServeLimits;
use tokio::io::AsyncWriteExt;

use super::CHAT;
use super::fake::{PATIENCE, Served, chat_body, chat_on_the_wire, read_to_end};

/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(200);
const LIST: &[u8] = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_body_that_is_too_long_is_answered() {
    let served = Served::new().await;
    let long = chat_body(&"x".repeat(5 << 20), "");
    served
        .post(CHAT, long.clone())
        .await
        .assert_error(413, "body_too_large");
    // Without a length, so that it shows only on the way.
    let chunks = futures::stream::iter([Ok::<_, std::io::Error>(long)]);
    let body = reqwest::Body::wrap_stream(chunks);
    served
        .post(CHAT, body)
        .await
        .assert_error(413, "body_too_large");
    // Below the limit it is taken.
    let body = chat_body(&"x".repeat(3 << 20), "");
    assert_eq!(served.post(CHAT, body).await.status, 200);
    // A client that writes all before it reads gets to read.
    let length = 16 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    let request = [head.as_bytes(), &vec![b' '; length]].concat();
    let answer = read_to_end(served.raw(&request).await).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Who asks first is told before it sends.
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 50000000\r\nExpect: 100-continue\r\n\r\n";
    let answer = read_to_end(served.raw(head.as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_body_must_come_in_time() {
    let served = Served::with(None, |o| o.body_timeout = SHORT, ServeLimits::default()).await;
    let mut request = chat_on_the_wire("hi", "");
    request.truncate(request.len() - 1);
    let answer = read_to_end(served.raw(&request).await).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("body_timeout"), "{answer}");
}

#[tokio::test]
async fn a_pipeline_that_is_late_is_given_up() {
    let served = Served::with(None, |o| o.deadline = SHORT, ServeLimits::default()).await;
    for prompt in ["wait", "start-wait"] {
        let answer = served.post(CHAT, chat_body(prompt, "")).await;
        answer.assert_error(504, "deadline_exceeded");
        assert!(answer.text.contains("pipeline `fake`"), "{answer:?}");
    }
    let answer = served
        .post(CHAT, chat_body("text-wait", r#","stream":true"#))
        .await;
    let last = answer.events().pop().expect("an event");
    assert_eq!(last["error"]["code"], "deadline_exceeded");
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let limits = ServeLimits {
        connections_max: 1,
        ..ServeLimits::default()
    };
    let served = Served::with(None, |_| {}, limits).await;
    let first = served
        .raw(&chat_on_the_wire("text-wait", r#","stream":true"#))
        .await;
    served.fake.wait_for_live(1).await;
    let second = served.raw(LIST).await;
    let early = tokio::time::timeout(SHORT, second.readable()).await;
    assert!(early.is_err(), "the second was answered beside the first");
    drop(first);
    let answer = read_to_end(second).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// With room for one connection, a client that does not finish its head, or says nothing after its answer, makes way.
#[tokio::test]
async fn slow_heads_and_idle_connections_make_way() {
    let limits = ServeLimits {
        connections_max: 1,
        head_timeout: SHORT,
        ..ServeLimits::default()
    };
    let served = Served::with(None, |_| {}, limits).await;
    let idle = LIST
        .strip_suffix(b"Connection: close\r\n\r\n")
        .expect("its end");
    let idle = [idle, b"\r\n"].concat();
    for first in [b"GET /v1/mod".as_slice(), b"", idle.as_slice()] {
        let slow = served.raw(first).await;
        let answer = read_to_end(served.raw(LIST).await).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(slow);
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let served = Served::new().await;
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(70_000)
    );
    let answer = read_to_end(served.raw(head.as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_cut_off() {
    let limits = ServeLimits {
        stall_timeout: SHORT,
        ..ServeLimits::default()
    };
    let served = Served::with(None, |_| {}, limits).await;
    let deaf = served
        .raw(&chat_on_the_wire(
            "flood",
            r#","stream":true,"max_tokens":4000000000"#,
        ))
        .await;
    served.fake.wait_for_live(1).await;
    served.fake.wait_for_live(0).await;
    drop(deaf);
}

#[tokio::test]
async fn an_answer_without_end_is_not_kept_in_memory() {
    let served = Served::new().await;
    let answer = served
        .post(CHAT, chat_body("flood", r#","max_tokens":4000000000"#))
        .await;
    answer.assert_error(400, "bad_request");
    served.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn a_shutdown_lets_requests_finish() {
    // A port that is free again may be somebody else's at once, but hardly each time.
    let mut refused = false;
    for _ in 0..3 {
        refused |= shutdown_refuses_others().await;
    }
    assert!(refused, "it listens still");
}

/// Whether nobody is let in any more while a request finishes.
async fn shutdown_refuses_others() -> bool {
    let served = Served::new().await;
    let idle = served.raw(b"").await;
    let caller = served.raw(&chat_on_the_wire("step", "")).await;
    served.fake.wait_for_live(1).await;
    let address = served.address;
    let (fake, serving) = served.stop();
    assert_eq!(read_to_end(idle).await, "");
    let refused = tokio::net::TcpStream::connect(address).await.is_err();
    assert!(!serving.is_finished());
    fake.steps.add_permits(2);
    let answer = read_to_end(caller).await;
    assert!(answer.contains(r#""content":"01""#), "{answer}");
    tokio::time::timeout(PATIENCE, serving)
        .await
        .expect("it ends")
        .expect("it ends well");
    refused
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let limits = ServeLimits {
        drain_timeout: SHORT,
        ..ServeLimits::default()
    };
    let served = Served::with(None, |_| {}, limits).await;
    let caller = served
        .raw(&chat_on_the_wire("text-wait", r#","stream":true"#))
        .await;
    served.fake.wait_for_live(1).await;
    let (fake, serving) = served.stop();
    tokio::time::timeout(PATIENCE, serving)
        .await
        .expect("it ends")
        .expect("it ends well");
    fake.wait_for_live(0).await;
    let answer = read_to_end(caller).await;
    assert!(
        !answer.contains("[DONE]") && !answer.ends_with("0\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn several_requests_on_one_connection() {
    let served = Served::new().await;
    let mut stream = served.raw(&chat_on_the_wire("hi", "")).await;
    stream.write_all(LIST).await.expect("room for it");
    let answers = read_to_end(stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}
