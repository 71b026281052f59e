//! State that an idle consumer does not have.

use std::ops::{Deref, DerefMut};

/// A value that takes memory only while it is not empty: reading gives an empty one, writing makes room.
#[derive(Debug)]
pub(super) struct Rare<T>(Option<Box<T>>);

/// A type with an empty value to read.
pub(super) trait Empty: Default + 'static {
    /// The empty value.
    const EMPTY: &'static Self;

    /// Whether a value need not be kept.
    fn is_spent(&self) -> bool;
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Rare<T> {
    /// Gives the memory back if nothing is in it.
    pub(super) fn tidy(&mut self) {
        self.0.take_if(|value| value.is_spent());
    }

    #[cfg(test)]
    /// Bytes of memory of the value itself.
    pub(super) fn room(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<T>())
    }
}

impl<T: Empty> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
