//! Listening UDP sockets: they are registered, follow a reload, and are left to another process.

use std::rc::Rc;
use std::sync::Arc;

use eyelet_sys::socket;

use crate::ready::Token;
use crate::worker::flow_state::DatagramSocket;
use crate::worker::{ListenerSocket, Worker};

impl Worker {
    /// Reads from these sockets from now on. Those before that are not among them begin nothing
    /// new, and end with their last flow; but one at the address of a wanted one goes on, because
    /// the kernel gives it a share of the new clients as long as it is open (SO_REUSEPORT).
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
            let token = Token::Datagrams(index as u16).encode();
            let made = DatagramSocket::new(new.listener, &new.socket).and_then(|made| {
                self.table.borrow().epoll.add_listener(&made.socket, token)?;
                Ok(Rc::new(made))
            });
            match made {
                Ok(made) if index == sockets.len() => sockets.push(Some(made)),
                Ok(made) => sockets[index] = Some(made),
                Err(error) => tracing::error!("cannot read datagrams of a listener: {error}"),
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

    /// Reads no more datagrams of clients: another process does, which does not know their flows,
    /// so that these end. Returns the sockets for [`Worker::listen_datagrams`].
    pub(crate) fn leave_datagrams(self: &Rc<Self>) -> Vec<ListenerSocket> {
        self.end_all_flows();
        let left: Vec<_> = self.flows.sockets.take().into_iter().flatten().collect();
        for left in &left {
            left.is_listening.set(false);
            // As above.
            let _ = self.table.borrow().epoll.remove(&left.socket);
        }
        let again = |left: &Rc<DatagramSocket>| {
            ListenerSocket::of_datagrams(left.listener.get(), left.socket.clone())
        };
        left.iter().map(again).collect()
    }
}
