//! Actions of Envoys: connections, requests, ends and signs of life.

use ratelease_engine::limiter::owners::ClosedBy;

use super::{Action, FLUSH_MS, Scene};
use crate::ends::pod::Message;
use crate::ends::script::{By, EndPlan, PLACES, When};
use crate::ends::start::{AtEnvoy, Stage, Start};

impl Scene {
    /// Sends a message to the pod of a place, if there is one.
    pub fn send(&mut self, place: usize, message: Message) {
        let Some(pod) = &mut self.pods[place] else { return };
        if pod.gate.is_closed() || !pod.inbox.is_empty() {
            pod.inbox.push_back(message);
        } else {
            self.take(place, message);
        }
    }

    /// Opens the connections of an Envoy, if it has none.
    pub fn connect(&mut self, envoy: usize) {
        let place = envoy % PLACES;
        if !self.envoys[envoy].is_alive || self.pods[place].is_none() {
            return;
        }
        if self.envoys[envoy].conns.is_empty() {
            for _ in 0..2 {
                self.connected += 1;
                let conn = self.connected;
                self.envoys[envoy].conns.push(conn);
                self.send(place, Message::Open { conn, envoy });
            }
        }
        if self.script.terms.signs_ms.is_some() && !self.envoys[envoy].has_log {
            self.envoys[envoy].has_log = true;
            self.send(place, Message::OpenLog { envoy });
        }
    }

    pub fn close_all(&mut self, envoy: usize, by: ClosedBy) {
        if std::mem::take(&mut self.envoys[envoy].has_log) {
            self.send(envoy % PLACES, Message::CloseLog { envoy, by });
        }
        for conn in std::mem::take(&mut self.envoys[envoy].conns) {
            self.close_one(envoy, conn, by);
        }
    }

    pub fn close_one(&mut self, envoy: usize, conn: u64, by: ClosedBy) {
        self.fail_waiting(envoy, |start| start.conn == conn && !start.is_written());
        self.send(envoy % PLACES, Message::Close { conn, by });
    }

    /// The calls of an Envoy that wait for their answers have failed.
    pub fn fail_waiting(&mut self, envoy: usize, is_lost: impl Fn(&Start) -> bool) {
        let waits = |start: &Start| {
            start.plan.envoy == envoy
                && start.envoy == AtEnvoy::Waits
                && start.conn > 0
                && is_lost(start)
        };
        let lost: Vec<_> = (0..self.starts.len()).filter(|at| waits(&self.starts[*at])).collect();
        lost.into_iter().for_each(|at| self.fail(at));
    }
}

impl Start {
    /// Whether the answer has reached the socket: of two answers, one.
    pub fn is_written(&self) -> bool {
        self.stage == Stage::Answered && self.plan.cost % 2 == 1
    }
}

// === A request at its Envoy ===

impl Scene {
    pub fn arrive(&mut self, at: usize) {
        let now = self.now();
        let (envoy, reset_ms) = (self.starts[at].plan.envoy, self.starts[at].plan.reset_ms);
        let first = self.starts[at].other.filter(|_| self.starts[at].is_second);
        let is_over = |at: usize| !matches!(self.starts[at].envoy, AtEnvoy::Runs | AtEnvoy::RunsOn);
        if !self.envoys[envoy].is_alive || first.is_some_and(is_over) {
            return;
        }
        self.connect(envoy);
        let Some(conn) = self.envoys[envoy].conns.get(at % 2).or(self.envoys[envoy].conns.first())
        else {
            return self.fail(at);
        };
        let conn = *conn;
        self.starts[at].conn = conn;
        if reset_ms == Some(0) {
            return self.fail(at); // it is read with its reset, and not decided
        }
        if let Some(ms) = reset_ms {
            self.plan(now + ms, Action::Reset(at));
        }
        self.send(envoy % PLACES, Message::Start { at, conn });
    }

    /// Fails a request that gets no answer.
    pub fn fail(&mut self, at: usize) {
        let (now, start) = (self.now(), &mut self.starts[at]);
        if start.envoy != AtEnvoy::Waits {
            return;
        }
        if !start.plan.runs_on {
            return self.end_at_envoy(at);
        }
        start.envoy = AtEnvoy::RunsOn;
        self.go_on(at, now);
    }

    /// A call has let its request pass: the next filter asks, or the request runs.
    fn go_on(&mut self, at: usize, now: u64) {
        let start = &self.starts[at];
        match start.other.filter(|_| !start.is_second) {
            Some(second) => self.plan(now, Action::Start(second)),
            None => self.plan(now + start.plan.runs_ms, Action::Over(at)),
        }
    }

    pub fn reset_stream(&mut self, at: usize) {
        let start = &self.starts[at];
        if start.is_read || !matches!(start.envoy, AtEnvoy::Waits | AtEnvoy::Over) {
            return;
        }
        let (place, was_over) = (start.plan.envoy % PLACES, start.envoy == AtEnvoy::Over);
        self.send(place, Message::Reset { at });
        if !was_over {
            self.fail(at);
        }
    }

    /// An Envoy has read the answer.
    pub fn read(&mut self, at: usize) {
        let (now, signs_ms) = (self.now(), self.script.terms.signs_ms);
        let start = &mut self.starts[at];
        start.is_read |= start.envoy != AtEnvoy::Dead && !start.is_reset;
        if start.envoy != AtEnvoy::Waits {
            return;
        }
        if start.denied_ms.is_some() {
            start.is_refused = true;
            return self.end_at_envoy(at);
        }
        start.envoy = AtEnvoy::Runs;
        start.sign_ms = now + signs_ms.unwrap_or(0);
        self.go_on(at, now);
    }

    /// The request is over: its ends follow.
    pub fn end_at_envoy(&mut self, at: usize) {
        let now = self.now();
        let start = &mut self.starts[at];
        if matches!(start.envoy, AtEnvoy::Dead | AtEnvoy::Over) {
            return;
        }
        start.envoy = AtEnvoy::Over;
        for end in start.plan.ends.clone() {
            if let When::AfterEnd(ms) = end.when {
                self.plan(now + ms, Action::End(at, end));
            }
        }
        if let Some(other) = self.starts[at].other
            && matches!(self.starts[other].envoy, AtEnvoy::Runs | AtEnvoy::RunsOn)
        {
            self.end_at_envoy(other);
        }
    }

    pub fn send_end(&mut self, at: usize, end: EndPlan) {
        let start = &mut self.starts[at];
        let envoy = start.plan.envoy;
        if !self.envoys[envoy].is_alive || start.envoy == AtEnvoy::Dead {
            return;
        }
        if !matches!(end.when, When::AfterEnd(_)) && start.envoy != AtEnvoy::Over {
            start.envoy = AtEnvoy::Over; // other ends have their own times
            let more: Vec<_> = { start.plan.ends.iter() }
                .filter_map(|end| match end.when {
                    When::AfterEnd(ms) => Some((ms, *end)),
                    _ => None,
                })
                .collect();
            let now = self.now();
            more.into_iter().for_each(|(ms, end)| self.plan(now + ms, Action::End(at, end)));
        }
        self.connect(envoy);
        let calls = [Some(at), self.starts[at].other];
        if end.by == By::Log && calls.into_iter().flatten().any(|at| self.starts[at].is_refused) {
            return self.send(envoy % PLACES, Message::Denied { at });
        }
        let place = (envoy + usize::from(end.is_elsewhere)) % PLACES;
        self.send(place, Message::End { at, end });
    }

    /// Sends the signs of life that are due.
    pub fn flush(&mut self, envoy: usize) {
        let now = self.now();
        self.plan(now + FLUSH_MS, Action::Flush(envoy));
        let Some(signs_ms) = self.script.terms.signs_ms else { return };
        if !self.envoys[envoy].is_alive || self.pods[envoy % PLACES].is_none() {
            return;
        }
        let mut of = Vec::new();
        for (at, start) in self.starts.iter_mut().enumerate() {
            let runs = matches!(start.envoy, AtEnvoy::Runs);
            if start.plan.envoy == envoy && runs && start.sign_ms <= now {
                start.sign_ms += signs_ms;
                of.push(at);
            }
        }
        if !of.is_empty() {
            self.shown.steps += 1;
            self.tell(|| format!("signs of {of:?}"));
            self.connect(envoy);
            self.send(envoy % PLACES, Message::Signs { envoy, of });
        }
    }
}
