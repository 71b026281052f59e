//! Random histories of one consumer, with explicit acks, held against a model that knows nothing but lists.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Event {
    Publish(bool),
    Pull(u8),
    /// Which of the messages in hand, and what is said about it.
    Ack(prop::sample::Index, &'static str),
    Remove(prop::sample::Index, u8),
    Purge(prop::sample::Index),
    PurgeOther,
    Advance(u16),
    Restart(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let payload = prop::sample::select(vec!["", "+ACK", "-NAK", "-NAK 50ms", "+WPI", "+TERM"]);
    prop_oneof![
        6 => any::<bool>().prop_map(Event::Publish),
        6 => (1_u8..5).prop_map(Event::Pull),
        8 => (any::<prop::sample::Index>(), payload).prop_map(|(at, payload)| Event::Ack(at, payload)),
        2 => (any::<prop::sample::Index>(), 1_u8..4).prop_map(|(at, count)| Event::Remove(at, count)),
        1 => any::<prop::sample::Index>().prop_map(Event::Purge),
        1 => Just(Event::PurgeOther),
        3 => (0_u16..150).prop_map(Event::Advance),
        1 => (0_u16..150).prop_map(Event::Restart),
    ]
}

/// What is in hand, by the messages seen and the answers given.
#[derive(Default)]
struct Model {
    deliveries: BTreeMap<u64, u64>,
    in_hand: BTreeMap<u64, u64>,
    given_up: Vec<u64>,
    /// Whether anything ever was.
    gave_up: bool,
    last_dseq: u64,
}

const MAX_DELIVER: u64 = 3;

impl Model {
    /// Reads what went out.
    fn read(&mut self, lines: &[String]) {
        for line in lines {
            if let Some(rest) = line.strip_prefix("a: ")
                && let Some((seqs, rest)) = rest.split_once(" x")
            {
                let (seq, dseq) = seqs.split_once('/').unwrap();
                let (seq, dseq): (u64, u64) = (seq.parse().unwrap(), dseq.parse().unwrap());
                let count: u64 = rest.split(' ').next().unwrap().parse().unwrap();
                assert_eq!(dseq, self.last_dseq + 1, "deliveries are numbered without gaps");
                self.last_dseq = dseq;
                let seen = self.deliveries.entry(seq).or_default();
                *seen += 1;
                assert_eq!(*seen, count, "deliveries of {seq} are counted");
                assert!(count <= MAX_DELIVER);
                assert!(count == 1 || self.in_hand.contains_key(&seq), "{seq} was settled");
                self.in_hand.entry(seq).or_insert(dseq);
            } else if line.contains("MAX_DELIVERIES") {
                let seq = line
                    .rsplit("\"stream_seq\":")
                    .next()
                    .unwrap()
                    .trim_end_matches('}');
                let seq: u64 = seq.parse().unwrap();
                self.in_hand.remove(&seq);
                self.given_up.push(seq);
                self.gave_up = true;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_its_promises(events in prop::collection::vec(event(), 1..60)) {
        let json = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":100000000,"max_deliver":3,"max_ack_pending":6,"filter_subject":"x"}"#;
        let mut bench = Bench::start(&["o", "x"], json);
        let mut model = Model::default();
        for event in events {
            let hand: Vec<u64> = model.in_hand.keys().copied().collect();
            let last = bench.writer.last_seq();
            match event {
                Event::Publish(matches) => bench.publish(&[if matches { "x" } else { "o" }]),
                Event::Pull(count) => bench.pull("a", &format!(r#"{{"batch":{count},"expires":{}}}"#, 80 * MS)),
                Event::Ack(at, payload) if !hand.is_empty() => {
                    let seq = *at.get(&hand);
                    bench.ack(seq, model.deliveries[&seq], payload);
                    if !payload.starts_with("-NAK") && payload != "+WPI" {
                        model.in_hand.remove(&seq);
                    }
                }
                Event::Ack(..) => {}
                Event::Remove(at, count) => {
                    let first = at.index(last as usize) as u64 + 1;
                    let to = (first + u64::from(count) - 1).min(last);
                    bench.remove(first, to);
                    model.in_hand.retain(|seq, _| !(first..=to).contains(seq));
                    model.given_up.retain(|seq| !(first..=to).contains(seq));
                }
                Event::Purge(at) => {
                    let below = at.index(last as usize) as u64 + 1;
                    bench.purge("", below);
                    model.in_hand.retain(|seq, _| *seq >= below);
                    model.given_up.retain(|seq| *seq >= below);
                }
                Event::PurgeOther => bench.purge("o", u64::MAX),
                Event::Advance(ms) => bench.advance(u64::from(ms)),
                Event::Restart(ms) => bench.restart(u64::from(ms)),
            }
            let out = bench.out();
            model.read(&out);
            let info = bench.info();
            prop_assert_eq!(info.num_ack_pending, model.in_hand.len() as u64);
            prop_assert!(info.num_ack_pending <= 6);
            prop_assert_eq!(info.delivered.consumer_seq, model.last_dseq);
            for seq in &model.given_up {
                prop_assert!(bench.c.as_ref().unwrap().tracked.given_up(*seq));
            }
            let floor = (info.ack_floor.stream_seq, info.ack_floor.consumer_seq);
            let delivered = (info.delivered.stream_seq, info.delivered.consumer_seq);
            match model.in_hand.first_key_value() {
                // What was given up holds the floor until something is settled with nothing in hand.
                None if model.gave_up => prop_assert!(floor <= delivered),
                None => prop_assert_eq!(floor, delivered),
                Some((seq, dseq)) => prop_assert!(floor.0 < *seq && floor.1 < *dseq),
            }
        }
        // Nothing is stuck: with somebody who asks and acknowledges, everything is settled.
        bench.advance(1000);
        for _ in 0..200 {
            bench.pull("a", "1");
            let out = bench.out();
            model.read(&out);
            let Some(seq) = model.in_hand.keys().next().copied() else {
                break;
            };
            bench.ack(seq, model.deliveries[&seq], "");
            model.in_hand.remove(&seq);
        }
        let info = bench.info();
        prop_assert_eq!((info.num_ack_pending, info.num_pending), (0, 0));
    }
}
