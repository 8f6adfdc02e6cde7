//! Quantities with their units: money, sizes, spans of time, instants.
//!
//! Parsed once at the edge, whole numbers inside. Money is whole micro-dollars, so that sums are exact.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// US dollars in millionths.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct MicroDollars(pub u64);

impl MicroDollars {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The sum, capped at the largest amount that can be written.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This amount `count` times, capped.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl std::iter::Sum for MicroDollars {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl fmt::Display for MicroDollars {
    /// `$1.50`; at least two decimals, at most the six that there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, micro) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let digits = format!("{micro:06}");
        let cut = digits.trim_end_matches('0').len().max(2);
        f.pad(&format!("${whole}.{}", &digits[..cut]))
    }
}

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(pub String);

impl FromStr for MicroDollars {
    type Err = UnitError;

    /// Reads `2`, `0.60`, `$1.234567`; refuses signs, exponents and a seventh decimal.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let plain = text.trim().trim_start_matches('$');
        let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) {
            return Err(UnitError(format!(
                "`{text}` is not an amount of US dollars such as 0.60"
            )));
        }
        if fraction.len() > 6 {
            return Err(UnitError(format!("`{text}` has more than six decimals")));
        }
        let too_large = || UnitError(format!("`{text}` is too large an amount"));
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let micro: u64 = format!("{fraction:0<6}").parse().map_err(|_| too_large())?;
        whole
            .checked_mul(1_000_000)
            .and_then(|w| w.checked_add(micro))
            .map(Self)
            .ok_or_else(too_large)
    }
}

/// A size in bytes. Files say GiB, wire formats say bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Whole GiB, rounded up: as sizes are ordered.
    pub const fn gib_up(self) -> u64 {
        self.0.div_ceil(1 << 30)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl fmt::Display for Bytes {
    /// `98 MiB`, `1.5 GiB`: three significant digits in the largest unit that fits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] = [
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        let Some((unit, size)) = UNITS.into_iter().find(|(_, size)| self.0 >= *size) else {
            return f.pad(&format!("{} B", self.0));
        };
        let tenths = (u128::from(self.0) * 10 + u128::from(size) / 2) / u128::from(size);
        let text = if tenths >= 1000 || tenths % 10 == 0 {
            format!("{} {unit}", tenths / 10)
        } else {
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    /// Reads a plain number (GiB) or a number with `KiB`, `MiB`, `GiB`, `TiB`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            UnitError(format!(
                "`{text}` is not a size such as 60 (GiB) or \"512MiB\""
            ))
        };
        let text = text.trim();
        let at = text
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let unit: u64 = match text[at..].trim() {
            "" | "GiB" => 1 << 30,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "TiB" => 1 << 40,
            _ => return Err(wrong()),
        };
        let number = text[..at].trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
            return Err(wrong());
        }
        let whole: u128 = whole.parse().map_err(|_| wrong())?;
        let micro: u128 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
        let bytes = (whole * 1_000_000 + micro) * u128::from(unit) / 1_000_000;
        u64::try_from(bytes).map(Self).map_err(|_| wrong())
    }
}

/// A span of time in milliseconds, or for ever.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// Written `never` in files.
    pub const NEVER: Self = Self(u64::MAX);

    /// `n` seconds.
    pub const fn seconds(n: u64) -> Self {
        Self(n * 1000)
    }

    /// `n` minutes.
    pub const fn minutes(n: u64) -> Self {
        Self(n * 60_000)
    }

    /// The same as the standard library's type.
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl fmt::Display for Millis {
    /// `20m`, `1m30s`, `250ms`, `never`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.pad("never");
        }
        let mut rest = self.0;
        let mut text = String::new();
        for (unit, size) in [
            ("d", 86_400_000),
            ("h", 3_600_000),
            ("m", 60_000),
            ("s", 1000),
            ("ms", 1),
        ] {
            if rest >= size {
                text.push_str(&format!("{}{unit}", rest / size));
                rest %= size;
            }
        }
        f.pad(if text.is_empty() { "0s" } else { &text })
    }
}

impl FromStr for Millis {
    type Err = UnitError;

    /// Reads `90s`, `20m`, `1h30m`, `3d`, `250ms`, `never`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            UnitError(format!(
                "`{text}` is not a duration such as \"90s\", \"20m\", \"12h\", \"3d\" or \"never\""
            ))
        };
        if text == "never" {
            return Ok(Self::NEVER);
        }
        let mut rest = text;
        let mut total = 0_u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            let unit = rest
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len());
            let size = match &rest[..unit] {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(wrong()),
            };
            total = number
                .checked_mul(size)
                .and_then(|n| total.checked_add(n))
                .ok_or_else(wrong)?;
            rest = &rest[unit..];
        }
        if text.is_empty() {
            Err(wrong())
        } else {
            Ok(Self(total))
        }
    }
}

/// An instant: UTC, RFC 3339 in every recorded format.
pub type Timestamp = jiff::Timestamp;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact_and_round_trips() {
        for (text, micro, shown) in [
            ("2", 2_000_000, "$2.00"),
            ("0.60", 600_000, "$0.60"),
            ("1.234567", 1_234_567, "$1.234567"),
        ] {
            let money: MicroDollars = text.parse().expect("an amount");
            assert_eq!(money, MicroDollars(micro));
            assert_eq!(money.to_string(), shown);
        }
        for text in ["", "-1", "1e3", "1.2345678", "99999999999999999999"] {
            assert!(text.parse::<MicroDollars>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_durations_read_what_they_write() {
        assert_eq!("60".parse(), Ok(Bytes::gib(60)));
        assert_eq!("512MiB".parse(), Ok(Bytes::mib(512)));
        assert_eq!("1.5".parse(), Ok(Bytes::mib(1536)));
        assert!("12GB".parse::<Bytes>().is_err());
        assert_eq!(Bytes::mib(1536).to_string(), "1.5 GiB");
        for text in ["90s", "20m", "1h30m", "3d", "250ms", "never"] {
            let span: Millis = text.parse().expect("a duration");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert!("5".parse::<Millis>().is_err());
        assert!("".parse::<Millis>().is_err());
    }
}
