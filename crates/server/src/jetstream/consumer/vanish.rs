//! Messages that go from the stream while the consumer has to do with them.

use windjet_protocol::jetstream::advisory::MessageTerminated;
use windjet_protocol::subject;
use windjet_store::SeqRange;

use super::events::Told;
use super::{Consumer, Now, Port};

impl Consumer {
    /// Messages were deleted, expired or made room: all removals but purges. Sequences without a message are allowed.
    pub(crate) fn removed(&mut self, port: &mut dyn Port, ranges: &[SeqRange], now: Now) {
        for range in ranges {
            self.lost(*range);
            for seq in self.tracked.seqs(range.first, range.last) {
                self.vanished(port, seq, now);
            }
            for seq in self.tracked.counted(range.first, range.last) {
                self.tracked.forget(seq, &mut self.log);
            }
        }
    }

    /// A message that was delivered and not settled is gone: that settles it.
    pub(super) fn vanished(&mut self, port: &mut dyn Port, seq: u64, now: Now) {
        let Some(entry) = self.tracked.get(seq) else {
            return;
        };
        let told = Told {
            seq,
            dseq: entry.dseq(),
            deliveries: self.tracked.deliveries(seq),
        };
        self.settle(seq);
        self.acked_at = Some(now.wall);
        self.tell_terminated(port, told, MessageTerminated::DELETED, now);
    }

    /// Messages that match `filter` (empty: all) were purged, up to a sequence or all.
    pub(crate) fn purged(&mut self, filter: &[u8], now: Now) {
        let state = self.home.reader.state();
        let (first, last) = (state.first_seq, state.last_seq);
        let in_hand = self.tracked.len();
        self.forget_range(0, first.saturating_sub(1));
        if !filter.is_empty() {
            self.forget_gone();
        }
        let before = first.saturating_sub(1);
        if let Some(initial) = &mut self.initial {
            let reader = &self.home.reader;
            initial
                .set
                .retain(|seq| *seq >= first && reader.subject_of(*seq).is_some());
        }
        if self
            .initial
            .as_ref()
            .is_some_and(|initial| initial.set.is_empty())
        {
            self.initial = None;
        }
        self.recount();
        // Without a filter, `before` is the end when the stream is empty.
        let all_of_it = !filter.is_empty()
            && self.config.filters().next().is_some()
            && self
                .config
                .filters()
                .all(|own| subject::is_subset(own.as_bytes(), filter));
        let up_to = if all_of_it && self.tracked.len() == 0 && self.num_pending() == 0 {
            last
        } else {
            before
        };
        if up_to > self.delivered.stream_seq {
            self.delivered.stream_seq = up_to;
        }
        if up_to >= self.next {
            self.next = up_to + 1;
            self.recount();
        }
        if up_to > self.floor.stream_seq || self.tracked.len() == 0 {
            self.floor.stream_seq = up_to.max(self.floor.stream_seq);
            self.move_floor();
        }
        if self.tracked.len() < in_hand {
            self.acked_at = Some(now.wall);
        }
        self.log.mark();
    }

    /// Forgets what is not in the stream any more.
    fn forget_gone(&mut self) {
        let lowest = self.tracked.lowest().map(|(seq, _)| seq);
        let mut seqs = self.tracked.seqs(0, u64::MAX);
        seqs.extend(self.tracked.counted(0, u64::MAX));
        let reader = &self.home.reader;
        seqs.retain(|seq| reader.subject_of(*seq).is_none());
        for seq in seqs {
            self.tracked.settle(seq, &mut self.log);
            self.release(seq);
        }
        if self.tracked.lowest().map(|(seq, _)| seq) != lowest {
            self.move_floor();
        }
    }
}
