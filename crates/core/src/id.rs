//! Every name and identifier as its own type.
//!
//! An identifier is parsed once, at the edge, and is valid from then on. All of them order and print deterministically.

use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod short;

use short::{Short, unhex};

/// Why a text is not the identifier it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdError(pub String);

macro_rules! display_short {
    ($($type:ty),+) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.short_text().as_str())
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.short_text().as_str())
            }
        }
    )+};
}

macro_rules! serialize_as_str {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )+};
}

macro_rules! read_as_text {
    ($($type:ty),+) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // Without a copy of the text: a state is mostly identifiers.
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("the text of a ", stringify!($type)))
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string" })
            }
        }
    )+};
}

/// The name of a table in the topology: `^[a-z][a-z0-9-]{0,23}$`.
///
/// Held in place: there are a few in each address, receipt and quote.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Padded with zeros, so that the order is that of the text.
    bytes: [u8; Name::MAX],
    length: u8,
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.words().cmp(&other.words())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Name {
    /// Longest name, in bytes.
    pub const MAX: usize = 24;

    /// As numbers whose order is that of the text: maps by address are searched for each record.
    fn words(&self) -> [u64; Self::MAX / 8] {
        let (words, _) = self.bytes.as_chunks();
        [0, 1, 2].map(|at| u64::from_be_bytes(words[at]))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("a name is ASCII")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Name").field(&self.as_str()).finish()
    }
}

impl FromStr for Name {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
        let rest = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if first && rest && text.len() <= Self::MAX {
            let mut bytes = [0; Self::MAX];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let length = u8::try_from(text.len()).expect("at most 24");
            Ok(Self { bytes, length })
        } else {
            Err(IdError(format!(
                "`{text}` is not a name: a lower-case letter, then at most 23 of a-z, 0-9 and `-`"
            )))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One of the machines that a `[lease.NAME]` table asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The table's name.
    pub name: Name,
    /// 0 up to `count` - 1.
    pub index: u32,
}

/// One link of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId {
    /// The pipeline's name.
    pub pipeline: Name,
    /// 0 is the entry.
    pub index: u32,
}

macro_rules! address_part {
    ($type:ident, $kind:ident) => {
        impl FromStr for $type {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                match text.parse()? {
                    Address::$kind(id) => Ok(id),
                    other => Err(IdError(format!(
                        "`{other}` is a {}, not a {}",
                        other.kind(),
                        stringify!($kind).to_lowercase()
                    ))),
                }
            }
        }

        read_as_text!($type);
    };
}

address_part!(LeaseId, Lease);
address_part!(StageId, Stage);

impl LeaseId {
    fn short_text(&self) -> Short {
        let mut text = Short::new();
        text.push("lease.")
            .push(self.name.as_str())
            .index(self.index);
        text
    }
}

impl StageId {
    fn short_text(&self) -> Short {
        let mut text = Short::new();
        text.push("stage.")
            .push(self.pipeline.as_str())
            .index(self.index);
        text
    }
}

display_short!(LeaseId, StageId, Address);

/// Where a resource stands in diffs, commands and state.
///
/// The order is the order of listings: by kind as declared here, then by name, then by index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A machine we pay for.
    Lease(LeaseId),
    /// Agent, roster, model shard and configuration present on that lease.
    Delivery(LeaseId),
    /// A folder rendered for an external runtime.
    Bundle(Name),
    /// A running worker.
    Stage(StageId),
    /// The chain answers its check.
    Pipeline(Name),
    /// What makes pipelines reachable.
    Exposure(Name),
}

impl Address {
    /// The kinds, as they are written, in order.
    pub const KINDS: [&'static str; 6] = [
        "lease", "delivery", "bundle", "stage", "pipeline", "exposure",
    ];

    /// The word before the first dot.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lease(_) => "lease",
            Self::Delivery(_) => "delivery",
            Self::Bundle(_) => "bundle",
            Self::Stage(_) => "stage",
            Self::Pipeline(_) => "pipeline",
            Self::Exposure(_) => "exposure",
        }
    }

    /// The lease that this is or stands on by name; none for stages, whose lease is in their spec.
    pub fn lease(&self) -> Option<&LeaseId> {
        match self {
            Self::Lease(id) | Self::Delivery(id) => Some(id),
            Self::Bundle(_) | Self::Stage(_) | Self::Pipeline(_) | Self::Exposure(_) => None,
        }
    }
}

impl Address {
    fn short_text(&self) -> Short {
        let mut text = Short::new();
        text.push(self.kind()).push(".");
        match self {
            Self::Lease(id) | Self::Delivery(id) => text.push(id.name.as_str()).index(id.index),
            Self::Stage(id) => text.push(id.pipeline.as_str()).index(id.index),
            Self::Bundle(name) | Self::Pipeline(name) | Self::Exposure(name) => {
                text.push(name.as_str())
            }
        };
        text
    }
}

/// The text before and behind an ASCII character: a search by bytes is the quickest in short texts.
fn cut(text: &str, at: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

impl FromStr for Address {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = |why: &str| {
            IdError(format!(
                "`{text}` is not an address such as lease.gpu[0]: {why}"
            ))
        };
        let (kind, rest) = cut(text, b'.').ok_or_else(|| wrong("no kind before a dot"))?;
        let (name, index) = match cut(rest, b'[') {
            None => (rest, None),
            Some((name, index)) => {
                let index = index
                    .strip_suffix(']')
                    .ok_or_else(|| wrong("`[` without `]`"))?;
                let plain = index == "0" || !index.starts_with('0');
                let number = index
                    .parse()
                    .ok()
                    .filter(|_| plain && !index.starts_with('+'));
                (
                    name,
                    Some(number.ok_or_else(|| wrong("the index is not a number"))?),
                )
            }
        };
        let name: Name = name.parse().map_err(|error: IdError| wrong(&error.0))?;
        match (kind, index) {
            ("lease", Some(index)) => Ok(Self::Lease(LeaseId { name, index })),
            ("delivery", Some(index)) => Ok(Self::Delivery(LeaseId { name, index })),
            ("stage", Some(index)) => Ok(Self::Stage(StageId {
                pipeline: name,
                index,
            })),
            ("bundle", None) => Ok(Self::Bundle(name)),
            ("pipeline", None) => Ok(Self::Pipeline(name)),
            ("exposure", None) => Ok(Self::Exposure(name)),
            ("lease" | "delivery" | "stage", None) => Err(wrong("it needs an index, such as [0]")),
            ("bundle" | "pipeline" | "exposure", Some(_)) => Err(wrong("it takes no index")),
            _ => Err(wrong(&format!("kinds are {}", Self::KINDS.join(", ")))),
        }
    }
}

macro_rules! hex_bytes {
    ($(#[$doc:meta])* $name:ident, $len:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            fn short_text(&self) -> Short {
                let mut text = Short::new();
                text.hex(&self.0);
                text
            }
        }

        display_short!($name);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let wrong = || IdError(format!("`{text}` is not {} hexadecimal digits", 2 * $len));
                if text.len() != 2 * $len {
                    return Err(wrong());
                }
                let mut bytes = [0; $len];
                unhex(text.as_bytes(), &mut bytes)
                    .then_some(Self(bytes))
                    .ok_or_else(wrong)
            }
        }

        read_as_text!($name);
    };
}

hex_bytes! {
    /// 128 random bits made with the first journal entry: which life of a topology a machine belongs to.
    Lineage, 16
}
hex_bytes! {
    /// The operator's public key (ed25519), by which agents know who may command them.
    OperatorId, 32
}
hex_bytes! {
    /// The public key of one endpoint on the data plane (ed25519).
    EndpointKey, 32
}
hex_bytes! {
    /// 128 random bits, one per process that writes to a journal.
    WriterId, 16
}
hex_bytes! {
    /// 128 random bits, one per journal entry: tells one's own entry from another's after a lost answer.
    Nonce, 16
}
hex_bytes! {
    /// A BLAKE3 digest of what it stands for; equal content, equal fingerprint.
    Fingerprint, 32
}
hex_bytes! {
    /// A SHA-256 digest, by which models are named in the wild.
    Sha256, 32
}
hex_bytes! {
    /// The first 128 bits of the digest of a plan's content.
    PlanId, 16
}

impl Fingerprint {
    /// The fingerprint of a text.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The fingerprint of a value's JSON, which is hashed as it is written and never held whole.
    pub fn of_json(value: &impl Serialize) -> Self {
        let mut hasher = std::io::BufWriter::with_capacity(1 << 14, blake3::Hasher::new());
        serde_json::to_writer(&mut hasher, value).expect("plain data, and hashing does not fail");
        let hasher = hasher.into_inner().expect("hashing does not fail");
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight hexadecimal digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

read_as_text!(Name, Address);
serialize_as_str!(Name);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter! {
    /// Rises with each replacement of a resource; the first is 1.
    Generation, u32
}
counter! {
    /// One try of a create within a generation; the first is 1.
    Attempt, u32
}
counter! {
    /// The number of a journal entry; the first is 1. Never goes back.
    JournalNumber, u64
}
counter! {
    /// The journal number of the `begin` that opened a run; 0 is before any.
    Epoch, u64
}

/// What a provider calls a machine. Opaque, printable, at most 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(String);

impl MachineId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MachineId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(IdError(
                "a machine id is 1 to 128 printable characters without spaces".to_owned(),
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The name by which a create can be found again at the provider: `sl-<16 hex of lineage>-<8 hex of address>-g<G>a<A>`.
///
/// A pure function of lineage, address, generation and attempt. Letters, digits and hyphens, under 64 characters.
/// Two creates never share a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(String);

impl RequestKey {
    /// How long [`RequestKey::prefix`] is.
    const PREFIX: usize = "sl-".len() + 16 + "-".len() + 8 + "-".len();

    /// The key of one try.
    pub fn derive(
        lineage: &Lineage,
        address: &Address,
        generation: Generation,
        attempt: Attempt,
    ) -> Self {
        let mut text = Self::prefix(lineage, address);
        write!(text, "g{generation}a{attempt}").expect("a text takes all");
        Self(text)
    }

    /// What all tries for one address have in common; `find` lists by it.
    pub fn prefix(lineage: &Lineage, address: &Address) -> String {
        let mut text = String::with_capacity(64);
        let address = Fingerprint::of(address.short_text().as_str().as_bytes());
        let mut short = Short::new();
        short
            .push("sl-")
            .hex(&lineage.0[..8])
            .push("-")
            .hex(&address.0[..4])
            .push("-");
        text.push_str(short.as_str());
        text
    }

    /// What all machines of one lineage have in common: our mark.
    pub fn mark(lineage: &Lineage) -> String {
        format!("sl-{}-", &lineage.to_string()[..16])
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The generation and attempt in it.
    pub fn try_of(&self) -> (Generation, Attempt) {
        self.parts().expect("checked when the key was made")
    }

    /// Whether it was made for this address, in whichever lineage.
    pub fn is_for(&self, address: &Address) -> bool {
        let short = Fingerprint::of(address.to_string().as_bytes()).short();
        self.0.split('-').nth(2) == Some(short.as_str())
    }

    /// Whether it is of this lineage.
    pub fn is_of(&self, lineage: &Lineage) -> bool {
        self.0.starts_with(&Self::mark(lineage))
    }

    fn parts(&self) -> Option<(Generation, Attempt)> {
        let (generation, attempt) = cut(self.0.get(Self::PREFIX..)?.strip_prefix('g')?, b'a')?;
        Some((
            Generation(generation.parse().ok()?),
            Attempt(attempt.parse().ok()?),
        ))
    }
}

impl FromStr for RequestKey {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        // Exactly as it is written by us: what only resembles a key is somebody else's.
        let key = Self(text.to_owned());
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let hex =
            |s: Option<&str>, n: usize| s.is_some_and(|s| s.len() == n && s.bytes().all(digit));
        let mut parts = text.split('-');
        let shape = parts.next() == Some("sl") && hex(parts.next(), 16) && hex(parts.next(), 8);
        let tail = key.parts().map(|(g, a)| format!("g{g}a{a}"));
        let whole = tail.is_some() && parts.next() == tail.as_deref() && parts.next().is_none();
        if shape && whole && text.len() < 64 {
            Ok(key)
        } else {
            Err(IdError(format!(
                "`{}` is not a request key",
                text.escape_default()
            )))
        }
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

read_as_text!(MachineId, RequestKey);
serialize_as_str!(MachineId, RequestKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_what_they_write_and_refuse_the_rest() {
        for text in [
            "lease.gpu[0]",
            "delivery.gpu[12]",
            "stage.llama[1]",
            "pipeline.llama",
            "exposure.api",
            "bundle.x",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for text in [
            "lease.gpu",
            "lease.gpu[01]",
            "lease.gpu[+1]",
            "lease.gpu[x]",
            "pipeline.x[0]",
            "leas.gpu[0]",
            "",
            "lease.[0]",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_sort_by_number_not_by_text() {
        let mut all: Vec<Address> = ["lease.gpu[10]", "stage.a[0]", "lease.gpu[2]"]
            .map(|t| t.parse().expect(t))
            .to_vec();
        all.sort();
        assert_eq!(
            all.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["lease.gpu[2]", "lease.gpu[10]", "stage.a[0]"]
        );
    }

    #[test]
    fn names_sort_as_their_text_does() {
        let texts = [
            "a",
            "a-",
            "a-b",
            "a0",
            "ab",
            "abcdefgh",
            "abcdefgh-",
            "abcdefghi",
            "b",
        ];
        let mut names: Vec<Name> = texts.map(|text| text.parse().expect(text)).to_vec();
        names.reverse();
        names.sort();
        let mut sorted = texts;
        sorted.sort_unstable();
        assert_eq!(names.iter().map(Name::as_str).collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn digits_are_read_in_either_case_and_nothing_else_is() {
        let nonce = Nonce([0xab; 16]);
        for text in ["ab".repeat(16), "AB".repeat(16), "aB".repeat(16)] {
            assert_eq!(text.parse(), Ok(nonce), "{text}");
        }
        for wrong in ["g", "G", "/", ":", "@", "`", " ", "\u{7f}"] {
            for at in [0, 1, 30, 31] {
                let mut text = "ab".repeat(16);
                text.replace_range(at..=at, wrong);
                assert!(text.parse::<Nonce>().is_err(), "{text}");
            }
        }
        for length in [0, 31, 33, 64] {
            assert!("a".repeat(length).parse::<Nonce>().is_err(), "{length}");
        }
        assert!("é".repeat(16).parse::<Nonce>().is_err());
    }

    #[test]
    fn request_keys_are_short_and_never_shared() {
        let lineage = Lineage([7; 16]);
        let address: Address = "lease.abcdefghijklmnopqrstuvwx[4294967295]"
            .parse()
            .expect("an address");
        let key = RequestKey::derive(&lineage, &address, Generation(u32::MAX), Attempt(u32::MAX));
        assert!(key.as_str().len() < 64, "{key}");
        assert!(
            key.as_str()
                .starts_with(&RequestKey::prefix(&lineage, &address))
        );
        assert_eq!(
            key.as_str()
                .parse::<RequestKey>()
                .expect("round trip")
                .try_of(),
            (Generation(u32::MAX), Attempt(u32::MAX))
        );
        assert_ne!(
            key,
            RequestKey::derive(&lineage, &address, Generation(u32::MAX), Attempt(1))
        );
    }

    #[test]
    fn what_resembles_a_request_key_is_none() {
        let address = "lease.gpu[0]".parse().expect("an address");
        let key = RequestKey::derive(&Lineage([0xab; 16]), &address, Generation(1), Attempt(2));
        assert!(key.is_for(&address) && key.is_of(&Lineage([0xab; 16])));
        assert!(!key.is_for(&"lease.gpu[1]".parse().expect("an address")));
        assert!(!key.is_of(&Lineage([0xac; 16])));
        let text = key.as_str();
        for other in [
            text.to_uppercase(),
            text.replace("abab", "ABAB"),
            text.replacen("sl-", "SL-", 1),
            text.replacen("sl-", "xsl-", 1),
            format!("my-{text}"),
            format!("{text}-copy"),
            format!("{text} "),
            text.replace("g1a2", "g01a2"),
            text.replace("g1a2", "g+1a2"),
            text.replace("-g1a2", "-x-g1a2"),
            text.replace("g1a2", "g1"),
            text[..text.len() - 4].to_owned(),
            text[..text.len() - 1].to_owned(),
        ] {
            assert!(other.parse::<RequestKey>().is_err(), "{other}");
        }
    }
}
