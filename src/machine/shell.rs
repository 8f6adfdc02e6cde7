//! A shell on a machine: what is asked for, and the pieces that go both ways while it is open.
//!
//! A piece is its kind (a byte), its length (four bytes, little-endian) and that much of whatever it is. Pieces are small, and who does
//! not read them stops who writes them. The side that asked ends the shell by ending its stream. The other one ends with
//! [`FromShell::Ended`]; a stream that ends without it was cut off.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The most that is in a piece.
pub const PIECE_MAX: usize = 32 << 10;

/// What a shell is opened with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOrder {
    /// A line that the shell runs; none is a shell that reads what is typed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Environment beside the machine's own; nothing secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The terminal that it is shown on; none where its streams are pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
}

/// The terminal of whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// As `TERM` has it.
    pub term: String,
    /// Its size at first.
    #[serde(flatten)]
    pub size: WindowSize,
}

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Across.
    pub columns: u16,
    /// Down.
    pub rows: u16,
}

/// To a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToShell {
    /// What is typed or piped in; nothing at all is its end.
    Input(Vec<u8>),
    /// The terminal has another size now.
    Size(WindowSize),
}

/// From a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromShell {
    /// Of its standard output, or of its terminal.
    Output(Vec<u8>),
    /// Of its standard error.
    Error(Vec<u8>),
    /// It ended, with this status; by a signal with 128 and the signal's number.
    Ended(u8),
}

const INPUT: u8 = 0;
const SIZE: u8 = 1;
const OUTPUT: u8 = 2;
const ERROR: u8 = 3;
const ENDED: u8 = 4;

impl ToShell {
    /// Writes it.
    ///
    /// # Errors
    /// When the stream does not take it.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        match self {
            Self::Input(data) => write(to, INPUT, data).await,
            Self::Size(size) => {
                let [a, b] = size.columns.to_le_bytes();
                let [c, d] = size.rows.to_le_bytes();
                write(to, SIZE, &[a, b, c, d]).await
            }
        }
    }

    /// Reads the next one; none at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks, or what comes is no such piece.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let Some((kind, data)) = read(from).await? else {
            return Ok(None);
        };
        match (kind, data.as_slice()) {
            (INPUT, _) => Ok(Some(Self::Input(data))),
            (SIZE, &[a, b, c, d]) => Ok(Some(Self::Size(WindowSize {
                columns: u16::from_le_bytes([a, b]),
                rows: u16::from_le_bytes([c, d]),
            }))),
            (_, _) => Err(odd(kind, data.len())),
        }
    }
}

impl FromShell {
    /// Writes it.
    ///
    /// # Errors
    /// When the stream does not take it.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        match self {
            Self::Output(data) => write(to, OUTPUT, data).await,
            Self::Error(data) => write(to, ERROR, data).await,
            Self::Ended(status) => write(to, ENDED, &[*status]).await,
        }
    }

    /// Reads the next one; none at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks, or what comes is no such piece.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let Some((kind, data)) = read(from).await? else {
            return Ok(None);
        };
        match (kind, data.as_slice()) {
            (OUTPUT, _) => Ok(Some(Self::Output(data))),
            (ERROR, _) => Ok(Some(Self::Error(data))),
            (ENDED, &[status]) => Ok(Some(Self::Ended(status))),
            (_, _) => Err(odd(kind, data.len())),
        }
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), kind: u8, data: &[u8]) -> io::Result<()> {
    let length = u32::try_from(data.len()).expect("a piece is small");
    let mut piece = Vec::with_capacity(5 + data.len());
    piece.push(kind);
    piece.extend_from_slice(&length.to_le_bytes());
    piece.extend_from_slice(data);
    to.write_all(&piece).await?;
    to.flush().await
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind).await? == 0 {
        return Ok(None);
    }
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > PIECE_MAX {
        return Err(odd(kind[0], length));
    }
    let mut data = vec![0; length];
    from.read_exact(&mut data).await?;
    Ok(Some((kind[0], data)))
}

fn odd(kind: u8, length: usize) -> io::Error {
    io::Error::other(format!(
        "a piece of kind {kind} with {length} bytes is none of a shell"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_read_what_they_write() {
        let size = WindowSize {
            columns: 300,
            rows: 2,
        };
        let mut bytes = Vec::new();
        let told = [
            ToShell::Input(b"a\0\xff".to_vec()),
            ToShell::Size(size),
            ToShell::Input(Vec::new()),
        ];
        for piece in &told {
            piece.write(&mut bytes).await.expect("a vector");
        }
        let mut from = &bytes[..];
        for piece in told {
            assert_eq!(ToShell::read(&mut from).await.expect("whole"), Some(piece));
        }
        assert_eq!(ToShell::read(&mut from).await.expect("the end"), None);

        let mut bytes = Vec::new();
        let said = [
            FromShell::Output(vec![7; PIECE_MAX]),
            FromShell::Error(b"no".to_vec()),
            FromShell::Ended(143),
        ];
        for piece in &said {
            piece.write(&mut bytes).await.expect("a vector");
        }
        let mut from = &bytes[..];
        for piece in said {
            assert_eq!(
                FromShell::read(&mut from).await.expect("whole"),
                Some(piece)
            );
        }
    }

    #[tokio::test]
    async fn what_is_no_piece_is_refused_before_it_is_read() {
        for bytes in [
            &[INPUT, 0xff, 0xff, 0xff, 0xff][..],
            &[SIZE, 1, 0, 0, 0, 9],
            &[OUTPUT, 0, 0, 0, 0],
            &[INPUT, 2, 0, 0, 0, 1],
            &[INPUT, 2],
        ] {
            let mut from = bytes;
            ToShell::read(&mut from).await.expect_err("no such piece");
        }
    }
}
