//! Both addresses of a flow on its client's side, and the client's network.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A client's address, and the address of this host that it has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    client: [u8; 16],
    local: [u8; 16],
    /// Zone of a link-local client.
    scope: u32,
    client_port: u16,
    local_port: u16,
}

/// A client's network: 24 bits of an IPv4 address, 64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(u64);

impl Peer {
    /// `local` has the port of the listening socket, and the address that the datagram came to, or
    /// the socket's own.
    pub fn new(client: SocketAddr, local: SocketAddr) -> Self {
        let scope = match client {
            SocketAddr::V6(client) => client.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Self {
            client: octets(client.ip()),
            local: octets(local.ip()),
            scope,
            client_port: client.port(),
            local_port: local.port(),
        }
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        match Ipv6Addr::from(self.client).to_canonical() {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.client_port, 0, self.scope).into(),
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, self.client_port),
        }
    }

    /// The address that the client has asked.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.local).to_canonical(), self.local_port)
    }

    /// The client's network.
    pub fn network(&self) -> Network {
        let ip = u128::from_be_bytes(self.client);
        let host_bits = match Ipv6Addr::from(self.client).to_canonical() {
            IpAddr::V4(_) => 8,
            IpAddr::V6(_) => 64,
        };
        // The upper half of an IPv4-mapped address is zero, so its lower half tells it from others
        // but from those of ::/64, where no host is but this one.
        let network = ip >> host_bits << host_bits;
        Network((network >> 64) as u64 | network as u64)
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
