//! What a provider says of its limits with each answer, so that we stop before it has to refuse us.

use std::time::Duration;

use reqwest::header::HeaderMap;

/// The longest that we hold back by ourselves: other programs may use the account too, and windows of a day are long.
const HOLD_MAX: Duration = Duration::from_secs(60);

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
}
