//! The rights of a command: it has no capability and gains none, and makes no system call that
//! leads out of its namespaces.

use std::collections::BTreeMap;
use std::io;

use eyelet_sys::confine::calls::{self, SystemCall};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Capabilities that the kernel may have, more than any has today.
const CAPABILITIES_MAX: u32 = 64;

/// Takes all rights from this process and from what it executes.
///
/// # Errors
/// The kernel's, or that a filter cannot be made for this processor.
pub(crate) fn drop_rights() -> io::Result<()> {
    let filters = filters().map_err(io::Error::other)?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for capability in 0..CAPABILITIES_MAX {
        let Some(set) = 1_u64.checked_shl(capability).map(CapabilitySet::from_bits_retain) else {
            break;
        };
        match remove_capability_from_bounding_set(set) {
            Ok(()) => {}
            // The kernel has no more.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    for filter in &filters {
        seccompiler::apply_filter(filter).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The filters: one for each answer of the kernel. All are asked, and the strictest answer counts.
fn filters() -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let filter = |rules, errno: rustix::io::Errno| {
        let answer = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        SeccompFilter::new(rules, SeccompAction::Allow, answer, arch)?.try_into()
    };
    Ok([
        filter(sockets()?, rustix::io::Errno::AFNOSUPPORT)?,
        filter(terminals()?, rustix::io::Errno::PERM)?,
        filter(absent(), rustix::io::Errno::NOSYS)?,
    ])
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Sockets of other families than these: some, such as vsock, know no network namespace.
fn sockets() -> Result<Rules, seccompiler::BackendError> {
    let others = calls::FAMILIES
        .map(|family| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family));
    let rule = SeccompRule::new(others.into_iter().collect::<Result<_, _>>()?)?;
    Ok(calls::numbers(SystemCall::Socket).map(|call| (call, vec![rule.clone()])).collect())
}

/// Typing into the terminal of the one who has started the command.
fn terminals() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Vec::new();
    for request in calls::TYPING {
        let is = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)?;
        rules.push(SeccompRule::new(vec![is])?);
    }
    Ok(calls::numbers(SystemCall::Ioctl).map(|call| (call, rules.clone())).collect())
}

/// System calls that the command finds missing: io_uring, whose sockets no filter sees; the
/// kernel's keys, which know no namespace; and calls that may watch the whole machine under some
/// settings.
fn absent() -> Rules {
    let calls = [SystemCall::IoUring, SystemCall::Keys, SystemCall::Watching];
    let calls = calls.into_iter().flat_map(calls::numbers);
    calls.map(|call| (call, Vec::new())).collect()
}
