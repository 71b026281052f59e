//! The task of one connection: reads, decodes, applies, flushes, and closes.
//!
//! A plain socket is waited for before a buffer is taken, so that an idle connection holds none. One read is one turn:
//! all operations in it are applied, then everything they touched is flushed once. Two bounds keep a connection that
//! never pauses from holding up the others on its thread: a turn ends early when it has delivered much, and after
//! some work the task yields, so that the runtime looks at the other sockets before it goes on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, sleep_until, timeout};
use windjet_protocol::wire::Step;

use super::session::{Next, Session};
use super::{CloseReason, Connection, Flushed, buffers};
use crate::router::Turn;

/// Time that a closing connection is given to take its last bytes.
const LAST_FLUSH: Duration = Duration::from_millis(100);
/// Input after which the task lets others go first.
const YIELD_BYTES_MIN: usize = 16 << 10;
/// Deliveries after which a turn ends, whatever input is left: well under a millisecond of work.
const TURN_DELIVERIES_MAX: u64 = 16 << 10;
/// Partial input up to this size is kept in a buffer of its own size instead of a full read buffer.
const SMALL_REST: usize = 8 << 10;

/// A buffer grows for a large operation once it has less room than this.
const GROW_BELOW: usize = 16 << 10;
/// Least room for a read of a stream.
const STREAM_ROOM_MIN: usize = 2 << 10;

/// Where bytes come from.
pub(crate) enum Source {
    /// A plain socket.
    Socket(Arc<TcpStream>),
    /// The reading half of another transport, and the task that writes the other half.
    Stream {
        /// The reading half.
        reader: Box<dyn AsyncRead + Send + Unpin>,
        /// The writer task; it ends after the close.
        writer: JoinHandle<()>,
    },
}

impl Source {
    /// Waits for bytes and appends them to `input`. 0 means the end.
    ///
    /// Cancel safe: bytes are either in `input` or still in the transport.
    async fn fill(&mut self, input: &mut Input) -> io::Result<usize> {
        match self {
            Source::Socket(socket) => loop {
                socket.readable().await?;
                match socket.try_read_buf(input.space()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => input.relax(),
                    result => return result,
                }
            },
            Source::Stream { reader, .. } => {
                // The buffer waits with the read here, so it is only as large as the last reads were.
                let before = input.data.len();
                let read = reader.read_buf(&mut input.room()).await?;
                input.adapt(before, read);
                Ok(read)
            }
        }
    }
}

/// Bytes read and not yet consumed.
#[derive(Debug, Default)]
struct Input {
    data: Vec<u8>,
    /// Total bytes that the decoder asked for.
    want: usize,
    /// Bytes consumed since the task last let others go first.
    unyielded: usize,
    /// Room for the next read of a stream; 0 means the least.
    stream_room: usize,
}

impl Input {
    /// The buffer with room to read into.
    fn space(&mut self) -> &mut Vec<u8> {
        if self.data.capacity() < buffers::READ_BYTES {
            let mut fresh = buffers::take_read();
            fresh.extend_from_slice(&self.data);
            self.data = fresh;
        }
        self.grow();
        &mut self.data
    }

    /// Makes room for what is wanted, but at most for as much again as has arrived: an announced payload costs nothing.
    fn grow(&mut self) {
        let arrived = self.data.len().max(buffers::READ_BYTES);
        let room = self.want.saturating_sub(self.data.len()).clamp(1, arrived);
        // Not before the old room is nearly full: growing at every short read would copy the payload again and again.
        if self.data.capacity() - self.data.len() < room.min(GROW_BELOW) {
            self.data.reserve_exact(room);
        }
    }

    /// Room for the next read of a stream, which may wait long with it.
    fn room(&mut self) -> impl BufMut + '_ {
        let room = self.stream_room.max(STREAM_ROOM_MIN);
        if self.data.capacity() - self.data.len() < room {
            self.data.reserve(room);
        }
        (&mut self.data).limit(room)
    }

    /// Learns from a read of a stream how much room the next one needs.
    fn adapt(&mut self, before: usize, read: usize) {
        let room = self.stream_room.max(STREAM_ROOM_MIN);
        debug_assert_eq!(self.data.len(), before + read);
        if read == room {
            self.stream_room = (room * 2).min(buffers::READ_BYTES);
        } else if read < room / 4 {
            self.stream_room = room / 2;
        }
    }

    /// Drops consumed bytes; `want` is the total that the next operation needs.
    fn consume(&mut self, consumed: usize, want: usize) {
        self.data.drain(..consumed);
        self.want = want;
        self.unyielded += consumed;
        self.relax();
    }

    /// Gives up the large buffer when little or nothing is in it.
    fn relax(&mut self) {
        if self.data.len() <= SMALL_REST && self.data.capacity() > SMALL_REST {
            let small = self.data.as_slice().to_vec();
            buffers::give_read(std::mem::replace(&mut self.data, small));
        }
    }
}

/// Serves a connection until it closes, then cleans up after it.
pub(crate) async fn serve(mut session: Session, mut source: Source) {
    let connection = session.connection.clone();
    let mut guard = Guard {
        connection: connection.clone(),
        subscriptions: 0,
    };
    run(&mut session, &mut source).await;
    guard.subscriptions = connection.forget_all();
    last_flush(&connection, source).await;
}

async fn run(session: &mut Session, source: &mut Source) {
    let connection = session.connection.clone();
    let mut input = Input::default();
    let mut timer = Box::pin(sleep_until(session.timers.next().into()));
    loop {
        if timer.deadline() != session.timers.next().into() {
            timer.as_mut().reset(session.timers.next().into());
        }
        tokio::select! {
            biased;
            () = connection.wake.notified() => {
                for control in connection.take_controls() {
                    session.obey(control).await;
                }
            }
            read = source.fill(&mut input) => match read {
                Ok(0) => connection.close(CloseReason::ClientClosed),
                Ok(_) => digest(session, &connection, &mut input).await,
                Err(_) => connection.close(CloseReason::ReadError),
            },
            () = timer.as_mut() => session.tick(Instant::now()),
        }
        if connection.closing.reason().is_some() {
            return;
        }
    }
}

/// How the operations of a turn ended.
enum Ended {
    /// All whole operations are applied; the next one needs this many bytes in all.
    Drained { want: usize },
    /// As much was delivered as one turn may; more operations may be there.
    Full,
    /// A CONNECT is to be answered before anything else.
    Connect(Vec<u8>),
    /// The close has begun.
    Stop,
}

/// Applies all whole operations of the input: in one turn, unless a CONNECT or many deliveries divide it.
async fn digest(session: &mut Session, connection: &Arc<Connection>, input: &mut Input) {
    connection.touch(Instant::now());
    let mut at = 0;
    loop {
        let mut turn = session.begin(connection);
        let ended = apply(session, &input.data, &mut at, &mut turn);
        let pause = session.finish(turn);
        let drained = matches!(ended, Ended::Drained { .. });
        match ended {
            Ended::Drained { want } => input.consume(at, want),
            Ended::Full => input.unyielded = YIELD_BYTES_MIN,
            Ended::Connect(json) => session.connect(&json).await,
            Ended::Stop => return,
        }
        if let Some(pause) = pause {
            sleep(pause).await;
        } else if input.unyielded >= YIELD_BYTES_MIN {
            input.unyielded = 0;
            yield_now().await;
        }
        if drained || connection.closing.reason().is_some() {
            return;
        }
    }
}

/// Applies the operations of `data` from `at` on, which it advances.
fn apply(session: &mut Session, data: &[u8], at: &mut usize, turn: &mut Turn<'_>) -> Ended {
    while turn.out_msgs < TURN_DELIVERIES_MAX {
        let rest = &data[*at..];
        if rest.first().is_some_and(|&first| !session.admits(first, turn)) {
            return Ended::Stop;
        }
        match session.decoder.decode(rest) {
            Ok(Step::Op { op, consumed }) => {
                *at += consumed;
                match session.apply(op, turn) {
                    Next::Continue => {}
                    Next::Connect(json) => return Ended::Connect(json),
                    Next::Stop => return Ended::Stop,
                }
            }
            Ok(Step::Incomplete { want }) => return Ended::Drained { want },
            Err(error) => {
                session.refuse(&error, rest, turn);
                return Ended::Stop;
            }
        }
    }
    Ended::Full
}

/// Writes what is left within a short time and closes the socket.
async fn last_flush(connection: &Connection, source: Source) {
    let flushes = connection.closing.reason().is_some_and(CloseReason::flushes);
    match source {
        Source::Socket(socket) => {
            if flushes {
                let all = async {
                    while let Flushed::Blocked = connection.outbound.drain(&connection.server.memory) {
                        if socket.writable().await.is_err() {
                            return;
                        }
                    }
                };
                let _ = timeout(LAST_FLUSH, all).await;
            }
            let _ = socket2::SockRef::from(&*socket).shutdown(std::net::Shutdown::Both);
        }
        Source::Stream { mut writer, reader } => {
            connection.outbound.wake_writer();
            if timeout(LAST_FLUSH, &mut writer).await.is_err() {
                writer.abort();
            }
            drop(reader);
        }
    }
}

/// Tells the server that the connection is gone, however its task ends.
struct Guard {
    connection: Arc<Connection>,
    /// Subscriptions that were taken away already.
    subscriptions: usize,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.connection.close(CloseReason::ServerShutdown);
        let subscriptions = self.subscriptions + self.connection.forget_all();
        self.connection.discard_output();
        self.connection
            .server
            .client_gone(&self.connection, subscriptions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_payload_costs_no_memory_before_it_arrives() {
        let mut input = Input::default();
        input.space().extend_from_slice(b"PUB x 1000000\r\n");
        input.consume(0, 1_000_017);
        assert!(
            input.data.capacity() < 100,
            "a waiting client holds {} bytes",
            input.data.capacity()
        );
        assert!(input.space().capacity() <= 2 * buffers::READ_BYTES);
    }

    #[test]
    fn room_grows_with_what_has_arrived() {
        let mut input = Input::default();
        input.consume(0, 1_000_017);
        while input.data.len() < 1_000_017 {
            let arrived = input.data.len();
            let space = input.space();
            assert!(
                space.capacity() <= (2 * arrived).max(2 * buffers::READ_BYTES),
                "{arrived}"
            );
            let room = (space.capacity() - arrived).min(1_000_017 - arrived);
            space.extend(std::iter::repeat_n(b'x', room));
        }
    }

    #[test]
    fn a_payload_in_short_reads_is_not_copied_at_every_read() {
        let mut input = Input::default();
        input.consume(0, 1_000_017);
        let mut growths = 0;
        while input.data.len() < 1_000_017 {
            let before = input.data.capacity();
            let arrived = input.data.len();
            let space = input.space();
            growths += usize::from(space.capacity() != before);
            let read = 1_400.min(space.capacity() - arrived).min(1_000_017 - arrived);
            space.extend(std::iter::repeat_n(b'x', read));
        }
        assert!(growths <= 6, "{growths} growths");
    }

    #[test]
    fn a_quiet_stream_waits_with_little_room() {
        let mut input = Input::default();
        for _ in 0..10 {
            let before = input.data.len();
            let room = input.room().remaining_mut();
            input.data.extend(std::iter::repeat_n(b'x', room));
            input.adapt(before, room);
        }
        assert_eq!(input.stream_room, buffers::READ_BYTES);
        input.consume(input.data.len(), 0);
        for _ in 0..10 {
            let before = input.data.len();
            input.data.extend_from_slice(b"PING\r\n");
            input.adapt(before, 6);
            input.consume(6, 0);
        }
        assert_eq!(input.room().remaining_mut(), STREAM_ROOM_MIN);
        assert!(input.data.capacity() <= 2 * STREAM_ROOM_MIN);
    }
}
