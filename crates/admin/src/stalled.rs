//! A socket whose write fails when its peer takes nothing for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The time for which a client may take no byte of its answer. A slow one goes on as long as it
/// takes some.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket, and when the write that waits gives up.
pub(crate) struct Stalled<S> {
    socket: S,
    deadline: Pin<Box<Sleep>>,
    waits: bool,
}

impl<S> Stalled<S> {
    pub(crate) fn new(socket: S) -> Self {
        Self { socket, deadline: Box::pin(sleep(STALL_TIMEOUT)), waits: false }
    }

    fn noted<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = false;
            return polled;
        }
        if !self.waits {
            self.waits = true;
            self.deadline.as_mut().reset(Instant::now() + STALL_TIMEOUT);
        }
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalled<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalled<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.socket).poll_write(context, bytes);
        this.noted(context, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_write_ends_when_nobody_reads_and_goes_on_while_somebody_does() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(8);
            let mut ours = Stalled::new(ours);
            ours.write_all(&[1; 8]).await.unwrap();
            let reader = async {
                let mut byte = [0; 8];
                theirs.read_exact(&mut byte).await.unwrap();
                theirs
            };
            let (written, theirs) = tokio::join!(ours.write_all(&[2; 8]), reader);
            written.unwrap();
            // The deadline has passed already: the next wait fails at its first poll after it.
            let began = Instant::now();
            ours.waits = true;
            ours.deadline.as_mut().reset(began);
            let failed = ours.write_all(&[3]).await.unwrap_err();
            assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
            drop(theirs);
        });
    }
}
