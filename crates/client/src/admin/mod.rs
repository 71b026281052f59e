//! Managing streams, consumers, key-value buckets and objects. None of this happens by itself.
//!
//! Names are checked before anything is sent, and errors keep the server's number ([`Error::api_code`]). Lists are sorted
//! by name, and a failure half way is an error, never a shorter list.
//!
//! [`Error::api_code`]: crate::Error::api_code

mod consumers;
mod kv;
mod objects;
mod stored;
mod streams;

use std::sync::Arc;

pub use async_nats::jetstream::{consumer, stream};
pub use consumers::{ConsumerManager, DurableConfig};
pub use kv::{BucketStatus, KeyValueKeys, KeyValueManager, KvEntry};
pub use objects::{ObjectBucketStatus, ObjectEntry, ObjectManager};
pub use stored::StoredMessage;
pub use streams::StreamManager;

use crate::client::Inner;
use crate::error::Result;

/// One page of names: those from `offset` on, at most `limit` of them, and how many there are in all.
pub(crate) fn page<T>(mut all: Vec<T>, offset: usize, limit: Option<usize>) -> (Vec<T>, usize) {
    let total = all.len();
    let from = offset.min(total);
    let to = limit.map_or(total, |limit| from.saturating_add(limit).min(total));
    (all.drain(from..to).collect(), total)
}

/// All names that a paged list of the API gives, sorted.
async fn all_names(inner: &Arc<Inner>, what: &str, subject: &str, field: &str) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    loop {
        let question = serde_json::json!({"offset": names.len()});
        let answer: serde_json::Value = inner.api(what, subject.to_owned(), &question).await?;
        let total = answer
            .get("total")
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(0);
        let listed = answer.get(field).and_then(serde_json::Value::as_array);
        let found: Vec<String> = listed
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        if found.is_empty() {
            break;
        }
        names.extend(found);
        if names.len() as u64 >= total {
            break;
        }
    }
    // Names that came and went while the pages were read may be listed twice.
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_as_the_contract_has_it() {
        let all = || vec![1, 2, 3, 4, 5];
        assert_eq!(page(all(), 0, Some(2)), (vec![1, 2], 5));
        assert_eq!(page(all(), 4, Some(2)), (vec![5], 5));
        assert_eq!(page(all(), 5, Some(2)), (vec![], 5));
        assert_eq!(page(all(), 9, None), (vec![], 5));
        assert_eq!(page(all(), 1, None), (vec![2, 3, 4, 5], 5));
        assert_eq!(page(all(), 1, Some(0)), (vec![], 5));
        assert_eq!(page(all(), 1, Some(usize::MAX)), (vec![2, 3, 4, 5], 5));
    }
}
