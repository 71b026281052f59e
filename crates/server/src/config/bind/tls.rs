//! `tls` blocks of listeners.
//!
//! The files named here are opened so that a missing or plainly wrong one is reported with its place in the
//! configuration. Whether certificate and key belong together is found out by whoever builds the TLS acceptor.
//! Cipher suites and curves are checked by name and otherwise left to the TLS library's own, safe, choice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Context;
use super::authorization::{seconds, to_duration};
use crate::config::duration::parse_duration;
use crate::config::text::{open_error, quote};
use crate::config::value::{Map, Node, Value};
use crate::options::{HandshakeFirst, TlsOptions, TlsVersion};

/// How long `handshake_first: auto` waits for a client to begin.
const AUTO_FALLBACK: Duration = Duration::from_millis(50);

/// Names of cipher suites that need no permission to be configured.
const CIPHERS: [&str; 13] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// Names that need `allow_insecure_cipher_suites`.
const INSECURE_CIPHERS: [&str; 13] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA",
];

const CURVES: [&str; 7] = [
    "X25519",
    "CurveP256",
    "CurveP384",
    "CurveP521",
    "X25519MLKEM768",
    "SecP256r1MLKEM768",
    "SecP384r1MLKEM1024",
];

/// The block as it was written.
#[derive(Default)]
struct Block {
    options: TlsOptions,
    cert_file: String,
    key_file: String,
    allow_insecure: bool,
    insecure_ciphers: Vec<String>,
}

/// A `tls` block; `None` when it is not acceptable.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<TlsOptions> {
    let map = cx.map(node)?;
    let errors_before = cx.errors.len();
    let mut block = Block::default();
    for (key, field) in map.iter() {
        if let Err(message) = option(cx, &mut block, key, field) {
            cx.error(&field.position, message);
        }
    }
    if let Err(message) = finish(&mut block) {
        cx.error(&node.position, message);
    }
    if cx.errors.len() == errors_before
        && let Err(message) = check_files(cx, &block.options)
    {
        cx.error(&node.position, message);
    }
    (cx.errors.len() == errors_before).then_some(block.options)
}

fn option(cx: &mut Context<'_>, block: &mut Block, key: &str, node: &Node) -> Result<(), String> {
    let options = &mut block.options;
    let name = key.to_ascii_lowercase();
    match name.as_str() {
        "cert_file" => block.cert_file = file_name(&name, node)?,
        "key_file" => block.key_file = file_name(&name, node)?,
        "ca_file" => {
            let file = file_name(&name, node)?;
            options.ca_file = (!file.is_empty()).then(|| file.into());
        }
        "certs" | "certificates" => options.certificates = pairs(cx, node)?,
        "verify" => options.verify |= flag(&name, node)?,
        "verify_and_map" => options.verify_and_map = flag(&name, node)?,
        "verify_cert_and_check_known_urls" => {
            if flag(&name, node)? {
                return Err("verify_cert_and_check_known_urls not supported in this context".to_owned());
            }
        }
        "insecure" => {
            if flag(&name, node)? {
                cx.ignored(key, node);
            }
        }
        "allow_insecure_cipher_suites" => block.allow_insecure = flag(&name, node)?,
        "cipher_suites" => {
            block.insecure_ciphers = ciphers(cx, node)?;
            cx.ignored(key, node);
        }
        "curve_preferences" => {
            curves(cx, node)?;
            cx.ignored(key, node);
        }
        "timeout" => {
            if let Some(timeout) = timeout(node)? {
                options.timeout = timeout;
            }
        }
        "connection_rate_limit" => {
            let Value::Integer(limit) = node.value else {
                return Err("error parsing tls config, 'connection_rate_limit' wrong type".to_owned());
            };
            options.connection_rate_limit = u32::try_from(limit.max(0)).unwrap_or(u32::MAX);
        }
        "pinned_certs" => options.pinned_certs = pinned(cx, node)?,
        "handshake_first" | "first" | "immediate" => options.handshake_first = handshake_first(key, node)?,
        "min_version" => options.min_version = min_version(node)?,
        "ocsp_peer" => match node.value {
            Value::Bool(false) => {}
            Value::Bool(true) | Value::Map(_) => cx.ignored(key, node),
            _ => return Err("error parsing ocsp peer config: unsupported type".to_owned()),
        },
        "cert_store" => return Err("cert_store not compatible with current operating system".to_owned()),
        "cert_match_by" | "cert_match" | "ca_certs_match" | "cert_match_skip_invalid" => {
            cx.ignored(key, node);
        }
        _ => return Err(format!("error parsing tls config, unknown field {}", quote(key))),
    }
    Ok(())
}

/// Checks across the block's fields.
fn finish(block: &mut Block) -> Result<(), String> {
    if !block.options.certificates.is_empty() && !block.cert_file.is_empty() {
        return Err(
            "error parsing tls config, cannot combine 'cert_file' option with 'certs' option".to_owned(),
        );
    }
    if !block.allow_insecure && !block.insecure_ciphers.is_empty() {
        return Err(format!(
            "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: {}",
            block.insecure_ciphers.join(", ")
        ));
    }
    block.options.verify |= block.options.verify_and_map;
    match (block.cert_file.is_empty(), block.key_file.is_empty()) {
        (true, true) => Ok(()),
        (false, true) => Err("missing 'key_file' in TLS configuration".to_owned()),
        (true, false) => Err("missing 'cert_file' in TLS configuration".to_owned()),
        (false, false) => {
            let pair = (PathBuf::from(&block.cert_file), PathBuf::from(&block.key_file));
            block.options.certificates = vec![pair];
            Ok(())
        }
    }
}

/// Opens the files and looks for PEM blocks of the right kind in them.
fn check_files(cx: &Context<'_>, options: &TlsOptions) -> Result<(), String> {
    let total = options.certificates.len();
    for (i, (cert, key)) in options.certificates.iter().enumerate() {
        let number = if total > 1 {
            format!(" {}/{total}", i + 1)
        } else {
            String::new()
        };
        let checked = check_pem(cx, cert, "certificate", |label| label == "CERTIFICATE")
            .and_then(|()| check_pem(cx, key, "key", |label| label.ends_with("PRIVATE KEY")));
        checked.map_err(|reason| format!("error parsing X509 certificate/key pair{number}: {reason}"))?;
    }
    if let Some(ca) = &options.ca_file {
        let text = read(cx, ca)?;
        if !pem_labels(&text).any(|label| label == "CERTIFICATE") {
            return Err("failed to parse root ca certificate".to_owned());
        }
    }
    Ok(())
}

fn check_pem(cx: &Context<'_>, path: &Path, what: &str, wanted: fn(&str) -> bool) -> Result<(), String> {
    let text = read(cx, path)?;
    if pem_labels(&text).any(wanted) {
        Ok(())
    } else {
        Err(format!("tls: failed to find any PEM data in {what} input"))
    }
}

fn read(cx: &Context<'_>, path: &Path) -> Result<String, String> {
    match cx.environment.read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => Err(open_error(&path.to_string_lossy(), &error)),
    }
}

fn pem_labels(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.trim_end().strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
}

fn file_name(name: &str, node: &Node) -> Result<String, String> {
    match &node.value {
        Value::String(path) => Ok(path.clone()),
        _ => Err(format!(
            "error parsing tls config, expected '{name}' to be filename"
        )),
    }
}

fn flag(name: &str, node: &Node) -> Result<bool, String> {
    match node.value {
        Value::Bool(flag) => Ok(flag),
        _ => Err(format!(
            "error parsing tls config, expected '{name}' to be a boolean"
        )),
    }
}

fn pairs(cx: &mut Context<'_>, node: &Node) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let unsupported = |value: &Value| {
        format!(
            "error parsing certificates config: unsupported type {}",
            value.type_name()
        )
    };
    let Value::Array(items) = &node.value else {
        return Err(unsupported(&node.value));
    };
    let mut pairs = Vec::with_capacity(items.len());
    for item in items {
        let pair = match &item.value {
            Value::Map(map) => pair(map, unsupported),
            other => Err(unsupported(other)),
        };
        match pair {
            Ok(pair) => pairs.push(pair),
            Err(message) => cx.error(&item.position, message),
        }
    }
    Ok(pairs)
}

fn pair(map: &Map, unsupported: impl Fn(&Value) -> String) -> Result<(PathBuf, PathBuf), String> {
    let (mut cert, mut key_file) = (PathBuf::new(), PathBuf::new());
    for (key, node) in map.iter() {
        let Value::String(file) = &node.value else {
            return Err(unsupported(&node.value));
        };
        match key {
            "cert_file" => cert = file.into(),
            "key_file" => key_file = file.into(),
            _ => {
                return Err(format!(
                    "error parsing tls certs config, unknown field {}",
                    quote(key)
                ));
            }
        }
    }
    if cert.as_os_str().is_empty() || key_file.as_os_str().is_empty() {
        return Err(
            "error parsing certificates config: both 'cert_file' and 'cert_key' options are required"
                .to_owned(),
        );
    }
    Ok((cert, key_file))
}

/// The names in an array that must not be empty.
fn names(cx: &mut Context<'_>, field: &str, node: &Node) -> Result<Vec<String>, String> {
    let items = cx.array(node).unwrap_or_default();
    if items.is_empty() {
        return Err(format!("error parsing tls config, '{field}' cannot be empty"));
    }
    Ok(items.iter().filter_map(|item| cx.string(item)).collect())
}

/// Checks cipher names and returns the insecure ones.
fn ciphers(cx: &mut Context<'_>, node: &Node) -> Result<Vec<String>, String> {
    let mut insecure = Vec::new();
    for name in names(cx, "cipher_suites", node)? {
        if INSECURE_CIPHERS.contains(&name.as_str()) {
            insecure.push(name);
        } else if !CIPHERS.contains(&name.as_str()) {
            return Err(format!("unrecognized cipher {name}"));
        }
    }
    Ok(insecure)
}

fn curves(cx: &mut Context<'_>, node: &Node) -> Result<(), String> {
    for name in names(cx, "curve_preferences", node)? {
        if !CURVES.contains(&name.as_str()) {
            return Err(format!("unrecognized curve preference {name}"));
        }
    }
    Ok(())
}

fn timeout(node: &Node) -> Result<Option<Duration>, String> {
    let seconds = match &node.value {
        Value::String(text) => parse_duration(text)
            .map_err(|reason| format!("error parsing tls config, 'timeout' {reason}"))?
            .as_secs_f64(),
        value => seconds(value).ok_or_else(|| "error parsing tls config, 'timeout' wrong type".to_owned())?,
    };
    Ok(to_duration(seconds))
}

fn pinned(cx: &mut Context<'_>, node: &Node) -> Result<Vec<String>, String> {
    const FORM: &str = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo";
    let Value::Array(items) = &node.value else {
        return Err(format!(
            "error parsing tls config, expected 'pinned_certs' to be a list of {FORM}"
        ));
    };
    let mut pins = Vec::with_capacity(items.len());
    for item in items {
        let Some(pin) = cx.str(item) else { continue };
        let pin = pin.to_ascii_lowercase();
        if pin.len() != 64 || !pin.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!(
                "error parsing tls config, 'pinned_certs' key {pin} does not look like {FORM}"
            ));
        }
        pins.push(pin);
    }
    Ok(pins)
}

fn handshake_first(field: &str, node: &Node) -> Result<HandshakeFirst, String> {
    let text = match &node.value {
        Value::Bool(true) => return Ok(HandshakeFirst::Required),
        Value::Bool(false) => return Ok(HandshakeFirst::No),
        Value::String(text) => text,
        other => {
            return Err(format!(
                "field {} should be a boolean or a string, got {}",
                quote(field),
                other.type_name()
            ));
        }
    };
    Ok(match text.to_ascii_lowercase().as_str() {
        "true" | "on" => HandshakeFirst::Required,
        "false" | "off" => HandshakeFirst::No,
        "auto" | "auto_fallback" => HandshakeFirst::Auto(AUTO_FALLBACK),
        _ => match parse_duration(text) {
            Ok(delay) if delay.clamped().is_zero() => HandshakeFirst::Required,
            Ok(delay) => HandshakeFirst::Auto(delay.clamped()),
            Err(_) => {
                return Err(format!(
                    "field {}'s value {} is invalid",
                    quote(field),
                    quote(text)
                ));
            }
        },
    })
}

fn min_version(node: &Node) -> Result<TlsVersion, String> {
    let reason = match &node.value {
        Value::String(text) => match text.as_str() {
            "1.2" => return Ok(TlsVersion::V1_2),
            "1.3" => return Ok(TlsVersion::V1_3),
            "1.0" | "1.1" => format!("unsupported TLS version: TLS {text}"),
            _ => format!("unknown version: {text}"),
        },
        other => format!("'min_version' wrong type: {other}"),
    };
    Err(format!("error parsing tls config: {reason}"))
}
