//! The collections of scripts: which there are, and where each has its files.

use std::path::{Path, PathBuf};

/// Scripts that belong together, with their own list of sections, list of open scripts and coverage page.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// Its folder in `crates/testkit/parity`.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// The sections of its specification: lines of a number and a title.
    pub sections: &'static str,
    /// The file in `crates/testkit/parity` that lists the scripts that do not agree yet.
    pub open: &'static str,
    /// Its coverage page in `docs`.
    pub page: &'static str,
}

impl Collection {
    /// The core protocol and the server around it.
    pub const CORE: Self = Self {
        name: "core",
        title: "core",
        sections: include_str!("../../parity/sections.txt"),
        open: "open.txt",
        page: "parity-coverage.md",
    };

    /// Streams, consumers and what clients build on them.
    pub const JETSTREAM: Self = Self {
        name: "jetstream",
        title: "JetStream",
        sections: include_str!("../../parity/sections-jetstream.txt"),
        open: "open-jetstream.txt",
        page: "parity-coverage-jetstream.md",
    };

    /// All of them.
    pub const ALL: [Self; 2] = [Self::CORE, Self::JETSTREAM];

    /// The folder of its scripts.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        parity().join(self.name)
    }

    /// The file that lists the scripts that do not agree yet.
    #[must_use]
    pub fn open_file(&self) -> PathBuf {
        parity().join(self.open)
    }
}

/// The repository's folder of documents.
#[must_use]
pub fn docs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn parity() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("parity")
}
