//! Which partition and shard hold a table.

/// Where a table's events are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) partition: u32,
    pub(crate) shard: u32,
}

/// The place of a table, by its tenant and its encoded name. All scopes of a table are in one place.
///
/// Two independent numbers are drawn from one hash, or some shards of some partitions would stay empty. Growing either
/// count by one moves few tables, each into the new one.
pub(crate) fn place(tenant: &str, table: &str, partitions: u32, shards: u32) -> Place {
    let hash = fnv1a(tenant, table);
    Place {
        partition: jump(hash, partitions),
        shard: jump(mix(hash), shards),
    }
}

fn fnv1a(tenant: &str, table: &str) -> u64 {
    let bytes = tenant.bytes().chain([b'.']).chain(table.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The consistent hash of Lamping and Veach. `buckets` is at least one.
fn jump(mut key: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (0_u32, 0_i64);
    while next < i64::from(buckets) {
        // Below `buckets`, so it fits.
        bucket = next as u32;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((f64::from(bucket) + 1.0) * ((1_u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use windjet_testkit::page;

    use super::*;
    use crate::encode_token;

    type Golden = (&'static str, &'static str, u64, [(u32, u32); 4]);

    const GOLDEN: [Golden; 8] = [
        (
            "0",
            "events",
            0xe67f_99fc_0959_bf96,
            [(0, 29), (2, 4), (1, 1), (2, 84)],
        ),
        (
            "acme",
            "events",
            0xbb13_6c07_7452_5076,
            [(0, 22), (2, 0), (0, 0), (11, 255)],
        ),
        (
            "acme",
            "t",
            0x6a60_4646_dec3_6505,
            [(0, 15), (3, 6), (1, 1), (14, 246)],
        ),
        (
            "globex",
            "events",
            0x5bcd_39cd_f3a7_bb81,
            [(0, 26), (3, 4), (1, 0), (3, 234)],
        ),
        (
            "acme-co",
            "default.clicks",
            0x9ad4_702e_c371_e41a,
            [(0, 11), (3, 1), (0, 1), (5, 50)],
        ),
        (
            "acme",
            "a.b*c> d%e",
            0x6f70_d0e0_5402_f27a,
            [(0, 20), (3, 3), (0, 0), (3, 20)],
        ),
        (
            "acme",
            "café",
            0x2ab9_b40e_ff51_0aa5,
            [(0, 0), (3, 0), (0, 0), (3, 84)],
        ),
        (
            "Acme_42",
            "table-with-dashes",
            0x3dce_5c29_c110_a136,
            [(0, 20), (3, 4), (1, 1), (3, 20)],
        ),
    ];

    #[test]
    fn tables_are_where_the_golden_values_say() {
        for (tenant, table, hash, places) in GOLDEN {
            let table = encode_token(table.as_bytes());
            assert_eq!(fnv1a(tenant, &table), hash, "{tenant}.{table}");
            for ((partitions, shards), (partition, shard)) in
                [(1, 32), (4, 8), (2, 2), (16, 256)].iter().zip(places)
            {
                assert_eq!(
                    place(tenant, &table, *partitions, *shards),
                    Place { partition, shard }
                );
            }
        }
        assert_eq!(
            [jump(42, 57), jump(0xDEAD_10CC, 666), jump(256, 1024)],
            [43, 361, 520]
        );
    }

    #[test]
    fn the_page_has_the_golden_places() {
        let golden = GOLDEN.map(|(tenant, table, hash, places)| {
            let mut row = vec![
                format!("`{tenant}`"),
                format!("`{table}`"),
                format!("`{hash:016x}`"),
            ];
            row.extend(places.map(|(partition, shard)| format!("{partition}, {shard}")));
            row
        });
        let page = page::read("mq-topology.md").unwrap();
        assert_eq!(page::rows(&page, "Places").unwrap()[1..], golden);
    }

    #[test]
    fn growing_by_one_moves_few_tables_and_each_into_the_new_one() {
        let tables: Vec<_> = (0..4000).map(|number| format!("t{number}")).collect();
        let moved = |old: u32, new: u32, by: fn(Place) -> u32, of: fn(u32) -> (u32, u32)| {
            let at = |table: &str, count| by(place("acme", table, of(count).0, of(count).1));
            let moved = tables.iter().filter(|table| at(table, old) != at(table, new));
            moved.inspect(|table| assert_eq!(at(table, new), old)).count()
        };
        let partitions = moved(4, 5, |place| place.partition, |count| (count, 8));
        let shards = moved(8, 9, |place| place.shard, |count| (4, count));
        assert!((600..1000).contains(&partitions), "{partitions}");
        assert!((300..600).contains(&shards), "{shards}");
    }

    #[test]
    fn every_shard_of_every_partition_is_used() {
        let mut used = std::collections::HashSet::new();
        for number in 0..4000 {
            used.insert(place("acme", &format!("t{number}"), 4, 8));
        }
        assert_eq!(used.len(), 32);
    }
}
