//! What is asked of the server: the URL and the headers, checked when the connector is built.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::HOST;
use tokio_tungstenite::tungstenite::http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::builder::InvalidSetting;
use crate::observe::Endpoint;

/// A URL that can be dialled.
pub(super) struct Target {
    uri: Uri,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) endpoint: Endpoint,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, InvalidSetting> {
        // A scheme may be written in capitals; the websocket crate knows it in small letters only.
        let small = url.split_once("://").map(|(scheme, rest)| format!("{}://{rest}", scheme.to_ascii_lowercase()));
        let url = small.as_deref().unwrap_or(url);
        let refuse = |allowed| InvalidSetting::new("url", shown(url), allowed);
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
            return Err(refuse("a URL without user and password: send them in a header (`Authorization`)"));
        }
        if url.contains('#') {
            return Err(refuse("a URL without a fragment: a websocket request has none"));
        }
        let uri: Uri = url.parse().map_err(|_| refuse("a URL such as wss://host:443/path"))?;
        let (tls, default) = match uri.scheme_str() {
            Some("ws") => (false, 80),
            Some("wss") => (true, 443),
            Some("http") => return Err(refuse("ws:// in place of http://")),
            Some("https") => return Err(refuse("wss:// in place of https://")),
            _ => return Err(refuse("a URL that starts with ws:// or wss://")),
        };
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let host = uri.host().unwrap_or_default();
        let port = match authority.get(host.len()..).unwrap_or_default() {
            "" => default,
            text => port(text).ok_or_else(|| refuse("a port from 1 to 65535, or none"))?,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(refuse("a URL with a host"));
        }
        Ok(Self { host, port, tls, endpoint: Endpoint::new(url), uri })
    }

    /// A new request with a key of its own, as every attempt needs one.
    pub(super) fn request(&self, headers: &HeaderMap) -> Result<Request, tungstenite::Error> {
        let mut request = self.uri.clone().into_client_request()?;
        if headers.contains_key(HOST) {
            request.headers_mut().remove(HOST);
        }
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }
        Ok(request)
    }

    /// The same number for the same headers and query, and only in this process.
    pub(super) fn credential(&self, headers: &HeaderMap) -> u64 {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut hasher = KEY.build_hasher();
        self.uri.query().hash(&mut hasher);
        for (name, value) in headers {
            name.hash(&mut hasher);
            value.hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn secrets(&self, headers: &HeaderMap) -> Secrets {
        let headers = headers.values().filter_map(|value| value.to_str().ok());
        Secrets::new(headers.chain(self.uri.query()))
    }
}

/// `:port` as a number.
fn port(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(':')?;
    let port = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    (port != 0).then_some(port)
}

/// As much of a URL as an error may show: never a user, a password, a path or a query.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    if rest.contains('@') {
        return format!("{scheme}://…");
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority: String = rest[..end].chars().take(100).collect();
    if url.contains("://") { format!("{scheme}://{authority}") } else { authority }
}

/// Checks one header. Its value is in no error, because it may be secret.
pub(super) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), InvalidSetting> {
    let refuse = |value: &str, allowed| InvalidSetting::new("header", value.to_owned(), allowed);
    let parsed: HeaderName =
        name.parse().map_err(|_| refuse(&format!("{name:?}"), "a name of HTTP token characters"))?;
    if OURS.contains(&parsed.as_str()) {
        return Err(refuse(parsed.as_str(), "any other: the websocket protocol sets this one"));
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        refuse(&format!("{parsed} with a value that is not shown"), "a value of visible ASCII characters and spaces")
    })?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// An extension would be agreed on with the server, and the websocket crate has none.
const OURS: [&str; 5] =
    ["connection", "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-version", "upgrade"];

/// What may be a credential in our own request, so that a server that repeats it does not bring it into an error.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// Shorter words are no secrets, and hiding them would tear texts to pieces.
    const SHORTEST: usize = 6;

    fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut words: Vec<String> = texts
            .flat_map(|text| [text].into_iter().chain(text.split([' ', ';', ',', '=', '&'])))
            .filter(|word| word.len() >= Self::SHORTEST)
            .map(str::to_owned)
            .collect();
        // The longest first, so that a part does not spoil the whole.
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        words.dedup();
        Self(words)
    }

    pub(super) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[hidden]"))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{HeaderMap, Secrets, Target, header};

    #[test]
    fn a_url_gives_host_port_and_security() {
        for (url, host, port, tls) in [
            ("ws://example.com", "example.com", 80, false),
            ("wss://example.com", "example.com", 443, true),
            ("WSS://example.com", "example.com", 443, true),
            ("ws://example.com:8080/a?b=c", "example.com", 8080, false),
            ("wss://[::1]:65535/", "::1", 65535, true),
            ("ws://[::1]", "::1", 80, false),
            ("ws://127.0.0.1:1?q=a@b", "127.0.0.1", 1, false),
            ("ws://host/@me", "host", 80, false),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.host.as_str(), target.port, target.tls), (host, port, tls), "{url}");
            assert!(target.request(&HeaderMap::new()).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_with_its_remedy_and_without_its_secrets() {
        for (url, shown, remedy) in [
            ("ws://host:99999/", "ws://host:99999", "a port from 1 to 65535"),
            ("ws://host:0/", "ws://host:0", "a port from 1 to 65535"),
            ("ws://host:/", "ws://host:", "a port from 1 to 65535"),
            ("ws://[::1]:70000/", "ws://[::1]:70000", "a port from 1 to 65535"),
            ("ws://host:80a/", "ws://host:80a", "a "),
            ("http://host/", "http://host", "ws:// in place of http://"),
            ("https://host/?k=hunter2", "https://host", "wss:// in place of https://"),
            ("ftp://host/hunter2", "ftp://host", "starts with ws://"),
            ("/hunter2", "", "starts with ws://"),
            ("host", "host", "starts with ws://"),
            ("host:80", "host:80", "starts with ws://"),
            ("ws:///hunter2", "ws://", "a URL"),
            ("", "", "a URL"),
            ("ws://us er/hunter2", "ws://us er", "a URL"),
            ("ws://me:hunter2@host/", "ws://…", "in a header"),
            ("ws://me:hunt/er2@host/hunter2", "ws://…", "a "),
            ("ws://host/#hunter2", "ws://host", "without a fragment"),
        ] {
            let error = Target::parse(url).err().unwrap_or_else(|| panic!("{url} is taken")).to_string();
            assert!(error.contains(&format!("url is `{shown}`,")), "{url}: {error}");
            assert!(error.contains(remedy), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_bad_header_is_refused_without_its_value() {
        for (name, value, part) in [
            ("x y", "v", "header is `\"x y\"`"),
            ("", "v", "header is `\"\"`"),
            ("authorization", "hunter2\r\nx: y", "authorization with a value"),
            ("Sec-WebSocket-Key", "hunter2", "header is `sec-websocket-key`"),
            ("sec-websocket-extensions", "permessage-deflate", "sets this one"),
            ("Upgrade", "h2c", "header is `upgrade`"),
        ] {
            let error = header(name, value).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{name}: {error}");
        }
        let (_, value) = header("Host", "other.example").unwrap();
        assert!(value.is_sensitive(), "nor does the HTTP crate show it: {value:?}");
    }

    #[test]
    fn what_is_secret_in_the_request_is_hidden_in_a_text() {
        let secrets = Secrets::new(["Bearer tok-123456", "a=1&key=sesame-open"].into_iter());
        assert_eq!(secrets.hide("no tok-123456, no sesame-open, a=1"), "no [hidden], no [hidden], a=1");
        assert_eq!(secrets.hide("Bearer tok-123456!"), "[hidden]!");
    }

    #[test]
    fn a_credential_is_told_by_headers_and_query() {
        let headers = |value: &str| [header("authorization", value).unwrap()].into_iter().collect();
        let of = |url: &str, value: &str| Target::parse(url).unwrap().credential(&headers(value));
        assert_eq!(of("ws://host/a?k=1", "x"), of("ws://host/b?k=1", "x"));
        assert_ne!(of("ws://host/a?k=1", "x"), of("ws://host/a?k=1", "y"));
        assert_ne!(of("ws://host/a?k=1", "x"), of("ws://host/a?k=2", "x"));
    }
}
