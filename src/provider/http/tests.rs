//! The client against a server of a few lines that says what it is told to.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::retry::{Effect, Policy};
use stageline_core::topology::SecretRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::ambient::SystemClock;

const ENDPOINT: Endpoint = Endpoint::each("test", Duration::ZERO);
const KEY: &str = "k3y-that-nobody-may-see";

/// Answers each connection with the next of these, and keeps what was sent.
async fn server(answers: Vec<Vec<u8>>) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!(
        "http://{}#speed=1000",
        listener.local_addr().expect("bound")
    );
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sent = Arc::clone(&seen);
    tokio::spawn(async move {
        for answer in answers {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            let mut request = vec![0; 64 << 10];
            let length = socket.read(&mut request).await.expect("read");
            let text = String::from_utf8_lossy(&request[..length]).into_owned();
            sent.lock().expect("no panic").push(text);
            socket.write_all(&answer).await.expect("written");
            socket.shutdown().await.ok();
        }
    });
    (url, seen)
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

fn dialect(answer: &Answer) -> Option<Told> {
    let class = match answer.status {
        200 => return None,
        401 => FailureClass::Auth,
        429 => FailureClass::Rate,
        _ => FailureClass::Unknown,
    };
    Some(Told {
        class,
        message: answer.body["msg"].as_str().unwrap_or("no words").to_owned(),
    })
}

/// What an adapter is made from that is asked nothing, or this.
pub(in crate::provider) fn settings(url: Option<&str>) -> CloudSettings {
    CloudSettings {
        name: "cloud".parse().expect("a name"),
        url: url.map(str::to_owned),
        key_ref: SecretRef::Env("K".to_owned()),
        key: Ok(Arc::new(KEY.to_owned().into())),
        account: None,
        relay: None,
        means: crate::ssh::Means::default(),
        clock: Arc::new(SystemClock),
    }
}

fn api(url: &str) -> Api {
    Api::new(&settings(Some(url)), "https://nowhere.invalid", dialect)
}

#[tokio::test]
async fn a_read_is_sent_again_until_it_is_answered_and_its_key_is_in_a_header_only() {
    let (url, seen) = server(vec![
        answer("500 x", "", "{\"msg\":\"oops\"}"),
        answer("200 x", "", "<html>hold the line</html>"),
        answer("200 x", "", "{\"cut\": [1, "),
        answer("429 x", "retry-after: 0\r\n", "slow down"),
        answer("200 x", "", "{\"a\": 1}"),
    ])
    .await;
    let call = Call {
        query: vec![("q", "a b".to_owned())],
        ..Call::get("/things", ENDPOINT)
    };
    let api = api(&url);
    let answer = api.read(call).await.expect("answered in the end");
    assert_eq!(answer.body, json!({ "a": 1 }));
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.len(), 5);
    for request in &seen {
        let (line, headers) = request.split_once("\r\n").expect("a request");
        assert_eq!(line, "GET /things?q=a+b HTTP/1.1");
        assert!(
            headers.contains(&format!("authorization: Bearer {KEY}")),
            "{headers}"
        );
        assert!(headers.contains("user-agent: stageline/"), "{headers}");
    }
    assert!(!format!("{api:?}").contains(KEY));
}

#[tokio::test]
async fn one_call_is_sent_once_and_says_what_it_may_have_done() {
    let cases = [
        (
            answer("500 x", "", "{}"),
            Effect::Possible,
            FailureClass::Unknown,
        ),
        (
            answer("200 x", "", "[]"),
            Effect::Possible,
            FailureClass::Unknown,
        ),
        (answer("401 x", "", "{}"), Effect::None, FailureClass::Auth),
        (answer("429 x", "", "no"), Effect::None, FailureClass::Rate),
        (
            answer("403 x", "", "<b>error code: 1010</b>"),
            Effect::None,
            FailureClass::Auth,
        ),
        (
            answer("408 x", "", "{}"),
            Effect::Possible,
            FailureClass::Unknown,
        ),
        (
            answer("302 x", "location: http://127.0.0.1:1/\r\n", ""),
            Effect::Possible,
            FailureClass::Unknown,
        ),
        (
            b"HTTP/1.1 200 x\r\ncontent-length: 50\r\n\r\n{\"a\":".to_vec(),
            Effect::Possible,
            FailureClass::Unknown,
        ),
        (Vec::new(), Effect::Possible, FailureClass::Unknown),
    ];
    for (index, (answer, effect, class)) in cases.into_iter().enumerate() {
        let (url, seen) = server(vec![answer]).await;
        let call = Call::send(reqwest::Method::PUT, "/thing", ENDPOINT, json!({}));
        let fault = api(&url).once(call).await.expect_err("no success");
        assert_eq!(
            (fault.effect, fault.cause.class),
            (effect, class),
            "{index}: {fault:?}"
        );
        assert_eq!(seen.lock().expect("no panic").len(), 1, "{index}");
        assert!(!format!("{fault:?}").contains(KEY), "{index}");
    }
}

/// So many requests are sent, and whether there is an answer in the end.
#[tokio::test]
async fn a_read_is_led_on_within_its_own_hosts_and_nothing_else_is() {
    let led = |place: &str| answer("307 x", &format!("location: {place}\r\n"), "");
    let there = || answer("200 x", "", "{\"a\": 1}");
    let call = Call::get("/things", ENDPOINT);
    let put = Call::send(reqwest::Method::PUT, "/things", ENDPOINT, json!({}));
    let cases = [
        (&call, vec![led("/others?b=c"), there()], 2, true),
        (
            &call,
            vec![led("/1"), led("/2"), led("/3"), led("/4"), there()],
            4,
            false,
        ),
        (
            &call,
            vec![led("http://127.0.0.1:1/others"), there()],
            1,
            false,
        ),
        (
            &call,
            vec![led("https://console.vast.ai/others"), there()],
            1,
            false,
        ),
        (&put, vec![led("/others"), there()], 1, false),
    ];
    for (index, (call, answers, sent, answered)) in cases.into_iter().enumerate() {
        let (url, seen) = server(answers).await;
        let api = api(&url).within(".vast.ai");
        let outcome = api.once(call.clone()).await;
        assert_eq!(outcome.is_ok(), answered, "{index}: {outcome:?}");
        let seen = seen.lock().expect("no panic").clone();
        assert_eq!(seen.len(), sent, "{index}");
        assert!(seen.iter().all(|request| request.contains(KEY)), "{index}");
        assert!(
            index > 0 || seen[1].starts_with("GET /others?b=c "),
            "{seen:?}"
        );
    }
    let (url, seen) = server(vec![led("/others"), there()]).await;
    assert!(
        api(&url).once(call).await.is_err(),
        "no provider that says so"
    );
    assert_eq!(seen.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn what_never_left_did_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let call = Call::send(reqwest::Method::PUT, "/thing", ENDPOINT, json!({}));
    let fault = api(&url).once(call).await.expect_err("nobody there");
    assert_eq!(fault.effect, Effect::None, "{fault:?}");
}

#[tokio::test]
async fn an_answer_has_a_size_and_a_deadline() {
    let (url, _) = server(vec![answer(
        "200 x",
        "",
        &format!("{{\"a\": \"{}\"}}", "x".repeat(5000)),
    )])
    .await;
    let call = Call {
        bytes_max: 1000,
        ..Call::get("/things", ENDPOINT)
    };
    let fault = api(&url).once(call).await.expect_err("too long");
    assert!(
        fault.cause.message.contains("longer than 1000 bytes"),
        "{fault:?}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accepted");
        let _ = socket.read(&mut [0; 4096]).await.expect("a request");
        socket
            .write_all(b"HTTP/1.1 200 x\r\ncontent-length: 5000\r\n\r\n")
            .await
            .ok();
        loop {
            // A byte now and then keeps a connection alive, and no deadline.
            if socket.write_all(b" ").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let call = Call {
        timeout: Duration::from_millis(300),
        ..Call::get("/things", ENDPOINT)
    };
    let fault = api(&url).once(call).await.expect_err("too slow");
    assert!(fault.cause.message.contains("no whole answer"), "{fault:?}");
}

#[tokio::test]
async fn a_wished_pause_is_honoured_within_bounds() {
    let date = "date: Wed, 21 Oct 2015 07:28:00 GMT\r\n";
    let cases = [
        ("retry-after: 7\r\n".to_owned(), Some(7)),
        ("retry-after: 0\r\n".to_owned(), Some(0)),
        ("retry-after: 100000\r\n".to_owned(), Some(60)),
        (
            format!("{date}retry-after: Wed, 21 Oct 2015 07:28:09 GMT\r\n"),
            Some(9),
        ),
        (
            format!("{date}retry-after: Tue, 21 Oct 2014 07:28:09 GMT\r\n"),
            Some(0),
        ),
        ("retry-after: soon\r\n".to_owned(), None),
        ("retry-after: -5\r\n".to_owned(), None),
        (String::new(), None),
    ];
    for (headers, wanted) in cases {
        let (url, _) = server(vec![answer("429 x", &headers, "{}")]).await;
        let fault = api(&url)
            .once(Call::get("/a", ENDPOINT))
            .await
            .expect_err("429");
        let seconds = fault.retry_after.map(|span| span.as_secs());
        assert_eq!(seconds, wanted, "{headers}");
    }
}

#[test]
fn a_key_goes_out_over_https_or_stays_here() {
    let parse = |text: &str| Base::parse(text).map(|base| (base.url, base.speed));
    assert_eq!(
        parse("https://api.example/"),
        Ok(("https://api.example".to_owned(), 1))
    );
    assert_eq!(
        parse("http://127.0.0.1:80/x/#speed=60"),
        Ok((
            "http://127.0.0.1:80/x"
                .trim_end_matches('/')
                .replace(":80", ""),
            60
        ))
    );
    assert!(parse("http://[::1]:81").is_ok() && parse("http://localhost:81").is_ok());
    for bad in [
        "http://api.example",
        "https://api.example#speed=60",
        "http://127.0.0.1:1#speed=0",
        "http://127.0.0.1:1#fast",
        "http://127.0.0.1.evil.example",
        "ftp://127.0.0.1",
        "nothing",
    ] {
        assert!(Base::parse(bad).is_err(), "{bad}");
    }
}

/// An hour in the queue is the fault of nobody who is asked afterwards; a pause that is asked for is granted once.
#[tokio::test(start_paused = true)]
async fn a_turn_that_is_waited_for_and_a_pause_that_is_asked_for_leave_time_for_another_try() {
    let fault = |class, retry_after: Option<u64>| Fault {
        cause: Cause::new(class, "no"),
        effect: Effect::None,
        retry_after: retry_after.map(Duration::from_secs),
        status: None,
        body: None,
    };
    // Each case: how long the queue is, the faults that come first, and how many tries there are.
    let unknown = || fault(FailureClass::Unknown, None);
    let asks = |seconds| fault(FailureClass::Rate, Some(seconds));
    let cases = [
        (3600, vec![unknown()], 2, true),
        (3600, vec![unknown(), unknown()], 3, true),
        (0, vec![asks(60)], 2, true),
        (0, vec![asks(60), asks(60)], 2, false),
        (3600, vec![asks(45), unknown(), asks(15)], 4, true),
    ];
    for (index, (queue, faults, tries, answered)) in cases.into_iter().enumerate() {
        let place = format!("queue-{index}.test");
        let gate = gate::gate(&place, "a", &ENDPOINT, 1);
        gate.hold(Duration::from_secs(queue));
        let left = std::sync::Mutex::new(faults.into_iter());
        let sent = std::sync::atomic::AtomicUsize::new(0);
        let policy = Policy::READ;
        let answer = client::again(
            &gate,
            &policy,
            |span| span,
            |_| {
                sent.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let fault = left.lock().expect("no panic").next();
                async move { fault.map_or(Ok(()), Err) }
            },
        );
        assert_eq!(answer.await.is_ok(), answered, "{index}");
        assert_eq!(sent.into_inner(), tries, "{index}");
    }
}

/// More connections than a release has attempts are kept, and each dies when it is used again.
#[tokio::test]
async fn what_is_sent_again_goes_over_a_connection_of_its_own() {
    const KEPT: usize = 6;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let together = Arc::new(tokio::sync::Barrier::new(KEPT));
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            let index = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let together = Arc::clone(&together);
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                assert!(socket.read(&mut request).await.expect("read") > 0);
                if index < KEPT {
                    together.wait().await;
                }
                let reply = b"HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\n{}";
                socket.write_all(reply).await.expect("written");
                let _dies = socket.read(&mut request).await;
            });
        }
    });
    let api = api(&url);
    let call = || Call::get("/things", ENDPOINT);
    let reads = futures::future::join_all((0..KEPT).map(|_| api.read(call()))).await;
    assert!(reads.iter().all(Result::is_ok));
    api.release(call()).await.expect("the second goes through");
    assert_eq!(made.load(std::sync::atomic::Ordering::SeqCst), KEPT + 1);
    api.read(call()).await.expect("the second goes through");
    assert_eq!(made.load(std::sync::atomic::Ordering::SeqCst), KEPT + 2);
}

#[tokio::test]
async fn of_a_long_log_the_end_is_kept() {
    let log: String = (0..1000).map(|n| format!("line {n}\n")).collect();
    let (url, _) = server(vec![answer("200 x", "", &log), answer("404 x", "", "")]).await;
    let api = api(&url);
    let at = url.split('#').next().expect("a URL");
    let kept = api.plain(at, 18).await.expect("it is there");
    assert_eq!(kept.as_deref(), Some(&b"line 998\nline 999\n"[..]));
    assert_eq!(api.plain(at, 18).await, Ok(None));
}
