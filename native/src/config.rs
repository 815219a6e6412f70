//! What the connections of a listener, or of one dial, have in common.

use std::sync::Arc;
use std::time::Duration;

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto as noq;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::congestion;
use crate::ids::ResetTokens;
use crate::tls::{Secrets, Verifier};

/// Bytes of TLS handshake, in each of its phases, that may come before what is missing.
const MAX_CRYPTO: usize = 64 * 1024;
/// Bytes of DATAGRAM frames that are held in each direction: what a socket gives at once, four times.
pub const MESSAGES: usize = 256 * 1024;
/// Bytes of the smallest datagram that QUIC needs.
const MIN_MTU: u16 = 1200;
/// Until it is asked again whether large datagrams arrive. When they have vanished it is asked at once, three times.
const PROBE_AGAIN: Duration = Duration::from_secs(60);

pub fn bad(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(frozen)]
pub struct Config {
    alpn: Vec<u8>,
    streams: u32,
    /// Bytes that may come before any have been taken; it grows with what has, to `window`.
    first_window: u32,
    window: u32,
    congestion: String,
    idle_timeout: Duration,
    initial_rtt: Duration,
    paths: u32,
    chain: Vec<CertificateDer<'static>>,
    key: Option<PrivateKeyDer<'static>>,
    ask: bool,
    judge: Option<Py<PyAny>>,
    pub new_id: Py<PyAny>,
    reset_token: Option<Py<PyAny>>,
    pub seed: Option<[u8; 32]>,
}

#[pymethods]
impl Config {
    #[new]
    #[pyo3(signature = (*, alpn, new_id, streams=0, first_window=64 << 10, window=4 << 20, congestion="cubic", idle_timeout=60.0,
        initial_rtt=0.1, paths=1, chain=vec![], key=None, ask=false, judge=None, reset_token=None, seed=None))]
    fn new(
        alpn: Vec<u8>,
        new_id: Py<PyAny>,
        streams: u32,
        first_window: u32,
        window: u32,
        congestion: &str,
        idle_timeout: f64,
        initial_rtt: f64,
        paths: u32,
        chain: Vec<Vec<u8>>,
        key: Option<Vec<u8>>,
        ask: bool,
        judge: Option<Py<PyAny>>,
        reset_token: Option<Py<PyAny>>,
        seed: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        if congestion::factory(congestion, 1200).is_none() {
            return Err(bad(format!("no congestion control is called {congestion:?}")));
        }
        let made = Self {
            alpn,
            new_id,
            reset_token,
            streams,
            first_window: first_window.min(window),
            window,
            congestion: congestion.to_owned(),
            idle_timeout: Duration::try_from_secs_f64(idle_timeout).map_err(bad)?,
            initial_rtt: Duration::try_from_secs_f64(initial_rtt).map_err(bad)?,
            paths,
            chain: chain.into_iter().map(CertificateDer::from).collect(),
            key: key.map(|key| PrivatePkcs8KeyDer::from(key).into()),
            ask,
            judge,
            seed: seed.map(|seed| <[u8; 32]>::try_from(seed).map_err(|_| bad("a seed has 32 bytes"))).transpose()?,
        };
        if let Some(key) = &made.key {
            // Whatever rustls cannot use is said now, and not with the first connection.
            made.provider().key_provider.load_private_key(key.clone_key()).map_err(bad)?;
        }
        noq::IdleTimeout::try_from(made.idle_timeout).map_err(bad)?;
        Ok(made)
    }
}

impl Config {
    /// Bytes that may come ahead of what is missing, at first and once as many have been taken.
    pub fn windows(&self) -> (u64, u64) {
        (self.first_window.into(), self.window.into())
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    pub fn client(
        &self,
        py: Python<'_>,
        datagram_size: u16,
        secrets: Arc<Secrets>,
    ) -> PyResult<(noq::ClientConfig, Arc<Verifier>)> {
        let provider = self.provider();
        let judge = self.judge.as_ref().map(|judge| judge.clone_ref(py));
        let verifier = Arc::new(Verifier::new(provider.clone(), judge));
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(bad)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone());
        let mut tls = match &self.key {
            Some(key) => builder.with_client_auth_cert(self.chain.clone(), key.clone_key()).map_err(bad)?,
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![self.alpn.clone()];
        tls.key_log = secrets;
        tls.resumption = rustls::client::Resumption::disabled();
        let mut client = noq::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(bad)?));
        client.transport_config(Arc::new(self.transport(datagram_size)));
        client.token_store(Arc::new(noq::NoneTokenStore));
        Ok((client, verifier))
    }

    pub fn server(&self, datagram_size: u16, secrets: Arc<Secrets>) -> PyResult<noq::ServerConfig> {
        let key = self.key.as_ref().ok_or_else(|| bad("a server needs a certificate and its key"))?;
        let provider = self.provider();
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(bad)?;
        let builder = match self.ask {
            true => builder.with_client_cert_verifier(Arc::new(Verifier::new(provider, None))),
            false => builder.with_no_client_auth(),
        };
        let mut tls = builder.with_single_cert(self.chain.clone(), key.clone_key()).map_err(bad)?;
        tls.alpn_protocols = vec![self.alpn.clone()];
        tls.key_log = secrets;
        tls.send_tls13_tickets = 0;
        let mut server = noq::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).map_err(bad)?));
        server.transport_config(Arc::new(self.transport(datagram_size)));
        Ok(server)
    }

    fn transport(&self, datagram_size: u16) -> noq::TransportConfig {
        let mut transport = noq::TransportConfig::default();
        let mut discovery = noq::MtuDiscoveryConfig::default();
        discovery
            .upper_bound(datagram_size)
            .minimum_change(datagram_size.saturating_sub(MIN_MTU).max(1)) // the largest or the least, nothing between
            .black_hole_cooldown(Duration::ZERO)
            .interval(PROBE_AGAIN);
        transport
            .max_concurrent_bidi_streams(self.streams.into())
            .max_concurrent_uni_streams(0u32.into())
            .stream_receive_window(self.window.into())
            .receive_window(self.first_window.into())
            .send_window(u64::MAX)
            .crypto_buffer_size(MAX_CRYPTO)
            .datagram_receive_buffer_size(Some(MESSAGES))
            .datagram_send_buffer_size(MESSAGES)
            .initial_rtt(self.initial_rtt)
            .initial_mtu(datagram_size)
            .mtu_discovery_config(Some(discovery))
            .max_idle_timeout(Some(self.idle_timeout.try_into().expect("checked when it was made")))
            .congestion_controller_factory(
                congestion::factory(&self.congestion, datagram_size).expect("checked when it was made"),
            );
        if self.paths > 1 {
            transport.max_concurrent_multipath_paths(self.paths);
        }
        transport
    }

    /// Of the endpoint that serves a single connection. Datagrams of any size are taken; the peer is told to send no
    /// larger ones than we do.
    pub fn endpoint(&self, py: Python<'_>, datagram_size: u16) -> noq::EndpointConfig {
        let mut endpoint = noq::EndpointConfig::default();
        if let Some(function) = &self.reset_token {
            endpoint.reset_key(Arc::new(ResetTokens(function.clone_ref(py))));
        }
        endpoint.rng_seed(self.seed);
        endpoint.supported_versions(vec![1]);
        endpoint.grease_quic_bit(false); // who reads the socket tells packets of QUIC by it
        endpoint.max_udp_payload_size(datagram_size.max(MIN_MTU)).expect("the least that QUIC needs, or more");
        endpoint
    }
}
