//! Bytes of tokens → text that a caller may see.
//!
//! What always holds: a piece is whole UTF-8; nothing that is or may yet become a stop string is given out; bytes that
//! can never be a character become U+FFFD. All pieces together are the answer.

/// The answer of one request as it grows.
#[derive(Debug, Default)]
pub struct TextStream {
    stops: Vec<String>,
    /// The begin of a character whose other bytes are still to come.
    partial: Vec<u8>,
    /// Text that may be the begin of a stop string.
    held: String,
}

/// What one token adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text to show, possibly none.
    Text(String),
    /// A stop string appeared: the text before it, and the end of the answer.
    Stopped(String),
}

impl TextStream {
    /// An answer that ends at any of these texts.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            partial: Vec::new(),
            held: String::new(),
        }
    }

    /// Takes the bytes of the next token.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        self.partial.extend_from_slice(bytes);
        let whole = whole_characters(&self.partial);
        self.held
            .push_str(&String::from_utf8_lossy(&self.partial[..whole]));
        self.partial.drain(..whole);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min();
        if let Some(at) = found {
            self.held.truncate(at);
            self.partial.clear();
            return Piece::Stopped(std::mem::take(&mut self.held));
        }
        let kept = self
            .stops
            .iter()
            .map(|stop| forming(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        Piece::Text(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, once nothing more will come.
    pub fn finish(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&String::from_utf8_lossy(&self.partial));
        self.partial.clear();
        text
    }
}

/// How many of these bytes are whole characters or can never become one.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                // The end is the begin of a character.
                None => return bytes.len() - rest.len() + error.valid_up_to(),
                Some(invalid) => rest = &rest[error.valid_up_to() + invalid..],
            },
        }
    }
}

/// How many bytes at the text's end are a begin of the stop string.
fn forming(text: &str, stop: &str) -> usize {
    let begins = stop
        .char_indices()
        .map(|(at, _)| at)
        .rev()
        .filter(|at| *at > 0);
    begins
        .into_iter()
        .find(|at| text.ends_with(&stop[..*at]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stops: &[&str], tokens: &[&[u8]], pieces: &[&str], end: Result<&str, &str>) {
        let mut stream = TextStream::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut seen = Vec::new();
        for token in tokens {
            match stream.push(token) {
                Piece::Text(text) => seen.push(text),
                Piece::Stopped(text) => {
                    assert_eq!(
                        (seen.as_slice(), Err(text.as_str())),
                        (owned(pieces).as_slice(), end)
                    );
                    return;
                }
            }
        }
        assert_eq!(
            (seen.as_slice(), Ok(stream.finish().as_str())),
            (owned(pieces).as_slice(), end)
        );
    }

    fn owned(pieces: &[&str]) -> Vec<String> {
        pieces.iter().map(|piece| (*piece).to_owned()).collect()
    }

    #[test]
    fn characters_are_never_cut() {
        check(
            &[],
            &[b"a\xe2", b"\x82", b"\xac!"],
            &["a", "", "€!"],
            Ok(""),
        );
        check(
            &[],
            &[b"\xf0\x9f", b"\x98\x80\xf0"],
            &["", "😀"],
            Ok("\u{fffd}"),
        );
        check(
            &[],
            &[b"\xffa\xe2", b"b"],
            &["\u{fffd}a", "\u{fffd}b"],
            Ok(""),
        );
    }

    #[test]
    fn stop_strings_are_never_shown() {
        check(
            &["\n\n"],
            &[b"a\n", b"b", b"\n", b"\nc"],
            &["a", "\nb", ""],
            Err(""),
        );
        check(
            &["STOP"],
            &[b"x ST", b"AB", b" STO"],
            &["x ", "STAB", " "],
            Ok("STO"),
        );
        check(&["b", "abc"], &[b"xa", b"bc"], &["x"], Err(""));
        check(
            &["\u{20ac}uro"],
            &[b"5 \xe2\x82", b"\xac", b"ur", b"o!"],
            &["5 ", "", ""],
            Err(""),
        );
        check(&["aab"], &[b"a", b"a", b"a", b"b"], &["", "", "a"], Err(""));
    }
}
