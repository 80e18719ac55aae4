//! A snapshot's bytes.

use super::{SNAPSHOT_BYTES_MAX, SnapshotError};
use crate::rules::Source;

/// How every snapshot begins, whatever its format.
const MAGIC: &[u8] = b"ratelease-rules ";

/// The format that is written here, and the only one that is read.
const FORMAT: u64 = 1;

/// Bytes of a length.
const LENGTH: usize = size_of::<u64>();

/// Of names and texts with their lengths, so that no two lists hash alike.
pub(in crate::control) fn digest(sources: &[Source]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in sources.iter().flat_map(parts) {
        hasher.update(&length(part));
        hasher.update(part);
    }
    hasher.finalize()
}

/// The bytes of a snapshot that holds `sources`.
pub(super) fn encode(sources: &[Source]) -> Result<Vec<u8>, SnapshotError> {
    let hash = digest(sources).to_hex();
    let head = [MAGIC, format!("{FORMAT} {hash}\n").as_bytes()].concat();
    let parts = || sources.iter().flat_map(parts);
    let body: usize = parts().map(|part| LENGTH + part.len()).sum();
    if head.len() + body > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::TooLarge);
    }
    let mut bytes = head;
    bytes.reserve_exact(body);
    for part in parts() {
        bytes.extend_from_slice(&length(part));
        bytes.extend_from_slice(part);
    }
    Ok(bytes)
}

/// The sources that a snapshot holds. Its format is looked at first: what follows may be anything
/// in another one.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Source>, SnapshotError> {
    let rest = match bytes.strip_prefix(MAGIC) {
        Some(rest) => rest,
        // Cut off within the magic itself.
        None if MAGIC.starts_with(bytes) => return Err(SnapshotError::Damaged),
        None => return Err(SnapshotError::Foreign),
    };
    let (format, rest) = until(rest, b' ').ok_or(SnapshotError::Damaged)?;
    match format.parse() {
        Ok(FORMAT) => {}
        Ok(format) => return Err(SnapshotError::Unknown(format, FORMAT)),
        Err(_) => return Err(SnapshotError::Damaged),
    }
    let (hash, body) = until(rest, b'\n').ok_or(SnapshotError::Damaged)?;
    let hash = blake3::Hash::from_hex(hash).map_err(|_| SnapshotError::Damaged)?;
    let sources = split(body).ok_or(SnapshotError::Damaged)?;
    if digest(&sources) == hash { Ok(sources) } else { Err(SnapshotError::Damaged) }
}

fn parts(source: &Source) -> [&[u8]; 2] {
    [source.name.as_bytes(), &source.text]
}

fn length(part: &[u8]) -> [u8; LENGTH] {
    (part.len() as u64).to_le_bytes()
}

/// The text before the first `mark`, and what follows that.
fn until(bytes: &[u8], mark: u8) -> Option<(&str, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == mark)?;
    Some((std::str::from_utf8(bytes.get(..at)?).ok()?, bytes.get(at + 1..)?))
}

fn split(mut body: &[u8]) -> Option<Vec<Source>> {
    let mut sources = Vec::new();
    while !body.is_empty() {
        let name = take(&mut body)?;
        let text = take(&mut body)?.to_vec();
        sources.push(Source { name: std::str::from_utf8(name).ok()?.to_owned(), text });
    }
    Some(sources)
}

/// Takes a length off `body`, and so many bytes. No length is believed before the bytes are there.
fn take<'b>(body: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = body.split_first_chunk::<LENGTH>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *body = rest;
    Some(part)
}
