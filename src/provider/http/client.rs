//! One call, and reads and releases that are sent again.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::header::{AUTHORIZATION, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::retry::{Decision, Effect, Failure, Policy, Safety};
use stageline_core::unit::{Millis, Timestamp};
use tokio::time::Instant;

use super::fault::Fault;
use super::gate::{Endpoint, Gate, gate};
use super::lines::{Line, Lines};
use super::place::{Base, clear};
use super::window::{resets_at, used_up};
use super::{CloudSettings, fingerprint};
use crate::ambient::random;
use crate::provider::Blind;

/// The longest pause that a provider is granted.
const RETRY_AFTER_MAX: Duration = Policy::READ.asked_max.duration();

/// Seconds here that a phase in which only the provider works has at least: a simulator with a fast clock is not seen more often.
pub const ITS_OWN_MIN: u64 = 15;

/// The same of looking for a proof that a machine is gone: that takes some listings.
pub const PROOF_MIN: u64 = 20;

/// The longest text of a provider's that is repeated.
const WORDS_MAX: usize = 240;

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Below the base URL, with a slash at its beginning.
    pub path: String,
    /// The query; never a secret.
    pub query: Vec<(&'static str, String)>,
    /// The body, as JSON.
    pub body: Option<Value>,
    /// Which gate it passes.
    pub endpoint: Endpoint,
    /// From sending to the last byte of the answer.
    pub timeout: Duration,
    /// The longest answer that is read.
    pub bytes_max: usize,
}

impl Call {
    /// A read.
    pub fn get(path: impl Into<String>, endpoint: Endpoint) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            body: None,
            endpoint,
            timeout: Duration::from_secs(20),
            bytes_max: 32 << 20,
        }
    }

    /// The same with another method.
    pub fn send(method: Method, path: impl Into<String>, endpoint: Endpoint, body: Value) -> Self {
        Self {
            method,
            body: Some(body),
            ..Self::get(path, endpoint)
        }
    }
}

/// A whole answer that is JSON, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// The pause that was asked for, within bounds.
    pub retry_after: Option<Duration>,
    /// When what is used up is there again, where that is told; within bounds.
    pub resets_at: Option<Timestamp>,
}

/// What an adapter reads out of an answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which kind of failure.
    pub class: FailureClass,
    /// The provider's words.
    pub message: String,
}

/// Reads the failure out of an answer; none when it is a success. Statuses from 200 to 299 reach it too: some providers say
/// "no" with 200.
pub type Dialect = fn(&Answer) -> Option<Told>;

/// The way to one account's API.
pub struct Api {
    name: stageline_core::id::Name,
    base: Result<Base, Cause>,
    key: Result<Arc<SecretString>, Cause>,
    account: String,
    dialect: Dialect,
    lines: Lines,
    /// How the names of the provider's own hosts end, where reads may be led from one to another.
    pub(super) family: Option<&'static str>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Api({})", self.name)
    }
}

impl Api {
    /// Nothing is sent before it is asked something.
    pub fn new(settings: &CloudSettings, default_url: &str, dialect: Dialect) -> Self {
        let url = settings.url.as_deref().unwrap_or(default_url);
        let account = match &settings.key {
            Ok(key) => fingerprint(key.expose_secret()),
            Err(_) => String::new(),
        };
        Self {
            name: settings.name.clone(),
            base: Base::parse(url),
            key: settings.key.clone(),
            account,
            dialect,
            lines: Lines::default(),
            family: None,
        }
    }

    /// Reads may be led from one host to another whose name ends so.
    #[must_use]
    pub fn within(mut self, family: &'static str) -> Self {
        self.family = Some(family);
        self
    }

    /// Where it is.
    ///
    /// # Errors
    /// [`Cause`] when no key may be sent there.
    pub fn base(&self) -> Result<&Base, Cause> {
        self.base.as_ref().map_err(Clone::clone)
    }

    /// A span of the provider's clock, as it passes here.
    pub fn scaled(&self, span: Duration) -> Duration {
        self.base.as_ref().map_or(span, |base| base.scaled(span))
    }

    /// The same for a span that a real process needs some of too: a simulator with a fast clock still needs time to answer.
    pub fn above(&self, span: Duration) -> Duration {
        match &self.base {
            Ok(base) => base.scaled_above(span, Duration::from_secs(5)),
            Err(_) => span,
        }
    }

    /// So many minutes of the provider's clock, and no less than so many seconds here.
    pub fn minutes(&self, minutes: u64, floor: u64) -> Duration {
        let span = self.scaled(Duration::from_secs(minutes * 60));
        span.max(Duration::from_secs(floor))
    }

    /// The gate of an endpoint.
    pub fn gate(&self, endpoint: &Endpoint) -> Arc<Gate> {
        let (place, speed) = match &self.base {
            Ok(base) => (base.url.as_str(), base.speed),
            Err(_) => ("", 1),
        };
        gate(place, &self.account, endpoint, speed)
    }

    /// Blindness for this reason.
    pub fn blind(&self, fault: Fault) -> Blind {
        Blind {
            provider: self.name.clone(),
            cause: fault.cause,
            retry_after: fault.retry_after,
        }
    }

    /// A read, sent again while that helps.
    ///
    /// # Errors
    /// [`Fault`] when no answer could be had that can be trusted.
    pub async fn read(&self, call: Call) -> Result<Answer, Fault> {
        self.repeat(call, &Policy::READ).await
    }

    /// A release, sent again a few times; its caller comes again anyway.
    ///
    /// # Errors
    /// [`Fault`] when the provider did not take it.
    pub async fn release(&self, call: Call) -> Result<Answer, Fault> {
        let few = Policy {
            attempts_max: 3,
            ..Policy::READ
        };
        self.repeat(call, &few).await
    }

    /// A call that is sent once, past the gate: its turn was taken before.
    ///
    /// # Errors
    /// [`Fault`] with the effect that it may have had.
    pub async fn once(&self, call: Call) -> Result<Answer, Fault> {
        let gate = self.gate(&call.endpoint);
        self.one(self.fresh(), &call, &gate).await
    }

    async fn repeat(&self, call: Call, policy: &Policy) -> Result<Answer, Fault> {
        let gate = self.gate(&call.endpoint);
        let pace = |span| self.scaled(span);
        again(&gate, policy, pace, |attempt| {
            let client = if attempt == 1 {
                self.keeping()
            } else {
                self.fresh()
            };
            self.one(client, &call, &gate)
        })
        .await
    }

    async fn one(&self, client: &Line, call: &Call, gate: &Gate) -> Result<Answer, Fault> {
        let request = self.request_by(client, call).map_err(Fault::before)?;
        let answer = self.exchange(client, request, call, gate);
        match tokio::time::timeout(call.timeout, answer).await {
            Ok(answer) => self.judged(call, gate, answer?),
            Err(_) => {
                let seconds = call.timeout.as_secs_f32();
                Err(self.lost(call, &format!("no whole answer within {seconds} s")))
            }
        }
    }

    /// A success, or the failure that an answer tells.
    pub(super) fn judged(&self, call: &Call, gate: &Gate, answer: Answer) -> Result<Answer, Fault> {
        if answer.status == StatusCode::TOO_MANY_REQUESTS.as_u16() {
            gate.hold(self.scaled(answer.retry_after.unwrap_or(call.endpoint.every * 3)));
        }
        let Some(told) = (self.dialect)(&answer) else {
            return Ok(answer);
        };
        let message = format!("{}: {}", self.what(call), told.message);
        Err(Fault {
            cause: hinted(Cause::new(told.class, message), &self.name),
            effect: effect_of(answer.status),
            retry_after: answer.retry_after,
            status: Some(answer.status),
            body: Some(answer.body),
        })
    }

    /// What lies at an address that an answer named, without the key; none while there is nothing yet. Of what is longer than
    /// this, its end.
    ///
    /// # Errors
    /// [`Cause`] for an address that is not the provider's to give, and when it cannot be reached.
    pub async fn plain(&self, url: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Cause> {
        let base = self.base()?;
        let unknown = |why: String| Cause::new(FailureClass::Unknown, why);
        let parsed = reqwest::Url::parse(url).ok();
        let here = parsed
            .as_ref()
            .and_then(|url| Base::parse(url.as_str()).ok());
        let fits = here.is_some_and(|place| !place.loopback || base.loopback);
        let Some(parsed) = parsed.filter(|_| fits) else {
            return Err(unknown(
                "the answer names an address that is not fetched".to_owned(),
            ));
        };
        let client = self.fresh().as_ref().map_err(Clone::clone)?;
        let fetch = async {
            let response = client
                .get(parsed)
                .send()
                .await
                .map_err(|error| reason(&error))?;
            if response.status() != StatusCode::OK {
                return Ok(None);
            }
            let mut text = Vec::new();
            let mut pieces = response.bytes_stream();
            while let Some(piece) = pieces.next().await {
                let piece = piece.map_err(|error| reason(&error))?;
                text.extend_from_slice(&piece);
                let above = text.len().saturating_sub(bytes_max);
                text.drain(..above);
            }
            Ok(Some(text))
        };
        match tokio::time::timeout(Duration::from_secs(20), fetch).await {
            Ok(fetched) => fetched.map_err(unknown),
            Err(_) => Err(unknown("the log took too long".to_owned())),
        }
    }

    /// The client for what may be sent again.
    fn keeping(&self) -> &Line {
        self.lines.keeping(&self.base)
    }

    /// The client for what is sent once, and for what is sent again.
    pub(super) fn fresh(&self) -> &Line {
        self.lines.fresh(&self.base)
    }

    pub(super) fn request_by(
        &self,
        client: &Line,
        call: &Call,
    ) -> Result<reqwest::RequestBuilder, Cause> {
        let base = self.base()?;
        let config = |message: String| Cause::new(FailureClass::Config, message);
        let mut url = reqwest::Url::parse(&format!("{}{}", base.url, call.path))
            .map_err(|error| config(format!("no URL can be made: {error}")))?;
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(
                call.query
                    .iter()
                    .map(|(name, value)| (*name, value.as_str())),
            );
        }
        self.keyed(client, call, url)
    }

    /// The same to a place that was checked.
    pub(super) fn keyed(
        &self,
        client: &Line,
        call: &Call,
        url: reqwest::Url,
    ) -> Result<reqwest::RequestBuilder, Cause> {
        let key = self.key.as_ref().map_err(Clone::clone)?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
            .map_err(|_| {
                Cause::new(
                    FailureClass::Auth,
                    format!(
                        "the key of provider `{}` has characters that no key has",
                        self.name
                    ),
                )
            })?;
        bearer.set_sensitive(true);
        let client = client.as_ref().map_err(Clone::clone)?;
        let request = client
            .request(call.method.clone(), url)
            .header(AUTHORIZATION, bearer);
        Ok(match &call.body {
            Some(body) => request.json(body),
            None => request,
        })
    }

    async fn exchange(
        &self,
        client: &Line,
        request: reqwest::RequestBuilder,
        call: &Call,
        gate: &Gate,
    ) -> Result<Answer, Fault> {
        let response = request.send().await;
        let response = response.map_err(|error| self.unsent(call, &error))?;
        let response = self.led(client, call, response).await?;
        self.answer(response, call, gate).await
    }

    pub(super) fn unsent(&self, call: &Call, error: &reqwest::Error) -> Fault {
        if error.is_connect() || error.is_builder() {
            let why = format!("{}: cannot be reached: {}", self.what(call), reason(error));
            return Fault::before(Cause::new(FailureClass::Unknown, why));
        }
        self.lost(call, &reason(error))
    }

    /// The whole of an answer.
    pub(super) async fn answer(
        &self,
        response: reqwest::Response,
        call: &Call,
        gate: &Gate,
    ) -> Result<Answer, Fault> {
        if let Some(span) = used_up(response.headers()) {
            gate.hold(self.scaled(span));
        }
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        let resets_at = resets_at(response.headers());
        let mut text = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                let why = format!("the answer was cut off: {}", reason(&error));
                self.lost(call, &why)
            })?;
            if text.len() + piece.len() > call.bytes_max {
                let why = format!("the answer is longer than {} bytes", call.bytes_max);
                return Err(self.lost(call, &why));
            }
            text.extend_from_slice(&piece);
        }
        let body = serde_json::from_slice(&text).ok();
        match body {
            Some(body @ Value::Object(_)) => Ok(Answer {
                status,
                body,
                retry_after,
                resets_at,
            }),
            // "Done", and not a word more.
            None if status == 204 && text.is_empty() => Ok(Answer {
                status,
                body: serde_json::json!({}),
                retry_after,
                resets_at,
            }),
            // Many a 429 is plain text, and says all there is to say.
            Some(_) | None if status == 429 => {
                let words = clear(&String::from_utf8_lossy(&text), WORDS_MAX);
                Ok(Answer {
                    status,
                    body: serde_json::json!({ "msg": words }),
                    retry_after,
                    resets_at,
                })
            }
            Some(_) | None => Err(self.foreign(call, status, &text, retry_after)),
        }
    }

    /// Something answered, and it was not the API as we know it: a front in between, or a changed shape.
    fn foreign(
        &self,
        call: &Call,
        status: u16,
        text: &[u8],
        retry_after: Option<Duration>,
    ) -> Fault {
        let words = clear(&String::from_utf8_lossy(text), 80);
        let message = format!(
            "{}: status {status} and no JSON object of the API: `{words}`",
            self.what(call)
        );
        let class = match status {
            401 | 403 => FailureClass::Auth,
            _ => FailureClass::Unknown,
        };
        Fault {
            cause: hinted(Cause::new(class, message), &self.name),
            effect: effect_of(status),
            retry_after,
            status: Some(status),
            body: None,
        }
    }

    pub(super) fn lost(&self, call: &Call, why: &str) -> Fault {
        Fault {
            cause: Cause::new(FailureClass::Unknown, format!("{}: {why}", self.what(call))),
            effect: Effect::Possible,
            retry_after: None,
            status: None,
            body: None,
        }
    }

    fn what(&self, call: &Call) -> String {
        let host = self.base.as_ref().map_or("", |base| base.host.as_str());
        format!("{} {host}{}", call.method, clear(&call.path, 80))
    }
}

/// Sends something again while that helps, and tells which attempt it is. What is waited for a turn is not counted: others took that time.
pub(super) async fn again<T, F: Future<Output = Result<T, Fault>>>(
    gate: &Gate,
    policy: &Policy,
    pace: impl Fn(Duration) -> Duration,
    one: impl Fn(u32) -> F,
) -> Result<T, Fault> {
    let start = Instant::now();
    let (mut policy, mut attempt, mut queued) = (*policy, 0, Duration::ZERO);
    loop {
        attempt += 1;
        let wait = gate.reserve();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
            queued += wait;
        }
        let fault = match one(attempt).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        let failure = Failure {
            class: fault.cause.class,
            effect: fault.effect,
            attempt,
            elapsed: millis(start.elapsed().saturating_sub(queued)),
            retry_after: fault.retry_after.map(millis),
            jitter: u16::from_be_bytes(random()) % 1000,
        };
        match policy.decide(Safety::Repeatable, failure) {
            Decision::AfterDelay(delay) => {
                policy = policy.granting(failure.retry_after);
                tokio::time::sleep(pace(delay.duration())).await;
            }
            Decision::GiveUp | Decision::InDoubt => return Err(fault),
        }
    }
}

/// Whether a request that was answered so may have done something. Refusals with 4xx did nothing, but for time-outs.
fn effect_of(status: u16) -> Effect {
    match status {
        400..=407 | 409..=429 => Effect::None,
        _ => Effect::Possible,
    }
}

fn hinted(cause: Cause, name: &stageline_core::id::Name) -> Cause {
    if cause.hint.is_some() {
        return cause;
    }
    let hint = match cause.class {
        FailureClass::Auth => format!(
            "check `api_key` of [provider.{name}]: the provider does not take it, or it lacks a permission"
        ),
        FailureClass::Money => "add credit to the account at the provider's own console".to_owned(),
        FailureClass::Quota => "ask the provider to raise the account's limit, or wait".to_owned(),
        FailureClass::Rate => {
            "others use the same account now; run the same command again in a minute".to_owned()
        }
        FailureClass::Capacity
        | FailureClass::OfferGone
        | FailureClass::Config
        | FailureClass::Unknown => return cause,
    };
    cause.hint(hint)
}

/// Seconds, or a date by the server's own clock; within bounds. Something else is no wish.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let asked = text(RETRY_AFTER)?.trim();
    let seconds = match asked.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            let date = |text: &str| jiff::fmt::rfc2822::parse(text).ok();
            let until = date(asked)?.timestamp().as_second();
            let now = date(text(DATE)?)?.timestamp().as_second();
            u64::try_from(until.saturating_sub(now)).unwrap_or(0)
        }
    };
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// An error with what caused it, and without the URL.
pub(super) fn reason(error: &reqwest::Error) -> String {
    use std::error::Error as _;
    let mut text = if error.is_timeout() {
        "it took too long".to_owned()
    } else {
        String::new()
    };
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = if text.is_empty() {
                more
            } else {
                format!("{text}: {more}")
            };
        }
        source = error.source();
    }
    if text.is_empty() {
        text = "the exchange failed".to_owned();
    }
    clear(&text, WORDS_MAX)
}

fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
