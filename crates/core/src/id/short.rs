//! The text of identifiers without allocations. It is never longer than its buffer: the types see to that.

/// The text of a short identifier, made without an allocation: states and plans are mostly identifiers.
pub(super) struct Short {
    bytes: [u8; 64],
    length: usize,
}

impl Short {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; 64],
            length: 0,
        }
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        let end = self.length + text.len();
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        self
    }

    /// `[12]`
    pub(super) fn index(&mut self, index: u32) -> &mut Self {
        let mut digits = [0; 10];
        let mut start = digits.len();
        let mut rest = index;
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(rest % 10).expect("a digit");
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push("[");
        let digits = &digits[start..];
        self.bytes[self.length..self.length + digits.len()].copy_from_slice(digits);
        self.length += digits.len();
        self.push("]")
    }

    pub(super) fn hex(&mut self, bytes: &[u8]) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in bytes {
            self.bytes[self.length] = DIGITS[usize::from(byte >> 4)];
            self.bytes[self.length + 1] = DIGITS[usize::from(byte & 15)];
            self.length += 2;
        }
        self
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).expect("only text was pushed")
    }
}

/// The values of hexadecimal digits; 0x80 for what is none.
const VALUES: [u8; 256] = {
    let mut values = [0x80; 256];
    let mut digit = 0;
    while digit < 16 {
        let (lower, upper) = (b"0123456789abcdef", b"0123456789ABCDEF");
        values[lower[digit as usize] as usize] = digit;
        values[upper[digit as usize] as usize] = digit;
        digit += 1;
    }
    values
};

/// Reads two digits for each byte, and tells whether that is what they are.
pub(super) fn unhex(text: &[u8], bytes: &mut [u8]) -> bool {
    let mut seen = 0;
    let (pairs, _) = text.as_chunks::<2>();
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let (high, low) = (VALUES[usize::from(*high)], VALUES[usize::from(*low)]);
        seen |= high | low;
        *byte = high << 4 | low;
    }
    seen < 0x80
}
