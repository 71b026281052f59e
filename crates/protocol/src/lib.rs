//! The NATS protocol as pure code: no I/O, no clock, no runtime.
