//! The limit on open files of this process: each connection is a file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One in this many of the files that may be open may be a connection to one Redis; the listeners
/// get most of the others.
const REDIS_DIVISOR: usize = 8;
/// One in this many may be a connection to any Redis, where there are more than two.
const ALL_REDIS_DIVISOR: usize = 4;
/// Minimum of that, however few files may be open: a seed and the masters of a small cluster.
const REDIS_CONNECTIONS_MIN: usize = 4;

/// Raises the limit as far as this process is allowed to. Many systems start processes with 1024,
/// for programs that call select(2), and allow hundreds of thousands.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit { current: limit.maximum, ..limit };
        // If this fails, the limit is unchanged, and all parts keep to it.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Maximum number of connections to one of `count` Redis under the present limit; at most `most`.
pub(super) fn redis_connections_max(most: usize, count: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let divisor = REDIS_DIVISOR.max(ALL_REDIS_DIVISOR * count);
    (files / divisor).clamp(REDIS_CONNECTIONS_MIN, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_may_be_and_a_part_of_it_is_for_redis() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(redis_connections_max(5, 1), 5);
        let all = redis_connections_max(usize::MAX, 1);
        assert!(all >= REDIS_CONNECTIONS_MIN);
        assert!(redis_connections_max(usize::MAX, 8) <= all.max(REDIS_CONNECTIONS_MIN));
    }
}
