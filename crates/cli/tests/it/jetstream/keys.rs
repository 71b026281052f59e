//! A large key-value bucket.

use std::collections::HashSet;

use async_nats::jetstream::kv;
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::{connect, run, server};

const KEYS: usize = 100_000;

#[test]
fn a_hundred_thousand_keys_are_listed_and_watched() {
    let server = server();
    run(async {
        let context = connect(&server).await;
        let config = kv::Config {
            bucket: "B".to_owned(),
            history: 1,
            ..kv::Config::default()
        };
        let bucket = context.create_key_value(config).await.unwrap();
        let mut acks = Vec::new();
        for n in 0..KEYS {
            // What the client's put does, without waiting for each answer.
            let subject = format!("$KV.B.key.{n}");
            acks.push(context.publish(subject, n.to_string().into()).await.unwrap());
            if acks.len() == 5000 {
                for ack in acks.drain(..) {
                    ack.await.unwrap();
                }
            }
        }
        let keys: HashSet<String> = bucket.keys().await.unwrap().try_collect().await.unwrap();
        assert_eq!(keys.len(), KEYS);
        assert!((0..KEYS).all(|n| keys.contains(&format!("key.{n}"))));

        let mut watch = bucket.watch_all_from_revision(1).await.unwrap();
        let mut values = HashSet::new();
        while values.len() < KEYS {
            let entry = watch.next().await.unwrap().unwrap();
            assert_eq!(
                entry.key,
                format!("key.{}", std::str::from_utf8(&entry.value).unwrap())
            );
            assert!(values.insert(entry.key), "a key came twice");
        }
        bucket.put("key.7", "changed".into()).await.unwrap();
        bucket.delete("key.8").await.unwrap();
        let changed = watch.next().await.unwrap().unwrap();
        assert_eq!((&*changed.key, &changed.value[..]), ("key.7", &b"changed"[..]));
        let deleted = watch.next().await.unwrap().unwrap();
        assert_eq!(
            (&*deleted.key, deleted.operation),
            ("key.8", kv::Operation::Delete)
        );
        assert_eq!(bucket.keys().await.unwrap().count().await, KEYS - 1);
    });
}
