//! Requests and answers, before a provider's words are made of them: keys, bodies, and faults of the way there and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Kind;
use super::admin;
use super::world::World;

/// A provider's words on a world.
pub(super) type Wire = fn(&World, &Request) -> Reply;

/// More than any request has.
const BODY_MAX: usize = 1 << 20;

/// A request, taken apart.
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Its path, without a slash at its end.
    pub path: String,
    /// Its query.
    pub query: BTreeMap<String, String>,
    /// Its body; null when it has none.
    pub body: Value,
    /// Whose key it is; none without one.
    pub account: Option<String>,
    /// Where the simulator is, as the client calls it.
    pub host: String,
}

/// What becomes of an answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It arrives.
    Whole,
    /// Half of it arrives, then the connection breaks.
    Cut,
    /// Nothing arrives, and the connection stays.
    Never,
    /// It arrives byte by byte.
    Trickle,
    /// It arrives, and the line stays open for more.
    Open,
}

/// An answer.
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Headers beside the usual.
    pub headers: Vec<(&'static str, String)>,
    /// Its text.
    pub text: String,
    /// What becomes of it.
    pub way: Way,
}

impl Reply {
    /// JSON with a status.
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            text: body.to_string(),
            way: Way::Whole,
        }
    }

    /// Text of another kind.
    pub fn text(status: u16, kind: &str, text: &str) -> Self {
        Self {
            status,
            headers: vec![("content-type", kind.to_owned())],
            text: text.to_owned(),
            way: Way::Whole,
        }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// On this way.
    #[must_use]
    pub fn on(mut self, way: Way) -> Self {
        self.way = way;
        self
    }
}

#[derive(Clone)]
struct Shared {
    world: Arc<World>,
    wire: Wire,
}

pub(super) fn router(world: Arc<World>, wire: Wire) -> Router {
    Router::new()
        .fallback(answer)
        .with_state(Shared { world, wire })
}

async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let world = &shared.world;
    let request = Request {
        account: key(&headers, world.kind == Kind::Lambda),
        ..request(method, &uri, &headers, &body)
    };
    if request.path.starts_with("/_sim") {
        return send(admin::answer(world, &request)).await;
    }
    if let Some(fault) = world.faults.fires("slow") {
        tokio::time::sleep(Duration::from_secs(fault.seconds.unwrap_or(29))).await;
    }
    let off = world.faults.fires("clock").map_or(0, |fault| {
        let off = i64::try_from(fault.millis(7200)).unwrap_or(0);
        if fault.says("behind") { -off } else { off }
    });
    world.clock.set_off(off);
    let mut reply = if world.faults.fires("server-error").is_some() {
        world.kind.oops()
    } else {
        (shared.wire)(world, &request)
    };
    if world.faults.fires("trickle").is_some() {
        reply.way = Way::Trickle;
    }
    let now = world.clock.epoch(world.clock.now());
    let date = |after: f64| date(now + after);
    for (name, value) in &mut reply.headers {
        if let ("retry-after" | "Retry-After", Some(after)) = (*name, value.strip_prefix(DATE_IN)) {
            *value = date(after.parse().unwrap_or(7.0));
        }
    }
    reply.headers.push(("date", date(0.0)));
    send(reply).await
}

/// What is asked for by this and a number is a date, so many seconds on by the server's own clock.
pub(super) const DATE_IN: &str = "date in ";

/// Seconds of the epoch as a header has them.
#[expect(
    clippy::cast_possible_truncation,
    reason = "seconds of this century fit"
)]
fn date(epoch: f64) -> String {
    let at = jiff::Timestamp::from_second(epoch as i64).unwrap_or_default();
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    date.unwrap_or_default()
}

/// The key of a request, by itself or, where that is taken, as a user without a password.
fn key(headers: &HeaderMap, as_user: bool) -> Option<String> {
    let value = headers.get("authorization")?.to_str().ok()?;
    let key = match value.strip_prefix("Bearer ") {
        Some(key) => key.trim().to_owned(),
        None => {
            let pair = value.strip_prefix("Basic ").filter(|_| as_user)?;
            let pair = String::from_utf8(STANDARD.decode(pair.trim()).ok()?).ok()?;
            pair.strip_suffix(':')?.to_owned()
        }
    };
    (!key.is_empty()).then_some(key)
}

fn request(method: Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Request {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let pairs = reqwest::Url::parse(&format!("http://sim{uri}")).ok();
    let query = pairs.iter().flat_map(reqwest::Url::query_pairs);
    let cut = &body[..body.len().min(BODY_MAX)];
    Request {
        method,
        path: uri.path().trim_end_matches('/').to_owned(),
        query: query
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect(),
        body: serde_json::from_slice(cut).unwrap_or(Value::Null),
        account: None,
        host: text("host").unwrap_or("127.0.0.1").to_owned(),
    }
}

async fn send(reply: Reply) -> Response<Body> {
    let length = reply.text.len();
    let mut builder = Response::builder()
        .status(StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
    for (name, value) in &reply.headers {
        builder = builder.header(*name, value);
    }
    let body = match reply.way {
        Way::Whole => Body::from(reply.text),
        Way::Never => {
            // Longer than any client waits.
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Body::empty()
        }
        Way::Cut => {
            builder = builder.header("content-length", length);
            let half = Bytes::from(reply.text.into_bytes()).slice(..length / 2);
            let broken = Err(std::io::Error::other("cut"));
            Body::from_stream(futures::stream::iter([Ok(half), broken]))
        }
        Way::Open => {
            let whole = Bytes::from(reply.text.into_bytes());
            let first = futures::stream::iter([Ok::<_, std::io::Error>(whole)]);
            Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()))
        }
        Way::Trickle => {
            builder = builder.header("content-length", length);
            let bytes = Bytes::from(reply.text.into_bytes());
            Body::from_stream(futures::stream::unfold((bytes, 0), async |(bytes, at)| {
                if at >= bytes.len() {
                    return None;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                let byte = bytes.slice(at..=at);
                Some((Ok::<_, std::io::Error>(byte), (bytes, at + 1)))
            }))
        }
    };
    builder
        .body(body)
        .unwrap_or_else(|_| Response::new(Body::empty()))
}
