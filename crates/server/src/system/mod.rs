//! The system account: requests that the server answers, and events that it publishes.
//!
//! Every account may ask a little about itself; the system account may ask about everything.

/// A service that every account has without configuring it: an import from the system account.
#[derive(Debug)]
pub(crate) struct AutomaticImport {
    /// What clients of the account publish to.
    pub(crate) local: &'static str,
    /// Where it stands in the system account; `{account}` stands for the account's name.
    pub(crate) remote: &'static str,
    /// Whether the service sees all about the requesting client.
    pub(crate) share: bool,
    /// Whether the system account has it too.
    pub(crate) in_system: bool,
}

/// The services that every account has.
pub(crate) const AUTOMATIC_IMPORTS: [AutomaticImport; 4] = [
    AutomaticImport {
        local: "$SYS.REQ.ACCOUNT.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.CONNZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.SERVER.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.CONNZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.ACCOUNT.PING.STATZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.STATZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.USER.INFO",
        remote: "$SYS.REQ.USER.{account}.INFO",
        share: true,
        in_system: true,
    },
];
