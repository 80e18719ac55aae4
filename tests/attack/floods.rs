//! H3 to H6: endless frames of one kind, sent as fast as the pod reads them, on four connections.
//! Half of them read the answers. A connection that the pod closes is opened again.

use std::time::Duration;

use crate::foe::{FLOOD_BYTES, Foes, Reading};
use crate::messages::message;
use crate::neighbour::Values;
use crate::scene::{Plan, Scene};
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, begun, block, field, frame, settings,
};
use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// A kind of flood.
struct Flood {
    name: &'static str,
    attack: &'static str,
    /// Bytes sent before the flood.
    first: Vec<u8>,
    /// Whether the pod has to close the connection.
    is_ended: bool,
}

fn of(name: &'static str, attack: &'static str) -> Flood {
    Flood { name, attack, first: Vec::new(), is_ended: true }
}

/// The identifier of the `n`th stream, after the first few.
fn stream(n: u32) -> u32 {
    2 * n + 1_001
}

impl Flood {
    fn after(self, first: Vec<u8>) -> Self {
        Self { first, ..self }
    }

    /// Marks the flood as cheap enough that the pod may absorb it instead of closing the
    /// connection.
    fn absorbed(self) -> Self {
        Self { is_ended: false, ..self }
    }

    async fn of_parts(self, part: impl Fn(u32) -> Vec<u8>) {
        let scene = Scene::start(Plan::new(self.name, self.attack)).await;
        let attacked = scene.attack(async |foes, _| {
            let client = async |foes: &Foes, nth: usize| {
                let reading =
                    if nth.is_multiple_of(2) { Reading::Frames } else { Reading::Nothing };
                let Some(mut foe) = foes.greet(foes.grpc, &[], reading).await else { return };
                if foe.send(&self.first).await {
                    foe.flood(&part).await;
                }
            };
            foes.crowd(4, client).await;
        });
        let mut row = attacked.await.row;
        let refused = row.refused();
        row.holds(!self.is_ended || refused > 0, "no connection was ended");
        row.end();
    }

    async fn of_one(self, one: Vec<u8>) {
        let many = one.repeat(FLOOD_BYTES.div_ceil(one.len()));
        self.of_parts(|_| many.clone()).await;
    }
}

/// Ended or absorbed: an honest Envoy whose calls time out looks almost the same (`impatient.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn h3_calls_that_are_reset_at_once_harm_no_other_client() {
    let reset = |n| [begun(stream(n)), frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8])].concat();
    of("H3", "rapid reset (CVE-2023-44487)").absorbed().of_parts(reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_calls_that_have_the_pod_reset_them_end_their_connection() {
    let part = |n| [begun(stream(n)), frame(WINDOW_UPDATE, 0, stream(n), &[0; 4])].concat();
    of("H4", "MadeYouReset (CVE-2025-8671)").of_parts(part).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h5a_continuations_without_end_end_their_connection() {
    let half = frame(HEADERS, 0, 1, &block(SHOULD_RATE_LIMIT));
    let more = frame(CONTINUATION, 0, 1, &field("x-any", &"v".repeat(100)).repeat(100));
    of("H5a", "CONTINUATION without end").after(half).of_one(more).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6a_a_flood_of_settings_ends_its_connection() {
    of("H6a", "SETTINGS").of_one(frame(SETTINGS, 0, 0, &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6b_a_flood_of_pings_ends_its_connection() {
    of("H6b", "PING").of_one(frame(PING, 0, 0, &[7; 8])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6c_a_flood_of_priorities_is_absorbed() {
    let part = |n| frame(PRIORITY, 0, stream(n), &[0; 5]);
    of("H6c", "PRIORITY").absorbed().of_parts(part).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6d_a_flood_of_empty_data_ends_its_connection() {
    of("H6d", "empty DATA").after(begun(1)).of_one(frame(DATA, 0, 1, &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6e_a_flood_of_window_updates_is_absorbed() {
    let room = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    of("H6e", "WINDOW_UPDATE").absorbed().after(begun(1)).of_one(room).await;
}

/// Each frame changes the window of every open stream.
#[tokio::test(flavor = "multi_thread")]
async fn h6f_settings_that_move_the_windows_of_many_streams_end_their_connection() {
    let hundred: Vec<u8> = (0..100).flat_map(|n| begun(2 * n + 1)).collect();
    let window = |size| settings(&[(INITIAL_WINDOW_SIZE, size)]);
    let both = [window(60_000), window(60_001)].concat();
    of("H6f", "SETTINGS of windows with 100 calls").after(hundred).of_one(both).await;
}

/// Whole calls, more than a connection may have: the pod has to refuse the excess cheaply.
#[tokio::test(flavor = "multi_thread")]
async fn h6g_more_calls_than_streams_harm_no_other_client() {
    let body = framed(&message("plenty", "flood"));
    let part = |n| [begun(stream(n)), frame(DATA, END_STREAM, stream(n), &body)].concat();
    of("H6g", "whole calls without end").absorbed().of_parts(part).await;
}

/// The same on the port for probes.
#[tokio::test(flavor = "multi_thread")]
async fn h6h_floods_on_port_leave_probes_alone() {
    let scene = Scene::start(Plan::new("H6h", "SETTINGS, PING and resets on PORT")).await;
    let get = |n| {
        let head = frame(HEADERS, END_HEADERS, stream(n), &block("/json"));
        [head, frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8])].concat()
    };
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let Some(mut foe) = foes.greet(foes.http, &[], Reading::Frames).await else { return };
            match nth {
                0 => foe.flood(|_| frame(SETTINGS, 0, 0, &[]).repeat(64)).await,
                1 => foe.flood(|_| frame(PING, 0, 0, &[7; 8]).repeat(64)).await,
                _ => foe.flood(get).await,
            }
        };
        foes.crowd(3, client).await;
    });
    attacked.await.row.end();
}

/// More connections than cores, some of which come while the attack lasts.
#[tokio::test(flavor = "multi_thread")]
async fn h6j_calls_without_end_on_every_core_harm_no_other_client() {
    let scene = Scene::start(Plan::new("H6j", "whole calls without end on 8 connections")).await;
    let body = framed(&message("plenty", "flood"));
    let part = |n| [begun(stream(n)), frame(DATA, END_STREAM, stream(n), &body)].concat();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            tokio::time::sleep(Duration::from_millis(100) * u32::try_from(nth).unwrap_or(0)).await;
            let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await else { return };
            foe.flood(&part).await;
        };
        foes.crowd(8, client).await;
    });
    attacked.await.row.end();
}

/// The thread of pages is busy, and the leases that the neighbour waits for are of another thread.
#[tokio::test(flavor = "multi_thread")]
async fn h6i_floods_on_the_debug_port_delay_no_lease() {
    let plan = Plan::new("H6i", "SETTINGS, PING and pages on the debug port");
    let scene = Scene::start(Plan { values: Values::New, ..plan }).await;
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let greeted = foes.greet(foes.debug, &[], Reading::Frames).await;
            let Some(mut foe) = greeted else { return };
            let page = |n| frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block("/metrics"));
            match nth {
                0 => foe.flood(|_| frame(SETTINGS, 0, 0, &[]).repeat(64)).await,
                1 => foe.flood(|_| frame(PING, 0, 0, &[7; 8]).repeat(64)).await,
                _ => foe.flood(page).await,
            }
        };
        foes.crowd(4, client).await;
    });
    attacked.await.row.end();
}
