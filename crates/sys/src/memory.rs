//! What the C allocator is told: not to grow its own thresholds, and when to give pages back.
//! It must not know when that is.

/// Allocations from here on are mappings of their own, given back when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 128 << 10;

/// Keeps glibc from raising its mmap and trim thresholds to what it sees freed: buffers of one
/// burst would then stay in the heap for life.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn configure() {
    // SAFETY: mallopt takes two integers; it changes parameters of the allocator and no memory.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES);
    }
}

/// Returns free pages of the heap, in all arenas, to the system. Some milliseconds for a heap of
/// some hundred megabytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
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
