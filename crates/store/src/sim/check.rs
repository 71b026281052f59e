//! Comparing a store's stream with the model's.

use super::model::State;
use crate::index::{Matcher, filter_matches};
use crate::stream::message::Message;
use crate::stream::reader::{Found, FoundSeq, StreamReader};

/// Reads one message, from wherever it is.
fn fetch(reader: &StreamReader, seq: u64) -> Result<Option<Message>, String> {
    match reader.read(seq) {
        Found::InMemory(m) => Ok(Some(m)),
        Found::Absent => Ok(None),
        Found::NeedsDisk(ticket) => ticket.read().map_err(|e| format!("reading {seq}: {e:?}")),
    }
}

/// Whether the stream is what the model says; the text says what is not. `exact_last` is false for weak streams after a
/// power cut, whose last sequence may lie above.
pub(super) fn compare(reader: &StreamReader, want: &State, exact_last: bool) -> Result<(), String> {
    let state = reader.state();
    let same = |what: &str, got: u64, want: u64| {
        if got == want {
            Ok(())
        } else {
            Err(format!("{what} is {got}, should be {want}"))
        }
    };
    same("messages", state.messages, want.messages.len() as u64)?;
    if exact_last {
        same("last sequence", state.last_seq, want.last_seq)?;
        if state.last_time != want.last_time {
            return Err(format!(
                "last time is {}, should be {}",
                state.last_time, want.last_time
            ));
        }
        let first = want.messages.keys().next().copied().unwrap_or(want.last_seq + 1);
        same("first sequence", state.first_seq, first)?;
    }
    if reader.options().config != want.config {
        return Err("configuration differs".to_owned());
    }
    let mut seqs = Vec::new();
    reader.next_matches(&mut Matcher::new([""; 0]), 0, usize::MAX >> 1, &mut seqs);
    if !seqs.iter().eq(want.messages.keys()) {
        let want: Vec<_> = want.messages.keys().collect();
        return Err(format!("live sequences are {seqs:?}, should be {want:?}"));
    }
    for (seq, m) in &want.messages {
        let Some(got) = fetch(reader, *seq)? else {
            return Err(format!("message {seq} is not there"));
        };
        let same = got.seq() == *seq
            && got.time() == m.time
            && got.subject() == m.subject
            && got.headers() == m.headers
            && got.payload() == m.payload;
        if !same {
            return Err(format!("message {seq} differs"));
        }
    }
    for filter in ["a.*", "*.1", "a.1", "b.>"] {
        let mut m = Matcher::new([filter]);
        let from = want.last_seq / 2;
        let matching = || {
            want.messages
                .iter()
                .filter(|(s, m)| **s >= from && filter_matches(filter.as_bytes(), &m.subject))
        };
        same(filter, reader.count(&mut m, from), matching().count() as u64)?;
        if reader.next_match(&mut m, from) != matching().next().map(|(s, _)| *s) {
            return Err(format!("next match of {filter} differs"));
        }
        let last = want
            .messages
            .iter()
            .rev()
            .find(|(_, m)| filter_matches(filter.as_bytes(), &m.subject));
        if reader.last_match(&mut m) != last.map(|(s, _)| *s) {
            return Err(format!("last match of {filter} differs"));
        }
    }
    if let Some((_, middle)) = want.messages.iter().nth(want.messages.len() / 2) {
        let expected = want
            .messages
            .iter()
            .find(|(_, m)| m.time >= middle.time)
            .map(|(s, _)| *s);
        let got = match reader.first_at(middle.time) {
            FoundSeq::Seq(seq) => Some(seq),
            FoundSeq::None => None,
            FoundSeq::NeedsDisk(ticket) => ticket.read().map_err(|e| format!("by time: {e:?}"))?,
        };
        if got != expected {
            return Err(format!(
                "first at {} is {got:?}, should be {expected:?}",
                middle.time
            ));
        }
    }
    let names = reader.consumers();
    if !names.iter().eq(want.consumers.keys()) {
        return Err(format!("consumers are {names:?}"));
    }
    for (name, (config, position)) in &want.consumers {
        let got = reader.consumer(name);
        if !got
            .as_ref()
            .is_some_and(|c| c.config == *config && c.state == *position)
        {
            return Err(format!(
                "consumer {name} is {got:?}, should be {config:?} {position:?}"
            ));
        }
    }
    Ok(())
}
