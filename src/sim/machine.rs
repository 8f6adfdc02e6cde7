//! One machine of a simulator: what was rented, how far it is, and what it costs.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use stageline_core::offer::Facts;
use stageline_core::unit::MicroDollars;

use super::access::Access;
use super::bill::Meter;
use super::boot::Agent;
use super::volume::Attached;

/// Marks, in what a record has more, a machine that was forgotten at once.
pub(super) const FORGOTTEN: &str = "forgotten";

/// What can be rented.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Its number.
    pub id: u64,
    /// What is claimed.
    pub facts: Facts,
    /// For an hour, without disk.
    pub price: MicroDollars,
    /// For a GiB of disk and a month.
    pub disk_month: MicroDollars,
    /// Somebody has it, or there is none left.
    pub taken: bool,
    /// A shape of which there are several: one that is made leaves it as it is.
    pub many: bool,
    /// The host that it is on.
    pub host: u64,
}

impl Offer {
    /// What it costs now, without disk.
    pub fn price_now(&self, factor: f64) -> MicroDollars {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "prices are small and positive"
        )]
        MicroDollars((self.price.0 as f64 * factor).round() as u64)
    }

    /// The least bid that is taken now, and keeps a machine: half the price on demand.
    pub fn least_bid(&self, factor: f64) -> MicroDollars {
        MicroDollars(self.price_now(factor).0 / 2)
    }
}

/// How a boot goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// It runs in the end.
    Well,
    /// It stays where it is.
    Never,
    /// It fails; how, in the word of the knob.
    Dies(String),
}

/// Where a machine is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    /// The host has not begun.
    Provisioning,
    /// The image is on its way; hundredths.
    Loading(u8),
    /// It runs.
    Running,
    /// Its boot failed.
    Failed(String),
    /// It is stopped, and its disk bills on.
    Stopped,
    /// Its host is away, and bills nothing.
    Offline,
}

/// A machine.
pub struct Machine {
    /// Its number.
    pub id: u64,
    /// Whose it is.
    pub account: String,
    /// The name that it was given.
    pub label: String,
    /// The offer that it was made from.
    pub offer: Offer,
    /// What the instance's own record says it is.
    pub facts: Facts,
    /// What its agent finds.
    pub found: Facts,
    /// Its image.
    pub image: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its start command.
    pub onstart: String,
    /// Where its agent listens; none is a free port, which is mapped.
    pub listen: Option<SocketAddr>,
    /// Who gets in by SSH; none where nobody is to.
    pub access: Option<Access>,
    /// What it has of what outlives it.
    pub mounts: Vec<Attached>,
    /// What only this provider's record of it has.
    pub more: Value,
    /// Times are milliseconds of the simulator's clock.
    pub created: u64,
    /// Until when the host has not begun.
    pub provisioned: u64,
    /// When it runs.
    pub runs: u64,
    /// How its boot goes.
    pub course: Course,
    /// What is bid for it, without its disk; none is on demand.
    pub bid: Option<MicroDollars>,
    /// From when it is listed, and found by id.
    pub listed_from: u64,
    /// The same by id.
    pub found_from: u64,
    /// It costs this, without its disk, from then on.
    pub later: Option<(u64, MicroDollars)>,
    /// Its host asks for this, without its disk, from then on.
    pub asked: Option<(u64, MicroDollars)>,
    /// Somebody else ends it then; without a trace, or as whoever ends one.
    pub meddled: Option<(u64, bool)>,
    /// It is none of ours, whatever it is called.
    pub foreign: bool,
    /// It is stopped from then on.
    pub stopped_from: Option<u64>,
    /// When it stood still before that, from when until when.
    pub stops: Vec<(u64, u64)>,
    /// Its host is away from then until then.
    pub away: Option<(u64, u64)>,
    /// Its address is told from then on.
    pub address_from: u64,
    /// How often its address is told wrong.
    pub wrong_address: u32,
    /// It is somewhere else from then on.
    pub moves: Option<u64>,
    /// It is gone from then on.
    pub gone_from: Option<u64>,
    /// It was gone, and is listed until then all the same.
    pub ghost_until: u64,
    /// It costs its price from the create on, whatever its state, and not only while it runs.
    pub bills_booting: bool,
    /// For so long it is on its way out, and bills, once its end was asked for.
    pub ends_within: u64,
    /// It is handed a key with which it can end itself, where its provider has such keys.
    pub own_key: bool,
    /// What it costs.
    pub meter: Meter,
    /// Its agent.
    pub agent: Option<Agent>,
    /// Its agent was started once.
    pub started: bool,
}

impl Machine {
    /// Where it is.
    pub fn stand(&self, now: u64) -> Stand {
        if self
            .away
            .is_some_and(|(from, until)| (from..until).contains(&now))
        {
            return Stand::Offline;
        }
        if self.stopped_from.is_some_and(|from| now >= from) {
            return Stand::Stopped;
        }
        if now < self.provisioned {
            return Stand::Provisioning;
        }
        if now < self.runs {
            let whole = self.runs.saturating_sub(self.provisioned).max(1);
            let done = now.saturating_sub(self.provisioned) * 100 / whole;
            return Stand::Loading(u8::try_from(done.min(99)).unwrap_or(99));
        }
        match &self.course {
            Course::Well => Stand::Running,
            Course::Never => Stand::Loading(12),
            Course::Dies(how) => Stand::Failed(how.clone()),
        }
    }

    /// What others do to it.
    pub(super) fn befall(&mut self, now: u64) {
        let due = |(at, _): &(u64, bool)| *at <= now;
        let Some((at, without_a_trace)) = self.meddled.take_if(|meddled| due(meddled)) else {
            return;
        };
        if self.gone_from.is_some() {
            return;
        }
        if without_a_trace {
            self.gone_from = Some(at);
            self.more[FORGOTTEN] = Value::Bool(true);
        } else {
            self.gone_from = Some(at + self.ends_within);
        }
    }

    /// Stops it; one that stands still is stopped since it was.
    pub(super) fn stop(&mut self, now: u64) {
        self.stopped_from = Some(self.stopped_from.map_or(now, |from| from.min(now)));
    }

    /// Has it run again, and bill so, from here on. A stop that was still to come does not.
    pub(super) fn start(&mut self, now: u64) {
        let stopped = self.stopped_from.take().filter(|from| *from < now);
        self.stops.extend(stopped.map(|from| (from, now)));
        self.started = false;
    }

    /// Whether it is there and costs money.
    pub fn is_there(&self, now: u64) -> bool {
        self.gone_from.is_none_or(|from| now < from)
    }

    /// Counts its bill up to now: the machine while it runs, its disk as long as it is there, nothing while its host is away;
    /// or all of it from its create until it is ended or taken back, wherever its host is.
    pub(super) fn count(&mut self, now: u64) {
        let due = |(at, _): &(u64, MicroDollars)| *at <= now;
        if let Some((at, price)) = self.later.take_if(|later| due(later)) {
            self.count_to(at);
            self.meter.turn(price);
        }
        self.count_to(now);
    }

    fn count_to(&mut self, now: u64) {
        let until = self.gone_from.map_or(now, |from| from.min(now));
        let away = match &self.course {
            _ if self.bills_booting => (0, 0),
            Course::Dies(how) if how == "offline" => (self.runs, u64::MAX),
            Course::Well | Course::Never | Course::Dies(_) => self.away.unwrap_or((0, 0)),
        };
        let there = overlap((self.created, until), (0, u64::MAX))
            .saturating_sub(overlap((self.created, until), away));
        let end = self.stopped_from.unwrap_or(u64::MAX).min(until);
        let ran = |from: u64| {
            let stops = self.stops.iter();
            let still: u64 = stops.map(|stop| overlap((from, end), *stop)).sum();
            end.saturating_sub(from)
                .saturating_sub(overlap((from, end), away))
                .saturating_sub(still)
        };
        let running = match self.course {
            Course::Well | Course::Never | Course::Dies(_) if self.bills_booting => {
                ran(self.created)
            }
            Course::Well => ran(self.runs),
            Course::Never | Course::Dies(_) => 0,
        };
        self.meter.set(running, there);
    }
}

/// How much of one span lies in another.
fn overlap(one: (u64, u64), other: (u64, u64)) -> u64 {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}
