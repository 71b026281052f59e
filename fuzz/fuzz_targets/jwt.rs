//! Any bytes as a JWT and as signed claims.
#![no_main]

#[path = "../checks/jwt.rs"]
mod jwt;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    jwt::check(bytes);
});
