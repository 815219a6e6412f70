//! noq-proto as a Python module: QUIC connections, with several paths where both ends want it, without I/O.
//!
//! Datagrams and time go in, bursts of datagrams, events and facts come out. Time is seconds on whatever clock the
//! caller has, so that the same code runs in virtual time. What Python sees is described in `multi_noq.pyi`.

mod config;
mod congestion;
mod connection;
mod coupling;
mod ids;
mod tls;

use pyo3::prelude::*;

#[pymodule]
fn multi_noq(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<config::Config>()?;
    module.add_class::<connection::Connection>()
}
