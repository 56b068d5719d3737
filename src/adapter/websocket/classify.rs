//! The table of failures: what each error means for the next attempt.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use tokio_rustls::rustls::{CertificateError, Error as TlsError};
use tokio_tungstenite::tungstenite;

use super::builder::ByUser;
use super::error::Error;
use super::refusal::Refusal;
use crate::machine::{Classified, Failure};

/// How long "try again later" (1013) is taken to mean: the code carries no time, and 30 to 120 s are what servers that
/// send it expect.
pub(super) const TRY_AGAIN_LATER: Duration = Duration::from_secs(30);

/// The first [`Error`] or [`Classified`] in the chain decides: the one by the table (or by `by_user`, if that has an
/// opinion), the other by what it carries.
pub(super) fn in_chain(outer: &(dyn StdError + 'static), by_user: Option<&ByUser>) -> Failure {
    let mut next = Some(outer);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return by_user.and_then(|by_user| by_user(error)).unwrap_or_else(|| failure(error));
        }
        if let Some(classified) = error.downcast_ref::<Classified>() {
            return classified.failure();
        }
        next = error.source();
    }
    crate::runtime::classify(outer)
}

pub(super) fn failure(error: &Error) -> Failure {
    match error {
        Error::Resolve { .. } => Failure::Unreachable,
        Error::Connect { tried } => tried.first().map_or(Failure::Unreachable, |(_, error)| by_kind(error)),
        Error::Tls { source } => by_certificate(source),
        Error::Refused(refusal) => by_status(refusal),
        Error::Upgrade { source } => match &**source {
            tungstenite::Error::Io(error) => answered(error),
            _ => Failure::Transient,
        },
        Error::Closed { code, .. } => by_code(*code),
        Error::Lost { .. }
        | Error::Protocol { .. }
        | Error::Silent { .. }
        | Error::Stuck { .. }
        | Error::TooLong { .. } => Failure::Transient,
        Error::ClosedHere => Failure::Planned,
    }
}

/// Before TCP stands. No address of ours to dial from costs the server as little as no server.
pub(super) fn by_kind(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => Failure::Unreachable,
        _ => crate::runtime::classify(error),
    }
}

/// After TCP stands.
fn answered(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::TimedOut { Failure::Timeout } else { Failure::Transient }
}

fn by_certificate(error: &io::Error) -> Failure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match inner {
        Some(TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => Failure::Transient,
        Some(TlsError::InvalidCertificate(_)) => Failure::Permanent,
        _ => answered(error),
    }
}

fn by_status(refusal: &Refusal) -> Failure {
    let retry_after = refusal.retry_after();
    match refusal.status().as_u16() {
        401 | 403 | 407 => Failure::Unauthorized,
        429 => Failure::Throttled { retry_after },
        503 if retry_after.is_some() => Failure::Throttled { retry_after },
        302 | 303 | 307 => Failure::Transient,
        300..=399 => Failure::Permanent,
        _ => Failure::Transient,
    }
}

fn by_code(code: u16) -> Failure {
    match code {
        1000 | 1001 | 1012 => Failure::Planned,
        1013 => Failure::Throttled { retry_after: Some(TRY_AGAIN_LATER) },
        3000 | 3003 => Failure::Unauthorized,
        _ => Failure::Transient,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use tokio_rustls::rustls::pki_types::UnixTime;
    use tokio_rustls::rustls::{CertificateError, Error as TlsError, InvalidMessage};
    use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
    use tokio_tungstenite::tungstenite::{self, http};

    use super::super::refusal::Refusal;
    use super::super::request::Secrets;
    use super::{Error, TRY_AGAIN_LATER, in_chain};
    use crate::machine::Failure;
    use crate::machine::Failure::{Permanent, Planned, Throttled, Timeout, Transient, Unauthorized, Unreachable};

    fn refused(status: u16, retry_after: Option<&str>) -> Error {
        let mut response = http::Response::builder().status(status);
        if let Some(value) = retry_after {
            response = response.header("retry-after", value);
        }
        let response = response.body(Some(b"<html>".to_vec())).unwrap();
        Error::Refused(Arc::new(Refusal::new(response, UNIX_EPOCH, &Secrets::default())))
    }

    fn connect(kinds: &[ErrorKind]) -> Error {
        let address = "127.0.0.1:1".parse().unwrap();
        Error::connect(kinds.iter().map(|&kind| (address, kind.into())).collect())
    }

    fn certificate(error: CertificateError) -> Error {
        Error::tls(io::Error::new(ErrorKind::InvalidData, TlsError::InvalidCertificate(error)))
    }

    fn closed(code: u16) -> Error {
        Error::Closed { code, reason: "".into(), lived: Duration::from_secs(1) }
    }

    fn dials() -> Vec<(Error, Failure)> {
        let time = UnixTime::since_unix_epoch(Duration::ZERO);
        vec![
            (Error::resolve("host", io::Error::other("no such name")), Unreachable),
            (Error::resolve("host", ErrorKind::TimedOut.into()), Unreachable),
            (connect(&[]), Unreachable),
            (connect(&[ErrorKind::ConnectionRefused]), Unreachable),
            (connect(&[ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable]), Unreachable),
            (connect(&[ErrorKind::NetworkDown]), Unreachable),
            (connect(&[ErrorKind::AddrNotAvailable, ErrorKind::ConnectionRefused]), Unreachable),
            (connect(&[ErrorKind::NetworkUnreachable, ErrorKind::TimedOut]), Timeout),
            (connect(&[ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset]), Transient),
            (certificate(CertificateError::UnknownIssuer), Permanent),
            (certificate(CertificateError::NotValidForName), Permanent),
            (certificate(CertificateError::Revoked), Permanent),
            (certificate(CertificateError::Expired), Transient),
            (certificate(CertificateError::ExpiredContext { time, not_after: time }), Transient),
            (certificate(CertificateError::NotValidYet), Transient),
            (certificate(CertificateError::NotValidYetContext { time, not_before: time }), Transient),
            (Error::tls(ErrorKind::UnexpectedEof.into()), Transient),
            (Error::tls(ErrorKind::ConnectionReset.into()), Transient),
            (Error::tls(ErrorKind::TimedOut.into()), Timeout),
            (
                Error::tls(io::Error::new(
                    ErrorKind::InvalidData,
                    TlsError::InvalidMessage(InvalidMessage::InvalidContentType),
                )),
                Transient,
            ),
            (Error::upgrade(ProtocolError::HandshakeIncomplete.into()), Transient),
            (Error::upgrade(ProtocolError::SecWebSocketAcceptKeyMismatch.into()), Transient),
            (Error::upgrade(ProtocolError::WrongHttpVersion.into()), Transient),
            (Error::upgrade(io::Error::from(ErrorKind::ConnectionReset).into()), Transient),
            (Error::upgrade(io::Error::from(ErrorKind::ConnectionRefused).into()), Transient),
            (Error::upgrade(io::Error::from(ErrorKind::TimedOut).into()), Timeout),
        ]
    }

    fn refusals() -> Vec<(Error, Failure)> {
        let two = Some(Duration::from_secs(2));
        let plain = [200, 204, 302, 303, 307, 400, 404, 408, 426, 451, 500, 502, 503, 504, 599, 600, 999];
        let mut rows = vec![
            (refused(401, None), Unauthorized),
            (refused(403, Some("2")), Unauthorized),
            (refused(407, None), Unauthorized),
            (refused(429, None), Throttled { retry_after: None }),
            (refused(429, Some("2")), Throttled { retry_after: two }),
            (refused(429, Some("0")), Throttled { retry_after: None }),
            (refused(503, Some("2")), Throttled { retry_after: two }),
            (refused(503, Some("soon")), Transient),
            (refused(503, Some("0")), Transient),
            (refused(502, Some("2")), Transient),
            (refused(300, None), Permanent),
            (refused(301, None), Permanent),
            (refused(308, None), Permanent),
            (refused(399, None), Permanent),
        ];
        rows.extend(plain.map(|status| (refused(status, None), Transient)));
        rows
    }

    fn ends() -> Vec<(Error, Failure)> {
        let second = Duration::from_secs(1);
        let transient =
            [0, 999, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1014, 1015, 2000, 3001, 4000, 5000];
        let too_long = CapacityError::MessageTooLong { size: 2, max_size: 1 };
        let mut rows = vec![
            (closed(1000), Planned),
            (closed(1001), Planned),
            (closed(1012), Planned),
            (closed(1013), Throttled { retry_after: Some(TRY_AGAIN_LATER) }),
            (closed(3000), Unauthorized),
            (closed(3003), Unauthorized),
            (Error::broken(ProtocolError::ResetWithoutClosingHandshake.into()), Transient),
            (Error::broken(io::Error::from(ErrorKind::ConnectionReset).into()), Transient),
            (Error::broken(io::Error::from(ErrorKind::TimedOut).into()), Transient),
            (Error::broken(tungstenite::Error::Capacity(too_long)), Transient),
            (Error::broken(ProtocolError::MaskedFrameFromServer.into()), Transient),
            (Error::broken(tungstenite::Error::Utf8("no text".into())), Transient),
            (Error::Silent { waited: second }, Transient),
            (Error::Stuck { waited: second }, Transient),
            (Error::TooLong { size: 2, limit: 1 }, Transient),
            (Error::ClosedHere, Planned),
        ];
        rows.extend(transient.map(|code| (closed(code), Transient)));
        rows
    }

    #[test]
    fn every_row_of_the_table_of_failures_holds() {
        for (error, failure) in dials().into_iter().chain(refusals()).chain(ends()) {
            assert_eq!(error.failure(), failure, "{error:?}");
            assert_eq!(in_chain(&error, None), failure, "in a chain: {error:?}");
        }
    }

    #[test]
    fn an_error_is_found_anywhere_in_the_chain() {
        let wrapped = Wrapped(Box::new(Wrapped(Box::new(closed(1012)))));
        assert_eq!(in_chain(&wrapped, None), Planned);
        let decided = Wrapped(Box::new(Permanent.because(closed(1012))));
        assert_eq!(in_chain(&decided, None), Permanent, "the class that a session gave comes first");
    }

    #[test]
    fn what_is_no_error_of_ours_is_classified_as_everywhere() {
        assert_eq!(in_chain(&io::Error::from(ErrorKind::ConnectionRefused), None), Unreachable);
        assert_eq!(in_chain(&Wrapped("something else".into()), None), Transient);
    }

    #[test]
    fn the_user_has_the_last_word_on_every_row() {
        let by_user: super::ByUser = Arc::new(|error| match error {
            Error::Closed { code: 4000..=4099, reason, lived } if reason.is_empty() && *lived > Duration::ZERO => {
                Some(Permanent)
            }
            Error::Closed { code: 1000, .. } | Error::ClosedHere => Some(Unauthorized),
            _ => None,
        });
        for (code, failure) in
            [(4000, Permanent), (4099, Permanent), (4100, Transient), (1000, Unauthorized), (1001, Planned)]
        {
            assert_eq!(in_chain(&Wrapped(Box::new(closed(code))), Some(&by_user)), failure, "{code}");
        }
        let all: super::ByUser = Arc::new(|_| Some(Unauthorized));
        for (error, _) in dials().into_iter().chain(refusals()).chain(ends()) {
            assert_eq!(in_chain(&error, Some(&all)), Unauthorized, "{error:?}");
        }
    }

    #[derive(Debug)]
    struct Wrapped(crate::runtime::BoxError);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&*self.0)
        }
    }
}
