//! Compression of payloads.
//!
//! A payload is compressed only when it is larger than 32 KiB and the result is smaller; the header `Content-Encoding`
//! says how. What is expanded is bounded by [`EXPANDED_MAX`] whatever the data claims, and the window that Brotli sets aside by
//! 16 MiB: a hostile body allocates no more.

use std::io::{Read, Write as _};

use async_nats::Message;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::headers;
use crate::error::{Error, ErrorKind, Result};

/// Payloads of up to this many bytes are never compressed.
pub const COMPRESS_ABOVE: usize = 32 << 10;
/// Most bytes that an expanded payload may have.
pub const EXPANDED_MAX: usize = 64 << 20;
/// Brotli's name in `Content-Encoding`.
pub const ENCODING_BROTLI: &str = "br";
/// Gzip's name in `Content-Encoding`.
pub const ENCODING_GZIP: &str = "gzip";

/// How to compress what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    Off,
    /// Brotli, and gzip when Brotli does not shrink it.
    Auto,
    /// Gzip only.
    Gzip,
    /// Brotli only.
    Brotli,
}

/// A smaller form of `payload` and the name of its encoding, when there is one.
#[must_use]
pub fn compress(payload: &[u8], mode: Compression) -> Option<(Bytes, &'static str)> {
    if mode == Compression::Off || payload.len() <= COMPRESS_ABOVE {
        return None;
    }
    let try_brotli = || smaller(brotli(payload), payload, ENCODING_BROTLI);
    let try_gzip = || smaller(gzip(payload), payload, ENCODING_GZIP);
    match mode {
        Compression::Off => None,
        Compression::Auto => try_brotli().or_else(try_gzip),
        Compression::Gzip => try_gzip(),
        Compression::Brotli => try_brotli(),
    }
}

/// Expands `data` as `encoding` says; an empty one and `identity` leave it as it is.
///
/// # Errors
/// [`ErrorKind::UnsupportedContentEncoding`] for another name, [`ErrorKind::PayloadTooLarge`] when there is more than
/// [`EXPANDED_MAX`], [`ErrorKind::Decode`] when the data is broken.
pub fn decompress(data: &Bytes, encoding: &str) -> Result<Bytes> {
    let encoding = encoding.trim();
    if encoding.is_empty() || encoding.eq_ignore_ascii_case("identity") {
        Ok(data.clone())
    } else if encoding.eq_ignore_ascii_case(ENCODING_BROTLI) {
        if has_large_window(data) {
            return Err(Error::new(
                ErrorKind::Decode,
                "expanding a payload: its Brotli window is larger than the standard's",
            ));
        }
        bounded(brotli::Decompressor::new(&data[..], 4096))
    } else if encoding.eq_ignore_ascii_case(ENCODING_GZIP) {
        bounded(MultiGzDecoder::new(&data[..]))
    } else {
        let shown: String = encoding.chars().take(40).collect();
        Err(Error::new(
            ErrorKind::UnsupportedContentEncoding,
            format!("expanding a payload encoded as {shown:?}"),
        ))
    }
}

/// Expands a message in place and removes the header that said how. Tells whether it was compressed.
pub(crate) fn expand(message: &mut Message) -> Result<bool> {
    let Some(map) = message.headers.as_ref().filter(|map| !map.is_empty()) else {
        return Ok(false);
    };
    let Some(encoding) = headers::first(map, headers::CONTENT_ENCODING) else {
        return Ok(false);
    };
    message.payload = decompress(&message.payload, encoding)?;
    let rest = headers::without(map, headers::CONTENT_ENCODING);
    message.headers = (!rest.is_empty()).then_some(rest);
    Ok(true)
}

fn smaller(packed: Option<Vec<u8>>, plain: &[u8], name: &'static str) -> Option<(Bytes, &'static str)> {
    packed
        .filter(|packed| packed.len() < plain.len())
        .map(|packed| (packed.into(), name))
}

fn brotli(payload: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(payload.len() / 4);
    let params = brotli::enc::BrotliEncoderParams {
        quality: 0,
        ..Default::default()
    };
    let mut input = payload;
    brotli::BrotliCompress(&mut input, &mut packed, &params).ok()?;
    Some(packed)
}

fn gzip(payload: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(payload.len() / 4), flate2::Compression::fast());
    encoder.write_all(payload).ok()?;
    encoder.finish().ok()
}

/// Whether a stream has the extension of Brotli that sets aside up to a gigabyte at its third byte. It begins with a window size
/// that the standard (RFC 7932, 9.1) has none for; the library takes it all the same.
fn has_large_window(data: &[u8]) -> bool {
    data.first().is_some_and(|bits| bits & 0x7f == 0x11)
}

fn bounded(from: impl Read) -> Result<Bytes> {
    let mut expanded = Vec::new();
    from.take(EXPANDED_MAX as u64 + 1)
        .read_to_end(&mut expanded)
        .map_err(|error| Error::new(ErrorKind::Decode, "expanding a payload").because(error))?;
    if expanded.len() > EXPANDED_MAX {
        return Err(Error::new(ErrorKind::PayloadTooLarge, "expanding a payload"));
    }
    Ok(expanded.into())
}
