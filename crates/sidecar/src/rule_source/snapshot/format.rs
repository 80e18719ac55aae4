//! The byte format of a snapshot.

use std::borrow::Borrow;

use ratelease_rules::Source;

use super::pods::{DOMAINS_MAX, Pods, is_valid};
use super::{SNAPSHOT_BYTES_MAX, SnapshotError};

/// The first bytes of every snapshot, in any format.
const MAGIC: &[u8] = b"ratelease-rules ";

/// The first bytes of the pod counts.
const PODS_MAGIC: &[u8] = b"ratelease-pods ";

/// The format that is written. Format 1, without pod counts, can be read too.
const FORMAT: u64 = 2;

/// Size in bytes of a length.
const LENGTH_BYTES: usize = size_of::<u64>();

/// The content of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SnapshotContent {
    pub(super) sources: Vec<Source>,
    /// Pods of each domain; `None` if that part is damaged.
    pub(super) pods: Option<Pods>,
}

/// Hash of names and texts with their lengths, so that different lists hash differently.
pub(in crate::rule_source) fn digest<S: Borrow<Source>>(sources: &[S]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in sources.iter().flat_map(|source| parts(source.borrow())) {
        hasher.update(&length(part));
        hasher.update(part);
    }
    hasher.finalize()
}

/// Returns the bytes of a snapshot that holds `sources` and, if there is room left, `pods`.
pub(super) fn encode<S: Borrow<Source>>(
    sources: &[S],
    pods: &[(Box<str>, u32)],
) -> Result<Vec<u8>, SnapshotError> {
    let hash = digest(sources).to_hex();
    let parts = || sources.iter().flat_map(|source| parts(source.borrow()));
    let body: usize = parts().map(|part| LENGTH_BYTES + part.len()).sum();
    let mut bytes = [MAGIC, format!("{FORMAT} {hash} {body}\n").as_bytes()].concat();
    if bytes.len() + body > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::TooLarge);
    }
    let pods = encode_pods(pods);
    bytes.reserve_exact(body + pods.len());
    for part in parts() {
        bytes.extend_from_slice(&length(part));
        bytes.extend_from_slice(part);
    }
    if bytes.len() + pods.len() <= SNAPSHOT_BYTES_MAX {
        bytes.extend_from_slice(&pods);
    }
    Ok(bytes)
}

/// Decodes a snapshot. Checks the format first: the rest may be anything in another format.
pub(super) fn decode(bytes: &[u8]) -> Result<SnapshotContent, SnapshotError> {
    let rest = match bytes.strip_prefix(MAGIC) {
        Some(rest) => rest,
        // The file ends within the magic bytes.
        None if MAGIC.starts_with(bytes) => return Err(SnapshotError::Damaged),
        None => return Err(SnapshotError::NotASnapshot),
    };
    let (format, rest) = split_at_byte(rest, b' ').ok_or(SnapshotError::Damaged)?;
    let format: u64 = format.parse().map_err(|_| SnapshotError::Damaged)?;
    if !(1..=FORMAT).contains(&format) {
        return Err(SnapshotError::UnknownFormat(format, FORMAT));
    }
    let (head, rest) = split_at_byte(rest, b'\n').ok_or(SnapshotError::Damaged)?;
    let (hash, body, pods) = if format == 1 {
        (head, rest, Some(Pods::new()))
    } else {
        let (hash, body, pods) = split_sections(head, rest).ok_or(SnapshotError::Damaged)?;
        (hash, body, decode_pods(pods))
    };
    let hash = blake3::Hash::from_hex(hash).map_err(|_| SnapshotError::Damaged)?;
    let sources = split(body).ok_or(SnapshotError::Damaged)?;
    if digest(&sources) != hash {
        return Err(SnapshotError::Damaged);
    }
    Ok(SnapshotContent { sources, pods })
}

/// Splits a snapshot of format 2 into the hash in its `head`, the sources, whose length is in the
/// head, and the counts.
fn split_sections<'b>(head: &'b str, rest: &'b [u8]) -> Option<(&'b str, &'b [u8], &'b [u8])> {
    let (hash, length) = head.split_once(' ')?;
    let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
    let length = length.parse().ok().filter(|_| is_number)?;
    let (body, pods) = rest.split_at_checked(length)?;
    Some((hash, body, pods))
}

/// Encodes counts with a hash of their own, so that damaged counts are ignored. Values out of
/// bounds are left out.
fn encode_pods(pods: &[(Box<str>, u32)]) -> Vec<u8> {
    let mut body = Vec::new();
    let valid = pods.iter().filter(|(domain, count)| is_valid(domain, *count));
    for (domain, count) in valid.take(DOMAINS_MAX) {
        body.extend_from_slice(&length(domain.as_bytes()));
        body.extend_from_slice(domain.as_bytes());
        body.extend_from_slice(&count.to_le_bytes());
    }
    let hash = blake3::hash(&body).to_hex();
    [PODS_MAGIC, hash.as_bytes(), b"\n", &body].concat()
}

/// Decodes the counts in `section`, which may be empty; returns `None` if they are damaged or out
/// of bounds.
fn decode_pods(section: &[u8]) -> Option<Pods> {
    if section.is_empty() {
        return Some(Pods::new());
    }
    let (hash, mut body) = split_at_byte(section.strip_prefix(PODS_MAGIC)?, b'\n')?;
    if blake3::Hash::from_hex(hash).ok()? != blake3::hash(body) {
        return None;
    }
    let mut pods = Pods::new();
    while !body.is_empty() {
        let domain = std::str::from_utf8(take(&mut body)?).ok()?;
        let (count, rest) = body.split_first_chunk()?;
        let count = u32::from_le_bytes(*count);
        if !is_valid(domain, count) || pods.len() == DOMAINS_MAX {
            return None;
        }
        pods.push((domain.into(), count));
        body = rest;
    }
    Some(pods)
}

fn parts(source: &Source) -> [&[u8]; 2] {
    [source.name.as_bytes(), &source.text]
}

fn length(part: &[u8]) -> [u8; LENGTH_BYTES] {
    (part.len() as u64).to_le_bytes()
}

/// Splits `bytes` into the text before the first `mark` and the rest.
fn split_at_byte(bytes: &[u8], mark: u8) -> Option<(&str, &[u8])> {
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

/// Removes a length from the front of `body`, and then that many bytes. Returns `None` if they are
/// not there, so that a wrong length allocates nothing.
fn take<'b>(body: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = body.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *body = rest;
    Some(part)
}
