//! The bill of an account: a record for each pod and each bucket of time that it was there in.
//!
//! A record's times are those of its bucket, also of one that is not over; what it says of that one is exact here.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan as _};
use serde_json::{Value, json};

use super::super::machine::Machine;
use super::super::serve::Reply;
use super::super::world::World;
use super::{dollars, id, invalid, no, number, yes};

/// For so long before now a bill goes back when nobody says it.
const DAYS: i64 = 30;

/// Lengths of time that a bill is told by.
#[derive(Clone, Copy)]
enum Bucket {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Bucket {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }

    fn span(self) -> Span {
        match self {
            Self::Hour => 1.hour(),
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
        }
    }

    /// When the one begins that this moment is in.
    fn begin(self, at: DateTime) -> DateTime {
        let date = at.date();
        let date = match self {
            Self::Hour => return date.at(at.hour(), 0, 0, 0),
            Self::Day => date,
            Self::Week => {
                let days = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(days.days()).unwrap_or(date)
            }
            Self::Month => date.first_of_month(),
            Self::Year => date.first_of_year(),
        };
        date.at(0, 0, 0, 0)
    }

    fn next(self, begin: DateTime) -> DateTime {
        begin.saturating_add(self.span())
    }

    /// When the last one ends of a time up to this moment.
    fn end(self, at: DateTime) -> DateTime {
        let begin = self.begin(at);
        if begin == at { at } else { self.next(begin) }
    }
}

fn civil(at: Timestamp) -> DateTime {
    TimeZone::UTC.to_datetime(at)
}

fn told(at: DateTime) -> Value {
    let at = TimeZone::UTC.to_timestamp(at);
    json!(at.unwrap_or_default().to_string())
}

/// A moment of the simulator's clock.
fn moment(world: &World, at: u64) -> DateTime {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "milliseconds of this century fit"
    )]
    let millis = (world.clock.epoch(at) * 1000.0).round() as i64;
    civil(Timestamp::from_millisecond(millis).unwrap_or_default())
}

/// And back; the beginning for what was before it.
fn by_clock(world: &World, at: DateTime) -> u64 {
    let since = at.duration_since(moment(world, 0));
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// What is asked for: which buckets, from when to when.
struct Window {
    bucket: Bucket,
    from: DateTime,
    to: DateTime,
}

fn window(query: &BTreeMap<String, String>, now: DateTime) -> Result<Window, Reply> {
    let wrong = |name: &str| invalid(&[format!("query.{name}: not as specified")]);
    let time = |name: &str| {
        let text = query.get(name).map(|text| text.parse::<Timestamp>());
        text.transpose().map_err(|_| wrong(name))
    };
    let (start, end) = (time("startTime")?, time("endTime")?);
    let bucket = query.get("bucketSize").map_or("day", String::as_str);
    let bucket = Bucket::parse(bucket).ok_or_else(|| wrong("bucketSize"))?;
    let Some(last) = query.get("lastN") else {
        let usual = now.saturating_sub(DAYS.days());
        return Ok(Window {
            bucket,
            from: bucket.begin(start.map_or(usual, civil)),
            to: bucket.end(end.map_or(now, civil)),
        });
    };
    let last: i64 = last.parse().map_err(|_| wrong("lastN"))?;
    if last < 1 {
        return Err(wrong("lastN"));
    }
    if start.is_some() || end.is_some() {
        let both = "lastN and startTime/endTime are mutually exclusive";
        return Err(no(400, both));
    }
    let begin = bucket.begin(now);
    let back = bucket.span().checked_mul(last - 1);
    let back = back.map_err(|_| wrong("lastN"))?;
    Ok(Window {
        bucket,
        from: begin.saturating_sub(back),
        to: bucket.next(begin),
    })
}

pub(super) fn bill(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    let now = world.clock.now();
    let window = match window(query, moment(world, now)) {
        Ok(window) => window,
        Err(reply) => return reply,
    };
    let pod = query.get("podId");
    let only = pod.map(|pod| number(pod));
    let mut records = Vec::new();
    let (mut all, mut pods) = (0, 0);
    let mut inner = world.lock();
    for machine in inner.machines.values_mut() {
        let asked = only.is_none_or(|only| only == Some(machine.id));
        if machine.account != account || !asked {
            continue;
        }
        let before = records.len();
        all += of_pod(world, machine, now, &window, &mut records);
        pods += usize::from(records.len() > before);
    }
    drop(inner);
    let bucket = query.get("bucketSize").map_or("day", String::as_str);
    let asked = json!({
        "startTime": told(window.from), "endTime": told(window.to), "bucketSize": bucket, "podId": pod,
    });
    yes(&json!({
        "metadata": {
            "query": asked, "recordCount": records.len(), "uniquePodCount": pods, "totals": amounts(all),
        },
        "records": records,
    }))
}

/// The records of one, and their sum.
fn of_pod(
    world: &World,
    machine: &mut Machine,
    now: u64,
    window: &Window,
    records: &mut Vec<Value>,
) -> u64 {
    let pod = id(machine.id);
    let end = machine.gone_from.map_or(now, |gone| gone.min(now));
    let first = window.bucket.begin(moment(world, machine.created));
    let mut total = |at: u64| {
        machine.count(at);
        machine.meter.total().0
    };
    let (mut begin, mut sum) = (first.max(window.from), 0);
    while begin < window.to && by_clock(world, begin) < end {
        let next = window.bucket.next(begin);
        let until = by_clock(world, next).min(now);
        let micro = total(until).saturating_sub(total(by_clock(world, begin)));
        sum += micro;
        let mut record = amounts(micro);
        record["podId"] = json!(pod);
        record["startTime"] = told(begin);
        record["endTime"] = told(next);
        records.push(record);
        begin = next;
    }
    machine.count(now);
    sum
}

/// GPUs and disk are not told apart here.
fn amounts(micro: u64) -> Value {
    json!({ "totalAmount": dollars(micro), "gpuAmount": dollars(micro), "cpuAmount": 0.0, "diskAmount": 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime {
        text.parse().expect("a time")
    }

    fn asked(pairs: &[(&str, &str)]) -> Result<(DateTime, DateTime), u16> {
        let pairs = pairs.iter();
        let query = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let window = window(&query.collect(), at("2026-03-04T12:20:00"));
        window
            .map(|window| (window.from, window.to))
            .map_err(|reply| reply.status)
    }

    #[test]
    fn a_window_is_snapped_to_its_buckets() {
        let start = ("startTime", "2026-03-04T10:59:00Z");
        for (pairs, from, to) in [
            (
                vec![start, ("bucketSize", "hour")],
                "2026-03-04T10:00:00",
                "2026-03-04T13:00:00",
            ),
            (vec![start], "2026-03-04T00:00:00", "2026-03-05T00:00:00"),
            (
                vec![start, ("bucketSize", "week")],
                "2026-03-02T00:00:00",
                "2026-03-09T00:00:00",
            ),
            (
                vec![("lastN", "2"), ("bucketSize", "month")],
                "2026-02-01T00:00:00",
                "2026-04-01T00:00:00",
            ),
            (
                vec![("lastN", "1"), ("bucketSize", "year")],
                "2026-01-01T00:00:00",
                "2027-01-01T00:00:00",
            ),
        ] {
            assert_eq!(asked(&pairs), Ok((at(from), at(to))), "{pairs:?}");
        }
        assert_eq!(asked(&[start, ("lastN", "1")]), Err(400));
        for wrong in [("lastN", "0"), ("bucketSize", "age"), ("startTime", "now")] {
            assert_eq!(asked(&[wrong]), Err(422), "{wrong:?}");
        }
    }
}
