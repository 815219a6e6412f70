//! One connection of noq-proto, without any change to it, driven over standard input and output.
//!
//! A message is a byte that says which, three numbers of eight bytes, a length of four, and as many bytes, all little
//! endian. The first number of what comes in is the time in nanoseconds. Each message is answered with what happened
//! and what is to be sent, and at last `T`: when the timer is due, and how many bytes wait.
//!
//! `noq-peer client` or `noq-peer server CERTIFICATE.der KEY.der`; a path is known by a number, and its client
//! has the address 10.NUMBER.0.1.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, FourTuple,
    PathAbandonReason, PathEvent, PathId, PathStatus, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);
const ALPN: &[u8] = b"multi/1";
/// Small enough for its bound of 1,024 gaps in a stream.
const WINDOW: u32 = 1 << 20;
const PATHS: u32 = 4;
const BY_PEER: u64 = 1 << 62;

/// Takes every certificate: what is tested here is not TLS.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut made = TransportConfig::default();
    made.max_concurrent_multipath_paths(PATHS)
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .initial_mtu(1350)
        .mtu_discovery_config(None);
    Arc::new(made)
}

fn client_config() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("it is built in")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut made = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3")));
    made.transport_config(transport());
    made
}

fn server_config(certificate: &str, key: &str) -> ServerConfig {
    let read = |name: &str| std::fs::read(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let chain = vec![CertificateDer::from(read(certificate))];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(read(key)));
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("it is built in")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate and its key");
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut made = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("TLS 1.3")));
    made.transport_config(transport());
    made
}

/// What the application has written and the connection has not taken.
#[derive(Default)]
struct Outgoing {
    data: Vec<u8>,
    begin: usize,
    end: bool,
    finished: bool,
}

struct Peer {
    endpoint: Endpoint,
    inner: Option<(ConnectionHandle, Connection)>,
    is_client: bool,
    opened: u64,
    outgoing: BTreeMap<u64, Outgoing>,
    answer: Vec<u8>,
}

fn client_address(path: u64) -> IpAddr {
    Ipv4Addr::new(10, path as u8, 0, 1).into()
}

fn path_of(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) if address.octets()[0] == 10 => address.octets()[1].into(),
        _ => 0,
    }
}

/// It shows itself as a number, and gives it in no other way.
fn number(id: PathId) -> u64 {
    id.to_string().parse().expect("a number")
}

fn tell(out: &mut Vec<u8>, kind: u8, numbers: [u64; 3], data: &[u8]) {
    out.push(kind);
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
}

impl Peer {
    fn network_path(&self, path: u64, port: u64) -> FourTuple {
        if self.is_client {
            FourTuple::new(SERVER, Some(client_address(path)))
        } else {
            FourTuple::new(SocketAddr::new(client_address(path), port as u16), Some(SERVER.ip()))
        }
    }

    fn take(&mut self, datagram: &[u8], from: FourTuple, now: Instant) {
        self.answer.clear();
        match self.endpoint.handle(now, from, None, datagram.into(), &mut self.answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, inner)) = &mut self.inner {
                    inner.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.accept(incoming, now, &mut self.answer, None) {
                    Ok(made) => self.inner = Some(made),
                    Err(error) => eprintln!("noq-peer: {}", error.cause),
                }
            }
            _ => {}
        }
    }

    fn write(&mut self, stream: u64, data: &[u8], end: bool) {
        let outgoing = self.outgoing.entry(stream).or_default();
        outgoing.data.extend(data);
        outgoing.end |= end;
    }

    fn push(&mut self) {
        let Some((_, inner)) = &mut self.inner else { return };
        for (stream, outgoing) in &mut self.outgoing {
            while self.is_client && self.opened <= *stream {
                let Some(id) = inner.streams().open(Dir::Bi) else { return };
                self.opened = u64::from(id) + 4;
            }
            let id = StreamId::from(VarInt::from_u64(*stream).expect("a small number"));
            while outgoing.begin < outgoing.data.len() {
                match inner.send_stream(id).write(&outgoing.data[outgoing.begin..]) {
                    Ok(count) => outgoing.begin += count,
                    Err(_) => break,
                }
            }
            if outgoing.end && !outgoing.finished && outgoing.begin == outgoing.data.len() {
                outgoing.finished = inner.send_stream(id).finish().is_ok();
            }
        }
    }

    fn read(&mut self, id: StreamId, out: &mut Vec<u8>) {
        let Some((_, inner)) = &mut self.inner else { return };
        let mut receiver = inner.recv_stream(id);
        let Ok(mut chunks) = receiver.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => tell(out, b's', [id.into(), 0, 0], &chunk.bytes),
                Ok(None) => {
                    tell(out, b's', [id.into(), 1, 0], &[]);
                    break;
                }
                Err(_) => break,
            }
        }
        let _ = chunks.finalize();
    }

    fn settle(&mut self, out: &mut Vec<u8>) {
        let mut readable = Vec::new();
        if let Some((handle, inner)) = &mut self.inner {
            while let Some(event) = inner.poll_endpoint_events() {
                if let Some(back) = self.endpoint.handle_event(*handle, event) {
                    inner.handle_event(back);
                }
            }
            while let Some(event) = inner.poll() {
                match event {
                    Event::Connected => tell(out, b'c', [0; 3], &[]),
                    Event::ConnectionLost { reason } => tell(out, b'l', [0; 3], reason.to_string().as_bytes()),
                    Event::Stream(StreamEvent::Opened { dir }) => {
                        while let Some(id) = inner.streams().accept(dir) {
                            readable.push(id);
                        }
                    }
                    Event::Stream(StreamEvent::Readable { id }) => readable.push(id),
                    Event::Path(PathEvent::Established { id, .. }) => {
                        tell(out, b'o', [number(id), 0, 0], &[]);
                    }
                    Event::Path(PathEvent::Abandoned { id, reason, .. }) => {
                        let code = match reason {
                            PathAbandonReason::ApplicationClosed { error_code } => error_code.into_inner(),
                            PathAbandonReason::RemoteAbandoned { error_code } => error_code.into_inner() | BY_PEER,
                            _ => 0x3e,
                        };
                        tell(out, b'x', [number(id), code, 0], &[]);
                    }
                    Event::Path(PathEvent::RemoteStatus { id, status, .. }) => {
                        // It leaves to the application whether to do as the peer asks.
                        let _ = inner.set_path_status(id, status);
                        let backup = u64::from(status == PathStatus::Backup);
                        tell(out, b'b', [number(id), backup, 0], &[]);
                    }
                    _ => {}
                }
            }
        }
        for id in readable {
            self.read(id, out);
        }
        self.push();
    }

    fn send(&mut self, now: Instant, out: &mut Vec<u8>) {
        let Some((_, inner)) = &mut self.inner else { return };
        let mut buffer = Vec::new();
        while let Some(transmit) = inner.poll_transmit(now, NonZeroUsize::MIN, &mut buffer) {
            let port = transmit.destination.port().into();
            let path = match transmit.src_ip {
                Some(address) if self.is_client => path_of(address),
                _ => path_of(transmit.destination.ip()),
            };
            tell(out, b'd', [path, port, 0], &buffer[..transmit.size]);
            buffer.clear();
        }
    }

    /// False: it cannot be done now.
    fn does(&mut self, kind: u8, a: u64, b: u64, data: &[u8], now: Instant) -> bool {
        if kind == b'W' {
            self.write(a, data, b != 0);
            return true;
        }
        if kind == b'C' {
            self.inner = Some(self.endpoint.connect(now, client_config(), SERVER, "localhost").expect("a good name"));
            return true;
        }
        if kind == b'D' {
            self.take(data, self.network_path(a, b), now);
            return true;
        }
        let network_path = self.network_path(a, 0);
        let Some((_, inner)) = &mut self.inner else { return false };
        let path = (a as u32).into();
        let status = if b != 0 { PathStatus::Backup } else { PathStatus::Available };
        match kind {
            b'T' => inner.handle_timeout(now),
            b'O' => return inner.open_path(network_path, status, now).is_ok(),
            b'A' => return inner.close_path(now, path, VarInt::from_u64(b).expect("a code")).is_ok(),
            b'B' => return inner.set_path_status(path, status).is_ok(),
            b'K' => inner.force_key_update(),
            b'N' => {}
            _ => panic!("no message is called {kind}"),
        }
        true
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let server = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client"] => None,
        ["server", certificate, key] => Some(Arc::new(server_config(certificate, key))),
        _ => {
            eprintln!("usage: noq-peer client | server CERTIFICATE.der KEY.der");
            std::process::exit(2);
        }
    };
    let mut peer = Peer {
        is_client: server.is_none(),
        endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), server, false),
        inner: None,
        opened: 0,
        outgoing: BTreeMap::new(),
        answer: Vec::new(),
    };
    let base = Instant::now();
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut head = [0; 29];
    while input.read_exact(&mut head).is_ok() {
        let number = |index: usize| u64::from_le_bytes(head[index..index + 8].try_into().expect("eight bytes"));
        let mut data = vec![0; u32::from_le_bytes(head[25..].try_into().expect("four bytes")) as usize];
        if input.read_exact(&mut data).is_err() {
            return;
        }
        let now = base + Duration::from_nanos(number(1));
        let mut out = Vec::new();
        let done = peer.does(head[0], number(9), number(17), &data, now);
        peer.settle(&mut out);
        peer.send(now, &mut out);
        peer.settle(&mut out);
        let timer = peer.inner.as_mut().and_then(|(_, inner)| inner.poll_timeout());
        let timer = timer.map_or(u64::MAX, |at| at.saturating_duration_since(base).as_nanos() as u64);
        let waiting: usize = peer.outgoing.values().map(|outgoing| outgoing.data.len() - outgoing.begin).sum();
        tell(&mut out, b'T', [timer, waiting as u64, done.into()], &[]);
        if output.write_all(&out).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}
