//! Any bytes as a configuration, with the files and variables it refers to.
#![no_main]

#[path = "../checks/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    config::check(bytes);
});
