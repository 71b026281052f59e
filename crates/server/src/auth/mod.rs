//! Who a client is and what it may do.
//!
//! Everything here is a pure function of options, credentials and the time given to it: no socket, no task, no clock,
//! no file. Connections call it when they read CONNECT, when a timer of [`Identity::expiry`] goes off, and after a
//! reload.
//!
//! | file | holds |
//! |---|---|
//! | [`authenticator`](Authenticator) | the order in which credentials are tried; reload |
//! | [`permissions`](Permissions) | the checks of every publish and subscription |
//! | [`reply_grants`](ReplyGrants) | the replies granted by `allow_responses` |
//! | [`credentials`](Credentials), [`identity`](Identity) | what goes in, what comes out |
//! | [`nkey`] | nonces, signatures, server ids |
//! | [`jwt`] | operator mode: users and accounts by signed claims |
//! | [`certificate`](PeerCertificate) | users named by TLS certificates, pins |

mod authenticator;
mod certificate;
mod checks;
mod credentials;
mod dn;
mod identity;
pub mod jwt;
pub mod nkey;
mod password;
mod permissions;
mod reply_grants;
mod users;

pub use authenticator::Authenticator;
pub use certificate::{CertificateError, PeerCertificate};
pub use credentials::{Attempt, Credentials, Secret};
pub use identity::{AuthFailure, Expires, Expiry, Identity, IdentityKind, Recheck};
pub use permissions::{DenyFilter, List, Permissions, PermissionsError};
pub use reply_grants::{GRANTS_MAX, ReplyGrants};
