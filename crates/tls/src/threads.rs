//! Reads many sets of certificates in several threads.

use std::panic::resume_unwind;

/// Sets that one thread reads at least: fewer take less time than starting the thread.
const SETS_A_THREAD: usize = 64;
/// Most threads that read. The disk and the kernel's path lookup do not get faster by more.
const THREADS_MAX: usize = 8;

/// Calls `read` for each number below `sets`, in several threads if there are many.
pub fn in_threads<T: Send, E: Send>(
    sets: usize,
    read: &(impl Fn(usize) -> Result<T, E> + Sync),
) -> Result<Vec<T>, E> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (sets / SETS_A_THREAD).clamp(1, cores.min(THREADS_MAX));
    let part = sets.div_ceil(threads).max(1);
    let parts = (0..sets).step_by(part).map(|start| start..sets.min(start + part));
    if threads == 1 {
        return parts.flatten().map(read).collect();
    }
    std::thread::scope(|scope| {
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(|| part.map(read).collect::<Result<Vec<_>, _>>()))
            .collect();
        let mut slots = Vec::with_capacity(sets);
        for part in parts {
            slots.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(slots)
    })
}
