//! The table of faults: each a knob, how often it may happen, and how much of it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use stageline_core::diagnostic::suggestion;

use super::Kind;
use super::serve::DATE_IN;

/// Every knob, and what it does.
pub const KNOBS: &[(&str, &str)] = &[
    (
        "create-500-after-commit",
        "the machine is made and the answer is 500",
    ),
    (
        "create-timeout-after-commit",
        "the machine is made and no answer comes",
    ),
    (
        "create-cut",
        "the machine is made and the answer breaks off",
    ),
    (
        "create-500-no-commit",
        "nothing is made and the answer is 500",
    ),
    (
        "create-late-commit",
        "the answer is 500; `seconds` later the machine appears",
    ),
    (
        "create-200-false-with-id",
        "the answer says no, and a stopped machine is there and bills",
    ),
    (
        "no-own-key",
        "the machine is handed no key with which it could end itself",
    ),
    (
        "bid-stays",
        "a bid that is too low makes a stopped machine, which bills, and the answer says no; with text \"yes\" it says yes",
    ),
    (
        "create-wrong-count",
        "two machines are made and two ids answered; with text \"none\", one and no id",
    ),
    (
        "create-other-machine",
        "the machine is another one than the offer said",
    ),
    ("rate-429-plain", "too many requests, in plain text"),
    (
        "rate-429-after",
        "the same with Retry-After: `text`; \"date\" is a date by the server's own clock, `seconds` on",
    ),
    (
        "create-429",
        "others use the account: a create is too many, with Retry-After as in rate-429-after, if there is a `text`",
    ),
    ("rate-429-daily", "searches are used up until midnight"),
    ("list-lag", "a new machine is listed after `seconds`"),
    (
        "get-404-lag",
        "a new machine is not found by id for `seconds`",
    ),
    (
        "list-ghost",
        "an ended machine is listed on for `seconds`, and costs nothing",
    ),
    ("list-success-false", "listings answer 200 and no"),
    (
        "list-page-lost",
        "a page leads to itself; with text \"500\" it fails, with \"dropped\" the next one is lost",
    ),
    ("list-pages", "listings come in pages of two"),
    (
        "list-truncated-json",
        "listings are cut; with text \"html\" or \"1010\" a front answers",
    ),
    ("boot-never", "the machine never leaves its boot"),
    ("boot-slow", "the boot takes `seconds`"),
    (
        "boot-dies",
        "the boot fails; text is exited, oci, offline or unknown",
    ),
    (
        "boot-wrong-gpu",
        "the agent finds another GPU than was sold; with text \"fewer\", fewer, with \"mixed\", one of them, with \"driver\", an old driver, with \"vram\", \"memory\" or \"disk\", half of it, with \"arch\", another processor",
    ),
    (
        "ip-missing",
        "a running machine's address is not told for `seconds`",
    ),
    (
        "ip-changes",
        "a running machine's address is told wrong at first; with text \"later\", it is another one after `seconds`, where its agent \
         starts again, if it was neither pushed nor fetched",
    ),
    (
        "ssh-refused",
        "a running machine cuts every SSH connection for `seconds`",
    ),
    (
        "ssh-stale-key",
        "a running machine shows another SSH key than its own for `seconds`",
    ),
    (
        "ssh-denied",
        "a running machine lets nobody in by SSH for `seconds`",
    ),
    ("offer-gone", "the offer was taken by somebody else"),
    (
        "offer-breaks-filter",
        "a search answers offers that were not asked for",
    ),
    (
        "price-rises",
        "between search and create prices rise by `factor`",
    ),
    (
        "price-later",
        "a running machine costs `factor` as much after `seconds`",
    ),
    (
        "price-asked",
        "a running machine's host asks for `factor` as much after `seconds`, and waits for an answer",
    ),
    (
        "traffic",
        "a machine that runs is billed 25 cents for traffic, beside its time and its disk",
    ),
    ("quota", "the account may have no more machines"),
    ("money", "the account has no credit"),
    ("capacity", "there is none left"),
    (
        "bad-request",
        "the request is refused as malformed; with text \"400\" or \"403\", at runpod, with words that may be about the offer",
    ),
    ("auth-revoked", "the key is not taken any more"),
    (
        "other-account",
        "the key is another account's, which is empty",
    ),
    ("terminate-noop", "a release is taken and nothing happens"),
    ("terminate-5xx", "a release happens and is answered 500"),
    (
        "terminate-partial",
        "a release is answered without the machine's id, and nothing happens",
    ),
    (
        "terminate-forget",
        "a released machine is gone at once, and its id unknown",
    ),
    (
        "delete-late",
        "a released machine is listed and bills for `seconds`",
    ),
    (
        "preempt",
        "a running machine is stopped after `seconds`, and its disk bills on",
    ),
    (
        "host-offline",
        "a running machine's host is away for `seconds`",
    ),
    (
        "vanish",
        "a running machine is gone after `seconds`, without a trace, and bills no more",
    ),
    (
        "meddle",
        "with text \"create\", somebody else takes the same offer right before a create; with \"destroy\", ends a running machine after `seconds`",
    ),
    (
        "names",
        "beside a machine another one is made that looks like it; text is foreign (more before the name), case, cut, or same (the very name)",
    ),
    (
        "key-limit",
        "an SSH key is taken and called a duplicate; with text \"team\", it is refused, with \"replaced\", somebody overwrites it at once",
    ),
    (
        "clock",
        "the server's dates are ahead by `seconds`; with text \"behind\", behind",
    ),
    ("slow", "an answer takes `seconds` of real time"),
    ("trickle", "an answer comes byte by byte"),
    (
        "keep-alive-death",
        "a connection that was answered once is cut by the next request",
    ),
    (
        "schema-drift",
        "numbers are strings, fields are null, missing or new; with text \"status\", states are words that nobody knows",
    ),
    ("server-error", "any request is answered 500"),
];

/// The texts of `boot-wrong-gpu`.
pub const WRONG: [&str; 7] = ["fewer", "mixed", "driver", "vram", "memory", "disk", "arch"];

/// One fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which.
    pub knob: String,
    /// The first chances that it lets pass.
    #[serde(default)]
    pub after: u32,
    /// How often it happens; always when it does not say.
    #[serde(default)]
    pub times: Option<u32>,
    /// From 0 to 1; certain when it does not say.
    #[serde(default)]
    pub chance: Option<f64>,
    /// By the simulator's clock.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Of a price.
    #[serde(default)]
    pub factor: Option<f64>,
    /// As the knob says.
    #[serde(default)]
    pub text: Option<String>,
}

impl Fault {
    /// A fault that happens always.
    pub fn of(knob: &str) -> Self {
        Self {
            knob: knob.to_owned(),
            ..Self::default()
        }
    }

    /// So often.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// For so long.
    #[must_use]
    pub fn seconds(mut self, seconds: u64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    /// With this text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.text = Some(text.to_owned());
        self
    }

    /// By so much.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = Some(factor);
        self
    }

    /// Not the first ones.
    #[must_use]
    pub fn after(mut self, chances: u32) -> Self {
        self.after = chances;
        self
    }

    pub(super) fn millis(&self, otherwise: u64) -> u64 {
        self.seconds.unwrap_or(otherwise).saturating_mul(1000)
    }

    /// The pause that is asked for, in the words of a header.
    pub(super) fn pause(&self, otherwise: &str) -> String {
        match self.text.as_deref() {
            Some("date") => format!("{DATE_IN}{}", self.seconds.unwrap_or(7)),
            Some(text) => text.to_owned(),
            None => otherwise.to_owned(),
        }
    }

    pub(super) fn says(&self, text: &str) -> bool {
        self.text.as_deref() == Some(text)
    }
}

/// A table of faults, with its dice and its counts.
pub struct Faults {
    state: Mutex<State>,
}

struct State {
    table: Vec<(Fault, u32, u32)>,
    dice: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    fault: Vec<Fault>,
}

impl Default for Faults {
    fn default() -> Self {
        Self::new(Vec::new(), 1)
    }
}

impl Faults {
    /// These faults.
    pub fn new(table: Vec<Fault>, seed: u64) -> Self {
        let table = table.into_iter().map(|fault| (fault, 0, 0)).collect();
        Self {
            state: Mutex::new(State { table, dice: seed }),
        }
    }

    /// The table as it is, from its beginning.
    pub(super) fn take(&self) -> Self {
        let state = self.state.lock().expect("no holder panics");
        let table = state.table.iter().map(|(fault, ..)| fault.clone());
        Self::new(table.collect(), state.dice)
    }

    /// Reads a file: `seed = 7` and `[[fault]]` tables, as TOML.
    ///
    /// # Errors
    /// In words, with the nearest knob for one that there is not.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        check(&file.fault)?;
        Ok(Self::new(file.fault, file.seed.unwrap_or(1)))
    }

    /// Refuses knobs that the provider which is played cannot show, with the reason.
    ///
    /// # Errors
    /// In words.
    pub fn fits(&self, kind: Kind) -> Result<(), String> {
        let state = self.state.lock().expect("no holder panics");
        let table: Vec<Fault> = state
            .table
            .iter()
            .map(|(fault, ..)| fault.clone())
            .collect();
        fits(&table, kind)
    }

    /// Takes other faults from now on.
    ///
    /// # Errors
    /// In words, for a knob that there is not.
    pub fn replace(&self, table: Vec<Fault>) -> Result<(), String> {
        check(&table)?;
        let mut state = self.state.lock().expect("no holder panics");
        state.table = table.into_iter().map(|fault| (fault, 0, 0)).collect();
        Ok(())
    }

    /// Whether a fault happens now; asking counts.
    pub fn fires(&self, knob: &str) -> Option<Fault> {
        self.asked(|fault| fault.knob == knob)
    }

    /// The same for one variant of a knob that shows at several places; the others do not count.
    pub fn fires_as(&self, knob: &str, text: &str) -> Option<Fault> {
        self.asked(|fault| fault.knob == knob && fault.says(text))
    }

    /// The same for all other variants of it.
    pub fn fires_but(&self, knob: &str, text: &str) -> Option<Fault> {
        self.asked(|fault| fault.knob == knob && !fault.says(text))
    }

    fn asked(&self, is: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut state = self.state.lock().expect("no holder panics");
        let roll = roll(&mut state.dice);
        for (fault, seen, fired) in &mut state.table {
            if !is(fault) {
                continue;
            }
            *seen += 1;
            let due = *seen > fault.after && fault.times.is_none_or(|times| *fired < times);
            if due && fault.chance.is_none_or(|chance| roll < chance) {
                *fired += 1;
                return Some(fault.clone());
            }
        }
        None
    }

    /// How often each happened.
    pub fn counts(&self) -> BTreeMap<String, u32> {
        let state = self.state.lock().expect("no holder panics");
        let mut counts = BTreeMap::new();
        for (fault, _, fired) in &state.table {
            *counts.entry(fault.knob.clone()).or_default() += fired;
        }
        counts
    }
}

fn check(table: &[Fault]) -> Result<(), String> {
    let known: Vec<&str> = KNOBS.iter().map(|(knob, _)| *knob).collect();
    match table
        .iter()
        .find(|fault| !known.contains(&fault.knob.as_str()))
    {
        None => Ok(()),
        Some(fault) => Err(format!(
            "there is no knob `{}`: {}",
            fault.knob.escape_default(),
            suggestion(&fault.knob, &known)
        )),
    }
}

/// Whether this provider can show all of these.
pub(super) fn fits(table: &[Fault], kind: Kind) -> Result<(), String> {
    for fault in table {
        let mut cannot = kind.cannot().iter();
        if let Some((knob, why)) = cannot.find(|(knob, _)| *knob == fault.knob) {
            return Err(format!("`{knob}` cannot happen at {}: {why}", kind.title()));
        }
    }
    Ok(())
}

/// A number from 0 up to 1 (SplitMix64).
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn roll(dice: &mut u64) -> f64 {
    *dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *dice;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_happens_when_and_as_often_as_it_says() {
        let faults = Faults::parse(
            "seed = 3\n[[fault]]\nknob = \"money\"\nafter = 1\ntimes = 2\n[[fault]]\nknob = \"quota\"\nchance = 0.5\n",
        )
        .expect("a table");
        let happened: Vec<bool> = (0..5).map(|_| faults.fires("money").is_some()).collect();
        assert_eq!(happened, [false, true, true, false, false]);
        let half = (0..1000)
            .filter(|_| faults.fires("quota").is_some())
            .count();
        assert!((400..600).contains(&half), "{half}");
        assert_eq!(faults.counts()["money"], 2);
    }

    #[test]
    fn a_knob_that_is_not_there_is_named() {
        let error = Faults::parse("[[fault]]\nknob = \"monny\"\n")
            .map(|_| ())
            .expect_err("none");
        assert!(
            error.contains("monny") && error.contains("money"),
            "{error}"
        );
    }
}
