//! Gets a machine: notes it, runs `acquire`, and gives back at once what one that failed may have begun.
//!
//! What always holds: the machine is noted, durably, before the program runs, and what that printed before it is looked at, so that
//! `release` has it whatever it is worth. Not sure that nothing is left, it is a doubt and no refusal.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use stageline_core::id::{MachineId, Name};
use stageline_core::resource::{Cause, FailureClass, Outcome};
use stageline_core::topology::{AgentSource, OFFER_FIELD, Programs};

use super::program::{self, Call, Ended, How};
use super::record::{Record, Stage, lease_id};
use super::{ACQUIRE_MAX, CommandProvider, UNDO_MAX, answer, class_of, wrong};
use crate::ambient::crash_point;
use crate::provider::http::{package, start_script};
use crate::provider::local::process::identify;
use crate::provider::{CreateRequest, Machine, Released};
use crate::ssh::OwnKey;

/// Where an agent listens whose address the program does not tell.
const PORT: u16 = crate::agent::PORT;

/// Takes note that this process waits for an `acquire`, until it does not any more.
struct Waiting<'a>(&'a CommandProvider, MachineId);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut acquiring = self.0.acquiring.lock().expect("no holder panics");
        acquiring.remove(&self.1);
    }
}

impl CommandProvider {
    /// The variables of `acquire`, and those of them that are secret.
    fn handed(
        &self,
        request: &CreateRequest,
        offer: &Name,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let boot = &request.boot;
        let listen = SocketAddr::from(([0, 0, 0, 0], PORT));
        let agent = request.agent.as_ref();
        let agent = agent.unwrap_or(&AgentSource::Image);
        let own = format!("provider.{OFFER_FIELD}=");
        let wanted = request.requirement.to_string();
        let wanted: Vec<&str> = wanted
            .split(", ")
            .filter(|term| !term.starts_with(&own))
            .collect();
        let mut env = self.variables("acquire");
        let more = [
            (
                "ERRAND_LEASE_ID",
                lease_id(&request.request_key).to_string(),
            ),
            ("ERRAND_OFFER", offer.to_string()),
            ("ERRAND_LEASE_WHERE", wanted.join(", ")),
            ("ERRAND_LEASE_LOGIN", String::new()),
            (
                "ERRAND_LEASE_SSH_KEY",
                OwnKey::of(&boot.agent_key).public().unwrap_or_default(),
            ),
            ("STAGELINE_NAME", request.request_key.to_string()),
            ("STAGELINE_LEASE", boot.lease.to_string()),
            ("STAGELINE_DISK", request.disk.gib_up().to_string()),
            ("STAGELINE_IMAGE", request.image.clone().unwrap_or_default()),
            ("STAGELINE_START", start_script(agent, None)),
        ];
        env.extend(more.map(|(name, value)| (name.to_owned(), value)));
        (env, package(boot, Some(listen)).environment())
    }

    /// Whether all of its programs can be run, and the one offer that is meant: before anything is made.
    pub(super) fn ready_to(&self, request: &CreateRequest) -> Result<Name, Cause> {
        let Programs {
            acquire,
            release,
            list,
            facts: _,
            price: _,
        } = &self.settings.programs;
        let needed = [
            ("acquire", Some(acquire)),
            ("release", Some(release)),
            ("list", list.as_ref()),
        ];
        for (verb, argv) in needed {
            if let Some(Err(why)) = argv.map(|argv| program::found(argv, &self.settings.folder)) {
                let message = format!("its program `{verb}` cannot be run: {why}");
                let hint = "nothing was begun; put that right, then run the same command again";
                return Err(self.named(Cause::new(FailureClass::Config, message).hint(hint)));
            }
        }
        let offer = request.quote.id.0.parse::<Name>().ok();
        let offer = offer.filter(|offer| self.settings.offers.contains_key(offer));
        let Some(offer) = offer else {
            let message = format!("there is no offer `{}` any more", request.quote.id);
            return Err(self.named(Cause::new(FailureClass::OfferGone, message)));
        };
        let own = (request.boot.lease.clone(), offer);
        if self.hung.lock().expect("no holder panics").contains(&own) {
            return Err(self.named(self.hangs()));
        }
        Ok(own.1)
    }

    /// Why an `acquire` that hung is not run again for the same lease by this command. Another offer may do.
    fn hangs(&self) -> Cause {
        let message = format!(
            "its program `acquire` did not end within {} s, and what it may have begun was given back; it is not run again now, \
             since it would hang again",
            self.settings.timeout.as_secs()
        );
        Cause::new(FailureClass::OfferGone, message).hint(format!(
            "see why it hangs, or raise `timeout` of [provider.{}] if it needs more time; then run the same command again",
            self.settings.name
        ))
    }

    /// Notes the machine, and runs `acquire`.
    pub(super) async fn acquire(&self, request: &CreateRequest, offer: Name) -> Outcome<Machine> {
        let settings = &self.settings;
        let at = settings.clock.now();
        let mut record = Record::begin(
            request,
            offer.clone(),
            at,
            &settings.programs,
            (&settings.folder, settings.timeout),
        );
        let (env, secret) = self.handed(request, &offer);
        record.hand(&env);
        let id = record.id();
        self.acquiring
            .lock()
            .expect("no holder panics")
            .insert(id.clone());
        let _waiting = Waiting(self, id.clone());
        if let Err(cause) = self.records.write(&record) {
            return Outcome::Refused(self.named(cause));
        }
        crash_point("a create, not yet sent");
        let running = program::start(Call {
            verb: "acquire",
            argv: &settings.programs.acquire,
            folder: &settings.folder,
            env,
            secret,
            stdout_max: ACQUIRE_MAX,
            within: settings.timeout,
            told: request.told.clone(),
        });
        let running = match running {
            Ok(running) => running,
            Err(cause) => {
                let cause = self.named(cause);
                return match self.records.remove(&id) {
                    Ok(()) => Outcome::Refused(cause),
                    Err(_) => Outcome::InDoubt(cause),
                };
            }
        };
        record.acquire = running.pid().and_then(identify);
        // Not fatal: it only helps to end an `acquire` that outlives this process.
        self.records.write(&record).ok();
        let ended = running.end().await;
        crash_point("a create, just answered");
        self.records.keep_words(&id, &ended.said);
        self.acquired(request, record, &ended).await
    }

    /// What follows from how `acquire` ended.
    async fn acquired(
        &self,
        request: &CreateRequest,
        mut record: Record,
        ended: &Ended,
    ) -> Outcome<Machine> {
        let last = ended.last_line().filter(|line| line.starts_with('{'));
        // Before it is looked at, so that `release` has it whatever it is worth.
        record.state = last.unwrap_or_default().to_owned();
        // One that printed too much was ended in the midst of telling, and not of getting.
        record.cut = ended.how == How::TooLong;
        if let Err(cause) = self.records.write(&record) {
            return Outcome::InDoubt(self.named(cause));
        }
        if !ended.is_well() {
            let within = self.settings.timeout;
            let told = ended.told("its program `acquire` failed", within, ACQUIRE_MAX);
            if ended.how == How::TooLong {
                let own = (record.lease.clone(), record.offer.clone());
                self.hung.lock().expect("no holder panics").insert(own);
            }
            let cause = Cause::new(class_of(ended), told);
            return self.undo(record, cause).await;
        }
        let answer = match answer::acquired(ended.last_line()) {
            Ok(answer) => answer,
            Err(why) => return self.undo(record, wrong("acquire", &why)).await,
        };
        record.direct = answer.direct;
        if let (true, Some(host)) = (record.direct.is_empty(), answer.host) {
            record.direct = addresses(&host).await;
        }
        record.stage = Stage::Held;
        self.listing.forget().await;
        match self.records.write(&record) {
            Err(cause) => Outcome::InDoubt(self.named(cause)),
            Ok(()) => Outcome::Done(Machine {
                facts: request.quote.facts.clone(),
                ..self.of_record(&record, false)
            }),
        }
    }

    /// Gives back what an `acquire` that failed may have begun. Not sure of that, it is a doubt.
    async fn undo(&self, record: Record, cause: Cause) -> Outcome<Machine> {
        let cause = self.named(cause);
        if record.cut {
            return Outcome::InDoubt(cause);
        }
        match self.give_back(&record, UNDO_MAX).await {
            Ok(Released::Accepted | Released::Unknown) if !self.is_noted(&record) => {
                let hint = "what it had begun was given back by `release`";
                Outcome::Refused(Cause {
                    hint: cause.hint.or_else(|| Some(hint.to_owned())),
                    ..cause
                })
            }
            Ok(_) => Outcome::InDoubt(cause),
            Err(other) => Outcome::InDoubt(Cause {
                message: format!("{}; and then: {}", cause.message, other.message),
                ..cause
            }),
        }
    }

    fn is_noted(&self, record: &Record) -> bool {
        !matches!(self.records.read(&record.id()), Ok(None))
    }
}

/// Where an agent on this host listens when nothing else is said. A name that nobody knows leads nowhere.
async fn addresses(host: &str) -> Vec<SocketAddr> {
    let found = tokio::time::timeout(
        Duration::from_secs(3),
        tokio::net::lookup_host((host, PORT)),
    );
    match found.await {
        Ok(Ok(found)) => found.take(4).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}
