use holdfast_api::Hello;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A leader tracker, a clock that is set by hand, and no randomness.
struct Bench {
    leader_tracker: LeaderTracker,
    now: Instant,
    /// The connected leader owes an answer.
    owes_since: Option<Instant>,
}

impl Bench {
    fn new(endpoints: &[&str]) -> Bench {
        let endpoints = endpoints.iter().map(|e| (*e).to_owned()).collect();
        let backoff = Backoff::new(10 * MS, 500 * MS);
        let leader_tracker = LeaderTracker::new(endpoints, backoff);
        Bench { leader_tracker, now: Instant::now(), owes_since: None }
    }

    /// Connected to node 1 at a:1 of three, which leads.
    fn led() -> Bench {
        let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
        assert_eq!(bench.step(), connect("a:1"));
        assert_eq!(bench.arrive("a:1", 1, Some(1)), Arrival::Use);
        assert!(bench.leader_tracker.leads());
        bench
    }

    fn step(&mut self) -> Step {
        self.wants(Wants::Leader)
    }

    fn wants(&mut self, wants: Wants) -> Step {
        self.leader_tracker.next(self.now, wants, self.owes_since)
    }

    /// Lets time pass until there is something to do.
    fn step_later(&mut self) -> Step {
        loop {
            match self.step() {
                Step::Wait(Some(at)) => {
                    assert!(at > self.now, "waiting for what is due already");
                    self.now = at;
                }
                step => return step,
            }
        }
    }

    fn arrive(&mut self, address: &str, node: NodeId, leader: Option<NodeId>) -> Arrival {
        self.arrive_in("cluster", address, node, leader)
    }

    fn arrive_in(
        &mut self,
        cluster: &str,
        address: &str,
        node: NodeId,
        leader: Option<NodeId>,
    ) -> Arrival {
        self.arrive_with(address, Hello { cluster_id: cluster.to_owned(), ..said(node, leader, 0) })
    }

    fn arrive_with(&mut self, address: &str, hello: Hello) -> Arrival {
        self.leader_tracker.connected(&Route::to(address.to_owned()), &hello, self.now, &mut || 1.0)
    }

    fn fail(&mut self, address: &str) {
        self.leader_tracker.attempt_failed(
            &Route::to(address.to_owned()),
            "refused".to_owned(),
            self.now,
            &mut || 1.0,
        );
    }

    fn lose(&mut self) {
        self.leader_tracker.lost("closed".to_owned(), self.now, &mut || 1.0);
    }

    /// The connected node says who leads.
    fn told(&mut self, leader: Option<NodeId>) {
        self.leader_tracker.useful();
        self.leader_tracker.not_leader(leader.map(hint), self.now, &mut || 1.0);
    }
}

/// Nodes 1, 2, 3 are at a:1, b:1, c:1.
fn hint(node: NodeId) -> LeaderHint {
    let address = ["a:1", "b:1", "c:1"][node as usize - 1].to_owned();
    LeaderHint { node, address }
}

fn connect(address: &str) -> Step {
    Step::Connect(Route::to(address.to_owned()))
}

#[test]
fn any_node_shows_the_way_to_the_leader() {
    let mut bench = Bench::new(&["a:1"]);
    assert_eq!(bench.step(), connect("a:1"));
    assert_eq!(bench.arrive("a:1", 1, Some(3)), Arrival::Use);
    assert_eq!(bench.leader_tracker.leader(), Some(3));
    assert_eq!(bench.step(), connect("c:1"), "an address that was not among the endpoints");
    assert_eq!(bench.arrive("c:1", 3, Some(3)), Arrival::Use);
    assert!(bench.leader_tracker.leads());
    assert_eq!(bench.step(), Step::Wait(None));
}

#[test]
fn nothing_is_connected_while_nothing_is_wanted() {
    let mut bench = Bench::new(&["a:1"]);
    assert_eq!(bench.wants(Wants::Nothing), Step::Wait(None));
}

#[test]
fn a_call_for_any_node_stays_with_the_first_one() {
    let mut bench = Bench::new(&["a:1", "b:1"]);
    assert_eq!(bench.wants(Wants::AnyNode), connect("a:1"));
    bench.arrive("a:1", 1, Some(2));
    assert_eq!(bench.wants(Wants::AnyNode), Step::Wait(None));
}

#[test]
fn an_idle_client_follows_the_leader_but_asks_nobody() {
    let mut bench = Bench::led();
    bench.lose();
    assert_eq!(bench.wants(Wants::Warm), connect("b:1"));
    bench.arrive("b:1", 2, None);
    assert_eq!(bench.wants(Wants::Warm), Step::Wait(None));
    bench.told(Some(3));
    assert_eq!(bench.wants(Wants::Warm), connect("c:1"));
}

#[test]
fn after_the_loss_of_the_leader_the_others_are_asked_until_they_have_one() {
    let mut bench = Bench::led();
    bench.lose();
    assert_eq!(bench.step(), connect("b:1"), "at once, and not the one just lost");
    // For a while they still take the dead node for the leader.
    assert_eq!(bench.arrive("b:1", 2, Some(1)), Arrival::Use);
    assert_eq!(bench.step(), connect("a:1"));
    bench.fail("a:1");
    let lost_at = bench.now;
    while bench.now < lost_at + 300 * MS {
        match bench.step_later() {
            // It may stick to the dead node for a while.
            Step::Poll if bench.now < lost_at + 100 * MS => bench.told(Some(1)),
            Step::Poll => bench.told(None),
            Step::Connect(Route { address, .. }) => bench.fail(&address),
            Step::Wait(_) => unreachable!("step_later never waits"),
        }
    }
    // The election is over: at the next poll the client knows.
    let elected_at = bench.now;
    let told_at = loop {
        match bench.step_later() {
            Step::Poll => break bench.now,
            Step::Connect(Route { address, .. }) => bench.fail(&address),
            Step::Wait(_) => unreachable!("step_later never waits"),
        }
    };
    assert!(told_at <= elected_at + 50 * MS, "{:?}", told_at - elected_at);
    bench.told(Some(3));
    assert_eq!(bench.step(), connect("c:1"));
    bench.arrive("c:1", 3, Some(3));
    assert!(bench.leader_tracker.leads());
}

#[test]
fn a_follower_that_becomes_leader_is_noticed_where_it_is() {
    let mut bench = Bench::new(&["a:1"]);
    bench.step();
    bench.arrive("a:1", 1, None);
    assert_eq!(bench.step_later(), Step::Poll);
    bench.leader_tracker.led();
    assert!(bench.leader_tracker.leads());
    assert_eq!(bench.step(), Step::Wait(None));
}

#[test]
fn a_node_that_does_not_say_whether_it_leads_is_not_waited_for() {
    let mut bench = Bench::new(&["a:1", "b:1"]);
    bench.step();
    bench.arrive("a:1", 1, None);
    assert_eq!(bench.step_later(), Step::Poll);
    assert_eq!(bench.step_later(), connect("b:1"));
    assert_eq!(bench.step(), Step::Wait(None), "one at a time");
    bench.arrive("b:1", 2, Some(2));
    assert!(bench.leader_tracker.leads());
}

#[test]
fn a_long_search_slows_down_and_asks_every_node() {
    let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
    bench.step();
    bench.arrive("a:1", 1, None);
    let (start, mut polls, mut asked) = (bench.now, 0, Vec::new());
    while bench.now < start + 60_000 * MS {
        match bench.step_later() {
            Step::Poll => {
                polls += 1;
                bench.told(None);
            }
            Step::Connect(Route { address, .. }) => {
                let node = 1 + ["a:1", "b:1", "c:1"].iter().position(|a| *a == address).unwrap();
                bench.arrive(&address, node as NodeId, None);
                asked.push(address);
            }
            Step::Wait(_) => unreachable!("step_later never waits"),
        }
    }
    assert!((100..250).contains(&polls), "{polls} polls in a minute");
    for address in ["a:1", "b:1", "c:1"] {
        assert!(asked.iter().any(|a| a == address), "{address} was never asked: {asked:?}");
    }
}

#[test]
fn an_endpoint_that_never_answers_does_not_hold_up_the_others() {
    let mut bench = Bench::new(&["a:1", "b:1"]);
    assert_eq!(bench.step(), connect("a:1"));
    assert_eq!(bench.step_later(), connect("b:1"));
    assert_eq!(bench.arrive("b:1", 2, Some(2)), Arrival::Use);
    assert_eq!(bench.arrive("a:1", 1, Some(2)), Arrival::Drop, "too late");
    assert!(bench.leader_tracker.leads());
}

#[test]
fn attempts_are_bounded() {
    let mut bench = Bench::new(&["a:1", "b:1", "c:1", "d:1", "e:1"]);
    for address in ["a:1", "b:1", "c:1"] {
        assert_eq!(bench.step_later(), connect(address));
    }
    bench.now += 1000 * MS;
    assert_eq!(bench.step(), Step::Wait(None));
}

#[test]
fn two_nodes_that_name_each_other_are_followed_ever_more_slowly() {
    let mut bench = Bench::new(&["a:1", "b:1"]);
    bench.step();
    bench.arrive("a:1", 1, Some(2));
    let (start, mut hops) = (bench.now, 0);
    while bench.now < start + 10_000 * MS {
        match bench.step_later() {
            Step::Poll => bench.told(None),
            Step::Connect(Route { address, .. }) => {
                hops += 1;
                let (node, other) = if address == "a:1" { (1, 2) } else { (2, 1) };
                bench.arrive(&address, node, Some(other));
            }
            Step::Wait(_) => unreachable!("step_later never waits"),
        }
    }
    assert!((5..60).contains(&hops), "{hops} hops in ten seconds");
}

#[test]
fn a_node_of_another_cluster_is_refused_and_named() {
    let mut bench = Bench::led();
    bench.lose();
    assert_eq!(bench.step(), connect("b:1"));
    assert_eq!(bench.arrive_in("other", "b:1", 2, Some(2)), Arrival::Drop);
    let tried = bench.leader_tracker.tried();
    let (_, why) = tried.iter().find(|(address, _)| address == "b:1").unwrap();
    assert_eq!(why, "it belongs to cluster other, this client talks to cluster cluster");
    assert_eq!(bench.step(), connect("c:1"));
    // A node that does not know its cluster yet is accepted.
    assert_eq!(bench.arrive_in("", "c:1", 3, None), Arrival::Use);
}

#[test]
fn many_calls_turned_away_at_once_are_one_piece_of_news() {
    let mut bench = Bench::led();
    for _ in 0..1000 {
        bench.told(None);
    }
    assert_eq!(bench.step(), Step::Wait(Some(bench.now + 10 * MS)));
}

fn said(node: NodeId, leader: Option<NodeId>, term: u64) -> Hello {
    Hello {
        cluster_id: "cluster".to_owned(),
        node,
        version: "1".to_owned(),
        level: 0,
        minor: 0,
        leader: leader.map(hint),
        term,
        nodes: (1..=3).map(hint).collect(),
    }
}

/// Connected to node 1, which leads term 5 and falls silent.
fn silent() -> Bench {
    let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
    assert_eq!(bench.step(), connect("a:1"));
    assert_eq!(bench.arrive_with("a:1", said(1, Some(1), 5)), Arrival::Use);
    bench.owes_since = Some(bench.now);
    bench
}

#[test]
fn a_silent_leader_is_left_for_one_of_a_later_term() {
    let mut bench = silent();
    assert_eq!(bench.step(), Step::Wait(Some(bench.now + DOUBT_AFTER)));
    assert_eq!(bench.step_later(), connect("b:1"));
    assert_eq!(bench.arrive_with("b:1", said(2, Some(2), 6)), Arrival::Use);
    assert!(bench.leader_tracker.leads());
    assert_eq!(bench.leader_tracker.leader(), Some(2));
}

#[test]
fn who_leads_now_is_asked_of_whoever_knows() {
    let mut bench = silent();
    assert_eq!(bench.step_later(), connect("b:1"));
    assert_eq!(bench.arrive_with("b:1", said(2, Some(3), 6)), Arrival::Drop);
    assert_eq!(bench.step(), connect("c:1"));
    assert_eq!(bench.arrive_with("c:1", said(3, Some(3), 6)), Arrival::Use);
    assert_eq!(bench.leader_tracker.leader(), Some(3));
}

#[test]
fn a_silent_leader_that_nobody_succeeds_is_kept_and_doubted_ever_less_often() {
    let mut bench = silent();
    let (start, mut doubts) = (bench.now, Vec::new());
    while bench.now < start + 10_000 * MS {
        let Step::Connect(Route { address, .. }) = bench.step_later() else {
            panic!("it waits, or asks")
        };
        doubts.push((bench.now - start).as_millis());
        let node = if address == "b:1" { 2 } else { 3 };
        // The others still follow it, or seek: neither is news.
        let said = said(node, Some(1).filter(|_| node == 2), 5 + u64::from(node == 3));
        assert_eq!(bench.arrive_with(&address, said), Arrival::Drop);
        assert_eq!(bench.leader_tracker.leader(), Some(1));
    }
    assert_eq!(doubts[..5], [150, 200, 250, 312, 390]);
    assert!(doubts.len() <= 20, "{doubts:?}");
    bench.owes_since = None;
    assert_eq!(bench.step(), Step::Wait(None), "it has answered");
}

#[test]
fn a_leader_of_an_earlier_term_is_not_gone_back_to() {
    let mut bench = silent();
    assert_eq!(bench.step_later(), connect("b:1"));
    assert_eq!(bench.arrive_with("b:1", said(2, Some(3), 4)), Arrival::Drop);
    assert_eq!(bench.step(), Step::Wait(Some(bench.now + DOUBT_AGAIN)));
    assert_eq!(bench.leader_tracker.leader(), Some(1));
}

#[test]
fn nodes_that_drop_every_connection_are_not_hammered() {
    let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
    let (start, mut connects) = (bench.now, 0);
    while bench.now < start + 10_000 * MS {
        match bench.step_later() {
            Step::Connect(Route { address, .. }) => {
                connects += 1;
                let node = 1 + ["a:1", "b:1", "c:1"].iter().position(|a| *a == address).unwrap();
                bench.arrive(&address, node as NodeId, Some(node as NodeId));
                bench.lose();
            }
            step => panic!("a leader's connection is not polled: {step:?}"),
        }
    }
    assert!((30..120).contains(&connects), "{connects} connections in ten seconds");
}

#[test]
fn what_was_tried_says_what_each_node_said() {
    let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
    bench.step();
    bench.fail("a:1");
    bench.step();
    bench.arrive("b:1", 2, None);
    let tried = bench.leader_tracker.tried();
    let expected = [
        ("a:1", "refused"),
        ("b:1", "node 2 answers, but knows no leader"),
        ("c:1", "not tried yet"),
    ];
    assert_eq!(tried, expected.map(|(a, w)| (a.to_owned(), w.to_owned())));
}

fn through(address: &str) -> Step {
    Step::Connect(Route::through(address.to_owned()))
}

impl Bench {
    /// Fails all attempts until the leader is sought through a node; which.
    fn until_through(&mut self) -> String {
        loop {
            match self.step_later() {
                Step::Connect(Route { address, through: true }) => return address,
                Step::Connect(Route { address, .. }) => self.fail(&address),
                step => panic!("{step:?}"),
            }
        }
    }

    /// The same for a leader, at a:1, that says nothing: the others still follow it.
    fn until_asked_through(&mut self) -> String {
        loop {
            let Step::Connect(route) = self.step_later() else { panic!("it waits, or asks") };
            match route.address.as_str() {
                _ if route.through => return route.address,
                // Whether it can be reached: it does not say.
                "a:1" => continue,
                "b:1" => drop(self.arrive_with("b:1", said(2, Some(1), 5))),
                _ => drop(self.arrive_with("c:1", said(3, Some(1), 5))),
            }
        }
    }

    fn arrive_through(&mut self, address: &str, hello: Hello) -> Arrival {
        let route = Route::through(address.to_owned());
        self.leader_tracker.connected(&route, &hello, self.now, &mut || 1.0)
    }
}

#[test]
fn a_leader_that_cannot_be_connected_to_is_reached_through_another_node() {
    let mut bench = Bench::new(&["b:1"]);
    assert_eq!(bench.step(), connect("b:1"));
    assert_eq!(bench.arrive("b:1", 2, Some(1)), Arrival::Use);
    assert_eq!(bench.step(), connect("a:1"));
    let begun = bench.now;
    while bench.step_later() == Step::Poll {
        bench.told(Some(1));
    }
    assert_eq!(bench.now, begun + HEDGE_AFTER, "the direct way is given the time of a hedge");
    assert!(bench.leader_tracker.attempts.iter().any(|a| a.route == Route::through("b:1".into())));
    assert_eq!(bench.arrive_through("b:1", said(1, Some(1), 0)), Arrival::Use);
    assert!(bench.leader_tracker.leads());
    assert_eq!(bench.leader_tracker.leader(), Some(1));

    // The direct route is tried ever less often, and taken when it heals.
    let (start, mut tries) = (bench.now, Vec::new());
    for _ in 0..7 {
        assert_eq!(bench.step_later(), connect("a:1"));
        tries.push((bench.now - start).as_secs());
        bench.fail("a:1");
    }
    assert_eq!(tries, [1, 3, 7, 15, 31, 61, 91]);
    assert_eq!(bench.step_later(), connect("a:1"));
    assert_eq!(bench.arrive("a:1", 1, Some(1)), Arrival::Use);
    assert_eq!(bench.step(), Step::Wait(None));
}

#[test]
fn a_leader_that_says_nothing_here_is_asked_through_another_node() {
    let mut bench = silent();
    let start = bench.now;
    let address = bench.until_asked_through();
    assert!(bench.now - start >= THROUGH_AFTER + HEDGE_AFTER);
    bench.fail("a:1");
    // One that no longer leads is of no use there, either.
    assert_eq!(bench.arrive_through(&address, said(1, None, 5)), Arrival::Drop);
    let address = bench.until_through();
    assert_eq!(bench.arrive_through(&address, said(1, Some(1), 5)), Arrival::Use);
    assert!(bench.leader_tracker.leads());
    bench.owes_since = None;
    assert_eq!(bench.step_later(), connect("a:1"));
}

/// Of a paused leader the kernel still answers, so that neither the check nor the attempt
/// through another node comes to anything. That node may be the one that is elected.
#[test]
fn a_successor_is_connected_to_while_an_attempt_goes_through_it() {
    let mut bench = silent();
    let through = bench.until_asked_through();
    let (elected, other, voter) = match through.as_str() {
        "b:1" => (2, "c:1", 3),
        _ => (3, "b:1", 2),
    };
    while bench.step_later() != connect(other) {}
    assert_eq!(bench.arrive_with(other, said(voter, Some(elected), 6)), Arrival::Drop);
    assert_eq!(bench.step(), connect(&through));
    assert_eq!(bench.arrive_with(&through, said(elected, Some(elected), 6)), Arrival::Use);
    assert_eq!(bench.leader_tracker.leader(), Some(elected));
}

#[test]
fn a_node_that_cannot_reach_the_leader_either_is_not_blamed() {
    let mut bench = Bench::new(&["b:1"]);
    assert_eq!(bench.step(), connect("b:1"));
    assert_eq!(bench.arrive("b:1", 2, Some(1)), Arrival::Use);
    assert_eq!(bench.step(), connect("a:1"));
    bench.fail("a:1");
    let failed = bench.now;
    while bench.step_later() != through("b:1") {
        bench.told(Some(1));
    }
    assert!(bench.now >= failed + HEDGE_AFTER);
    let why = "the leader did not accept the stream".to_owned();
    let route = Route::through("b:1".to_owned());
    bench.leader_tracker.attempt_failed(&route, why, bench.now, &mut || 1.0);
    assert!(bench.leader_tracker.endpoints.ready_at("b:1", bench.now) == Some(bench.now));
}

#[test]
fn a_leader_that_is_busy_is_not_left_for_another_way() {
    let mut bench = silent();
    let start = bench.now;
    while bench.now < start + 10_000 * MS {
        let Step::Connect(route) = bench.step_later() else { panic!("it waits, or asks") };
        assert!(!route.through, "it can be reached");
        let node = 1 + ["a:1", "b:1", "c:1"].iter().position(|a| *a == route.address).unwrap();
        let said = said(node as NodeId, Some(1), 5);
        assert_eq!(bench.arrive_with(&route.address, said), Arrival::Drop);
    }
}

#[test]
fn a_direct_way_that_does_not_last_is_tried_ever_less_often() {
    let mut bench = silent();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        bench.owes_since = Some(bench.now);
        let address = bench.until_through();
        assert_eq!(bench.arrive_through(&address, said(1, Some(1), 5)), Arrival::Use);
        bench.owes_since = None;
        let begun = bench.now;
        assert_eq!(bench.step_later(), connect("a:1"));
        pauses.push((bench.now - begun).as_secs());
        assert_eq!(bench.arrive_with("a:1", said(1, Some(1), 5)), Arrival::Use);
    }
    assert_eq!(pauses, [1, 2, 4, 8]);
}

#[test]
fn a_leader_is_left_at_once_when_another_node_tells_of_a_later_term() {
    let mut bench = silent();
    bench.owes_since = None;
    bench.leader_tracker.leader_changed(5, hint(1), bench.now);
    bench.leader_tracker.leader_changed(4, hint(3), bench.now);
    assert_eq!(bench.step(), Step::Wait(None), "neither is news");
    bench.leader_tracker.leader_changed(6, hint(2), bench.now);
    assert_eq!(bench.step(), connect("b:1"), "though no call is open");
    assert_eq!(bench.arrive_with("b:1", said(2, Some(2), 6)), Arrival::Use);
    assert_eq!(bench.leader_tracker.leader(), Some(2));
}

#[test]
fn a_later_leader_is_tried_until_it_knows_that_it_leads() {
    let mut bench = silent();
    bench.owes_since = None;
    bench.leader_tracker.leader_changed(6, hint(2), bench.now);
    assert_eq!(bench.step(), connect("b:1"));
    assert_eq!(bench.arrive_with("b:1", said(2, None, 6)), Arrival::Drop, "not yet");
    let first = bench.now;
    assert_eq!(bench.step_later(), connect("b:1"));
    bench.fail("b:1");
    assert_eq!(bench.step_later(), connect("b:1"));
    assert!(bench.now - first <= 100 * MS, "{:?}", bench.now - first);
    assert_eq!(bench.arrive_with("b:1", said(2, Some(2), 6)), Arrival::Use);
    assert_eq!(bench.step(), Step::Wait(None), "it is found");
    // The leader may have gained a later term itself meanwhile.
    bench.leader_tracker.leader_changed(7, hint(3), bench.now);
    assert_eq!(bench.step(), connect("c:1"));
    assert_eq!(bench.arrive_with("c:1", said(3, Some(2), 8)), Arrival::Drop);
    assert_eq!(bench.step(), Step::Wait(None));
}

#[test]
fn a_leader_that_cannot_be_reached_is_gone_around_within_half_a_second() {
    let mut bench = silent();
    let start = bench.now;
    let address = loop {
        let Step::Connect(route) = bench.step_later() else { panic!("it waits, or asks") };
        match route.address.as_str() {
            _ if route.through => break route.address,
            "a:1" => {}
            "b:1" => drop(bench.arrive_with("b:1", said(2, Some(1), 5))),
            _ => drop(bench.arrive_with("c:1", said(3, Some(1), 5))),
        }
    };
    assert!(bench.now - start <= 500 * MS, "{:?}", bench.now - start);
    assert_eq!(bench.arrive_through(&address, said(1, Some(1), 5)), Arrival::Use);
}

#[test]
fn clients_that_lost_the_same_leader_do_not_all_ask_at_once() {
    let doubts = |random: f64| {
        let mut bench = Bench::new(&["a:1", "b:1", "c:1"]);
        assert_eq!(bench.step(), connect("a:1"));
        let route = Route::to("a:1".to_owned());
        bench.leader_tracker.connected(&route, &said(1, Some(1), 5), bench.now, &mut || random);
        bench.owes_since = Some(bench.now);
        let Step::Wait(Some(at)) = bench.step() else { panic!("it waits") };
        at - bench.now
    };
    assert_eq!(doubts(1.0), DOUBT_AFTER);
    assert_eq!(doubts(0.0), DOUBT_AFTER + DOUBT_SPREAD);
}
