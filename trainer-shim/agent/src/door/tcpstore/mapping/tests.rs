use holdfast_api::{KeyEntry, KvOutcome, Refusal};

use super::*;

fn mapping() -> Mapping {
    let scope = Scope { job: "j".parse().unwrap(), run: Some("r1".parse().unwrap()) };
    let limits = Limits { command_bytes_max: 8, command_keys_max: 3, ..Limits::default() };
    Mapping { scope, namespace: Namespace::first(), limits }
}

fn wrote(outcome: KvOutcome) -> CallAnswer {
    CallAnswer::Proposed(Outcome::Kv(outcome))
}

fn entry(key: &str, value: Option<&str>) -> KeyEntry {
    let value = value.map(Blob::from);
    KeyEntry { key: key.into(), value, created: 1, modified: 1, version: 1 }
}

/// The operation's call, and its step after the answer.
fn run(message: Message, answer: CallAnswer) -> (Call, Result<Step, Unanswerable>) {
    let mapping = mapping();
    let (mut operation, step) = mapping.begin(message);
    let Step::Call(call) = step else { panic!("{step:?} asks nothing") };
    (call, operation.resume(&mapping, answer))
}

fn kv(op: KvOp) -> Call {
    Call::Propose(Command::Kv { scope: mapping().scope, op })
}

#[test]
fn compare_set_answers_the_value_that_is_there_and_expected_for_an_absent_key() {
    let message =
        Message::CompareSet { key: "/k".into(), expected: "old".into(), desired: "new".into() };
    for (swapped, there, answer) in
        [(true, Some("new"), "new"), (false, Some("other"), "other"), (false, None, "old")]
    {
        let value = there.map(Blob::from);
        let outcome = KvOutcome::Compared { swapped, value, modified: 7 };
        let (call, step) = run(message.clone(), wrote(outcome));
        assert_eq!(
            call,
            kv(KvOp::CompareAndSet {
                key: "/k".into(),
                expected: "old".into(),
                desired: "new".into()
            })
        );
        assert_eq!(step, Ok(Step::Reply(Reply::Value(answer.into()))));
    }
}

#[test]
fn a_value_that_is_gone_reads_as_empty_bytes() {
    let scope = mapping().scope;
    let answer = CallAnswer::Read(ReadOutcome::Entry(None));
    let (call, step) = run(Message::Get { key: "/k".into() }, answer);
    assert_eq!(call, Call::Read(Read::Get { scope: scope.clone(), key: "/k".into() }));
    assert_eq!(step, Ok(Step::Reply(Reply::Value("".into()))));

    let keys: Vec<Blob> = vec!["/a".into(), "/b".into()];
    let answer = CallAnswer::Read(ReadOutcome::Entries(vec![None, Some(entry("/b", Some("B")))]));
    let (call, step) = run(Message::MultiGet { keys: keys.clone() }, answer);
    assert_eq!(call, Call::Read(Read::MultiGet { scope, keys }));
    assert_eq!(step, Ok(Step::Reply(Reply::Values(vec!["".into(), "B".into()]))));
}

#[test]
fn a_barrier_counts_an_arrival_and_waits_for_the_others() {
    let message = Message::Barrier { key: "/b".into(), world_size: 2 };
    let add = kv(KvOp::Add { key: "/b".into(), delta: 1 });
    let (call, step) = run(message.clone(), wrote(KvOutcome::Added { value: 1 }));
    let others = Condition { key: "/b".into(), until: Until::AtLeast(2) };
    assert_eq!((call, step), (add.clone(), Ok(Step::Wait(vec![others]))));
    for late in [2, 3] {
        let (call, step) = run(message.clone(), wrote(KvOutcome::Added { value: late }));
        assert_eq!((call, step), (add.clone(), Ok(Step::Reply(Reply::Released))));
    }
}

#[test]
fn a_wait_names_each_key_once_and_nothing_is_asked_about_no_keys() {
    let mapping = mapping();
    let (_, step) =
        mapping.begin(Message::Wait { keys: vec!["/b".into(), "/a".into(), "/b".into()] });
    let exists = |key: &str| Condition { key: key.into(), until: Until::Exists };
    assert_eq!(step, Step::Wait(vec![exists("/a"), exists("/b")]));

    for (message, reply) in [
        (Message::Wait { keys: vec![] }, Reply::Released),
        (Message::Check { keys: vec![] }, Reply::Checked(true)),
        (Message::MultiGet { keys: vec![] }, Reply::Values(vec![])),
    ] {
        assert_eq!(mapping.begin(message).1, Step::Reply(reply));
    }
    assert_eq!(mapping.begin(Message::MultiSet { entries: vec![] }).1, Step::Done);
}

#[test]
fn a_large_multi_set_is_cut_into_commands_in_its_order() {
    let pair = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
    let entries = vec![
        pair("/a", "1"),
        pair("/b", "22"),
        pair("/c", "a long value"),
        pair("a", ""),
        pair("b", ""),
        pair("c", ""),
        pair("d", ""),
    ];
    let mapping = mapping();
    let (mut operation, mut step) = mapping.begin(Message::MultiSet { entries: entries.clone() });
    let mut seen = Vec::new();
    while let Step::Call(Call::Propose(Command::Kv { op, .. })) = step {
        let KvOp::MultiPut { entries } = op else { panic!("{op:?}") };
        seen.push(entries);
        step = operation.resume(&mapping, wrote(KvOutcome::Written)).unwrap();
    }
    assert_eq!(step, Step::Done);
    assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 3, 1]);
    assert_eq!(seen.concat(), entries);
}

/// Carries out joined SETs on a store that refuses a command by how many SETs it has carried out,
/// and how many these are. Returns how many each command had, what the store has, and the end.
fn joined(
    entries: &[KeyValue],
    refuses: impl Fn(usize, usize) -> bool,
) -> (Vec<usize>, Vec<KeyValue>, Result<Step, Unanswerable>) {
    let mapping = mapping();
    let (mut operation, step) = mapping.begin_joined_sets(entries.to_vec());
    let (mut asked, mut written, mut step) = (Vec::new(), Vec::new(), Ok(step));
    while let Ok(Step::Call(Call::Propose(Command::Kv { op, .. }))) = step {
        let KvOp::MultiPut { entries } = op else { panic!("{op:?}") };
        asked.push(entries.len());
        let outcome = if refuses(written.len(), entries.len()) {
            Outcome::Refused(Refusal::NoSpace { limit: 1, what: None })
        } else {
            written.extend(entries);
            Outcome::Kv(KvOutcome::Written)
        };
        step = operation.resume(&mapping, CallAnswer::Proposed(outcome));
    }
    (asked, written, step)
}

fn pairs(count: usize) -> Vec<KeyValue> {
    let pair = |n| KeyValue { key: format!("/{n}").into_bytes().into(), value: "v".into() };
    (0..count).map(pair).collect()
}

#[test]
fn sets_that_are_refused_together_are_carried_out_up_to_the_one_that_is_refused() {
    let refused = || Err(Unanswerable::Refused(Refusal::NoSpace { limit: 1, what: None }));
    let eight = pairs(8);
    let (asked, written, end) = joined(&eight, |before, sets| before + sets > 5);
    assert_eq!((&asked[..], &written[..], end), (&[8, 4, 4, 2, 1, 1][..], &eight[..5], refused()));
    // As many as one command takes, which are refused in few.
    let all = pairs(4096);
    for room in [0, 1, 2047, 2048, 4095] {
        let (asked, written, end) = joined(&all, |before, sets| before + sets > room);
        assert_eq!((&written[..], end), (&all[..room], refused()));
        assert!(asked.len() <= 25, "{asked:?}");
    }
}

#[test]
fn sets_of_which_none_is_refused_by_itself_are_all_carried_out() {
    let eight = pairs(8);
    let (asked, written, end) = joined(&eight, |_, sets| sets > 3);
    assert_eq!((&asked[..], &written, end), (&[8, 4, 2, 2, 4, 2, 2][..], &eight, Ok(Step::Done)));
    // There is room for all of them meanwhile.
    let (asked, written, end) = joined(&eight, |before, sets| before == 0 && sets > 1);
    assert_eq!((&asked[..], &written, end), (&[8, 4, 2, 1, 1, 2, 4][..], &eight, Ok(Step::Done)));
}

#[test]
fn list_keys_reads_page_after_page() {
    let mapping = mapping();
    let (mut operation, _) = mapping.begin(Message::ListKeys);
    let page = |keys: &[&str], next: Option<&str>| {
        let entries = keys.iter().map(|key| entry(key, None)).collect();
        CallAnswer::Read(ReadOutcome::Page { entries, next: next.map(Blob::from) })
    };
    let step = operation.resume(&mapping, page(&["/a", "/b"], Some("/b"))).unwrap();
    let Step::Call(Call::Read(Read::List { after, keys_only, .. })) = step else {
        panic!("{step:?}")
    };
    assert_eq!((after, keys_only), (Some("/b".into()), true));
    let step = operation.resume(&mapping, page(&["init/"], None)).unwrap();
    let all = vec!["/a".into(), "/b".into(), "init/".into()];
    assert_eq!(step, Step::Reply(Reply::Keys(all)));
}

#[test]
fn the_keys_of_other_namespaces_are_neither_listed_nor_counted() {
    let mut mapping = mapping();
    let asked = |prefix: &str| {
        let scope = mapping.scope.clone();
        Step::Call(Call::Read(Read::Count { scope, prefix: prefix.into() }))
    };
    let count = |count| CallAnswer::Read(ReadOutcome::Count { count });
    let (mut operation, step) = mapping.begin(Message::GetNumKeys);
    assert_eq!(step, asked(""));
    assert_eq!(operation.resume(&mapping, count(9)), Ok(asked("@")));
    assert_eq!(operation.resume(&mapping, count(4)), Ok(asked("@:")));
    let six = Step::Reply(Reply::Number(6));
    assert_eq!(operation.resume(&mapping, count(1)), Ok(six.clone()));
    // Where nothing carries a mark, the third question is spared.
    let (mut operation, _) = mapping.begin(Message::GetNumKeys);
    operation.resume(&mapping, count(6)).unwrap();
    assert_eq!(operation.resume(&mapping, count(0)), Ok(six.clone()));

    let (mut operation, _) = mapping.begin(Message::ListKeys);
    let keys = ["/a", "@#1:/a", "@29501#0:/a", "@:@x"];
    let entries = keys.iter().map(|key| entry(key, None)).collect();
    let page = CallAnswer::Read(ReadOutcome::Page { entries, next: None });
    let own = Step::Reply(Reply::Keys(vec!["/a".into(), "@x".into()]));
    assert_eq!(operation.resume(&mapping, page), Ok(own));

    let asked = asked("@29501#0:");
    mapping.namespace = Namespace::of_port(29501);
    let (mut operation, step) = mapping.begin(Message::GetNumKeys);
    assert_eq!(step, asked);
    assert_eq!(operation.resume(&mapping, count(6)), Ok(six));
    let (_, step) = mapping.begin(Message::Get { key: "/a".into() });
    let scope = mapping.scope.clone();
    assert_eq!(step, Step::Call(Call::Read(Read::Get { scope, key: "@29501#0:/a".into() })));
}

#[test]
fn an_answer_beyond_its_limit_is_not_given() {
    let mut mapping = mapping();
    mapping.limits.answer_bytes_max = 9;
    let (mut operation, _) = mapping.begin(Message::ListKeys);
    let page = ReadOutcome::Page { entries: vec![entry("/a", None)], next: None };
    let step = operation.resume(&mapping, CallAnswer::Read(page));
    assert_eq!(step, Err(Unanswerable::TooLong { limit: 9 }));
}

#[test]
fn the_simple_operations_translate_one_to_one() {
    let key = || Blob::from("/k");
    let value = || Blob::from("v");
    let scope = || mapping().scope;
    let count = |count| CallAnswer::Read(ReadOutcome::Count { count });
    let cases = [
        (
            Message::Set { key: key(), value: value() },
            kv(KvOp::Put { key: key(), value: value() }),
            wrote(KvOutcome::Written),
            Step::Done,
        ),
        (
            Message::Append { key: key(), value: value() },
            kv(KvOp::Append { key: key(), value: value() }),
            wrote(KvOutcome::Written),
            Step::Done,
        ),
        (
            Message::Add { key: key(), delta: -7 },
            kv(KvOp::Add { key: key(), delta: -7 }),
            wrote(KvOutcome::Added { value: -2 }),
            Step::Reply(Reply::Number(-2)),
        ),
        (
            Message::DeleteKey { key: key() },
            kv(KvOp::Delete { key: key() }),
            wrote(KvOutcome::Deleted { existed: true }),
            Step::Reply(Reply::Number(1)),
        ),
        (
            Message::QueuePush { key: key(), value: value() },
            kv(KvOp::QueuePush { key: key(), value: value() }),
            wrote(KvOutcome::Pushed { length: 1 }),
            Step::Done,
        ),
        (
            Message::QueuePop { key: key() },
            kv(KvOp::QueuePop { key: key() }),
            wrote(KvOutcome::Popped { length: 2, value: Some(value()) }),
            Step::Reply(Reply::Popped { length: 2, front: Some(value()) }),
        ),
        (
            Message::QueueLen { key: key() },
            Call::Read(Read::QueueLength { scope: scope(), key: key() }),
            count(3),
            Step::Reply(Reply::Number(3)),
        ),
        (
            Message::Check { keys: vec![key()] },
            Call::Read(Read::Check { scope: scope(), keys: vec![key()] }),
            CallAnswer::Read(ReadOutcome::Checked { all_exist: false }),
            Step::Reply(Reply::Checked(false)),
        ),
    ];
    for (message, call, answer, step) in cases {
        assert_eq!(run(message, answer), (call, Ok(step)));
    }
}

#[test]
fn a_refusal_and_an_answer_to_another_question_have_no_reply() {
    let refusal = Refusal::NotANumber { key: "/k".into() };
    let add = || Message::Add { key: "/k".into(), delta: 1 };
    let (_, step) = run(add(), CallAnswer::Proposed(Outcome::Refused(refusal.clone())));
    assert_eq!(step, Err(Unanswerable::Refused(refusal)));
    let (_, step) = run(add(), wrote(KvOutcome::Written));
    assert_eq!(step, Err(Unanswerable::OutOfTurn));
}

/// Answers the reads of a MULTI_GET as a store does that reads `bytes_max` at a time; returns how
/// many keys each read asked for, and the client's reply.
fn gathered(sizes: &[usize], bytes_max: usize) -> (Vec<usize>, Result<Step, Unanswerable>) {
    let mapping =
        Mapping { limits: Limits { answer_bytes_max: 100, ..mapping().limits }, ..mapping() };
    let keys = (0..sizes.len()).map(|key| Blob::from(format!("/{key}").into_bytes())).collect();
    let (mut operation, mut step) = mapping.begin(Message::MultiGet { keys });
    let (mut asked, mut at) = (Vec::new(), 0);
    loop {
        let Step::Call(Call::Read(Read::MultiGet { keys, .. })) = &step else {
            return (asked, Ok(step));
        };
        asked.push(keys.len());
        assert_eq!(keys[0], Blob::from(format!("/{at}").into_bytes()), "in their order");
        let found = &sizes[at..at + keys.len()];
        let size: usize = found.iter().sum();
        let outcome = if size > bytes_max {
            let what = "command_bytes_max".to_owned();
            ReadOutcome::Refused(Refusal::LimitExceeded {
                what,
                size: size as u64,
                limit: bytes_max as u64,
            })
        } else {
            at += keys.len();
            let value = |size: &usize| Some(entry("/k", Some(&"v".repeat(*size))));
            ReadOutcome::Entries(found.iter().map(value).collect())
        };
        step = match operation.resume(&mapping, CallAnswer::Read(outcome)) {
            Ok(step) => step,
            Err(error) => return (asked, Err(error)),
        };
        let held: usize = sizes[..at].iter().sum();
        assert!(!matches!(step, Step::Call(_)) || operation.held_bytes() == held);
    }
}

#[test]
fn a_multi_get_that_is_too_long_for_one_read_is_several() {
    let values = |sizes: &[usize]| {
        let values = sizes.iter().map(|size| "v".repeat(*size).into_bytes().into()).collect();
        Ok(Step::Reply(Reply::Values(values)))
    };
    for (sizes, asked) in [
        (&[4, 4][..], &[2][..]),
        // Halves until they fit, and twice as many after those that did.
        (&[8, 8, 8, 8], &[4, 2, 1, 2, 1, 2, 1, 1]),
        (&[8, 8, 1, 1, 1, 1, 1, 1], &[8, 4, 2, 1, 2, 4, 1]),
    ] {
        let (found, step) = gathered(sizes, 10);
        assert_eq!(step, values(sizes), "{sizes:?}");
        assert_eq!(found, asked, "{sizes:?}");
    }
    let (asked, step) = gathered(&[8; 13], 10);
    assert_eq!(step, Err(Unanswerable::TooLong { limit: 100 }));
    assert!(asked.len() < 40, "{asked:?}");
    // The store does not give this value even alone: no shorter read is left.
    let (asked, step) = gathered(&[8, 11], 10);
    assert!(matches!(step, Err(Unanswerable::Refused(_))), "{step:?}");
    assert_eq!(asked, [2, 1, 1]);
}
