//! What a provider says of its limits with each answer, so that we stop before it has to refuse us.

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap};
use stageline_core::unit::Timestamp;

/// The longest that we hold back by ourselves: other programs may use the account too, and windows of a day are long.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// The longest window that anybody counts by, in seconds: a reset that is further off is none.
const WINDOW_MAX: i64 = 2 * 86_400;

/// When what is used up is there again, by the second of an `X-RateLimit-Reset` header; none that is over by the server's own clock.
pub(super) fn resets_at(headers: &HeaderMap) -> Option<Timestamp> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let at = Timestamp::from_second(text("x-ratelimit-reset")?.parse().ok()?).ok()?;
    let now = jiff::fmt::rfc2822::parse(text(DATE.as_str())?).ok()?;
    let ahead = at.as_second() - now.timestamp().as_second();
    (1..=WINDOW_MAX).contains(&ahead).then_some(at)
}

/// How long until requests are allowed again, when a `RateLimit` header says that some window has none left; within bounds.
pub(super) fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("ratelimit")?.to_str().ok()?;
    let windows = text.split(',').filter_map(|window| {
        let value = |name: &str| {
            let mut fields = window.split(';').map(str::trim);
            let text = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            text?.parse::<u64>().ok()
        };
        (value("r")? == 0).then(|| Duration::from_secs(value("t").unwrap_or(1)))
    });
    Some(windows.max()?.min(HOLD_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_requests_is_waited_for_and_one_with_some_is_not() {
        let cases = [
            ("\"minute\";r=0;t=12, \"hour\";r=2800;t=1812", Some(12)),
            ("\"minute\";r=3;t=12, \"hour\";r=0;t=1812", Some(60)),
            ("\"minute\";r=1;t=12", None),
            ("\"minute\";t=12;r=0", Some(12)),
            ("nonsense", None),
        ];
        for (text, seconds) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("ratelimit", text.parse().expect("a header"));
            assert_eq!(
                used_up(&headers),
                seconds.map(Duration::from_secs),
                "{text}"
            );
        }
        assert_eq!(used_up(&HeaderMap::new()), None);
    }

    #[test]
    fn a_reset_is_told_when_it_is_ahead_and_not_far_off() {
        let date = "Tue, 01 Dec 2026 03:00:00 GMT";
        let at = |second: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, date.parse().expect("a header"));
            headers.insert("x-ratelimit-reset", second.parse().expect("a header"));
            resets_at(&headers).map(|at| at.to_string())
        };
        assert_eq!(at("1796169600").as_deref(), Some("2026-12-02T00:00:00Z"));
        for none in ["1796083200", "1896169600", "soon", "-1", ""] {
            assert_eq!(at(none), None, "{none}");
        }
        assert_eq!(resets_at(&HeaderMap::new()), None);
    }
}
