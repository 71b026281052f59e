//! Subjects by key: one key always goes to one shard.
//!
//! The hash is FNV-1a with 32 bits, so that services in other languages agree. Another number of shards sends most keys
//! elsewhere: drain first, then change it. The server's own mapping `{{partition(n,1)}}` is not the same function.

/// The shard of a key, below `shards`; 0 when there are none.
#[must_use]
pub fn index(key: &str, shards: u32) -> u32 {
    let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.checked_rem(shards).unwrap_or(0)
}

/// The subject of a key: `prefix.index.action`, without the last part when `action` is empty.
#[must_use]
pub fn subject(prefix: &str, key: &str, shards: u32, action: &str) -> String {
    let index = index(key, shards);
    if action.is_empty() {
        format!("{prefix}.{index}")
    } else {
        format!("{prefix}.{index}.{action}")
    }
}

/// The filter of one shard: everything below `prefix.index`.
#[must_use]
pub fn filter(prefix: &str, index: u32) -> String {
    format!("{prefix}.{index}.>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_languages_agree_on_the_shard() {
        let table = [
            ("", 5, 5),
            ("a", 4, 12),
            ("user-42", 3, 11),
            ("acct-1", 4, 12),
            ("account-42", 5, 5),
            ("acct-10482", 6, 14),
            ("foobar", 0, 8),
        ];
        for (key, of_eight, of_sixteen) in table {
            assert_eq!((index(key, 8), index(key, 16)), (of_eight, of_sixteen), "{key}");
        }
        assert_eq!(index("a", 0), 0);
        assert_eq!(subject("orders", "user-42", 8, "created"), "orders.3.created");
        assert_eq!(subject("orders", "user-42", 8, ""), "orders.3");
        assert_eq!(filter("orders", 3), "orders.3.>");
    }
}
