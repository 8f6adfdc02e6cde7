//! In the place of SSH servers, where stageline was built without the feature `ssh`: there are none.

use std::net::SocketAddr;
use std::path::Path;

use super::access::Access;

/// Nothing.
pub(super) struct Door {
    pub address: SocketAddr,
}

impl Door {
    pub(super) fn open(_: SocketAddr, _: Access, _: &Path) -> std::io::Result<Self> {
        Err(std::io::Error::other("built without SSH"))
    }
}
