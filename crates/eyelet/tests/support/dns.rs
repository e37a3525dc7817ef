//! A DNS server over UDP and TCP (RFC 1035) with scripted answers: addresses, chains of names,
//! nothing, silence. It counts its queries.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What is said of a name.
#[derive(Clone, Debug)]
pub enum Says {
    /// Addresses, with a TTL in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// A CNAME, to be followed within the same answer.
    Alias(&'static str),
    /// That there is no such name.
    NxDomain,
    /// That it failed.
    ServFail,
    /// Nothing at all.
    Silence,
    /// Nothing to the first datagram, and addresses to those that follow.
    Again(Vec<IpAddr>),
    /// Addresses, late.
    Late(Duration, Vec<IpAddr>),
    /// Addresses, once nobody holds this.
    Held(Arc<Mutex<()>>, Vec<IpAddr>),
    /// A response code and these records, in this order, whoever's they are.
    Exactly(u8, Vec<(&'static str, Data)>),
}

/// What a record says of its owner.
#[derive(Clone, Debug)]
pub enum Data {
    Alias(&'static str),
    Address(IpAddr),
}

/// Whose answer is given for names that have none of their own.
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

    /// How often a name was asked for, whatever the family.
    pub fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).map_or(0, Vec::len)
    }

    /// The same without datagrams that were sent again because no answer had come.
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
    let mut records = Vec::new();
    let mut count = 0_u16;
    let code = loop {
        let says = {
            let script = script.lock().unwrap();
            script.get(&name).or_else(|| script.get(ANY)).cloned()
        };
        let (addresses, ttl) = match says {
            None | Some(Says::NxDomain) => break 3,
            Some(Says::ServFail) => break 2,
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
                };
                for (owner, data) in exactly.iter().filter(|(_, data)| is_asked(data)) {
                    records.extend(record(owner, data, 60));
                    count += 1;
                }
                break code;
            }
            Some(Says::Late(wait, addresses)) => {
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
    let mut out = question[..2].to_vec();
    out.extend([0x81, 0x80 | code, 0, 1]);
    out.extend(count.to_be_bytes());
    out.extend([0, 0, 0, 0]);
    out.extend(asked_for);
    out.extend(records);
    Some(out)
}

fn record(owner: &str, data: &Data, ttl: u32) -> Vec<u8> {
    let (kind, data) = match data {
        Data::Alias(to) => (5, write_name(to)),
        Data::Address(IpAddr::V4(ip)) => (1, ip.octets().to_vec()),
        Data::Address(IpAddr::V6(ip)) => (28, ip.octets().to_vec()),
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
