//! The nodes that a client knows, and which of them may be tried when.

use holdfast_api::{LeaderHint, Problem};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// How often the time for an attempt doubles at most.
const PATIENCE_DOUBLINGS_MAX: u32 = 2;

/// Most nodes that are remembered besides the given ones.
const LEARNED_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Endpoints {
    known: Vec<Endpoint>,
    /// Where the search goes on.
    cursor: usize,
    backoff: Backoff,
}

#[derive(Debug)]
struct Endpoint {
    address: String,
    /// From the options: never forgotten.
    given: bool,
    /// Failures since it was last useful.
    failures: u32,
    not_before: Option<Instant>,
    /// Its latest answer, or why it could not be asked.
    said: Option<String>,
    /// Its refusal to let this client in, if that was its last answer.
    denial: Option<Problem>,
}

/// Which node to try.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Now(String),
    /// None may be tried before this.
    At(Instant),
    /// There is none besides those excluded.
    None,
}

impl Endpoints {
    pub(crate) fn new(given: Vec<String>, backoff: Backoff) -> Self {
        let known = given.into_iter().map(|address| Endpoint::new(address, true)).collect();
        Endpoints { known, cursor: 0, backoff }
    }

    /// Takes over what a node says about its cluster: nodes learned before and
    /// no longer named are forgotten.
    pub(crate) fn learn(&mut self, nodes: &[LeaderHint]) {
        if nodes.is_empty() {
            return;
        }
        self.known.retain(|known| known.given || nodes.iter().any(|n| n.address == known.address));
        for node in nodes {
            self.learn_one(&node.address);
        }
        self.cursor = self.cursor.checked_rem(self.known.len()).unwrap_or(0);
    }

    /// Remembers one address, unless there are too many.
    pub(crate) fn learn_one(&mut self, address: &str) {
        let learned = self.known.iter().filter(|known| !known.given).count();
        if self.find(address).is_none() && learned < LEARNED_MAX {
            self.known.push(Endpoint::new(address.to_owned(), false));
        }
    }

    /// Whether there is any other than the one in use.
    pub(crate) fn has_several(&self) -> bool {
        self.known.len() > 1
    }

    /// When this node may be tried; none if it is not known.
    pub(crate) fn ready_at(&self, address: &str, now: Instant) -> Option<Instant> {
        let known = self.known.iter().find(|known| known.address == address)?;
        Some(known.not_before.map_or(now, |at| at.max(now)))
    }

    /// The next node in turn that may be tried now and is not excluded.
    pub(crate) fn next(&mut self, now: Instant, excluded: impl Fn(&str) -> bool) -> Next {
        let mut earliest: Option<Instant> = None;
        for step in 0..self.known.len() {
            let index = (self.cursor + step) % self.known.len();
            let known = &self.known[index];
            match known.not_before {
                _ if excluded(&known.address) => {}
                Some(at) if at > now => earliest = Some(earliest.map_or(at, |e| e.min(at))),
                _ => {
                    self.cursor = (index + 1) % self.known.len();
                    return Next::Now(known.address.clone());
                }
            }
        }
        earliest.map_or(Next::None, Next::At)
    }

    /// The node could not be asked, or its connection was lost. A first
    /// failure costs no pause.
    pub(crate) fn failed(&mut self, address: &str, why: String, now: Instant, random: f64) {
        let backoff = self.backoff;
        let Some(known) = self.find(address) else { return };
        known.said = Some(why);
        known.not_before =
            known.failures.checked_sub(1).map(|nth| now + backoff.pause(nth, random));
        known.failures = known.failures.saturating_add(1);
    }

    /// How many times the usual limit an attempt at a node may take: more after failures.
    /// A busy node accepts connections in turn, and a client that leaves the queue starts
    /// again at its end.
    pub(crate) fn patience(&self, address: &str) -> u32 {
        let known = self.known.iter().find(|known| known.address == address);
        1 << known.map_or(0, |known| known.failures.min(PATIENCE_DOUBLINGS_MAX))
    }

    /// Whether the last failure of a node was a refusal to let this client in.
    pub(crate) fn denied(&mut self, address: &str, denial: Option<Problem>) {
        if let Some(known) = self.find(address) {
            known.denial = denial;
        }
    }

    /// A refusal to let this client in, if each node was tried and at least one
    /// answered so. Each is to be tried anew after that.
    pub(crate) fn take_denial(&mut self) -> Option<Problem> {
        if self.known.iter().any(|known| known.failures == 0) {
            return None;
        }
        let denial = self.known.iter().find_map(|known| known.denial.clone())?;
        for known in &mut self.known {
            (known.failures, known.not_before, known.denial) = (0, None, None);
        }
        Some(denial)
    }

    /// The node answered, but that alone makes it of no use yet.
    pub(crate) fn said(&mut self, address: &str, what: String) {
        if let Some(known) = self.find(address) {
            known.said = Some(what);
        }
    }

    /// The node is being asked.
    pub(crate) fn asked(&mut self, address: &str) {
        if let Some(known) = self.find(address) {
            known.said.get_or_insert_with(|| "no answer yet".to_owned());
        }
    }

    /// The node was useful: its failures are forgotten.
    pub(crate) fn useful(&mut self, address: &str) {
        if let Some(known) = self.find(address) {
            known.failures = 0;
            known.not_before = None;
        }
    }

    /// What is known about each, for the error that lists them.
    pub(crate) fn tried(&self) -> Vec<(String, String)> {
        let entry = |known: &Endpoint| {
            let said = known.said.clone().unwrap_or_else(|| "not tried yet".to_owned());
            (known.address.clone(), said)
        };
        self.known.iter().map(entry).collect()
    }

    fn find(&mut self, address: &str) -> Option<&mut Endpoint> {
        self.known.iter_mut().find(|known| known.address == address)
    }
}

impl Endpoint {
    fn new(address: String, given: bool) -> Self {
        Endpoint { address, given, failures: 0, not_before: None, said: None, denial: None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_api::Code;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn three() -> Endpoints {
        let given = ["a:1", "b:1", "c:1"].map(str::to_owned).to_vec();
        Endpoints::new(given, Backoff::new(10 * MS, 500 * MS))
    }

    fn node(node: u64, address: &str) -> LeaderHint {
        LeaderHint { node, address: address.to_owned() }
    }

    fn now_at(address: &str) -> Next {
        Next::Now(address.to_owned())
    }

    #[test]
    fn nodes_are_tried_in_turn() {
        let (mut endpoints, now) = (three(), Instant::now());
        let turn: Vec<_> = (0..4).map(|_| endpoints.next(now, |_| false)).collect();
        assert_eq!(turn, ["a:1", "b:1", "c:1", "a:1"].map(now_at));
        assert_eq!(endpoints.next(now, |address| address == "b:1"), now_at("c:1"));
    }

    #[test]
    fn a_first_failure_costs_nothing_and_each_further_one_twice_as_much() {
        let mut endpoints = Endpoints::new(vec!["a:1".to_owned()], Backoff::new(10 * MS, 500 * MS));
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..4 {
            endpoints.failed("a:1", "refused".to_owned(), now, 1.0);
            pauses.push(endpoints.next(now, |_| false));
        }
        let at = |ms| Next::At(now + ms * MS);
        assert_eq!(pauses, [now_at("a:1"), at(10), at(20), at(40)]);
        endpoints.useful("a:1");
        assert_eq!(endpoints.next(now, |_| false), now_at("a:1"));
    }

    #[test]
    fn an_attempt_may_take_longer_after_failures_until_the_node_is_of_use() {
        let (mut endpoints, now) = (three(), Instant::now());
        let mut patience = Vec::new();
        for _ in 0..4 {
            patience.push(endpoints.patience("a:1"));
            endpoints.failed("a:1", "no answer".to_owned(), now, 1.0);
        }
        assert_eq!(patience, [1, 2, 4, 4]);
        assert_eq!(endpoints.patience("b:1"), 1);
        endpoints.useful("a:1");
        assert_eq!(endpoints.patience("a:1"), 1);
    }

    #[test]
    fn learned_nodes_come_and_go_and_given_ones_stay() {
        let (mut endpoints, now) = (three(), Instant::now());
        endpoints.learn(&[node(1, "a:1"), node(4, "d:1"), node(5, "e:1")]);
        endpoints.learn(&[node(1, "a:1"), node(5, "e:1")]);
        let known: Vec<_> = endpoints.tried().into_iter().map(|(address, _)| address).collect();
        assert_eq!(known, ["a:1", "b:1", "c:1", "e:1"]);
        assert_eq!(endpoints.ready_at("d:1", now), None);
    }

    #[test]
    fn a_client_is_shut_out_once_each_node_was_tried_and_one_said_so() {
        let (mut endpoints, now) = (three(), Instant::now());
        let denial = Problem::refused(Code::Unauthorized, "no token");
        let fail = |endpoints: &mut Endpoints, address: &str, denial: Option<&Problem>| {
            endpoints.failed(address, "it failed".to_owned(), now, 1.0);
            endpoints.denied(address, denial.cloned());
            endpoints.take_denial()
        };
        assert_eq!(fail(&mut endpoints, "a:1", Some(&denial)), None);
        assert_eq!(fail(&mut endpoints, "b:1", None), None);
        assert_eq!(fail(&mut endpoints, "c:1", None), Some(denial.clone()));
        assert_eq!(endpoints.next(now, |_| false), now_at("a:1"), "each is tried anew");
        for address in ["a:1", "b:1", "c:1"] {
            assert_eq!(fail(&mut endpoints, address, None), None, "unreachable is no denial");
        }
    }

    #[test]
    fn a_node_cannot_fill_the_memory_with_addresses() {
        let mut endpoints = three();
        let many: Vec<_> = (0..1000).map(|n| node(n, &format!("n{n}:1"))).collect();
        endpoints.learn(&many);
        assert_eq!(endpoints.tried().len(), 3 + LEARNED_MAX);
    }
}
