//! The ports that an agent serves: taken, opened and closed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use holdfast_api::Name;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{Error, LISTENERS_MAX, STORE_PORTS_MAX};
use crate::descriptors::Room;
use crate::door::tcpstore::presence::Presence;
use crate::door::tcpstore::serve::{Door, Restored};
use crate::keeper::link::{About, HandedPort, Keeper};
use crate::namespace::Namespace;
use crate::ports::{Bound, Listener};

/// How often ports are tried that a keeper is just closing, and the pause between.
const TAKE_TRIES: usize = 40;
const TAKE_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Ports {
    door: Door,
    presence: Presence,
    open: Vec<Open>,
    serving: JoinSet<()>,
    /// Ports for stores of programs.
    stores_max: usize,
    shutdown: CancellationToken,
    keeper: Option<Keeper>,
}

struct Open {
    address: SocketAddr,
    namespace: Namespace,
    /// Opened by name while the agent runs, and closed when it is over.
    by_name: bool,
    close: CancellationToken,
}

impl Ports {
    pub(super) fn new(door: Door, shutdown: CancellationToken, keeper: Option<Keeper>) -> Ports {
        let presence = door.handle().presence().clone();
        let (open, serving) = (Vec::new(), JoinSet::new());
        let stores_max = STORE_PORTS_MAX.min(Room::of_process().store_ports());
        Ports { door, presence, open, serving, stores_max, shutdown, keeper }
    }

    /// Goes on with the ports of the agent before. A connection to one of them is visible to all
    /// others, so none is served before all are taken up.
    pub(super) fn restore(&mut self, ports: Vec<HandedPort>) {
        let mut restored = Vec::new();
        for HandedPort { address, namespace, by_name, port, connections } in ports {
            if let (true, false, Some(name)) = (by_name, namespace.is_of_store(), namespace.name())
            {
                // Nothing is being collected yet.
                let _ = self.presence.open(name);
            }
            port.go_on();
            let connections = self.door.restore(connections, namespace.clone());
            restored.push((
                Listener::Kept(address, port),
                address,
                namespace,
                by_name,
                connections,
            ));
        }
        self.door.is_restored();
        for (listener, address, namespace, by_name, connections) in restored {
            self.start_with(listener, address, namespace, by_name, connections);
        }
    }

    /// Whether nothing is served any more: when drained, the doors end before
    /// they are stopped.
    pub(super) fn is_empty(&self) -> bool {
        self.serving.is_empty()
    }

    /// Ready when one of them has ended, or at once if there is none.
    pub(super) async fn one_ends(&mut self) {
        if let Some(ended) = self.serving.join_next().await {
            report_panic(ended);
        }
    }

    pub(super) fn serve(&mut self, listener: Listener, address: SocketAddr, namespace: Namespace) {
        self.start(listener, address, namespace, false);
    }

    fn start(
        &mut self,
        listener: Listener,
        address: SocketAddr,
        namespace: Namespace,
        by_name: bool,
    ) {
        self.start_with(listener, address, namespace, by_name, Restored::default());
    }

    fn start_with(
        &mut self,
        listener: Listener,
        address: SocketAddr,
        namespace: Namespace,
        by_name: bool,
        restored: Restored,
    ) {
        let close = self.shutdown.child_token();
        let door = self.door.clone();
        self.serving.spawn(door.go_on(listener, namespace.clone(), restored, close.clone()));
        self.open.push(Open { address, namespace, by_name, close });
    }

    /// Opens those of these ports that are not open yet: all, or none of them.
    /// `first` are those from the start.
    pub(super) fn add_at(
        &mut self,
        addresses: &[SocketAddr],
        first: &[SocketAddr],
    ) -> Result<(), Error> {
        let is_open = |address: &SocketAddr| self.open.iter().any(|open| open.address == *address);
        let new: BTreeSet<SocketAddr> =
            addresses.iter().filter(|address| !is_open(address)).copied().collect();
        self.room_for(new.len())?;
        // A client must not make the agent reachable where it was not.
        if first.iter().all(|address| address.ip().is_loopback())
            && let Some(address) = new.iter().find(|address| !address.ip().is_loopback())
        {
            return Err(Error::NotLoopback { address: *address });
        }
        let listening = new.into_iter().map(|address| {
            let namespace = namespace_of(address, first);
            let bound = take(address)?;
            if let Some(name) = namespace.name() {
                self.presence.keep(name)?;
            }
            let address = bound.address();
            let listener = listen(bound, &namespace, false, self.keeper.as_ref())?;
            Ok((address, listener, namespace))
        });
        let listening = listening.collect::<Result<Vec<_>, Error>>()?;
        for (address, listener, namespace) in listening {
            self.begin(listener, address, namespace, false);
        }
        Ok(())
    }

    /// Opens a port under this name, or answers the one that is open.
    pub(super) fn add_named(&mut self, name: Name) -> Result<SocketAddr, Error> {
        let namespace = Namespace::named(name.clone());
        let same = |open: &&Open| open.namespace == namespace;
        // A number may be the name of a port that stays.
        if let Some(lasting) = self.open.iter().filter(same).find(|open| !open.by_name) {
            return Ok(lasting.address);
        }
        if let Some(open) = self.open.iter().find(same) {
            self.presence.open(&name)?;
            return Ok(open.address);
        }
        // With several ports, `MASTER_ADDR` is that of IPv6.
        let v6 = [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED].map(IpAddr::from);
        let is_v6 = |open: &Open| !open.by_name && v6.contains(&open.address.ip());
        let also_v6 = self.open.iter().any(is_v6);
        self.room_for(1 + usize::from(also_v6))?;
        let taken = Bound::take_free(also_v6).map_err(|reason| Error::NoFreePort { reason });
        let (first, second) = taken?;
        self.presence.open(&name)?;
        let answer = first.address();
        let listening = [Some(first), second].into_iter().flatten().map(|bound| {
            let address = bound.address();
            Ok((address, listen(bound, &namespace, true, self.keeper.as_ref())?))
        });
        for (address, listener) in listening.collect::<Result<Vec<_>, Error>>()? {
            self.begin(listener, address, namespace.clone(), true);
        }
        Ok(answer)
    }

    /// Opens a port for one side of a program's store, or answers the one that is
    /// open.
    pub(super) fn add_store(&mut self, namespace: &Namespace) -> Result<SocketAddr, Error> {
        if let Some(open) = self.open.iter().find(|open| open.namespace == *namespace) {
            return Ok(open.address);
        }
        let stores = self.open.iter().filter(|open| open.namespace.is_of_store());
        if stores.count() >= self.stores_max {
            return Err(Error::TooManyStores { max: self.stores_max });
        }
        let taken = Bound::take_free(false).map_err(|reason| Error::NoFreePort { reason });
        let (bound, _) = taken?;
        let address = bound.address();
        let listener = listen(bound, namespace, true, self.keeper.as_ref())?;
        self.start(listener, address, namespace.clone(), true);
        Ok(address)
    }

    pub(super) fn close_store(&mut self, name: &Name) {
        self.open.retain(|open| {
            let closes = open.namespace.is_of_store() && open.namespace.name() == Some(name);
            if closes {
                open.close.cancel();
            }
            !closes
        });
    }

    /// Ports served, with their namespaces.
    pub(super) fn all(&self) -> Vec<(SocketAddr, Namespace)> {
        self.open.iter().map(|open| (open.address, open.namespace.clone())).collect()
    }

    fn room_for(&self, ports: usize) -> Result<(), Error> {
        let others = self.open.iter().filter(|open| !open.namespace.is_of_store());
        if others.count() + ports > LISTENERS_MAX { Err(Error::TooManyPorts) } else { Ok(()) }
    }

    fn begin(
        &mut self,
        listener: Listener,
        address: SocketAddr,
        namespace: Namespace,
        by_name: bool,
    ) {
        info!("port {address} is open: namespace {namespace}");
        self.start(listener, address, namespace, by_name);
    }

    pub(super) fn close(&mut self, name: &Name) {
        self.open.retain(|open| {
            let named = open.by_name && !open.namespace.is_of_store();
            let closes = named && open.namespace.name() == Some(name);
            if closes {
                info!("port {} is closed: namespace {name} is over", open.address);
                open.close.cancel();
            }
            !closes
        });
    }
}

fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a port ended in a defect of the agent");
    }
}

/// The first port has the run's own keys, any other the namespace of its
/// number.
pub(super) fn namespace_of(address: SocketAddr, ports: &[SocketAddr]) -> Namespace {
    if ports.first().is_some_and(|first| first.port() == address.port()) {
        Namespace::first()
    } else {
        Namespace::of_port(address.port())
    }
}

/// Takes ports of an agent before, which are just being closed.
pub(super) async fn take_ports_again(addresses: &[SocketAddr]) -> Result<Vec<Bound>, Error> {
    for _ in 0..TAKE_TRIES {
        match take_ports(addresses) {
            Err(Error::Listen { reason, .. }) if reason.kind() == io::ErrorKind::AddrInUse => {
                sleep(TAKE_PAUSE).await;
            }
            taken => return taken,
        }
    }
    take_ports(addresses)
}

pub(super) fn take_ports(addresses: &[SocketAddr]) -> Result<Vec<Bound>, Error> {
    if addresses.len() > LISTENERS_MAX {
        return Err(Error::TooManyPorts);
    }
    if addresses.is_empty() {
        let taken = Bound::take_free(false).map_err(|reason| Error::NoFreePort { reason });
        let (bound, _) = taken?;
        return Ok(vec![bound]);
    }
    addresses.iter().map(|address| take(*address)).collect()
}

fn take(address: SocketAddr) -> Result<Bound, Error> {
    Bound::take(address).map_err(|reason| Error::Listen { address, reason })
}

/// Listens; where there is a keeper, that accepts.
pub(super) fn listen(
    bound: Bound,
    namespace: &Namespace,
    by_name: bool,
    keeper: Option<&Keeper>,
) -> Result<Listener, Error> {
    let address = bound.address();
    let failed = |reason| Error::Listen { address, reason };
    let listener = bound.listen().map_err(failed)?;
    let Some(keeper) = keeper else { return Ok(Listener::Own(listener)) };
    let about = About::Port { address, namespace: namespace.clone(), by_name };
    let port = keeper.keep(listener, &about).map_err(failed)?;
    Ok(Listener::Kept(address, port))
}
