//! What the C allocator is told: not to grow its own thresholds, and when to give pages back.
//! It must not know when that is.

use std::io::{BufRead, BufReader};

/// Allocations from here on are mappings of their own, given back when they are freed: a chunk
/// of 1024 parked connections is one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 96 << 10;

/// What the heap grows by, and what a trim leaves at its end: glibc's own 128 KiB is more than
/// 500 parked connections.
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

/// More than most holes in a heap, so that a block of it lies at the end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const END_BYTES: usize = 1 << 20;

/// Keeps glibc from raising its mmap and trim thresholds to what it sees freed: buffers of one
/// burst would then stay in the heap for life.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn configure() {
    // SAFETY: mallopt takes two integers; it changes parameters of the allocator and no memory.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD_BYTES);
    }
}

/// Returns free pages of the heap, in all arenas, to the system. Some milliseconds for a heap of
/// some hundred megabytes. What a thread holds back is returned by the calling one alone.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // Twice: where a size has fewer blocks than are taken, glibc puts free ones of that size
    // into the cache as it looks for the others.
    merge_cached();
    merge_cached();
    return_end();
    // SAFETY: malloc_trim takes an integer, locks each arena, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Merges the blocks in the calling thread's cache with their free neighbours.
///
/// glibc keeps up to 7 freed blocks of each of 64 sizes for the thread, for ever, and each of them
/// keeps its page. They are taken out here and freed on a thread that ends, because only then are
/// such blocks merged. A thread of the standard library would leave new ones behind: its handle.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn merge_cached() {
    type Blocks = [*mut libc::c_void; CACHED_SIZES * CACHED_EACH];
    extern "C" fn free_all(blocks: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `blocks` is the array below, which outlives this thread and which nobody else
        // uses meanwhile; each block came from malloc, or is null.
        unsafe {
            for block in &*blocks.cast::<Blocks>() {
                libc::free(*block);
            }
        }
        std::ptr::null_mut()
    }
    let size = |at: usize| CACHED_BYTES_MIN + at / CACHED_EACH * CACHED_STEP;
    // SAFETY: malloc takes any size, and its null is freed as well.
    let mut blocks: Blocks = std::array::from_fn(|at| unsafe { libc::malloc(size(at)) });
    let blocks = (&raw mut blocks).cast::<libc::c_void>();
    let mut thread: libc::pthread_t = 0;
    // SAFETY: the thread runs `free_all` once, which does not unwind, and is joined before the
    // array goes. Where no thread can be had, the blocks are freed here, and are where they were.
    unsafe {
        if libc::pthread_create(&mut thread, std::ptr::null(), free_all, blocks) == 0 {
            libc::pthread_join(thread, std::ptr::null_mut());
        } else {
            free_all(blocks);
        }
    }
}

/// Returns the free pages at the end of the calling thread's heap, which malloc_trim leaves: up
/// to 64 KiB, of which a burst has written all.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn return_end() {
    let mut end: Vec<u8> = Vec::new();
    // SAFETY: as in `configure`. Until it is put back other threads' large blocks come from their
    // heaps, where they are as good.
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
    // SAFETY: these are whole pages inside of a block of our own, in which nothing was written.
    unsafe {
        libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED);
    }
}

/// What is read of that list at once: the kernel gives no more.
const SMAPS_BYTES: usize = 4 << 10;

/// Unmaps the pages of code and constants; those that are used come back, from the page cache, as
/// they are. A program touches most of its own at its start (options, configuration, roots), and
/// the kernel maps 64 KiB around each page that is touched: two thirds of it serve nothing later.
pub fn forget_code() {
    let Ok(smaps) = std::fs::File::open("/proc/self/smaps") else { return };
    // Not whole: the text is some ten pages, and the heap was trimmed a moment ago.
    let smaps = BufReader::with_capacity(SMAPS_BYTES, smaps);
    let mut current = None;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(mapping) = constant_mapping(&line) {
            current = mapping;
        } else if line.starts_with("Anonymous:") && !line.ends_with(" 0 kB") {
            current = None;
        } else if line.starts_with("Swap:") && line.ends_with(" 0 kB") {
            let Some((start, length)) = current.take() else { continue };
            // SAFETY: it is a private mapping of a file that nobody may write and nobody has
            // written (it has no anonymous page, in memory or swapped out), so that its pages are
            // the file's now and when they are touched next. That nothing relocates it any more is
            // why only code and the file's first segment are taken: the loader has written the
            // others, or may.
            unsafe {
                libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED);
            }
        }
    }
}

/// A line that begins a mapping: where it lies, if it is code or constants of a file. `None`: it
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

/// Bytes of this process that are in memory now. 0 where the system does not tell.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    rustix::param::page_size() * pages
}
