//! The table of failures: what each error means for the next attempt.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use tokio_rustls::rustls::{CertificateError, Error as TlsError};
use tokio_tungstenite::tungstenite;

use super::error::Error;
use super::refusal::Refusal;
use crate::machine::{Classified, Failure};

/// How long "try again later" (1013) is taken to mean: the code carries no time, and 30 to 120 s are what servers that
/// send it expect.
pub(super) const TRY_AGAIN_LATER: Duration = Duration::from_secs(30);

/// The first [`Error`] or [`Classified`] in the chain decides: the one by the table (or by `by_user`, if that has an
/// opinion), the other by what it carries.
pub(super) fn in_chain(
    outer: &(dyn StdError + 'static),
    by_user: Option<&(dyn Fn(&Error) -> Option<Failure> + Send + Sync)>,
) -> Failure {
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
