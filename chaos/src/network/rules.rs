//! Rules for packets that reach a host, in the syntax of `nft`.

use std::net::Ipv4Addr;

/// One rule, at the entry of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// Everything from there is dropped.
    Drop {
        /// Address of the sender.
        from: Ipv4Addr,
    },
    /// So many of a hundred packets are dropped.
    Lose {
        /// Percentage of packets dropped.
        percent: u8,
        /// Where they come from; none = anywhere.
        from: Option<Ipv4Addr>,
    },
    /// Every packet of TCP is answered with a reset.
    Reset,
    /// Drops packets of open connections; new ones are let in, and freeze once they are open.
    DropOpen,
}

impl Rule {
    fn words(&self) -> String {
        match self {
            Rule::Drop { from } => format!("ip saddr {from} counter drop"),
            Rule::Lose { percent, from } => {
                let from = from.map(|from| format!("ip saddr {from} ")).unwrap_or_default();
                format!("{from}numgen random mod 100 < {percent} counter drop")
            }
            Rule::Reset => "meta l4proto tcp iif != lo counter reject with tcp reset".to_owned(),
            Rule::DropOpen => "iif != lo ct state established counter drop".to_owned(),
        }
    }
}

/// A table with these rules.
pub fn text(table: &str, rules: &[&Rule]) -> String {
    let rules: Vec<String> = rules.iter().map(|rule| rule.words()).collect();
    format!(
        "table inet {table} {{\n chain entry {{\n  type filter hook input priority 0;\n  {}\n }}\n}}\n",
        rules.join("\n  ")
    )
}

/// How many packets the counters in a listing have met.
pub fn packets(listing: &str) -> u64 {
    let mut words = listing.split_whitespace();
    let mut sum = 0;
    while let Some(word) = words.next() {
        if word == "packets" {
            sum += words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// Packets handled by a queueing discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// Packets that went through it.
    pub packets: u64,
    /// Packets that it put before others: netem counts them as requeued.
    pub requeued: u64,
}

/// Parses netem's part of `tc -s qdisc`; none if there is none.
pub fn netem(listing: &str) -> Option<Queued> {
    let own = listing.split("qdisc ").find(|part| part.starts_with("netem "))?;
    let words: Vec<&str> = own.split_whitespace().collect();
    let number = |at: Option<usize>| words.get(at?)?.trim_end_matches(')').parse().ok();
    let before = |name: &str| words.iter().position(|word| *word == name)?.checked_sub(1);
    let behind = |name: &str| Some(words.iter().position(|word| *word == name)? + 1);
    Some(Queued { packets: number(before("pkt"))?, requeued: number(behind("requeues"))? })
}

/// How many packets had to wait, by tbf's part of `tc -s qdisc`; none if there is none.
pub fn waited(listing: &str) -> Option<u64> {
    let own = listing.split("qdisc ").find(|part| part.starts_with("tbf "))?;
    let mut words = own.split_whitespace();
    words.find(|word| *word == "overlimits")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_in_the_words_of_nft() {
        let from = Ipv4Addr::new(198, 18, 77, 2);
        let text = text("t", &[&Rule::Drop { from }, &Rule::Lose { percent: 20, from: None }]);
        assert!(text.contains("ip saddr 198.18.77.2 counter drop\n"), "{text}");
        assert!(text.contains("numgen random mod 100 < 20 counter drop\n"), "{text}");
    }

    #[test]
    fn the_counters_of_a_listing_are_added_up() {
        let listing =
            "ip saddr 1.2.3.4 counter packets 12 bytes 99 drop\n counter packets 3 bytes 1 drop";
        assert_eq!(packets(listing), 15);
        assert_eq!(packets("nothing"), 0);
    }

    #[test]
    fn what_tbf_made_wait_is_read() {
        let listing = "qdisc tbf 8001: root refcnt 2 rate 512Kbit burst 8Kb lat 400ms \n \
                       Sent 99 bytes 7 pkt (dropped 1, overlimits 31 requeues 0) \n";
        assert_eq!(waited(listing), Some(31));
        assert_eq!(waited("qdisc netem 8001: root\n Sent 0 (dropped 0, overlimits 3"), None);
    }

    #[test]
    fn what_netem_has_handled_is_read() {
        let listing = "qdisc netem 8001: root refcnt 2 limit 1000 delay 10ms reorder 25% 50%\n \
                       Sent 5040 bytes 60 pkt (dropped 0, overlimits 0 requeues 14)\n \
                       backlog 84b 1p requeues 14\n";
        assert_eq!(netem(listing), Some(Queued { packets: 60, requeued: 14 }));
        assert_eq!(netem("qdisc noqueue 0: root refcnt 2\n Sent 0 bytes 0 pkt"), None);
    }
}
