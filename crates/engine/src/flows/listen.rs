//! Listening UDP sockets: they are registered, follow a reload, and are left to another process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_sys::{service, socket};

use crate::ready::Token;
use crate::worker::flow_state::DatagramSocket;
use crate::worker::{ListenerSocket, Worker};

const UNREAD: &str = "cannot read datagrams of a listener";

impl Worker {
    /// Reads from these sockets from now on. Sockets from before that are not among them begin no
    /// flow, and end with their last one. One at the address of a wanted socket goes on: the kernel
    /// gives it a share of the new clients (SO_REUSEPORT).
    pub(crate) fn listen_datagrams(&self, wanted: &[ListenerSocket]) {
        let mut sockets = self.flows.sockets.borrow_mut();
        for known in sockets.iter().flatten() {
            let same = wanted.iter().find(|wanted| Arc::ptr_eq(&wanted.socket, &known.socket));
            let is_there = |wanted: &&ListenerSocket| {
                socket::local_address(&wanted.socket).is_ok_and(|at| at == known.address)
            };
            let same = same.or_else(|| wanted.iter().find(is_there));
            known.is_listening.set(same.is_some());
            if let Some(same) = same {
                known.listener.set(same.listener);
            }
        }
        for new in wanted {
            let mut known = sockets.iter().flatten();
            if known.any(|known| Arc::ptr_eq(&known.socket, &new.socket)) {
                continue;
            }
            let index = sockets.iter().position(Option::is_none).unwrap_or(sockets.len());
            let made = DatagramSocket::new(new.listener, &new.socket).and_then(|made| {
                match self.process.inboxes.awaits_flows() {
                    true => self.flows.awaits.set(true),
                    false => self.read_socket(index, &made)?,
                }
                Ok(Rc::new(made))
            });
            match made {
                Ok(made) if index == sockets.len() => sockets.push(Some(made)),
                Ok(made) => sockets[index] = Some(made),
                Err(error) => tracing::error!("{UNREAD}: {error}"),
            }
        }
    }

    fn read_socket(&self, index: usize, socket: &DatagramSocket) -> io::Result<()> {
        if socket.is_read.replace(true) {
            return Ok(());
        }
        let token = Token::Datagrams(index as u16).encode();
        self.table.borrow().epoll.add_listener(&socket.socket, token)
    }

    /// Reads the listening sockets that have waited for the flows of an earlier process.
    pub(crate) fn read_awaited(&self) {
        if !self.flows.awaits.take() {
            return;
        }
        self.flows.table.borrow_mut().restore_order();
        for (index, socket) in self.flows.sockets.borrow().iter().enumerate() {
            let Some(socket) = socket else { continue };
            if let Err(error) = self.read_socket(index, socket) {
                tracing::error!("{UNREAD}: {error}");
            }
        }
    }

    /// Closes sockets that begin nothing new and have no flow any more.
    pub(crate) fn tidy_datagram_sockets(&self) {
        for known in self.flows.sockets.borrow_mut().iter_mut() {
            let unused = known.take_if(|it| !it.is_listening.get() && Rc::strong_count(it) == 1);
            if let Some(unused) = unused {
                // An error means that it is not registered, which is the aim.
                let _ = self.table.borrow().epoll.remove(&unused.socket);
            }
        }
    }

    /// Reads no more datagrams from the sockets in `kept`: another process does. With `moves_flows`
    /// their flows are to leave the worker, by [`Worker::leave_some_flows`], which keeps them until
    /// the other process needs this one no more; otherwise they end by it. Closes a socket that the
    /// other process lacks, if that has another one at its address, and ends its flows. The kernel
    /// would give it a share of the new clients as long as it is open. Flows of other sockets go on
    /// here. Returns the other sockets for [`Worker::listen_datagrams`].
    pub(crate) fn leave_datagrams(
        self: &Rc<Self>,
        kept: &[Arc<OwnedFd>],
        moves_flows: bool,
    ) -> Vec<ListenerSocket> {
        let is_kept = |known: &DatagramSocket| kept.iter().any(|it| Arc::ptr_eq(it, &known.socket));
        let is_other_process = |at: &SocketAddr| {
            // A TCP listener may have the same address.
            let mut kept = kept.iter().filter(|kept| service::has_datagrams(kept));
            kept.any(|kept| socket::local_address(kept).is_ok_and(|it| it == *at))
        };
        let leaves = |known: &DatagramSocket| is_kept(known) || is_other_process(&known.address);
        let mut again = Vec::new();
        for place in self.flows.sockets.borrow_mut().iter_mut() {
            let Some(known) = place else { continue };
            known.is_listening.set(false);
            let leaves = leaves(known);
            if is_kept(known) || !leaves {
                let socket = known.socket.clone();
                again.push(ListenerSocket::of_datagrams(known.listener.get(), socket));
            }
            if leaves {
                // An error means that it is not registered, which is the aim.
                let _ = self.table.borrow().epoll.remove(&known.socket);
                *place = None;
            }
        }
        let keys = self.flows.table.borrow().keys();
        let mut left = Vec::new();
        for key in keys {
            let via = self.flows.table.borrow_mut().flow(key).map(|flow| flow.payload.via.clone());
            if let Some(via) = via.filter(|via| leaves(via)) {
                left.push((key, moves_flows && is_kept(&via)));
            }
        }
        self.flows.leaving.borrow_mut().left = left;
        again
    }
}
