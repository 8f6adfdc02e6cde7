//! OpenAI-compatible HTTP in front of pipelines: a pipeline is a model, its name is the model's name.
//!
//! What always holds: a caller that goes away cancels its request on every stage, streamed or not; every failure has OpenAI's
//! shape and a status, also behind the last byte of a broken stream (which then has no `[DONE]`); everything a client sends or
//! leaves undone has a limit. Refused are callers that are not of this computer when there is no key (see `guard`), and
//! whatever a pipeline cannot do, by the name of the key that asks for it. The gateway itself keeps nothing, decides nothing about
//! pipelines, and speaks no TLS: it stands on loopback, or behind an exposure that does.

mod answer;
mod body;
mod error;
mod guard;
mod parse;
mod serve;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use secrecy::SecretString;
use serde_json::{Value, json};
use stageline_core::id::Name;
use stageline_core::unit::Timestamp;
use tokio::time::Instant;

use self::answer::{Answer, Piece, Shape};
use self::error::ApiError;
use self::guard::Guard;
use self::parse::{Call, Kind};
use crate::ambient::{SharedClock, random};
use crate::pipeline::infer::{Infer, InferError};

pub use self::serve::{ServeLimits, serve, serve_within};

/// How long the pipeline's own deadline may be overdue before the gateway stops waiting: the pipeline's error names the stage.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);
/// How often a stream without tokens shows that it lives. Common proxies cut a silent one after 60 s.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells buffering proxies to pass each token on at once.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a gateway is told besides its pipelines.
#[derive(Clone)]
pub struct GatewayOptions {
    /// What callers must present. None: only callers of this computer.
    pub api_key: Option<SecretString>,
    /// When the pipelines were made available, for `/v1/models`.
    pub created: Timestamp,
    /// For the times of answers.
    pub clock: SharedClock,
    /// Most time for one request; the pipeline's own limit counts if it is less.
    pub deadline: Duration,
    /// Most tokens of a chat whose caller does not say how many.
    pub chat_tokens_default: u32,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
}

impl GatewayOptions {
    /// The defaults, for pipelines that are available from now on.
    pub fn new(api_key: Option<SecretString>, clock: SharedClock) -> Self {
        Self {
            api_key,
            created: clock.now(),
            clock,
            // What OpenAI's own clients wait.
            deadline: Duration::from_secs(600),
            // Long enough for nearly every answer; a small model that never ends its answer is stopped.
            chat_tokens_default: 2048,
            body_timeout: Duration::from_secs(30),
        }
    }
}

struct Gateway {
    models: BTreeMap<Name, Arc<dyn Infer>>,
    guard: Guard,
    created: i64,
    clock: SharedClock,
    deadline: Duration,
    chat_tokens_default: u32,
    body_timeout: Duration,
}

/// The gateway as a service; [`serve`] gives it a listener.
pub fn router(models: BTreeMap<Name, Arc<dyn Infer>>, options: GatewayOptions) -> Router {
    let gateway = Arc::new(Gateway {
        models,
        guard: Guard::new(options.api_key.as_ref()),
        created: options.created.as_second(),
        clock: options.clock,
        deadline: options.deadline,
        chat_tokens_default: options.chat_tokens_default,
        body_timeout: options.body_timeout,
    });
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{id}", get(show_model))
        .route("/health", get(health))
        .route("/health/{id}", get(health_of))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&gateway), admit))
        .with_state(gateway)
}

type Shared = State<Arc<Gateway>>;

async fn chat(State(gateway): Shared, request: HttpRequest) -> Result<Response, ApiError> {
    complete(&gateway, Kind::Chat, request).await
}

async fn completion(State(gateway): Shared, request: HttpRequest) -> Result<Response, ApiError> {
    complete(&gateway, Kind::Completion, request).await
}

/// The life of one request. When the caller goes away this future is dropped, and with it the answer.
async fn complete(
    gateway: &Gateway,
    kind: Kind,
    request: HttpRequest,
) -> Result<Response, ApiError> {
    let bytes = body::read_json(request, gateway.body_timeout).await?;
    let mut call = parse::call(kind, &bytes, gateway.chat_tokens_default)?;
    drop(bytes);
    let (name, infer) = gateway.model(&call.model)?;
    let limit = u64::try_from(gateway.deadline.as_millis()).unwrap_or(u64::MAX);
    call.request.deadline_ms = Some(limit);
    let shape = gateway.shape(&call, name);
    let give_up = Instant::now() + gateway.deadline + DEADLINE_GRACE;
    let answer = Answer::begin(infer, name.clone(), call.request, give_up).await?;
    if call.stream {
        return Ok(streamed(shape, answer));
    }
    let (text, end) = answer.whole().await?;
    Ok(Json(shape.whole(&text, end)).into_response())
}

impl Gateway {
    fn model(&self, name: &str) -> Result<(&Name, &dyn Infer), ApiError> {
        let found = name
            .parse()
            .ok()
            .and_then(|name: Name| self.models.get_key_value(&name));
        let (name, infer) = found.ok_or_else(|| {
            let names: Vec<_> = self.models.keys().map(Name::as_str).collect();
            ApiError::model_not_found(format!(
                "the model `{}` does not exist here: this gateway serves {}",
                head_of(name),
                names.join(", ")
            ))
        })?;
        Ok((name, infer.as_ref()))
    }

    fn shape(&self, call: &Call, model: &Name) -> Shape {
        let prefix = match call.kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        Shape {
            kind: call.kind,
            id: format!("{prefix}-{:032x}", u128::from_ne_bytes(random())),
            created: self.clock.now().as_second(),
            model: model.clone(),
            include_usage: call.include_usage,
        }
    }

    fn model_object(&self, name: &Name) -> Value {
        json!({ "id": name.as_str(), "object": "model", "created": self.created, "owned_by": "stageline" })
    }
}

/// An answer on its way to a caller, chunk by chunk.
struct Streaming {
    shape: Shape,
    /// Gone once it ended or failed.
    answer: Option<Answer>,
    /// What goes out before the answer is asked again.
    queue: VecDeque<SseEvent>,
}

impl Streaming {
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            match self.answer.as_mut()?.next().await {
                // Nothing to show yet: half a character, or the beginning of a stop text.
                Ok(Piece::Text(text)) if text.is_empty() => {}
                Ok(Piece::Text(text)) => self.push(&self.shape.text(&text)),
                Ok(Piece::End(end)) => {
                    self.answer = None;
                    self.push(&self.shape.last(end));
                    if let Some(counts) = self.shape.counts(end) {
                        self.push(&counts);
                    }
                    self.queue.push_back(SseEvent::default().data("[DONE]"));
                }
                Err(error) => {
                    self.answer = None;
                    self.push(&ApiError::from(error).body());
                }
            }
        }
    }

    fn push(&mut self, chunk: &Value) {
        // JSON in one line holds no line breaks, which an event's data may not have.
        self.queue
            .push_back(SseEvent::default().data(chunk.to_string()));
    }
}

fn streamed(shape: Shape, answer: Answer) -> Response {
    let mut streaming = Streaming {
        shape,
        answer: Some(answer),
        queue: VecDeque::new(),
    };
    if let Some(first) = streaming.shape.first() {
        streaming.push(&first);
    }
    let events = stream::unfold(streaming, |mut streaming| async {
        let event = streaming.next().await?;
        Some((Ok::<_, Infallible>(event), streaming))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

async fn list_models(State(gateway): Shared) -> Json<Value> {
    let models: Vec<_> = gateway
        .models
        .keys()
        .map(|name| gateway.model_object(name))
        .collect();
    Json(json!({ "object": "list", "data": models }))
}

async fn show_model(
    State(gateway): Shared,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let (name, _) = gateway.model(&text_of(id))?;
    Ok(Json(gateway.model_object(name)))
}

/// Whether every pipeline is ready. Callers without the key learn no more than that.
async fn health(State(gateway): Shared, request: HttpRequest) -> Response {
    let mut models = serde_json::Map::new();
    let mut all_ready = true;
    for (name, infer) in &gateway.models {
        let ready = infer.ready();
        all_ready &= ready.is_ok();
        models.insert(name.to_string(), health_object(ready));
    }
    let mut body = json!({ "status": word(all_ready) });
    if gateway
        .guard
        .admit(request.uri(), request.headers())
        .is_ok()
    {
        body["models"] = Value::Object(models);
    }
    (health_status(all_ready), Json(body)).into_response()
}

/// Whether one pipeline is ready, for a probe that has only that one in mind.
async fn health_of(
    State(gateway): Shared,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let (_, infer) = gateway.model(&text_of(id))?;
    let ready = infer.ready();
    Ok((health_status(ready.is_ok()), Json(health_object(ready))).into_response())
}

fn health_object(ready: Result<(), InferError>) -> Value {
    match ready {
        Ok(()) => json!({ "status": word(true) }),
        Err(error) => {
            json!({ "status": word(false), "code": error.code, "message": error.message })
        }
    }
}

fn word(ready: bool) -> &'static str {
    if ready { "ok" } else { "unavailable" }
}

fn health_status(ready: bool) -> StatusCode {
    if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// The part of a path that should name a model. One that is not UTF-8 names none.
fn text_of(id: Result<Path<String>, PathRejection>) -> String {
    id.map(|Path(id)| id).unwrap_or_default()
}

/// In front of every path: whether the caller may speak at all.
async fn admit(State(gateway): Shared, request: HttpRequest, next: Next) -> Response {
    let admitted = if request.uri().path() == "/health" {
        gateway.guard.admit_probe(request.uri(), request.headers())
    } else {
        gateway.guard.admit(request.uri(), request.headers())
    };
    match admitted {
        Ok(()) => next.run(request).await,
        Err(error) => refuse(request, error).await,
    }
}

async fn unknown_path(request: HttpRequest) -> Response {
    let message = format!(
        "there is no `{}` here: /v1/chat/completions, /v1/completions, /v1/models and /health are",
        head_of(request.uri().path())
    );
    refuse(request, ApiError::unknown_path(message)).await
}

async fn wrong_method(request: HttpRequest) -> Response {
    let allowed = match request.uri().path() {
        "/v1/chat/completions" | "/v1/completions" => Method::POST,
        _ => Method::GET,
    };
    let message = format!(
        "`{}` is not for {}: use {allowed}",
        head_of(request.uri().path()),
        head_of(request.method().as_str())
    );
    refuse(request, ApiError::wrong_method(message)).await
}

/// Refuses a request whose body nobody wants.
async fn refuse(request: HttpRequest, error: ApiError) -> Response {
    body::discard(request).await;
    error.into_response()
}

/// As much of a caller's own text as an error repeats.
fn head_of(text: &str) -> &str {
    const CHARS_MAX: usize = 80;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
