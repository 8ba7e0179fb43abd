//! Other stores under the same load, where they are installed.

use super::throughput::{COLUMNS, Costed, costed, line};
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, Get, Put, closed_loop};
use crate::peer::etcd::{Etcd, EtcdGet, EtcdPut};
use crate::peer::redis::{Redis, RedisIncrement, RedisSet};
use crate::report::{Aim, Section, number};
use crate::samples::median;

/// Connections of clients that carry several operations at once.
const CONNECTIONS: usize = 6;
const IN_FLIGHT: [usize; 3] = [1, 64, 256];
/// The aim for puts, 64 in flight: at least this many times as many per second as etcd's.
const ETCD_MIN: f64 = 4.0;

struct Line {
    what: String,
    in_flight: usize,
    connections: usize,
    rounds: Vec<Costed>,
}

/// The line with this place in the plan, made at the first round.
fn note(lines: &mut Vec<Line>, what: &str, in_flight: usize, connections: usize, costed: Costed) {
    let same = |line: &&mut Line| line.what == what && line.in_flight == in_flight;
    match lines.iter_mut().find(same) {
        Some(line) => line.rounds.push(costed),
        None => {
            let rounds = vec![costed];
            lines.push(Line { what: what.to_owned(), in_flight, connections, rounds });
        }
    }
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut section = Section::new(title, &COLUMNS);
    let folder = bench.folder()?;
    let redis = Redis::start(folder.path()).await?;
    let etcd = Etcd::start(folder.path()).await?;
    if redis.is_none() {
        section.remark("Redis: not compared, no redis-server on the PATH.");
    }
    if etcd.is_none() {
        section.remark("etcd: not compared, no etcd on the PATH.");
    }
    if redis.is_none() && etcd.is_none() {
        return Ok(section);
    }
    let cluster = Cluster::start(bench, &[]).await?;
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| cluster.keys()).collect();
    load::fill(&clients[0]).await?;
    if let Some(etcd) = &etcd {
        etcd.fill().await?;
    }
    let mut lines = Vec::new();
    for _ in 0..bench.effort.rounds {
        for in_flight in IN_FLIGHT {
            let connections = in_flight.min(CONNECTIONS);
            let each = || clients.iter().take(connections).cloned().cycle().take(in_flight);
            let servers = || cluster.cpu();
            let load = closed_loop(each().map(Put).collect(), &bench.effort);
            note(&mut lines, "Holdfast put", in_flight, connections, costed(servers, load).await?);
            let load = closed_loop(each().map(Get).collect(), &bench.effort);
            note(&mut lines, "Holdfast get", in_flight, connections, costed(servers, load).await?);
            if let Some(etcd) = &etcd {
                let channels = etcd.connect(connections).await?;
                let each =
                    || channels.iter().cycle().take(in_flight).map(|channel| channel.sender());
                let servers = || etcd.cpu();
                let load = closed_loop(each().map(EtcdPut).collect(), &bench.effort);
                note(&mut lines, "etcd put", in_flight, connections, costed(servers, load).await?);
                let load = closed_loop(each().map(EtcdGet).collect(), &bench.effort);
                note(&mut lines, "etcd get", in_flight, connections, costed(servers, load).await?);
            }
            if let Some(redis) = &redis {
                let servers = || redis.child.cpu();
                let each = redis.connect(in_flight).await?.into_iter().map(RedisSet).collect();
                let load = closed_loop(each, &bench.effort);
                note(
                    &mut lines,
                    "Redis SET, synced",
                    in_flight,
                    in_flight,
                    costed(servers, load).await?,
                );
                let each =
                    redis.connect(in_flight).await?.into_iter().map(RedisIncrement).collect();
                let load = closed_loop(each, &bench.effort);
                note(
                    &mut lines,
                    "Redis INCR, synced",
                    in_flight,
                    in_flight,
                    costed(servers, load).await?,
                );
            }
        }
    }
    lines.sort_by(|a, b| a.what.cmp(&b.what));
    for of in &lines {
        section.row(line(&of.what, of.in_flight, of.connections, &of.rounds));
    }
    for (ours, theirs) in [
        ("Holdfast put", "etcd put"),
        ("Holdfast get", "etcd get"),
        ("Holdfast put", "Redis SET, synced"),
    ] {
        for in_flight in IN_FLIGHT {
            let find = |what: &str| {
                lines.iter().find(|line| line.what == what && line.in_flight == in_flight)
            };
            let (Some(ours_line), Some(theirs_line)) = (find(ours), find(theirs)) else { continue };
            let p50 = ratio(ours_line, theirs_line, |costed| costed.p50().as_secs_f64());
            let per_second = ratio(ours_line, theirs_line, Costed::per_second);
            if (ours, theirs, in_flight) == ("Holdfast put", "etcd put", 64) {
                let what = "puts per second with 64 in flight, against etcd";
                section.aims.push(Aim::ratio_at_least(what, per_second, ETCD_MIN));
            }
            section.remark(format!(
                "{ours} against {theirs}, {in_flight} in flight: {}× as many per second, {}× the p50.",
                number(per_second),
                number(p50)
            ));
        }
    }
    section.remark(
        "etcd: three nodes with default settings, clients on its leader, by gRPC. Redis: one process with \
         appendfsync always, neither replicated nor able to fail over.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}

/// The median ratio of rounds that ran side by side.
fn ratio(ours: &Line, theirs: &Line, of: fn(&Costed) -> f64) -> f64 {
    median(ours.rounds.iter().zip(&theirs.rounds).map(|(ours, theirs)| of(ours) / of(theirs)))
}
