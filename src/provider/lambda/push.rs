//! The agent of a machine that was launched with a key of its own: pushed over SSH.
//!
//! The machine is known before it is met: its launch says which key its host has. An image's own key, which it may show before it has
//! read that, is refused and waited for.

use std::net::{IpAddr, SocketAddr};

use stageline_core::id::MachineId;
use stageline_core::resource::Cause;
use stageline_core::topology::AgentSource;

use super::boot::PORT;
use super::{LOOK_AGE, Lambda};
use crate::provider::doors::Door;
use crate::provider::{Bring, Brought, Phase, SSH_PHASE};
use crate::ssh::{HostPair, Login, Place};

/// As whom the provider's images let one in.
const USER: &str = "ubuntu";

/// Where machines of a simulator are got in to: each has an address of this computer, where port 22 is somebody else's.
const PORT_HERE: u16 = 2222;

impl Lambda {
    /// Pushes the agent, where it gets there so.
    pub(super) async fn push(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        if matches!(
            what.agent,
            Some(AgentSource::Fetch { .. } | AgentSource::Image)
        ) {
            return Ok(Brought::There);
        }
        let wait = |why: String| Ok(Brought::Pending(Phase::new(SSH_PHASE).because(why)));
        let seen = match self.all(LOOK_AGE).await {
            Ok(all) => all.into_iter().find(|seen| seen.machine.id == *id),
            Err(fault) => return wait(format!(": {}", fault.cause.message)),
        };
        let Some(seen) = seen else {
            return wait(": the provider does not list it".to_owned());
        };
        let (Some(ip), Some(key)) = (seen.ip, &seen.machine.request_key) else {
            return wait(": its address is not told yet".to_owned());
        };
        let pair = HostPair::of(&what.boot.agent_key);
        let door = Door {
            place: self.place(ip),
            pinned: pair.public(),
            listen: Some(self.listen(ip)),
            own_end: None,
        };
        self.doors.bring((id, key), door, what).await
    }

    fn place(&self, ip: IpAddr) -> Place {
        Place {
            user: USER.to_owned(),
            address: ip.to_string(),
            port: if self.is_here() { PORT_HERE } else { 22 },
        }
    }

    /// Where the agent listens: everywhere, but that machines of a simulator share this computer.
    fn listen(&self, ip: IpAddr) -> SocketAddr {
        let everywhere = IpAddr::from([0, 0, 0, 0]);
        SocketAddr::new(if self.is_here() { ip } else { everywhere }, PORT)
    }

    fn is_here(&self) -> bool {
        self.api.base().is_ok_and(|base| base.loopback)
    }

    /// How one logs in to a machine that was seen.
    pub(super) fn way_in(&self, id: &MachineId) -> Option<Login> {
        let ip = {
            let ips = self.ips.lock().expect("no holder panics");
            *ips.get(id)?
        };
        self.doors.login(id, self.place(ip))
    }
}
