//! Where a source goes on after a restart.
//!
//! The position is stored with the stream, as the record of a consumer whose name no client can give: the last sequence
//! taken, and the stream's own last sequence when that was written down. It is staged right behind each run of messages of
//! one source, so after a crash only what was stored after the newest record can be missing in it, and that is read from the
//! messages' own headers. Messages may go from the stream in any way; the position stays. It also stays when the source is
//! taken out of the configuration and comes back.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windjet_protocol::header::{block, names};
use windjet_store::{ConsumerChange, Found, Matcher, Op, Position, StageError, StreamReader, StreamWriter};

use super::header;

/// First characters of the records' names; a dot cannot be in a consumer's.
const PREFIX: &str = "$SRC.";

/// Whether a record of a stream's consumers is the position of a source.
pub(crate) fn is_position(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// What a record's configuration is.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    identity: String,
}

/// How far a source had come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Known {
    /// The last sequence taken.
    pub(super) seq: u64,
    /// What tells the origin from others of its name; empty where that is not known.
    pub(super) identity: String,
    /// The stream's own last sequence then.
    pub(super) at: u64,
}

fn record_name(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// The stored position of a source.
pub(super) fn load(reader: &StreamReader, key: &str) -> Option<Known> {
    let record = reader.consumer(&record_name(key))?;
    let envelope: Envelope = serde_json::from_slice(&record.config).ok()?;
    Some(Known {
        seq: record.state.delivered.stream_seq,
        identity: envelope.identity,
        at: record.state.delivered.consumer_seq,
    })
}

/// Stores a position. `renewed` says that the origin is another than the record's, or that there is no record.
pub(super) fn save(
    writer: &mut StreamWriter,
    key: &str,
    known: &Known,
    renewed: bool,
) -> Result<(), StageError> {
    let name = record_name(key);
    if renewed || !writer.has_consumer(&name) {
        let envelope = Envelope {
            identity: known.identity.clone(),
        };
        // Serialising a text does not fail.
        let config = serde_json::to_vec(&envelope).unwrap_or_default();
        writer.stage(Op::ConsumerPut {
            name: &name,
            config: &config,
        })?;
    }
    let change = ConsumerChange {
        delivered: Some(Position {
            stream_seq: known.seq,
            consumer_seq: known.at,
        }),
        ..ConsumerChange::default()
    };
    writer.stage(Op::ConsumerChange {
        name: &name,
        change: &change,
        remove: &[],
    })?;
    Ok(())
}

/// Newest positions by key, as the headers of stored messages say.
pub(super) type Positions = HashMap<String, Known>;

/// A search that is under way; the result when it is done.
pub(super) type Search = Arc<Mutex<Option<Positions>>>;

/// Reads the headers of all messages from a sequence on. Blocks on the disk.
pub(super) fn search(reader: &StreamReader, from: u64) -> Positions {
    let mut found = Positions::new();
    let mut all = Matcher::new(None::<&[u8]>);
    let (mut from, last) = (from, reader.state().last_seq);
    loop {
        let mut seqs = Vec::new();
        reader.next_matches(&mut all, from, 1024, &mut seqs);
        let Some(end) = seqs.last().copied() else {
            return found;
        };
        for seq in seqs {
            let message = match reader.read(seq) {
                Found::InMemory(message) => Some(message),
                Found::NeedsDisk(ticket) => ticket.read().ok().flatten(),
                Found::Absent => None,
            };
            let Some(headers) = message.map(|message| message.headers()) else {
                continue;
            };
            if let Some(taken) = block::find(&headers, names::STREAM_SOURCE).and_then(header::read) {
                let known = Known {
                    seq: taken.seq,
                    identity: taken.identity,
                    at: seq,
                };
                found.insert(taken.key, known);
            }
        }
        if end >= last {
            return found;
        }
        from = end + 1;
    }
}

#[cfg(test)]
mod tests {
    use windjet_store::{Append, Purge, SimClock, SimDisk, Storage, Store, StoreOptions, StreamOptions};

    use super::*;

    fn settle(writer: &mut StreamWriter) {
        writer.submit();
        writer.commit().unwrap();
    }

    fn stream() -> (Store, StreamWriter) {
        let clock = Arc::new(SimClock::new(1_800_000_000_000_000_000));
        let (store, _) = Store::open(StoreOptions::default(), Arc::new(SimDisk::new(1)), clock).unwrap();
        let options = StreamOptions {
            name: "$G/S".into(),
            storage: Storage::Memory,
            ..StreamOptions::default()
        };
        let mut writer = store.create_stream(options).unwrap();
        settle(&mut writer);
        (store, writer)
    }

    fn known(seq: u64, identity: &str, at: u64) -> Known {
        Known {
            seq,
            identity: identity.into(),
            at,
        }
    }

    #[test]
    fn a_position_outlives_the_messages_and_a_new_identity_replaces_it() {
        let (_store, mut writer) = stream();
        let reader = writer.reader();
        assert_eq!(load(&reader, "O > >"), None);
        save(&mut writer, "O > >", &known(7, "one", 3), true).unwrap();
        save(&mut writer, "O a >", &known(4, "one", 4), false).unwrap();
        settle(&mut writer);
        writer
            .stage(Op::Purge(Purge {
                filter: b"",
                below: u64::MAX,
            }))
            .unwrap();
        settle(&mut writer);
        assert_eq!(load(&reader, "O > >"), Some(known(7, "one", 3)));
        assert_eq!(load(&reader, "O a >"), Some(known(4, "one", 4)));
        save(&mut writer, "O > >", &known(1, "two", 5), true).unwrap();
        settle(&mut writer);
        assert_eq!(load(&reader, "O > >"), Some(known(1, "two", 5)));
        assert!(reader.consumers().iter().all(|name| is_position(name)));
    }

    #[test]
    fn the_newest_header_of_each_source_is_found() {
        let (_store, mut writer) = stream();
        for (subject, source) in [
            ("a", Some("O 1 > > a one")),
            ("b", Some("P 8 b.* > b.x two")),
            ("a", Some("O 2 > > a one")),
            ("own", None),
        ] {
            let mut headers = Vec::new();
            if let Some(source) = source {
                block::append(&mut headers, names::STREAM_SOURCE, source.as_bytes());
            }
            let append = Append {
                subject: subject.as_bytes(),
                headers: &headers,
                ..Append::default()
            };
            writer.stage(Op::Append(append)).unwrap();
        }
        settle(&mut writer);
        let reader = writer.reader();
        let found = search(&reader, 0);
        assert_eq!(found.get("O > >"), Some(&known(2, "one", 3)));
        assert_eq!(found.get("P b.* >"), Some(&known(8, "two", 2)));
        assert_eq!(search(&reader, 3).len(), 1);
        assert!(search(&reader, 4).is_empty());
    }
}
