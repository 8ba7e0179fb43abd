//! What keys of PyTorch mean: shapes of torch 2.2 and newer, as a program
//! writes them through TCPStore (whose client puts `/` before each).
//!
//! A process group publishes below `default_pg/<group>//<device>/`, a group
//! made by `new_group` below its parent's. An unknown shape is no error: the
//! key then stands for itself.

use std::collections::BTreeSet;

use holdfast_api::Blob;

/// Most members named in one text.
const MEMBERS_MAX: usize = 32;

/// Placeholder for `its` or `their`, in what members owe.
const OWN: char = '\u{1}';

/// The meaning of a missing key: which members have yet to do what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Missing {
    /// Each member of a kind owes it: the kind (rank, member, node), a number
    /// and what it owes.
    Of(&'static str, u64, String),
    Said(String),
}

/// What is missing without this key; none if the shape is not PyTorch's.
pub(crate) fn missing(key: &Blob, at_least: Option<i64>) -> Option<Missing> {
    let (_, text) = split_namespace(key.as_text()?);
    let text = text.strip_prefix('/').unwrap_or(text);
    if let Some(parties) = at_least {
        let name = text.trim_matches('/');
        return Some(Missing::Said(format!("fewer than {parties} have arrived at barrier {name}")));
    }
    group_key(text).or_else(|| barrier_key(text)).or_else(|| torchrun_key(text))
}

/// The namespace that a key stands in, as in `@29501#0:/key`; none for those of
/// an agent's first port.
pub(crate) fn namespace(key: &Blob) -> Option<&str> {
    split_namespace(key.as_text()?).0
}

/// Namespace and key. An agent puts `@NAME#ATTEMPT:` before the keys of its
/// further ports, and of ranks that were restarted in place.
fn split_namespace(text: &str) -> (Option<&str>, &str) {
    let is_namespace = |mark: &str| {
        let attempt = mark.strip_prefix('@').and_then(|mark| mark.split_once('#'));
        attempt.is_some_and(|(_, attempt)| is_number(attempt))
    };
    match text.split_once(':') {
        Some((mark, key)) if is_namespace(mark) => (Some(mark), key),
        _ => (None, text),
    }
}

/// `default_pg/0//cpu//0/5` and its like.
fn group_key(text: &str) -> Option<Missing> {
    let (_, path) = text.split_once("default_pg/")?;
    let mut parts: Vec<&str> = path.split("//").collect();
    let key = parts.pop()?;
    let device = parts.pop()?;
    let group = Group(parts.last().copied()?);
    match device {
        "cpu" | "cuda" | "xpu" | "mps" | "hpu" | "npu" => {}
        _ => return None,
    }
    if let Some((context, rank)) = key.split_once('/')
        && is_number(context)
        && let Ok(rank) = rank.parse()
    {
        return Some(Missing::Of(
            group.member(),
            rank,
            format!("published {OWN} gloo address{group}"),
        ));
    }
    if let Some(root) = key.strip_prefix("UniqueNCCLID:") {
        let root = root.rsplit(':').next()?.parse().ok()?;
        return Some(Missing::Of(
            group.member(),
            root,
            format!("published {OWN} NCCL unique id{group}"),
        ));
    }
    let what = format!("published the NCCL unique id{group}");
    match key.split_once(':') {
        None if is_number(key) => Some(Missing::Of(group.member(), 0, what)),
        // Two ranks that send to each other: the lower one makes the id.
        Some((low, high)) if is_number(low) && is_number(high) => {
            let what =
                format!("published the NCCL unique id for {OWN} exchange with {high}{group}");
            Some(Missing::Of(group.member(), low.parse().ok()?, what))
        }
        _ => None,
    }
}

/// Barriers that are made of keys.
fn barrier_key(text: &str) -> Option<Missing> {
    let said = |text: String| Some(Missing::Said(text));
    if let Some((_, group)) = text.split_once("store_based_barrier_key:") {
        let group = group.strip_suffix(":last_worker")?;
        return said(format!("not every rank has finished setting up process group {group}"));
    }
    let name = text.strip_suffix("/last_member")?;
    if name.contains("torchelastic/agent/terminal_state") {
        return said("not every torchrun agent has reached the barrier at the end".to_owned());
    }
    match name.rsplit_once("torchelastic/") {
        Some((_, step)) => said(format!(
            "not every torchrun agent has finished the step {}",
            step.trim_end_matches("/finished").trim_end_matches('/')
        )),
        None => said(format!("not everybody has arrived at barrier {}", name.trim_matches('/'))),
    }
}

/// Keys that torchrun's agents exchange.
fn torchrun_key(text: &str) -> Option<Missing> {
    let node = |prefix: &str| text.rsplit_once(prefix).and_then(|(_, node)| node.parse().ok());
    if let Some(node) = node("torchelastic/role_info/") {
        return Some(Missing::Of(
            "node",
            node,
            format!("told {OWN} role to torchrun's rendezvous"),
        ));
    }
    if let Some(node) = node("torchelastic/assigned_ranks/") {
        let what = format!("node 0 of torchrun has not assigned the ranks of node {node}");
        return Some(Missing::Said(what));
    }
    if let Some(node) = node("torchelastic/agent/terminal_state") {
        return Some(Missing::Of("node", node, format!("told torchrun how {OWN} workers ended")));
    }
    let name = text.rsplit('/').next()?;
    matches!(name, "MASTER_ADDR" | "MASTER_PORT")
        .then(|| Missing::Said(format!("node 0 of torchrun has not published {name}")))
}

/// The name of a process group. Of the default one and in it, members are ranks.
struct Group<'a>(&'a str);

impl Group<'_> {
    fn is_default(&self) -> bool {
        self.0 == "0"
    }

    fn member(&self) -> &'static str {
        if self.is_default() { "rank" } else { "member" }
    }
}

impl std::fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_default() { Ok(()) } else { write!(f, " in process group {}", self.0) }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// One sentence for all that is missing: members that owe the same together.
pub(crate) fn sentence(missing: &BTreeSet<Missing>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut owing: Vec<(&str, &str, Vec<u64>)> = Vec::new();
    for one in missing {
        match one {
            Missing::Said(text) => parts.push(text.clone()),
            Missing::Of(kind, member, what) => {
                match owing.iter_mut().find(|(k, w, _)| k == kind && w == what) {
                    Some((_, _, members)) => members.push(*member),
                    None => owing.push((kind, what, vec![*member])),
                }
            }
        }
    }
    for (kind, what, members) in owing {
        let one = members.len() == 1;
        let (plural, have, own) = if one { ("", "has", "its") } else { ("s", "have", "their") };
        let what = what.replace(OWN, own);
        parts.push(format!("{kind}{plural} {} {have} not {what}", ranges(&members)));
    }
    parts.join("; ")
}

/// Numbers in ascending order as `0-3, 7`.
pub(crate) fn ranges(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if number == *last || number == *last + 1 => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let left_out = runs.len().saturating_sub(MEMBERS_MAX);
    runs.truncate(MEMBERS_MAX);
    let run = |(first, last): (u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let mut text = runs.into_iter().map(run).collect::<Vec<_>>().join(", ");
    if left_out > 0 {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str) -> Option<String> {
        missing(&Blob::from(key), None).map(|one| sentence(&BTreeSet::from([one])))
    }

    #[test]
    fn keys_of_pytorch_are_put_into_words() {
        for (key, words) in [
            ("/default_pg/0//cpu//0/5", "rank 5 has not published its gloo address"),
            (
                "/default_pg/0//1//cpu//0/2",
                "member 2 has not published its gloo address in process group 1",
            ),
            ("/default_pg/0//cuda//0", "rank 0 has not published the NCCL unique id"),
            (
                "/default_pg/0//cuda//2:7",
                "rank 2 has not published the NCCL unique id for its exchange with 7",
            ),
            ("/default_pg/0//cuda//UniqueNCCLID:3", "rank 3 has not published its NCCL unique id"),
            (
                "/default_pg/0//2//cuda//0",
                "member 0 has not published the NCCL unique id in process group 2",
            ),
            (
                "/default_pg/0//store_based_barrier_key:1:last_worker",
                "not every rank has finished setting up process group 1",
            ),
            ("/ckpt/last_member", "not everybody has arrived at barrier ckpt"),
            (
                "/job/torchelastic/role_info/3",
                "node 3 has not told its role to torchrun's rendezvous",
            ),
            (
                "/job/torchelastic/assigned_ranks/1",
                "node 0 of torchrun has not assigned the ranks of node 1",
            ),
            (
                "/torchelastic/agent/terminal_state/last_member",
                "not every torchrun agent has reached the barrier at the end",
            ),
            (
                "/torchelastic/role_info//finished/last_member",
                "not every torchrun agent has finished the step role_info",
            ),
            (
                "/torch.rendezvous.x.0/MASTER_PORT",
                "node 0 of torchrun has not published MASTER_PORT",
            ),
            ("@29501#0:/default_pg/0//cpu//0/5", "rank 5 has not published its gloo address"),
            ("@#1:/ckpt/last_member", "not everybody has arrived at barrier ckpt"),
        ] {
            assert_eq!(read(key).as_deref(), Some(words), "{key}");
        }
    }

    #[test]
    fn other_keys_stand_for_themselves() {
        for key in [
            "",
            "/",
            "/mine",
            "/default_pg/",
            "/default_pg/0",
            "/default_pg/0//cpu",
            "/default_pg/0//cpu//",
            "/default_pg/0//cpu//0/x",
            "/default_pg/0//tape//0/5",
            "/store_based_barrier_key:1",
            "\u{fffd}/last",
        ] {
            assert_eq!(read(key), None, "{key:?}");
        }
        assert_eq!(missing(&Blob::from(&b"\xff/default_pg/0//cpu//0/5"[..]), None), None);
    }

    #[test]
    fn a_namespace_is_told_from_a_key() {
        for (key, wanted) in [
            ("@29501#0:/k", Some("@29501#0")),
            ("@#12:/k:1", Some("@#12")),
            ("/k", None),
            ("@:@29501#0:/k", None),
            ("@29501:/k", None),
            ("@29501#x:/k", None),
            ("@29501#0", None),
        ] {
            assert_eq!(namespace(&Blob::from(key)), wanted, "{key}");
        }
    }

    #[test]
    fn a_barrier_that_counts_says_how_many_it_wants() {
        let one = missing(&Blob::from("/b"), Some(8)).unwrap();
        assert_eq!(one, Missing::Said("fewer than 8 have arrived at barrier b".to_owned()));
    }

    #[test]
    fn members_that_owe_the_same_are_named_together_and_within_bounds() {
        let keys = [5, 2, 3, 4, 9].map(|rank| format!("/default_pg/0//cpu//0/{rank}"));
        let all = keys.iter().filter_map(|key| missing(&Blob::from(key.as_str()), None)).collect();
        assert_eq!(sentence(&all), "ranks 2-5, 9 have not published their gloo address");
        let odd: Vec<u64> = (0..200).map(|n| n * 2).collect();
        assert!(ranges(&odd).ends_with("62, …"), "{}", ranges(&odd));
    }
}
