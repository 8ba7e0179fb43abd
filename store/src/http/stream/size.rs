//! How much memory replies take while they wait to be written: rough, and
//! never far too little.

use holdfast_api::{
    KeyEntry, KvOutcome, Outcome, PipelinedOutcome, ReadOutcome, Refusal, ReplyBody,
    TransactionOutcome,
};

use super::watching;

/// Roughly the bytes of a closed round.
fn closed_bytes(closed: &holdfast_api::Closed) -> usize {
    let members = closed.members.as_ref().map_or(0, |members| members.stretches().len() * 24);
    let payloads = closed.payloads.iter().flatten().map(|payload| payload.len() + 8).sum::<usize>();
    let differing = closed.differing.iter().map(|one| 32 + one.fields.len() * 16);
    256 + members + payloads + closed.absent.len() * 96 + differing.sum::<usize>()
}

/// Roughly the bytes of the numbers that a process gave.
fn policy_bytes(policy: &holdfast_api::Policy) -> usize {
    64 + policy.assignment_bytes()
}

/// Roughly the bytes of a key-value outcome.
fn kv_bytes(outcome: &KvOutcome) -> usize {
    match outcome {
        KvOutcome::Compared { value: Some(value), .. }
        | KvOutcome::Popped { value: Some(value), .. } => value.len(),
        KvOutcome::Transaction { outcomes, .. } => {
            let value = |outcome: &TransactionOutcome| match outcome {
                TransactionOutcome::Value { value: Some(value) } => value.len(),
                _ => 16,
            };
            outcomes.iter().map(value).sum()
        }
        _ => 64,
    }
}

/// Roughly the bytes of a refusal.
fn refusal_bytes(refusal: &Refusal) -> usize {
    match refusal {
        Refusal::NotANumber { key } => 256 + key.len(),
        _ => 256,
    }
}

/// Roughly the bytes of a reply.
pub(super) fn reply_bytes(body: &ReplyBody) -> usize {
    let entry =
        |e: &KeyEntry| 64 + e.key.len() + e.value.as_ref().map_or(0, holdfast_api::Blob::len);
    64 + match body {
        ReplyBody::Read(answer) => match &answer.outcome {
            ReadOutcome::Entry(found) => found.as_ref().map_or(0, entry),
            ReadOutcome::Entries(found) => found.iter().flatten().map(entry).sum(),
            ReadOutcome::Page { entries, .. } => entries.iter().map(entry).sum(),
            ReadOutcome::Closed(closed) => closed_bytes(closed),
            ReadOutcome::Plan(plan) => 64 + plan.closed.as_ref().map_or(0, closed_bytes),
            ReadOutcome::Feed(feed) => {
                let decisions = feed.decisions.len() + feed.ended.len();
                decisions * 96 + feed.closed.iter().map(closed_bytes).sum::<usize>()
            }
            ReadOutcome::Processes { processes, .. } => {
                processes.iter().map(|one| 256 + policy_bytes(&one.policy)).sum()
            }
            ReadOutcome::Rounds(rounds) => rounds
                .iter()
                .map(|r| {
                    let set = match &r.terms.among {
                        holdfast_api::Among::Set(set) => set.len() * 5,
                        holdfast_api::Among::Active | holdfast_api::Among::Generation(_) => 0,
                    };
                    let differing = r.differing.iter().map(|d| 32 + d.fields.len() * 16);
                    let differing =
                        differing.sum::<usize>() + r.policy.as_ref().map_or(0, policy_bytes);
                    512 + set + differing + r.arrived.stretches().len() * 24 + r.missing.len() * 96
                })
                .sum(),
            ReadOutcome::Events { events, .. } => events.len() * 160,
            _ => 64,
        },
        ReplyBody::Answer(answer) => match &answer.outcome {
            Outcome::Kv(outcome) => kv_bytes(outcome),
            Outcome::Pipeline(outcomes) => outcomes
                .iter()
                .map(|pipelined| match &pipelined.outcome {
                    PipelinedOutcome::Kv(outcome) => 32 + kv_bytes(outcome),
                    PipelinedOutcome::Refused(refusal) => refusal_bytes(refusal),
                })
                .sum(),
            Outcome::Refused(refusal) => refusal_bytes(refusal),
            _ => 64,
        },
        ReplyBody::Changes(batch) => watching::batch_bytes(batch),
        ReplyBody::Progress(progress) => progress.watches.len() * 20,
        ReplyBody::LeaderChanged { leader, .. } => leader.address.len(),
        _ => 256,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Answer, Blob, Pipelined};

    use super::*;

    #[test]
    fn refusals_are_as_long_as_the_keys_they_name() {
        let key = Blob::from(vec![b'k'; 8 * 1024]);
        let refusal = Refusal::NotANumber { key };
        let outcome = PipelinedOutcome::Refused(refusal.clone());
        let pipelined = vec![Pipelined { revision: 1, outcome }; 100];
        for (outcome, times) in
            [(Outcome::Refused(refusal), 1), (Outcome::Pipeline(pipelined), 100)]
        {
            let answer = ReplyBody::Answer(Answer { revision: 1, outcome, replayed: false });
            let length = rmp_serde::to_vec_named(&answer).expect("a reply can be encoded").len();
            assert!(length > times * 8 * 1024);
            assert!(reply_bytes(&answer) >= length, "{} for {length}", reply_bytes(&answer));
        }
    }
}
