//! Flow control (RFC 9113 section 5.2): how much may be sent, and how much may arrive.

/// The largest window.
pub(crate) const WINDOW_MAX: u32 = i32::MAX as u32;
/// The window of a connection and of a stream before SETTINGS (RFC 9113 6.9.2).
pub(crate) const WINDOW_FIRST: u32 = 65_535;

/// The bytes that may be sent. SETTINGS may make a stream's negative (RFC 9113 6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow(pub(crate) i32);

impl SendWindow {
    pub(crate) fn new(bytes: u32) -> Self {
        Self(i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    /// Opens it. `None` if it is wider than a window may be.
    pub(crate) fn open(&mut self, bytes: u32) -> Option<()> {
        self.0 = self.0.checked_add(i32::try_from(bytes).ok()?)?;
        Some(())
    }

    /// Follows a changed SETTINGS_INITIAL_WINDOW_SIZE. `None` as above.
    pub(crate) fn resize(&mut self, from: u32, to: u32) -> Option<()> {
        let moved = i64::from(self.0) + i64::from(to) - i64::from(from);
        self.0 = i32::try_from(moved).ok()?;
        Some(())
    }

    pub(crate) fn left(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// Uses it. `bytes <= self.left()`.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(i32::try_from(bytes).unwrap_or(i32::MAX));
    }
}

/// The bytes that may arrive. `left + held + owed == size`, and what is owed goes into a
/// WINDOW_UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveWindow {
    /// The width of the window when the caller holds nothing.
    size: u32,
    /// The bytes that the peer may still send. Negative after the size became smaller.
    left: i32,
    /// The bytes that have arrived and were not released.
    held: u32,
}

impl ReceiveWindow {
    /// A window of `size` whose first part, `open`, the peer knows.
    pub(crate) fn new(size: u32, open: u32) -> Self {
        Self { size, left: i32::try_from(open).unwrap_or(i32::MAX), held: 0 }
    }

    /// Counts what arrives. `None` if it is more than the peer may send.
    pub(crate) fn take(&mut self, bytes: u32) -> Option<()> {
        let bytes = i32::try_from(bytes).ok().filter(|bytes| *bytes <= self.left.max(0))?;
        self.left -= bytes;
        self.held += bytes.unsigned_abs();
        Some(())
    }

    /// Releases what was held.
    pub(crate) fn release(&mut self, bytes: u32) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Makes it as wide as this, if it is not wider. The next update tells the peer.
    pub(crate) fn widen(&mut self, size: u32) {
        self.size = self.size.max(size);
    }

    /// Follows a size that the peer has acknowledged.
    pub(crate) fn resize(&mut self, size: u32) {
        let moved = i64::from(self.left) + i64::from(size) - i64::from(self.size);
        self.left = i32::try_from(moved).unwrap_or(i32::MAX);
        self.size = size;
    }

    /// The increment of a WINDOW_UPDATE, if one is due: half of the window is free again. A window
    /// that became smaller is checked again then, so that no stream waits for ever.
    pub(crate) fn update(&mut self) -> Option<u32> {
        let owed = i64::from(self.size) - i64::from(self.left) - i64::from(self.held);
        let owed = u32::try_from(owed).ok().filter(|owed| *owed > 0 && *owed >= self.size / 2)?;
        self.left = self.left.saturating_add(i32::try_from(owed).unwrap_or(i32::MAX));
        Some(owed)
    }

    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Returns the bytes that the peer may still send.
    pub(crate) fn left(&self) -> i32 {
        self.left
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// A window of a parked connection.
    pub(crate) fn restored(size: u32, left: i32) -> Self {
        Self { size, left, held: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_window_is_given_back_at_once() {
        let mut window = ReceiveWindow::new(100, 100);
        assert_eq!((window.take(101), window.take(100), window.take(1)), (None, Some(()), None));
        window.release(49);
        assert_eq!(window.update(), None);
        window.release(1);
        assert_eq!((window.update(), window.update()), (Some(50), None));
        assert_eq!((window.left(), window.held()), (50, 50));
        window.release(1000);
        assert_eq!(window.update(), Some(50));
    }

    #[test]
    fn a_widened_window_is_said_at_the_next_update() {
        let mut window = ReceiveWindow::new(100, 100);
        window.take(60);
        window.widen(400);
        assert_eq!(window.update(), Some(300), "what is held is not given twice");
        window.release(60);
        assert_eq!((window.update(), window.left()), (None, 340));
        window.widen(50);
        assert_eq!(window.size(), 400, "it becomes no smaller");
    }

    /// A window that becomes smaller while nothing is held opens by itself.
    #[test]
    fn a_narrowed_window_opens_again() {
        let mut window = ReceiveWindow::new(1000, 1000);
        window.take(600);
        window.release(600);
        assert_eq!(window.update(), Some(600));
        window.take(700);
        window.resize(200);
        assert_eq!((window.left(), window.take(1)), (-500, None));
        window.release(300);
        assert_eq!(window.update(), Some(300));
        window.release(400);
        assert_eq!((window.update(), window.left()), (Some(400), 200));
    }

    #[test]
    fn windows_do_not_overflow() {
        let mut window = SendWindow::new(WINDOW_MAX - 1);
        assert_eq!((window.open(1), window.open(1)), (Some(()), None));
        assert_eq!(window.open(u32::MAX), None);
        assert_eq!((window.resize(WINDOW_MAX, 0), window.0), (Some(()), 0));
        assert_eq!((window.resize(10, 0), window.left(), window.0), (Some(()), 0, -10));
        assert_eq!(SendWindow(5).resize(0, WINDOW_MAX), None);
    }
}
