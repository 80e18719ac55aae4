//! Text that is never shown, and files that hold such text.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A password or key. `Debug` shows only whether there is text, and there is no `Display`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

/// A file that holds a secret, such as a key of a mounted Kubernetes Secret. Its path is not
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile(PathBuf);

/// The largest size of a secret's file in bytes: passwords, keys and tokens are far shorter.
const FILE_BYTES_MAX: usize = 16 << 10;

// === impl Secret ===

impl Secret {
    /// The text itself, for the code that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there is any text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(empty)" } else { "Secret(hidden)" })
    }
}

// === impl SecretFile ===

impl SecretFile {
    /// The path, as given.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether the path is empty, which counts as not given.
    pub fn is_empty(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    /// Reads the secret. One line break at the end is removed, since editors and `echo` write one.
    ///
    /// # Errors
    /// The fault of the file, phrased to follow the words "the file"; contains nothing of its
    /// content.
    pub fn read(&self) -> Result<Secret, String> {
        let mut bytes = Vec::new();
        let read = File::open(&self.0)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("cannot be read: {error}"))?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(format!("has more than {FILE_BYTES_MAX} bytes"));
        }
        let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() { Err("is empty".to_owned()) } else { Ok(Secret::from(text)) }
    }
}

impl From<String> for SecretFile {
    fn from(path: String) -> Self {
        Self(path.into())
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretFile({})", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, content).unwrap();
        let file = SecretFile::from(path.display().to_string());
        file.read().map(|secret| secret.reveal().to_owned())
    }

    #[test]
    fn one_line_end_after_a_secret_is_not_of_it() {
        for (content, secret) in [
            ("pass", "pass"),
            ("pass\n", "pass"),
            ("pass\r\n", "pass"),
            ("pass\n\n", "pass\n"),
            (" pass ", " pass "),
        ] {
            assert_eq!(read(content.as_bytes()).as_deref(), Ok(secret), "{content:?}");
        }
    }

    #[test]
    fn a_file_that_holds_no_secret_is_a_fault_that_quotes_nothing_of_it() {
        for (content, fault) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"hunter2\xff", "is not UTF-8"),
            (&[b'x'; FILE_BYTES_MAX + 1], "has more than 16384 bytes"),
        ] {
            assert_eq!(read(content).unwrap_err(), fault);
        }
        let nowhere = SecretFile::from("/nonexistent/secret".to_owned());
        assert!(nowhere.read().unwrap_err().starts_with("cannot be read: No such file"));
    }
}
