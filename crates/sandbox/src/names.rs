//! DNS inside: a name that may be reached has a stand-in, and no other name exists. Nothing is
//! asked outside before a name is dialled, so that questions carry nothing out.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, poll};

use crate::list::AllowList;
use crate::programs::Programs;
use crate::sockets::DNS;
use crate::stand_ins::StandIns;

/// Seconds for which an answer may be kept: a stand-in stays for the run.
const TTL_S: u32 = 300;
/// Bytes of a question: none is longer without TCP.
const QUESTION_BYTES_MAX: usize = 4096;
/// Names that are remembered which were asked for and do not exist.
const REFUSED_MAX: usize = 1024;
/// Names whose program is remembered: one for each stand-in.
const PROGRAMS_MAX: usize = 1 << 14;

/// The names of a run, which its DNS and its connections share.
#[derive(Debug, Default)]
pub struct ResolvedNames {
    /// Those that exist.
    pub stand_ins: StandIns,
    /// Those that do not, and how often each was asked for.
    pub refused: BTreeMap<String, u64>,
    /// The program that asked for a name first, for each name. `None`: it was not found.
    pub programs: BTreeMap<String, Option<String>>,
    /// Places that were dialled at ports that no entry has.
    pub dialled: BTreeMap<SocketAddr, Repeated>,
    /// Questions and dials that were not noted: there were too many.
    pub more: u64,
}

/// The number of times that something was refused, and the first one's time as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    pub count: u64,
    pub first: String,
}

impl Repeated {
    /// Adds others. The earlier time stays: lines come as connections end. Times order as texts do.
    pub(crate) fn join(&mut self, other: &Self) {
        self.count += other.count;
        if other.first < self.first {
            self.first.clone_from(&other.first);
        }
    }
}

/// The names that exist inside.
#[derive(Clone, Debug)]
pub enum Existing {
    /// Those of a list.
    Listed(AllowList),
    /// All.
    All,
}

impl Existing {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Listed(list) => list.has(name),
            Self::All => true,
        }
    }
}

/// Answers what comes to these sockets, on a thread of its own, until the process ends. With
/// `programs` it notes who asks.
///
/// # Errors
/// The kernel's.
pub fn serve(
    sockets: Vec<OwnedFd>,
    existing: Existing,
    names: Arc<Mutex<ResolvedNames>>,
    mut programs: Option<Programs>,
) -> io::Result<()> {
    let mut served = Vec::new();
    for socket in sockets {
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new((&socket).into())?;
        served.push((socket, state));
    }
    let body = move || loop {
        let mut waits: Vec<PollFd<'_>> = served
            .iter()
            .map(|(socket, _)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        // It fails only where the kernel has no memory, and is asked again.
        let _ = poll(&mut waits, None);
        for (socket, state) in &served {
            answer_all((socket, state), &existing, &names, programs.as_mut());
        }
    };
    thread::Builder::new().name("sandbox-dns".into()).spawn(body)?;
    Ok(())
}

/// Answers all questions that have come to a socket.
fn answer_all(
    (socket, state): (&UdpSocket, &UdpSocketState),
    existing: &Existing,
    names: &Mutex<ResolvedNames>,
    mut programs: Option<&mut Programs>,
) {
    let mut bytes = [0; QUESTION_BYTES_MAX];
    loop {
        let mut meta = [RecvMeta::default()];
        match state.recv(socket.into(), &mut [IoSliceMut::new(&mut bytes)], &mut meta) {
            Ok(1) => {}
            // All are read; or one is lost, and is asked again.
            _ => return,
        }
        let [RecvMeta { addr, len, stride, dst_ip, .. }] = meta;
        // Several of a size may come at once.
        let questions = bytes.get(..len).unwrap_or_default().chunks(stride.max(1));
        for question in questions {
            let programs = programs.as_deref_mut();
            let who = || programs?.program(addr, SocketAddr::new(dst_ip?, DNS));
            let Some(contents) = answer(question, existing, names, who) else { continue };
            let contents = &contents;
            let sent = Transmit {
                destination: addr,
                ecn: None,
                contents,
                segment_size: None,
                src_ip: dst_ip,
            };
            // A client that is gone needs none.
            let _ = state.try_send(socket.into(), &sent);
        }
    }
}

/// The answer to a question. `None`: it is no question.
fn answer(
    question: &[u8],
    existing: &Existing,
    names: &Mutex<ResolvedNames>,
    who: impl FnOnce() -> Option<String>,
) -> Option<Vec<u8>> {
    let asked = Message::from_vec(question).ok()?;
    if asked.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.metadata.recursion_desired = asked.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = match &*asked.queries {
        [query] if asked.metadata.op_code == OpCode::Query => {
            answer.add_query(query.clone());
            let (code, record) = look_up(query, existing, names, who);
            answer.answers.extend(record);
            code
        }
        _ => ResponseCode::NotImp,
    };
    answer.to_vec().ok()
}

/// The code of an answer, and its record if it has one.
fn look_up(
    query: &Query,
    existing: &Existing,
    names: &Mutex<ResolvedNames>,
    who: impl FnOnce() -> Option<String>,
) -> (ResponseCode, Option<Record>) {
    let name = query.name().to_lowercase().to_ascii();
    let name = name.trim_end_matches('.');
    if query.query_class() != DNSClass::IN {
        return (ResponseCode::Refused, None);
    }
    // A search takes time: nobody waits for the lock meanwhile.
    if names.lock().lacks_program(name) {
        let program = who();
        names.lock().programs.insert(name.to_owned(), program);
    }
    let mut names = names.lock();
    if !existing.has(name) {
        names.refuse(name);
        return (ResponseCode::NXDomain, None);
    }
    let Some((v4, v6)) = names.stand_ins.ask(name) else {
        return (ResponseCode::ServFail, None);
    };
    let data = match query.query_type() {
        RecordType::A => RData::A(A(v4)),
        RecordType::AAAA => RData::AAAA(AAAA(v6)),
        // No HTTPS record: it would bring keys of ECH, which hide the name.
        _ => return (ResponseCode::NoError, None),
    };
    let record = Record::from_rdata(query.name().clone(), TTL_S, data);
    (ResponseCode::NoError, Some(record))
}

impl ResolvedNames {
    fn lacks_program(&self, name: &str) -> bool {
        self.programs.len() < PROGRAMS_MAX && !self.programs.contains_key(name)
    }

    fn refuse(&mut self, name: &str) {
        let is_full = self.refused.len() >= REFUSED_MAX;
        match self.refused.get_mut(name) {
            Some(count) => *count += 1,
            None if !is_full => {
                self.refused.insert(name.to_owned(), 1);
            }
            None => self.more += 1,
        }
    }
}
