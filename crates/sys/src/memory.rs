//! What the C allocator is told: not to grow its own thresholds, and when to give pages back.
//! It must not know when that is.

/// Allocations from here on are mappings of their own, given back when they are freed: a chunk
/// of 512 parked connections is one.
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
/// only then are such blocks merged.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    let sizes = (24..=CACHED_BYTES_MAX).step_by(CACHED_STEP);
    let cached: Vec<Vec<u8>> =
        sizes.flat_map(|size| (0..CACHED_EACH).map(move |_| Vec::with_capacity(size))).collect();
    // Where no thread can be had they go back to where they were.
    if let Ok(thread) = std::thread::Builder::new().spawn(move || drop(cached)) {
        // It drops, and cannot fail.
        let _ = thread.join();
    }
    // SAFETY: malloc_trim takes an integer, locks each arena, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
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
