//! Shrinks a script that fails: leaves out items as long as the rest still fails in the same way.

use super::play;
use super::script::{Event, Script};

/// The largest number of runs to shrink one script.
const RUNS_MAX: usize = 3_000;

/// Shrinks a script that failed with `what`, and prints the items that are left and their story.
pub fn shrink_and_tell(script: &Script, what: &str) {
    let mut shrunk = script.clone();
    let mut runs = 0;
    let mut chunk = shrunk.items.len().div_ceil(2);
    loop {
        let before = shrunk.items.len();
        let mut at = 0;
        while at < shrunk.items.len() && runs < RUNS_MAX {
            let mut fewer = shrunk.clone();
            let end = (at + chunk).min(fewer.items.len());
            fewer.items.drain(at..end);
            runs += 1;
            match play(&fewer, false) {
                Err(wrong) if kind(&wrong) == kind(what) => shrunk = fewer,
                _ => at += chunk,
            }
        }
        if runs >= RUNS_MAX || chunk == 1 && shrunk.items.len() == before {
            break;
        }
        chunk = if chunk > 1 { chunk.div_ceil(2) } else { 1 };
    }
    for simpler in simplifications() {
        for at in 0..shrunk.items.len() {
            let mut plain = shrunk.clone();
            simpler(&mut plain.items[at].event);
            if let Err(wrong) = play(&plain, false)
                && kind(&wrong) == kind(what)
            {
                shrunk = plain;
            }
        }
    }
    println!("{:?}, span {} ms", shrunk.terms, shrunk.span_ms);
    for item in &shrunk.items {
        println!("{:>7} ms  {:?}", item.at_ms, item.event);
    }
    println!("its story:");
    let wrong = play(&shrunk, true);
    println!("{wrong:?}");
}

/// Changes that each leave out a part of a request.
fn simplifications() -> [fn(&mut Event); 5] {
    let of_request: [fn(&mut Event); 5] = [
        |event| {
            if let Event::Request(plan) = event {
                plan.tokens *= u64::from(plan.slots == 0);
            }
        },
        |event| {
            if let Event::Request(plan) = event {
                plan.slots *= u64::from(plan.tokens == 0);
            }
        },
        |event| {
            if let Event::Request(plan) = event {
                plan.reset_ms = None;
            }
        },
        |event| {
            if let Event::Request(plan) = event {
                plan.ends.truncate(1);
            }
        },
        |event| {
            if let Event::Request(plan) = event {
                plan.second = None;
            }
        },
    ];
    of_request
}

/// The kind of a failure: its first words, without numbers.
fn kind(what: &str) -> String {
    let words = what.split(|c: char| !c.is_alphabetic()).filter(|word| word.len() > 2);
    words.take(6).collect::<Vec<_>>().join(" ")
}
