//! Why a connection ends, and how it is told.

use parking_lot::Mutex;

/// Why a connection was closed: shown in `connz` and disconnect events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CloseReason {
    ClientClosed,
    AuthenticationTimeout,
    AuthenticationFailure,
    TlsHandshake,
    SlowConsumerPendingBytes,
    SlowConsumerWriteDeadline,
    WriteError,
    ReadError,
    StaleConnection,
    ProtocolViolation,
    BadClientProtocolVersion,
    MaxConnectionsExceeded,
    MaxAccountConnectionsExceeded,
    MaxPayloadExceeded,
    MaxControlLineExceeded,
    MaxSubscriptionsExceeded,
    ServerShutdown,
    AuthenticationExpired,
    MissingAccount,
    CredentialsRevoked,
    NoRespondersRequiresHeaders,
    Kicked,
}

impl CloseReason {
    /// The words of nats-server for this reason.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ClientClosed => "Client Closed",
            Self::AuthenticationTimeout => "Authentication Timeout",
            Self::AuthenticationFailure => "Authentication Failure",
            Self::TlsHandshake => "TLS Handshake Failure",
            Self::SlowConsumerPendingBytes => "Slow Consumer (Pending Bytes)",
            Self::SlowConsumerWriteDeadline => "Slow Consumer (Write Deadline)",
            Self::WriteError => "Write Error",
            Self::ReadError => "Read Error",
            Self::StaleConnection => "Stale Connection",
            Self::ProtocolViolation => "Protocol Violation",
            Self::BadClientProtocolVersion => "Bad Client Protocol Version",
            Self::MaxConnectionsExceeded => "Maximum Connections Exceeded",
            Self::MaxAccountConnectionsExceeded => "Maximum Account Connections Exceeded",
            Self::MaxPayloadExceeded => "Maximum Message Payload Exceeded",
            Self::MaxControlLineExceeded => "Maximum Control Line Exceeded",
            Self::MaxSubscriptionsExceeded => "Maximum Subscriptions Exceeded",
            Self::ServerShutdown => "Server Shutdown",
            Self::AuthenticationExpired => "Authentication Expired",
            Self::MissingAccount => "Missing Account",
            Self::CredentialsRevoked => "Credentials Revoked",
            Self::NoRespondersRequiresHeaders => "No Responders Requires Headers",
            Self::Kicked => "Kicked",
        }
    }

    /// Whether what waits in the outbound buffer is still written before the socket closes.
    pub(crate) fn flushes(self) -> bool {
        !matches!(
            self,
            Self::SlowConsumerPendingBytes
                | Self::SlowConsumerWriteDeadline
                | Self::WriteError
                | Self::ReadError
                | Self::TlsHandshake
        )
    }

    /// Whether the client was closed because it did not keep up.
    pub(crate) fn is_slow_consumer(self) -> bool {
        matches!(
            self,
            Self::SlowConsumerPendingBytes | Self::SlowConsumerWriteDeadline
        )
    }
}

/// The one close of a connection: the first reason stays.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    reason: Mutex<Option<CloseReason>>,
}

impl Closing {
    /// Sets the reason; false when one was set before.
    pub(crate) fn begin(&self, reason: CloseReason) -> bool {
        let mut current = self.reason.lock();
        if current.is_some() {
            return false;
        }
        *current = Some(reason);
        true
    }

    /// The reason, once closing has begun.
    pub(crate) fn reason(&self) -> Option<CloseReason> {
        *self.reason.lock()
    }
}
