//! Bytes on the wire between PyTorch 2.15's client and its own server, one entry
//! for each call of the Python API: what each message is, and its reply.

use holdfast_agent::door::tcpstore::codec::{Message, Reply};
use holdfast_api::{Blob, KeyValue};

/// One message as the client sent it, and the server's reply to it, in hex.
pub struct Exchange {
    pub request: &'static str,
    pub message: Message,
    pub answer: &'static str,
    pub reply: Option<Reply>,
}

fn b(text: &str) -> Blob {
    text.into()
}

fn bytes(bytes: &[u8]) -> Blob {
    bytes.into()
}

fn pair(key: Blob, value: Blob) -> KeyValue {
    KeyValue { key, value }
}

fn silent(request: &'static str, message: Message) -> Exchange {
    Exchange { request, message, answer: "", reply: None }
}

fn answered(
    request: &'static str,
    message: Message,
    answer: &'static str,
    reply: Reply,
) -> Exchange {
    Exchange { request, message, answer, reply: Some(reply) }
}

/// Every call that was recorded, with its messages in order.
pub fn calls() -> Vec<(&'static str, Vec<Exchange>)> {
    let mut calls = Vec::new();
    calls.extend(calls_1());
    calls.extend(calls_2());
    calls.extend(calls_3());
    calls.extend(calls_4());
    calls
}

fn calls_1() -> Vec<(&'static str, Vec<Exchange>)> {
    vec![
        ("connect", vec![
            silent("00cef7853c", Message::Validate),
            answered("0da1570000", Message::Ping { nonce: 22433 }, "a1570000", Reply::Pong(22433)),
        ]),
        ("connect world_size=1 wait_for_workers", vec![
            silent("00cef7853c", Message::Validate),
            answered("0da1570000", Message::Ping { nonce: 22433 }, "a1570000", Reply::Pong(22433)),
            answered("040500000000000000696e69742f0100000000000000", Message::Add { key: b("init/"), delta: 1 }, "0100000000000000", Reply::Number(1)),
        ]),
        ("set k v", vec![
            silent("0102000000000000002f6b010000000000000076", Message::Set { key: b("/k"), value: b("v") }),
        ]),
        ("get k", vec![
            answered("06010000000000000002000000000000002f6b", Message::Wait { keys: vec![b("/k")] }, "00", Reply::Released),
            answered("0302000000000000002f6b", Message::Get { key: b("/k") }, "010000000000000076", Reply::Value(b("v"))),
        ]),
        ("set empty value", vec![
            silent("0102000000000000002f650000000000000000", Message::Set { key: b("/e"), value: b("") }),
        ]),
        ("get empty value", vec![
            answered("06010000000000000002000000000000002f65", Message::Wait { keys: vec![b("/e")] }, "00", Reply::Released),
            answered("0302000000000000002f65", Message::Get { key: b("/e") }, "0000000000000000", Reply::Value(b(""))),
        ]),
        ("set empty key", vec![
            silent("0101000000000000002f010000000000000078", Message::Set { key: b("/"), value: b("x") }),
        ]),
        ("get empty key", vec![
            answered("06010000000000000001000000000000002f", Message::Wait { keys: vec![b("/")] }, "00", Reply::Released),
            answered("0301000000000000002f", Message::Get { key: b("/") }, "010000000000000078", Reply::Value(b("x"))),
        ]),
        ("add n 5", vec![
            answered("0402000000000000002f6e0500000000000000", Message::Add { key: b("/n"), delta: 5 }, "0500000000000000", Reply::Number(5)),
        ]),
        ("add n -7", vec![
            answered("0402000000000000002f6ef9ffffffffffffff", Message::Add { key: b("/n"), delta: -7 }, "feffffffffffffff", Reply::Number(-2)),
        ]),
        ("get n", vec![
            answered("06010000000000000002000000000000002f6e", Message::Wait { keys: vec![b("/n")] }, "00", Reply::Released),
            answered("0302000000000000002f6e", Message::Get { key: b("/n") }, "02000000000000002d32", Reply::Value(b("-2"))),
        ]),
        ("check [k]", vec![
            answered("05010000000000000002000000000000002f6b", Message::Check { keys: vec![b("/k")] }, "00", Reply::Checked(true)),
        ]),
        ("check [k,missing]", vec![
            answered("05020000000000000002000000000000002f6b08000000000000002f6d697373696e67", Message::Check { keys: vec![b("/k"), b("/missing")] }, "01", Reply::Checked(false)),
        ]),
        ("check []", vec![
            answered("050000000000000000", Message::Check { keys: vec![] }, "00", Reply::Checked(true)),
        ]),
        ("wait [k,n]", vec![
            answered("06020000000000000002000000000000002f6b02000000000000002f6e", Message::Wait { keys: vec![b("/k"), b("/n")] }, "00", Reply::Released),
        ]),
        ("wait missing 150ms (timeout)", vec![
            silent("06010000000000000008000000000000002f6d697373696e67", Message::Wait { keys: vec![b("/missing")] }),
            answered("0c", Message::CancelWait, "01", Reply::Cancelled),
        ]),
    ]
}

fn calls_2() -> Vec<(&'static str, Vec<Exchange>)> {
    vec![
        ("after cancel: get k", vec![
            answered("06010000000000000002000000000000002f6b", Message::Wait { keys: vec![b("/k")] }, "00", Reply::Released),
            answered("0302000000000000002f6b", Message::Get { key: b("/k") }, "010000000000000076", Reply::Value(b("v"))),
        ]),
        ("num_keys", vec![
            answered("07", Message::GetNumKeys, "0500000000000000", Reply::Number(5)),
        ]),
        ("compare_set absent, expected=''", vec![
            answered("0202000000000000002f630000000000000000010000000000000041", Message::CompareSet { key: b("/c"), expected: b(""), desired: b("A") }, "010000000000000041", Reply::Value(b("A"))),
        ]),
        ("compare_set absent, expected='zz'", vec![
            answered("0203000000000000002f633202000000000000007a7a010000000000000041", Message::CompareSet { key: b("/c2"), expected: b("zz"), desired: b("A") }, "02000000000000007a7a", Reply::Value(b("zz"))),
        ]),
        ("check c2 after failed CAS", vec![
            answered("05010000000000000003000000000000002f6332", Message::Check { keys: vec![b("/c2")] }, "01", Reply::Checked(false)),
        ]),
        ("compare_set match", vec![
            answered("0202000000000000002f63010000000000000041010000000000000042", Message::CompareSet { key: b("/c"), expected: b("A"), desired: b("B") }, "010000000000000042", Reply::Value(b("B"))),
        ]),
        ("compare_set mismatch", vec![
            answered("0202000000000000002f63010000000000000058010000000000000043", Message::CompareSet { key: b("/c"), expected: b("X"), desired: b("C") }, "010000000000000042", Reply::Value(b("B"))),
        ]),
        ("compare_set present, expected='' mismatch", vec![
            answered("0202000000000000002f630000000000000000010000000000000043", Message::CompareSet { key: b("/c"), expected: b(""), desired: b("C") }, "010000000000000042", Reply::Value(b("B"))),
        ]),
        ("compare_set expected='' on present-empty value", vec![
            answered("0202000000000000002f650000000000000000010000000000000045", Message::CompareSet { key: b("/e"), expected: b(""), desired: b("E") }, "010000000000000045", Reply::Value(b("E"))),
        ]),
        ("delete k", vec![
            answered("0802000000000000002f6b", Message::DeleteKey { key: b("/k") }, "0100000000000000", Reply::Number(1)),
        ]),
        ("delete missing", vec![
            answered("0802000000000000002f6b", Message::DeleteKey { key: b("/k") }, "0000000000000000", Reply::Number(0)),
        ]),
        ("append new", vec![
            silent("0903000000000000002f617002000000000000006162", Message::Append { key: b("/ap"), value: b("ab") }),
        ]),
        ("append existing", vec![
            silent("0903000000000000002f617002000000000000006364", Message::Append { key: b("/ap"), value: b("cd") }),
        ]),
        ("get ap", vec![
            answered("06010000000000000003000000000000002f6170", Message::Wait { keys: vec![b("/ap")] }, "00", Reply::Released),
            answered("0303000000000000002f6170", Message::Get { key: b("/ap") }, "040000000000000061626364", Reply::Value(b("abcd"))),
        ]),
        ("multi_set", vec![
            silent("0b020000000000000003000000000000002f6d3101000000000000003103000000000000002f6d3202000000000000003232", Message::MultiSet { entries: vec![pair(b("/m1"), b("1")), pair(b("/m2"), b("22"))] }),
        ]),
        ("multi_get", vec![
            answered("06020000000000000003000000000000002f6d3103000000000000002f6d32", Message::Wait { keys: vec![b("/m1"), b("/m2")] }, "00", Reply::Released),
            answered("0a020000000000000003000000000000002f6d3103000000000000002f6d32", Message::MultiGet { keys: vec![b("/m1"), b("/m2")] }, "01000000000000003102000000000000003232", Reply::Values(vec![b("1"), b("22")])),
        ]),
    ]
}

fn calls_3() -> Vec<(&'static str, Vec<Exchange>)> {
    vec![
        ("binary value", vec![
            silent("0104000000000000002f62696e08000000000000000001020304050607", Message::Set { key: b("/bin"), value: bytes(&[0, 1, 2, 3, 4, 5, 6, 7]) }),
        ]),
        ("queue_push", vec![
            silent("0e02000000000000002f7102000000000000007631", Message::QueuePush { key: b("/q"), value: b("v1") }),
        ]),
        ("queue_len", vec![
            answered("1002000000000000002f71", Message::QueueLen { key: b("/q") }, "0100000000000000", Reply::Number(1)),
        ]),
        ("queue_pop", vec![
            answered("06010000000000000002000000000000002f71", Message::Wait { keys: vec![b("/q")] }, "00", Reply::Released),
            answered("0f02000000000000002f71", Message::QueuePop { key: b("/q") }, "010000000000000002000000000000007631", Reply::Popped { length: 1, front: Some(b("v1")) }),
        ]),
        ("queue_pop empty nonblock", vec![
            answered("0f02000000000000002f71", Message::QueuePop { key: b("/q") }, "0000000000000000", Reply::Popped { length: 0, front: None }),
        ]),
        ("queue_len missing", vec![
            answered("1003000000000000002f7171", Message::QueueLen { key: b("/qq") }, "0000000000000000", Reply::Number(0)),
        ]),
        ("list_keys", vec![
            answered("11", Message::ListKeys, "090000000000000003000000000000002f6d3203000000000000002f617002000000000000002f6301000000000000002f04000000000000002f62696e03000000000000002f6d3102000000000000002f6502000000000000002f6e0500000000000000696e69742f", Reply::Keys(vec![b("/m2"), b("/ap"), b("/c"), b("/"), b("/bin"), b("/m1"), b("/e"), b("/n"), b("init/")])),
        ]),
        ("barrier b 1", vec![
            answered("1202000000000000002f620100000000000000", Message::Barrier { key: b("/b"), world_size: 1 }, "00", Reply::Released),
        ]),
        ("get b after barrier", vec![
            answered("06010000000000000002000000000000002f62", Message::Wait { keys: vec![b("/b")] }, "00", Reply::Released),
            answered("0302000000000000002f62", Message::Get { key: b("/b") }, "010000000000000031", Reply::Value(b("1"))),
        ]),
        ("barrier b2 2 timeout 150ms", vec![
            silent("1203000000000000002f62320200000000000000", Message::Barrier { key: b("/b2"), world_size: 2 }),
            answered("0c", Message::CancelWait, "01", Reply::Cancelled),
        ]),
        ("get b2 after timed-out barrier", vec![
            answered("06010000000000000003000000000000002f6232", Message::Wait { keys: vec![b("/b2")] }, "00", Reply::Released),
            answered("0303000000000000002f6232", Message::Get { key: b("/b2") }, "010000000000000031", Reply::Value(b("1"))),
        ]),
        ("barrier b2 2 again (count reaches 2)", vec![
            answered("1203000000000000002f62320200000000000000", Message::Barrier { key: b("/b2"), world_size: 2 }, "00", Reply::Released),
        ]),
        ("barrier b2 2 again (count 3)", vec![
            answered("1203000000000000002f62320200000000000000", Message::Barrier { key: b("/b2"), world_size: 2 }, "00", Reply::Released),
        ]),
        ("get later (released by other client)", vec![
            answered("06010000000000000006000000000000002f6c61746572", Message::Wait { keys: vec![b("/later")] }, "00", Reply::Released),
            answered("0306000000000000002f6c61746572", Message::Get { key: b("/later") }, "01000000000000004c", Reply::Value(b("L"))),
        ]),
        ("get missing 2s timeout", vec![
            silent("06010000000000000005000000000000002f6e6f7065", Message::Wait { keys: vec![b("/nope")] }),
            answered("0c", Message::CancelWait, "01", Reply::Cancelled),
        ]),
        ("clone", vec![
            silent("00cef7853c", Message::Validate),
            answered("0da1570000", Message::Ping { nonce: 22433 }, "a1570000", Reply::Pong(22433)),
        ]),
    ]
}

fn calls_4() -> Vec<(&'static str, Vec<Exchange>)> {
    vec![
        ("PrefixStore set", vec![
            silent("0106000000000000002f7072652f6b010000000000000076", Message::Set { key: b("/pre/k"), value: b("v") }),
        ]),
        ("PrefixStore add", vec![
            answered("0406000000000000002f7072652f6e0100000000000000", Message::Add { key: b("/pre/n"), delta: 1 }, "0100000000000000", Reply::Number(1)),
        ]),
        ("PrefixStore list_keys", vec![
            answered("11", Message::ListKeys, "0e0000000000000006000000000000002f7072652f6e02000000000000002f6e02000000000000002f650500000000000000696e69742f03000000000000002f6d3104000000000000002f62696e02000000000000002f6206000000000000002f6c6174657201000000000000002f02000000000000002f6303000000000000002f617003000000000000002f6d3203000000000000002f623206000000000000002f7072652f6b", Reply::Keys(vec![b("/pre/n"), b("/n"), b("/e"), b("init/"), b("/m1"), b("/bin"), b("/b"), b("/later"), b("/"), b("/c"), b("/ap"), b("/m2"), b("/b2"), b("/pre/k")])),
        ]),
        ("PrefixStore num_keys", vec![
            answered("07", Message::GetNumKeys, "0e00000000000000", Reply::Number(14)),
        ]),
        ("PrefixStore compare_set", vec![
            answered("0206000000000000002f7072652f6b010000000000000076010000000000000077", Message::CompareSet { key: b("/pre/k"), expected: b("v"), desired: b("w") }, "010000000000000077", Reply::Value(b("w"))),
        ]),
        ("PrefixStore multi_get", vec![
            answered("06020000000000000006000000000000002f7072652f6b06000000000000002f7072652f6e", Message::Wait { keys: vec![b("/pre/k"), b("/pre/n")] }, "00", Reply::Released),
            answered("0a020000000000000006000000000000002f7072652f6b06000000000000002f7072652f6e", Message::MultiGet { keys: vec![b("/pre/k"), b("/pre/n")] }, "010000000000000077010000000000000031", Reply::Values(vec![b("w"), b("1")])),
        ]),
        ("PrefixStore barrier", vec![
            answered("0413000000000000002f7072652f62622f6e756d5f6d656d626572730100000000000000", Message::Add { key: b("/pre/bb/num_members"), delta: 1 }, "0100000000000000", Reply::Number(1)),
            silent("0113000000000000002f7072652f62622f6c6173745f6d656d626572010000000000000031", Message::Set { key: b("/pre/bb/last_member"), value: b("1") }),
            answered("06010000000000000013000000000000002f7072652f62622f6c6173745f6d656d626572", Message::Wait { keys: vec![b("/pre/bb/last_member")] }, "00", Reply::Released),
        ]),
        ("add on '12abc'", vec![
            answered("0404000000000000002f7478740100000000000000", Message::Add { key: b("/txt"), delta: 1 }, "0d00000000000000", Reply::Number(13)),
        ]),
        ("add on '  7'", vec![
            answered("0404000000000000002f7478740100000000000000", Message::Add { key: b("/txt"), delta: 1 }, "0800000000000000", Reply::Number(8)),
        ]),
        ("add on '' (empty)", vec![
            silent("0404000000000000002f7478740100000000000000", Message::Add { key: b("/txt"), delta: 1 }),
        ]),
        ("reconnect", vec![
            silent("00cef7853c", Message::Validate),
            answered("0da1570000", Message::Ping { nonce: 22433 }, "a1570000", Reply::Pong(22433)),
        ]),
        ("add on 'abc'", vec![
            silent("0404000000000000002f7478740100000000000000", Message::Add { key: b("/txt"), delta: 1 }),
        ]),
        ("add overflow", vec![
            answered("0404000000000000002f6269670100000000000000", Message::Add { key: b("/big"), delta: 1 }, "0000000000000080", Reply::Number(i64::MIN)),
        ]),
    ]
}

