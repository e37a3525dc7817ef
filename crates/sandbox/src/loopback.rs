//! The network of a namespace: a loopback device that is up, takes every address as its own, and
//! has one beside 127.0.0.1 and ::1 for each version. A second device has none, and leads nowhere.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::{self, SendFlags, SocketFlags, SocketType};

/// The loopback device is the first one of each namespace.
const LOOPBACK: u32 = 1;
/// The table of addresses that are local (rtnetlink(7), RT_TABLE_LOCAL).
const TABLE_LOCAL: u8 = 255;
/// Without an address beside those of loopback, resolvers do not ask for one of that version
/// (AI_ADDRCONFIG, RFC 3493 section 6.1). It is of the block for such private use (RFC 1918).
const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 1);
/// One of a unique local prefix (RFC 4193).
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd65, 0x7965, 0x6c65, 0x7400, 0, 0, 0, 1);
/// Bytes of the kernel's answers: an error with the header of the question.
const ANSWER_BYTES: usize = 4096;

/// Sets it up. A kernel without IPv6 has IPv4 only. Returns whether it has IPv6.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_up() -> io::Result<bool> {
    let mut netlink = Netlink::open()?;
    let mut link = LinkMessage::default();
    link.header.index = LOOPBACK;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    netlink.ask(RouteNetlinkMessage::SetLink(link))?;
    netlink.look_connected();
    netlink.take(OWN_V4.into(), 32)?;
    match netlink.take(OWN_V6.into(), 128) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error().is_some_and(|no| NO_IPV6.contains(&no)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets the command ping, which needs no right then (icmp(7)). Nothing leaves the device.
pub(crate) fn let_ping() {
    let group = rustix::process::getegid().as_raw();
    // A command that cannot ping is confined as well.
    let _ = std::fs::write(PING_GROUPS, format!("{group} {group}"));
}

/// The groups whose processes may ping (icmp(7)).
const PING_GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";

/// The device that leads nowhere: its number, which no other one has, its name, its address, and
/// what it may be, because a kernel need not have the first one.
const DEVICE: u32 = 1000;
const DEVICE_NAME: &str = "eyelet0";
const DEVICE_V4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 2);
const DEVICE_KINDS: [InfoKind; 2] = [InfoKind::Dummy, InfoKind::Bridge];
/// The switch by which a new device has no address of IPv6.
const NO_IPV6_OF_NEW: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// The kernel's errors where IPv6 is missing or switched off.
const NO_IPV6: [i32; 3] = [
    rustix::io::Errno::AFNOSUPPORT.raw_os_error(),
    rustix::io::Errno::OPNOTSUPP.raw_os_error(),
    rustix::io::Errno::ACCESS.raw_os_error(),
];

struct Netlink {
    socket: OwnedFd,
    count: u32,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        // NETLINK_ROUTE is 0, the default.
        let socket = net::socket_with(net::AddressFamily::NETLINK, kind, flags, None)?;
        Ok(Self { socket, count: 0 })
    }

    /// Adds a device with a carrier and an address: browsers say that they are offline where
    /// loopback is alone. Every route leads to loopback, and at this device nobody is.
    fn look_connected(&mut self) {
        // A command without it is confined as well.
        let _ = std::fs::write(NO_IPV6_OF_NEW, "1");
        for kind in DEVICE_KINDS {
            let mut link = LinkMessage::default();
            link.header.index = DEVICE;
            link.header.flags = LinkFlags::Up;
            link.header.change_mask = LinkFlags::Up;
            let name = LinkAttribute::IfName(DEVICE_NAME.into());
            link.attributes = vec![name, LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
            if self.ask(RouteNetlinkMessage::NewLink(link)).is_ok() {
                let _ = self.give(DEVICE, DEVICE_V4.into(), 32);
                return;
            }
        }
    }

    /// Gives the loopback device an address, and all others of its version.
    fn take(&mut self, own: IpAddr, prefix_len: u8) -> io::Result<()> {
        self.give(LOOPBACK, own, prefix_len)?;
        let mut route = RouteMessage::default();
        route.header.address_family = family(own);
        route.header.table = TABLE_LOCAL;
        route.header.protocol = RouteProtocol::Boot;
        route.header.scope = RouteScope::Host;
        route.header.kind = RouteType::Local;
        route.attributes = vec![RouteAttribute::Oif(LOOPBACK)];
        self.ask(RouteNetlinkMessage::NewRoute(route))
    }

    /// Gives a device an address.
    fn give(&mut self, device: u32, own: IpAddr, prefix_len: u8) -> io::Result<()> {
        let mut address = AddressMessage::default();
        (address.header.family, address.header.prefix_len) = (family(own), prefix_len);
        address.header.index = device;
        address.attributes = vec![AddressAttribute::Local(own), AddressAttribute::Address(own)];
        self.ask(RouteNetlinkMessage::NewAddress(address))
    }

    /// Asks the kernel, and waits for its answer.
    fn ask(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.count += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK;
        if !matches!(message, RouteNetlinkMessage::SetLink(_)) {
            header.flags |= NLM_F_CREATE | NLM_F_EXCL;
        }
        header.sequence_number = self.count;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        net::send(&self.socket, &bytes, SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES];
        let (_, len) = net::recv(&self.socket, &mut answer, net::RecvFlags::empty())?;
        let answer = answer.get(..len).unwrap_or_default();
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
