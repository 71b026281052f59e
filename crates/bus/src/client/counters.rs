//! What a client counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a client since it was made.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Messages stored.
    published,
    /// Messages that were there already.
    duplicates,
    /// Messages handled and done.
    acked,
    /// Messages to be delivered again.
    naked,
    /// Messages dropped for good by a handler.
    termed,
    /// Deliveries that were not the first.
    redelivered,
    /// Messages that became dead letters.
    dead,
    /// Messages handed back unhandled at a stop.
    returned,
    /// Handlers that panicked.
    panicked,
    /// Requests for work that were answered.
    leases,
    /// Requests for work that were not handed to the handler: without a reply, of another layout, or over the limit.
    leases_dropped,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn published(&self, duplicate: bool) {
        Self::add(if duplicate {
            &self.duplicates
        } else {
            &self.published
        });
    }
}
