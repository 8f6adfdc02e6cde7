//! The control protocol between operator and agent: what may be asked, what comes back, and how it is framed.
//!
//! One request takes one bidirectional stream: a frame with the request, then any number of frames with replies, the last
//! of which is not [`Reply::Working`]. A frame is its length (four bytes, little-endian) and that much JSON. Other bytes
//! follow in four cases only: chunks of a model behind [`Request::Blob`]; and behind the answer to [`Request::Logs`] output, to
//! [`Request::Connect`] what both ends say, to [`Request::Shell`] the pieces of [`super::shell`]. Every request may be repeated,
//! though a shell runs its command anew. A frame beyond [`FRAME_MAX`] is refused before it is read.
//!
//! While an agent works on a request it says so at least every [`WORKING_EVERY`], so that silence means that it is gone
//! and a long wait does not.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use stageline_core::id::{EndpointKey, Name, Sha256, StageId};
use stageline_core::resource::{Contact, ExposureSpec, LeaseLimits, PipelineShare, StageSpec};
use stageline_core::unit::{Bytes, Millis};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::shell::ShellOrder;
use super::{AgentStatus, Answer, LogSource};
use crate::pipeline::Drain;
use crate::pipeline::endpoint::{RelayAccess, RelaySettings};
use crate::pipeline::roster::SignedRoster;

/// The protocol's name on a connection.
pub const ALPN: &[u8] = b"stageline/control/1";

/// The version inside each request; rises when a request changes its meaning.
pub const VERSION: u32 = 1;

/// The largest frame: rosters of a thousand stages fit in a quarter of it.
pub const FRAME_MAX: usize = 4 << 20;

/// The largest chunk of a model.
pub const CHUNK_MAX: usize = 1 << 20;

/// Bytes before the data of a chunk: offset, length, digest.
pub const CHUNK_HEAD: usize = 8 + 4 + 32;

/// How often an agent that works on something says so.
pub const WORKING_EVERY: Duration = Duration::from_secs(2);

/// Code by which an agent closes a connection whose key is not its operator's.
pub const NOT_THE_OPERATOR: u32 = 403;

/// The code by which an agent refuses a request that it does not know.
pub const UNKNOWN_REQUEST: &str = "unknown-request";

/// The code by which it refuses port 0.
pub const NO_PORT: &str = "no-port";

/// Bytes `start..end` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Span {
    /// How many bytes.
    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// A text that is never printed; on the wire it is the text.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "String")]
pub struct Secret(pub SecretString);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.expose_secret())
    }
}

/// A share of a pipeline with all that the agent needs for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveredShare {
    /// The share as the plan has it.
    pub share: PipelineShare,
    /// Which bytes of the model must be present.
    pub spans: Vec<Span>,
    /// The roster, signed by the operator.
    pub roster: SignedRoster,
}

/// A relay with all that it asks for, as an agent is told. On the wire and in the owner's file only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelayGrant {
    /// Which one.
    #[serde(flatten)]
    pub settings: RelaySettings,
    /// Asked for by the relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
}

impl From<RelayGrant> for RelayAccess {
    fn from(RelayGrant { settings, token }: RelayGrant) -> Self {
        let token = token.map(|Secret(token)| token);
        Self { settings, token }
    }
}

impl From<RelayAccess> for RelayGrant {
    fn from(RelayAccess { settings, token }: RelayAccess) -> Self {
        let token = token.map(Secret);
        Self { settings, token }
    }
}

/// A pipeline's entry as another machine reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The agent's public key.
    pub endpoint: EndpointKey,
    /// How to reach it.
    pub contact: Contact,
}

/// A setup with all that it is run with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetupOrder {
    /// The script.
    pub script: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its secret environment.
    pub secrets: BTreeMap<String, Secret>,
    /// The longest that it may take.
    pub timeout: Millis,
}

/// What the operator asks of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// What it has and does.
    Status,
    /// Takes a part of a model file. Answered with [`Reply::Have`]; then chunks follow, an empty one last.
    Blob {
        /// The digest of the whole file.
        sha256: Sha256,
        /// Its length.
        size: Bytes,
        /// What is needed of it.
        spans: Vec<Span>,
    },
    /// Fetches a model file itself.
    Fetch {
        /// The digest of the whole file.
        sha256: Sha256,
        /// Its length, and the most that is taken.
        size: Bytes,
        /// Where from.
        url: String,
        /// Asked for by its server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Secret>,
    },
    /// Makes these shares and rosters the only ones.
    Deliver {
        /// By pipeline.
        pipelines: BTreeMap<Name, DeliveredShare>,
        /// The relay to keep a connection to from now on; none is direct only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        relay: Option<RelayGrant>,
    },
    /// Starts a worker, or restarts it when its spec changed, and waits until it is ready or has failed.
    Start {
        /// Which stage.
        stage: StageId,
        /// What runs.
        spec: Box<StageSpec>,
        /// Secret environment.
        secrets: BTreeMap<String, Secret>,
    },
    /// Ends a worker; unknown is done.
    Stop {
        /// Which stage.
        stage: StageId,
    },
    /// Sends a prompt to a pipeline whose entry is here and waits for the whole answer.
    Check {
        /// Which pipeline.
        pipeline: Name,
        /// The prompt.
        prompt: String,
        /// Tokens to ask for.
        max_tokens: u32,
        /// The longest that it may take.
        timeout: Millis,
    },
    /// Starts a listener, or changes it. Answered with its URL.
    Expose {
        /// Which exposure.
        exposure: Name,
        /// What it is.
        spec: ExposureSpec,
        /// The entry of each pipeline.
        peers: BTreeMap<Name, Peer>,
        /// Asked of every request when set.
        api_key: Option<Secret>,
    },
    /// Ends a listener; unknown is done.
    Unexpose {
        /// Which exposure.
        exposure: Name,
    },
    /// Takes no new request and returns when those in flight have ended, or after `timeout`.
    Drain {
        /// The longest wait.
        timeout: Millis,
        /// Who takes none.
        #[serde(default)]
        what: Drain,
    },
    /// Keeps other limits from now on, also after a restart; a machine that does not end itself has none to keep.
    Limit {
        /// All of them.
        limits: LeaseLimits,
    },
    /// Somebody works with the machine in a way that its agent does not see, such as by a port that is carried over SSH.
    AtWork,
    /// Begins what a machine runs once before it is ready, unless it was begun; its status tells how it ends.
    SetUp(Box<SetupOrder>),
    /// The last bytes of an output. Raw bytes follow the answer until the stream ends.
    Logs {
        /// Whose.
        source: LogSource,
        /// At most so many bytes of what is there.
        tail: u64,
        /// Whether what is written from then on follows.
        follow: bool,
    },
    /// A connection to a port of the machine. Behind the answer both ends say what they like, and each may end its half.
    Connect {
        /// Of the loopback. Nothing has port 0: who asks for it learns whether this request is known.
        port: u16,
    },
    /// A shell, or one command of it, as the agent's own user. Pieces of [`super::shell`] follow both ways.
    Shell(Box<ShellOrder>),
}

/// A request with its version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// [`VERSION`] of the speaker.
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub request: Request,
}

/// Why an agent refuses. The codes are part of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: String,
    /// One sentence that names what it is about.
    pub message: String,
    /// What to do now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Refusal {
    /// A refusal without a hint yet.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            hint: None,
        }
    }

    /// Adds what to do now.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What the agent answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// Still at it; not the end.
    Working {
        /// What is being done, in words.
        what: String,
        /// How much of it; both zero where that is unknown.
        done: u64,
        /// Of how much.
        total: u64,
    },
    /// To [`Request::Status`].
    Status(Box<AgentStatus>),
    /// To [`Request::Blob`]: what of the file is present. Chunks may come now.
    Have {
        /// Sorted, without overlaps.
        present: Vec<Span>,
    },
    /// It is as asked.
    Done,
    /// To [`Request::Expose`].
    Url {
        /// What a client is pointed at.
        url: String,
    },
    /// To [`Request::Check`].
    Answer(Answer),
    /// It is not as asked, and trying again as it is does not help.
    Refused(Refusal),
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It says that it is longer than allowed.
    #[error("a frame of {0} bytes was announced; at most {FRAME_MAX} are taken")]
    TooLong(usize),
    /// It is not JSON of the expected shape.
    #[error("a frame is not of this protocol: {0}")]
    Shape(String),
}

/// Writes one frame.
///
/// # Errors
/// When the stream does not take it, or when it is too long to be taken.
pub async fn write_frame<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), FrameError> {
    let body = serde_json::to_vec(value).map_err(|error| FrameError::Shape(error.to_string()))?;
    if body.len() > FRAME_MAX {
        return Err(FrameError::TooLong(body.len()));
    }
    let length = u32::try_from(body.len()).map_err(|_| FrameError::TooLong(body.len()))?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    to.write_all(&frame).await?;
    to.flush().await?;
    Ok(())
}

/// Reads the bytes of one frame.
///
/// # Errors
/// When the stream ends or breaks, or announces more than [`FRAME_MAX`].
pub async fn read_frame_bytes(from: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, FrameError> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_MAX {
        return Err(FrameError::TooLong(length));
    }
    // Grows with what really arrives: an announced length alone costs nothing.
    let mut body = Vec::new();
    let limit = u64::try_from(length).unwrap_or(u64::MAX);
    let read = from.take(limit).read_to_end(&mut body).await?;
    if read < length {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(body)
}

/// Reads one reply.
///
/// # Errors
/// As [`read_frame_bytes`], and when it is not a reply.
pub async fn read_reply(from: &mut (impl AsyncRead + Unpin)) -> Result<Reply, FrameError> {
    let body = read_frame_bytes(from).await?;
    serde_json::from_slice(&body).map_err(|error| FrameError::Shape(error.to_string()))
}

/// Reads one request.
///
/// # Errors
/// [`Refusal`] with a code when it is of another version or unknown: the agent answers it with that.
pub fn parse_request(body: &[u8]) -> Result<Request, Refusal> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        version: u32,
        #[serde(default)]
        op: String,
    }
    let bad = |error: serde_json::Error| {
        Refusal::new("bad-request", format!("this request is malformed: {error}"))
    };
    let head: Head = serde_json::from_slice(body).map_err(bad)?;
    let update = "use the same version of stageline on both sides: apply again after an update replaces the agents";
    if head.version != VERSION {
        let message = format!(
            "the request is of version {} of the control protocol, this agent speaks version {VERSION}",
            head.version
        );
        return Err(Refusal::new("version", message).hint(update));
    }
    // A tagged enum names the variants it knows, so an unknown `op` is told apart by that alone.
    match serde_json::from_slice::<Envelope>(body) {
        Ok(envelope) => Ok(envelope.request),
        Err(error) if error.to_string().starts_with("unknown variant `") => {
            let op = stageline_core::stage_protocol::excerpt(head.op.as_bytes(), 64);
            let message = format!("this agent does not know the request `{op}`");
            Err(Refusal::new(UNKNOWN_REQUEST, message).hint(update))
        }
        Err(error) => Err(bad(error)),
    }
}

/// One chunk of a model file: its place, its digest, its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where in the file it begins.
    pub offset: u64,
    /// What is there; empty ends the transfer.
    pub data: Vec<u8>,
}

impl Chunk {
    /// Head and data.
    pub fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.data.len()).expect("a chunk is at most a mebibyte");
        let mut bytes = Vec::with_capacity(CHUNK_HEAD + self.data.len());
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&self.data).as_bytes());
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Reads one from a stream.
    ///
    /// # Errors
    /// When the stream ends, the chunk is longer than [`CHUNK_MAX`], or its digest does not match.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, FrameError> {
        let mut head = [0; CHUNK_HEAD];
        from.read_exact(&mut head).await?;
        let (offset, rest) = head.split_at(8);
        let (length, digest) = rest.split_at(4);
        let offset = u64::from_le_bytes(offset.try_into().expect("eight bytes"));
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > CHUNK_MAX {
            return Err(FrameError::TooLong(length));
        }
        let mut data = vec![0; length];
        from.read_exact(&mut data).await?;
        if blake3::hash(&data).as_bytes() != digest {
            return Err(FrameError::Shape(format!(
                "the chunk at byte {offset} does not match its digest"
            )));
        }
        Ok(Self { offset, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Result<Request, Refusal> {
        parse_request(text.as_bytes())
    }

    #[test]
    fn requests_read_what_they_write() {
        let request = Request::Logs {
            source: LogSource::Stage("stage.a[1]".parse().expect("a stage")),
            tail: 9,
            follow: true,
        };
        let envelope = Envelope {
            version: VERSION,
            request,
        };
        let bytes = serde_json::to_vec(&envelope).expect("plain data");
        let Ok(Request::Logs { tail: 9, .. }) = parse_request(&bytes) else {
            panic!("{}", String::from_utf8_lossy(&bytes));
        };
        assert!(matches!(
            body(r#"{"version":1,"op":"status"}"#),
            Ok(Request::Status)
        ));
    }

    #[test]
    fn what_is_not_understood_is_told_apart() {
        for (text, code) in [
            (r#"{"version":1,"op":"dance"}"#, "unknown-request"),
            (r#"{"version":2,"op":"status"}"#, "version"),
            (r#"{"op":"status"}"#, "version"),
            (r#"{"version":1,"op":"stop"}"#, "bad-request"),
            (r#"{"version":1}"#, "bad-request"),
            ("\u{1}", "bad-request"),
        ] {
            assert_eq!(body(text).expect_err(text).code, code, "{text}");
        }
    }

    #[test]
    fn secrets_are_on_the_wire_and_nowhere_else() {
        let secret = Secret("canary".to_owned().into());
        assert_eq!(serde_json::to_string(&secret).expect("text"), "\"canary\"");
        assert!(!format!("{secret:?}").contains("canary"));
    }

    #[tokio::test]
    async fn hostile_frames_cost_nothing() {
        let long = u32::MAX.to_le_bytes();
        let error = read_frame_bytes(&mut &long[..])
            .await
            .expect_err("too long");
        assert!(matches!(error, FrameError::TooLong(_)), "{error}");
        let mut cut = 100_u32.to_le_bytes().to_vec();
        cut.extend_from_slice(b"{}");
        let error = read_frame_bytes(&mut &cut[..]).await.expect_err("cut");
        assert!(matches!(error, FrameError::Io(_)), "{error}");
    }

    #[tokio::test]
    async fn a_chunk_that_was_changed_on_its_way_is_refused() {
        let chunk = Chunk {
            offset: 7,
            data: b"weights".to_vec(),
        };
        let mut bytes = chunk.encode();
        assert_eq!(Chunk::read(&mut &bytes[..]).await.expect("whole"), chunk);
        *bytes.last_mut().expect("data") ^= 1;
        let error = Chunk::read(&mut &bytes[..]).await.expect_err("changed");
        assert!(error.to_string().contains("byte 7"), "{error}");
    }
}
