//! Agents on their way to hosts: one for each machine, beside whatever else is done, shown as phases.
//!
//! Nothing is sent before the host's key is on record. What may pass is tried again until whoever waits gives up.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use stageline_core::id::{MachineId, RequestKey};
use stageline_core::resource::Cause;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::OwnEnd;
use crate::agent::boot::Package;
use crate::provider::http::package;
use crate::provider::{Bring, Brought, Phase, SSH_PHASE};
use crate::ssh::{self, Builds, Host, Load, SshError};

/// Agents on their way.
#[derive(Default)]
pub(in crate::provider) struct Pushes(Mutex<BTreeMap<MachineId, Push>>);

/// A machine that an agent is brought to.
pub(in crate::provider) struct Bound<'a> {
    pub id: &'a MachineId,
    /// By which its folder there is named.
    pub key: &'a RequestKey,
    /// Under which the key of its host is on record.
    pub name: &'a str,
    /// The host is one's own: it is marked as taken, and what it shows counts. Else the machine is on its way: another key, or that
    /// it lets nobody in yet, may pass.
    pub own: bool,
    /// Where its agent is to listen; none is any port, the usual one first.
    pub listen: Option<SocketAddr>,
    /// How the machine ends itself; none where it cannot.
    pub own_end: Option<OwnEnd>,
}

enum Push {
    OnItsWay(Arc<Mutex<Phase>>, AbortOnDropHandle<Result<(), SshError>>),
    Done,
}

/// Where a push was found to be.
enum Found {
    None,
    Pending(Phase),
    Ended(AbortOnDropHandle<Result<(), SshError>>),
    Done,
}

impl Pushes {
    /// Begins to put the agent there, or tells how far that is.
    pub async fn bring(
        &self,
        machine: Bound<'_>,
        host: &Arc<Host>,
        builds: &Arc<Builds>,
        what: Bring<'_>,
    ) -> Result<Brought, Cause> {
        let Bound {
            id,
            key,
            name,
            own,
            listen,
            own_end,
        } = machine;
        match self.found(id) {
            Found::Done if !what.lacks_worker => return Ok(Brought::There),
            Found::Pending(phase) => return Ok(Brought::Pending(phase)),
            Found::Ended(task) => {
                let ended = task
                    .await
                    .expect("a push does not panic and is not aborted here");
                return self.ended((id, own), host, ended);
            }
            Found::Done | Found::None => {}
        }
        let session = match host.session().await {
            Ok(session) => session,
            Err(error) => return self.ended((id, own), host, Err(error)),
        };
        let met = session.host_key().as_str();
        if what.host_keys.get(name).map(String::as_str) != Some(met) {
            return Ok(Brought::Met {
                key: met.to_owned(),
                fingerprint: session.host_key().fingerprint(),
                host: name.to_owned(),
            });
        }
        let sent = match what.lacks_worker {
            true => "its worker is on its way",
            false => "its agent is on its way",
        };
        let phase = Arc::new(Mutex::new(Phase::new(sent)));
        let task = tokio::spawn(carry(
            (Arc::clone(host), Arc::clone(builds)),
            key.clone(),
            (what.native, what.lacks_worker, own),
            load(what, listen, own_end),
            Arc::clone(&phase),
        ));
        let now = phase.lock().expect("no holder panics").clone();
        let push = Push::OnItsWay(phase, AbortOnDropHandle::new(task));
        self.0
            .lock()
            .expect("no holder panics")
            .insert(id.clone(), push);
        Ok(Brought::Pending(now))
    }

    /// Nothing more is sent there.
    pub fn stop(&self, id: &MachineId) {
        self.0.lock().expect("no holder panics").remove(id);
    }

    fn found(&self, id: &MachineId) -> Found {
        let mut all = self.0.lock().expect("no holder panics");
        match all.remove(id) {
            None => Found::None,
            Some(Push::Done) => {
                all.insert(id.clone(), Push::Done);
                Found::Done
            }
            Some(Push::OnItsWay(_, task)) if task.is_finished() => Found::Ended(task),
            Some(Push::OnItsWay(phase, task)) => {
                let now = phase.lock().expect("no holder panics").clone();
                all.insert(id.clone(), Push::OnItsWay(phase, task));
                Found::Pending(now)
            }
        }
    }

    fn ended(
        &self,
        (id, own): (&MachineId, bool),
        host: &Host,
        ended: Result<(), SshError>,
    ) -> Result<Brought, Cause> {
        match ended {
            Ok(()) => {
                self.0
                    .lock()
                    .expect("no holder panics")
                    .insert(id.clone(), Push::Done);
                Ok(Brought::There)
            }
            Err(error) if error.may_pass() || (!own && error.is_the_hosts()) => {
                let why = format!("at {}: {error}", host.place());
                Ok(Brought::Pending(Phase::new(SSH_PHASE).because(why)))
            }
            Err(error) => Err(error.cause(host.place())),
        }
    }
}

fn load(what: Bring<'_>, listen: Option<SocketAddr>, own_end: Option<OwnEnd>) -> Package {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let mut package = package(&what.boot, Some(listen.unwrap_or(any)));
    package.config.own_end = own_end;
    package
}

async fn carry(
    (host, builds): (Arc<Host>, Arc<Builds>),
    key: RequestKey,
    (native, lacks_worker, marked): (bool, bool, bool),
    mut package: Package,
    phase: Arc<Mutex<Phase>>,
) -> Result<(), SshError> {
    let told = |what: &str, percent: Option<u8>| {
        let now = Phase::new(what);
        let now = match percent {
            Some(percent) => now.at(percent),
            None => now,
        };
        *phase.lock().expect("no holder panics") = now;
    };
    host.session().await?;
    if lacks_worker {
        return ssh::send_workers(&host, &builds, &key, &told).await;
    }
    // Easy to let through a firewall; on this computer there is none, and the port may be somebody else's.
    let far = host.peer().is_some_and(|peer| !peer.is_loopback());
    let any = package
        .config
        .listen
        .is_none_or(|listen| listen.port() == 0);
    package.config.port = (far && any).then_some(crate::agent::PORT);
    let load = Load {
        key: &key,
        package: &package,
        marked,
        native,
    };
    ssh::push(&host, &builds, &load, &told).await
}
