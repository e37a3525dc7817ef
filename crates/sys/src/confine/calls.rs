//! Numbers of system calls and of their arguments, for who filters them.

/// Address families of sockets that stay within their network namespace.
pub const FAMILIES: [u64; 4] =
    [libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];
/// Requests of ioctl(2) that type into a terminal: TIOCSTI and TIOCLINUX.
pub const TYPING: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// A system call, or several of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCall {
    /// socket(2) and socketpair(2).
    Socket,
    /// ioctl(2).
    Ioctl,
    /// The three of io_uring(7).
    IoUring,
    /// Those of keyrings(7).
    Keys,
    /// bpf(2) and perf_event_open(2).
    Watching,
}

/// The bit of the numbers of x32, an ABI of x86-64 whose calls a filter sees as those of x86-64.
const X32_BIT: i64 = 0x4000_0000;
/// The number of x32's own ioctl(2).
const X32_IOCTL: i64 = 514;

/// The numbers of a system call, in each ABI that the processor's filter lets pass.
pub fn numbers(call: SystemCall) -> impl Iterator<Item = i64> {
    let numbers: &[i64] = match call {
        SystemCall::Socket => &[libc::SYS_socket, libc::SYS_socketpair],
        SystemCall::Ioctl => &[libc::SYS_ioctl],
        SystemCall::IoUring => {
            &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register]
        }
        SystemCall::Keys => &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
        SystemCall::Watching => &[libc::SYS_bpf, libc::SYS_perf_event_open],
    };
    let is_x86 = cfg!(target_arch = "x86_64");
    let own = (is_x86 && call == SystemCall::Ioctl).then_some(X32_BIT | X32_IOCTL);
    let of_x32 = move |number: &i64| is_x86.then_some(X32_BIT | number);
    numbers.iter().copied().chain(numbers.iter().filter_map(of_x32)).chain(own)
}
