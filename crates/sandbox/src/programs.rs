//! The program that asks for a name: the kernel says which socket a question is from, and the
//! processes of the command which of them has it.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// The processes of this machine, as this process sees them.
const PROCESSES: &str = "/proc";
/// Processes that a search looks at, of this machine: far more than usual ones have.
const PROCESSES_MAX: usize = 8192;
/// Descriptors that a search looks at, of all processes of the command: some ten milliseconds.
const DESCRIPTORS_MAX: usize = 8192;
/// Links of /proc that all searches of a run read: a second or two, for some thousand names. A
/// command that asks for more has made them up.
const LINKS_MAX: usize = 1 << 20;
/// The type of a question about one socket, and of its answer (sock_diag(7)).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The flag of a question (netlink(7)).
const NLM_F_REQUEST: u16 = 1;
/// The protocol UDP (`IPPROTO_UDP`).
const UDP: u8 = 17;
/// The families of addresses (`AF_INET` and `AF_INET6`).
const FAMILIES: [u8; 2] = [2, 10];
/// Bytes of the header of netlink (`struct nlmsghdr`).
const HEADER_BYTES: usize = 16;
/// Bytes of a question: the header and a `struct inet_diag_req_v2`.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Places in an answer, a `struct inet_diag_msg`: the socket's own port, and its inode.
const PORT_AT: usize = HEADER_BYTES + 4;
const INODE_AT: usize = HEADER_BYTES + 68;
/// Bytes of an answer at most: attributes that nobody has asked for could follow.
const ANSWER_BYTES: usize = 1024;

/// Opens a socket that tells of sockets of this process's network namespace. `None`: this kernel
/// has none.
pub(crate) fn open() -> Option<OwnedFd> {
    let (family, protocol) = (net::AddressFamily::NETLINK, Some(netlink::SOCK_DIAG));
    net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol).ok()
}

/// Finds the program that a question is from, while it waits for the answer.
#[derive(Debug)]
pub struct Programs {
    sockets: OwnedFd,
    /// The command's network namespace, as the links of its processes name it.
    network: PathBuf,
    /// Links that further searches may read.
    links_left: usize,
}

impl Programs {
    /// One for the network namespace of this process, in which the socket was opened.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(sockets: OwnedFd, process: u32) -> io::Result<Self> {
        let network = fs::read_link(network(&Path::new(PROCESSES).join(process.to_string())))?;
        Ok(Self { sockets, network, links_left: LINKS_MAX })
    }

    /// The name of the program that has sent a datagram from `client` to `server`. It chose that
    /// name itself. `None`: it was not found, or enough was searched for.
    pub(crate) fn program(&mut self, client: SocketAddr, server: SocketAddr) -> Option<String> {
        let inode = self.inode(client, server)?;
        self.holder(Path::new(&format!("socket:[{inode}]")))
    }

    /// The inode of the socket at `client`.
    fn inode(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        net::send(&self.sockets, &question(client, server), SendFlags::empty()).ok()?;
        let mut answer = [0; ANSWER_BYTES];
        // The kernel has answered when it has taken the question.
        let (_, len) = net::recv(&self.sockets, &mut answer, RecvFlags::DONTWAIT).ok()?;
        inode(answer.get(..len)?, client.port())
    }

    /// The name of the process that has this file open.
    fn holder(&mut self, file: &Path) -> Option<String> {
        let mut left = DESCRIPTORS_MAX;
        let is_process = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
        let all = fs::read_dir(PROCESSES).ok()?.flatten().map(|entry| entry.path());
        for process in all.filter(|path| is_process(path).is_some()).take(PROCESSES_MAX) {
            self.links_left = self.links_left.checked_sub(1)?;
            if fs::read_link(network(&process)).ok().as_ref() != Some(&self.network) {
                continue;
            }
            let Ok(descriptors) = fs::read_dir(process.join("fd")) else { continue };
            for descriptor in descriptors.flatten() {
                left = left.checked_sub(1)?;
                self.links_left = self.links_left.checked_sub(1)?;
                if fs::read_link(descriptor.path()).is_ok_and(|open| open == file) {
                    let name = fs::read(process.join("comm")).ok()?;
                    return Some(printable(&name));
                }
            }
        }
        None
    }
}

fn network(process: &Path) -> PathBuf {
    process.join("ns/net")
}

/// The question for the UDP socket at `client`.
fn question(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let [v4, v6] = FAMILIES;
    let mut bytes = Vec::with_capacity(QUESTION_BYTES);
    bytes.extend((QUESTION_BYTES as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([if client.is_ipv4() { v4 } else { v6 }, UDP, 0, 0]);
    // In every state.
    bytes.extend([u8::MAX; 4]);
    // The kernel looks a UDP socket up as that of a datagram from the first address to the second.
    bytes.extend(server.port().to_be_bytes());
    bytes.extend(client.port().to_be_bytes());
    for address in [server, client] {
        match address.ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets().into_iter().chain([0; 12])),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    // By any device, and whatever its cookie is.
    bytes.extend([0; 4]);
    bytes.extend([u8::MAX; 8]);
    bytes
}

/// The inode in an answer, if it is about a socket at this port.
fn inode(answer: &[u8], port: u16) -> Option<u32> {
    let (is, of) = (answer.get(4..6)?, answer.get(PORT_AT..PORT_AT + 2)?);
    if is != SOCK_DIAG_BY_FAMILY.to_ne_bytes() || of != port.to_be_bytes() {
        return None;
    }
    let inode = answer.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(inode))
}

/// The name of a process as a part of a line: its owner may have put anything into it.
fn printable(name: &[u8]) -> String {
    let name = name.trim_ascii_end().iter().map(|byte| char::from(*byte));
    name.map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_is_found_whether_or_not_it_is_connected() {
        let programs = Programs::new(open().unwrap(), std::process::id()).unwrap();
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(server) = UdpSocket::bind(loopback) else { continue };
            let client = UdpSocket::bind(loopback).unwrap();
            let own = u32::try_from(rustix::fs::fstat(&client).unwrap().st_ino).unwrap();
            let (at, to) = (client.local_addr().unwrap(), server.local_addr().unwrap());
            assert_eq!(programs.inode(at, to), Some(own));
            client.connect(to).unwrap();
            assert_eq!(programs.inode(at, to), Some(own));
            drop(client);
            assert_eq!(programs.inode(at, to), None);
        }
    }

    #[test]
    fn searches_end_with_what_a_run_may_look_at() {
        let mut programs = Programs::new(open().unwrap(), std::process::id()).unwrap();
        let (server, client) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let (at, to) = (client.local_addr().unwrap(), server.local_addr().unwrap());
        // Others of this network may have more than one search looks at.
        let _ = programs.program(at, to);
        assert!(programs.links_left < LINKS_MAX);
        programs.links_left = 1;
        assert_eq!(programs.program(at, to), None);
        assert_eq!(programs.links_left, 0);
        assert_eq!(programs.program(at, to), None);
    }

    #[test]
    fn a_name_cannot_end_a_line() {
        assert_eq!(printable(b"npm view\n"), "npm view");
        assert_eq!(printable(b"a\nb.example\x1b\xff"), "a?b.example??");
    }
}
