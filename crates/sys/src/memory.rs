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
const CACHED_BYTES_MAX: usize = 1032;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_STEP: usize = 16;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_EACH: usize = 7;

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
/// some hundred megabytes.
///
/// glibc keeps up to 7 freed blocks of each of 64 sizes for the calling thread, for ever, and
/// each of them keeps its page. They are taken out here and freed on a thread that ends, because
/// only then are such blocks merged. Twice: where fewer than 7 are there, glibc puts others of
/// that size there as it looks for them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    for _ in 0..2 {
        let sizes = (24..=CACHED_BYTES_MAX).step_by(CACHED_STEP);
        let cached: Vec<Vec<u8>> = sizes
            .flat_map(|size| (0..CACHED_EACH).map(move |_| Vec::with_capacity(size)))
            .collect();
        // Where no thread can be had they go back to where they were.
        if let Ok(thread) = std::thread::Builder::new().spawn(move || drop(cached)) {
            // It drops, and cannot fail.
            let _ = thread.join();
        }
    }
    // SAFETY: malloc_trim takes an integer, locks each arena, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
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
