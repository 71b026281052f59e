//! The protocol's bytes out of WebSocket frames.

use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc::Sender;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::ControlFrame;
use super::deflate::inflate;

/// Bytes read from the transport at a time.
const READ_BYTES: usize = 16 << 10;
/// Longest body of a control frame.
const CONTROL_BYTES_MAX: u64 = 125;

/// Framing faults, with the text of the close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Mask,
    Frame,
    TooBig,
}

/// A frame whose payload is being read.
#[derive(Debug)]
struct Frame {
    opcode: OpCode,
    mask: Option<[u8; 4]>,
    last: bool,
    /// Payload bytes that are still to come.
    left: u64,
    /// Payload bytes seen, for the mask's phase.
    seen: usize,
    /// Body of a control frame so far.
    body: Vec<u8>,
}

/// See the module's page.
pub(super) struct Reader<R> {
    transport: R,
    /// Bytes from the transport that are not looked at yet.
    raw: Vec<u8>,
    /// Protocol bytes that wait for the connection.
    ready: Vec<u8>,
    ready_at: usize,
    frame: Option<Frame>,
    /// A data message has begun and not ended.
    in_message: bool,
    /// The message is compressed: its payload so far.
    packed: Option<Vec<u8>>,
    controls: Sender<ControlFrame>,
    compress: bool,
    demands_mask: bool,
    message_max: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A reader of `transport`, of which `rest` was read already.
    pub(super) fn new(
        transport: R,
        rest: Vec<u8>,
        controls: Sender<ControlFrame>,
        compress: bool,
        demands_mask: bool,
        message_max: usize,
    ) -> Self {
        Self {
            transport,
            raw: rest,
            ready: Vec::new(),
            ready_at: 0,
            frame: None,
            in_message: false,
            packed: None,
            controls,
            compress,
            demands_mask,
            message_max,
            ended: false,
        }
    }

    /// Digests what was read; stops when bytes are ready or more are needed.
    fn digest(&mut self) -> Result<(), Fault> {
        let mut at = 0;
        while !self.ended {
            let Some(frame) = &mut self.frame else {
                let mut cursor = Cursor::new(&self.raw[at..]);
                let Some((header, length)) = FrameHeader::parse(&mut cursor).map_err(|_| Fault::Frame)?
                else {
                    break;
                };
                at += usize::try_from(cursor.position()).map_err(|_| Fault::Frame)?;
                self.begin(&header, length)?;
                continue;
            };
            let here = usize::try_from(frame.left)
                .unwrap_or(usize::MAX)
                .min(self.raw.len() - at);
            let payload = &mut self.raw[at..at + here];
            if let Some(mask) = frame.mask {
                for (n, byte) in payload.iter_mut().enumerate() {
                    *byte ^= mask[(frame.seen + n) & 3];
                }
            }
            at += here;
            frame.seen += here;
            frame.left -= here as u64;
            let whole = frame.left == 0;
            match (frame.opcode, &mut self.packed) {
                (OpCode::Control(_), _) => frame.body.extend_from_slice(payload),
                (OpCode::Data(_), Some(packed)) => {
                    packed.extend_from_slice(payload);
                    if packed.len() > self.message_max {
                        return Err(Fault::TooBig);
                    }
                }
                (OpCode::Data(_), None) => self.ready.extend_from_slice(payload),
            }
            if !whole {
                break;
            }
            self.end()?;
        }
        self.raw.drain(..at);
        Ok(())
    }

    fn begin(&mut self, header: &FrameHeader, length: u64) -> Result<(), Fault> {
        if header.mask.is_none() && self.demands_mask {
            return Err(Fault::Mask);
        }
        if header.rsv2 || header.rsv3 {
            return Err(Fault::Frame);
        }
        match header.opcode {
            OpCode::Control(Control::Reserved(_)) | OpCode::Data(Data::Reserved(_)) => {
                return Err(Fault::Frame);
            }
            OpCode::Control(_) if length > CONTROL_BYTES_MAX || !header.is_final || header.rsv1 => {
                return Err(Fault::Frame);
            }
            OpCode::Data(Data::Continue) if !self.in_message || header.rsv1 => return Err(Fault::Frame),
            OpCode::Data(Data::Text | Data::Binary) => {
                if self.in_message || (header.rsv1 && !self.compress) {
                    return Err(Fault::Frame);
                }
                self.in_message = true;
                self.packed = header.rsv1.then(Vec::new);
            }
            _ => {}
        }
        self.frame = Some(Frame {
            opcode: header.opcode,
            mask: header.mask,
            last: header.is_final,
            left: length,
            seen: 0,
            body: Vec::new(),
        });
        Ok(())
    }

    /// A frame is whole.
    fn end(&mut self) -> Result<(), Fault> {
        let Some(frame) = self.frame.take() else {
            return Ok(());
        };
        match frame.opcode {
            OpCode::Control(Control::Ping) => {
                let _ = self.controls.try_send(ControlFrame::Pong(frame.body));
            }
            OpCode::Control(Control::Close) => {
                let _ = self.controls.try_send(ControlFrame::Close(frame.body));
                self.ended = true;
            }
            OpCode::Control(_) => {}
            OpCode::Data(_) if frame.last => {
                self.in_message = false;
                if let Some(packed) = self.packed.take() {
                    let message = inflate(&packed, self.message_max).ok_or(Fault::TooBig)?;
                    self.ready.extend_from_slice(&message);
                }
            }
            OpCode::Data(_) => {}
        }
        Ok(())
    }

    /// Tells the client what is wrong and ends.
    fn fail(&mut self, fault: Fault) {
        let frame = match fault {
            Fault::Mask => ControlFrame::close(1002, "mask bit missing"),
            Fault::Frame => ControlFrame::close(1002, "invalid frame"),
            Fault::TooBig => ControlFrame::close(1009, "message too big"),
        };
        let _ = self.controls.try_send(frame);
        self.ended = true;
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Reader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.ready_at < this.ready.len() {
                let take = out.remaining().min(this.ready.len() - this.ready_at);
                out.put_slice(&this.ready[this.ready_at..this.ready_at + take]);
                this.ready_at += take;
                if this.ready_at == this.ready.len() {
                    this.ready = Vec::new();
                    this.ready_at = 0;
                }
                return Poll::Ready(Ok(()));
            }
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            if let Err(fault) = this.digest() {
                this.fail(fault);
                continue;
            }
            if !this.ready.is_empty() || this.ended {
                continue;
            }
            let mut buffer = [0_u8; READ_BYTES];
            let mut read = ReadBuf::new(&mut buffer);
            ready!(Pin::new(&mut this.transport).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                this.ended = true;
            }
            this.raw.extend_from_slice(read.filled());
        }
    }
}
