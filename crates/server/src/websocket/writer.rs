//! The protocol's bytes into WebSocket frames: the writer task of a WebSocket connection.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::Receiver;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::ControlFrame;
use super::deflate::deflate;
use crate::connection::{CloseReason, Connection, write_all};

/// Payload of one frame to a browser.
const BROWSER_FRAME_BYTES: usize = 4096;
/// Messages up to this size are not worth compressing.
const COMPRESS_BYTES_MIN: usize = 65;

/// How the server's bytes are put into frames.
#[derive(Debug)]
pub(crate) struct Framing {
    /// Compress what is large enough.
    pub(crate) compress: bool,
    /// Split into small frames.
    pub(crate) browser: bool,
    /// Control frames to send between data frames.
    pub(crate) controls: Receiver<ControlFrame>,
}

/// Writes for a WebSocket connection until it closes; the last frame is the close frame.
pub(crate) async fn run(
    connection: Arc<Connection>,
    mut transport: impl AsyncWrite + Unpin,
    mut framing: Framing,
) {
    let mut closed = false;
    let mut frames = Vec::new();
    loop {
        let closing = connection.closing.reason();
        while let Some(batch) = connection.outbound.take() {
            let message = batch.to_vec();
            frames.clear();
            append_message(&mut frames, &message, &framing);
            if !write_all(&connection, &mut transport, &frames).await {
                return;
            }
            connection
                .outbound
                .wrote(message.len(), &connection.server.memory);
        }
        while let Ok(control) = framing.controls.try_recv() {
            if !closed {
                closed = send_control(&connection, &mut transport, control).await;
            }
        }
        if let Some(reason) = closing {
            if !closed {
                send_control(
                    &connection,
                    &mut transport,
                    ControlFrame::close(code(reason), reason.as_str()),
                )
                .await;
            }
            let _ = transport.shutdown().await;
            return;
        }
        if transport.flush().await.is_err() {
            return connection.close(CloseReason::WriteError);
        }
        tokio::select! {
            () = connection.outbound.wait() => {}
            Some(control) = framing.controls.recv() => {
                if !closed {
                    closed = send_control(&connection, &mut transport, control).await;
                }
            }
        }
    }
}

/// Sends one control frame; true when it was the close frame.
async fn send_control(
    connection: &Connection,
    transport: &mut (impl AsyncWrite + Unpin),
    control: ControlFrame,
) -> bool {
    let (opcode, body, close) = match control {
        ControlFrame::Pong(body) => (Control::Pong, body, false),
        ControlFrame::Close(body) => (Control::Close, body, true),
    };
    let mut frame = Vec::with_capacity(body.len() + 2);
    append_frame(&mut frame, OpCode::Control(opcode), false, &body);
    if write_all(connection, transport, &frame).await && transport.flush().await.is_err() {
        connection.close(CloseReason::WriteError);
    }
    close
}

/// Appends one message; to a browser, as several small ones.
fn append_message(out: &mut Vec<u8>, message: &[u8], framing: &Framing) {
    let size = if framing.browser {
        BROWSER_FRAME_BYTES
    } else {
        message.len().max(1)
    };
    for part in message.chunks(size) {
        let packed = (framing.compress && part.len() >= COMPRESS_BYTES_MIN).then(|| deflate(part));
        append_frame(
            out,
            OpCode::Data(Data::Binary),
            packed.is_some(),
            packed.as_deref().unwrap_or(part),
        );
    }
}

/// Appends one frame, which is a whole message.
fn append_frame(out: &mut Vec<u8>, opcode: OpCode, compressed: bool, payload: &[u8]) {
    let header = FrameHeader {
        is_final: true,
        rsv1: compressed,
        rsv2: false,
        rsv3: false,
        opcode,
        mask: None,
    };
    // Writing into a vector does not fail.
    let _ = header.format(payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// The close code for a reason.
fn code(reason: CloseReason) -> u16 {
    match reason {
        CloseReason::ClientClosed => 1000,
        CloseReason::AuthenticationTimeout
        | CloseReason::AuthenticationFailure
        | CloseReason::AuthenticationExpired
        | CloseReason::CredentialsRevoked
        | CloseReason::MaxConnectionsExceeded
        | CloseReason::MaxAccountConnectionsExceeded
        | CloseReason::MaxSubscriptionsExceeded
        | CloseReason::MaxControlLineExceeded
        | CloseReason::SlowConsumerPendingBytes
        | CloseReason::SlowConsumerWriteDeadline
        | CloseReason::MissingAccount => 1008,
        CloseReason::ProtocolViolation | CloseReason::BadClientProtocolVersion => 1002,
        CloseReason::MaxPayloadExceeded => 1009,
        CloseReason::ServerShutdown
        | CloseReason::StaleConnection
        | CloseReason::ReadError
        | CloseReason::WriteError => 1001,
        CloseReason::NoRespondersRequiresHeaders | CloseReason::Kicked => 1011,
        CloseReason::TlsHandshake => 1015,
    }
}
