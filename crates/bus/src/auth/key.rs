//! A worker's key pair and the file its seed lives in.

use std::fmt;
use std::io::Write;
use std::path::Path;

use nkeys::KeyPair;

use crate::error::{BusError, ErrorKind};

/// An Ed25519 key pair of one worker. The seed is shown by no `Debug` and read from no file that others can read.
pub struct WorkerKey(KeyPair);

impl fmt::Debug for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerKey").field(&self.public_key()).finish()
    }
}

impl WorkerKey {
    /// A new key.
    #[must_use]
    pub fn generate() -> Self {
        Self(KeyPair::new_user())
    }

    /// The key of a seed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the text is no seed.
    pub fn from_seed(seed: &str) -> crate::Result<Self> {
        match KeyPair::from_seed(seed.trim()) {
            Ok(pair) => Ok(Self(pair)),
            Err(error) => Err(BusError::new(ErrorKind::Config, "the text is no nkey seed").with(error)),
        }
    }

    /// What the broker is told.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    /// The secret.
    ///
    /// # Errors
    /// Never for keys of this type, which have one.
    pub fn seed(&self) -> crate::Result<String> {
        self.0
            .seed()
            .map_err(|error| BusError::new(ErrorKind::Config, "the key has no seed").with(error))
    }

    /// Reads the key of a file, or makes one and writes it, readable by its owner only.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when the file cannot be read or written, or others can read it.
    pub fn load_or_create(file: &Path) -> crate::Result<Self> {
        if file.exists() {
            return Self::load(file);
        }
        let key = Self::generate();
        key.save(file)?;
        Ok(key)
    }

    /// Reads the key of a file.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when the file cannot be read or others can read it; [`ErrorKind::Config`] when it holds no seed.
    pub fn load(file: &Path) -> crate::Result<Self> {
        let failed = |error: std::io::Error| {
            BusError::new(
                ErrorKind::Storage,
                format!("read the key file {}", file.display()),
            )
            .with(error)
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(file).map_err(failed)?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(BusError::new(
                    ErrorKind::Storage,
                    format!(
                        "the key file {} can be read by others; run chmod 600 on it",
                        file.display()
                    ),
                ));
            }
        }
        Self::from_seed(&std::fs::read_to_string(file).map_err(failed)?)
    }

    /// Writes the seed: to a file beside it first, synced, then renamed.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when that fails.
    pub fn save(&self, file: &Path) -> crate::Result<()> {
        let seed = self.seed()?;
        write_private(file, seed.as_bytes()).map_err(|error| {
            BusError::new(
                ErrorKind::Storage,
                format!("write the key file {}", file.display()),
            )
            .with(error)
        })
    }
}

/// Writes a file that only its owner can read, whole or not at all.
pub(crate) fn write_private(file: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = file.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut out = options.open(&beside)?;
    out.write_all(content)?;
    out.sync_all()?;
    drop(out);
    std::fs::rename(&beside, file)?;
    if let Some(folder) = folder {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_file_and_others_may_not_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/w1.seed");
        let key = WorkerKey::load_or_create(&file).unwrap();
        assert!(key.public_key().starts_with('U'));
        let again = WorkerKey::load_or_create(&file).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        assert!(!format!("{key:?}").contains(&key.seed().unwrap()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
            assert_eq!(WorkerKey::load(&file).unwrap_err().kind(), &ErrorKind::Storage);
        }
    }
}
