//! Accepted rows as they come, as server-sent events without gaps.
//!
//! An event's id is when its row was accepted, and the row's key. A client that comes back with the last one it saw gets
//! what the queue has stored since, then what comes. Listening begins before the replay, so that nothing falls between
//! them; what both have is sent once. A client too slow for the live rows is served from a replay in the same way.
//!
//! A replay that fails ends the stream: browsers then come back by themselves, with the last id.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use windjet_mq::{Ctx, Error, ReplaySink, Topic, async_trait};

use super::{App, Refusal};
use crate::envelope::{Envelope, check_key, from_micros, micros};
use crate::service::Shared;

/// Events that wait for a client.
const WAITING_MAX: usize = 64;
/// Rows remembered as seen, so that a replay and the live rows do not send one twice.
const SEEN_MAX: usize = 65_536;
/// How far the clocks of this service's machines and of the broker's may be apart.
const CLOCKS: Duration = Duration::from_secs(5);
/// Rows held back while the client's last one is looked for.
const HELD_MAX: usize = 4096;

/// Where a client is: the last row that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    at: u64,
    id: String,
}

impl Place {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "Last-Event-ID must be the id of an event of this service".to_owned();
        let (at, id) = text.split_once('-').ok_or_else(wrong)?;
        check_key(id).map_err(|_| wrong())?;
        Ok(Self {
            at: at.parse().map_err(|_| wrong())?,
            id: id.to_owned(),
        })
    }

    fn of(row: &Envelope) -> Self {
        Self {
            at: row.at,
            id: row.id.clone(),
        }
    }

    fn event(&self, row: &Envelope) -> Event {
        Event::default()
            .id(format!("{}-{}", self.at, self.id))
            .data(one_line(row.row.get()))
    }
}

/// JSON without line ends: between tokens they mean nothing, and inside of texts JSON has none.
fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

pub(super) async fn events(
    State(api): App,
    Path((tenant, table)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let topic = api.topic(&tenant, &table)?;
    let last = headers
        .get("last-event-id")
        .map(|id| Place::parse(id.to_str().unwrap_or_default()));
    let last = last.transpose().map_err(Refusal::bad)?;
    let live = api.shared.live.listen(&topic.key());
    let (out, waiting) = mpsc::channel(WAITING_MAX);
    let feed = Feed {
        shared: Arc::clone(&api.shared),
        begun: micros(SystemTime::now()),
        seen: Seen::default(),
        topic,
        last,
        out,
    };
    tokio::spawn(feed.run(live));
    let events = futures_util::stream::unfold(waiting, |mut waiting| async {
        let event = waiting.recv().await?;
        Some((Ok(event), waiting))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// One client's events.
struct Feed {
    shared: Arc<Shared>,
    topic: Topic,
    /// When the client came.
    begun: u64,
    /// The last row it has, if it has any.
    last: Option<Place>,
    seen: Seen,
    out: mpsc::Sender<Event>,
}

impl Feed {
    /// Feeds until the client goes, the service stops, or a replay fails.
    async fn run(mut self, live: Receiver<Bytes>) {
        let (stop, out) = (self.shared.stop.clone(), self.out.clone());
        tokio::select! {
            () = stop.cancelled() => {}
            () = out.closed() => {}
            ended = self.feed(live) => if let Err(error) = ended {
                tracing::warn!(topic = self.topic.key(), error = format!("{error:#}"), "a listener has to come back");
            }
        }
    }

    async fn feed(&mut self, mut live: Receiver<Bytes>) -> Result<(), Error> {
        let mut gap = self.last.is_some();
        loop {
            if gap {
                self.fill().await?;
            }
            gap = loop {
                match live.recv().await {
                    Ok(data) => self.send(&data).await,
                    Err(RecvError::Lagged(_)) => break true,
                    Err(RecvError::Closed) => return Ok(()),
                }
            };
        }
    }

    /// Sends a row unless it was sent; a client that is gone ends the feed elsewhere.
    async fn send(&mut self, data: &Bytes) {
        let Some(row) = decode(data) else { return };
        let place = Place::of(&row);
        if self.seen.insert(&place) {
            let _ = self.out.send(place.event(&row)).await;
            self.last = Some(place);
        }
    }

    /// Sends what is stored behind the client's last row.
    async fn fill(&mut self) -> Result<(), Error> {
        let from = self.last.as_ref().map_or(self.begun, |last| last.at);
        let since = from_micros(from)
            .checked_sub(CLOCKS)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let (shared, topic) = (Arc::clone(&self.shared), self.topic.clone());
        let mut gap = Gap {
            after: self.last.clone(),
            from,
            held: Vec::new(),
            feed: self,
        };
        shared
            .broker
            .replay_since(&Ctx::new(), &topic, since, &mut gap)
            .await?;
        gap.give_up_looking().await;
        Ok(())
    }
}

/// Takes a replay that begins somewhat too early.
struct Gap<'a> {
    /// The row behind which the gap begins, until it was seen.
    after: Option<Place>,
    from: u64,
    /// Rows that are in the gap if that row does not come.
    held: Vec<Bytes>,
    feed: &'a mut Feed,
}

impl Gap<'_> {
    /// The client's last row is not stored any more: what was accepted after it is sent.
    async fn give_up_looking(&mut self) {
        self.after = None;
        for data in std::mem::take(&mut self.held) {
            self.feed.send(&data).await;
        }
    }
}

#[async_trait]
impl ReplaySink for Gap<'_> {
    async fn send(&mut self, data: Bytes) -> bool {
        let Some(after) = &self.after else {
            self.feed.send(&data).await;
            return !self.feed.out.is_closed();
        };
        let Some(row) = decode(&data) else { return true };
        let place = Place::of(&row);
        if place == *after {
            // What came before it, the client has; the live rows may still bring it.
            for data in self.held.drain(..) {
                if let Some(row) = decode(&data) {
                    self.feed.seen.insert(&Place::of(&row));
                }
            }
            self.feed.seen.insert(&place);
            self.after = None;
        } else if place.at >= self.from {
            self.held.push(data);
            if self.held.len() > HELD_MAX {
                self.give_up_looking().await;
            }
        } else {
            self.feed.seen.insert(&place);
        }
        true
    }
}

/// What is in a message of this service; others are parked by the worker and are no events.
fn decode(data: &Bytes) -> Option<Envelope> {
    Envelope::decode(data).ok()
}

/// The newest rows by their hashes.
#[derive(Debug, Default)]
struct Seen {
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Seen {
    /// Whether it is new.
    fn insert(&mut self, place: &Place) -> bool {
        let mut hasher = DefaultHasher::new();
        (place.at, &place.id).hash(&mut hasher);
        let hash = hasher.finish();
        if !self.hashes.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_says_where_a_client_is() {
        let place = Place::parse("1700000000000000-order-7").unwrap();
        assert_eq!((place.at, place.id.as_str()), (1_700_000_000_000_000, "order-7"));
        for bad in ["", "1", "x-y", "1-", "1-a b"] {
            assert!(Place::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_newest_rows_are_remembered() {
        let mut seen = Seen::default();
        let place = |at: usize| Place {
            at: at as u64,
            id: "k".to_owned(),
        };
        assert!((0..=SEEN_MAX).all(|at| seen.insert(&place(at))));
        assert!(!seen.insert(&place(SEEN_MAX)));
        assert!(seen.insert(&place(0)), "the oldest is forgotten");
    }
}
