//! Reads that an API leads elsewhere, within its own hosts.
//!
//! What always holds: the key goes to hosts of the provider alone, and to none in clear that it was not meant for; nothing but a read is
//! led anywhere, as what was sent may have been done already.

use reqwest::header::LOCATION;
use reqwest::{Method, Response, Url};

use super::client::{Api, Call};
use super::fault::Fault;
use super::lines::Line;

/// More than that lead in a circle.
const STEPS_MAX: u32 = 3;

impl Api {
    /// The answer to a read, wherever that is. One that leads to somebody else's is the answer.
    pub(super) async fn led(
        &self,
        client: &Line,
        call: &Call,
        mut answer: Response,
    ) -> Result<Response, Fault> {
        for _ in 0..STEPS_MAX {
            let Some(url) = self.leads_to(call, &answer) else {
                break;
            };
            let request = self.keyed(client, call, url).map_err(Fault::before)?;
            let sent = request.send().await;
            answer = sent.map_err(|error| self.unsent(call, &error))?;
        }
        Ok(answer)
    }

    fn leads_to(&self, call: &Call, answer: &Response) -> Option<Url> {
        let family = self.family.filter(|_| call.method == Method::GET)?;
        if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let place = answer.headers().get(LOCATION)?.to_str().ok()?;
        let url = answer.url().join(place).ok()?;
        is_own(answer.url(), &url, family).then_some(url)
    }
}

/// Whether the key that was sent to one may be sent to the other.
fn is_own(from: &Url, to: &Url, family: &str) -> bool {
    let bare = to.username().is_empty() && to.password().is_none();
    let related = |url: &Url| {
        let host = url.host_str().unwrap_or_default();
        url.scheme() == "https" && host.ends_with(family)
    };
    bare && (from.origin() == to.origin() || (related(from) && related(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_with_its_own_hosts() {
        let cases = [
            (
                "https://console.seller.example/a",
                "https://console.seller.example/b",
                true,
            ),
            (
                "https://console.seller.example/a",
                "https://eu.seller.example/a",
                true,
            ),
            (
                "https://console.seller.example/a",
                "http://eu.seller.example/a",
                false,
            ),
            (
                "https://console.seller.example/a",
                "http://console.seller.example/a",
                false,
            ),
            (
                "https://console.seller.example/a",
                "https://evilseller.example/a",
                false,
            ),
            (
                "https://console.seller.example/a",
                "https://seller.example.example/a",
                false,
            ),
            (
                "https://console.seller.example/a",
                "https://x:y@eu.seller.example/a",
                false,
            ),
            (
                "https://mirror.example/a",
                "https://console.seller.example/a",
                false,
            ),
            ("http://127.0.0.1:81/a", "http://127.0.0.1:81/b", true),
            ("http://127.0.0.1:81/a", "http://127.0.0.1:82/a", false),
            (
                "http://127.0.0.1:81/a",
                "https://console.seller.example/a",
                false,
            ),
        ];
        for (from, to, own) in cases {
            let url = |text: &str| Url::parse(text).expect("a URL");
            assert_eq!(
                is_own(&url(from), &url(to), ".seller.example"),
                own,
                "{from} {to}"
            );
        }
    }
}
