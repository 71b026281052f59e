//! The `windjet` binary.

fn main() {}
