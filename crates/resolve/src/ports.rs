//! Remembers for a moment that no local port was left for an upstream. The kernel looks at each of
//! 28,000 ports before it says so, which takes it a millisecond and more.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use eyelet_sys::Errno;

/// The time for which a worker does not ask the kernel again.
const REMEMBERED: Duration = Duration::from_millis(10);

/// The source address, if it was chosen, and the upstream of a connect.
pub type Path = (Option<IpAddr>, SocketAddr);

/// The last connect of a worker that found no local port.
#[derive(Default)]
pub struct PortShortage {
    last: Cell<Option<(Path, Instant)>>,
}

impl PortShortage {
    /// Connects, unless the last such connect found no local port just now.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`, or another one of the connect's.
    pub fn unless_short(
        &self,
        path: Path,
        connect: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<bool> {
        if self.last.get().is_some_and(|(of, at)| of == path && at.elapsed() < REMEMBERED) {
            return Err(Errno::ADDRNOTAVAIL.into());
        }
        connect().inspect_err(|error| {
            if is_no_port(error) {
                self.last.set(Some((path, Instant::now())));
            }
        })
    }
}

/// True if a connect failed because no local port is left, or no address of this host suits it.
pub fn is_no_port(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_not_asked_again_at_once() {
        let shortage = PortShortage::default();
        let path = |port| (None, SocketAddr::from(([192, 0, 2, 1], port)));
        let none = || Err(Errno::ADDRNOTAVAIL.into());
        assert!(shortage.unless_short(path(443), || Ok(true)).is_ok_and(|at_once| at_once));
        assert!(shortage.unless_short(path(443), none).is_err_and(|error| is_no_port(&error)));
        let again = shortage.unless_short(path(443), || panic!("it is remembered"));
        assert!(again.is_err_and(|error| is_no_port(&error)));
        assert!(shortage.unless_short(path(8443), || Ok(true)).is_ok(), "another upstream");
        shortage.last.set(Some((path(443), Instant::now() - REMEMBERED)));
        assert!(shortage.unless_short(path(443), || Ok(true)).is_ok(), "later");
    }

    #[test]
    fn other_failures_are_not_remembered() {
        let shortage = PortShortage::default();
        let path = (None, SocketAddr::from(([192, 0, 2, 1], 443)));
        assert!(shortage.unless_short(path, || Err(Errno::CONNREFUSED.into())).is_err());
        assert!(shortage.unless_short(path, || Ok(false)).is_ok());
    }
}
