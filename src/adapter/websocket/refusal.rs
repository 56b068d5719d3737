//! What a server said instead of upgrading.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::http::header::{LOCATION, RETRY_AFTER};
use tokio_tungstenite::tungstenite::http::{HeaderMap, StatusCode};

use super::request::Secrets;

/// An answer to the upgrade that is not 101.
pub struct Refusal {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    retry_after: Option<Duration>,
    location: Option<String>,
    text: String,
}

impl Refusal {
    /// Reads an answer that came just now.
    #[expect(clippy::disallowed_methods, reason = "a connector is used without a supervisor too, so it has no `Clock`")]
    pub(super) fn received(response: Response, secrets: &Secrets) -> Self {
        Self::new(response, SystemTime::now(), secrets)
    }

    /// Reads the answer; `received_at` is what dates in it are compared with.
    pub(super) fn new(response: Response, received_at: SystemTime, secrets: &Secrets) -> Self {
        let (head, body) = response.into_parts();
        let mut body = body.unwrap_or_default();
        body.truncate(MAX_BODY);
        let location = head.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        Self {
            status: head.status,
            retry_after: longest_retry_after(&head.headers, received_at),
            location: location.map(|location| secrets.hide(&without_query(location))),
            text: start_of(&secrets.hide(&String::from_utf8_lossy(&body))),
            headers: head.headers,
            body,
        }
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// How long the server asked to be left alone, from `Retry-After` in either form; of several the longest. `None`
    /// where it is missing, past, zero or no such value.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Where a redirect points to, without user, password, query and fragment.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// All headers, as they came: not for logs.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The start of the body, as it came, at most 4 KiB: not for logs. Only what arrived together with the headers is
    /// there.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(wait) = self.retry_after {
            write!(f, ", retry after {wait:?}")?;
        }
        if let Some(location) = &self.location {
            write!(f, ", location {location}")?;
        }
        if !self.text.is_empty() {
            write!(f, ", {:?}", self.text)?;
        }
        Ok(())
    }
}

/// Without headers and body, which may be secret.
impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self})")
    }
}

/// How much of a body is kept, and how much of that is shown.
const MAX_BODY: usize = 4096;
const MAX_TEXT: usize = 200;

fn start_of(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// A redirect's target as far as it is no secret.
fn without_query(location: &str) -> String {
    let target = location.split(['?', '#']).next().unwrap_or_default();
    match target.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => target.to_owned(),
    }
}

fn longest_retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let values = headers.get_all(RETRY_AFTER).iter();
    values.filter_map(|value| retry_after(value.to_str().ok()?, now)).max()
}

/// Seconds or an HTTP-date, as the wait from `now` on. Digits are seconds and never a date; a number that is too large
/// saturates; what is past, zero or neither form gives nothing.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?
    };
    (!wait.is_zero()).then_some(wait)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::{retry_after, start_of, without_query};

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: u64 = 784_111_777;

    fn at(value: &str) -> Option<Duration> {
        retry_after(value, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    #[test]
    fn retry_after_is_read_in_every_form() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (value, wait) in [
            ("2", seconds(2)),
            (" 2 ", seconds(2)),
            ("0002", seconds(2)),
            ("86400", seconds(86_400)),
            ("99999999999999999999", seconds(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:40 GMT", seconds(3)),
            ("Sunday, 06-Nov-94 08:49:40 GMT", seconds(3)),
            ("Sun Nov  6 08:49:40 1994", seconds(3)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("Thu, 01 Jan 1970 00:00:00 GMT", None),
            ("0", None),
            ("000", None),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("2s", None),
            ("1994", seconds(1994)),
            ("soon", None),
            ("", None),
            (" ", None),
            ("٣", None),
        ] {
            assert_eq!(at(value), wait, "Retry-After: {value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_of_retry_after_panics(value in ".{0,40}") {
            let _ = at(&value);
        }

        #[test]
        fn no_date_in_retry_after_panics(day in 0u32..40, year in 0u32..12_000, hour in 0u32..30, now in 0u64..u64::from(u32::MAX)) {
            let value = format!("Sun, {day:02} Feb {year:04} {hour:02}:00:00 GMT");
            let _ = retry_after(&value, SystemTime::UNIX_EPOCH + Duration::from_secs(now));
        }
    }

    #[test]
    fn a_location_loses_what_may_be_secret() {
        assert_eq!(without_query("https://u:p@host:1/a/b?token=x#y"), "https://host:1/a/b");
        assert_eq!(without_query("https://host"), "https://host");
        assert_eq!(without_query("/login?next=@x"), "/login");
    }

    #[test]
    fn only_the_start_of_a_body_is_shown() {
        assert_eq!(start_of(" busy\n"), "busy");
        assert_eq!(start_of(&"ü".repeat(300)), format!("{} …", "ü".repeat(200)));
    }
}
