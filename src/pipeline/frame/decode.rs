//! Bytes → frames, piece by piece, from somebody nobody should trust.

use bytes::{Buf as _, BytesMut};

use super::{FRAME_MAX, Frame, FrameError, HEADER, Header, payload_max};

/// Bytes → frames, piece by piece.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    failed: Option<FrameError>,
}

impl Decoder {
    /// Takes bytes; the caller drains [`next`](Self::next) before it brings more, so no more than a frame waits here.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// The first fault, then and ever after.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot be fed in between"
    )]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let frame = self.decode();
        if let Err(error) = &frame {
            self.failed = Some(error.clone());
            self.buffer = BytesMut::new();
        }
        frame
    }

    /// Bytes that are held for what is to come.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.buffer.capacity()
    }

    fn decode(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*length) as usize;
        let check = |limit: usize| {
            if (HEADER..=limit).contains(&announced) {
                Ok(())
            } else {
                Err(FrameError::Length { announced, limit })
            }
        };
        check(FRAME_MAX)?;
        let Some(kind) = rest.first() else {
            return Ok(None);
        };
        let limit = payload_max(*kind).ok_or(FrameError::Field {
            kind: *kind,
            field: "kind",
            value: u64::from(*kind),
        })?;
        check(HEADER + limit)?;
        if rest.len() < announced {
            self.buffer.reserve(announced - rest.len());
            return Ok(None);
        }
        self.buffer.advance(4);
        let mut frame = self.buffer.split_to(announced).freeze();
        let header = Header::read(&mut frame)?;
        header.frame(frame).map(Some)
    }
}
