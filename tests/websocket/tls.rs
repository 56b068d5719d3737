//! TLS: which certificates are taken, and what the others mean.

use std::error::Error as StdError;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use steadfast::Failure;
use steadfast::websocket::rustls::crypto::ring;
use steadfast::websocket::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use steadfast::websocket::rustls::{Error as TlsError, RootCertStore, ServerConfig};
use steadfast::websocket::{Connection, Error, Message, WebSocketConnector};
use tokio_rustls::TlsAcceptor;

use crate::server::{Peer, WsServer, dial, text};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a root");
        roots
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
        let mut params = CertificateParams::new([name.to_owned()]).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a configuration");
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Dials `wss://localhost` at a server with this certificate.
async fn dial_tls(acceptor: TlsAcceptor, roots: Option<RootCertStore>) -> Result<Connection, Error> {
    let server = WsServer::start().await;
    let address = ([127, 0, 0, 1], server.port).into();
    let mut builder = WebSocketConnector::builder(format!("wss://localhost:{}/", server.port))
        .resolver(move |_, _| std::future::ready(Ok(vec![address])));
    if let Some(roots) = roots {
        builder = builder.roots(roots);
    }
    let connector = builder.build().expect("valid settings");
    let serve = async {
        let stream = server.accept().await.stream;
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let mut peer = Peer::new(stream);
        peer.upgrade().await;
        peer.write(text("through TLS")).await;
    };
    let (result, ()) = tokio::join!(dial(&connector), serve);
    result
}

/// The certificate error, found as a user would find it.
fn certificate_error(error: &Error) -> String {
    let Error::Tls { source } = error else { panic!("{error:?}") };
    let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    let Some(TlsError::InvalidCertificate(certificate)) = inner else { panic!("{error:?}") };
    assert!(error.source().is_some_and(|source| source.to_string().contains("certificate")), "{error:?}");
    format!("{certificate:?}")
}

#[tokio::test]
async fn a_certificate_of_a_given_authority_is_taken() {
    let authority = Authority::new();
    let connection = dial_tls(authority.issue("localhost", |_| {}), Some(authority.roots())).await.unwrap();
    assert_eq!(connection.next().await.unwrap(), Message::text("through TLS"));
}

#[tokio::test]
async fn an_unknown_issuer_is_permanent() {
    let error = dial_tls(Authority::new().issue("localhost", |_| {}), None).await.unwrap_err();
    assert!(certificate_error(&error).contains("UnknownIssuer"), "{error:?}");
    assert_eq!(error.failure(), Failure::Permanent);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_permanent() {
    let authority = Authority::new();
    let error = dial_tls(authority.issue("other.example", |_| {}), Some(authority.roots())).await.unwrap_err();
    assert!(certificate_error(&error).contains("NotValidForName"), "{error:?}");
    assert_eq!(error.failure(), Failure::Permanent);
}

#[tokio::test]
async fn an_expired_certificate_is_transient_because_our_clock_may_be_wrong() {
    let authority = Authority::new();
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    };
    let error = dial_tls(authority.issue("localhost", expired), Some(authority.roots())).await.unwrap_err();
    assert!(certificate_error(&error).contains("Expired"), "{error:?}");
    assert_eq!(error.failure(), Failure::Transient);
    let early = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2090, 1, 1);
        params.not_after = date_time_ymd(2091, 1, 1);
    };
    let error = dial_tls(authority.issue("localhost", early), Some(authority.roots())).await.unwrap_err();
    assert!(certificate_error(&error).contains("NotValidYet"), "{error:?}");
    assert_eq!(error.failure(), Failure::Transient);
}
