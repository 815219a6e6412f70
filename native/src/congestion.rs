//! Which congestion control a connection's paths have.

use std::sync::Arc;

use noq_proto::congestion::{Bbr3Config, ControllerFactory, CubicConfig, NewRenoConfig};

use crate::coupling::{Coupled, Coupling};

/// By its name in the configuration, for datagrams of this size; `None` if there is none of this name.
pub fn factory(name: &str, datagram_size: u16) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
    let size = u64::from(datagram_size);
    let window = (10 * size).min(14_720.max(2 * size)); // RFC 9002 section 7.2
    Some(match name {
        "cubic" => Arc::new({
            let mut config = CubicConfig::default();
            config.initial_window(window);
            config
        }),
        "reno" => Arc::new({
            let mut config = NewRenoConfig::default();
            config.initial_window(window);
            config
        }),
        "bbr" => Arc::new({
            let mut config = Bbr3Config::default();
            config.initial_window(window);
            config
        }),
        "lia" => Arc::new(Coupled::new(Coupling::Lia, window)),
        "olia" => Arc::new(Coupled::new(Coupling::Olia, window)),
        _ => return None,
    })
}
