//! What a running server does when signals arrive, the same for both ways to start it.

use windjet_server::Server;

use crate::signals::{Asked, Signals};

/// What only the way of starting knows how to do.
pub(crate) trait Housekeeping {
    /// Reads the configuration again and applies it.
    fn reload(&mut self, server: &Server) -> impl Future<Output = ()>;
    /// Opens the log file again.
    fn reopen_log(&mut self);
}

/// Obeys signals until the server's life is over: at SIGINT, at SIGTERM, or when lame duck mode has sent the last
/// client away. The server still runs when this returns; shutting it down is what comes next.
///
/// During lame duck mode SIGTERM does nothing, as the server is ending already.
pub(crate) async fn until_end(server: &Server, signals: &mut Signals, housekeeping: &mut impl Housekeeping) {
    let mut lame = false;
    let leave = server.lame_duck();
    tokio::pin!(leave);
    loop {
        let asked = tokio::select! {
            asked = signals.next() => asked,
            () = &mut leave, if lame => return,
        };
        tracing::info!("Trapped {:?} signal", asked.name());
        match asked {
            Asked::Interrupt => return,
            Asked::Terminate if !lame => return,
            Asked::Terminate => {}
            Asked::LameDuck => lame = true,
            Asked::Reload => housekeeping.reload(server).await,
            Asked::Reopen => housekeeping.reopen_log(),
        }
    }
}
