//! Where no request may go.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::error::{Error, ErrorKind, Result};

/// Names under which clouds tell machines their credentials.
const HOSTS: [&str; 3] = ["metadata.google.internal", "metadata.goog", "instance-data"];
const METADATA_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Whether a request may go there, as far as the address itself says.
pub(super) fn check(url: &Url) -> Result<()> {
    let blocked = |why: &str| {
        let context = format!("fetching from {}: {why}", shown(url));
        Err(Error::new(ErrorKind::MonitoringBlocked, context))
    };
    if !matches!(url.scheme(), "http" | "https") {
        return blocked("only http and https");
    }
    match url.host() {
        None => blocked("it has no host"),
        // The parser has written names in lower case.
        Some(Host::Domain(name)) if HOSTS.contains(&name.trim_end_matches('.')) => {
            blocked("the host is a metadata service")
        }
        Some(Host::Ipv4(address)) if is_blocked(address.into()) => blocked("the address is not for servers"),
        Some(Host::Ipv6(address)) if is_blocked(address.into()) => blocked("the address is not for servers"),
        Some(_) => Ok(()),
    }
}

/// Whether a connection to the address is refused.
pub(super) fn is_blocked(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_blocked_v4(address),
        IpAddr::V6(address) => is_blocked_v6(address) || embedded(address).is_some_and(is_blocked_v4),
    }
}

fn is_blocked_v4(address: Ipv4Addr) -> bool {
    address.is_link_local() || address.is_multicast() || address.is_unspecified() || address == METADATA_V4
}

fn is_blocked_v6(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
        || address.is_multicast()
        || address.is_unspecified()
        || address == METADATA_V6
}

/// The IPv4 address inside one that gateways translate, or that was written the old way.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let [.., high, low] = segments;
    let inside = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let nat64 = segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    let compatible = segments[..6] == [0; 6] && !address.is_loopback();
    (nat64 || compatible).then_some(inside)
}

/// The address without user info and query, for errors.
pub(super) fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{}://{host}:{port}", url.scheme()),
        None => format!("{}://{host}", url.scheme()),
    }
}
