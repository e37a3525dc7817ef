//! A DNS server over UDP and TCP (RFC 1035) with scripted answers: addresses, chains of names,
//! nothing, silence. It counts its queries.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The answer about a name.
#[derive(Clone, Debug)]
pub enum Says {
    /// Addresses, with a TTL in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// A CNAME, to be followed within the same answer.
    Alias(&'static str),
    /// Texts: TXT records, each of one string.
    Texts(Vec<String>),
    /// That there is no such name.
    NxDomain,
    /// NXDOMAIN with an SOA record that allows to remember it for so many seconds.
    Denied(u32),
    /// Nothing, as a server without the zone that asks nobody.
    Lame,
    /// Nothing but which server to ask.
    Referral,
    /// A message that ends before its record.
    Malformed,
    /// FORMERR to a question with EDNS, and addresses to one without.
    NoEdns(Vec<IpAddr>),
    /// Addresses of this family (IPv6 or not), and nothing at all about the other.
    OneFamily(bool, Vec<IpAddr>),
    /// That it failed.
    ServFail,
    /// Nothing at all.
    Silence,
    /// Nothing to the first datagram, and addresses to those that follow.
    Again(Vec<IpAddr>),
    /// Addresses, those of this family (IPv6 or not) late.
    FamilyLate(bool, Duration, Vec<IpAddr>),
    /// Addresses, late.
    Late(Duration, Vec<IpAddr>),
    /// Addresses, once nobody holds this.
    Held(Arc<Mutex<()>>, Vec<IpAddr>),
    /// A response code and these records, in this order, whoever's they are.
    Exactly(u8, Vec<(&'static str, Data)>),
}

/// The data of a record.
#[derive(Clone, Debug)]
pub enum Data {
    Alias(&'static str),
    Address(IpAddr),
    Text(String),
}

/// The name whose answer is given for names that have none of their own.
pub const ANY: &str = "*";

type Script = Arc<Mutex<HashMap<String, Says>>>;
/// The identifiers of the questions for each name.
type Asked = Arc<Mutex<HashMap<String, Vec<[u8; 2]>>>>;

pub struct Dns {
    pub address: SocketAddr,
    script: Script,
    asked: Asked,
    stopped: Arc<AtomicBool>,
}

/// Bytes of an answer over UDP; a longer one is cut, and asked for again over TCP.
const UDP_BYTES_MAX: usize = 512;

impl Dns {
    pub fn new(script: &[(&str, Says)]) -> Self {
        let (udp, tcp) = sockets();
        let script = script.iter().map(|(name, says)| ((*name).to_owned(), says.clone()));
        let dns = Self {
            address: udp.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script.collect())),
            asked: Arc::default(),
            stopped: Arc::default(),
        };
        dns.serve_udp(udp);
        dns.serve_tcp(tcp);
        dns
    }

    /// From now on says this of a name.
    pub fn says(&self, name: &str, says: Says) {
        self.script.lock().unwrap().insert(name.to_owned(), says);
    }

    /// Returns the number of times that a name was asked for, whatever the family.
    pub fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).map_or(0, Vec::len)
    }

    /// Questions without datagrams that were sent again because no answer had come.
    pub fn questions(&self, name: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.get(name).map_or(0, |ids| ids.iter().collect::<HashSet<_>>().len())
    }

    fn serve_udp(&self, socket: UdpSocket) {
        let (script, asked, stopped) =
            (self.script.clone(), self.asked.clone(), self.stopped.clone());
        thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (question, script) = (question[..length].to_vec(), script.clone());
                let (socket, asked) = (socket.try_clone().unwrap(), asked.clone());
                let answer = move || {
                    let Some(mut answer) = answer(&question, &script, &asked) else { return };
                    if answer.len() > UDP_BYTES_MAX {
                        let end = 12 + question_len(&answer);
                        answer.truncate(end);
                        answer[2] |= 2; // TC
                        answer[6..8].fill(0);
                    }
                    let _ = socket.send_to(&answer, from);
                };
                // A thread only where it waits: thousands of questions come at once.
                thread::spawn(answer);
            }
        });
    }

    fn serve_tcp(&self, listener: TcpListener) {
        let (script, asked, stopped) =
            (self.script.clone(), self.asked.clone(), self.stopped.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(mut stream), script, asked) = (stream, script.clone(), asked.clone())
                else {
                    continue;
                };
                thread::spawn(move || {
                    let mut length = [0; 2];
                    while stream.read_exact(&mut length).is_ok() {
                        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                        if stream.read_exact(&mut question).is_err() {
                            return;
                        }
                        let Some(answer) = answer(&question, &script, &asked) else { return };
                        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                        let _ = stream.write_all(&[&length[..], &answer].concat());
                    }
                });
            }
        });
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = std::net::TcpStream::connect(self.address);
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(b"", self.address);
        }
    }
}

/// UDP and TCP on one port.
fn sockets() -> (UdpSocket, TcpListener) {
    loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (udp, tcp);
        }
    }
}

/// The length of the question behind the header.
fn question_len(message: &[u8]) -> usize {
    let mut at = 12;
    while let length @ 1.. = usize::from(message[at]) {
        at += 1 + length;
    }
    at + 5 - 12
}

fn answer(
    question: &[u8],
    script: &Mutex<HashMap<String, Says>>,
    asked: &Mutex<HashMap<String, Vec<[u8; 2]>>>,
) -> Option<Vec<u8>> {
    let asked_for = question.get(12..12 + question_len(question))?;
    let mut name = read_name(asked_for);
    asked.lock().unwrap().entry(name.clone()).or_default().push([question[0], question[1]]);
    let v6 = asked_for[asked_for.len() - 4..][..2] == [0, 28];
    let says_of = |name: &str| {
        let script = script.lock().unwrap();
        script.get(name).or_else(|| script.get(ANY)).cloned()
    };
    if let Some(out) = says_of(&name).and_then(|says| odd_answer(&says, question, asked_for)) {
        return Some(out);
    }
    let mut records = Vec::new();
    let mut count = 0_u16;
    let code = loop {
        let (addresses, ttl) = match says_of(&name) {
            None | Some(Says::NxDomain) => break 3,
            Some(Says::Denied(_) | Says::Lame | Says::Referral | Says::Malformed) => break 2,
            Some(Says::OneFamily(six, _)) if six != v6 => return None,
            Some(Says::OneFamily(_, addresses) | Says::NoEdns(addresses)) => (addresses, 60),
            Some(Says::ServFail | Says::Texts(_)) => break 2,
            Some(Says::Silence) => return None,
            Some(Says::Alias(to)) => {
                records.extend(record(&name, &Data::Alias(to), 60));
                count += 1;
                name = to.to_owned();
                continue;
            }
            Some(Says::Exactly(code, exactly)) => {
                let is_asked = |data: &Data| match data {
                    Data::Alias(_) => true,
                    Data::Address(address) => address.is_ipv6() == v6,
                    Data::Text(_) => false,
                };
                for (owner, data) in exactly.iter().filter(|(_, data)| is_asked(data)) {
                    records.extend(record(owner, data, 60));
                    count += 1;
                }
                break code;
            }
            Some(Says::FamilyLate(six, _, addresses)) if six != v6 => (addresses, 60),
            Some(Says::FamilyLate(_, wait, addresses) | Says::Late(wait, addresses)) => {
                thread::sleep(wait);
                (addresses, 60)
            }
            Some(Says::Again(addresses)) => {
                let is_first = asked.lock().unwrap().get(&name).is_none_or(|ids| ids.len() < 2);
                if is_first {
                    return None;
                }
                (addresses, 60)
            }
            Some(Says::Held(held, addresses)) => {
                drop(held.lock());
                (addresses, 60)
            }
            Some(Says::Addresses(addresses, ttl)) => (addresses, ttl),
        };
        for address in addresses.iter().filter(|address| address.is_ipv6() == v6) {
            records.extend(record(&name, &Data::Address(*address), ttl));
            count += 1;
        }
        break 0;
    };
    Some(message(question, asked_for, (0x80 | code, [count, 0]), &records))
}

/// An answer that has no addresses, and more than a response code.
fn odd_answer(says: &Says, question: &[u8], asked_for: &[u8]) -> Option<Vec<u8>> {
    let of_zone = |kind, data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap().to_be_bytes();
        [&write_name("test")[..], &[0, kind, 0, 1, 0, 1, 0x51, 0x80], &length, data].concat()
    };
    let is_text = asked_for[asked_for.len() - 4..][..2] == [0, 16];
    let (flags, counts, records) = match says {
        Says::Texts(texts) if is_text => {
            let owner = read_name(asked_for);
            let records = texts.iter().map(|text| record(&owner, &Data::Text(text.clone()), 1));
            (0x80, [u16::try_from(texts.len()).unwrap(), 0], records.collect::<Vec<_>>().concat())
        }
        Says::Addresses(..) if is_text => (0x80, [0, 0], vec![]),
        Says::Texts(_) => (0x80, [0, 0], vec![]),
        Says::Denied(ttl) => {
            let names = [write_name("ns.test"), write_name("root.test")].concat();
            let data = [&names[..], &[0; 16], &ttl.to_be_bytes()].concat();
            (0x83, [0, 1], of_zone(6, &data))
        }
        Says::Lame => (0, [0, 0], vec![]),
        Says::Referral => (0x80, [0, 1], of_zone(2, &write_name("ns.test"))),
        Says::Malformed => (0x80, [1, 0], vec![0xc0]),
        Says::NoEdns(_) if question[10..12] != [0, 0] => (0x81, [0, 0], vec![]),
        _ => return None,
    };
    Some(message(question, asked_for, (flags, counts), &records))
}

/// A response with so many records in its answer and its authority.
fn message(
    question: &[u8],
    asked_for: &[u8],
    (flags, [answers, authorities]): (u8, [u16; 2]),
    records: &[u8],
) -> Vec<u8> {
    let counts = [1, answers, authorities, 0].map(u16::to_be_bytes).concat();
    [&question[..2], &[0x81, flags], &counts, asked_for, records].concat()
}

fn record(owner: &str, data: &Data, ttl: u32) -> Vec<u8> {
    let (kind, data) = match data {
        Data::Alias(to) => (5, write_name(to)),
        Data::Address(IpAddr::V4(ip)) => (1, ip.octets().to_vec()),
        Data::Address(IpAddr::V6(ip)) => (28, ip.octets().to_vec()),
        Data::Text(text) => {
            let length = u8::try_from(text.len()).unwrap();
            (16, [&[length], text.as_bytes()].concat())
        }
    };
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    let ttl = ttl.to_be_bytes();
    [&write_name(owner)[..], &[0, kind, 0, 1], &ttl, &length, &data].concat()
}

fn read_name(mut bytes: &[u8]) -> String {
    let mut labels = Vec::new();
    while let [length, rest @ ..] = bytes {
        if *length == 0 {
            break;
        }
        let (label, after) = rest.split_at(usize::from(*length));
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        bytes = after;
    }
    labels.join(".")
}

fn write_name(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}
