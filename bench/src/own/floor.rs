//! The least that splicing after reading the hello can cost, about: one epoll loop without runtime,
//! timers, logs or rules. It must stay this simple, as other servers are compared with it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use eyelet_wire::record::{self, RecordHeader};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags};

use super::listen;

/// The two ends of a connection, as indexes into a pair.
const CLIENT: usize = 0;
const ORIGIN: usize = 1;

/// One connection. `origin` is None until the hello is complete.
struct Pair {
    ends: [Option<OwnedFd>; 2],
    /// The client's bytes until the origin can take them; then empty.
    hello: Vec<u8>,
    /// The origin has taken the hello.
    joined: bool,
    /// The client sent more bytes, or an end, before the origin was connected.
    early: bool,
    /// For each end: a pipe with bytes that the end did not take yet.
    stuck: [Option<(Pipe, usize)>; 2],
    /// For each end: it will send no more.
    ended: [bool; 2],
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

struct Floor {
    epoll: OwnedFd,
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    pipes: Vec<Pipe>,
    upstreams: Vec<SocketAddr>,
    next: usize,
    buffer: Vec<u8>,
}

/// Serves until it is killed.
pub fn serve(address: SocketAddr, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, i32::try_from(listen::BACKLOG).unwrap_or(i32::MAX))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let buffer = vec![0; BUFFER_BYTES];
    let (pairs, free, pipes) = (Vec::new(), Vec::new(), Vec::new());
    let mut floor = Floor { epoll, pairs, free, pipes, upstreams, next: 0, buffer };
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&floor.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {} // strace interrupts when it comes and goes
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => floor.accept(&listener)?,
                token => floor.advance((token / 2) as usize, (token % 2) as usize, event.flags),
            }
        }
    }
}

impl Floor {
    /// One connection an event: the listener is level-triggered, so none is lost.
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(client) = rustix::net::accept_with(listener, flags) else { return Ok(()) };
        let at = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &client, token(at, CLIENT), events)?;
        self.pairs[at] = Some(Pair {
            ends: [Some(client), None],
            hello: Vec::new(),
            joined: false,
            early: false,
            stuck: [None, None],
            ended: [false; 2],
        });
        Ok(())
    }

    /// Handles an event. Dropping a pair that has ended or failed closes it.
    fn advance(&mut self, at: usize, end: usize, flags: EventFlags) {
        let Some(mut pair) = self.pairs.get_mut(at).and_then(Option::take) else { return };
        let done = if pair.joined {
            self.exchange(&mut pair, end, flags)
        } else if end == CLIENT {
            self.greet(&mut pair, at, flags.intersects(EventFlags::IN | EventFlags::HUP))
        } else {
            self.join(&mut pair)
        };
        match done {
            Ok(()) if pair.ended != [true; 2] => self.pairs[at] = Some(pair),
            _ => self.free.push(at),
        }
    }

    /// Reads the hello's record, and dials once it is complete.
    fn greet(&mut self, pair: &mut Pair, at: usize, readable: bool) -> io::Result<()> {
        let Some(client) = pair.ends[CLIENT].as_ref().filter(|_| readable) else { return Ok(()) };
        if pair.ends[ORIGIN].is_some() {
            pair.early = true; // it waits in the socket until `join`
            return Ok(());
        }
        match rustix::io::read(client, &mut self.buffer[..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => pair.hello.extend_from_slice(&self.buffer[..got]),
            Err(Errno::AGAIN) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        let Some(header) = RecordHeader::read(&pair.hello) else { return Ok(()) };
        if header.content_type != record::HANDSHAKE {
            return Err(io::ErrorKind::Other.into());
        }
        if pair.hello.len() < header.record_len() {
            return Ok(());
        }
        let upstream = self.upstreams[self.next % self.upstreams.len()];
        self.next += 1;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let origin = rustix::net::socket_with(family, kind, flags, None)?;
        sockopt::set_tcp_nodelay(&origin, true)?;
        match rustix::net::connect(&origin, &upstream) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &origin, token(at, ORIGIN), events)?;
        pair.ends[ORIGIN] = Some(origin);
        Ok(())
    }

    /// Sends the hello once the origin is connected.
    fn join(&mut self, pair: &mut Pair) -> io::Result<()> {
        let Some(origin) = &pair.ends[ORIGIN] else { return Ok(()) };
        // A hello of 2 KB fits an empty send buffer, so a short write is an error here.
        match rustix::io::write(origin, &pair.hello) {
            Ok(sent) if sent == pair.hello.len() => {}
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(e) => return Err(e.into()),
        }
        (pair.hello, pair.joined) = (Vec::new(), true);
        match pair.early {
            true => self.exchange(pair, CLIENT, EventFlags::IN | EventFlags::RDHUP),
            false => Ok(()),
        }
    }

    fn exchange(&mut self, pair: &mut Pair, end: usize, flags: EventFlags) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) && pair.stuck[end].is_some() {
            self.shift(pair, 1 - end)?;
        }
        let ending = flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
        // A short read may have left the end unread, and no further edge will report it.
        let reads = if ending { 2 } else { usize::from(flags.contains(EventFlags::IN)) };
        for _ in 0..reads {
            if !pair.ended[end] && pair.stuck[1 - end].is_none() {
                self.shift(pair, end)?;
            }
        }
        Ok(())
    }

    /// Moves bytes from one end to the other. It uses read and write for few bytes. Once a read
    /// fills the buffer, it uses splice(2) through a pipe of the pool.
    fn shift(&mut self, pair: &mut Pair, from: usize) -> io::Result<()> {
        let [Some(client), Some(origin)] = &pair.ends else { return Ok(()) };
        let (source, sink) = if from == CLIENT { (client, origin) } else { (origin, client) };
        let to = 1 - from;
        if pair.stuck[to].is_none() {
            match rustix::io::read(source, &mut self.buffer[..]) {
                Ok(0) => return finish(&mut pair.ended, from, sink),
                Ok(got) => {
                    let sent = match rustix::io::write(sink, &self.buffer[..got]) {
                        Err(Errno::AGAIN) => 0,
                        sent => sent?,
                    };
                    if sent == got && got < self.buffer.len() {
                        return Ok(()); // drained: the next bytes make an edge
                    }
                    let pipe = self.pipe()?;
                    let left = rustix::io::write(&pipe.write, &self.buffer[sent..got])?;
                    pair.stuck[to] = Some((pipe, left));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        let Some((pipe, mut held)) = pair.stuck[to].take() else { return Ok(()) };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        loop {
            while held > 0 {
                match rustix::pipe::splice(&pipe.read, None, sink, None, held, flags) {
                    Ok(sent) => held -= sent,
                    Err(Errno::AGAIN) => {
                        pair.stuck[to] = Some((pipe, held));
                        return Ok(());
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            match rustix::pipe::splice(source, None, &pipe.write, None, PIPE_BYTES, flags) {
                Ok(0) => {
                    self.pipes.push(pipe);
                    return finish(&mut pair.ended, from, sink);
                }
                Ok(got) => held = got,
                Err(Errno::AGAIN) => {
                    self.pipes.push(pipe);
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn pipe(&mut self) -> io::Result<Pipe> {
        if let Some(pipe) = self.pipes.pop() {
            return Ok(pipe);
        }
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES)?;
        Ok(Pipe { read, write })
    }
}

/// Passes an end on. If both ends have ended, the pair is closed and needs no shutdown.
fn finish(ended: &mut [bool; 2], from: usize, sink: &OwnedFd) -> io::Result<()> {
    ended[from] = true;
    if *ended == [true; 2] {
        return Ok(());
    }
    Ok(rustix::net::shutdown(sink, Shutdown::Write)?)
}

fn token(at: usize, end: usize) -> EventData {
    EventData::new_u64((at * 2 + end) as u64)
}

const LISTENER: u64 = u64::MAX;
const EVENTS: usize = 256;
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes of a pipe. By default an unprivileged process may use 1 MiB a pipe, and its user 64 MiB in
/// all pipes.
const PIPE_BYTES: usize = 256 << 10;
