//! Deliberate mistakes, to prove that the simulation would find them. Outside of this crate's tests there are none, and the
//! checks compile to nothing.

/// A mistake that a stream or a consumer makes on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A publish is acknowledged when it is staged.
    AckedBeforeDurable,
    /// A confirmed ack is answered when it is staged.
    ConfirmedBeforeDurable,
    /// An acked message stays in its work queue.
    AckedStays,
    /// One more message is in hand than may be.
    WindowTooWide,
    /// A message is delivered again after half of its ack wait.
    WaitTooShort,
    /// A message whose ack wait is over is not delivered again.
    WaitForgotten,
    /// A waiting request is not served when a message comes.
    RequestSleeps,
    /// A purge does not look at its filter.
    PurgeTakesAll,
    /// A limit takes one message more than it must.
    EvictionTakesMore,
}

/// Whether a mistake is made.
#[inline]
pub(crate) fn planted(fault: Fault) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(fault);
    #[cfg(not(test))]
    {
        let _ = fault;
        false
    }
}

#[cfg(test)]
thread_local! {
    /// The mistake that this thread makes.
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
impl Fault {
    /// All of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::AckedBeforeDurable,
        Self::ConfirmedBeforeDurable,
        Self::AckedStays,
        Self::WindowTooWide,
        Self::WaitTooShort,
        Self::WaitForgotten,
        Self::RequestSleeps,
        Self::PurgeTakesAll,
        Self::EvictionTakesMore,
    ];
}
