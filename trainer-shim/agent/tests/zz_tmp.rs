use holdfast_agent::door::tcpstore::{Limits, serve::{Door, Options}};
use tokio::io::*;
fn rss() -> u64 { std::fs::read_to_string("/proc/self/status").unwrap().lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap() }
#[tokio::test(flavor="multi_thread")]
async fn idle() {
    let client = holdfast_client::Client::new(holdfast_client::Options::new(vec!["127.0.0.1:1".into()]));
    let door = Door::new(client, Default::default(), Options { store_lost_deadline: std::time::Duration::from_secs(300), limits: Limits::default() });
    let l = tokio::net::TcpSocket::new_v4().unwrap(); l.bind("127.0.0.1:0".parse().unwrap()).unwrap(); let l = l.listen(4096).unwrap();
    let a = l.local_addr().unwrap();
    let s = tokio_util::sync::CancellationToken::new();
    let mut set = tokio::task::JoinSet::new(); set.spawn(door.run(l, s.clone()));
    let before = rss();
    let mut v = vec![];
    let t = std::time::Instant::now();
    for _ in 0..9000 { 
        let mut c = tokio::net::TcpStream::connect(a).await.unwrap();
        c.write_all(&[0,0xce,0xf7,0x85,0x3c,13,1,2,3,4]).await.unwrap();
        let mut b=[0;4]; c.read_exact(&mut b).await.unwrap(); v.push(c);
    }
    eprintln!("{} kB for 9000 in {:?}", rss()-before, t.elapsed());
}
