//! Text of somebody else made safe for a terminal.
//!
//! Workers and agents print what they like; a terminal obeys escape sequences. What leaves this module has no control
//! character but line ends and tabs. It never fails and never grows its input.

/// Where in an escape sequence the stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Outside.
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// In a sequence that ends with a letter, `ESC [ ...`.
    Csi,
    /// In a text for the terminal itself, `ESC ] ...`, that ends with BEL or `ESC \`.
    Osc,
    /// After ESC inside that text.
    OscEscape,
}

/// Strips escape sequences and control characters from a stream, whatever way it is cut.
#[derive(Clone, Debug, Default)]
pub struct Stripper {
    place: Place,
    /// Bytes of a sequence so far: an endless one is given up.
    length: usize,
    /// A UTF-8 lead byte C2 that was held back: the next byte may make it a control character.
    held: bool,
}

/// No honest sequence is longer.
const SEQUENCE_MAX: usize = 4096;

impl Stripper {
    /// The printable rest of some bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::with_capacity(bytes.len() + 1);
        for byte in bytes {
            self.take(*byte, &mut plain);
        }
        plain
    }

    fn take(&mut self, byte: u8, plain: &mut Vec<u8>) {
        self.length += 1;
        if self.place != Place::Text && self.length > SEQUENCE_MAX {
            self.place = Place::Text;
        }
        match self.place {
            Place::Text => self.text(byte, plain),
            Place::Escape => match byte {
                b'[' => self.place = Place::Csi,
                b']' | b'P' | b'X' | b'^' | b'_' => self.place = Place::Osc,
                // Intermediate bytes of a short sequence such as `ESC ( B`.
                b' '..=b'/' => {}
                _ => self.place = Place::Text,
            },
            Place::Csi => {
                if (0x40..=0x7e).contains(&byte) || byte == b'\n' {
                    self.place = Place::Text;
                }
            }
            Place::Osc => match byte {
                0x07 | b'\n' => self.place = Place::Text,
                0x1b => self.place = Place::OscEscape,
                _ => {}
            },
            Place::OscEscape => {
                self.place = if byte == b'\\' {
                    Place::Text
                } else {
                    Place::Osc
                };
            }
        }
    }

    fn text(&mut self, byte: u8, plain: &mut Vec<u8>) {
        if std::mem::take(&mut self.held) {
            // C2 80 to C2 9F are the control characters U+0080 to U+009F.
            if (0x80..=0x9f).contains(&byte) {
                return;
            }
            plain.push(0xc2);
        }
        match byte {
            0x1b => {
                self.place = Place::Escape;
                self.length = 0;
            }
            0xc2 => self.held = true,
            b'\n' | b'\t' => plain.push(byte),
            0..=0x1f | 0x7f => {}
            _ => plain.push(byte),
        }
    }
}

/// A message of somebody else: one that a terminal can show, at most `max` bytes.
pub fn message(text: &str, max: usize) -> String {
    let bytes = Stripper::default().push(text.as_bytes());
    let mut plain = String::from_utf8_lossy(&bytes).into_owned();
    if plain.len() > max {
        let mut cut = max;
        while !plain.is_char_boundary(cut) {
            cut -= 1;
        }
        plain.truncate(cut);
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}b\u{1b}]52;c;eA==\u{1b}\\c\r\u{8}\u{9b}2J é\u{85}\n\td\u{1b}(Be";

    #[test]
    fn no_control_character_survives() {
        assert_eq!(message(HOSTILE, 999), "ared bc2J é\n\tde");
    }

    #[test]
    fn however_the_stream_is_cut() {
        for size in 1..HOSTILE.len() {
            let mut stripper = Stripper::default();
            let pieces = HOSTILE.as_bytes().chunks(size);
            let plain: Vec<u8> = pieces.flat_map(|piece| stripper.push(piece)).collect();
            assert_eq!(
                String::from_utf8_lossy(&plain),
                "ared bc2J é\n\tde",
                "{size}"
            );
        }
    }

    #[test]
    fn an_endless_sequence_does_not_swallow_everything() {
        let mut text = "\u{1b}]".to_owned();
        text.push_str(&"x".repeat(SEQUENCE_MAX));
        text.push_str("seen");
        assert!(message(&text, 99_999).ends_with("seen"));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(message("ééé", 3), "é…");
    }
}
