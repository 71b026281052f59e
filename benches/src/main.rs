//! Side-by-side measurements.

fn main() {}
