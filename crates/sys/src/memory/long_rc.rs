//! A value with several owners on one thread, in pages for what lives long. The standard library's
//! would be in the common heap.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use super::blocks::{LongBox, LongLived};

struct Owned<T> {
    owners: Cell<usize>,
    value: T,
}

/// An owner of a value. The last one drops it.
pub struct LongRc<T>(NonNull<Owned<T>>);

impl<T> LongRc<T> {
    /// Takes a value. It has one owner.
    pub fn new(value: T) -> Self {
        let owned = LongBox::new_in(Owned { owners: Cell::new(1), value }, LongLived);
        Self(LongBox::into_non_null_with_allocator(owned).0)
    }

    fn owned(&self) -> &Owned<T> {
        // SAFETY: it came from a box, which is freed with the last owner. Owners hand out shared
        // references only.
        unsafe { self.0.as_ref() }
    }

    /// Returns the value if this is its only owner.
    pub fn into_inner(self) -> Option<T> {
        let owned = ManuallyDrop::new(self).give_up();
        owned.map(|owned| LongBox::into_inner(owned).value)
    }

    /// Takes an owner away, and returns the box if it was the last one. It must not be used again.
    fn give_up(&self) -> Option<LongBox<Owned<T>>> {
        let left = self.owned().owners.get() - 1;
        self.owned().owners.set(left);
        // SAFETY: nobody else has the value, which came from a box of this allocator. It is not
        // `Send`, so all owners are of this thread.
        (left == 0).then(|| unsafe { LongBox::from_raw_in(self.0.as_ptr(), LongLived) })
    }
}

impl<T> Clone for LongRc<T> {
    fn clone(&self) -> Self {
        let owners = &self.owned().owners;
        // Each owner has an address of its own, so that there are never so many.
        owners.set(owners.get().checked_add(1).unwrap_or_else(|| std::process::abort()));
        Self(self.0)
    }
}

impl<T> Drop for LongRc<T> {
    fn drop(&mut self) {
        drop(self.give_up());
    }
}

impl<T> Deref for LongRc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owned().value
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_last_owner_drops_the_value() {
        let seen = Rc::new(7);
        let one = LongRc::new(seen.clone());
        let other = one.clone();
        assert_eq!((**one, **other, Rc::strong_count(&seen)), (7, 7, 2));
        drop(one);
        assert_eq!((**other, Rc::strong_count(&seen)), (7, 2));
        drop(other);
        assert_eq!(Rc::strong_count(&seen), 1);
    }

    #[test]
    fn only_one_owner_alone_gets_the_value() {
        let seen = Rc::new(7);
        let one = LongRc::new(seen.clone());
        let other = one.clone();
        assert!(one.into_inner().is_none());
        assert_eq!(Rc::strong_count(&seen), 2, "the other one has it");
        let value = other.into_inner();
        assert!(value.is_some_and(|value| Rc::ptr_eq(&value, &seen)));
        assert_eq!(Rc::strong_count(&seen), 1);
    }
}
