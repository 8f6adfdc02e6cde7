//! A TCP connection over a stream of the control protocol, the same at both of its ends.
//!
//! What always holds: each half ends by itself, as with TCP; what was cut off at one end is cut off at the other, and never looks
//! like an end. Nothing is kept but what is under way, so that a slow end slows the other.

use std::time::Duration;

use iroh::endpoint::{RecvStream, SendStream, VarInt};
use tokio::net::TcpStream;

/// What is read at once.
const PIECE: usize = 64 << 10;

/// Code on a stream whose other end was cut off.
const CUT: VarInt = VarInt::from_u32(1);

/// Carries both halves until both have ended, or one was cut off.
pub async fn carry(mut near: TcpStream, send: &mut SendStream, recv: &mut RecvStream) {
    // What is typed is not held back.
    near.set_nodelay(true).ok();
    let carried = {
        let mut far = tokio::io::join(&mut *recv, &mut *send);
        tokio::io::copy_bidirectional_with_sizes(&mut near, &mut far, PIECE, PIECE).await
    };
    if carried.is_err() {
        // They may have ended before; then nobody has to be told.
        send.reset(CUT).ok();
        recv.stop(CUT).ok();
        rustix::net::sockopt::set_socket_linger(&near, Some(Duration::ZERO)).ok();
    }
}
