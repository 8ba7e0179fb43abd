//! Partitions, loss, resets, slow links and packets that travel badly, on a network of the
//! nodes' own.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use holdfast_api::NodeId;
use rand::RngExt;

use super::nodes::names;
use super::{Injected, Nemesis, Stage, Wound};
use crate::clock;
use crate::network::Shaping;
use crate::network::rules::{Queued, Rule};
use crate::network::wire::{Carried, Shape};

const HOLD: Duration = Duration::from_secs(4);
/// Fewer packets may all have been spared: 0.8 to the power of this is 10^-10.
const DUPLICATED_MIN: u64 = 100;
/// Rate of a slow link, in the syntax of `tc`.
const RATE: &str = "512kbit";
/// Between two nodes that are cut off one after the other.
const BETWEEN_NODES: Duration = Duration::from_millis(500);
/// Of a hundred packets.
const LOSS_PERCENT: u8 = 20;

pub(super) async fn cut(nemesis: Nemesis, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let leader = stage.leader().await?;
    let ids = stage.cluster.ids();
    let others: Vec<NodeId> = ids.iter().copied().filter(|id| *id != leader).collect();
    let network = stage.cluster.network().context("the nodes have no network of their own")?;
    let struck = Some(clock::now());
    let mut rules: Vec<(NodeId, Rule)> = Vec::new();
    let mut drop_between = |a: NodeId, b: NodeId| -> anyhow::Result<()> {
        rules.push((a, Rule::Drop { from: network.address_of(b)? }));
        rules.push((b, Rule::Drop { from: network.address_of(a)? }));
        Ok(())
    };
    let what = match nemesis {
        Nemesis::LeaderAlone => {
            for other in &others {
                drop_between(leader, *other)?;
            }
            format!("cut leader {leader} off from the other nodes")
        }
        Nemesis::Minority => {
            let size = (ids.len() - 1) / 2;
            let start = stage.random.random_range(0..ids.len());
            let ring: Vec<NodeId> =
                ids.iter().cycle().skip(start).take(ids.len()).copied().collect();
            let (minority, majority) = ring.split_at(size);
            for one in minority {
                for other in majority {
                    drop_between(*one, *other)?;
                }
            }
            format!("cut {} off from the others", names(minority))
        }
        Nemesis::Ring => {
            // Neither neighbours in the order nor the same; of three, the leader and one more.
            let count = ids.len();
            for (n, one) in ids.iter().enumerate() {
                for (m, other) in ids.iter().enumerate().skip(n + 1) {
                    if m - n > 1 && m - n < count - 1 {
                        drop_between(*one, *other)?;
                    }
                }
            }
            if count <= 3
                && let Some(other) = others.first()
            {
                drop_between(leader, *other)?;
            }
            "cut links until every node sees a majority and none sees all".to_owned()
        }
        Nemesis::OneWay => {
            for other in &others {
                rules.push((leader, Rule::Drop { from: network.address_of(*other)? }));
            }
            format!("made leader {leader} deaf to the other nodes, which hear it")
        }
        Nemesis::LeaderMute => {
            for other in &others {
                rules.push((*other, Rule::Drop { from: network.address_of(leader)? }));
            }
            format!("made leader {leader} mute: the other nodes do not hear it, and it hears them")
        }
        Nemesis::ClientsSeeMinority => {
            let (own, size) = (network.own_address(), (ids.len() - 1) / 2);
            let (with_leader, majority) = others.split_at(size - 1);
            let minority: Vec<NodeId> = with_leader.iter().copied().chain([leader]).collect();
            for other in majority {
                for one in &minority {
                    drop_between(*one, *other)?;
                }
            }
            rules.extend(majority.iter().map(|id| (*id, Rule::Drop { from: own })));
            format!("left {} to the clients, cut off from the others", names(&minority))
        }
        Nemesis::ClientsCutOff => {
            rules.push((leader, Rule::Drop { from: network.own_address() }));
            format!("cut the clients off from leader {leader}")
        }
        Nemesis::Loss => {
            let loss = Rule::Lose { percent: LOSS_PERCENT, from: None };
            rules.extend(ids.iter().map(|id| (*id, loss.clone())));
            format!("lost {LOSS_PERCENT} of a hundred packets everywhere")
        }
        Nemesis::Reset => {
            rules.push((leader, Rule::Reset));
            format!("reset all connections of leader {leader}")
        }
        Nemesis::HalfOpen => {
            rules.push((leader, Rule::DropOpen));
            format!("froze the open connections of leader {leader}")
        }
        Nemesis::SlowLink => {
            network.set_rate(leader, RATE)?;
            let what = format!("leader {leader} sends {RATE} at most");
            let wound = Wound::Slow;
            return Ok(Injected { what, evidence: None, wound, hold: HOLD, struck });
        }
        _ => return shape(nemesis, stage),
    };
    network.set_rules(nemesis.as_str(), &rules)?;
    // Rule hits are counted, and read when the rules are removed.
    let wound = Wound::Cut(nemesis);
    Ok(Injected { what, evidence: None, wound, hold: HOLD, struck })
}

/// Cuts some nodes off one after the other, in any order.
pub(super) async fn clog(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let struck = Some(clock::now());
    let mut ids = stage.cluster.ids();
    let mut clogged = Vec::new();
    let count = stage.random.random_range(2..=ids.len());
    while clogged.len() < count {
        let next = ids.swap_remove(stage.random.random_range(0..ids.len()));
        let others: Vec<NodeId> =
            stage.cluster.ids().into_iter().filter(|other| *other != next).collect();
        let network = stage.cluster.network().context("the nodes have no network of their own")?;
        let rules = others.iter().map(|id| {
            let from = network.address_of(*id)?;
            anyhow::Ok((next, Rule::Drop { from }))
        });
        let rules = rules.collect::<anyhow::Result<Vec<_>>>()?;
        network.set_rules(Nemesis::SwizzleClog.as_str(), &rules)?;
        clogged.push(next);
        tokio::time::sleep(BETWEEN_NODES).await;
    }
    let what = format!("cut {} off, one after the other", names(&clogged));
    let wound = Wound::Clogged(clogged);
    Ok(Injected { what, evidence: None, wound, hold: HOLD / 2, struck })
}

/// Reconnects nodes, one after the other in any order; answers what was observed if each
/// one was really cut off.
pub(super) async fn unclog(
    stage: &mut Stage<'_>,
    mut ids: Vec<NodeId>,
) -> anyhow::Result<Option<String>> {
    let fault = Nemesis::SwizzleClog.as_str();
    let (mut met, mut order) = (Vec::new(), Vec::new());
    while !ids.is_empty() {
        let next = ids.swap_remove(stage.random.random_range(0..ids.len()));
        let network = stage.cluster.network().context("the nodes have no network of their own")?;
        met.push(network.packets_met_by(next, fault)?);
        network.clear_rules_of(next, fault)?;
        order.push(next);
        tokio::time::sleep(BETWEEN_NODES).await;
    }
    let (all, counts) = (met.iter().all(|packets| *packets > 0), met);
    Ok(all
        .then(|| format!("let {} back in that order; they met {counts:?} packets", names(&order))))
}

fn shape(nemesis: Nemesis, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let shape = match nemesis {
        Nemesis::Reorder => {
            Shape { delay: Duration::from_millis(10), reorder_percent: 25, ..Shape::default() }
        }
        Nemesis::Duplicate => Shape { duplicate_percent: 20, ..Shape::default() },
        _ => Shape {
            delay: Duration::from_millis(75),
            jitter: Duration::from_millis(50),
            ..Shape::default()
        },
    };
    let (ids, seed) = (stage.cluster.ids(), stage.random.random());
    let network = stage.cluster.network().context("the nodes have no network of their own")?;
    let struck = Some(clock::now());
    let shaping = network.shape(&ids, shape, seed)?;
    let what = format!("every wire: {shape}, by {}", shaping.layer().as_str());
    // What the layer handles is counted, and read when it ends.
    let wound = Wound::Shaped(nemesis, shaping);
    Ok(Injected { what, evidence: None, wound, hold: HOLD, struck })
}

impl Wound {
    /// Whether programs of the system made it, one after the other: until the last of them
    /// has ended, calls may pass that it would have stopped.
    pub(crate) fn is_of_several_steps(&self) -> bool {
        matches!(self, Wound::Cut(_) | Wound::Clogged(_) | Wound::Slow | Wound::Shaped(..))
    }
}

/// Lets packets travel as ever; answers how it is known that they did not.
pub(super) async fn unshape(
    stage: &mut Stage<'_>,
    nemesis: Nemesis,
    shaping: Shaping,
) -> anyhow::Result<Option<String>> {
    match shaping {
        Shaping::Netem(ids) => {
            let Some(network) = stage.cluster.network() else { return Ok(None) };
            let left = stage.cluster.ids();
            let ids: Vec<NodeId> = ids.into_iter().filter(|id| left.contains(id)).collect();
            let queued = network.queued(&ids)?;
            network.clear_disciplines()?;
            Ok(queued.and_then(|queued| seen(nemesis, queued)))
        }
        Shaping::Tun(shaper) => {
            let Some(network) = stage.cluster.network() else { return Ok(None) };
            let nodes = stage.cluster.ids().into_iter().map(|id| network.address_of(id));
            let mut left: Vec<Ipv4Addr> = nodes.collect::<anyhow::Result<_>>()?;
            left.push(network.own_address());
            let carried = shaper.end(|address| left.contains(&address)).await?;
            Ok(carried.and_then(|carried| seen_here(nemesis, carried)))
        }
    }
}

/// Makes a slow link fast again; answers how it is known that it was slow.
pub(super) fn unslow(stage: &Stage<'_>) -> anyhow::Result<Option<String>> {
    let Some(network) = stage.cluster.network() else { return Ok(None) };
    let waited = network.waited()?;
    network.clear_disciplines()?;
    Ok(waited.map(|waited| format!("{waited} packets waited until the wire was free")))
}

/// How it is known that netem let packets travel badly.
fn seen(nemesis: Nemesis, queued: Queued) -> Option<String> {
    let Queued { packets, requeued } = queued;
    match nemesis {
        Nemesis::Reorder => (requeued > 0)
            .then(|| format!("netem put {requeued} of {packets} packets before others")),
        // It does not count what it doubles: a fifth of so many are some for certain.
        Nemesis::Duplicate => (packets >= DUPLICATED_MIN)
            .then(|| format!("{packets} packets, with the doubled ones, went through netem")),
        _ => (packets > 0).then(|| format!("{packets} packets went through netem")),
    }
}

/// The same of this tool's own layer.
fn seen_here(nemesis: Nemesis, carried: Carried) -> Option<String> {
    let Carried { packets, reordered, duplicated, arrived, .. } = carried;
    match nemesis {
        Nemesis::Reorder => (reordered > 0)
            .then(|| format!("the tool put {reordered} of {packets} packets before others")),
        Nemesis::Duplicate => (duplicated > 0)
            .then(|| format!("the tool sent {duplicated} of {packets} packets twice")),
        _ => (arrived > 0).then(|| {
            let mean = carried.mean().as_millis();
            format!("the tool held {arrived} packets back, each for {mean} ms on average")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_several_steps_is_complete_later_than_it_began() {
        assert!(Wound::Clogged(vec![1]).is_of_several_steps());
        assert!(Wound::Cut(Nemesis::Loss).is_of_several_steps());
        assert!(!Wound::Healed.is_of_several_steps());
    }

    #[test]
    fn a_discipline_that_handled_nothing_is_no_evidence() {
        let queued = |packets, requeued| Queued { packets, requeued };
        assert_eq!(seen(Nemesis::Delay, queued(0, 0)), None);
        assert_eq!(seen(Nemesis::Reorder, queued(500, 0)), None);
        assert_eq!(seen(Nemesis::Duplicate, queued(DUPLICATED_MIN - 1, 0)), None);
        assert!(seen(Nemesis::Reorder, queued(500, 90)).unwrap().contains("90 of 500"));
    }

    #[test]
    fn packets_that_the_tool_treated_well_are_no_evidence() {
        let carried = Carried { packets: 500, ..Carried::default() };
        for nemesis in [Nemesis::Delay, Nemesis::Reorder, Nemesis::Duplicate] {
            assert_eq!(seen_here(nemesis, carried), None);
        }
        let delayed = Carried { arrived: 400, travelled: Duration::from_secs(30), ..carried };
        let seen = seen_here(Nemesis::Delay, delayed).unwrap();
        assert_eq!(seen, "the tool held 400 packets back, each for 75 ms on average");
        let doubled = Carried { duplicated: 90, ..carried };
        assert!(seen_here(Nemesis::Duplicate, doubled).unwrap().contains("90 of 500"));
        let reordered = Carried { reordered: 120, ..carried };
        assert!(seen_here(Nemesis::Reorder, reordered).unwrap().contains("120 of 500"));
    }
}
