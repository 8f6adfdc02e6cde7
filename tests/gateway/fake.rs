//! A pipeline that does what its prompt says, and a gateway in front of it on a port of the system's choice.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use secrecy::SecretString;
use stageline::ambient::SystemClock;
use stageline::gateway::{self, GatewayOptions, ServeLimits};
use stageline::pipeline::infer::{
    Event, Events, Finish, Infer, InferCode, InferError, Input, Request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

/// How long anything may take that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The pipeline.
pub struct Fake {
    /// How many requests are alive. A request ends when its stream, or the call that would make it, is dropped.
    live: watch::Sender<usize>,
    /// Lets one text go for each permit, where the prompt says `step`.
    pub steps: Arc<Semaphore>,
    pub ready: AtomicBool,
    was_busy: AtomicBool,
    /// What the gateway asked last.
    pub asked: Mutex<Option<Request>>,
}

/// One request that is alive.
struct Alive(watch::Sender<usize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.send_modify(|live| *live -= 1);
    }
}

impl Fake {
    fn new() -> Self {
        Self {
            live: watch::channel(0).0,
            steps: Arc::new(Semaphore::new(0)),
            ready: AtomicBool::new(true),
            was_busy: AtomicBool::new(false),
            asked: Mutex::new(None),
        }
    }

    /// Returns when this many requests are alive.
    pub async fn wait_for_live(&self, wanted: usize) {
        let mut live = self.live.subscribe();
        let reached = live.wait_for(|live| *live == wanted);
        let outcome = tokio::time::timeout(PATIENCE, reached).await;
        assert!(
            outcome.is_ok(),
            "{} requests are alive, not {wanted}",
            *self.live.borrow()
        );
    }
}

fn failure(code: &str) -> InferError {
    let code: InferCode =
        serde_json::from_value(code.into()).unwrap_or_else(|_| panic!("{code} is no code"));
    InferError {
        code,
        message: "stage.fake[0] says so".to_owned(),
    }
}

fn text(text: &str) -> Result<Event, InferError> {
    Ok(Event::Text {
        token: 1,
        text: text.to_owned(),
    })
}

fn done(completion_tokens: u32) -> Result<Event, InferError> {
    Ok(Event::Done {
        finish: Finish::Stop,
        completion_tokens,
    })
}

#[async_trait]
impl Infer for Fake {
    async fn infer(&self, request: Request) -> Result<Events, InferError> {
        self.live.send_modify(|live| *live += 1);
        let alive = Alive(self.live.clone());
        let prompt = match &request.input {
            Input::Prompt(text) => text.clone(),
            Input::Messages(messages) => messages.last().expect("a message").content.clone(),
        };
        let max_tokens = request.sampling.max_tokens;
        *self.asked.lock().expect("no test panics with it") = Some(request);
        let started = || Ok(Event::Started { prompt_tokens: 3 });
        let (word, rest) = prompt.split_once(' ').unwrap_or((&prompt, ""));
        let events: Events = match word {
            "refuse" => return Err(failure(rest)),
            "busy-once" if !self.was_busy.swap(true, Ordering::SeqCst) => {
                return Err(failure("busy"));
            }
            "wait" => std::future::pending().await,
            "start-wait" => stream::iter([started()]).chain(stream::pending()).boxed(),
            "text-wait" => stream::iter([started(), text("a")])
                .chain(stream::pending())
                .boxed(),
            "fail-first" => stream::iter([Err(failure(rest))]).boxed(),
            "fail-later" => stream::iter([started(), text("a"), Err(failure(rest))]).boxed(),
            "cut" => stream::iter([started(), text("a")]).boxed(),
            "twice" => stream::iter([started(), started()]).boxed(),
            "unstarted" => stream::iter([text("a")]).boxed(),
            "too-much" => stream::iter([started()])
                .chain(stream::iter((0..=max_tokens).map(|_| text("a"))))
                .boxed(),
            "flood" => stream::iter([started()])
                .chain(stream::repeat_with(|| text(&"flood ".repeat(700))))
                .boxed(),
            "step" => {
                let steps = Arc::clone(&self.steps);
                let stepped = stream::unfold((steps, 0_u32), |(steps, n)| async move {
                    steps.acquire().await.expect("never closed").forget();
                    Some((text(&n.to_string()), (steps, n + 1)))
                });
                stream::iter([started()])
                    .chain(stepped.take(2))
                    .chain(stream::iter([done(2)]))
                    .boxed()
            }
            "length" => stream::iter([
                started(),
                text("cut sho"),
                Ok(Event::Done {
                    finish: Finish::Length,
                    completion_tokens: 1,
                }),
            ])
            .boxed(),
            _ => stream::iter([
                started(),
                text("Grüße"),
                text(""),
                text(",\n \"you\""),
                done(3),
            ])
            .boxed(),
        };
        // The request lives as long as its stream.
        Ok(events
            .map(move |event| {
                let _ = &alive;
                event
            })
            .boxed())
    }

    fn ready(&self) -> Result<(), InferError> {
        if self.ready.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(failure("stage-down"))
        }
    }
}

/// A gateway that serves `fake` and, always ready, `other`.
pub struct Served {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    pub client: reqwest::Client,
    stop: oneshot::Sender<()>,
    pub serving: JoinHandle<()>,
}

impl Served {
    /// A gateway without a key.
    pub async fn new() -> Self {
        Self::with(None, |_| {}, ServeLimits::default()).await
    }

    pub async fn with(
        api_key: Option<&str>,
        change: impl FnOnce(&mut GatewayOptions),
        limits: ServeLimits,
    ) -> Self {
        // Whoever comes first installs it for all tests of the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let fake = Arc::new(Fake::new());
        let mut options =
            GatewayOptions::new(api_key.map(SecretString::from), Arc::new(SystemClock));
        change(&mut options);
        let models: BTreeMap<_, Arc<dyn Infer>> = BTreeMap::from([
            ("fake".parse().expect("a name"), Arc::clone(&fake) as _),
            ("other".parse().expect("a name"), Arc::new(Fake::new()) as _),
        ]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let router = gateway::router(models, options);
        let serving = tokio::spawn(gateway::serve_within(listener, router, limits, async {
            // A test that ends without a word also ends the gateway.
            let _ = stopped.await;
        }));
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(PATIENCE)
            .build()
            .expect("a client");
        Self {
            address,
            fake,
            client,
            stop,
            serving,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn stop(self) -> (Arc<Fake>, JoinHandle<()>) {
        let _ = self.stop.send(());
        (self.fake, self.serving)
    }

    /// Asks for a chat and returns status, headers and body.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answered {
        let request = self
            .client
            .post(self.url(path))
            .header("content-type", "application/json")
            .body(body);
        Answered::of(request).await
    }

    pub async fn get(&self, path: &str) -> Answered {
        Answered::of(self.client.get(self.url(path))).await
    }

    /// A connection on which this was written.
    pub async fn raw(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("a listener");
        stream.write_all(bytes).await.expect("room for it");
        stream
    }
}

/// All that comes on a connection until it is closed.
pub async fn read_to_end(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let outcome = tokio::time::timeout(PATIENCE, read).await;
    outcome.expect("the other side closes").expect("readable");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A response that was read.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answered {
    pub async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.expect("an answer");
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.expect("a body"),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().expect("ASCII"))
    }

    /// The events of a stream; `[DONE]` as a string.
    pub fn events(&self) -> Vec<serde_json::Value> {
        self.text
            .split_terminator("\n\n")
            .map(|event| match event.strip_prefix("data: ") {
                Some("[DONE]") => "[DONE]".into(),
                Some(data) => serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {event}")),
                None => panic!("not an event: {event}"),
            })
            .collect()
    }

    /// That it is an error in OpenAI's shape, with this status and code.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        let error = &body["error"];
        assert_eq!(error["code"], code, "{self:?}");
        assert!(error["message"].is_string(), "{self:?}");
        assert!(error["type"].is_string(), "{self:?}");
        assert!(
            error["param"].is_string() || error["param"].is_null(),
            "{self:?}"
        );
    }
}

/// The body of a chat with one message, and more keys.
pub fn chat_body(prompt: &str, more: &str) -> String {
    format!(
        r#"{{"model":"fake","messages":[{{"role":"user","content":{}}}]{more}}}"#,
        serde_json::Value::from(prompt)
    )
}

/// A chat as it goes over the wire.
pub fn chat_on_the_wire(prompt: &str, more: &str) -> Vec<u8> {
    let body = chat_body(prompt, more);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
