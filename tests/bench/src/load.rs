//! Closed-loop load: each worker does one operation after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_api::KeyValue;
use holdfast_client::{Consistency, Deadline, Keys};
use tokio::task::JoinSet;

use crate::arguments::Effort;
use crate::samples::Samples;
use crate::wire::Wire;

/// Longest that one operation may take before the measurement fails.
pub const OPERATION_TIME_MAX: Duration = Duration::from_secs(30);
/// Different keys that are written and read.
pub const KEYS: u64 = 10_000;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 128;

/// Does one operation at a time.
pub trait Worker: Send + 'static {
    /// Does the `n`-th operation.
    fn once(&mut self, n: u64) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The result of a load.
#[derive(Debug)]
pub struct Load {
    /// Operations answered per second.
    pub per_second: f64,
    /// Latency of each operation.
    pub latencies: Samples,
    /// How many operations were answered.
    pub operations: usize,
}

/// Loads with all workers at once, for the duration of the effort.
pub async fn closed_loop<W: Worker>(workers: Vec<W>, effort: &Effort) -> anyhow::Result<Load> {
    let from = Instant::now() + effort.warm_up;
    let until = from + effort.load;
    let mut running = JoinSet::new();
    let count = workers.len() as u64;
    for (place, mut worker) in workers.into_iter().enumerate() {
        running.spawn(async move {
            let mut latencies = Vec::new();
            let mut n = place as u64;
            loop {
                let begun = Instant::now();
                if begun >= until {
                    return anyhow::Ok(latencies);
                }
                worker.once(n).await?;
                if begun >= from {
                    latencies.push(begun.elapsed());
                }
                n += count;
            }
        });
    }
    let mut latencies = Vec::new();
    while let Some(worker) = running.join_next().await {
        latencies.extend(worker.context("a worker ended abnormally")??);
    }
    let took = from.elapsed();
    let operations = latencies.len();
    let per_second = operations as f64 / took.as_secs_f64();
    Ok(Load { per_second, latencies: Samples::from(latencies), operations })
}

/// The deadline of one operation.
pub fn soon() -> Deadline {
    Deadline::after(OPERATION_TIME_MAX)
}

/// The key of an operation: 16 bytes.
pub fn key(n: u64) -> Vec<u8> {
    format!("key-{:012}", n % KEYS).into_bytes()
}

/// Puts 128 bytes under keys of 16 bytes through the client.
#[derive(Debug, Clone)]
pub struct Put(pub Keys);

impl Worker for Put {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        self.0.put(key(n), vec![b'v'; VALUE_BYTES], soon()).await?;
        Ok(())
    }
}

/// Gets keys through the client, linearizably.
#[derive(Debug, Clone)]
pub struct Get(pub Keys);

impl Worker for Get {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let keys = self.0.clone().with_consistency(Consistency::Linearizable);
        keys.get(key(n), soon()).await?.context("a key that was put is not there")?;
        Ok(())
    }
}

/// Adds through the client to one counter that all share.
#[derive(Debug, Clone)]
pub struct AddShared(pub Keys);

impl Worker for AddShared {
    async fn once(&mut self, _n: u64) -> anyhow::Result<()> {
        self.0.add("counter", 1, soon()).await?;
        Ok(())
    }
}

/// A connection that one load after the other uses: opening many takes
/// PyTorch's server long, where its look-ups of names are slow.
pub type SharedWire = Arc<tokio::sync::Mutex<Wire>>;

/// Adds to one of many counters through the TCPStore door.
#[derive(Debug)]
pub struct DoorAdd(pub SharedWire);

impl Worker for DoorAdd {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let key = format!("/counter-{:07}", n % KEYS);
        within(self.0.lock().await.add(key.as_bytes(), 1)).await?;
        Ok(())
    }
}

/// A SET and the WAIT and GET of the same key through the TCPStore door.
#[derive(Debug)]
pub struct DoorSetGet(pub SharedWire);

impl Worker for DoorSetGet {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let key = door_key(n);
        let mut wire = self.0.lock().await;
        within(async {
            wire.set(&key, &[b'v'; VALUE_BYTES]).await?;
            wire.get(&key).await
        })
        .await?;
        Ok(())
    }
}

/// A CHECK of an existing key through the TCPStore door: one linearizable read.
#[derive(Debug)]
pub struct DoorCheck(pub SharedWire);

impl Worker for DoorCheck {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        within(self.0.lock().await.check(&door_key(n))).await?;
        Ok(())
    }
}

/// Bounds one operation of a protocol that knows no deadlines.
pub async fn within<T>(operation: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(OPERATION_TIME_MAX, operation)
        .await
        .with_context(|| format!("no answer within {OPERATION_TIME_MAX:?}"))?
}

/// Opens `count` TCPStore connections.
pub async fn wires(address: &str, count: usize) -> anyhow::Result<Vec<Wire>> {
    let mut wires = Vec::with_capacity(count);
    for _ in 0..count {
        wires.push(within(Wire::connect(address)).await?);
    }
    Ok(wires)
}

/// The key of an operation through the TCPStore door, but for the counters.
fn door_key(n: u64) -> Vec<u8> {
    format!("/{}", n % KEYS).into_bytes()
}

/// Sets all of these once, so that a CHECK finds each.
pub async fn fill_door(wire: &mut Wire) -> anyhow::Result<()> {
    within(async {
        for n in 0..KEYS {
            wire.set(&door_key(n), &[b'v'; VALUE_BYTES]).await?;
        }
        // A SET has no answer, and this one comes after all of them.
        wire.get(&door_key(KEYS - 1)).await
    })
    .await?;
    Ok(())
}

/// Puts all keys once, so that a read finds each.
pub async fn fill(keys: &Keys) -> anyhow::Result<()> {
    let entries =
        (0..KEYS).map(|n| KeyValue { key: key(n).into(), value: vec![b'v'; VALUE_BYTES].into() });
    keys.multi_put(entries.collect(), soon()).await?;
    Ok(())
}
