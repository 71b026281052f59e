//! Configurations: defaults, validation, update rules. Pure functions over the protocol model.

pub(crate) mod consumer;
pub(crate) mod stream;
