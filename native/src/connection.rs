//! One connection: noq-proto's, the endpoint it needs for its packets, and what waits to be written.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use noq_proto as noq;
use noq_proto::{ConnectionError, DatagramEvent, Dir, FourTuple, PathId, PathStatus, StreamId, VarInt};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use rustls::pki_types::CertificateDer;

use crate::config::{Config, MESSAGES, bad};
use crate::ids::{Id, Ids};
use crate::tls::{Secrets, Verifier};

/// Addresses of a peer that moves, and of our own ends; more are those of somebody who forges them.
const ADDRESSES_KEPT: usize = 16;
/// Datagrams in a burst: as many of 1,472 bytes fit an IP packet, from which the kernel cuts them.
const BURST: NonZeroUsize = NonZeroUsize::new(44).unwrap();
const BURST_BYTES: usize = 65_000;
/// Bursts that are made at once, more than any window takes: whatever goes wrong, others have their turn.
const BURSTS_AT_ONCE: usize = 1024;
/// Bytes that may come ahead for each that has been taken, with several paths: what is late on one must not stop others.
const AHEAD: u64 = 8;
/// Added to when a timer is due: seconds as Python has them are not exact.
const TIMER_SLACK: f64 = 1e-6;

/// What happened, for Python a tuple that begins with a word.
enum Told {
    Connected,
    Lost { code: u64, frame: Option<u64>, reason: String, ending: &'static str },
    Data { stream: u64, parts: Vec<Bytes>, end: bool },
    Message(Bytes),
    Reset { stream: u64, code: u64 },
    Stopped { stream: u64, code: u64 },
    Issued(Vec<u8>),
    Retired(Vec<u8>),
    PathOpened(u32, Option<FourTuple>),
    PathClosed { path: u32, code: u64, by_peer: bool },
    PathStatus { path: u32, backup: bool },
}

/// What the application has written to a stream and the connection has not taken yet.
#[derive(Default)]
struct Outgoing {
    waiting: VecDeque<Bytes>,
    end: bool,
    finished: bool,
}

#[pyclass]
pub struct Connection {
    endpoint: noq::Endpoint,
    inner: Option<(noq::ConnectionHandle, noq::Connection)>,
    /// A server's, whose client was sent a Retry: the destination id of that client's first packet.
    retried: Option<noq::ConnectionId>,
    ids: Ids,
    id: Vec<u8>,
    secrets: Arc<Secrets>,
    verifier: Option<Arc<Verifier>>,
    /// Bytes of the largest that is sent, and that the peer is asked to send.
    datagram_size: u16,
    /// Seconds on the caller's clock, and the moment that is for noq-proto.
    base: Option<(f64, Instant)>,
    now: Option<Instant>,
    addresses: VecDeque<(FourTuple, Py<PyAny>)>,
    /// Where a client's first path goes. It does not know its own address until something has come there.
    dialled: Option<(FourTuple, Py<PyAny>)>,
    told: VecDeque<Told>,
    /// What the endpoint answers by itself, such as a refusal.
    answers: Vec<(Vec<u8>, noq::Transmit)>,
    scratch: Vec<u8>,
    outgoing: BTreeMap<u64, Outgoing>,
    /// Those that can be written.
    open: HashSet<u64>,
    waiting: u64,
    /// Bytes of streams that were read, and how many may come ahead of what is missing: at first, now and at most.
    taken: u64,
    first_window: u64,
    window: u64,
    largest_window: u64,
    is_client: bool,
    over: bool,
}

#[pymethods]
impl Connection {
    /// A client; `connect` begins.
    #[staticmethod]
    fn client(py: Python<'_>, config: &Config, datagram_size: u16) -> PyResult<Self> {
        Self::new(py, config, datagram_size, None, None, true)
    }

    /// A server, made by the first packet that `receive` brings.
    ///
    /// `original`: of a client that has come back with the token of a Retry, the destination id it used at first.
    #[staticmethod]
    #[pyo3(signature = (config, datagram_size, original=None))]
    fn server(py: Python<'_>, config: &Config, datagram_size: u16, original: Option<&[u8]>) -> PyResult<Self> {
        let secrets = Arc::new(Secrets::default());
        let server = config.server(datagram_size, secrets.clone())?;
        let mut made = Self::new(py, config, datagram_size, Some(server), Some(secrets), false)?;
        made.retried = match original {
            Some(id) if id.len() > 20 => return Err(bad("a connection id of more than 20 bytes")),
            other => other.map(noq::ConnectionId::new),
        };
        Ok(made)
    }

    // What goes in

    #[pyo3(signature = (config, address, server_name, now))]
    fn connect(
        &mut self,
        py: Python<'_>,
        config: &Config,
        address: Bound<'_, PyAny>,
        server_name: &str,
        now: f64,
    ) -> PyResult<()> {
        let now = self.at(now);
        let path = self.known(&address)?;
        let (client, verifier) = config.client(py, self.datagram_size, self.secrets.clone())?;
        self.verifier = Some(verifier);
        let made = self.endpoint.connect(now, client, path.remote(), server_name).map_err(bad)?;
        self.inner = Some(made);
        self.dialled = Some((path, address.unbind()));
        self.settle();
        Ok(())
    }

    fn receive(&mut self, data: PyBuffer<u8>, segment: usize, address: Bound<'_, PyAny>, now: f64) -> PyResult<()> {
        let now = self.at(now);
        let path = self.known(&address)?;
        let bytes = contiguous(&data)?;
        for datagram in bytes.chunks(segment.max(1)) {
            self.take(datagram, path, now);
        }
        self.settle();
        Ok(())
    }

    fn handle_timer(&mut self, now: f64) {
        let now = self.at(now);
        if let Some((_, inner)) = &mut self.inner {
            inner.handle_timeout(now);
        }
        self.settle();
    }

    /// Queue bytes, and the end of the stream after them. They are copied.
    #[pyo3(signature = (stream, data, end=false))]
    fn write(&mut self, stream: u64, data: PyBuffer<u8>, end: bool) -> PyResult<()> {
        if self.over {
            return Ok(());
        }
        VarInt::from_u64(stream).map_err(bad)?;
        let bytes = contiguous(&data)?;
        let outgoing = self.outgoing.entry(stream).or_default();
        if outgoing.end {
            return Err(PyValueError::new_err("the stream has ended"));
        }
        if !bytes.is_empty() {
            outgoing.waiting.push_back(Bytes::copy_from_slice(bytes));
            self.waiting += bytes.len() as u64;
        }
        outgoing.end = end;
        self.open_up_to(stream);
        self.push(stream);
        Ok(())
    }

    /// Queue a DATAGRAM frame; the oldest that wait are dropped where there are too many.
    fn send_message(&mut self, data: PyBuffer<u8>) -> PyResult<()> {
        let message = Bytes::copy_from_slice(contiguous(&data)?);
        if let Some((_, inner)) = &mut self.inner {
            let _ = inner.datagrams().send(message, true); // one that is too large is lost, as it would be on its way
        }
        Ok(())
    }

    /// Begin to use the next keys.
    fn update_keys(&mut self) {
        if let Some((_, inner)) = &mut self.inner {
            inner.force_key_update();
        }
    }

    fn close(&mut self, code: u32, reason: &str) {
        let Some(now) = self.now else { return };
        if let Some((_, inner)) = &mut self.inner {
            inner.close(now, code.into(), Bytes::copy_from_slice(reason.as_bytes()));
        }
        self.over = true;
    }

    // Paths

    #[getter]
    fn multipath(&self) -> bool {
        self.inner.as_ref().is_some_and(|(_, inner)| inner.is_multipath_negotiated())
    }

    #[getter]
    fn takes_paths(&self) -> bool {
        self.inner.as_ref().is_some_and(|(_, inner)| inner.is_multipath_negotiated() && !inner.peer_stays())
    }

    /// Its id; `None`: the peer has given no id for it yet.
    fn open_path(&mut self, address: Bound<'_, PyAny>, backup: bool, now: f64) -> PyResult<Option<u32>> {
        let now = self.at(now);
        let path = self.known(&address)?;
        let status = if backup { PathStatus::Backup } else { PathStatus::Available };
        match self.connection()?.open_path(path, status, now) {
            Ok(id) => Ok(Some(number(id))),
            Err(noq::PathError::MaxPathIdReached | noq::PathError::RemoteCidsExhausted) => Ok(None),
            Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
        }
    }

    /// False: it is not open, or the last one.
    fn abandon_path(&mut self, path: u32, code: u64, now: f64) -> PyResult<bool> {
        let now = self.at(now);
        let code = VarInt::from_u64(code).map_err(bad)?;
        let done = self.connection()?.close_path(now, path.into(), code).is_ok();
        self.settle();
        Ok(done)
    }

    fn suspect_path(&mut self, path: u32, now: f64) -> PyResult<bool> {
        let now = self.at(now);
        Ok(self.connection()?.suspect_path(path.into(), now).is_ok())
    }

    fn set_backup(&mut self, path: u32, backup: bool) -> PyResult<bool> {
        let status = if backup { PathStatus::Backup } else { PathStatus::Available };
        Ok(self.connection()?.set_path_status(path.into(), status).is_ok())
    }

    /// The paths in the order in which they are given what is to be sent.
    fn set_path_order(&mut self, order: Vec<u32>) -> PyResult<()> {
        let order: Vec<PathId> = order.into_iter().map(PathId::from).collect();
        self.connection()?.set_path_order(&order);
        Ok(())
    }

    /// The paths that carry data of streams, `None` for all.
    #[pyo3(signature = (carriers))]
    fn set_carriers(&mut self, carriers: Option<Vec<u32>>) -> PyResult<()> {
        let carriers = carriers.map(|ids| ids.into_iter().map(PathId::from).collect::<Vec<_>>());
        self.connection()?.set_carriers(carriers.as_deref());
        Ok(())
    }

    /// Nothing of these streams is sent until this is called again.
    fn hide_streams(&mut self, streams: Vec<u64>) -> PyResult<()> {
        let streams = streams.into_iter().map(|id| Ok(VarInt::from_u64(id).map_err(|_| bad("no stream has this id"))?.into()));
        let streams = streams.collect::<PyResult<Vec<StreamId>>>()?;
        self.connection()?.hide_streams(&streams);
        Ok(())
    }

    /// Bytes in flight on a path that are enough, 0 for what congestion control allows.
    fn set_enough_in_flight(&mut self, path: u32, size: u64) -> PyResult<()> {
        self.connection()?.set_enough_in_flight(path.into(), if size == 0 { u64::MAX } else { size });
        Ok(())
    }

    /// When the oldest packet on its way on a path that carries data of streams was sent, and its size.
    fn oldest_data(&self, path: u32) -> Option<(f64, u64)> {
        let (seconds, base) = self.base?;
        let (sent, size) = self.inner.as_ref()?.1.oldest_data(path.into())?;
        Some((seconds + sent.saturating_duration_since(base).as_secs_f64(), size))
    }

    /// Have what packets of up to so many bytes carry of streams wait to be sent again, the oldest first.
    fn repeat_data(&mut self, path: u32, most: u64) -> PyResult<()> {
        self.connection()?.repeat_data(path.into(), most);
        Ok(())
    }

    /// `same` or `best`: which path carries acknowledgements.
    fn set_ack_path(&mut self, name: &str) -> PyResult<()> {
        let ack_path = match name {
            "same" => noq::AckPath::Same,
            "best" => noq::AckPath::Best,
            _ => return Err(bad(format!("no path for acknowledgements is called {name:?}"))),
        };
        self.connection()?.set_ack_path(ack_path);
        Ok(())
    }

    // What comes out

    /// What happened since, as tuples; see `multi_noq.pyi`.
    fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let made = PyList::empty(py);
        while let Some(told) = self.told.pop_front() {
            if let Some(event) = self.spoken(py, told)? {
                made.append(event)?;
            }
        }
        Ok(made)
    }

    /// What is to be sent now: (datagrams, bytes in each, address, path). At most `most` of them, 0 = all.
    #[pyo3(signature = (now, most=0))]
    fn bursts<'py>(&mut self, py: Python<'py>, now: f64, most: usize) -> PyResult<Bound<'py, PyList>> {
        let now = self.at(now);
        let made = PyList::empty(py);
        for (data, transmit) in std::mem::take(&mut self.answers) {
            self.add(py, &made, &data, &transmit, 0)?;
        }
        let mut buffer = std::mem::take(&mut self.scratch);
        let most = if most == 0 { BURSTS_AT_ONCE } else { most };
        while made.len() < most {
            buffer.clear();
            let Some((_, inner)) = &mut self.inner else { break };
            let Some(transmit) = inner.poll_transmit(now, BURST, &mut buffer) else { break };
            let path = number(inner.last_path());
            self.add(py, &made, &buffer, &transmit, path)?;
        }
        self.scratch = buffer;
        self.settle();
        Ok(made)
    }

    fn next_timer(&self) -> Option<f64> {
        let (seconds, base) = self.base?;
        let at = self.inner.as_ref()?.1.poll_timeout()?;
        Some(seconds + at.saturating_duration_since(base).as_secs_f64() + TIMER_SLACK)
    }

    // What is known

    #[getter]
    fn connection_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id)
    }

    /// The secrets of the application's first keys, by their labels in a key log.
    fn secrets<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        let secrets = self.secrets.0.lock().unwrap();
        secrets.iter().map(|(label, secret)| (label.clone(), PyBytes::new(py, secret))).collect()
    }

    /// DER, the peer's own first.
    fn peer_certificates<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let shown = self.inner.as_ref().and_then(|(_, inner)| inner.crypto_session().peer_identity());
        let chain = shown.and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
        chain.map_or_else(Vec::new, |chain| chain.iter().map(|one| PyBytes::new(py, one)).collect())
    }

    fn has_stream(&self, stream: u64) -> bool {
        self.open.contains(&stream)
    }

    /// Bytes of the largest that `send_message` takes; 0 = one of both ends takes none.
    fn message_size(&mut self) -> usize {
        self.inner.as_mut().and_then(|(_, inner)| inner.datagrams().max_size()).unwrap_or(0)
    }

    /// Bytes of messages that wait to be sent.
    fn queued_messages(&mut self) -> usize {
        let free = self.inner.as_mut().map_or(MESSAGES, |(_, inner)| inner.datagrams().send_buffer_space());
        MESSAGES.saturating_sub(free + std::mem::size_of::<Bytes>())
    }

    /// Bytes of all streams: not acknowledged, of these not sent, and of these those that the peer takes no more of.
    fn outstanding(&self) -> (u64, u64, u64) {
        let (unacknowledged, unsent) =
            self.inner.as_ref().map_or((0, 0), |(_, inner)| inner.unacknowledged_and_unsent());
        (unacknowledged + self.waiting, unsent + self.waiting, self.waiting)
    }

    /// Streams with something to send that the peer takes, in their turns: id, bytes, and those it takes no more of.
    fn unsent_in_turn(&self) -> Vec<(u64, u64, u64)> {
        let Some((_, inner)) = &self.inner else { return Vec::new() };
        let shut_out = |id: &u64| self.outgoing.get(id).map_or(0, |outgoing| outgoing.waiting.iter().map(Bytes::len).sum());
        let streams = inner.unsent_in_turn().into_iter().filter(|(_, unsent)| *unsent > 0);
        streams.map(|(id, unsent)| (id.into(), unsent, shut_out(&id.into()) as u64)).collect()
    }

    /// Streams of which not all has arrived: id, bytes acknowledged in order, and bytes sent.
    fn in_order(&self) -> Vec<(u64, u64, u64)> {
        let Some((_, inner)) = &self.inner else { return Vec::new() };
        inner.in_order().into_iter().map(|(id, acknowledged, sent)| (id.into(), acknowledged, sent)).collect()
    }

    /// Everything written has arrived, the ends of streams included.
    fn all_acknowledged(&self) -> bool {
        self.outstanding().0 == 0 && self.outgoing.values().all(|outgoing| outgoing.finished || !outgoing.end)
    }

    /// Of each path that is not abandoned: id, validated, suspect, backup, in slow start, smoothed round trip, its variation, smallest,
    /// window, in flight, sent, received, lost bytes, lost packets, probe timeouts. Seconds and bytes; 0 = unknown.
    fn paths<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let made = PyList::empty(py);
        let Some((_, inner)) = &mut self.inner else { return Ok(made) };
        for id in inner.paths() {
            let (Some(facts), Some(stats)) = (inner.path_facts(id), inner.path_stats(id)) else { continue };
            if facts.abandoned {
                continue;
            }
            let backup = inner.path_status(id) == Ok(PathStatus::Backup)
                || inner.remote_path_status(id) == Some(PathStatus::Backup);
            let times = match facts.rtt {
                Some(rtt) => [rtt.get(), facts.rtt_variation, rtt.min()],
                None => Default::default(),
            };
            let times = times.map(|time| time.as_secs_f64());
            let row = (
                (number(id), facts.validated, facts.suspect, backup, facts.slow_start),
                (times[0], times[1], times[2]),
                (facts.window, facts.in_flight, stats.udp_tx.bytes, stats.udp_rx.bytes),
                (stats.lost_bytes, stats.lost_packets, facts.probe_count),
            );
            made.append(row)?;
        }
        Ok(made)
    }
}

impl Connection {
    fn new(
        py: Python<'_>,
        config: &Config,
        datagram_size: u16,
        server: Option<noq::ServerConfig>,
        secrets: Option<Arc<Secrets>>,
        is_client: bool,
    ) -> PyResult<Self> {
        let (ids, id) = Ids::new(py, &config.new_id)?;
        let shared = ids.clone();
        let (first_window, largest_window) = config.windows();
        let mut endpoint = config.endpoint(py, datagram_size);
        endpoint.cid_generator(Arc::new(move || Box::new(shared.clone())));
        Ok(Self {
            endpoint: noq::Endpoint::new(Arc::new(endpoint), server.map(Arc::new), true), // may look for larger datagrams
            inner: None,
            retried: None,
            ids,
            id,
            secrets: secrets.unwrap_or_default(),
            verifier: None,
            datagram_size,
            base: None,
            now: None,
            addresses: VecDeque::new(),
            dialled: None,
            told: VecDeque::new(),
            answers: Vec::new(),
            scratch: Vec::with_capacity(1 << 16),
            outgoing: BTreeMap::new(),
            open: HashSet::new(),
            waiting: 0,
            taken: 0,
            first_window,
            window: first_window,
            largest_window,
            is_client,
            over: false,
        })
    }

    /// Time for noq-proto, which never goes back.
    fn at(&mut self, seconds: f64) -> Instant {
        let (zero, base) = *self.base.get_or_insert_with(|| (seconds, Instant::now()));
        let at = base + Duration::try_from_secs_f64(seconds - zero).unwrap_or_default();
        *self.now.insert(self.now.map_or(at, |now| now.max(at)))
    }

    fn connection(&mut self) -> PyResult<&mut noq::Connection> {
        let inner = self.inner.as_mut().map(|(_, inner)| inner);
        inner.ok_or_else(|| PyRuntimeError::new_err("there is no connection yet"))
    }

    /// Where it goes, for noq-proto; the object itself is what `bursts` gives back.
    fn known(&mut self, address: &Bound<'_, PyAny>) -> PyResult<FourTuple> {
        if let Some((path, _)) = self.addresses.iter().find(|(_, known)| known.is(address)) {
            return Ok(*path);
        }
        let path = path_of(address)?;
        self.addresses.retain(|(known, _)| *known != path);
        self.addresses.push_front((path, address.clone().unbind()));
        self.addresses.truncate(ADDRESSES_KEPT);
        Ok(path)
    }

    fn add(
        &self,
        py: Python<'_>,
        made: &Bound<'_, PyList>,
        data: &[u8],
        transmit: &noq::Transmit,
        path: u32,
    ) -> PyResult<()> {
        let to = |known: &&(FourTuple, _)| known.0.remote() == transmit.destination;
        let from = |known: &&(FourTuple, _)| transmit.src_ip.is_none() || known.0.local_ip() == transmit.src_ip;
        let dialled = self.dialled.iter().filter(|_| transmit.src_ip.is_none());
        let Some((_, address)) = dialled.chain(self.addresses.iter()).filter(to).find(from) else {
            return Ok(()); // forgotten since, which is like a loss
        };
        let segment = transmit.segment_size.unwrap_or(transmit.size);
        let most = (BURST_BYTES / segment.max(1)).max(1) * segment;
        for part in data[..transmit.size].chunks(most.max(1)) {
            made.append((PyBytes::new(py, part), segment, address, path))?;
        }
        Ok(())
    }

    /// The object that stands for where a path goes.
    fn address_of(&self, path: &FourTuple) -> Option<&Py<PyAny>> {
        self.addresses.iter().find(|(known, _)| known == path).map(|(_, address)| address)
    }

    fn spoken<'py>(&self, py: Python<'py>, told: Told) -> PyResult<Option<Bound<'py, PyTuple>>> {
        Ok(Some(match told {
            Told::Connected => ("connected",).into_pyobject(py)?,
            Told::Lost { code, frame, reason, ending } => ("lost", code, frame, reason, ending).into_pyobject(py)?,
            Told::Data { stream, parts, end } => ("data", stream, joined(py, &parts)?, end).into_pyobject(py)?,
            Told::Message(data) => ("message", PyBytes::new(py, &data)).into_pyobject(py)?,
            Told::Reset { stream, code } => ("reset", stream, code).into_pyobject(py)?,
            Told::Stopped { stream, code } => ("stopped", stream, code).into_pyobject(py)?,
            Told::Issued(id) => ("issued", PyBytes::new(py, &id)).into_pyobject(py)?,
            Told::Retired(id) => ("retired", PyBytes::new(py, &id)).into_pyobject(py)?,
            Told::PathOpened(number, path) => match path.and_then(|path| self.address_of(&path)) {
                Some(address) => ("path_opened", number, address).into_pyobject(py)?,
                None => return Ok(None), // it has moved on meanwhile
            },
            Told::PathClosed { path, code, by_peer } => ("path_closed", path, code, by_peer).into_pyobject(py)?,
            Told::PathStatus { path, backup } => ("path_status", path, backup).into_pyobject(py)?,
        }))
    }

    /// One datagram.
    fn take(&mut self, datagram: &[u8], path: FourTuple, now: Instant) {
        let mut answer = std::mem::take(&mut self.scratch);
        answer.clear();
        match self.endpoint.handle(now, path, None, BytesMut::from(datagram), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, inner)) = &mut self.inner
                    && *own == handle
                {
                    inner.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(mut incoming)) if self.inner.is_none() && !self.over => {
                if let Some(original) = self.retried {
                    incoming.validated_by_retry(original);
                }
                match self.endpoint.accept(incoming, now, &mut answer, None) {
                    Ok(made) => self.inner = Some(made),
                    Err(error) => {
                        if let Some(transmit) = error.response {
                            self.answers.push((answer.clone(), transmit));
                            self.lose(error.cause);
                        }
                    }
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            // Versions, Retry and resets are the business of whoever reads the socket; a refusal is not.
            Some(DatagramEvent::Response(transmit)) if self.inner.is_none() && !self.is_client => {
                self.answers.push((answer.clone(), transmit));
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.scratch = answer;
    }

    /// Let connection and endpoint tell each other, and note what the application has to know.
    fn settle(&mut self) {
        use noq::{Event, PathEvent, StreamEvent};
        let mut readable = Vec::new();
        let mut writable = Vec::new();
        let mut lost = None;
        let mut opened = false;
        if let Some((handle, inner)) = &mut self.inner {
            while let Some(event) = inner.poll_endpoint_events() {
                if let Some(back) = self.endpoint.handle_event(*handle, event) {
                    inner.handle_event(back);
                }
            }
            while let Some(event) = inner.poll() {
                match event {
                    Event::Connected => {
                        self.told.push_back(Told::Connected);
                        writable.extend(self.outgoing.keys().copied());
                    }
                    Event::ConnectionLost { reason } => lost = Some(reason),
                    Event::Stream(StreamEvent::Opened { dir }) => {
                        while let Some(id) = inner.streams().accept(dir) {
                            readable.push(id);
                            if dir == Dir::Bi {
                                self.open.insert(u64::from(id));
                                writable.push(u64::from(id));
                            }
                        }
                    }
                    Event::Stream(StreamEvent::Readable { id }) => readable.push(id),
                    Event::Stream(StreamEvent::Writable { id }) => writable.push(u64::from(id)),
                    Event::Stream(StreamEvent::Available { .. }) => writable.extend(self.outgoing.keys().copied()),
                    Event::Stream(StreamEvent::Finished { id }) => {
                        if let Some(outgoing) = self.outgoing.get_mut(&u64::from(id)) {
                            outgoing.finished = true;
                        }
                    }
                    Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                        self.told.push_back(Told::Stopped { stream: id.into(), code: error_code.into_inner() });
                    }
                    Event::Path(PathEvent::Established { id, .. }) => {
                        let path = inner.network_path(id).ok();
                        self.told.push_back(Told::PathOpened(number(id), path));
                        opened = true;
                        if inner.path_status(id) == Ok(PathStatus::Backup) {
                            // It was opened as one. The peer is told of changes alone, and of a path that it knows.
                            for status in [PathStatus::Available, PathStatus::Backup] {
                                let _ = inner.set_path_status(id, status); // of a path that is open
                            }
                        }
                    }
                    Event::Path(PathEvent::Abandoned { id, reason, .. }) => {
                        let (code, by_peer) = match reason {
                            noq::PathAbandonReason::ApplicationClosed { error_code } => (error_code.into_inner(), false),
                            noq::PathAbandonReason::RemoteAbandoned { error_code } => (error_code.into_inner(), true),
                            _ => (PATH_UNSTABLE_OR_POOR, false),
                        };
                        self.told.push_back(Told::PathClosed { path: number(id), code, by_peer });
                    }
                    Event::Path(PathEvent::RemoteStatus { id, status, .. }) => {
                        let backup = status == PathStatus::Backup;
                        self.told.push_back(Told::PathStatus { path: number(id), backup });
                    }
                    _ => {}
                }
            }
        }
        if let Some((_, inner)) = &mut self.inner {
            while let Some(message) = inner.datagrams().recv() {
                self.told.push_back(Told::Message(message));
            }
        }
        if opened {
            self.widen(); // not before: it would be said on the first path, which may be the far one
        }
        for id in std::mem::take(&mut *self.ids.told.lock().unwrap()) {
            self.told.push_back(match id {
                Id::Issued(id) => Told::Issued(id),
                Id::Retired(id) => Told::Retired(id),
            });
        }
        readable.sort_unstable();
        readable.dedup();
        for stream in readable {
            self.read(stream);
        }
        for stream in writable {
            self.open_up_to(stream);
            self.push(stream);
        }
        if let Some(reason) = lost {
            self.lose(reason);
        }
    }

    /// Everything that can be read of a stream.
    fn read(&mut self, id: StreamId) {
        let Some((_, inner)) = &mut self.inner else { return };
        let stream = u64::from(id);
        let mut parts = Vec::new();
        let mut end = false;
        let mut reset = None;
        let mut receiver = inner.recv_stream(id);
        let Ok(mut chunks) = receiver.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => parts.push(chunk.bytes),
                Ok(None) => {
                    end = true;
                    break;
                }
                Err(noq::ReadError::Blocked) => break,
                Err(noq::ReadError::Reset(code)) => {
                    reset = Some(code.into_inner());
                    break;
                }
            }
        }
        let _ = chunks.finalize(); // what it wants said is said with the next burst in any case
        self.taken += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.widen();
        if !parts.is_empty() || end {
            self.told.push_back(Told::Data { stream, parts, end });
        }
        if let Some(code) = reset {
            self.told.push_back(Told::Reset { stream, code });
        }
    }

    /// Let more come ahead of what is missing, as far as what was taken allows. A client grants much as soon as there
    /// are several paths: it knows its server, and what is late on one would stop the others at once.
    fn widen(&mut self) {
        let Some((_, inner)) = &mut self.inner else { return };
        let ahead = if inner.paths().len() > 1 { AHEAD } else { 1 };
        let least = if self.is_client { ahead * self.first_window } else { self.first_window };
        let window = (ahead * self.taken).max(least).clamp(self.window, self.largest_window);
        if window >= self.window + self.window / 8 || (window == self.largest_window && window > self.window) {
            self.window = window;
            inner.set_receive_window(VarInt::from_u64(window).expect("a window is small"));
        }
    }

    /// A client opens streams in order; what the peer does not grant yet is asked for again when it does.
    fn open_up_to(&mut self, stream: u64) {
        let Some((_, inner)) = &mut self.inner else { return };
        while self.is_client && !self.open.contains(&stream) {
            let Some(made) = inner.streams().open(Dir::Bi) else { return };
            self.open.insert(made.into());
        }
    }

    /// Give the connection what it takes of what was written.
    fn push(&mut self, stream: u64) {
        let (Some((_, inner)), Some(outgoing)) = (&mut self.inner, self.outgoing.get_mut(&stream)) else { return };
        if !self.open.contains(&stream) {
            return;
        }
        let id = StreamId::from(VarInt::from_u64(stream).expect("checked when it was written to"));
        while !outgoing.waiting.is_empty() {
            let mut rest = outgoing.waiting.make_contiguous();
            match inner.send_stream(id).write_chunks(&mut rest) {
                Ok(written) => self.waiting -= written as u64,
                Err(noq::WriteError::Blocked) => return,
                Err(_) => {
                    // The peer wants no more, and is told so where events are looked at.
                    self.waiting -= outgoing.waiting.iter().map(|part| part.len() as u64).sum::<u64>();
                    outgoing.waiting.clear();
                }
            }
            while outgoing.waiting.front().is_some_and(Bytes::is_empty) {
                outgoing.waiting.pop_front();
            }
        }
        if outgoing.end && !outgoing.finished {
            let _ = inner.send_stream(id).finish(); // a second time it is an error, and means nothing
        }
    }

    fn lose(&mut self, reason: ConnectionError) {
        self.over = true;
        let refusal = self.verifier.as_ref().and_then(|verifier| verifier.refusal.lock().unwrap().take());
        let ending = match reason {
            ConnectionError::TimedOut => "silent",
            ConnectionError::Reset => "gone",
            _ => "",
        };
        let (code, frame, reason) = match (refusal, reason) {
            (Some(refusal), _) => (CRYPTO_ERROR + u64::from(refusal.alert), Some(CRYPTO_FRAME), refusal.reason),
            (_, ConnectionError::ApplicationClosed(close)) => {
                (close.error_code.into_inner(), None, String::from_utf8_lossy(&close.reason).into_owned())
            }
            (_, ConnectionError::ConnectionClosed(close)) => {
                (close.error_code.into(), Some(0), String::from_utf8_lossy(&close.reason).into_owned())
            }
            (_, ConnectionError::TransportError(error)) => (error.code.into(), Some(0), error.reason),
            (_, ConnectionError::TimedOut) => (INTERNAL_ERROR, Some(0), String::new()),
            (_, ConnectionError::Reset) => (NO_ERROR, Some(0), String::new()),
            (_, other) => (INTERNAL_ERROR, Some(0), other.to_string()),
        };
        self.told.push_back(Told::Lost { code, frame, reason, ending });
    }
}

const NO_ERROR: u64 = 0x0; // RFC 9000 section 20.1, as the next
const INTERNAL_ERROR: u64 = 0x1;
const CRYPTO_ERROR: u64 = 0x100;
const CRYPTO_FRAME: u64 = 0x06;
const PATH_UNSTABLE_OR_POOR: u64 = 0x3e76; // draft-ietf-quic-multipath-21 section 4.2.1

fn joined<'py>(py: Python<'py>, parts: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, parts.iter().map(Bytes::len).sum(), |mut room| {
        for part in parts {
            let (here, rest) = room.split_at_mut(part.len());
            here.copy_from_slice(part);
            room = rest;
        }
        Ok(())
    })
}

fn number(id: PathId) -> u32 {
    id.into_inner()
}

/// The bytes of an object that has them in a row. They must not be changed while this runs, which Python's lock sees to.
fn contiguous(data: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !data.is_c_contiguous() {
        return Err(bad("bytes that are not in a row"));
    }
    if data.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is contiguous, has this length, and lives as long as the reference; the GIL is held.
    Ok(unsafe { std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), data.len_bytes()) })
}

/// Of an object with `peer`, an address as sockets have it, and `local`, the packed address of ours or nothing.
fn path_of(address: &Bound<'_, PyAny>) -> PyResult<FourTuple> {
    let peer = address.getattr("peer")?;
    let host: String = peer.get_item(0)?.extract()?;
    let port: u16 = peer.get_item(1)?.extract()?;
    let ip: IpAddr = host.split('%').next().unwrap_or_default().parse().map_err(bad)?;
    let remote = match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => {
            let scope = if peer.len()? > 3 { peer.get_item(3)?.extract()? } else { 0 };
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
    };
    let local: Vec<u8> = address.getattr("local")?.extract()?;
    let local = match local.len() {
        4 => Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(local.as_slice()).expect("four bytes")))),
        16 => Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(local.as_slice()).expect("sixteen bytes")))),
        _ => None,
    };
    Ok(FourTuple::new(remote, local))
}
