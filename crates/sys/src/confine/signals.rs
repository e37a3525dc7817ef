//! Signals that a process of one thread waits for, in place of handlers.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::Signal;

/// The signals by which somebody ends or informs a process, and those of its children.
const WAITED: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TERM,
    Signal::CHILD,
];

/// Has these signals wait until [`next`] takes them. A process that is forked inherits this.
///
/// # Errors
/// The kernel's.
pub fn hold() -> io::Result<()> {
    mask(libc::SIG_BLOCK)
}

/// Has them act again, as a program expects that is executed.
///
/// # Errors
/// The kernel's.
pub fn release() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK)
}

/// A signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedSignal {
    /// The signal.
    pub signal: Signal,
    /// True if a process has sent it. A terminal sends its own to all processes that it belongs to.
    pub is_sent: bool,
}

/// Waits for the next of them.
///
/// # Errors
/// The kernel's.
pub fn next() -> io::Result<ArrivedSignal> {
    let set = set();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: `set` is a set of signals, and `info` has room for what the kernel says of one.
        let number = unsafe { libc::sigwaitinfo(&raw const set, info.as_mut_ptr()) };
        if let Some(signal) = Signal::from_named_raw(number) {
            // SAFETY: it was zeroed, which is a valid value, and the kernel has written it since.
            let code = unsafe { info.assume_init_ref() }.si_code;
            return Ok(ArrivedSignal { signal, is_sent: code <= libc::SI_USER });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn mask(how: libc::c_int) -> io::Result<()> {
    let set = set();
    // SAFETY: `set` is a set of signals, and the earlier one is written nowhere.
    match unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set, which sigaddset changes.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in WAITED {
            libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        }
        set.assume_init()
    }
}
