//! The sockets of a namespace that lead out of it: they are made inside, and served outside.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use eyelet_sys::confine::refused;
use eyelet_sys::socket::{self, Listen, datagram};
use serde::{Deserialize, Serialize};

use crate::programs;
use crate::step::{ConfineStep, SandboxError};

/// The port of DNS.
pub(crate) const DNS: u16 = 53;
/// Connections that wait until they are accepted. The command starts once they are.
const BACKLOG: i32 = 4096;
/// Probes of the kernel for connections that never leave this machine.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(240);

/// The sockets, of which each takes what goes to any address.
#[derive(Debug)]
pub struct ConfinedSockets {
    /// TCP sockets that listen, with their addresses: for each port one of IPv4, and one of IPv6 if
    /// the kernel has it.
    pub tcp: Vec<(SocketAddr, OwnedFd)>,
    /// UDP sockets at port 53.
    pub dns: Vec<OwnedFd>,
    /// UDP sockets for QUIC.
    pub quic: Vec<OwnedFd>,
    /// Those that are told of refused connections, if the kernel has them.
    pub refused: Vec<OwnedFd>,
    /// One that tells of all sockets in the namespace, if the kernel has it.
    pub diag: Option<OwnedFd>,
}

/// The layout of a message's descriptors.
#[derive(Serialize, Deserialize)]
pub(crate) struct SocketLayout {
    /// The addresses of those that listen.
    addresses: Vec<SocketAddr>,
    /// The number of those for QUIC.
    quic: usize,
    /// The number of [`ConfinedSockets::refused`].
    refused: usize,
    /// True if the last one is [`ConfinedSockets::diag`].
    has_diag: bool,
}

impl ConfinedSockets {
    /// Makes those of these TCP ports, and of these UDP ports, in the namespace of this process.
    pub(crate) fn make(
        (ports, quic_ports): (&[u16], &[u16]),
        has_ipv6: bool,
    ) -> Result<Self, SandboxError> {
        let any: &[IpAddr] = match has_ipv6 {
            true => &[IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            false => &[IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
        };
        let how = Listen {
            reuse_port: false,
            keepalive_idle: KEEPALIVE_IDLE,
            transparent: false,
            defer: None,
        };
        let (tcp, dns, quic) = (Vec::new(), Vec::new(), Vec::new());
        let refused = refused::open().map_or_else(|_| Vec::new(), Vec::from);
        let mut made = Self { tcp, dns, quic, refused, diag: programs::open() };
        for ip in any {
            for port in ports {
                let address = SocketAddr::new(*ip, *port);
                let bound = socket::bind(address, how).and_then(|bound| {
                    socket::listen(&bound, BACKLOG)?;
                    Ok(bound)
                });
                let bound = bound.map_err(SandboxError::about(ConfineStep::Sockets, address))?;
                made.tcp.push((address, bound));
            }
            for port in quic_ports {
                let address = SocketAddr::new(*ip, *port);
                let bound = datagram::bind_shared(address, false);
                made.quic.push(bound.map_err(SandboxError::about(ConfineStep::Sockets, address))?);
            }
            let address = SocketAddr::new(*ip, DNS);
            let bound = socket::bind_udp(address);
            made.dns.push(bound.map_err(SandboxError::about(ConfineStep::Sockets, address))?);
        }
        Ok(made)
    }

    /// All descriptors in order, and what they are.
    pub(crate) fn take_apart(self) -> (SocketLayout, Vec<OwnedFd>) {
        let (addresses, mut descriptors): (Vec<_>, Vec<_>) = self.tcp.into_iter().unzip();
        descriptors.extend(self.dns);
        let (quic, refused) = (self.quic.len(), self.refused.len());
        descriptors.extend(self.quic);
        descriptors.extend(self.refused);
        let has_diag = self.diag.is_some();
        descriptors.extend(self.diag);
        (SocketLayout { addresses, quic, refused, has_diag }, descriptors)
    }

    /// Those that [`ConfinedSockets::take_apart`] has taken apart.
    pub(crate) fn put_together(
        SocketLayout { addresses, quic, refused, has_diag }: SocketLayout,
        mut descriptors: Vec<OwnedFd>,
    ) -> io::Result<Self> {
        let diag = if has_diag { descriptors.pop() } else { None };
        let others = addresses.len().saturating_add(quic).saturating_add(refused);
        let Some(dns_count) = descriptors.len().checked_sub(others) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut dns = descriptors.split_off(addresses.len());
        let mut quic = dns.split_off(dns_count);
        let refused = quic.split_off(quic.len().saturating_sub(refused));
        let tcp = addresses.into_iter().zip(descriptors).collect();
        Ok(Self { tcp, dns, quic, refused, diag })
    }
}
