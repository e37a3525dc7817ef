//! Settings of the C allocator (glibc), and how free memory is returned to the kernel.

pub mod blocks;
pub mod long_rc;

use std::io::{BufRead, BufReader};

/// Allocations of this size or more are separate mappings, which are unmapped when they are freed.
/// A chunk of 1024 parked connections is one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 96 << 10;

/// By how much the heap grows, and how much a trim leaves at its end. glibc's default, 128 KiB, is
/// more than 500 parked connections.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TOP_PAD_BYTES: libc::c_int = 32 << 10;

/// The blocks that glibc's per-thread cache takes (malloc/malloc.c: TCACHE_MAX_BINS,
/// TCACHE_FILL_COUNT).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_SIZES: usize = 64;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_BYTES_MIN: usize = 24;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_STEP: usize = 16;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_EACH: usize = 7;

/// Larger than most holes in a heap, so that such a block lies at its end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const END_BYTES: usize = 1 << 20;

/// Stops glibc from raising its mmap and trim thresholds to the sizes that it sees freed: one
/// burst's buffers would then stay in the heap for ever.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn configure() {
    // SAFETY: mallopt takes two integers. It changes parameters of the allocator and no memory.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD_BYTES);
    }
}

/// Pages of a stack that are not returned: the frames of the call that returns the others.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const STACK_PAGES_KEPT: usize = 1;

/// The most of a stack that is returned: deeper calls have ended long ago. The kernel keeps so much
/// free below the main thread's stack (stack_guard_gap), so this range is the stack's, or nobody's.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const STACK_BYTES_MAX: usize = 1 << 20;

/// Returns free pages to the kernel: of the heap, in all arenas, and of the calling thread's stack.
/// It takes some milliseconds for a heap of some hundred megabytes. A thread's cache is returned
/// only for the calling thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // Twice: if a size has fewer cached blocks than are taken, malloc refills the cache with free
    // ones of that size while it searches.
    merge_cached();
    merge_cached();
    return_end();
    // SAFETY: malloc_trim takes an integer, locks each arena, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    return_stack();
}

/// Returns the pages of the calling thread's stack that deeper calls have written: a handshake
/// takes 50 KiB of stack, and the loop that waits for the next one takes 4.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(never)]
fn return_stack() {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut stack, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` is initialized by the first call, used by the second if that succeeded,
    // and destroyed once. The pointers lead to locals of these types.
    let known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut stack, &mut length);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            got == 0
        }
    };
    if !known {
        return;
    }
    let page = rustix::param::page_size();
    let frame = (&raw const length).addr();
    let end = (frame & !(page - 1)) - STACK_PAGES_KEPT * page;
    let start = stack.addr().max(end.saturating_sub(STACK_BYTES_MAX)).next_multiple_of(page);
    if start < end {
        // SAFETY: these are whole pages of this thread's own stack, at least a page below its
        // frames: nothing there is read before it is written again. What lies in the range and was
        // not yet part of the main thread's stack is not mapped, and the kernel skips it.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(start),
                end - start,
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Merges the blocks in the calling thread's cache with their free neighbours.
///
/// For each of 64 sizes, glibc keeps up to 7 freed blocks per thread for ever, and each of them
/// keeps its page. They are taken out here and freed on a thread that ends, because only then are
/// such blocks merged. It is not a thread of the standard library, which would leave its handle
/// behind.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn merge_cached() {
    type Blocks = [*mut libc::c_void; CACHED_SIZES * CACHED_EACH];
    extern "C" fn free_all(blocks: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `blocks` is the array below. It outlives this thread, and no other code uses it
        // meanwhile. Each block came from malloc, or is null.
        unsafe {
            for block in &*blocks.cast::<Blocks>() {
                libc::free(*block);
            }
        }
        std::ptr::null_mut()
    }
    let size = |at: usize| CACHED_BYTES_MIN + at / CACHED_EACH * CACHED_STEP;
    // SAFETY: malloc takes any size. Its null may be freed, too.
    let mut blocks: Blocks = std::array::from_fn(|at| unsafe { libc::malloc(size(at)) });
    let blocks = (&raw mut blocks).cast::<libc::c_void>();
    let mut thread: libc::pthread_t = 0;
    // SAFETY: the thread runs `free_all` once, which does not unwind, and is joined before the
    // array is dropped. If no thread can be started, the blocks are freed here and go back to the
    // cache.
    unsafe {
        if libc::pthread_create(&mut thread, std::ptr::null(), free_all, blocks) == 0 {
            libc::pthread_join(thread, std::ptr::null_mut());
        } else {
            free_all(blocks);
        }
    }
}

/// Returns the free pages at the end of the calling thread's heap, which malloc_trim leaves: up to
/// 64 KiB, all of which a burst has written.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn return_end() {
    let mut end: Vec<u8> = Vec::new();
    // SAFETY: as in `configure`. Until the threshold is restored, large blocks of other threads
    // come from their heaps, which works as well.
    let taken = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 2 * END_BYTES as libc::c_int);
        let taken = end.try_reserve_exact(END_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        taken
    };
    if taken.is_err() {
        return;
    }
    let page = rustix::param::page_size();
    let start = end.as_mut_ptr().addr().next_multiple_of(page);
    let length = END_BYTES - page;
    // SAFETY: these are whole pages inside a block of our own, in which nothing was written.
    unsafe {
        libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED);
    }
}

/// Bytes of /proc/self/smaps read at once: the kernel returns no more.
const SMAPS_BYTES: usize = 4 << 10;

/// Unmaps the pages of code and constants. Those that are used again come back from the page cache
/// unchanged. A program touches most of its own pages at its start (options, configuration, roots),
/// and the kernel maps 64 KiB around each page that is touched. Two thirds of that are not needed
/// later.
pub fn forget_code() {
    let Ok(smaps) = std::fs::File::open("/proc/self/smaps") else { return };
    // Not read at once: the text is some ten pages, and the heap was trimmed a moment ago.
    let smaps = BufReader::with_capacity(SMAPS_BYTES, smaps);
    let mut current = None;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(mapping) = constant_mapping(&line) {
            current = mapping;
        } else if line.starts_with("Anonymous:") && !line.ends_with(" 0 kB") {
            current = None;
        } else if line.starts_with("Swap:") && line.ends_with(" 0 kB") {
            let Some((start, length)) = current.take() else { continue };
            // SAFETY: it is a private mapping of a file. It cannot be written, and it was never
            // written: it has no anonymous page, in memory or swapped out. So its pages equal the
            // file's, now and when they are touched next. Relocation could still write to other
            // segments, so only code and the file's first segment are taken, which the loader does
            // not write.
            unsafe {
                libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED);
            }
        }
    }
}

/// Parses a line that begins a mapping: its range, if it is code or constants of a file. `None`: it
/// is another line.
fn constant_mapping(line: &str) -> Option<Option<(usize, usize)>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let (mode, offset) = (words.next()?, words.next()?);
    let is_file = words.nth(2).is_some_and(|path| path.starts_with('/'));
    let is_constant = mode == "r-xp" || mode == "r--p" && offset == "00000000";
    Some((is_file && is_constant).then_some((start, end - start)))
}

/// Other C libraries give memory back by themselves, or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn configure() {}

/// Other C libraries give memory back by themselves, or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}

/// Free bytes that the allocator has not returned to the kernel. Some of their pages may be: they
/// count all the same. 0 if the allocator does not tell.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn allocator_unused_bytes() -> usize {
    // SAFETY: mallinfo2 takes nothing, locks each arena, and returns a struct of integers.
    let heap = unsafe { libc::mallinfo2().fordblks };
    heap + blocks::unused_bytes()
}

/// Other C libraries do not tell.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn allocator_unused_bytes() -> usize {
    0
}

/// Anonymous bytes of this process that are in memory: what it has written, on heaps, stacks and
/// elsewhere. 0 if the system does not tell.
pub fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.unwrap_or(0_usize) << 10
}

/// Bytes of the kernel for the cgroup of this process, sockets' buffers among them. `None`: there
/// is no cgroup v2 that counts memory.
pub fn kernel_bytes() -> Option<u64> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = std::path::Path::new("/sys/fs/cgroup").join(path);
    let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
    let number = |name| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.parse::<u64>().ok())
    };
    // `sock` is charged beside `kernel`.
    Some(number("kernel")? + number("sock")?)
}

/// Resident bytes of this process. 0 if the system does not tell.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    rustix::param::page_size() * pages
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::hint::black_box;

    use super::*;

    /// Anonymous bytes of the mapping that has this address.
    fn anonymous_bytes_at(address: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_it = false;
        for line in smaps.lines() {
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap();
            if let Some((start, end)) = first.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                is_it = (number(start)..number(end)).contains(&address);
            } else if is_it && first == "Anonymous:" {
                return words.next().unwrap().parse::<usize>().unwrap() << 10;
            }
        }
        unreachable!("no mapping has {address:x}")
    }

    #[inline(never)]
    fn write_stack() {
        let mut deep = [1_u8; 512 << 10];
        black_box(&mut deep);
    }

    #[test]
    fn what_deep_calls_have_written_of_the_stack_is_returned() {
        let kept = [7_u8; 100];
        let here = black_box(&kept).as_ptr().addr();
        write_stack();
        assert!(anonymous_bytes_at(here) >= 512 << 10);
        trim();
        let left = anonymous_bytes_at(here);
        assert!(left < 256 << 10, "{left} bytes are left");
        assert_eq!(*black_box(&kept), [7; 100], "what callers hold stays");
        // The stack can be used again.
        write_stack();
        assert!(anonymous_bytes_at(here) >= 512 << 10);
    }
}
