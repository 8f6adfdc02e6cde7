//! A wall around protocol handlers: iroh's router ends when one of them panics, and an agent must not.
//!
//! What always holds: a panic ends the connection that it happened on and nothing else.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use iroh::endpoint::{Connection, VarInt};
use iroh::protocol::{AcceptError, ProtocolHandler};

/// Code on a connection whose handler panicked.
const FAULT: u32 = 500;

/// A handler that cannot end its router.
#[derive(Debug)]
pub(super) struct Guard<H>(pub(super) H);

impl<H: ProtocolHandler> ProtocolHandler for Guard<H> {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let handled = AssertUnwindSafe(self.0.accept(connection.clone()));
        if let Ok(ended) = handled.catch_unwind().await {
            return ended;
        }
        connection.close(VarInt::from_u32(FAULT), b"a fault in the agent");
        Ok(())
    }

    async fn shutdown(&self) {
        AssertUnwindSafe(self.0.shutdown())
            .catch_unwind()
            .await
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use iroh::protocol::Router;

    use crate::pipeline::endpoint::{EndpointOptions, address, bind, contact};
    use crate::pipeline::keys::Secret;

    /// Panics once per connection, after having answered that it lives.
    #[derive(Debug)]
    struct Panics;

    impl ProtocolHandler for Panics {
        async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
            let (mut send, _) = connection.accept_bi().await?;
            send.write_all(b"alive")
                .await
                .map_err(AcceptError::from_err)?;
            send.finish().map_err(AcceptError::from_err)?;
            send.stopped().await.map_err(AcceptError::from_err)?;
            panic!("a fault, on purpose");
        }
    }

    #[tokio::test]
    async fn a_handler_that_panics_answers_the_next_one_too() {
        const ALPN: &[u8] = b"test/1";
        let here = Secret::new([1; 32]);
        let endpoint = bind(&here, EndpointOptions::default())
            .await
            .expect("bound");
        let there = address(here.endpoint(), &contact(&endpoint)).expect("an address");
        let router = Router::builder(endpoint)
            .accept(ALPN, Guard(Panics))
            .spawn();
        let dialler = bind(&Secret::new([2; 32]), EndpointOptions::default())
            .await
            .expect("bound");
        for _ in 0..2 {
            let connection = dialler.connect(there.clone(), ALPN).await.expect("dialled");
            let (mut send, mut recv) = connection.open_bi().await.expect("opened");
            send.write_all(b"?").await.expect("sent");
            assert_eq!(recv.read_to_end(9).await.expect("an answer"), b"alive");
            connection.closed().await;
        }
        dialler.close().await;
        router.shutdown().await.expect("no panic reached it");
    }
}
