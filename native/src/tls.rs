//! TLS: certificates are judged by the application, signatures by rustls; secrets for channel binding are noted.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

/// Why the application refused a certificate: the number of a TLS alert (RFC 8446 section 6) and words.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub alert: u8,
    pub reason: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// Asks the application about a server's certificates, and takes any of a client's: those it asks about afterwards.
pub struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None` = any server will do.
    judge: Option<Py<PyAny>>,
    /// What it said last.
    pub refusal: Mutex<Option<Refusal>>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Verifier")
    }
}

impl Verifier {
    pub fn new(provider: Arc<CryptoProvider>, judge: Option<Py<PyAny>>) -> Self {
        Self { provider, judge, refusal: Mutex::default() }
    }

    fn judged(&self, leaf: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), Refusal> {
        let Some(judge) = &self.judge else { return Ok(()) };
        let answer = Python::attach(|py| -> PyResult<Option<(u8, String)>> {
            let chain = PyList::empty(py);
            for one in std::iter::once(leaf).chain(more) {
                chain.append(PyBytes::new(py, one))?;
            }
            judge.call1(py, (chain,))?.extract(py)
        });
        match answer {
            Ok(None) => Ok(()),
            Ok(Some((alert, reason))) => Err(Refusal { alert, reason }),
            Err(error) => Err(Refusal { alert: 80, reason: error.to_string() }), // internal_error
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judged(leaf, more).map_err(|refusal| {
            *self.refusal.lock().unwrap() = Some(refusal.clone());
            // The alert that the peer sees; what is not among these is certificate_unknown.
            Error::InvalidCertificate(match refusal.alert {
                42 => CertificateError::BadEncoding,
                44 => CertificateError::Revoked,
                45 => CertificateError::Expired,
                48 => CertificateError::UnknownIssuer,
                _ => CertificateError::Other(OtherError(Arc::new(refusal))),
            })
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        false // who shows none is refused with a better word than an alert
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _more: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}

/// The first secrets of the application's keys, by the labels of the usual key log.
#[derive(Debug, Default)]
pub struct Secrets(pub Mutex<Vec<(String, Vec<u8>)>>);

impl rustls::KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0") {
            self.0.lock().unwrap().push((label.to_owned(), secret.to_vec()));
        }
    }
}
