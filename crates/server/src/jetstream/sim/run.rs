//! One program: lives of a server, each of random actions, and what must hold after each.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use windjet_store::{Clock, SimDisk, Survival};

use super::model::{Model, Rules};
use super::{World, clock, runtime};
use crate::jetstream::{
    AckPolicy, Consumer, ConsumerConfig, Delivery, DiscardPolicy, FetchError, FetchOptions, Nanos,
    PublishError, PurgeRequest, RetentionPolicy, StreamConfig, TestClock,
};

/// Ack wait of the consumers.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// The longest delay that is asked for with a nak; when it is over, and the ack wait, nobody has a message of an earlier life.
const NAK_DELAY: Duration = Duration::from_secs(2);
/// An unconfirmed ack is durable after this.
const ACK_DURABLE: Duration = Duration::from_millis(100);
/// Lives of one program.
const LIVES: usize = 4;

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    PowerCut,
    Kill,
    Shutdown,
}

/// A request that waits.
struct Waiting {
    consumer: usize,
    fetch: Pin<Box<dyn Future<Output = Result<Vec<Delivery>, FetchError>>>>,
}

struct Program {
    rng: SmallRng,
    model: Model,
    disk: SimDisk,
    clock: TestClock,
    consumers: usize,
    /// Consumers of which it is not known whether they exist.
    unsure: Vec<usize>,
    /// Message ids that were used, and with which subject.
    ids: Vec<(u64, usize)>,
    /// What happened in this life.
    log: Vec<String>,
}

/// What one life has.
struct Life {
    world: World,
    consumers: Vec<Consumer>,
    hand: Vec<(usize, Delivery)>,
    waiting: Vec<Waiting>,
    /// Acks that were sent and not confirmed, and when.
    acks: Vec<(u64, Duration)>,
}

/// Runs the program of a seed.
pub(super) fn run(seed: u64) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let rules = Rules {
        max_msgs: rng.random_bool(0.4).then(|| rng.random_range(5..20)),
        discard_new: rng.random_bool(0.3),
        max_age: rng
            .random_bool(0.2)
            .then(|| Duration::from_millis(rng.random_range(3000..10_000))),
        ack_wait: ACK_WAIT,
        max_ack_pending: rng.random_range(1..8),
        max_deliver: rng.random_bool(0.3).then(|| rng.random_range(1..4)),
    };
    let mut program = Program {
        model: Model::new(rules),
        disk: SimDisk::new(seed),
        clock: clock(),
        consumers: rng.random_range(1..4),
        unsure: Vec::new(),
        ids: Vec::new(),
        log: Vec::new(),
        rng,
    };
    for life in 0..=LIVES {
        let end = match program.rng.random_range(0..3) {
            0 => End::PowerCut,
            1 => End::Kill,
            _ => End::Shutdown,
        };
        runtime().block_on(program.live(life, end)).map_err(|why| {
            let rules = &program.model.rules;
            let log = program.log.join("\n");
            format!("life {life}, which ends by {end:?}: {why}\nof {rules:?}, what happened:\n{log}")
        })?;
        match end {
            End::PowerCut => program.disk.power_cut(Survival::Sampled),
            End::Kill => program.disk.kill(),
            End::Shutdown => {}
        }
        let down = program.rng.random_range(0..1500);
        program.clock.advance(Duration::from_millis(down));
    }
    Ok(())
}

fn said<T, E: std::fmt::Debug>(what: &str, result: Option<Result<T, E>>) -> Result<T, String> {
    match result {
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(format!("{what}: {error:?}")),
        None => Err(format!("{what}: no answer")),
    }
}

fn subject(consumer: usize) -> String {
    format!("q.{consumer}")
}

fn consumer_of(subject: &[u8]) -> Option<usize> {
    std::str::from_utf8(subject.strip_prefix(b"q.")?)
        .ok()?
        .parse()
        .ok()
}

impl Program {
    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn note(&mut self, what: impl Display) {
        self.log.push(format!("{:?} {what}", self.now()));
    }

    fn stream_config(&self) -> StreamConfig {
        let rules = &self.model.rules;
        StreamConfig {
            name: "Q".into(),
            subjects: vec!["q.*".into()],
            retention: RetentionPolicy::WorkQueue,
            max_msgs: rules.max_msgs.map_or(-1, |max| max as i64),
            max_age: Nanos(rules.max_age.map_or(0, |age| age.as_nanos() as i64)),
            discard: if rules.discard_new {
                DiscardPolicy::New
            } else {
                DiscardPolicy::Old
            },
            duplicate_window: Nanos(if rules.max_age.is_some() {
                0
            } else {
                86_400_000_000_000
            }),
            ..StreamConfig::default()
        }
    }

    fn consumer_config(&self, n: usize) -> ConsumerConfig {
        let rules = &self.model.rules;
        ConsumerConfig {
            durable_name: Some(format!("C{n}")),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Nanos(ACK_WAIT.as_nanos() as i64),
            max_ack_pending: rules.max_ack_pending as i64,
            max_deliver: rules.max_deliver.map_or(-1, |max| max as i64),
            filter_subject: Some(subject(n)),
            ..ConsumerConfig::default()
        }
    }

    async fn begin(&mut self, world: World, life: usize) -> Result<Life, String> {
        if life == 0 {
            let stream = self.stream_config();
            said("create", world.drive(world.js.create_stream(stream)).await)?;
            self.unsure = (0..self.consumers).collect();
        }
        for n in std::mem::take(&mut self.unsure) {
            let made = world.drive(world.js.create_consumer("Q", self.consumer_config(n)));
            said("create consumer", made.await)?;
        }
        let mut consumers = Vec::new();
        for n in 0..self.consumers {
            let name = format!("C{n}");
            consumers.push(said("find", world.drive(world.js.consumer("Q", &name)).await)?);
        }
        if life > 0 {
            let reader = world.js.reader("Q").map_err(|e| e.to_string())?;
            let find = |seq| consumer_of(&reader.subject_of(seq)?);
            let last = reader.state().last_seq;
            let found: Vec<_> = (1..=last).filter(|seq| find(*seq).is_some()).collect();
            self.note(format_args!("found {found:?}, the last is {last}"));
            let (now, calm) = (self.now(), self.now() + NAK_DELAY.max(ACK_WAIT));
            self.model.reborn(last, calm, now, find)?;
        }
        Ok(Life {
            world,
            consumers,
            hand: Vec::new(),
            waiting: Vec::new(),
            acks: Vec::new(),
        })
    }

    async fn live(&mut self, number: usize, end: End) -> Result<(), String> {
        self.log.clear();
        let world = World::start(&self.disk, &self.clock).await;
        let mut life = self.begin(world, number).await?;
        let actions = self.rng.random_range(5..60);
        // A disk that dies in the middle of what is done, or after it.
        let dies_at = if number < LIVES && end != End::Shutdown && self.rng.random_bool(0.7) {
            self.rng.random_range(0..actions)
        } else {
            usize::MAX
        };
        if self.rng.random_bool(0.5) {
            self.rest(&mut life).await?;
            self.pass(&mut life, NAK_DELAY).await?;
        }
        for at in 0..actions {
            if at == dies_at {
                let writes = self.rng.random_range(0..12);
                self.note(format_args!("the disk dies after {writes}"));
                self.disk.stop_after(writes);
            }
            self.rest(&mut life).await?;
            self.act(&mut life).await?;
            if self.disk.is_dead() {
                break;
            }
        }
        if number == LIVES {
            self.finish(&mut life).await?;
        }
        for waiting in life.waiting.drain(..) {
            self.model.perhaps_delivered(waiting.consumer);
        }
        if end == End::Shutdown {
            if !life.world.shutdown().await {
                return Err("the shutdown is not complete".into());
            }
        } else {
            // Nothing of what the process does from here on reaches the disk.
            self.disk.stop_after(0);
        }
        Ok(())
    }

    async fn act(&mut self, life: &mut Life) -> Result<(), String> {
        let n = self.rng.random_range(0..self.consumers);
        match self.rng.random_range(0..100) {
            0..26 => self.publish(life).await,
            26..44 => self.fetch(life, n).await,
            44..52 => {
                let most = self.rng.random_range(1..4);
                let expires = Duration::from_millis(self.rng.random_range(1..4000));
                let consumer = life.consumers[n].clone();
                life.waiting.push(Waiting {
                    consumer: n,
                    fetch: Box::pin(async move {
                        let options = FetchOptions::new(most).expires(expires);
                        consumer.fetch_with(&options).await
                    }),
                });
                Ok(())
            }
            52..54 => {
                if !life.waiting.is_empty() {
                    let at = self.rng.random_range(0..life.waiting.len());
                    life.waiting.swap_remove(at);
                }
                Ok(())
            }
            54..82 => self.settle(life).await,
            82..90 => {
                let by = Duration::from_millis(self.rng.random_range(1..1500));
                self.pass(life, by).await
            }
            90..92 => self.purge(life).await,
            92..95 => self.delete(life).await,
            95..97 => self.make_again(life, n).await,
            _ => self.bounds(life).await,
        }
    }

    /// Time passes.
    async fn pass(&mut self, life: &mut Life, by: Duration) -> Result<(), String> {
        life.world.pass(&self.clock, by).await;
        self.note("time passed");
        self.rest(life).await
    }

    /// Everything that can happen now has happened, and is as it must be.
    async fn rest(&mut self, life: &mut Life) -> Result<(), String> {
        let mut open = std::mem::take(&mut life.waiting);
        for _ in 0..4 {
            life.world.step().await;
            let mut still = Vec::new();
            for mut waiting in open {
                let polled = futures_util::poll!(waiting.fetch.as_mut());
                match polled {
                    Poll::Pending => still.push(waiting),
                    Poll::Ready(Ok(got)) => self.got(life, waiting.consumer, got)?,
                    Poll::Ready(Err(_)) if self.disk.is_dead() => {
                        self.model.perhaps_delivered(waiting.consumer);
                    }
                    Poll::Ready(Err(error)) => {
                        return Err(format!("a request that waits fails: {error}"));
                    }
                }
            }
            open = still;
        }
        life.waiting = open;
        if self.disk.is_dead() {
            return Ok(());
        }
        let now = self.now();
        self.model.age(now);
        let durable = life.acks.extract_if(.., |(_, at)| now > *at + ACK_DURABLE);
        for (seq, _) in durable {
            self.model.gone(seq);
        }
        let reader = life.world.js.reader("Q").map_err(|e| e.to_string())?;
        let last = reader.state().last_seq;
        if last != self.model.last() {
            return Err(format!("the last sequence is {last}, not {}", self.model.last()));
        }
        self.model.check(now, |seq| reader.subject_of(seq).is_some())?;
        for waiting in &life.waiting {
            if let Some(seq) = self.model.deliverable(waiting.consumer, now) {
                let why = life.world.explain(waiting.consumer).await;
                return Err(format!("a request waits, and {seq} is not delivered: {why}"));
            }
        }
        Ok(())
    }

    fn got(&mut self, life: &mut Life, consumer: usize, got: Vec<Delivery>) -> Result<(), String> {
        for delivery in got {
            self.note(format_args!("{consumer} gets {}", delivery.stream_sequence));
            self.model
                .delivered(consumer, delivery.stream_sequence, self.now())?;
            life.hand.push((consumer, delivery));
        }
        Ok(())
    }

    async fn publish(&mut self, life: &mut Life) -> Result<(), String> {
        let now = self.now();
        let mut publishes = Vec::new();
        for _ in 0..self.rng.random_range(1..5) {
            let mut consumer = self.rng.random_range(0..self.consumers);
            let mut id = None;
            if self.model.rules.max_age.is_none() && self.rng.random_bool(0.4) {
                if !self.ids.is_empty() && self.rng.random_bool(0.3) {
                    let (known, theirs) = self.ids[self.rng.random_range(0..self.ids.len())];
                    (id, consumer) = (Some(known), theirs);
                } else {
                    let new = self.ids.len() as u64;
                    self.ids.push((new, consumer));
                    id = Some(new);
                }
            }
            let headers = id.map_or(String::new(), |id| {
                format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n")
            });
            let js = &life.world.js;
            let publish = js.publish_with("Q", &subject(consumer), headers.as_bytes(), "x");
            publishes.push((publish.map_err(|e| e.to_string())?, consumer, id));
        }
        for (publish, consumer, id) in publishes {
            let outcome = life.world.drive(publish).await;
            self.note(format_args!("published to {consumer} with {id:?}: {outcome:?}"));
            match outcome {
                Some(Ok(stored)) => match id {
                    Some(id) if stored.duplicate => self.model.duplicate(stored.seq, id)?,
                    _ => self.model.stored(stored.seq, consumer, id, now)?,
                },
                Some(Err(PublishError::Refused(error))) if !self.disk.is_dead() => {
                    self.model.refused().map_err(|why| format!("{why}: {error}"))?;
                }
                _ if self.disk.is_dead() => {}
                Some(Err(error)) => return Err(format!("a publish fails: {error}")),
                None => return Err("a publish has no outcome".into()),
            }
        }
        Ok(())
    }

    /// Fetches, and looks whether what must be delivered was.
    async fn fetch(&mut self, life: &mut Life, n: usize) -> Result<(), String> {
        if self.rng.random_bool(0.1) {
            // Nobody has looked at the clock since.
            self.clock
                .advance(Duration::from_millis(self.rng.random_range(1..1500)));
            let now = self.now();
            self.model.age(now);
        }
        let expected = self.model.deliverable(n, self.now());
        let others = life.waiting.iter().any(|waiting| waiting.consumer == n);
        let options = FetchOptions::new(self.rng.random_range(1..4)).no_wait();
        let got = life.world.drive(life.consumers[n].fetch_with(&options)).await;
        let dead = self.disk.is_dead();
        match got {
            Some(Ok(got)) => {
                if let Some(seq) = expected.filter(|_| got.is_empty() && !dead && !others) {
                    let why = life.world.explain(n).await;
                    return Err(format!("{seq} is not delivered to a fetch: {why}"));
                }
                self.got(life, n, got)
            }
            _ if dead => {
                self.model.perhaps_delivered(n);
                Ok(())
            }
            Some(Err(error)) => Err(format!("a fetch fails: {error}")),
            None => Err("a fetch has no end".into()),
        }
    }

    async fn settle(&mut self, life: &mut Life) -> Result<(), String> {
        if life.hand.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let at = self.rng.random_range(0..life.hand.len());
        let (consumer, delivery) = life.hand.swap_remove(at);
        let seq = delivery.stream_sequence;
        let how = self.rng.random_range(0..10);
        self.note(format_args!("{seq} is answered by {how}"));
        match how {
            0..4 => {
                // Whatever comes of it, it may count.
                self.model.settled(seq);
                match life.world.drive(delivery.double_ack()).await {
                    Some(Ok(())) => {
                        self.model.gone(seq);
                        let live = life.world.drive(life.world.js.get_message("Q", seq)).await;
                        if !matches!(live, Some(Ok(None))) {
                            return Err(format!("{seq} is confirmed and still there: {live:?}"));
                        }
                    }
                    _ if self.disk.is_dead() => {}
                    other => return Err(format!("an ack of {seq} is not confirmed: {other:?}")),
                }
            }
            4..6 => {
                delivery.ack().map_err(|e| e.to_string())?;
                self.model.settled(seq);
                life.acks.push((seq, now));
            }
            6 => {
                delivery.term("enough").map_err(|e| e.to_string())?;
                self.model.settled(seq);
                life.acks.push((seq, now));
            }
            7 => {
                delivery.nak(None).map_err(|e| e.to_string())?;
                self.model.postponed(seq, now, now, true);
            }
            8 => {
                let delay = Duration::from_millis(self.rng.random_range(1..NAK_DELAY.as_millis() as u64));
                delivery.nak(Some(delay)).map_err(|e| e.to_string())?;
                self.model.postponed(seq, now, now + delay, true);
            }
            _ => {
                delivery.progress().map_err(|e| e.to_string())?;
                self.model.postponed(seq, now, now + ACK_WAIT, false);
                life.hand.push((consumer, delivery));
            }
        }
        Ok(())
    }

    async fn purge(&mut self, life: &mut Life) -> Result<(), String> {
        let n = self.rng.random_range(0..self.consumers);
        let consumer = self.rng.random_bool(0.6).then_some(n);
        let keep = self.rng.random_range(0..3);
        let request = PurgeRequest {
            filter: consumer.map_or(String::new(), subject),
            keep,
            ..PurgeRequest::default()
        };
        let purged = life.world.drive(life.world.js.purge_stream("Q", request)).await;
        let confirmed = matches!(purged, Some(Ok(_)));
        self.note(format_args!("purge of {consumer:?} but {keep}: {purged:?}"));
        if !confirmed && !self.disk.is_dead() {
            return Err(format!("a purge fails: {purged:?}"));
        }
        self.model.purged(consumer, keep as usize, confirmed);
        Ok(())
    }

    async fn delete(&mut self, life: &mut Life) -> Result<(), String> {
        let seq = self.rng.random_range(1..=self.model.last().max(1));
        let deleted = life.world.drive(life.world.js.delete_message("Q", seq)).await;
        self.note(format_args!("delete of {seq}: {deleted:?}"));
        match deleted {
            Some(Ok(())) => self.model.gone(seq),
            _ if self.disk.is_dead() => self.model.perhaps(seq),
            other if self.model.is_there(seq) => return Err(format!("{seq} is not deleted: {other:?}")),
            _ => {}
        }
        Ok(())
    }

    /// A consumer is deleted and another is made of its name.
    async fn make_again(&mut self, life: &mut Life, n: usize) -> Result<(), String> {
        self.note(format_args!("consumer {n} is made again"));
        self.unsure.push(n);
        life.waiting.retain(|waiting| waiting.consumer != n);
        life.hand.retain(|(consumer, _)| *consumer != n);
        self.model.consumer_deleted(n);
        let js = &life.world.js;
        let deleted = life.world.drive(js.delete_consumer("Q", &format!("C{n}"))).await;
        if !self.disk.is_dead() {
            said("delete consumer", deleted)?;
        }
        let made = life
            .world
            .drive(js.create_consumer("Q", self.consumer_config(n)))
            .await;
        if !self.disk.is_dead() {
            said("create consumer", made)?;
            let found = life.world.drive(js.consumer("Q", &format!("C{n}"))).await;
            life.consumers[n] = said("find", found)?;
            self.unsure.retain(|unsure| *unsure != n);
        }
        Ok(())
    }

    /// What consumers say of themselves is within bounds.
    async fn bounds(&mut self, life: &mut Life) -> Result<(), String> {
        for consumer in &life.consumers {
            match life.world.drive(consumer.info()).await {
                Some(Ok(info)) if info.num_ack_pending > self.model.rules.max_ack_pending as u64 => {
                    return Err(format!("{} in hand, more than may be", info.num_ack_pending));
                }
                Some(Ok(_)) => {}
                _ if self.disk.is_dead() => {}
                other => return Err(format!("no info: {other:?}")),
            }
        }
        Ok(())
    }

    /// Everything is worked off: all that is there is delivered in the end, and nothing stays in hand.
    async fn finish(&mut self, life: &mut Life) -> Result<(), String> {
        self.rest(life).await?;
        life.waiting.clear();
        life.hand.clear();
        for _ in 0..5000 {
            self.pass(life, ACK_WAIT * 3).await?;
            let mut idle = true;
            for n in 0..self.consumers {
                let options = FetchOptions::new(10).no_wait();
                let got = life.world.drive(life.consumers[n].fetch_with(&options)).await;
                for delivery in said("fetch", got)? {
                    idle = false;
                    let seq = delivery.stream_sequence;
                    self.model.delivered(n, seq, self.now())?;
                    said("ack", life.world.drive(delivery.double_ack()).await)?;
                    self.model.gone(seq);
                }
            }
            if idle {
                break;
            }
        }
        for consumer in &life.consumers {
            let info = said("info", life.world.drive(consumer.info()).await)?;
            if info.num_ack_pending != 0 || info.num_pending != 0 {
                return Err(format!("something is left: {info:?}"));
            }
        }
        let reader = life.world.js.reader("Q").map_err(|e| e.to_string())?;
        let mut left = (1..=self.model.last()).filter(|seq| reader.subject_of(*seq).is_some());
        if let Some(seq) = left.find(|seq| !self.model.may_be_left(*seq)) {
            return Err(format!("{seq} is left, and nobody gets it"));
        }
        self.rest(life).await
    }
}
