//! In the place of connections, where stageline was built without the feature `ssh`: it makes none and says so.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use secrecy::SecretString;

use super::{HostKey, Login, OwnKey, SshError};

/// Nothing: there is no connection.
#[derive(Debug)]
pub enum Session {}

/// What a program on the host printed.
#[derive(Debug)]
pub(super) struct Output {
    pub status: Option<u32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// None: nobody could log in with it.
pub(super) fn public(own: &OwnKey) -> Option<String> {
    let _unused = own.seed();
    None
}

/// None: nobody could be met by it.
pub(super) fn private_text(key: &OwnKey) -> Option<SecretString> {
    let _unused = key.seed();
    None
}

impl Session {
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub(super) async fn open(_: &Login) -> Result<Self, SshError> {
        Err(SshError::Key {
            message: "this stageline was built without SSH".to_owned(),
            hint: "use one that was built with the feature `ssh`".to_owned(),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        match *self {}
    }

    /// The key that the host has.
    pub fn host_key(&self) -> &HostKey {
        match *self {}
    }

    /// The address that answers.
    pub fn peer(&self) -> IpAddr {
        match *self {}
    }

    /// Nothing.
    ///
    /// # Errors
    /// None: there is no connection.
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub async fn carry(&self, _: tokio::net::TcpStream, _: u16) -> Result<(), SshError> {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "as the real one")]
    pub(super) async fn run(
        &self,
        _: &str,
        _: BoxStream<'_, Result<Bytes, SshError>>,
        _: Duration,
    ) -> Result<Output, SshError> {
        match *self {}
    }
}
