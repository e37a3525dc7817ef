//! The limits of a file that says nothing about them.

use std::time::Duration;

use super::{HELLO_BYTES_MAX, Limits};

impl Default for Limits {
    fn default() -> Self {
        Self {
            hello_bytes_max: HELLO_BYTES_MAX,
            hello_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            quic_idle_timeout: Duration::from_secs(120),
            shed_idle: false,
            drain_timeout: Duration::from_secs(5),
            connections_max: None,
            memory_max: 512 << 20,
        }
    }
}
