//! Connection ids and their reset tokens: made by the application, which is told when an id is no longer in use.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use noq_proto::crypto::{CryptoError, HmacKey};
use noq_proto::{ConnectionId, ConnectionIdGenerator};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What became of an id.
pub enum Id {
    Issued(Vec<u8>),
    Retired(Vec<u8>),
}

/// The ids of one connection.
#[derive(Clone)]
pub struct Ids {
    new_id: Arc<Py<PyAny>>,
    length: usize,
    /// Made beforehand, so that it is known before the first packet comes.
    first: Arc<Mutex<Option<Vec<u8>>>>,
    pub told: Arc<Mutex<Vec<Id>>>,
}

impl Ids {
    /// `new_id` returns bytes, of the same length each time, at most 20. Also returns the first.
    pub fn new(py: Python<'_>, new_id: &Py<PyAny>) -> PyResult<(Self, Vec<u8>)> {
        let first: Vec<u8> = new_id.call0(py)?.extract(py)?;
        let ids = Self {
            new_id: Arc::new(new_id.clone_ref(py)),
            length: first.len(),
            first: Arc::new(Mutex::new(Some(first.clone()))),
            told: Arc::default(),
        };
        Ok((ids, first))
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let made = self.first.lock().unwrap().take().unwrap_or_else(|| {
            let made = Python::attach(|py| self.new_id.call0(py)?.extract::<Vec<u8>>(py));
            made.expect("a function that makes connection ids does not fail")
        });
        assert_eq!(made.len(), self.length, "connection ids have one length");
        let id = ConnectionId::new(&made);
        self.told.lock().unwrap().push(Id::Issued(made));
        id
    }

    fn retired(&mut self, id: ConnectionId) {
        self.told.lock().unwrap().push(Id::Retired(id.to_vec()));
    }

    fn cid_len(&self) -> usize {
        self.length
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Stateless reset tokens by the ids they are for.
pub struct ResetTokens(pub Py<PyAny>);

const TOKEN: usize = 16;

impl HmacKey for ResetTokens {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let made = Python::attach(|py| self.0.call1(py, (PyBytes::new(py, data),))?.extract::<[u8; TOKEN]>(py));
        signature_out.copy_from_slice(&made.expect("a function that makes reset tokens does not fail"));
    }

    fn signature_len(&self) -> usize {
        TOKEN
    }

    /// Nothing else is signed, and nobody verifies a token by its id.
    fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), CryptoError> {
        Err(CryptoError)
    }
}
