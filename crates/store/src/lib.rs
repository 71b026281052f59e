//! The durable store of Windjet: no sockets, no async runtime.
