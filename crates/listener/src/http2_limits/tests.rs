//! Ledgers that process frames, in virtual time.

use parking_lot::Mutex;

use super::*;

fn head(kind: u8, flags: u8, stream: u32, length: u32) -> Vec<u8> {
    let [_, l0, l1, l2] = length.to_be_bytes();
    let head = [&[l0, l1, l2, kind, flags][..], &stream.to_be_bytes()].concat();
    [head, vec![0; length as usize]].concat()
}

struct Shown {
    http2: Http2Limits,
    clock: Clock,
    second: u32,
    seen: Seen,
}

/// The streams that an observer was told of.
#[derive(Default)]
struct Seen {
    is_watching: bool,
    reset: Mutex<Vec<u32>>,
    answered: Mutex<Vec<u32>>,
}

impl StreamObserver for Seen {
    fn is_watching(&self) -> bool {
        self.is_watching
    }

    fn note_reset(&self, stream: u32) {
        self.reset.lock().push(stream);
    }

    fn note_answered(&self, stream: u32) {
        self.answered.lock().push(stream);
    }
}

impl Shown {
    fn waiting(&self) -> usize {
        let PendingStreams { unfinished, unread, .. } = self.http2.waiting(0);
        unfinished + unread
    }

    fn new() -> Self {
        let clock = Clock::start();
        let http2 = Http2Limits::new(clock.now());
        Self { http2, clock, second: 0, seen: Seen::default() }
    }

    fn read(&mut self, frame: &[u8]) -> Result<(), LimitExceeded> {
        self.http2.note_read(frame, self.second, &self.clock, Some(&self.seen))
    }

    fn write(&mut self, frame: &[u8]) -> bool {
        self.http2.note_written(frame, self.second, Some(&self.seen))
    }

    /// A call, as Envoy sends it.
    fn asked(&mut self, stream: u32) -> Result<(), LimitExceeded> {
        self.read(&[head(HEADERS, 4, stream, 90), head(DATA, END_STREAM, stream, 50)].concat())
    }

    fn answered(&mut self, stream: u32) {
        let data = head(DATA, 0, stream, 20);
        self.write(&[head(HEADERS, 4, stream, 10), data].concat());
        self.write(&head(HEADERS, 5, stream, 4));
    }

    /// Number of `frame`s accepted, one after the other, out of a hundred thousand.
    fn taken(&mut self, frame: &[u8]) -> usize {
        (0..100_000).take_while(|_| self.read(frame).is_ok()).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_any_kind_exceeds_the_budget_at_once() {
    for (frame, most) in [
        (head(SETTINGS, 0, 0, 6), 32),
        (head(PING, 0, 0, 8), 256),
        (head(DATA, 0, 1, 0), 256),
        (head(0xbe, 0, 0, 100), 256),
        (head(PRIORITY, 0, 3, 5), 2048),
        (head(RST_STREAM, 0, 3, 4), 2048),
        (head(WINDOW_UPDATE, 0, 0, 4), 2048),
        (head(CONTINUATION, 0, 1, 0), 2048),
    ] {
        let mut shown = Shown::new();
        assert_eq!(shown.taken(&frame), most, "{frame:?}");
        tokio::time::advance(Duration::from_millis(500)).await;
        let more = shown.taken(&frame);
        let expected = most * 4 * 9 / 10..most * 4 * 11 / 10;
        assert!(expected.contains(&more), "half a second later: {more}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_calls_all_time_out_is_not_cut_off() {
    let mut shown = Shown::new();
    for round in 0..15 * 60_u32 {
        let streams = (0..1024).map(|n| 2 * (round * 1024 + n) + 1);
        for stream in streams.clone() {
            shown.asked(stream).unwrap();
        }
        assert_eq!(shown.http2.open(), 1024);
        tokio::time::advance(Duration::from_millis(67)).await;
        for stream in streams {
            shown.read(&head(RST_STREAM, 0, stream, 4)).unwrap();
        }
        shown.read(&head(PING, 0, 0, 8)).unwrap();
        assert_eq!((shown.http2.open(), shown.waiting()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn each_answered_call_earns_a_ping_and_a_window_update() {
    let mut shown = Shown::new();
    for n in 0..100_000 {
        let stream = 2 * n + 1;
        shown.asked(stream).unwrap();
        shown.answered(stream);
        shown.read(&head(PING, 0, 0, 8)).unwrap();
        shown.read(&head(WINDOW_UPDATE, 0, 0, 4)).unwrap();
        assert_eq!((shown.http2.open(), shown.waiting()), (0, 0));
    }
    assert!(shown.taken(&head(PING, 0, 0, 8)) <= (BUDGET_MAX / PING_COST) as usize);
}

#[tokio::test(start_paused = true)]
async fn streams_are_counted_until_they_end_on_either_side() {
    let mut shown = Shown::new();
    let (headers, whole) = (|id| head(HEADERS, 4, id, 9), |id| head(HEADERS, 5, id, 9));
    shown.read(&[headers(1), whole(3), headers(5), whole(7)].concat()).unwrap();
    assert_eq!((shown.http2.open(), shown.waiting()), (4, 2));
    shown.read(&whole(1)).unwrap(); // its trailers
    assert_eq!((shown.http2.open(), shown.waiting()), (4, 1));
    assert!(shown.write(&headers(3)), "part of an answer");
    assert!(shown.write(&head(DATA, 0, 3, 10)));
    assert!(!shown.write(&head(PING, ACK, 0, 8)));
    assert_eq!(shown.waiting(), 2);
    assert_eq!(shown.http2.waiting(1).unread, 0, "it may last");
    shown.write(&whole(3));
    shown.write(&head(RST_STREAM, 0, 5, 4));
    shown.read(&head(RST_STREAM, 0, 5, 4)).unwrap();
    shown.read(&head(RST_STREAM, 0, 7, 4)).unwrap();
    assert_eq!((shown.http2.open(), shown.waiting(), shown.http2.last_stream()), (1, 0, 7));
}

#[tokio::test(start_paused = true)]
async fn streams_without_progress_are_found() {
    let mut shown = Shown::new();
    for (begun, id) in (0..=UNFINISHED_FEW).zip((1..).step_by(2)) {
        shown.read(&head(HEADERS, 4, id, 9)).unwrap();
        assert_eq!(shown.http2.sweep(UNFINISHED_MAX, 0, 0), Ok(()));
        let late = shown.http2.sweep(UNFINISHED_MAX + 1, 0, 0);
        assert_eq!(late.is_err(), begun == UNFINISHED_FEW, "{begun}");
    }
    let mut shown = Shown::new();
    shown.asked(1).unwrap();
    shown.write(&head(HEADERS, 4, 1, 9));
    assert_eq!(shown.http2.sweep(QUIET_MAX, 0, 0), Ok(()));
    assert_eq!(shown.http2.sweep(QUIET_MAX + 1, 1, 0), Ok(()), "it is to last");
    assert!(shown.http2.sweep(QUIET_MAX + 1, 0, 0).is_err());
    shown.second = QUIET_MAX;
    shown.write(&head(DATA, 0, 1, 9));
    assert_eq!(shown.http2.sweep(QUIET_MAX + 1, 0, 0), Ok(()), "it is read");
}

#[tokio::test(start_paused = true)]
async fn requests_that_both_ends_keep_open_need_not_be_finished() {
    let mut shown = Shown::new();
    let unending = 4;
    for id in (1..).step_by(2).take(UNFINISHED_FEW + unending) {
        shown.read(&head(HEADERS, 4, id, 9)).unwrap();
    }
    let late = UNFINISHED_MAX + 1;
    assert_eq!(shown.http2.sweep(late, 0, unending), Ok(()));
    assert!(shown.http2.sweep(late, 0, unending - 1).is_err());
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_resets_whether_answered_or_not() {
    let mut shown = Shown::new();
    let reset = |id| head(RST_STREAM, 0, id, 4);
    for stream in [1, 3, 5] {
        shown.asked(stream).unwrap();
    }
    shown.answered(1);
    assert!(!shown.http2.take_resets());
    shown.read(&[reset(1), reset(3)].concat()).unwrap();
    assert!(shown.http2.take_resets());
    assert!(!shown.http2.take_resets(), "since the last call");
    shown.answered(5);
    shown.write(&head(HEADERS, 4, 7, 10)); // an answer that goes on
    assert_eq!(*shown.seen.reset.lock(), [1, 3]);
    assert_eq!(*shown.seen.answered.lock(), [1, 5]);
}

#[tokio::test(start_paused = true)]
async fn streams_above_the_limit_are_refused() {
    let mut shown = Shown::new();
    let begun = (0..10_000).take_while(|n| shown.read(&head(HEADERS, 4, 2 * n + 1, 9)).is_ok());
    assert_eq!(begun.count(), STREAMS_HELD_MAX);
}
