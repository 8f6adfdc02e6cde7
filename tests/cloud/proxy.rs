//! A line that fails: a proxy that loses requests and answers by number, and counts them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::servers::{Kind, Server};

/// Largest body that passes.
const BODY_MAX: usize = 64 << 20;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It goes through.
    None,
    /// It is carried out; the answer is 503.
    Answer503,
    /// It is carried out; the connection is cut.
    CutAfter,
    /// It is not carried out; the connection is cut.
    CutBefore,
    /// It is carried out; the connection is cut in the middle of the answer.
    CutMid,
    /// It is carried out, and answered with 503; and so is every repetition of it, twice.
    Answer503Thrice,
    /// It is not carried out, and the answer is this status with a code.
    Refuse(u16, &'static str),
    /// No answer ever.
    Silence,
    /// The precondition is taken off: the server creates over what is there.
    Clobber,
}

/// What each request meets.
type Script = dyn Fn(usize, &Method) -> Fault + Send + Sync;

/// Between the store and its server.
pub(super) struct Proxy {
    pub(super) port: u16,
    shared: Arc<Shared>,
    // Serves until it is dropped.
    _runtime: Runtime,
}

struct Shared {
    kind: Kind,
    server: u16,
    script: Mutex<Arc<Script>>,
    seen: AtomicUsize,
    under_way: AtomicUsize,
    again: AtomicUsize,
    keep: AtomicBool,
    log: Mutex<Vec<String>>,
    client: reqwest::Client,
}

impl Proxy {
    pub(super) fn new(kind: Kind, server: &Server) -> Self {
        // What the program itself does before its first request.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shared = Arc::new(Shared {
            kind,
            server: server.port,
            script: Mutex::new(Arc::new(|_, _| Fault::None)),
            seen: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            again: AtomicUsize::new(0),
            keep: AtomicBool::new(true),
            log: Mutex::default(),
            client: reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let port = listener.local_addr().expect("bound").port();
        runtime.spawn(serve(listener, shared.clone()));
        Self {
            port,
            shared,
            _runtime: runtime,
        }
    }

    /// From now on, counting from 0 again.
    pub(super) fn script(&self, script: impl Fn(usize, &Method) -> Fault + Send + Sync + 'static) {
        *self.shared.script.lock().expect("no panic") = Arc::new(script);
        self.shared.seen.store(0, Ordering::SeqCst);
        self.shared.again.store(0, Ordering::SeqCst);
        self.shared.log.lock().expect("no panic").clear();
    }

    /// One fault at one request.
    pub(super) fn fail(&self, at: usize, fault: Fault) {
        self.script(move |n, _| if n == at { fault } else { Fault::None });
    }

    /// Requests since the script was set.
    pub(super) fn seen(&self) -> usize {
        self.shared.seen.load(Ordering::SeqCst)
    }

    /// What they were.
    pub(super) fn log(&self) -> Vec<String> {
        self.shared.log.lock().expect("no panic").clone()
    }

    /// Whether no request is under way.
    pub(super) fn idle(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.under_way.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.keep.store(false, Ordering::SeqCst);
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        if shared.keep.load(Ordering::SeqCst) {
            tokio::spawn(connection(stream, shared.clone()));
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let shared = shared.clone();
        async move {
            shared.under_way.fetch_add(1, Ordering::SeqCst);
            let answer = shared.answer(request.map(Body::new)).await;
            shared.under_way.fetch_sub(1, Ordering::SeqCst);
            // An error closes the connection without a word.
            answer.ok_or("cut")
        }
    });
    // Either side may have gone.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Shared {
    /// None cuts the connection.
    async fn answer(&self, request: Request<Body>) -> Option<Response<Body>> {
        let n = self.seen.fetch_add(1, Ordering::SeqCst);
        let script = self.script.lock().expect("no panic").clone();
        let mut fault = script(n, request.method());
        if fault == Fault::None && self.again.load(Ordering::SeqCst) > 0 {
            self.again.fetch_sub(1, Ordering::SeqCst);
            fault = Fault::Answer503;
        }
        let line = format!("{} {}", request.method(), request.uri());
        self.log.lock().expect("no panic").push(line);
        match fault {
            Fault::CutBefore => return None,
            Fault::Silence => std::future::pending().await,
            Fault::Refuse(status, code) => {
                let body =
                    format!("<Error><Code>{code}</Code><Message>said the proxy</Message></Error>");
                return answer(status, body);
            }
            Fault::None
            | Fault::Answer503
            | Fault::CutAfter
            | Fault::CutMid
            | Fault::Answer503Thrice
            | Fault::Clobber => {}
        }
        let (mut response, bytes) = self.pass_on(request, fault == Fault::Clobber).await?;
        match fault {
            Fault::CutAfter => None,
            Fault::Answer503 => answer(503, "<Error><Code>SlowDown</Code></Error>".to_owned()),
            Fault::Answer503Thrice => {
                self.again.store(2, Ordering::SeqCst);
                answer(503, "<Error><Code>SlowDown</Code></Error>".to_owned())
            }
            Fault::CutMid if bytes.is_empty() => None,
            Fault::CutMid => {
                let half = bytes.slice(..bytes.len() / 2);
                let cut = std::io::Error::other("cut");
                let parts = futures::stream::iter([Ok(half), Err(cut)]);
                *response.body_mut() = Body::from_stream(parts);
                Some(response)
            }
            Fault::None
            | Fault::Clobber
            | Fault::CutBefore
            | Fault::Silence
            | Fault::Refuse(..) => {
                *response.body_mut() = Body::from(bytes);
                Some(response)
            }
        }
    }

    async fn pass_on(
        &self,
        request: Request<Body>,
        clobber: bool,
    ) -> Option<(Response<Body>, Bytes)> {
        let (mut parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, BODY_MAX).await.ok()?;
        if self.kind == Kind::Gcs {
            if let Some(wanted) = parts.headers.remove("x-goog-if-generation-match") {
                assert_eq!(wanted, "0", "nothing but create-if-absent is asked for");
                let any = HeaderValue::from_static("*");
                parts.headers.insert("if-none-match", any);
            }
            // moto asks nobody for more than this.
            let known = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
            let known = HeaderValue::from_static(known);
            parts.headers.insert("authorization", known);
        }
        if clobber {
            parts.headers.remove("if-none-match");
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let url = format!("http://127.0.0.1:{}{path}", self.server);
        let sent = self.client.request(parts.method, url);
        let answer = sent.headers(parts.headers).body(body).send().await.ok()?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        for hop in ["transfer-encoding", "connection", "keep-alive"] {
            response.headers_mut().remove(hop);
        }
        let bytes = answer.bytes().await.ok()?;
        Some((response, bytes))
    }
}

fn answer(status: u16, body: String) -> Option<Response<Body>> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Some(response)
}
